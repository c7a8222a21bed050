//! What each vCPU got in each of equal windows of a run, its warm-up included: a curve for each.

use slackline_trace::{Header, Record, Sink, VcpuName};
use slackline_units::{Span, Time};

/// Takes the records of a run and keeps the CPU time of each vCPU in each window. A stretch over
/// several windows is split in proportion; unlike a [`Meter`](crate::Meter) it grows with the run.
#[derive(Clone, Debug)]
pub struct OverTime {
    window: Span,
    vcpus: Vec<VcpuName>,
    /// By slot, then by window.
    ran: Vec<Vec<Span>>,
    end: Time,
}

impl OverTime {
    /// For the run that this header is of; the window is not zero.
    #[must_use]
    pub fn new(header: &Header, window: Span) -> OverTime {
        assert!(!window.is_zero(), "a window of no time");
        let slots = header.vcpus.iter().map(|vcpu| vcpu.id.slot() + 1).max().unwrap_or(0);
        let (vcpus, ran) = (header.vcpus.clone(), vec![Vec::new(); slots]);
        OverTime { window, vcpus, ran, end: Time::START }
    }

    /// The CPU time of each vCPU in each whole window, in the order of the header.
    #[must_use]
    pub fn finish(self) -> Vec<(String, Vec<Span>)> {
        let windows = usize::try_from(self.end.since(Time::START) / self.window);
        let windows = windows.expect("as many windows as fit in memory");
        let mut ran = self.ran;
        ran.iter_mut().for_each(|ran| ran.resize(windows, Span::ZERO));
        let line = |vcpu: VcpuName| {
            let slot = vcpu.id.slot();
            (vcpu.name, std::mem::take(&mut ran[slot]))
        };
        self.vcpus.into_iter().map(line).collect()
    }

    fn add(&mut self, slot: usize, (mut from, to): (Time, Time), used: Span) {
        let mut left = used;
        while from < to {
            let window = from.since(Time::START) / self.window;
            let end = to.min(Time::START.after(self.window * (window + 1)));
            let part = u128::from(left.ns()) * u128::from(end.since(from).ns());
            let part = part / u128::from(to.since(from).ns());
            let part = Span::from_ns(u64::try_from(part).expect("a part of what was used"));
            let index = usize::try_from(window).expect("as many windows as fit in memory");
            let ran = &mut self.ran[slot];
            if ran.len() <= index {
                ran.resize(index + 1, Span::ZERO);
            }
            ran[index] += part;
            left -= part;
            from = end;
        }
    }
}

impl Sink for OverTime {
    fn record(&mut self, record: &Record) {
        match *record {
            Record::Ran { vcpu, from, to, used, .. } => {
                self.add(vcpu.slot(), (from, to), used);
                self.end = self.end.max(to);
            }
            Record::Ended { at } => self.end = self.end.max(at),
            _ => {}
        }
    }
}
