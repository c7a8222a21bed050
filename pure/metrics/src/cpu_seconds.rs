//! What became of each CPU's time in each second of the measured time.

use slackline_trace::{Header, Record, Sink};
use slackline_units::{Span, Time};

use crate::SharedCpu;
use crate::shared::Counts;
use crate::split::{Stretch, proportion};
use crate::stray::{StrayRecord, Strays, Unknown};

const SECOND: Span = Span::from_secs(1);

/// So much of a second the kernel's books must be of: they are opened a moment after a run begins.
const ENOUGH: Span = Span::from_ms(900);

/// A second of a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuSecond {
    /// How long vCPUs of the run ran there.
    pub busy: Span,
    /// What the others had, where the CPU is not the run's alone and the kernel's books tell.
    pub shared: Option<SharedCpu>,
}

/// Takes the records of a run and keeps what became of each CPU in each second. It grows with the
/// run: 40 bytes a second and CPU.
#[derive(Clone, Debug)]
pub struct CpuSeconds {
    warmup: Time,
    now: Time,
    /// By CPU and second.
    cpus: Vec<Vec<Counted>>,
    strays: Strays,
}

/// What was counted of a second.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    busy: Span,
    /// How much of it the books are of.
    booked: Span,
    counts: Counts,
}

impl CpuSeconds {
    /// For the run that this header is of.
    #[must_use]
    pub fn new(header: &Header) -> CpuSeconds {
        CpuSeconds {
            warmup: Time::START.after(header.warmup),
            now: Time::START,
            cpus: vec![Vec::new(); header.cpus],
            strays: Strays::default(),
        }
    }

    /// The whole seconds of each CPU; what is left at the end and is less than one is left out.
    ///
    /// # Errors
    /// When there was a record of somebody who is not known.
    pub fn finish(self) -> Result<Vec<Vec<CpuSecond>>, StrayRecord> {
        self.strays.check()?;
        let length = self.now.since(self.warmup.min(self.now));
        let whole = usize::try_from(length / SECOND).unwrap_or(usize::MAX);
        let seconds = |mut cpu: Vec<Counted>| {
            cpu.resize(whole, Counted::default());
            cpu.into_iter().map(Counted::finish).collect()
        };
        Ok(self.cpus.into_iter().map(seconds).collect())
    }

    /// Books time on the seconds that it lies in, evenly.
    fn spread(&mut self, cpu: usize, mut stretch: Stretch, pick: fn(&mut Counted) -> &mut Span) {
        if stretch.from < self.warmup {
            stretch = stretch.split(self.warmup).1;
        }
        while stretch.from < stretch.to {
            let nth = (stretch.from - self.warmup) / SECOND;
            let (before, after) = stretch.split(self.warmup + SECOND * (nth + 1));
            let nth = usize::try_from(nth).expect("fewer seconds than memory");
            let seconds = &mut self.cpus[cpu];
            if nth >= seconds.len() {
                seconds.resize(nth + 1, Counted::default());
            }
            *pick(&mut seconds[nth]) += before.used;
            stretch = after;
        }
    }
}

impl Counted {
    fn finish(self) -> CpuSecond {
        let Counted { busy, booked, counts } = self;
        let is_told = booked >= ENOUGH;
        // Of a second that the books are only in part of, vCPUs had the same part of their time.
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
