//! What each part of a target had, and how long it slept: who sleeps cannot use what it is given.

use slackline_trace::{Entry, Named, Record};
use slackline_units::{Span, Time, VcpuId};

/// What is held apart, and what each had.
pub(super) struct Parts {
    all: Vec<Part>,
    /// On how many CPUs at once its time is counted as one.
    width: u64,
    /// Whether it is seen who sleeps.
    knows_sleep: bool,
}

/// One of them.
pub(super) struct Part {
    /// What people call it.
    pub(super) name: String,
    id: Option<VcpuId>,
    /// CPU time it had.
    used: Span,
    slept: Span,
    /// Since when it has been asleep.
    asleep: Option<Time>,
}

impl Parts {
    /// Those of these names, which joined in this order.
    pub(super) fn new(names: Vec<String>, width: usize, knows_sleep: bool) -> Parts {
        let part = |name| {
            let (used, slept) = (Span::ZERO, Span::ZERO);
            Part { name, id: None, used, slept, asleep: None }
        };
        let all = names.into_iter().map(part).collect();
        Parts { all, width: width as u64, knows_sleep }
    }

    /// Takes what happened in.
    pub(super) fn count(&mut self, entries: &mut Vec<Entry>) {
        for entry in entries.drain(..) {
            match entry {
                Entry::Named(named) => self.named(&named),
                Entry::Record(record) => self.record(&record),
                Entry::Exchange(_) => {}
            }
        }
    }

    /// CPU time that all of them had.
    pub(super) fn used(&self) -> Span {
        self.all.iter().fold(Span::ZERO, |all, part| all + part.used * self.width)
    }

    /// Each, with the CPU time it had and how long it slept until `end`, if that is seen.
    pub(super) fn each(&self, end: Time) -> impl Iterator<Item = (&Part, Span, Option<Span>)> {
        self.all.iter().map(move |part| {
            let lately = part.asleep.map_or(Span::ZERO, |since| end.since(since.min(end)));
            let slept = self.knows_sleep.then(|| part.slept + lately);
            (part, part.used * self.width, slept)
        })
    }

    fn named(&mut self, named: &Named) {
        let new = self.all.iter_mut().find(|part| part.id.is_none() && part.name == named.name);
        if let Some(part) = new {
            part.id = Some(named.vcpu);
        }
    }

    fn of(&mut self, vcpu: VcpuId) -> Option<&mut Part> {
        self.all.iter_mut().find(|part| part.id == Some(vcpu))
    }

    fn record(&mut self, record: &Record) {
        match *record {
            Record::Ran { vcpu, used, .. } | Record::Elsewhere { vcpu, used, .. } => {
                if let Some(part) = self.of(vcpu) {
                    part.used += used;
                }
            }
            Record::Joined { at, vcpu } | Record::Blocked { at, vcpu } => {
                if let Some(part) = self.of(vcpu) {
                    part.asleep.get_or_insert(at);
                }
            }
            Record::Woke { at, vcpu } | Record::Left { at, vcpu } => {
                if let Some(part) = self.of(vcpu)
                    && let Some(since) = part.asleep.take()
                {
                    part.slept += at.since(since);
                }
            }
            _ => {}
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

    #[test]
    fn each_has_what_it_ran_and_sleeps_until_it_wakes() {
        let ids = [0, 1].map(|number| VcpuId::new(number.into(), DomId::new(0), number));
        let names = ["vCPU 0", "vCPU 2"].map(String::from);
        let mut parts = Parts::new(names.to_vec(), 1, true);
        let mut entries = Vec::new();
        for (vcpu, name) in ids.into_iter().zip(names) {
            let domain = "guest".into();
            entries.push(Entry::Named(Named { at: at(0), vcpu, name, domain }));
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
            ran(ids[0], at(0), at(40), RanEnd::Limit),
            Record::Woke { at: at(50), vcpu: ids[1] },
            ran(ids[1], at(50), at(60), RanEnd::Blocked),
            Record::Blocked { at: at(60), vcpu: ids[1] },
        ];
        entries.extend(records.map(Entry::Record));
        parts.count(&mut entries);
        let each: Vec<_> =
            parts.each(at(100)).map(|(part, used, slept)| (&*part.name, used, slept)).collect();
        let ms = Span::from_ms;
        assert_eq!(each, [("vCPU 0", ms(40), Some(ms(0))), ("vCPU 2", ms(10), Some(ms(90)))]);
        assert_eq!(parts.used(), ms(50));
    }
}
