//! CPU time that vCPUs received, in a recent window and since the daemon started. The amount of
//! memory depends on the number of vCPUs and on the number of events in the window. It does not
//! grow with the time for which the daemon runs.

use std::collections::BTreeMap;

use slackline_control::{Delivery, Histogram};
use slackline_metrics::{Meter, MovingWindow, Summary, VcpuSummary};
use slackline_service::OverheadWindow;
use slackline_service::history::Counters;
use slackline_trace::{Entry, Header, Knowledge, Record};
use slackline_units::{DomId, Span, Time};

/// Length of the recent window, in which recent metrics are counted.
pub(super) const WHILE: Span = Span::from_secs(5);

/// Maximum age at which computed metrics are used again. Computing metrics requires reading all
/// records of the window.
const MAX_CACHE_AGE: Span = Span::from_ms(200);

/// Time for which records of a departed vCPU can still arrive.
const TIDY_DELAY: Span = Span::from_secs(60);

/// Metrics of all vCPUs and CPUs: totals since the daemon started, and values of the last 5 s.
pub(super) struct Tally {
    lately: MovingWindow,
    all: Meter,
    /// Sums of former vCPUs whose slots (indices in the session) are used by other vCPUs now.
    before: BTreeMap<(DomId, u16), Sum>,
    /// For each vCPU, the largest waiting time that was reported so far. Later records can reduce
    /// the computed waiting time, but a reported waiting time must never decrease.
    waited: BTreeMap<(DomId, u16), Span>,
    /// For each domain, the start of its recent metrics: the time of the latest change of its
    /// parameters or state.
    begun: BTreeMap<DomId, Time>,
    /// Metrics of the last computation, and the time of that computation. `None` before the first
    /// computation.
    looked: Option<(Time, SummaryWindows)>,
    next_tidy: Time,
    pub(super) timer_late: Histogram,
    pub(super) cpus: Vec<CpuTally>,
}

/// CPU time that a vCPU received, and the time that it waited for a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) delivered: Delivery,
    /// Tardiness: sum of the times from each missed deadline until the missing CPU time was
    /// received.
    pub(super) late: Span,
    /// Time in which the vCPU was runnable but did not run.
    pub(super) waited: Span,
    /// Time in which the vCPU was present and not blocked. Time in which it was stopped because a
    /// process left its process tree is not counted.
    runnable: Span,
}

/// Times counted on one CPU since the daemon started.
#[derive(Clone, Debug, Default)]
pub(super) struct CpuTally {
    pub(super) stolen: Span,
    pub(super) dispatching: Span,
    /// Dispatch overhead of the CPU in a recent window.
    pub(super) overhead: OverheadWindow,
}

/// Metrics of all vCPUs, for the recent window and since the daemon started.
#[derive(Clone, Debug, Default)]
struct SummaryWindows {
    /// Metrics of the recent window. If a domain has changed within the window, its vCPUs are
    /// counted from the time of the change.
    lately: BTreeMap<DomId, Vec<VcpuSummary>>,
    /// Metrics since the daemon started.
    all: BTreeMap<DomId, Vec<VcpuSummary>>,
}

impl Tally {
    pub(super) fn new(policy: &str, cpus: usize, knows: Knowledge) -> Tally {
        let header = header(policy, cpus, knows);
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

    /// Adds new records of the session to the sums and windows.
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
            self.next_tidy = now + TIDY_DELAY;
            for gone in self.all.take_gone(Time::START.after(now.since(Time::START + TIDY_DELAY))) {
                self.before.entry(called(&gone)).or_default().add(&gone);
            }
        }
    }

    /// Restarts the recent metrics of a domain whose parameters or state have changed.
    pub(super) fn begin(&mut self, domain: DomId, now: Time) {
        self.begun.insert(domain, now);
        // The domain has no recent numbers until they are computed again. To do that at once would
        // take long if many domains change.
        if let Some((_, seen)) = &mut self.looked {
            seen.lately.remove(&domain);
        }
    }

    /// Drops the sums of the domains for which `is_there` returns false, because they no longer
    /// exist.
    pub(super) fn forget(&mut self, is_there: impl Fn(DomId) -> bool) {
        self.before.retain(|&(domain, _), _| is_there(domain));
        self.begun.retain(|&domain, _| is_there(domain));
        self.waited.retain(|&(domain, _), _| is_there(domain));
    }

    /// Returns the metrics of all vCPUs. If the last computation is older than [`MAX_CACHE_AGE`],
    /// they are computed again.
    fn look(&mut self, now: Time) -> &SummaryWindows {
        let is_fresh = |(at, _): &(Time, SummaryWindows)| now.since(*at) < MAX_CACHE_AGE;
        if !self.looked.as_ref().is_some_and(is_fresh) {
            let lately = vcpus(self.lately.view_with_starts(&self.begun));
            self.looked = Some((now, SummaryWindows { lately, all: vcpus(self.all.view()) }));
        }
        &self.looked.as_ref().expect("the numbers were just computed").1
    }

    /// Returns the CPU time that a domain received in the recent window, and since the daemon
    /// started.
    pub(super) fn delivered(&mut self, domain: DomId, now: Time) -> (Delivery, Delivery) {
        let all = self.by_vcpu(domain, now);
        let all = all.into_values().map(|sum| sum.delivered).fold(Delivery::default(), both);
        let lately = self.look(now).lately.get(&domain).into_iter().flatten();
        let lately = lately.map(|vcpu| of(vcpu).delivered).fold(Delivery::default(), both);
        (lately, all)
    }

    /// Returns the counters of a domain since the daemon started, from which its history is
    /// computed.
    pub(super) fn counters_of(&mut self, domain: DomId, now: Time) -> Counters {
        self.by_vcpu(domain, now).values().fold(Counters::default(), Sum::counted)
    }

    /// Returns the counters of all domains since the daemon started, from which their history is
    /// computed.
    pub(super) fn counters(&mut self, now: Time) -> BTreeMap<DomId, Counters> {
        let mut all: BTreeMap<DomId, Counters> = BTreeMap::new();
        let mut add = |domain: DomId, sum: &Sum| {
            let counters = all.entry(domain).or_default();
            *counters = Sum::counted(*counters, sum);
        };
        self.before.iter().for_each(|(&(domain, _), sum)| add(domain, sum));
        for vcpu in self.look(now).all.values().flatten() {
            add(vcpu.id.domain(), &of(vcpu));
        }
        all
    }

    /// Returns the sums of each vCPU of a domain since the daemon started, by vCPU number.
    pub(super) fn by_vcpu(&mut self, domain: DomId, now: Time) -> BTreeMap<u16, Sum> {
        let before = self.before.range((domain, 0)..=(domain, u16::MAX));
        let mut sums: BTreeMap<u16, Sum> =
            before.map(|(&(_, number), sum)| (number, *sum)).collect();
        for vcpu in self.look(now).all.get(&domain).into_iter().flatten() {
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

/// Returns the trace header with which the daemon's records are read.
pub(super) fn header(policy: &str, cpus: usize, knows: Knowledge) -> Header {
    Header {
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
    }
}

/// Returns the vCPUs of a summary, by domain. If the summary failed, returns no vCPUs. A summary
/// fails only if a record names an unknown vCPU, which is a bug.
fn vcpus<E>(view: Result<Summary, E>) -> BTreeMap<DomId, Vec<VcpuSummary>> {
    let mut by_domain: BTreeMap<DomId, Vec<VcpuSummary>> = BTreeMap::new();
    for vcpu in view.map_or_else(|_| Vec::new(), |it| it.vcpus) {
        by_domain.entry(vcpu.id.domain()).or_default().push(vcpu);
    }
    by_domain
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

    /// Adds the sums of one vCPU to the counters of its domain.
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

/// Returns the sums of one vCPU from its summary. Time for which the vCPU was stopped because a
/// process left its process tree does not count as runnable. So the vCPU is entitled to no CPU time
/// for that time.
fn of(vcpu: &VcpuSummary) -> Sum {
    let asleep = vcpu.asleep.unwrap_or(Span::ZERO);
    let runnable = vcpu.present.left_after(asleep).left_after(vcpu.escaped);
    let delivered = Delivery {
        over_ns: vcpu.present.ns(),
        promised_ns: vcpu.entitled.ns(),
        due_ns: vcpu.due.ns(),
        used_ns: vcpu.delivered.ns(),
        deadlines: vcpu.deadlines.unwrap_or(0),
        missed: vcpu.misses.unwrap_or(0),
    };
    let (late, waited) = (vcpu.late.unwrap_or_default(), vcpu.waiting.unwrap_or_default());
    Sum { delivered, late, waited, runnable }
}

/// Adds up the delivered CPU time of two vCPUs that were present at the same time.
fn both(one: Delivery, other: Delivery) -> Delivery {
    Delivery {
        over_ns: one.over_ns.max(other.over_ns),
        promised_ns: one.promised_ns + other.promised_ns,
        due_ns: one.due_ns + other.due_ns,
        used_ns: one.used_ns + other.used_ns,
        deadlines: one.deadlines + other.deadlines,
        missed: one.missed + other.missed,
    }
}

#[cfg(test)]
mod tests {
    use slackline_trace::VcpuName;
    use slackline_units::{Enforcement, Reservation, VcpuId};

    use super::*;

    const DOMAIN: DomId = DomId::new(3);

    fn at(ms: u64) -> Time {
        Time::START + Span::from_ms(ms)
    }

    /// Returns the tally of one vCPU with these records, at 400 ms.
    fn tally_of(vcpu: VcpuId, records: impl IntoIterator<Item = Record>) -> Tally {
        let named = VcpuName { at: at(0), vcpu, name: "web".into(), domain: "web".into() };
        let mut entries = vec![Entry::Named(named)];
        entries.extend(records.into_iter().map(Entry::Record));
        let mut tally = Tally::new("edf", 1, Knowledge::ALL);
        tally.take(&mut entries, at(400));
        tally
    }

    /// The vCPU is runnable for 10 ms. Then it is stopped for 30 ms, because a process has escaped
    /// from its process tree. Then it is runnable for 20 ms.
    #[test]
    fn forced_stop_of_vcpu_does_not_count_as_runnable_time() {
        let vcpu = VcpuId::new(0, DOMAIN, 0);
        let records = [
            Record::Joined { at: at(0), vcpu },
            Record::Woke { at: at(0), vcpu },
            Record::Paused { at: at(10), vcpu },
            Record::Stopped { vcpu, from: at(10), to: at(40) },
            Record::Woke { at: at(40), vcpu },
            Record::Blocked { at: at(60), vcpu },
        ];
        let mut tally = tally_of(vcpu, records);
        assert_eq!(tally.counters_of(DOMAIN, at(400)).runnable, Span::from_ms(30));
    }

    /// The vCPU has 8 % of a CPU for 200 ms, of which it is blocked for 50 ms. Then it has 4 % for
    /// 200 ms.
    #[test]
    fn reserved_and_due_time_follow_changes_of_the_reservation() {
        let vcpu = VcpuId::new(0, DOMAIN, 0);
        let promised = |from, slice| {
            let each = Reservation::new(Span::from_ms(slice), Span::from_ms(100));
            let (reservation, by) = (each.ok(), Enforcement::Dispatcher);
            Record::Promised { at: at(from), vcpu, reservation, exact: true, phase: None, by }
        };
        let records = [
            Record::Joined { at: at(0), vcpu },
            promised(0, 8),
            Record::Woke { at: at(0), vcpu },
            Record::Blocked { at: at(50), vcpu },
            Record::Woke { at: at(100), vcpu },
            promised(200, 4),
            Record::Blocked { at: at(400), vcpu },
        ];
        let (_, all) = tally_of(vcpu, records).delivered(DOMAIN, at(400));
        assert_eq!(Span::from_ns(all.promised_ns), Span::from_ms(16 + 8));
        assert_eq!(Span::from_ns(all.due_ns), Span::from_ms(12 + 8));
    }
}
