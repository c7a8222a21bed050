//! The metrics that XenMon shows of a Xen host, computed from a trace.
//! Source: Gupta, Gardner, Cherkasova, "XenMon: QoS Monitoring and Performance Profiling Tool" (HPL
//! 2005-187), and the behaviour of its collector and its screen of 2006, cited as [XenMon].
//!
//! Six metrics of each domain, collected in data points of 100 ms and summed over a span:
//!
//! - *gotten*: CPU time received
//! - *allocated*: slices granted at each switch-in, in full even if not used up
//! - *blocked*: time without work, or held by a pause
//! - *waited*: time runnable before each switch-in
//! - *execution count*: number of switch-ins
//! - *I/O count*: number of pages exchanged for packets that a guest received. It is counted for
//!   the guest and for the domain that served it. Packets sent and disk I/O do not count.
//!
//! The collector of [XenMon] has these rules, which decide the meaning of the numbers and are kept
//! here:
//!
//! - A *switch-in* is a run interval that does not continue the previous one on its CPU. Either
//!   another vCPU ran in between, or there was a gap. If the running vCPU gets another slice, this
//!   is no switch-in. Neither *allocated* nor *execution count* includes that slice.
//! - A wait is counted in full at the switch-in that ends it. A vCPU that is never switched in has
//!   not waited. Throttled time counts as waiting if the vCPU stays runnable, and as blocked if it
//!   is paused.
//! - Time blocked before the first switch-in or wake does not count.
//!
//! Departures:
//!
//! - A data point lasts exactly 100 ms. A data point of XenMon lasts until the first record after
//!   100 ms.
//! - A domain with several vCPUs has the sums over its vCPUs. XenMon mixes up their states.
//! - A record counts for the CPU that it describes. XenMon counts it for the CPU that wrote it, so
//!   *blocked* and *waited* are wrong on hosts with several CPUs.
//!
//! A data point of a domain takes 64 bytes of memory: 23 MB for an hour of ten domains.

mod fields;

use std::collections::BTreeMap;

use slackline_trace::{Header, Knowledge, RanEnd, Record, Sink, VcpuName};
use slackline_units::{CpuId, DomId, Span, Time, VcpuId};

use crate::split::Stretch;
use crate::stray::{StrayRecord, Strays, Unknown};

/// Length of a data point [XenMon, `ms_per_sample`].
pub const POINT: Span = Span::from_ms(100);

/// Number of data points in each second of a run. XenMon's screen shows one row per second.
const POINTS_A_SECOND: usize = 10;

/// Metrics of one domain in a span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// CPU time that the domain received.
    pub gotten: Span,
    /// Sum of the slices that were granted at the domain's switch-ins.
    pub allocated: Span,
    /// Time in which the domain had no work, or was paused.
    pub blocked: Span,
    /// Time in which the domain was runnable before its switch-ins.
    pub waited: Span,
    /// Number of the domain's switch-ins.
    pub executions: u64,
    /// Number of the domain's switch-ins that granted a slice. The other switch-ins started a run
    /// interval without a limit.
    pub sliced: u64,
    /// Number of memory pages exchanged for network packets that the domain received, or that the
    /// domain, as a driver domain, handed over to a domain that it serves.
    pub io: u64,
}

/// Metrics of a run as XenMon shows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XenMonSummary {
    /// Length of the measured window.
    pub length: Span,
    /// Events that the host could observe in this run.
    pub knows: Knowledge,
    /// True if the trace records I/O.
    pub knows_io: bool,
    /// One row per domain, in order of id.
    pub domains: Vec<XenMonDomain>,
}

/// Metrics of one domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XenMonDomain {
    /// Display name of the domain.
    pub name: String,
    /// Metrics over the whole window.
    pub total: Point,
    /// Metrics of each data point. The last data point can be shorter.
    pub points: Vec<Point>,
}

/// Sink that adds up the metrics of XenMon.
#[derive(Debug)]
pub struct XenMon {
    warmup: Time,
    now: Time,
    knows: Knowledge,
    knows_io: bool,
    /// The vCPU that ran last on each CPU, and the end of that run interval.
    last: Vec<Option<(VcpuId, Time)>>,
    vcpus: BTreeMap<VcpuId, VcpuState>,
    domains: Vec<Domain>,
    /// Index in `domains` of each domain, by its id and name.
    known: BTreeMap<(DomId, String), usize>,
    strays: Strays,
}

#[derive(Clone, Copy, Debug)]
struct VcpuState {
    /// Index of the vCPU's domain in `domains`.
    domain: usize,
    /// Time since which the vCPU is runnable and not running. `None` if it runs or is blocked.
    runnable: Option<Time>,
    /// Time since which the vCPU is blocked. `None` if it is not blocked.
    blocked: Option<Time>,
}

#[derive(Debug)]
struct Domain {
    id: DomId,
    name: String,
    points: Vec<Point>,
}

impl XenMon {
    /// Creates a sink for the run that this header describes.
    #[must_use]
    pub fn new(header: &Header) -> XenMon {
        XenMon {
            warmup: Time::START.after(header.warmup),
            now: Time::START,
            knows: header.knows,
            knows_io: false,
            last: vec![None; header.cpus],
            vcpus: BTreeMap::new(),
            domains: Vec::new(),
            known: BTreeMap::new(),
            strays: Strays::default(),
        }
    }

    /// Returns the metrics of the run. If the trace does not record the end of the run, the run
    /// ends with the last record.
    ///
    /// # Errors
    /// If a record named an unknown vCPU or CPU.
    pub fn finish(mut self) -> Result<XenMonSummary, StrayRecord> {
        self.strays.check()?;
        let end = self.now;
        for VcpuState { domain, blocked, .. } in std::mem::take(&mut self.vcpus).into_values() {
            if let Some(since) = blocked {
                self.book_blocked(domain, since, end);
            }
        }
        let length = end.since(self.warmup);
        let all = usize::try_from(length.ns().div_ceil(POINT.ns())).unwrap_or(usize::MAX);
        self.domains.sort_by_key(|domain| domain.id);
        let domains = self.domains.into_iter().map(|mut domain| {
            domain.points.resize(all.max(domain.points.len()), Point::default());
            let total = sum(&domain.points);
            XenMonDomain { name: domain.name, total, points: domain.points }
        });
        let domains = domains.collect();
        Ok(XenMonSummary { length, knows: self.knows, knows_io: self.knows_io, domains })
    }

    fn state(&mut self, vcpu: VcpuId) -> Option<&mut VcpuState> {
        let found = self.vcpus.get_mut(&vcpu);
        if found.is_none() {
            self.strays.add(Unknown::Vcpu(vcpu));
        }
        found
    }

    /// Returns the data point of a domain that contains the time `at`. `None` during the warm-up.
    fn point(&mut self, domain: usize, at: Time) -> Option<&mut Point> {
        if at < self.warmup {
            return None;
        }
        let nth = usize::try_from((at - self.warmup) / POINT)
            .expect("the data points of a run fit in memory");
        Some(self.domains[domain].point(nth))
    }

    /// Divides a run interval among the data points over which it extends.
    fn spread(&mut self, domain: usize, mut stretch: Stretch, pick: fn(&mut Point) -> &mut Span) {
        if stretch.from < self.warmup {
            stretch = stretch.split(self.warmup).1;
        }
        if stretch.to <= self.warmup {
            return;
        }
        let first = (stretch.from - self.warmup) / POINT;
        let mut nth = usize::try_from(first).expect("the data points of a run fit in memory");
        let mut ends = self.warmup + POINT * first;
        while stretch.from < stretch.to {
            ends += POINT;
            let (before, after) = stretch.split(ends);
            *pick(self.domains[domain].point(nth)) += before.used;
            (stretch, nth) = (after, nth + 1);
        }
    }

    fn received(&mut self, vcpu: VcpuId, at: Time, pages: u32) {
        self.knows_io = true;
        let Some(&mut VcpuState { domain, .. }) = self.state(vcpu) else { return };
        if let Some(point) = self.point(domain, at) {
            point.io += u64::from(pages);
        }
    }

    fn book_blocked(&mut self, domain: usize, since: Time, until: Time) {
        let stretch = Stretch { from: since, to: until, used: until.since(since) };
        self.spread(domain, stretch, |point| &mut point.blocked);
    }

    /// Ends the blocked time of a vCPU that became runnable or left.
    fn unblocked(&mut self, vcpu: VcpuId, at: Time, runnable: Option<Time>) {
        let Some(state) = self.state(vcpu) else { return };
        state.runnable = runnable;
        let domain = state.domain;
        if let Some(since) = state.blocked.take() {
            self.book_blocked(domain, since, at);
        }
    }

    fn blocked(&mut self, vcpu: VcpuId, at: Time) {
        let Some(state) = self.state(vcpu) else { return };
        state.runnable = None;
        state.blocked = state.blocked.or(Some(at));
    }

    fn ran(&mut self, (vcpu, cpu): (VcpuId, CpuId), ran: &RunInterval) {
        let RunInterval { stretch, granted, end } = *ran;
        let Stretch { from, to, .. } = stretch;
        let Some(last) = self.last.get_mut(cpu.index()) else {
            return self.strays.add(Unknown::Cpu(cpu));
        };
        let last = last.replace((vcpu, to));
        let Some(state) = self.state(vcpu) else { return };
        let domain = state.domain;
        let waited = state.runnable.map_or(Span::ZERO, |since| from.since(since.min(from)));
        let stays = end != RanEnd::Blocked && state.blocked.is_none();
        state.runnable = stays.then_some(to);
        if last != Some((vcpu, from))
            && let Some(point) = self.point(domain, from)
        {
            point.executions += 1;
            point.waited += waited;
            point.sliced += u64::from(granted.is_some());
            let granted = granted.unwrap_or_default();
            point.allocated = added(point.allocated, granted);
        }
        self.spread(domain, stretch, |point| &mut point.gotten);
    }
}

/// A run interval, as the trace records it.
struct RunInterval {
    stretch: Stretch,
    granted: Option<Span>,
    end: RanEnd,
}

impl Sink for XenMon {
    fn record(&mut self, record: &Record) {
        self.strays.count();
        match *record {
            Record::Woke { at, vcpu } => {
                self.now = self.now.max(at);
                self.unblocked(vcpu, at, Some(at));
            }
            Record::Blocked { at, vcpu } | Record::Paused { at, vcpu } => {
                self.now = self.now.max(at);
                self.blocked(vcpu, at);
            }
            Record::Ran { vcpu, cpu, from, to, used, granted, end, .. } => {
                self.now = self.now.max(to);
                let stretch = Stretch { from, to, used };
                self.ran((vcpu, cpu), &RunInterval { stretch, granted, end });
            }
            Record::Left { at, vcpu } => {
                self.now = self.now.max(at);
                self.unblocked(vcpu, at, None);
            }
            Record::Served { at, by, of, service } => {
                self.now = self.now.max(at);
                self.received(of, at, service.received);
                self.received(by, at, service.received);
            }
            Record::Ended { at } => self.now = self.now.max(at),
            _ => {}
        }
    }

    fn named(&mut self, named: &VcpuName) {
        let id = named.vcpu.domain();
        let next = self.domains.len();
        let domain = *self.known.entry((id, named.domain.clone())).or_insert(next);
        if domain == next {
            self.domains.push(Domain { id, name: named.domain.clone(), points: Vec::new() });
        }
        let new = VcpuState { domain, runnable: None, blocked: None };
        self.vcpus.entry(named.vcpu).or_insert(new).domain = domain;
    }
}

impl Domain {
    fn point(&mut self, nth: usize) -> &mut Point {
        if nth >= self.points.len() {
            self.points.resize(nth + 1, Point::default());
        }
        &mut self.points[nth]
    }
}

impl XenMonSummary {
    /// Returns the sums of a domain over each whole second. An incomplete second at the end is left
    /// out.
    pub fn seconds<'a>(&self, domain: &'a XenMonDomain) -> impl Iterator<Item = Point> + use<'a> {
        let whole = usize::try_from(self.length / POINT).unwrap_or(usize::MAX);
        let points = &domain.points[..whole.min(domain.points.len())];
        points.chunks_exact(POINTS_A_SECOND).map(sum)
    }
}

/// Returns the sum of two granted times, at most [`Span::MAX`]. A slice is granted in full at each
/// switch-in, so slices of days can add up to more than the run lasts.
fn added(sum: Span, granted: Span) -> Span {
    sum.checked_add(granted).unwrap_or(Span::MAX)
}

fn sum(points: &[Point]) -> Point {
    points.iter().fold(Point::default(), |sum, point| Point {
        gotten: sum.gotten + point.gotten,
        allocated: added(sum.allocated, point.allocated),
        blocked: sum.blocked + point.blocked,
        waited: sum.waited + point.waited,
        executions: sum.executions + point.executions,
        sliced: sum.sliced + point.sliced,
        io: sum.io + point.io,
    })
}
