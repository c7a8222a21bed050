//! Accounting of the time of each part (vCPU) of a target of `hold`. A part runs, is stopped by its
//! limit, is runnable but does not run, or is blocked. A blocked part cannot use its reservation.

use slackline_trace::{Entry, Record, VcpuName};
use slackline_units::{Span, Time, VcpuId};

/// Parts of a target of `hold`: its vCPUs, or the target as a whole.
pub(super) struct Parts {
    all: Vec<Part>,
    /// Number of CPUs on which each part runs at once. The session's records state CPU time as if
    /// the part ran on one CPU, so the CPU time of the records is multiplied by this number.
    width: u64,
    /// True if the host can observe when threads block.
    knows_sleep: bool,
    /// True if the session's records show when a part is stopped.
    knows_stops: bool,
    /// Start of counting. Earlier records are ignored.
    began: Time,
}

/// Times of a part of the target, by activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    /// CPU time that the part received, on all its CPUs.
    pub(super) used: Span,
    /// Time in which the part was runnable but stopped, because its slice was used up or it had
    /// escaped its limit too often. Includes time in which another program controlled the part.
    /// `None` if the kernel enforces the reservation, because the kernel does not report this time.
    pub(super) stopped: Option<Span>,
    /// Time in which the part was runnable but did not run. `None` if the host cannot observe
    /// blocking.
    pub(super) ready: Option<Span>,
    /// Time in which the part was blocked. `None` if the host cannot observe blocking.
    pub(super) asleep: Option<Span>,
}

/// One part of a target of `hold`: a vCPU, or the whole target.
pub(super) struct Part {
    /// Name of the part in the output.
    pub(super) name: String,
    id: Option<VcpuId>,
    /// CPU time that the part received, divided by the number of CPUs on which the part runs at
    /// once.
    used: Span,
    slept: Span,
    stopped: Span,
    /// Time at which the part last blocked. `None` if it is runnable.
    asleep: Option<Time>,
    /// Time at which the current pause of the part began. `None` if the part is not paused.
    paused: Option<Time>,
}

impl Parts {
    /// Creates parts with these names. The parts must join the session in the order of their names.
    pub(super) fn new(names: Vec<String>, width: usize, knows_sleep: bool, began: Time) -> Parts {
        let part = |name| {
            let (used, slept, stopped) = (Span::ZERO, Span::ZERO, Span::ZERO);
            Part { name, id: None, used, slept, stopped, asleep: None, paused: None }
        };
        let all = names.into_iter().map(part).collect();
        Parts { all, width: width as u64, knows_sleep, knows_stops: true, began }
    }

    /// Creates parts whose CPU time is measured by meters, because there are no records of a
    /// session.
    pub(super) fn measured(names: Vec<String>, began: Time) -> Parts {
        Parts { knows_stops: false, ..Parts::new(names, 1, false, began) }
    }

    /// Sets the CPU time that a part has received since the time `began`.
    pub(super) fn set_used(&mut self, index: usize, used: Span) {
        self.all[index].used = used;
    }

    /// Adds the records of the session to the times of the parts.
    pub(super) fn count(&mut self, entries: &mut Vec<Entry>) {
        for entry in entries.drain(..) {
            match entry {
                Entry::Named(named) => self.named(&named),
                Entry::Record(record) => self.record(&record),
                Entry::Exchange(_) | Entry::HostThread(_) | Entry::Note(_) => {}
            }
        }
    }

    /// Returns the CPU time that all parts together received.
    pub(super) fn used(&self) -> Span {
        self.all.iter().fold(Span::ZERO, |all, part| all + part.used * self.width)
    }

    /// Returns each part with the time that it spent in each activity until `end`. For a part on
    /// one CPU, these times add up to at most the time since counting began.
    pub(super) fn each(&self, end: Time) -> impl Iterator<Item = (&Part, Times)> {
        let passed = end.since(self.began);
        self.all.iter().map(move |part| {
            let lately = part.asleep.map_or(Span::ZERO, |since| end.since(since.max(self.began)));
            let mut left = passed.left_after(part.used);
            let mut take = |wanted: Span| {
                let taken = wanted.min(left);
                left = left.left_after(taken);
                taken
            };
            let paused = part.paused.map_or(Span::ZERO, |since| end.since(since.max(self.began)));
            let (stopped, asleep) = (take(part.stopped + paused), take(part.slept + lately));
            let seen = |span| self.knows_sleep.then_some(span);
            let used = part.used * self.width;
            let stopped = self.knows_stops.then_some(stopped);
            (part, Times { used, stopped, ready: seen(left), asleep: seen(asleep) })
        })
    }

    fn named(&mut self, named: &VcpuName) {
        let new = self.all.iter_mut().find(|part| part.id.is_none() && part.name == named.name);
        if let Some(part) = new {
            part.id = Some(named.vcpu);
        }
    }

    fn of(&mut self, vcpu: VcpuId) -> Option<&mut Part> {
        self.all.iter_mut().find(|part| part.id == Some(vcpu))
    }

    fn record(&mut self, record: &Record) {
        let began = self.began;
        match *record {
            Record::Stopped { vcpu, from, to } => {
                if let Some(part) = self.of(vcpu) {
                    part.stopped += to.since(from.max(began));
                    // A stop for an escape is recorded as a pause too. The pause up to `to` is
                    // counted as stopped here.
                    part.paused = part.paused.map(|since| since.max(to));
                }
            }
            Record::Ran { vcpu, used, .. } | Record::Elsewhere { vcpu, used, .. } => {
                if let Some(part) = self.of(vcpu) {
                    part.used += used;
                }
            }
            Record::Paused { at, vcpu } => {
                if let Some(part) = self.of(vcpu) {
                    part.paused.get_or_insert(at);
                }
            }
            Record::Joined { at, vcpu } | Record::Blocked { at, vcpu } => {
                if let Some(part) = self.of(vcpu) {
                    part.end_pause(at, began);
                    part.asleep.get_or_insert(at);
                }
            }
            Record::Woke { at, vcpu } | Record::Left { at, vcpu } => {
                if let Some(part) = self.of(vcpu) {
                    part.end_pause(at, began);
                    if let Some(since) = part.asleep.take() {
                        part.slept += at.since(since.max(began));
                    }
                }
            }
            _ => {}
        }
    }
}

impl Part {
    fn end_pause(&mut self, at: Time, began: Time) {
        if let Some(since) = self.paused.take() {
            self.stopped += at.since(since.max(began));
        }
    }
}

#[cfg(test)]
mod tests {
    use slackline_trace::RanEnd;
    use slackline_units::{CpuId, DomId};

    use super::*;

    fn at(ms: u64) -> Time {
        Time::START.after(Span::from_ms(ms))
    }

    /// Returns the times of a target with these records in the first 100 ms.
    fn times_of(records: [Record; 4]) -> [Option<Span>; 3] {
        let vcpu = VcpuId::new(0, DomId::new(0), 0);
        let (name, domain) = ("tree".to_owned(), "tree".into());
        let mut parts = Parts::new(vec![name.clone()], 1, true, at(0));
        let mut entries = vec![Entry::Named(VcpuName { at: at(0), vcpu, name, domain })];
        entries.extend(records.map(Entry::Record));
        parts.count(&mut entries);
        let (_, times) = parts.each(at(100)).next().unwrap();
        [times.stopped, times.ready, times.asleep]
    }

    /// The session pauses a target that has escaped too often.
    #[test]
    fn paused_vcpu_time_counts_as_stopped_time() {
        let vcpu = VcpuId::new(0, DomId::new(0), 0);
        let times = times_of([
            Record::Woke { at: at(0), vcpu },
            Record::Paused { at: at(10), vcpu },
            Record::Woke { at: at(50), vcpu },
            Record::Paused { at: at(60), vcpu },
        ]);
        assert_eq!(times, [80, 20, 0].map(|ms| Some(Span::from_ms(ms))));
    }

    /// The session records a pause when it stops a vCPU for an escape. At the end of the pause, the
    /// session records the same interval a second time, as a stop.
    #[test]
    fn time_recorded_as_pause_and_as_stop_is_counted_once() {
        let vcpu = VcpuId::new(0, DomId::new(0), 0);
        let times = times_of([
            Record::Woke { at: at(0), vcpu },
            Record::Paused { at: at(10), vcpu },
            Record::Stopped { vcpu, from: at(10), to: at(60) },
            Record::Woke { at: at(60), vcpu },
        ]);
        assert_eq!(times, [50, 50, 0].map(|ms| Some(Span::from_ms(ms))));
    }

    #[test]
    fn hold_command_counts_running_stopped_ready_and_blocked_vcpu_time() {
        let ids = [0, 1].map(|number| VcpuId::new(number.into(), DomId::new(0), number));
        let names = ["vCPU 0", "vCPU 2"].map(String::from);
        let mut parts = Parts::new(names.to_vec(), 1, true, at(5));
        let mut entries = Vec::new();
        for (vcpu, name) in ids.into_iter().zip(names) {
            let domain = "guest".into();
            entries.push(Entry::Named(VcpuName { at: at(0), vcpu, name, domain }));
            entries.push(Entry::Record(Record::Joined { at: at(0), vcpu }));
        }
        let ran = |vcpu, from, to: Time, end| Record::Ran {
            vcpu,
            cpu: CpuId::new(0),
            from,
            to,
            used: to.since(from),
            granted: None,
            late: Span::ZERO,
            end,
            due: true,
        };
        let records = [
            Record::Woke { at: at(0), vcpu: ids[0] },
            ran(ids[0], at(5), at(40), RanEnd::Limit),
            Record::Stopped { vcpu: ids[0], from: at(40), to: at(90) },
            Record::Woke { at: at(50), vcpu: ids[1] },
            ran(ids[1], at(50), at(60), RanEnd::Blocked),
            Record::Blocked { at: at(60), vcpu: ids[1] },
        ];
        entries.extend(records.map(Entry::Record));
        parts.count(&mut entries);
        let each: Vec<_> = parts.each(at(100)).map(|(part, times)| (&*part.name, times)).collect();
        let times = |used, stopped, ready, asleep| {
            let [used, stopped, ready, asleep] = [used, stopped, ready, asleep].map(Span::from_ms);
            Times { used, stopped: Some(stopped), ready: Some(ready), asleep: Some(asleep) }
        };
        assert_eq!(each, [("vCPU 0", times(35, 50, 10, 0)), ("vCPU 2", times(10, 0, 0, 85))]);
        assert_eq!(parts.used(), Span::from_ms(45));
    }
}
