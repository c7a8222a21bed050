//! What was delivered: lately, and since the daemon began to look. Its size depends on how many are
//! there and on what happens in a while, not on how long the daemon has been there.

use std::collections::BTreeMap;

use slackline_control::{Delivered, Histogram};
use slackline_metrics::{Meter, MovingWindow, Summary, VcpuSummary};
use slackline_trace::{Entry, Header, Knowledge, Record};
use slackline_units::{CpuId, DomId, Reservation, Span, Time};

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
    before: BTreeMap<DomId, Delivered>,
    /// The last look at each, and when it was.
    looked: Option<(Time, Seen)>,
    next_tidy: Time,
    pub(super) timer_late: Histogram,
    pub(super) cpus: Vec<CpuTally>,
}

/// Of a CPU.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CpuTally {
    pub(super) stolen: Span,
    pub(super) dispatching: Span,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    lately: Vec<VcpuSummary>,
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
                Entry::Record(Record::Accounted { cpu, stolen, dispatching, .. }) => {
                    self.account(*cpu, *stolen, *dispatching);
                }
                _ => {}
            }
            entry.pass_to(&mut self.lately);
            entry.pass_to(&mut self.all);
        }
        if now >= self.next_tidy {
            self.next_tidy = now + LATE;
            for gone in self.all.take_gone(Time::START.after(now.since(Time::START + LATE))) {
                add(self.before.entry(gone.id.domain()).or_default(), &gone);
            }
        }
    }

    fn account(&mut self, cpu: CpuId, stolen: Span, dispatching: Span) {
        if let Some(tally) = self.cpus.get_mut(cpu.index()) {
            tally.stolen += stolen;
            tally.dispatching += dispatching;
        }
    }

    /// Nobody is this any more.
    pub(super) fn forget(&mut self, is_there: impl Fn(DomId) -> bool) {
        self.before.retain(|&domain, _| is_there(domain));
    }

    /// Goes through everything, unless that was done a moment ago.
    fn look(&mut self, now: Time) -> &Seen {
        let is_fresh = |(at, _): &(Time, Seen)| now.since(*at) < OLD;
        if !self.looked.as_ref().is_some_and(is_fresh) {
            // What somebody did of whom nothing is known is a bug, and counts for nobody.
            let vcpus = |view: Result<Summary, _>| view.map_or_else(|_| Vec::new(), |it| it.vcpus);
            let seen = Seen { lately: vcpus(self.lately.view()), all: vcpus(self.all.view()) };
            self.looked = Some((now, seen));
        }
        &self.looked.as_ref().expect("it was just put there").1
    }

    /// What a domain was given lately, and since the daemon began to look.
    pub(super) fn delivered(&mut self, domain: DomId, now: Time) -> (Delivered, Delivered) {
        let mut total = self.before.get(&domain).copied().unwrap_or_default();
        let seen = self.look(now);
        let of = |sum: &mut Delivered, vcpus: &[VcpuSummary]| {
            let its = vcpus.iter().filter(|vcpu| vcpu.id.domain() == domain);
            its.for_each(|vcpu| add(sum, vcpu));
        };
        let mut lately = Delivered::default();
        of(&mut lately, &seen.lately);
        of(&mut total, &seen.all);
        (lately, total)
    }

    /// What the vCPUs of a domain were given since the daemon began to look, by number.
    pub(super) fn by_vcpu(&mut self, domain: DomId, now: Time) -> BTreeMap<u16, Delivered> {
        let mut sums: BTreeMap<u16, Delivered> = BTreeMap::new();
        for vcpu in self.look(now).all.iter().filter(|vcpu| vcpu.id.domain() == domain) {
            add(sums.entry(vcpu.id.number()).or_default(), vcpu);
        }
        sums
    }
}

/// Adds what one vCPU was given. What it was owed is its share of the time it was awake.
fn add(sum: &mut Delivered, vcpu: &VcpuSummary) {
    let part = |of: Span| vcpu.promised.map_or(0, |promised| share_of(promised, of));
    let asleep = vcpu.asleep.unwrap_or(Span::ZERO);
    sum.over_ns = sum.over_ns.max(vcpu.present.ns());
    sum.promised_ns += part(vcpu.present);
    sum.due_ns += part(vcpu.present.left_after(asleep));
    sum.used_ns += vcpu.delivered.ns();
    sum.deadlines += vcpu.deadlines.unwrap_or(0);
    sum.missed += vcpu.misses.unwrap_or(0);
}

fn share_of(promised: Reservation, of: Span) -> u64 {
    let (slice, period) = (u128::from(promised.slice().ns()), u128::from(promised.period().ns()));
    u64::try_from(slice * u128::from(of.ns()) / period.max(1)).unwrap_or(u64::MAX)
}
