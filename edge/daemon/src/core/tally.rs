//! What was delivered: lately, and since the daemon began to look. Its size depends on how many are
//! there and on what happens in a while, not on how long the daemon has been there.

use std::collections::BTreeMap;

use slackline_control::{Delivered, Histogram};
use slackline_metrics::{Meter, MovingWindow, Summary, VcpuSummary};
use slackline_service::OverheadWindow;
use slackline_service::history::Counters;
use slackline_trace::{Entry, Header, Knowledge, Record};
use slackline_units::{DomId, Reservation, Span, Time};

/// How long a while is.
pub(super) const WHILE: Span = Span::from_secs(5);

/// How old what is shown may be: to look goes through all records of the while.
const OLD: Span = Span::from_ms(200);

/// How long after somebody left something may still be told of it.
const LATE: Span = Span::from_secs(60);

/// What was delivered to everybody.
pub(super) struct Tally {
    lately: MovingWindow,
    all: Meter,
    /// Of those whose slots others have by now.
    before: BTreeMap<(DomId, u16), Sum>,
    /// The longest waits that were told: what somebody waited is known once it is known what it
    /// ran, and what is told never shrinks.
    waited: BTreeMap<(DomId, u16), Span>,
    /// When what is shown of a domain lately begins, since its terms or its state changed.
    begun: BTreeMap<DomId, Time>,
    /// The last look at each, and when it was.
    looked: Option<(Time, Seen)>,
    next_tidy: Time,
    pub(super) timer_late: Histogram,
    pub(super) cpus: Vec<CpuTally>,
}

/// What a vCPU was given, and what it had to wait for that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) delivered: Delivered,
    /// How much later than missed deadlines it had what it lacked.
    pub(super) late: Span,
    /// How long it wanted a CPU and had none.
    pub(super) waited: Span,
    /// Time in which it was there and not blocked.
    runnable: Span,
}

/// Of a CPU.
#[derive(Clone, Debug, Default)]
pub(super) struct CpuTally {
    pub(super) stolen: Span,
    pub(super) dispatching: Span,
    /// The same lately.
    pub(super) overhead: OverheadWindow,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    lately: Vec<VcpuSummary>,
    /// Of domains that have changed lately, since then.
    since: BTreeMap<DomId, Vec<VcpuSummary>>,
    all: Vec<VcpuSummary>,
}

impl Tally {
    pub(super) fn new(policy: &str, cpus: usize, knows: Knowledge) -> Tally {
        let header = Header {
            title: "service".into(),
            machine: "live".into(),
            policy: policy.into(),
            parameters: String::new(),
            seed: 0,
            cpus,
            groups: Vec::new(),
            dispatch: Span::ZERO,
            warmup: Span::ZERO,
            knows,
            scenario: String::new(),
        };
        Tally {
            lately: MovingWindow::new(&header, WHILE),
            all: Meter::new(&header),
            before: BTreeMap::new(),
            waited: BTreeMap::new(),
            begun: BTreeMap::new(),
            looked: None,
            next_tidy: Time::START,
            timer_late: Histogram::default(),
            cpus: vec![CpuTally::default(); cpus],
        }
    }

    /// Takes in what has happened.
    pub(super) fn take(&mut self, records: &mut Vec<Entry>, now: Time) {
        for entry in records.drain(..) {
            match &entry {
                Entry::Record(Record::RangLate { late, .. }) => self.timer_late.observe(*late),
                Entry::Record(Record::Accounted { cpu, from, to, stolen, dispatching, .. }) => {
                    if let Some(tally) = self.cpus.get_mut(cpu.index()) {
                        tally.stolen += *stolen;
                        tally.dispatching += *dispatching;
                        tally.overhead.add(*from, *to, *dispatching);
                    }
                }
                _ => {}
            }
            entry.pass_to(&mut self.lately);
            entry.pass_to(&mut self.all);
        }
        if now >= self.next_tidy {
            self.next_tidy = now + LATE;
            for gone in self.all.take_gone(Time::START.after(now.since(Time::START + LATE))) {
                self.before.entry(called(&gone)).or_default().add(&gone);
            }
        }
    }

    /// The terms or the state of a domain changed: what it is given lately begins again.
    pub(super) fn begin(&mut self, domain: DomId, now: Time) {
        self.begun.insert(domain, now);
        if let Some((_, seen)) = &mut self.looked {
            seen.since.remove(&domain);
        }
    }

    /// Nobody is this any more.
    pub(super) fn forget(&mut self, is_there: impl Fn(DomId) -> bool) {
        self.before.retain(|&(domain, _), _| is_there(domain));
        self.begun.retain(|&domain, _| is_there(domain));
        self.waited.retain(|&(domain, _), _| is_there(domain));
    }

    /// Goes through everything, unless that was done a moment ago.
    fn look(&mut self, now: Time) -> &Seen {
        let is_fresh = |(at, _): &(Time, Seen)| now.since(*at) < OLD;
        if !self.looked.as_ref().is_some_and(is_fresh) {
            let (lately, all) = (vcpus(self.lately.view()), vcpus(self.all.view()));
            let seen = Seen { lately, since: BTreeMap::new(), all };
            self.looked = Some((now, seen));
        }
        &self.looked.as_ref().expect("it was just put there").1
    }

    /// What a domain was given lately, and since the daemon began to look.
    pub(super) fn delivered(&mut self, domain: DomId, now: Time) -> (Delivered, Delivered) {
        let all = self.by_vcpu(domain, now);
        let all = all.into_values().map(|sum| sum.delivered).fold(Delivered::default(), both);
        let lately = self.lately_of(domain, now).iter();
        let lately = lately.filter(|vcpu| vcpu.id.domain() == domain);
        let lately = lately.map(|vcpu| of(vcpu).delivered).fold(Delivered::default(), both);
        (lately, all)
    }

    /// All in the window that is shown of a domain: the last while, or what is over of it since
    /// the domain changed.
    fn lately_of(&mut self, domain: DomId, now: Time) -> &[VcpuSummary] {
        let begun = self.begun.get(&domain).copied().filter(|&at| at > self.lately.start());
        self.look(now);
        let since = begun.map(|at| vcpus(self.lately.view_since(at)));
        let seen = &mut self.looked.as_mut().expect("it was just looked at").1;
        match since {
            Some(since) => seen.since.entry(domain).or_insert(since),
            None => &seen.lately,
        }
    }

    /// Counters of a domain since the daemon started, for its history.
    pub(super) fn counters_of(&mut self, domain: DomId, now: Time) -> Counters {
        self.by_vcpu(domain, now).values().fold(Counters::default(), Sum::counted)
    }

    /// Counters of all domains since the daemon started, for their history.
    pub(super) fn counters(&mut self, now: Time) -> BTreeMap<DomId, Counters> {
        let mut all: BTreeMap<DomId, Counters> = BTreeMap::new();
        let mut add = |domain: DomId, sum: &Sum| {
            let counters = all.entry(domain).or_default();
            *counters = Sum::counted(*counters, sum);
        };
        self.before.iter().for_each(|(&(domain, _), sum)| add(domain, sum));
        for vcpu in &self.look(now).all {
            add(vcpu.id.domain(), &of(vcpu));
        }
        all
    }

    /// What the vCPUs of a domain were given since the daemon began to look, by number.
    pub(super) fn by_vcpu(&mut self, domain: DomId, now: Time) -> BTreeMap<u16, Sum> {
        let before = self.before.range((domain, 0)..=(domain, u16::MAX));
        let mut sums: BTreeMap<u16, Sum> =
            before.map(|(&(_, number), sum)| (number, *sum)).collect();
        for vcpu in self.look(now).all.iter().filter(|vcpu| vcpu.id.domain() == domain) {
            sums.entry(vcpu.id.number()).or_default().add(vcpu);
        }
        for (&number, sum) in &mut sums {
            let told = self.waited.entry((domain, number)).or_default();
            *told = sum.waited.max(*told);
            sum.waited = *told;
        }
        sums
    }
}

/// What somebody did of whom nothing is known is a bug, and counts for nobody.
fn vcpus<E>(view: Result<Summary, E>) -> Vec<VcpuSummary> {
    view.map_or_else(|_| Vec::new(), |it| it.vcpus)
}

fn called(vcpu: &VcpuSummary) -> (DomId, u16) {
    (vcpu.id.domain(), vcpu.id.number())
}

impl Sum {
    fn add(&mut self, vcpu: &VcpuSummary) {
        let more = of(vcpu);
        self.delivered = both(self.delivered, more.delivered);
        self.late += more.late;
        self.waited += more.waited;
        self.runnable += more.runnable;
    }

    /// Adds this to the counters of a domain.
    fn counted(counters: Counters, sum: &Sum) -> Counters {
        Counters {
            runnable: counters.runnable + sum.runnable,
            delivered: counters.delivered + Span::from_ns(sum.delivered.used_ns),
            late: counters.late + sum.late,
            deadlines: counters.deadlines + sum.delivered.deadlines,
            missed: counters.missed + sum.delivered.missed,
        }
    }
}

/// What one vCPU was given. What it was owed is its share of the time it was awake.
fn of(vcpu: &VcpuSummary) -> Sum {
    let part = |of: Span| vcpu.promised.map_or(0, |promised| share_of(promised, of));
    let asleep = vcpu.asleep.unwrap_or(Span::ZERO);
    let delivered = Delivered {
        over_ns: vcpu.present.ns(),
        promised_ns: part(vcpu.present),
        due_ns: part(vcpu.present.left_after(asleep)),
        used_ns: vcpu.delivered.ns(),
        deadlines: vcpu.deadlines.unwrap_or(0),
        missed: vcpu.misses.unwrap_or(0),
    };
    let (late, waited) = (vcpu.late.unwrap_or_default(), vcpu.waiting.unwrap_or_default());
    Sum { delivered, late, waited, runnable: vcpu.present.left_after(asleep) }
}

/// Of two vCPUs, which were there at the same time.
fn both(one: Delivered, other: Delivered) -> Delivered {
    Delivered {
        over_ns: one.over_ns.max(other.over_ns),
        promised_ns: one.promised_ns + other.promised_ns,
        due_ns: one.due_ns + other.due_ns,
        used_ns: one.used_ns + other.used_ns,
        deadlines: one.deadlines + other.deadlines,
        missed: one.missed + other.missed,
    }
}

fn share_of(promised: Reservation, of: Span) -> u64 {
    let (slice, period) = (u128::from(promised.slice().ns()), u128::from(promised.period().ns()));
    u64::try_from(slice * u128::from(of.ns()) / period.max(1)).unwrap_or(u64::MAX)
}
