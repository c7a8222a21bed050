//! Decoding of the entries of a trace from a buffer.

use slackline_units::{DomId, Entitlement, Pending, Span, Task, Tasks, Urgency, VcpuHint, VcpuId};

use super::decode::Decoder;
use super::{Damage, Part};
use crate::encode::{LIMITED, REFUSED, tag};
use crate::exchange::{CpuUse, Exchange, Fact, KeptFact, Order, Outcome};
use crate::host_thread::Note;
use crate::record::{RanEnd, Record, Service};
use crate::sink::{Entry, VcpuName};

impl Decoder<'_> {
    /// Decodes an entry with the tag before it.
    pub(super) fn read_tagged(&mut self) -> Part<Entry> {
        let tag = self.byte()?;
        self.read_entry(tag)
    }

    pub(super) fn read_entry(&mut self, tag: u8) -> Part<Entry> {
        Ok(match tag {
            tag::NAMED => Entry::Named(self.read_named()?),
            tag::HOST_THREAD => Entry::HostThread(Box::new(self.read_host_thread()?)),
            tag::NOTE => Entry::Note(Note { name: self.entry_text()?, text: self.entry_text()? }),
            tag::ANSWERED..=tag::BOOSTED => Entry::Record(self.read_record(tag)?),
            tag if tag > tag::NAMED => Entry::Exchange(self.read_exchange(tag)?),
            tag => Entry::Record(self.read_record(tag)?),
        })
    }

    fn read_named(&mut self) -> Part<VcpuName> {
        let (at, slot) = (self.time()?, self.number()?);
        let domain = self.small()?;
        let number = u16::try_from(self.number()?).map_err(|_| Damage::Damaged)?;
        let place = u32::try_from(slot).map_err(|_| Damage::Damaged)?;
        let vcpu = VcpuId::checked(place, DomId::new(domain), number).ok_or(Damage::Damaged)?;
        self.state.vcpus.insert(slot, vcpu);
        Ok(VcpuName { at, vcpu, name: self.name()?, domain: self.name()? })
    }

    fn read_exchange(&mut self, tag: u8) -> Part<Exchange> {
        Ok(match tag {
            tag::NOTICED => Exchange::Noticed(self.used()?),
            tag::MEASURED => Exchange::Measured(self.used()?),
            tag::RUN | tag::IDLE => self.read_order(tag)?,
            tag::ALARM_SET => {
                let cpu = self.cpu()?;
                Exchange::AlarmSet { cpu, alarm: Some(self.after(self.last)?) }
            }
            tag::ALARM_OFF => Exchange::AlarmSet { cpu: self.cpu()?, alarm: None },
            tag::DECLINED => Exchange::Declined,
            _ => Exchange::Reported { now: self.time_of_event()?, fact: self.read_fact(tag)? },
        })
    }

    fn read_fact(&mut self, tag: u8) -> Part<KeptFact> {
        Ok(match tag {
            tag::JOINED => Fact::Joined(self.vcpu()?, self.terms()?),
            tag::TERMS_CHANGED => Fact::TermsChanged(self.vcpu()?, self.terms()?),
            tag::LEFT => Fact::Left(self.vcpu()?),
            tag::WOKE => Fact::Woke(self.vcpu()?),
            tag::BLOCKED => Fact::Blocked(self.vcpu()?),
            tag::PAUSED => Fact::Paused(self.vcpu()?),
            tag::YIELDED => Fact::Yielded(self.cpu()?),
            tag::LIMIT_REACHED => Fact::LimitReached(self.cpu()?),
            tag::ALARM_RANG => Fact::AlarmRang(self.cpu()?),
            tag::ALLOWED => Fact::Allowed(self.vcpu()?),
            tag::CLOCK_SET => Fact::ClockSet(Span::from_ns(self.number()?)),
            tag::PASSED => Fact::Passed,
            tag::SETTLED => Fact::Settled,
            tag::ENDED => Fact::Ended,
            tag::TOLD_TASKS => Fact::Told(self.vcpu()?, Box::new(VcpuHint::Tasks(self.tasks()?))),
            tag::TOLD_PENDING => {
                Fact::Told(self.vcpu()?, Box::new(VcpuHint::Pending(self.pending()?)))
            }
            _ => return Err(Damage::Damaged),
        })
    }

    fn read_order(&mut self, tag: u8) -> Part<Exchange> {
        let cpu = self.cpu()?;
        let vcpu = if tag == tag::RUN { Some(self.vcpu()?) } else { None };
        let flags = self.number()?;
        let outcome = if flags & REFUSED == 0 { Outcome::Done } else { Outcome::Refused };
        let Some(vcpu) = vcpu else {
            return Ok(Exchange::Ordered { order: Order::Idle { cpu }, outcome });
        };
        let entitlement = match flags & 3 {
            0 => Entitlement::Due,
            1 => Entitlement::Arrears,
            2 => Entitlement::Spare,
            _ => return Err(Damage::Damaged),
        };
        let until = if flags & LIMITED == 0 { None } else { Some(self.after(self.last)?) };
        Ok(Exchange::Ordered { order: Order::Run { cpu, vcpu, until, entitlement }, outcome })
    }

    fn read_record(&mut self, tag: u8) -> Part<Record> {
        Ok(match tag {
            1 => Record::Joined { at: self.time()?, vcpu: self.vcpu()? },
            2 => self.read_promised()?,
            3 => Record::Left { at: self.time()?, vcpu: self.vcpu()? },
            4 => Record::Woke { at: self.time()?, vcpu: self.vcpu()? },
            5 => Record::Blocked { at: self.time()?, vcpu: self.vcpu()? },
            6 => self.read_ran()?,
            7 => {
                let (at, cpu) = (self.time()?, self.cpu()?);
                Record::RangLate { at, cpu, late: Span::from_ns(self.number()?) }
            }
            8 => Record::Refused { at: self.time()?, vcpu: self.vcpu()?, cpu: self.cpu()? },
            9 => Record::Declined { at: self.time()?, vcpu: self.vcpu()? },
            10 => {
                let at = self.time()?;
                Record::Changed { due: self.before(at)?, at, vcpu: self.vcpu()? }
            }
            11 | 17 | tag::ANSWERED => self.read_job(tag)?,
            tag::BOOSTED => self.read_boosted()?,
            tag::CLIENT_STARTED => {
                let (at, client) = (self.time()?, self.client()?);
                Record::ClientStarted { at, client, vcpu: self.vcpu()? }
            }
            12 => Record::Overhead { cpu: self.cpu()?, used: Span::from_ns(self.number()?) },
            13 => Record::Ended { at: self.time()? },
            14 => Record::Paused { at: self.time()?, vcpu: self.vcpu()? },
            15 => {
                let (at, by, of) = (self.time()?, self.vcpu()?, self.vcpu()?);
                let used = Span::from_ns(self.number()?);
                let mut count = || u32::try_from(self.number()?).map_err(|_| Damage::Damaged);
                let (received, sent) = (count()?, count()?);
                let (requests, events) = (count()?, count()?);
                let service = Service { used, received, sent, requests, events };
                Record::Served { at, by, of, service }
            }
            18 => self.read_accounted()?,
            19 => Record::ClockSet { at: self.time()?, ahead: Span::from_ns(self.number()?) },
            20 => self.read_slowed()?,
            22 => self.read_spent()?,
            25 => {
                let (at, vcpu) = (self.time()?, self.vcpu()?);
                let (released, deadline) = (self.before(at)?, self.before(at)?);
                Record::Unfinished { at, vcpu, task: self.maybe_task()?, released, deadline }
            }
            21 => {
                let (at, vcpu) = (self.time()?, self.vcpu()?);
                Record::Spun { at, vcpu, used: Span::from_ns(self.number()?) }
            }
            23 => self.read_stopped()?,
            24 => self.read_elsewhere()?,
            16 => Record::Moved { at: self.time()?, vcpu: self.vcpu()?, bytes: self.number()? },
            26..=30 => self.read_of_host(tag)?,
            _ => return Err(Damage::Damaged),
        })
    }

    fn read_ran(&mut self) -> Part<Record> {
        let (to, vcpu, cpu) = (self.time()?, self.vcpu()?, self.cpu()?);
        let from = self.before(to)?;
        let used_to = self.before(to)?;
        if from > used_to || used_to > to {
            return Err(Damage::Damaged);
        }
        let granted = Some(Span::from_ns(self.number()?)).filter(|granted| !granted.is_zero());
        let late = Span::from_ns(self.number()?);
        let flags = self.number()?;
        let end = match flags & 7 {
            0 => RanEnd::Blocked,
            1 => RanEnd::Limit,
            2 => RanEnd::Preempted,
            3 => RanEnd::Yielded,
            4 => RanEnd::Over,
            _ => return Err(Damage::Damaged),
        };
        let due = flags & 8 != 0;
        Ok(Record::Ran { vcpu, cpu, from, to, used: used_to - from, granted, late, end, due })
    }

    fn used(&mut self) -> Part<CpuUse> {
        let (vcpu, cpu, to) = (self.vcpu()?, self.cpu()?, self.after(self.last)?);
        let from = self.before(to)?;
        let length = to.ns().wrapping_sub(from.ns());
        let ran = Span::from_ns(length.wrapping_sub(self.signed()?.cast_unsigned()));
        Ok(CpuUse { vcpu, cpu, from, to, ran })
    }

    fn pending(&mut self) -> Part<Pending> {
        let mut pending = Pending::nothing(DomId::new(self.small()?));
        (pending.items, pending.asked) = (self.small()?, self.small()?);
        for task in &mut pending.tasks {
            *task = self.maybe_task()?;
        }
        Ok(pending)
    }

    fn tasks(&mut self) -> Part<Tasks> {
        let mut tasks = Tasks::default();
        for task in tasks.runnable.iter_mut().chain(&mut tasks.blocked) {
            if let Some(id) = self.maybe_task()? {
                *task = Some(Task { id, urgency: Urgency(self.byte()?) });
            }
        }
        for woken in &mut tasks.woken {
            *woken = self.maybe_task()?;
        }
        Ok(tasks)
    }
}
