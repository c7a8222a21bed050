//! Use of each CPU in each second of the measured window.

use slackline_trace::{Header, Record, Sink};
use slackline_units::{Span, Time};

use crate::SharedCpu;
use crate::shared::Counts;
use crate::split::{Stretch, proportion};
use crate::stray::{StrayRecord, Strays, Unknown};

const SECOND: Span = Span::from_secs(1);

/// Minimum part of a second that kernel accounting must cover for the second to count. The first
/// second is never covered whole, because accounting starts shortly after the start of the run.
const MIN_COVERED: Span = Span::from_ms(900);

/// Use of a CPU in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuSecond {
    /// Time in this second in which vCPUs of the run had the CPU.
    pub busy: Span,
    /// Use of the shared CPU by other programs in this second. `None` if kernel accounting does not
    /// cover the second.
    pub shared: Option<SharedCpu>,
}

/// Sink that sums up the use of each CPU in each second. Its size grows with the run: 40 bytes per
/// second and CPU.
#[derive(Clone, Debug)]
pub struct CpuSeconds {
    warmup: Time,
    now: Time,
    /// Sums of each second, by CPU and then by second.
    cpus: Vec<Vec<SecondSums>>,
    strays: Strays,
}

/// Sums of one CPU over one second.
#[derive(Clone, Copy, Debug, Default)]
struct SecondSums {
    busy: Span,
    /// Part of the second that kernel accounting covers.
    booked: Span,
    counts: Counts,
}

impl CpuSeconds {
    /// Creates a sink for the run that this header describes.
    #[must_use]
    pub fn new(header: &Header) -> CpuSeconds {
        CpuSeconds {
            warmup: Time::START.after(header.warmup),
            now: Time::START,
            cpus: vec![Vec::new(); header.cpus],
            strays: Strays::default(),
        }
    }

    /// Returns the whole seconds of each CPU. An incomplete second at the end is left out.
    ///
    /// # Errors
    /// If a record named an unknown vCPU or CPU.
    pub fn finish(self) -> Result<Vec<Vec<CpuSecond>>, StrayRecord> {
        self.strays.check()?;
        let length = self.now.since(self.warmup.min(self.now));
        let whole = usize::try_from(length / SECOND).unwrap_or(usize::MAX);
        let seconds = |mut cpu: Vec<SecondSums>| {
            cpu.resize(whole, SecondSums::default());
            cpu.into_iter().map(SecondSums::finish).collect()
        };
        Ok(self.cpus.into_iter().map(seconds).collect())
    }

    /// Divides the CPU time of an interval among the seconds that the interval overlaps, in
    /// proportion to the length of each overlap.
    fn spread(&mut self, cpu: usize, mut stretch: Stretch, pick: fn(&mut SecondSums) -> &mut Span) {
        if stretch.from < self.warmup {
            stretch = stretch.split(self.warmup).1;
        }
        while stretch.from < stretch.to {
            let nth = (stretch.from - self.warmup) / SECOND;
            let (before, after) = stretch.split(self.warmup + SECOND * (nth + 1));
            let nth = usize::try_from(nth).expect("the seconds of a run fit in memory");
            let seconds = &mut self.cpus[cpu];
            if nth >= seconds.len() {
                seconds.resize(nth + 1, SecondSums::default());
            }
            *pick(&mut seconds[nth]) += before.used;
            stretch = after;
        }
    }
}

impl SecondSums {
    fn finish(self) -> CpuSecond {
        let SecondSums { busy, booked, counts } = self;
        let is_told = booked >= MIN_COVERED;
        // If kernel accounting covers only a part of the second, the vCPUs are assumed to have used
        // the CPU evenly over the whole second.
        let ours = proportion(busy, booked.min(SECOND), SECOND);
        CpuSecond { busy, shared: is_told.then(|| counts.shared(booked, ours)).flatten() }
    }
}

impl Sink for CpuSeconds {
    fn record(&mut self, record: &Record) {
        self.strays.count();
        let (cpu, from, to) = match *record {
            Record::Ran { cpu, from, to, .. } | Record::Accounted { cpu, from, to, .. } => {
                (cpu, from, to)
            }
            Record::Ended { at } => {
                self.now = self.now.max(at);
                return;
            }
            _ => return,
        };
        self.now = self.now.max(to);
        if cpu.index() >= self.cpus.len() {
            return self.strays.add(Unknown::Cpu(cpu));
        }
        let stretch = |used| Stretch { from, to, used };
        match *record {
            Record::Ran { used, .. } => {
                self.spread(cpu.index(), stretch(used), |second| &mut second.busy);
            }
            Record::Accounted { idle, stolen, dispatching, .. } => {
                self.spread(cpu.index(), stretch(to - from), |second| &mut second.booked);
                self.spread(cpu.index(), stretch(idle), |second| &mut second.counts.idle);
                self.spread(cpu.index(), stretch(stolen), |second| &mut second.counts.stolen);
                self.spread(cpu.index(), stretch(dispatching), |second| {
                    &mut second.counts.dispatching
                });
            }
            _ => {}
        }
    }
}
