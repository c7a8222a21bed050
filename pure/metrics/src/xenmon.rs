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

use std::collections::BTreeMap;

use slackline_trace::{Header, Knowledge, Named, RanEnd, Record, Sink};
use slackline_units::{CpuId, DomId, Span, Time, VcpuId};

use crate::split::Stretch;
use crate::stray::{StrayRecord, Strays, Unknown};

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
#[derive(Debug)]
pub struct XenMon {
    warmup: Time,
    now: Time,
    knows: Knowledge,
    knows_io: bool,
    /// By CPU: who ran last, and until when.
    last: Vec<Option<(VcpuId, Time)>>,
    vcpus: BTreeMap<VcpuId, State>,
    domains: Vec<Domain>,
    strays: Strays,
}

#[derive(Clone, Copy, Debug)]
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
        XenMon {
            warmup: Time::START.after(header.warmup),
            now: Time::START,
            knows: header.knows,
            knows_io: false,
            last: vec![None; header.cpus],
            vcpus: BTreeMap::new(),
            domains: Vec::new(),
            strays: Strays::default(),
        }
    }

    /// What the run amounted to. A run whose end was not recorded ends with its last record.
    ///
    /// # Errors
    /// When there was a record of somebody who is not known.
    pub fn finish(mut self) -> Result<XenMonSummary, StrayRecord> {
        self.strays.check()?;
        let end = self.now;
        for State { domain, blocked, .. } in std::mem::take(&mut self.vcpus).into_values() {
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

    fn state(&mut self, vcpu: VcpuId) -> Option<&mut State> {
        let found = self.vcpus.get_mut(&vcpu);
        if found.is_none() {
            self.strays.add(Unknown::Vcpu(vcpu));
        }
        found
    }

    /// The data point of a domain at an instant; none in the warm-up.
    fn point(&mut self, domain: usize, at: Time) -> Option<&mut Point> {
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
        let Some(&mut State { domain, .. }) = self.state(vcpu) else { return };
        if let Some(point) = self.point(domain, at) {
            point.io += u64::from(pages);
        }
    }

    fn book_blocked(&mut self, domain: usize, since: Time, until: Time) {
        let stretch = Stretch { from: since, to: until, used: until.since(since) };
        self.spread(domain, stretch, |point| &mut point.blocked);
    }

    /// It is runnable, or gone: a blocked stretch is over.
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

    fn ran(&mut self, (vcpu, cpu): (VcpuId, CpuId), ran: &Ran) {
        let Ran { stretch, granted, end } = *ran;
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
            point.allocated += granted.unwrap_or_default();
        }
        self.spread(domain, stretch, |point| &mut point.gotten);
    }
}

/// A stretch as it was recorded.
struct Ran {
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
                self.ran((vcpu, cpu), &Ran { stretch, granted, end });
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

    fn named(&mut self, named: &Named) {
        let id = named.vcpu.domain();
        let is_same = |domain: &Domain| domain.id == id && domain.name == named.domain;
        let domain = self.domains.iter().position(is_same);
        let domain = domain.unwrap_or_else(|| {
            self.domains.push(Domain { id, name: named.domain.clone(), points: Vec::new() });
            self.domains.len() - 1
        });
        let new = State { domain, runnable: None, blocked: None };
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
