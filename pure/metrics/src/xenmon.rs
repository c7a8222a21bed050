//! What XenMon shows of a Xen host, from a trace.
//! Source: Gupta, Gardner, Cherkasova, "XenMon: QoS Monitoring and Performance Profiling Tool" (HPL
//! 2005-187), and what its collector and its screen of 2006 do, cited as [XenMon].
//!
//! Six metrics of each domain, collected in data points of 100 ms and summed over a span:
//!
//! - *gotten*: CPU time it ran;
//! - *allocated*: the slices it was granted when it was switched in, not clipped to what it used;
//! - *blocked*: how long it had no work, or was held by a pause;
//! - *waited*: how long it was runnable before each switch-in;
//! - *execution count*: how often it was switched in;
//! - *I/O count*: how many pages changed hands with packets that a guest received, counted for the
//!   guest and for the domain that served it; what it sent and its disks are not in it.
//!
//! Rules kept because they decide what the numbers mean [XenMon, collector]:
//!
//! - A *switch-in* is a stretch that does not continue the one before on its CPU: somebody else's,
//!   or a gap. A slice renewed for the same vCPU leaves no trace: neither "allocated" nor
//!   "execution count" sees it.
//! - A wait is booked whole at the switch-in that ends it; who never gets in has not waited.
//!   Throttled time counts as waiting where the vCPU stays runnable, and as blocked where it is
//!   paused.
//! - A sleep before the first switch-in or wake is no blocked time.
//!
//! Departures: a data point is 100 ms, where XenMon's lasts until the first record after that; a
//! domain of several vCPUs has the sums of theirs, where XenMon mixes their states up; no record is
//! booked on the CPU that happened to write it, so that SMP does not spoil "blocked" and "waited".
//! Memory: a data point of a domain is 64 bytes, so that an hour of ten domains takes 23 MB.

mod fields;

use slackline_trace::{Header, Knowledge, RanEnd, Record, Sink};
use slackline_units::{CpuId, DomId, Span, Time, VcpuId};

use crate::split::Stretch;

/// How long a data point is [XenMon, `ms_per_sample`].
pub const POINT: Span = Span::from_ms(100);

/// Over how many data points the samples of a run are summed: a second, as on XenMon's screen.
const POINTS_A_SECOND: usize = 10;

/// What one domain did in a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// CPU time it ran.
    pub gotten: Span,
    /// The slices it was granted at its switch-ins.
    pub allocated: Span,
    /// How long it had no work, or was held.
    pub blocked: Span,
    /// How long it was runnable before its switch-ins.
    pub waited: Span,
    /// Its switch-ins.
    pub executions: u64,
    /// Those of them that granted a slice; others had no limit.
    pub sliced: u64,
    /// The pages that it received, or handed over to those it serves.
    pub io: u64,
}

/// What a run amounted to as XenMon would show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XenMonSummary {
    /// The measured window.
    pub length: Span,
    /// What the machine could see.
    pub knows: Knowledge,
    /// Whether the trace says anything about I/O.
    pub knows_io: bool,
    /// A row a domain, in order of id.
    pub domains: Vec<XenMonDomain>,
}

/// What one domain did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XenMonDomain {
    /// What people call it.
    pub name: String,
    /// Over the whole window.
    pub total: Point,
    /// In each data point, the last of which may be shorter.
    pub points: Vec<Point>,
}

/// Takes the records of a run and adds up what XenMon shows.
///
/// Panics on a record of a vCPU or a CPU that the header does not have.
#[derive(Debug)]
pub struct XenMon {
    warmup: Time,
    now: Time,
    knows: Knowledge,
    knows_io: bool,
    /// By CPU: who ran last, and until when.
    last: Vec<Option<(VcpuId, Time)>>,
    /// By slot.
    vcpus: Vec<State>,
    domains: Vec<Domain>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// By its place in `domains`.
    domain: usize,
    /// Since when it has been runnable and not running.
    runnable: Option<Time>,
    /// Since when it has been blocked.
    blocked: Option<Time>,
}

#[derive(Debug)]
struct Domain {
    id: DomId,
    name: String,
    points: Vec<Point>,
}

impl XenMon {
    /// A monitor for the run that this header is of.
    #[must_use]
    pub fn new(header: &Header) -> XenMon {
        let slots = header.vcpus.iter().map(|vcpu| vcpu.id.slot() + 1).max().unwrap_or(0);
        let mut vcpus = vec![State::default(); slots];
        let mut domains: Vec<Domain> = Vec::new();
        let mut named: Vec<_> = header.vcpus.iter().collect();
        named.sort_by_key(|vcpu| vcpu.id);
        for vcpu in &named {
            let id = vcpu.id.domain();
            let known = domains.iter().position(|domain| domain.id == id);
            vcpus[vcpu.id.slot()].domain = known.unwrap_or_else(|| {
                let several = named.iter().filter(|other| other.id.domain() == id).count() > 1;
                let first = vcpu.name.rsplit_once('.').filter(|_| several);
                let name = first.map_or(vcpu.name.as_str(), |(name, _)| name).to_string();
                domains.push(Domain { id, name, points: Vec::new() });
                domains.len() - 1
            });
        }
        XenMon {
            warmup: Time::START.after(header.warmup),
            now: Time::START,
            knows: header.knows,
            knows_io: false,
            last: vec![None; header.cpus],
            vcpus,
            domains,
        }
    }

    /// What the run amounted to. A run whose end was not recorded ends with its last record.
    #[must_use]
    pub fn finish(mut self) -> XenMonSummary {
        let end = self.now;
        for slot in 0..self.vcpus.len() {
            if let Some(since) = self.vcpus[slot].blocked.take() {
                self.book_blocked(slot, since, end);
            }
        }
        let length = end.since(self.warmup);
        let all = usize::try_from(length.ns().div_ceil(POINT.ns())).unwrap_or(usize::MAX);
        let domains = self.domains.into_iter().map(|mut domain| {
            domain.points.resize(all.max(domain.points.len()), Point::default());
            let total = sum(&domain.points);
            XenMonDomain { name: domain.name, total, points: domain.points }
        });
        let domains = domains.collect();
        XenMonSummary { length, knows: self.knows, knows_io: self.knows_io, domains }
    }

    fn state(&mut self, vcpu: VcpuId) -> &mut State {
        match self.vcpus.get_mut(vcpu.slot()) {
            Some(state) => state,
            None => panic!("{vcpu} is in the records but not in the header"),
        }
    }

    /// The data point of a vCPU's domain at an instant; none in the warm-up.
    fn point(&mut self, vcpu: VcpuId, at: Time) -> Option<&mut Point> {
        let domain = self.state(vcpu).domain;
        if at < self.warmup {
            return None;
        }
        let nth = usize::try_from((at - self.warmup) / POINT).expect("fewer points than memory");
        Some(self.domains[domain].point(nth))
    }

    /// Books time between two instants on the data points that it lies in.
    fn spread(&mut self, domain: usize, mut stretch: Stretch, pick: fn(&mut Point) -> &mut Span) {
        if stretch.from < self.warmup {
            stretch = stretch.split(self.warmup).1;
        }
        if stretch.to <= self.warmup {
            return;
        }
        let first = (stretch.from - self.warmup) / POINT;
        let mut nth = usize::try_from(first).expect("fewer points than memory");
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
        if let Some(point) = self.point(vcpu, at) {
            point.io += u64::from(pages);
        }
    }

    fn book_blocked(&mut self, slot: usize, since: Time, until: Time) {
        let stretch = Stretch { from: since, to: until, used: until.since(since) };
        self.spread(self.vcpus[slot].domain, stretch, |point| &mut point.blocked);
    }

    /// It is runnable: a blocked stretch is over.
    fn woke(&mut self, vcpu: VcpuId, at: Time) {
        let state = self.state(vcpu);
        state.runnable = Some(at);
        if let Some(since) = state.blocked.take() {
            self.book_blocked(vcpu.slot(), since, at);
        }
    }

    fn blocked(&mut self, vcpu: VcpuId, at: Time) {
        let state = self.state(vcpu);
        state.runnable = None;
        state.blocked = state.blocked.or(Some(at));
    }

    fn ran(&mut self, vcpu: VcpuId, cpu: CpuId, stretch: Stretch, granted: Option<Span>) {
        let Stretch { from, to, .. } = stretch;
        let last = self.last.get_mut(cpu.index());
        let last = last.expect("a CPU in the records is in the header").replace((vcpu, to));
        let state = self.state(vcpu);
        let domain = state.domain;
        let waited = state.runnable.map_or(Span::ZERO, |since| from.since(since.min(from)));
        if last != Some((vcpu, from))
            && let Some(point) = self.point(vcpu, from)
        {
            point.executions += 1;
            point.waited += waited;
            point.sliced += u64::from(granted.is_some());
            point.allocated += granted.unwrap_or_default();
        }
        self.spread(domain, stretch, |point| &mut point.gotten);
    }
}

impl Sink for XenMon {
    fn record(&mut self, record: &Record) {
        match *record {
            Record::Woke { at, vcpu } => {
                self.now = self.now.max(at);
                self.woke(vcpu, at);
            }
            Record::Blocked { at, vcpu } | Record::Paused { at, vcpu } => {
                self.now = self.now.max(at);
                self.blocked(vcpu, at);
            }
            Record::Ran { vcpu, cpu, from, to, used, granted, end, .. } => {
                self.now = self.now.max(to);
                self.ran(vcpu, cpu, Stretch { from, to, used }, granted);
                let state = self.state(vcpu);
                let stays = end != RanEnd::Blocked && state.blocked.is_none();
                state.runnable = stays.then_some(to);
            }
            Record::Left { at, vcpu } => {
                self.now = self.now.max(at);
                if let Some(since) = self.state(vcpu).blocked.take() {
                    self.book_blocked(vcpu.slot(), since, at);
                }
                self.state(vcpu).runnable = None;
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
    /// The data points of a domain summed a second at a time; what is left at the end and is less
    /// than a second is left out.
    pub fn seconds<'a>(&self, domain: &'a XenMonDomain) -> impl Iterator<Item = Point> + use<'a> {
        let whole = usize::try_from(self.length / POINT).unwrap_or(usize::MAX);
        let points = &domain.points[..whole.min(domain.points.len())];
        points.chunks_exact(POINTS_A_SECOND).map(sum)
    }
}

fn sum(points: &[Point]) -> Point {
    points.iter().fold(Point::default(), |sum, point| Point {
        gotten: sum.gotten + point.gotten,
        allocated: sum.allocated + point.allocated,
        blocked: sum.blocked + point.blocked,
        waited: sum.waited + point.waited,
        executions: sum.executions + point.executions,
        sliced: sum.sliced + point.sliced,
        io: sum.io + point.io,
    })
}
