//! Tests of GAPS: guests that compute and serve requests beside other guests, behind a driver
//! domain. Set-ups, ranges and test vectors are those of sections 4 to 7 of our reference on GAPS,
//! a set of notes and test cases that is not in this repository. The costs in the reference are
//! assumptions for a computer of 2008.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::listener::{Listener, Noted, listened};
use slackline_host::policy::find;
use slackline_scenario::Scenario;
use slackline_trace::Record;
use slackline_units::{DomId, Pending, Span, Task, TaskId, Tasks, Time, VcpuHint, VcpuId};

/// Time at the start of a run that results leave out.
const WARM: Span = Span::from_secs(5);

/// Set-up of guests behind a driver on one CPU. The first guest serves and computes, and the others
/// compute.
struct SetUp<'a> {
    policy: &'a str,
    guests: usize,
    length: &'a str,
    /// Seed of the phases in which guests start.
    seed: u64,
    /// Scenario keys of the client that sends requests to the first guest.
    asks: &'a str,
    /// Time that the server computes for a request.
    each: &'a str,
    /// Scenario keys of the client that sends packets to another task of the first guest. That task
    /// is less urgent than ordinary tasks. Empty if there is no such client.
    others: &'a str,
    /// Scenario keys of the work of the driver domain itself. Empty for none.
    driver: &'a str,
    /// Urgency of the computing task of a guest.
    urgency: fn(usize) -> u8,
    /// Value of the key `tells` of a guest. The driver is guest 0.
    tells: fn(usize) -> &'static str,
}

/// Set-up in which requests arrive at a fixed rate, even if earlier requests are not answered yet.
/// The driver domain also wakes for its own work, out of step with any tick. Both properties are
/// needed to reproduce the paper's figures.
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

/// Set-up in which two tasks of a guest wait for packets, one of them urgent. The driver domain has
/// no work of its own.
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
            // Arbitrary phases that depend on the seed.
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

    /// Returns the median over three seeds of the mean response.
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

/// Returns the response times of a task to requests that were sent at `from` or later, in the order
/// in which they were answered.
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

/// Results of a run, for all guests in their order.
#[derive(Debug)]
struct Outcome {
    /// Mean response time of the server.
    response: Span,
    /// CPU time of each guest, in thousandths of an equal share of the CPU time of all guests.
    shares: Vec<u64>,
    /// Longest wait of each guest. A guest that never runs again waits until the end.
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

    /// Checks that the CPU time of each guest is within this many thousandths of an equal share.
    /// Also checks that no guest waits for more than 400 ms.
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

/// Returns the percentage by which `this` is shorter than `than`.
fn less(this: Span, than: Span) -> i64 {
    100 - i64::try_from(this * 100 / than).expect("the percentage is small")
}

/// Response time of a server beside one always runnable task. The response time is the time of two
/// transfers on the wire, two runs of the driver domain and one run of the guest. Each run includes
/// its dispatch cost.
#[test]
fn server_response_time_is_sum_of_transfer_and_run_times() {
    for policy in [CREDIT, PAPER, "name = 'gaps'"] {
        let scenario = SetUp { policy, guests: 1, length: "9s", driver: "", ..B }.scenario();
        let all = responses(&run(&scenario), 0, Time::START + WARM);
        let on_wire = Span::from_ns(2 * 720);
        let least = Span::from_us(2 * 100 + 25 + 48 + 25) + on_wire;
        let most = least + Span::from_us(40);
        let on_path = all.iter().filter(|&&span| (least..=most).contains(&span)).count();
        // The other requests arrived while an earlier request was being answered.
        assert!(all.len() > 1_000 && on_path * 10 > all.len() * 9, "{on_path} of {}", all.len());
        assert!(all.iter().all(|&span| span >= least), "{policy}");
    }
}

/// Section 7.3 of our reference on GAPS (not in this repository). Each step of the path takes a
/// millisecond. The client sends requests at 0 ms and 40 ms after each answer. The first answer
/// takes 96 ms, because the driver domain wakes behind three vCPUs that are boosted as well.
#[test]
fn server_response_times_under_gaps_equal_hand_computed_times() {
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

/// Without hints from guests, `gaps` gives the same results as Credit.
#[test]
fn gaps_schedules_guests_like_credit_if_they_send_no_hints() {
    for (gaps, credit) in [
        ("name = 'gaps'", "name = 'credit'"),
        ("name = 'gaps', rules = 'paper'", "name = 'credit', rules = 'xen-3.0.4'"),
        (PAPER, CREDIT),
    ] {
        let records =
            |policy| run(&SetUp { policy, tells: |_| "false", length: "9s", ..B }.scenario());
        assert_eq!(records(gaps), records(credit), "{gaps}");
        // A policy that ignores hints gives the same results.
        let unheard = format!("{gaps}, tell = 'none'");
        let records = |policy| run(&SetUp { policy, length: "9s", ..B }.scenario());
        assert_eq!(records(&unheard), records(credit), "{unheard}");
    }
}

/// The response time is shorter with hints from run queues than without, and shortest with hints on
/// tasks that wait for I/O. The gain grows with the number of guests.
#[test]
fn run_queue_and_io_hints_shorten_response_times_under_gaps() {
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

/// Three guests claim more urgency than the fourth, and packets go to one of the three. The test
/// uses ten phases.
#[test]
fn least_urgent_guest_starves_only_under_paper_rules_of_gaps() {
    let outcome = |policy, seed| {
        let urgency = |guest| if guest == 4 { 120 } else { 1 };
        SetUp { policy, seed, asks: "rate = 10", driver: "", length: "35s", urgency, ..B }.run()
    };
    let of_last = |policy| (1..=10).map(|seed| outcome(policy, seed).shares[3]).min().unwrap();
    let least = ["name = 'gaps', rules = 'paper'", PAPER].map(of_last);
    assert!(least.iter().any(|&least| least < 100), "{least:?}");
    for seed in 1..=10 {
        outcome("name = 'gaps'", seed).assert_fair(2, "gaps");
        // Accounting by ticks charges the vCPU that runs at a tick, so the shares vary more.
        outcome("name = 'gaps', base = 'xen-3.0.4'", seed).assert_fair(40, "by ticks");
    }
}

/// A server answers much sooner under GAPS, which uses hints, than under Credit, the policy that
/// GAPS extends. Most of the gain remains beside a guest that always claims the highest urgency, or
/// that always claims to wait for I/O. Such a guest delays others by at most the time for which the
/// policy lets it run ahead of the other guests.
#[test]
fn lying_guest_hardly_delays_servers_under_bounded_rules_of_gaps() {
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

/// Number of times the first guest ran ahead of others, and how many of these times had no cause. A
/// cause is a task of the claimed urgency that wants the CPU or waits for pending I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Boosts {
    all: u64,
    wrong: u64,
}

/// True state of a guest, from the hints of the guest and the driver, whether the policy uses them
/// or not.
#[derive(Default)]
struct Truth {
    tasks: BTreeMap<VcpuId, Tasks>,
    pending: BTreeMap<DomId, Pending>,
}

impl Truth {
    fn note_hint(&mut self, vcpu: VcpuId, told: &VcpuHint) {
        match *told {
            VcpuHint::Tasks(tasks) => drop(self.tasks.insert(vcpu, tasks)),
            VcpuHint::Pending(pending) => drop(self.pending.insert(pending.domain, pending)),
        }
    }

    /// Returns true if a vCPU has a task of this urgency with work to do.
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
    /// Returns the response times of the server, and how often its guest ran ahead of others.
    fn scored(&self) -> (Vec<Span>, Boosts) {
        let (noted, records) = listened(self.scenario(), |values, topology| {
            let gaps = find("gaps").expect("the policy exists");
            Box::new(Listener((gaps.build)(values, topology)))
        });
        let (mut truth, mut boosts) = (Truth::default(), Boosts::default());
        for noted in noted {
            match noted {
                Noted::Told(_, vcpu, told) => truth.note_hint(vcpu, &told),
                Noted::Began { vcpu, ahead_for: Some(urgency) } if vcpu.slot() == 1 => {
                    boosts.all += 1;
                    boosts.wrong += u64::from(!truth.has(vcpu, urgency));
                }
                Noted::Began { .. } => {}
            }
        }
        // If the guest has the task `other`, the server is its second task.
        (responses(&records, u16::from(!self.others.is_empty()), Time::START + WARM), boosts)
    }
}

/// Section 4.5 of our reference on GAPS (not in this repository). A server gets five requests per
/// second, and packets arrive for a task that is less urgent than the guest's computing task. Both
/// tasks are always on the list of tasks recently woken by I/O, so matching by that list is no
/// better than no matching. The guest then runs ahead mostly without use for the server, and later
/// lacks the credit that this costs.
#[test]
fn exact_io_matching_shortens_responses_under_paper_rules_of_gaps() {
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

/// Under the bounded rules with exact matching, the guest runs ahead of others only for its server.
#[test]
fn exact_io_matching_prevents_all_wrong_boosts_under_gaps() {
    for others in ["rate = 50", "rate = 500"] {
        let scored = |policy| SetUp { policy, asks: "rate = 5", others, ..OF_TWO }.scored();
        let (_, by_list) = scored("name = 'gaps'");
        let (responses, exact) = scored("name = 'gaps', match = 'exact'");
        assert!(by_list.wrong * 4 > by_list.all * 3, "{by_list:?}");
        assert!(exact.all > 200 && exact.wrong == 0, "{exact:?}");
        assert!(mean(&responses) < Span::from_us(450), "{}", mean(&responses));
    }
}

/// Mean response times of a server, and boosts of its guest.
#[derive(Debug)]
struct Compared {
    /// Response time without hints and without inferred urgency.
    nobody: Span,
    /// Response time with the guest's hints.
    guest: Span,
    /// Response time with inferred urgency.
    inferred: Span,
    /// Boosts with inferred urgency.
    boosts: Boosts,
}

impl Compared {
    /// Returns the medians of the response times over three seeds, and the sum of the boosts.
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

    /// Returns the gain in response time with inferred urgency, in thousandths of the gain with
    /// hints.
    fn gain(&self) -> u64 {
        let least = |this: Span| self.nobody.left_after(this);
        least(self.inferred) * 1_000 / least(self.guest)
    }
}

/// Without hints, GAPS recognises a server in a guest that also computes as reliably as with hints.
/// No other task is recognised as a server.
#[test]
fn inferred_urgency_under_gaps_shortens_responses_as_much_as_hints() {
    for asks in ["rate = 20", "rate = 300"] {
        let set_up = SetUp { asks, length: "60s", urgency: |_| 120, ..B };
        let compared = Compared::new(&set_up, "");
        assert!(compared.gain() >= 990, "{compared:?}");
        assert!(compared.boosts.all > 3_000 && compared.boosts.wrong == 0, "{compared:?}");
        let policy = "name = 'gaps', tell = 'inferred'";
        SetUp { policy, ..set_up }.run().assert_fair(3, asks);
    }
}

/// Other I/O of a guest cannot be distinguished from its server. A task that is not urgent is
/// boosted like a server. Packets without answers hide a task that answers others quickly. A server
/// that takes longer than the limit is not recognised. None of this takes CPU time from other
/// guests.
#[test]
fn wrongly_inferred_urgency_costs_other_guests_no_time_under_gaps() {
    let two = SetUp { urgency: |_| 140, ..OF_TWO };
    let lazily = |rate: &str| format!("{rate}\nends = 'received'");
    let (few, many) = (lazily("rate = 5"), lazily("rate = 50"));
    let slow = SetUp { asks: "rate = 20", each: "2ms", length: "60s", ..B };
    // Each case has the gain in thousandths of the gain with hints. It also has the number of
    // boosts without an urgent cause, per thousand boosts.
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
        if *gain.end() == 0 {
            assert_eq!(compared.inferred, compared.nobody, "{how}: {compared:?}");
        }
        assert!(wrong.contains(&(times * 1_000 / all.max(1))), "{how}: {compared:?}");
        let policy = format!("name = 'gaps', tell = 'inferred'{how}");
        SetUp { policy: &policy, ..set_up }.run().assert_fair(5, how);
    }
}
