//! GAPS: guests that compute and serve beside others, behind a driver domain. Set-ups, bands and
//! vectors are those of our reference on the paper, sections 4 to 7; costs are assumed there, those
//! of a machine of 2008.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::listener::{Listener, Noted, listened};
use slackline_host::policy::find;
use slackline_scenario::Scenario;
use slackline_trace::Record;
use slackline_units::{DomId, Pending, Span, Task, TaskId, Tasks, Time, Told, VcpuId};

/// What is left out of numbers.
const WARM: Span = Span::from_secs(5);

/// Some guests behind a driver, on one CPU. The first serves and computes, the others compute.
struct SetUp<'a> {
    policy: &'a str,
    guests: usize,
    length: &'a str,
    /// From which the phases are drawn in which guests start.
    seed: u64,
    /// How the client asks.
    asks: &'a str,
    /// What a request takes the server.
    each: &'a str,
    /// How packets come for another task of the first guest, which it calls less than ordinary;
    /// there is none if that is not said.
    others: &'a str,
    /// What the driver does of its own.
    driver: &'a str,
    /// How urgent what a guest computes is.
    urgency: fn(usize) -> u8,
    /// What a guest tells; the driver is 0.
    tells: fn(usize) -> &'static str,
}

/// Requests come whether they are answered or not, and the driver has wakes of its own, in no step
/// with any tick: what the paper's figures need to come out.
const B: SetUp<'static> = SetUp {
    policy: "name = 'gaps'",
    guests: 4,
    length: "45s",
    seed: 1,
    asks: "rate = 300",
    each: "20us",
    others: "",
    driver: "work = { kind = 'periodic', period = '7300us', work = '100us' }",
    urgency: |guest| if guest == 2 { 110 } else { 120 },
    tells: |_| "true",
};

/// A guest in which two tasks wait for packets, one of them urgent; the driver has nothing of its
/// own to do.
const OF_TWO: SetUp<'static> =
    SetUp { others: "rate = 50", driver: "", length: "60s", urgency: |_| 120, ..B };

const CREDIT: &str = "name = 'credit', rules = 'xen-3.0.4', rotation = 'turn'";
const BY_RUN_QUEUES: &str = "name = 'gaps', rules = 'paper-ro', rotation = 'turn'";
const PAPER: &str = "name = 'gaps', rules = 'paper', rotation = 'turn'";

impl SetUp<'_> {
    fn scenario(&self) -> Scenario {
        let SetUp { policy, guests, length, seed, asks, each, others, driver, .. } = *self;
        let mut text = format!(
            "title = 't'\nlength = '{length}'\nseed = {seed}\npolicy = {{ {policy} }}\n\
             [driver]\ndomain = 'dom0'\nreceive = '15us'\nsend = '15us'\n\
             [[domain]]\nname = 'dom0'\ndispatch = '10us'\ntells = {}\n{driver}\n",
            (self.tells)(0)
        );
        for guest in 1..=guests {
            // Any drawing does.
            let joins = (seed * 7_919 + guest as u64 * 104_729) % 30_000;
            let (tells, priority) = ((self.tells)(guest), 255 - (self.urgency)(guest));
            let _ = write!(
                text,
                "[[domain]]\nname = 'dom{guest}'\ndispatch = '10us'\ntells = {tells}\n\
                 kernel = {{ receive = '10us', send = '8us' }}\njoins = '{joins}us'\n"
            );
            if guest == 1 && !others.is_empty() {
                text += "[[domain.task]]\nname = 'other'\npriority = 125\n\
                         work = { kind = 'echo', each = '20us', after = '10us' }\n";
            }
            if guest == 1 {
                let _ = write!(
                    text,
                    "[[domain.task]]\nname = 'server'\npriority = 155\n\
                     work = {{ kind = 'echo', each = '{each}', after = '10us' }}\n"
                );
            }
            let _ = write!(
                text,
                "[[domain.task]]\npriority = {priority}\nwork = {{ kind = 'spin' }}\n"
            );
        }
        let mut ask = |of: &str, how: &str| {
            let _ = write!(
                text,
                "[[client]]\nkind = 'ping'\nto = 'dom1'\ntask = '{of}'\n\
                 delay = 'uniform 100us 120us'\n{how}\n"
            );
        };
        ask("server", asks);
        if !others.is_empty() {
            ask("other", others);
        }
        read(&text)
    }

    fn run(&self) -> Outcome {
        let scenario = self.scenario();
        Outcome::new(&run(&scenario), self.guests, Time::START + scenario.length)
    }

    /// The median of mean responses over three seeds.
    fn response(&self) -> Span {
        let mut all = [1, 2, 3].map(|seed| SetUp { seed, ..*self }.run().response);
        all.sort_unstable();
        all[1]
    }
}

fn read(text: &str) -> Scenario {
    Scenario::read(text).unwrap_or_else(|error| panic!("{}: {error}\n{text}", error.line))
}

fn run(scenario: &Scenario) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    slackline_sim::run(scenario, &mut records).expect("the run completes");
    records
}

/// The responses of a task to what was asked from then on, in the order in which they came.
fn responses(records: &[Record], of: u16, from: Time) -> Vec<Span> {
    let response = |record: &Record| match *record {
        Record::Job { task: Some(task), released, done, .. }
            if task == TaskId::new(of) && released >= from =>
        {
            Some(done - released)
        }
        _ => None,
    };
    records.iter().filter_map(response).collect()
}

/// What came of a run, of all guests in their order.
#[derive(Debug)]
struct Outcome {
    /// On average.
    response: Span,
    /// Of what all guests had: in thousandths of an equal part.
    shares: Vec<u64>,
    /// The longest that each waited. Who never runs again waits to the end.
    waits: Vec<Span>,
}

impl Outcome {
    fn new(records: &[Record], guests: usize, end: Time) -> Outcome {
        let warm = Time::START + WARM;
        let mut ran = vec![Span::ZERO; guests];
        let (mut waits, mut since) = (vec![Span::ZERO; guests], vec![warm; guests]);
        for record in records {
            let Record::Ran { vcpu, from, to, used, .. } = *record else { continue };
            let Some(guest) = vcpu.slot().checked_sub(1).filter(|_| to > warm) else { continue };
            ran[guest] += used;
            waits[guest] = waits[guest].max(from.since(since[guest].min(from)));
            since[guest] = to;
        }
        let last = waits.iter().zip(&since).map(|(&longest, &since)| longest.max(end - since));
        let all: Span = ran.iter().copied().sum();
        let share = |&ran: &Span| ran * 1_000 * guests as u64 / all;
        Outcome {
            response: mean(&responses(records, 0, warm)),
            shares: ran.iter().map(share).collect(),
            waits: last.collect(),
        }
    }

    /// Everybody has within so many thousandths of its part, and waits for no 400 ms.
    #[track_caller]
    fn assert_fair(&self, within: u64, who: &str) {
        let fair = 1_000 - within..=1_000 + within;
        assert!(self.shares.iter().all(|share| fair.contains(share)), "{who}: {self:?}");
        assert!(self.waits.iter().all(|&wait| wait <= Span::from_ms(400)), "{who}: {self:?}");
    }
}

fn mean(all: &[Span]) -> Span {
    all.iter().copied().sum::<Span>() / (all.len() as u64).max(1)
}

/// Per cent by which one is less than another.
fn less(this: Span, than: Span) -> i64 {
    100 - i64::try_from(this * 100 / than).expect("a small number")
}

/// Alone with its hog: twice the way, the driver twice and the guest once, each dispatched.
#[test]
fn the_bare_path_takes_what_its_parts_take() {
    for policy in [CREDIT, PAPER, "name = 'gaps'"] {
        let scenario = SetUp { policy, guests: 1, length: "9s", driver: "", ..B }.scenario();
        let all = responses(&run(&scenario), 0, Time::START + WARM);
        let on_wire = Span::from_ns(2 * 720);
        let least = Span::from_us(2 * 100 + 25 + 48 + 25) + on_wire;
        let most = least + Span::from_us(40);
        let on_path = all.iter().filter(|&&span| (least..=most).contains(&span)).count();
        // Others came while one was being answered.
        assert!(all.len() > 1_000 && on_path * 10 > all.len() * 9, "{on_path} of {}", all.len());
        assert!(all.iter().all(|&span| span >= least), "{policy}");
    }
}

/// Of the reference, section 7.3: each part takes a millisecond, the client asks at 0, and 40 ms
/// after each answer. The first is answered after 96 ms: the driver wakes behind three that are
/// boosted as well.
#[test]
fn a_server_is_served_when_it_was_worked_out_to_be() {
    let responses = |policy: &str, asks: &[u64]| {
        let mut text = format!(
            "title = 't'\nlength = '600ms'\npolicy = {{ {policy} }}\n\
             [driver]\ndomain = 'dom0'\nreceive = '1ms'\nsend = '1ms'\n\
             [nic]\nrate = '1000Gbit/s'\n\
             [[domain]]\nname = 'dom0'\ntells = true\n"
        );
        for guest in 1..=3 {
            let server = "[[domain.task]]\nname = 'server'\npriority = 155\n\
                          work = { kind = 'echo', each = '1ms', after = '1ms' }\n";
            let _ = write!(
                text,
                "[[domain]]\nname = 'dom{guest}'\ntells = true\n\
                 kernel = {{ receive = '1ms', send = '1ms' }}\n{}\
                 [[domain.task]]\npriority = 135\nwork = {{ kind = 'spin' }}\n",
                if guest == 1 { server } else { "" }
            );
        }
        for from in asks {
            let _ = write!(
                text,
                "[[client]]\nkind = 'ping'\nto = 'dom1'\ndelay = '1ms'\n\
                 from = '{from}ms'\nuntil = '{}ms'\n",
                from + 1
            );
        }
        let records = run(&read(&text));
        let all = responses(&records, 0, Time::START);
        all.iter().map(|&span| span / Span::from_ms(1)).collect::<Vec<_>>()
    };
    for (policy, expected) in [
        ("name = 'credit', rules = 'xen-3.0.4'", &[96, 7, 37, 37, 37][..]),
        ("name = 'gaps', rules = 'paper'", &[96, 7, 67, 67]),
        (CREDIT, &[96, 22, 52, 52]),
        (PAPER, &[96, 7, 70, 52]),
    ] {
        let asks = expected.iter().scan(0, |at, response| {
            let this = *at;
            *at += response + 40;
            Some(this)
        });
        assert_eq!(responses(policy, &asks.collect::<Vec<_>>()), expected, "{policy}");
    }
}

/// Silence gains nothing and costs nothing: it is Credit then.
#[test]
fn who_tells_nothing_is_served_as_credit_serves() {
    for (gaps, credit) in [
        ("name = 'gaps'", "name = 'credit'"),
        ("name = 'gaps', rules = 'paper'", "name = 'credit', rules = 'xen-3.0.4'"),
        (PAPER, CREDIT),
    ] {
        let records =
            |policy| run(&SetUp { policy, tells: |_| "false", length: "9s", ..B }.scenario());
        assert_eq!(records(gaps), records(credit), "{gaps}");
        // Nor does it matter what is told to who does not listen.
        let unheard = format!("{gaps}, tell = 'none'");
        let records = |policy| run(&SetUp { policy, length: "9s", ..B }.scenario());
        assert_eq!(records(&unheard), records(credit), "{unheard}");
    }
}

/// Credit, then by run queues, then with those that wait for I/O; and the more guests the more.
#[test]
fn the_papers_order_comes_out_where_turns_are_kept() {
    let mut gains = Vec::new();
    for guests in 4..=8 {
        let [credit, by_run_queues, all] =
            [CREDIT, BY_RUN_QUEUES, PAPER].map(|policy| SetUp { policy, guests, ..B }.response());
        assert!(credit > by_run_queues && by_run_queues > all, "{credit} {by_run_queues} {all}");
        gains.push([less(by_run_queues, credit), less(all, credit)]);
    }
    let (few, many) = (gains[0], gains[4]);
    assert!(few.iter().zip(&many).all(|(few, many)| few < many), "{gains:?}");
    assert!(gains.iter().all(|gains| (8..=30).contains(&gains[0])), "{gains:?}");
    assert!(gains.iter().all(|gains| (15..=40).contains(&gains[1])), "{gains:?}");
}

/// Three that claim more than the fourth and packets for one of them, in ten start phases.
#[test]
fn by_the_papers_rule_who_claims_least_starves_and_bounded_nobody_does() {
    let outcome = |policy, seed| {
        let urgency = |guest| if guest == 4 { 120 } else { 1 };
        SetUp { policy, seed, asks: "rate = 10", driver: "", length: "35s", urgency, ..B }.run()
    };
    let of_last = |policy| (1..=10).map(|seed| outcome(policy, seed).shares[3]).min().unwrap();
    let least = ["name = 'gaps', rules = 'paper'", PAPER].map(of_last);
    assert!(least.iter().any(|&least| least < 100), "{least:?}");
    for seed in 1..=10 {
        outcome("name = 'gaps'", seed).assert_fair(2, "gaps");
        // Who is charged by ticks is charged by chance.
        outcome("name = 'gaps', base = 'xen-3.0.4'", seed).assert_fair(40, "by ticks");
    }
}

/// What going ahead brings beside the same Credit, and what is left of it beside a guest that says
/// at all times that it is as urgent as can be, or that it waits for I/O and is: it delays others
/// by what it may have ahead of them, and no more.
#[test]
fn bounded_a_server_is_at_once_and_a_liar_delays_it_by_no_quarter_and_gains_nothing() {
    let cases =
        [("rate = 20", B.driver), ("rate = 20", ""), ("rate = 300", B.driver), ("rate = 300", "")];
    for (asks, driver) in cases {
        let honest = SetUp { asks, driver, ..B };
        let credit = SetUp { policy: "name = 'credit'", ..honest }.response();
        let alone = honest.response();
        assert!(alone * 100 <= credit * 5, "{asks}, {driver}: {credit}, {alone}");
        honest.run().assert_fair(3, asks);
        let runnable = |guest: usize| if guest == 3 { "{ runnable = 255 }" } else { "true" };
        let blocked = |guest: usize| if guest == 3 { "{ blocked = 255 }" } else { "true" };
        for tells in [runnable as fn(usize) -> &'static str, blocked] {
            let beside_a_liar = SetUp { tells, ..honest };
            let beside = beside_a_liar.response();
            assert!(beside * 100 <= alone * 125, "{asks}, {driver}: {alone}, {beside}");
            beside_a_liar.run().assert_fair(3, asks);
        }
    }
}

/// How often the first guest went ahead of others, and how often although nothing in it was that
/// urgent: no task that wants the CPU, and none that waits for what has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Boosts {
    all: u64,
    wrong: u64,
}

/// What is so in a guest, as it and the driver tell it, whether the policy listens or not.
#[derive(Default)]
struct Truth {
    tasks: BTreeMap<VcpuId, Tasks>,
    pending: BTreeMap<DomId, Pending>,
}

impl Truth {
    fn hear(&mut self, vcpu: VcpuId, told: &Told) {
        match *told {
            Told::Tasks(tasks) => drop(self.tasks.insert(vcpu, tasks)),
            Told::Pending(pending) => drop(self.pending.insert(pending.domain, pending)),
        }
    }

    /// Whether a vCPU has something so urgent to do.
    fn has(&self, vcpu: VcpuId, urgency: u8) -> bool {
        let Some(tasks) = self.tasks.get(&vcpu) else { return false };
        let is_urgent = |task: &&Task| task.urgency.0 <= urgency;
        let pending = self.pending.get(&vcpu.domain());
        let is_meant =
            |task: &Task| pending.is_some_and(|pending| pending.tasks.contains(&Some(task.id)));
        tasks.runnable.iter().flatten().any(|task| is_urgent(&task))
            || tasks.blocked.iter().flatten().filter(is_urgent).any(is_meant)
    }
}

impl SetUp<'_> {
    /// The responses of the server, and how often its guest went ahead of others.
    fn scored(&self) -> (Vec<Span>, Boosts) {
        let (noted, records) = listened(self.scenario(), |values, topology| {
            let gaps = find("gaps").expect("it is there");
            Box::new(Listener((gaps.build)(values, topology)))
        });
        let (mut truth, mut boosts) = (Truth::default(), Boosts::default());
        for noted in noted {
            match noted {
                Noted::Told(_, vcpu, told) => truth.hear(vcpu, &told),
                Noted::Began { vcpu, ahead_for: Some(urgency) } if vcpu.slot() == 1 => {
                    boosts.all += 1;
                    boosts.wrong += u64::from(!truth.has(vcpu, urgency));
                }
                Noted::Began { .. } => {}
            }
        }
        // The server is the second task where there is another.
        (responses(&records, u16::from(!self.others.is_empty()), Time::START + WARM), boosts)
    }
}

/// Of the reference, section 4.5: a server that is asked five times a second, and packets for a
/// task less urgent than what its guest computes. On the list of those that I/O has lately woken
/// are both, always, so it is no better than none: most of what it takes to be for the server is
/// not, and costs credit that the server lacks then.
#[test]
fn an_exact_match_is_never_wrong_and_halves_the_response() {
    for rotation in ["pass", "turn"] {
        for others in ["rate = 50", "rate = 500"] {
            let medians = ["any", "list", "exact"].map(|matching| {
                let policy = format!(
                    "name = 'gaps', rules = 'paper', rotation = '{rotation}', match = '{matching}'"
                );
                let set_up = SetUp { policy: &policy, asks: "rate = 5", others, ..OF_TWO };
                let mut means = [1, 2, 3].map(|seed| {
                    let (responses, boosts) = SetUp { seed, ..set_up }.scored();
                    assert!(responses.len() > 200 && boosts.all > 200, "{policy}: {boosts:?}");
                    if matching == "exact" {
                        assert_eq!(boosts.wrong, 0, "{policy}: {boosts:?}");
                    } else {
                        assert!(boosts.wrong * 2 > boosts.all, "{policy}: {boosts:?}");
                    }
                    mean(&responses)
                });
                means.sort_unstable();
                means[1]
            });
            let [any, list, exact] = medians;
            assert!(exact * 100 <= list * 65, "{rotation}, {others}: {medians:?}");
            assert!(exact * 100 <= any * 65, "{rotation}, {others}: {medians:?}");
        }
    }
}

/// By the bounded rule, too: it goes ahead of others for the server and for nothing else.
#[test]
fn bounded_an_exact_match_is_never_wrong_either() {
    for others in ["rate = 50", "rate = 500"] {
        let scored = |policy| SetUp { policy, asks: "rate = 5", others, ..OF_TWO }.scored();
        let (_, by_list) = scored("name = 'gaps'");
        let (responses, exact) = scored("name = 'gaps', match = 'exact'");
        assert!(by_list.wrong * 4 > by_list.all * 3, "{by_list:?}");
        assert!(exact.all > 200 && exact.wrong == 0, "{exact:?}");
        assert!(mean(&responses) < Span::from_us(450), "{}", mean(&responses));
    }
}

/// What of a guest is seen by who does its I/O, beside what it tells, and beside neither: the mean
/// response of its server, and how often it went ahead of others.
#[derive(Debug)]
struct Compared {
    nobody: Span,
    guest: Span,
    inferred: Span,
    boosts: Boosts,
}

impl Compared {
    /// Medians over three seeds; of boosts all together.
    fn new(set_up: &SetUp<'_>, inferred: &str) -> Compared {
        let mut boosts = Boosts::default();
        let mut median = |policy: &str| {
            boosts = Boosts::default();
            let mut means = [1, 2, 3].map(|seed| {
                let (responses, of_run) = SetUp { policy, seed, ..*set_up }.scored();
                boosts.all += of_run.all;
                boosts.wrong += of_run.wrong;
                mean(&responses)
            });
            means.sort_unstable();
            means[1]
        };
        let nobody = median("name = 'gaps', tell = 'none'");
        let guest = median("name = 'gaps'");
        let inferred = median(&format!("name = 'gaps', tell = 'inferred'{inferred}"));
        Compared { nobody, guest, inferred, boosts }
    }

    /// How much of what a willing guest gains, in thousandths.
    fn gain(&self) -> u64 {
        let least = |this: Span| self.nobody.left_after(this);
        least(self.inferred) * 1_000 / least(self.guest)
    }
}

/// A server alone in a guest that computes is seen as well as it is told of, and nothing else is.
#[test]
fn a_quick_server_is_seen_without_being_told_of() {
    for asks in ["rate = 20", "rate = 300"] {
        let set_up = SetUp { asks, length: "60s", urgency: |_| 120, ..B };
        let compared = Compared::new(&set_up, "");
        assert!(compared.gain() >= 990, "{compared:?}");
        assert!(compared.boosts.all > 3_000 && compared.boosts.wrong == 0, "{compared:?}");
        let policy = "name = 'gaps', tell = 'inferred'";
        SetUp { policy, ..set_up }.run().assert_fair(3, asks);
    }
}

/// What else a guest does with I/O is not told from its server: a task that it does not call urgent
/// is served like one, and packets that nobody answers hide who is quick to answer others. Nor is
/// seen who takes longer than it is given. None of it takes anything from other guests.
#[test]
fn what_is_seen_of_a_guest_may_be_another_task_or_too_little() {
    let two = SetUp { urgency: |_| 140, ..OF_TWO };
    let lazily = |rate: &str| format!("{rate}\nends = 'received'");
    let (few, many) = (lazily("rate = 5"), lazily("rate = 50"));
    let slow = SetUp { asks: "rate = 20", each: "2ms", length: "60s", ..B };
    // The gain in thousandths of a willing guest's, and how many in a thousand times ahead of
    // others are for nothing urgent.
    for (set_up, how, gain, wrong) in [
        (SetUp { asks: "rate = 5", ..two }, "", 990..=1_010, 800..=950),
        (SetUp { asks: "rate = 50", others: &few, ..two }, "", 850..=1_000, 10..=100),
        (SetUp { asks: "rate = 5", others: &many, ..two }, "", 0..=0, 0..=0),
        (SetUp { ..slow }, "", 0..=100, 0..=0),
        (slow, ", answers-within = '5ms'", 950..=1_010, 0..=0),
    ] {
        let compared = Compared::new(&set_up, how);
        let Boosts { all, wrong: times } = compared.boosts;
        assert!(gain.contains(&compared.gain()), "{how}: {compared:?}");
        assert!(wrong.contains(&(times * 1_000 / all.max(1))), "{how}: {compared:?}");
        let policy = format!("name = 'gaps', tell = 'inferred'{how}");
        SetUp { policy: &policy, ..set_up }.run().assert_fair(5, how);
    }
}
