//! CPU time of each vCPU in equal windows of a run, including the warm-up.

use std::collections::BTreeMap;

use slackline_trace::{Record, Sink, VcpuName};
use slackline_units::{Span, Time, VcpuId};

use crate::stray::{StrayRecord, Strays, Unknown};

/// Sink that sums up the CPU time of each vCPU in each window. If a run interval spans several
/// windows, its CPU time is divided among these windows in proportion. The size of the sink grows
/// with the run.
#[derive(Clone, Debug)]
pub struct OverTime {
    window: Span,
    vcpus: BTreeMap<VcpuId, Curve>,
    end: Time,
    strays: Strays,
}

#[derive(Clone, Debug)]
struct Curve {
    name: String,
    /// CPU time of the vCPU in each window.
    ran: Vec<Span>,
}

impl OverTime {
    /// Creates a sink with windows of the length `window`, which must not be zero.
    #[must_use]
    pub fn new(window: Span) -> OverTime {
        assert!(!window.is_zero(), "the length of a window must not be zero");
        let (vcpus, strays) = (BTreeMap::new(), Strays::default());
        OverTime { window, vcpus, end: Time::START, strays }
    }

    /// Returns the length of a window.
    #[must_use]
    pub fn window(&self) -> Span {
        self.window
    }

    /// Returns the CPU time of each vCPU in each whole window, in order of id.
    ///
    /// # Errors
    /// If a record named an unknown vCPU.
    pub fn finish(self) -> Result<Vec<(String, Vec<Span>)>, StrayRecord> {
        self.strays.check()?;
        let windows = usize::try_from(self.end.since(Time::START) / self.window);
        let windows = windows.expect("the windows of a run fit in memory");
        let curve = |Curve { name, mut ran }: Curve| {
            ran.resize(windows, Span::ZERO);
            (name, ran)
        };
        Ok(self.vcpus.into_values().map(curve).collect())
    }

    fn add(&mut self, vcpu: VcpuId, (mut from, to): (Time, Time), used: Span) {
        let Some(Curve { ran, .. }) = self.vcpus.get_mut(&vcpu) else {
            return self.strays.add(Unknown::Vcpu(vcpu));
        };
        let mut left = used;
        while from < to {
            let window = from.since(Time::START) / self.window;
            let end = to.min(Time::START.after(self.window * (window + 1)));
            let part = u128::from(left.ns()) * u128::from(end.since(from).ns());
            let part = part / u128::from(to.since(from).ns());
            let part = Span::from_ns(u64::try_from(part).expect("a part is at most the time used"));
            let index = usize::try_from(window).expect("the windows of a run fit in memory");
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
    fn named(&mut self, named: &VcpuName) {
        let new = || Curve { name: String::new(), ran: Vec::new() };
        self.vcpus.entry(named.vcpu).or_insert_with(new).name.clone_from(&named.name);
    }

    fn record(&mut self, record: &Record) {
        self.strays.count();
        match *record {
            Record::Ran { vcpu, from, to, used, .. } => {
                self.add(vcpu, (from, to), used);
                self.end = self.end.max(to);
            }
            Record::Ended { at } => self.end = self.end.max(at),
            _ => {}
        }
    }
}
