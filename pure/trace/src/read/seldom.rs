//! Decoding of entries with many fields.

use slackline_units::{Enforcement, Reservation, Span};

use super::decode::Decoder;
use super::{Damage, Part};
use crate::encode::{KIND_BITS, MECHANISM_SHIFT, NOTHING, tag};
use crate::exchange::WrittenTerms;
use crate::record::{OverheadKind, Record};

impl Decoder<'_> {
    pub(super) fn read_accounted(&mut self) -> Part<Record> {
        let (to, cpu) = (self.time()?, self.cpu()?);
        let from = self.before(to)?;
        if from > to {
            return Err(Damage::Damaged);
        }
        let mut span = || self.number().map(Span::from_ns);
        let (idle, stolen, dispatching) = (span()?, span()?, span()?);
        Ok(Record::Accounted { cpu, from, to, idle, stolen, dispatching })
    }

    pub(super) fn read_job(&mut self, tag: u8) -> Part<Record> {
        let (done, vcpu) = (self.time()?, self.vcpu()?);
        let (released, deadline) = (self.before(done)?, self.after(done)?);
        let (client, task) = match tag {
            tag::ANSWERED => (Some(self.client()?), self.maybe_task()?),
            17 => (None, Some(self.task()?)),
            _ => (None, None),
        };
        Ok(Record::Job { vcpu, task, client, released, deadline, done })
    }

    pub(super) fn read_boosted(&mut self) -> Part<Record> {
        let (to, vcpu) = (self.time()?, self.vcpu()?);
        let (from, used_up) = (self.before(to)?, self.number()? == 1);
        if from > to {
            return Err(Damage::Damaged);
        }
        Ok(Record::Boosted { vcpu, from, to, used_up })
    }

    pub(super) fn read_stopped(&mut self) -> Part<Record> {
        let (to, vcpu) = (self.time()?, self.vcpu()?);
        Ok(Record::Stopped { vcpu, from: self.before(to)?, to })
    }

    pub(super) fn read_elsewhere(&mut self) -> Part<Record> {
        let (to, vcpu) = (self.time()?, self.vcpu()?);
        let (from, used) = (self.before(to)?, Span::from_ns(self.number()?));
        if from > to {
            return Err(Damage::Damaged);
        }
        Ok(Record::Elsewhere { vcpu, from, to, used })
    }

    pub(super) fn read_slowed(&mut self) -> Part<Record> {
        let (to, vcpu) = (self.time()?, self.vcpu()?);
        let (from, work) = (self.before(to)?, Span::from_ns(self.number()?));
        if from > to || work > to - from {
            return Err(Damage::Damaged);
        }
        Ok(Record::Slowed { vcpu, from, to, work })
    }

    pub(super) fn read_spent(&mut self) -> Part<Record> {
        let (to, cpu) = (self.time()?, self.cpu()?);
        let (from, what) = (self.before(to)?, self.number()?);
        let kind = usize::try_from(what & ((1 << KIND_BITS) - 1)).map_err(|_| Damage::Damaged)?;
        let kind = *OverheadKind::ALL.get(kind).ok_or(Damage::Damaged)?;
        let vcpu = match what >> KIND_BITS {
            0 => None,
            1 => Some(self.vcpu()?),
            _ => return Err(Damage::Damaged),
        };
        if from > to {
            return Err(Damage::Damaged);
        }
        Ok(Record::Spent { cpu, vcpu, kind, from, to })
    }

    pub(super) fn read_promised(&mut self) -> Part<Record> {
        let (at, vcpu) = (self.time()?, self.vcpu()?);
        let (slice, period) = (self.number()?, self.number()?);
        let reservation = if slice == NOTHING {
            None
        } else {
            let (slice, period) = (Span::from_ns(slice), Span::from_ns(period));
            Some(Reservation::new(slice, period).map_err(|_| Damage::Damaged)?)
        };
        let flags = self.number()?;
        let by = usize::try_from(flags >> MECHANISM_SHIFT).ok();
        let by = by.and_then(|by| Enforcement::ALL.get(by)).copied().ok_or(Damage::Damaged)?;
        let phase = if flags & 2 == 0 { None } else { Some(Span::from_ns(self.number()?)) };
        Ok(Record::Promised { at, vcpu, reservation, exact: flags & 1 != 0, phase, by })
    }

    pub(super) fn terms(&mut self) -> Part<Box<WrittenTerms>> {
        let share = self.entry_text()?;
        let cpus = if self.number()? == 0 { None } else { Some(self.set()?) };
        Ok(Box::new(WrittenTerms { share, cpus }))
    }
}
