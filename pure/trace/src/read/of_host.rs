//! Decoding of entries about host threads.

use std::io::Read;

use slackline_units::{CpuId, Span};

use super::{Damage, Part, Reader};
use crate::encode::KIND_BITS;
use crate::host_thread::{HostThread, HostThreadId, HostThreadKind};
use crate::record::{OffCpu, Record, WakeMark};

impl<R: Read> Reader<R> {
    pub(super) fn read_host_thread(&mut self) -> Part<HostThread> {
        let (at, number) = (self.time()?, self.small()?);
        // Threads are numbered in order of appearance. A number that skips others is damaged. It
        // must not make readers allocate memory for all threads up to it.
        if number > self.host_threads {
            return Err(Damage::Damaged);
        }
        self.host_threads = self.host_threads.max(number.saturating_add(1));
        let what = self.number()?;
        let kind = usize::try_from(what & ((1 << KIND_BITS) - 1)).map_err(|_| Damage::Damaged)?;
        let kind = *HostThreadKind::ALL.get(kind).ok_or(Damage::Damaged)?;
        let vcpu = match what >> KIND_BITS {
            0 => None,
            1 => Some(self.vcpu()?),
            _ => return Err(Damage::Damaged),
        };
        Ok(HostThread {
            at,
            id: HostThreadId::new(number),
            kind,
            vcpu,
            tid: self.small()?,
            process: self.small()?,
            user: self.small()?,
            name: self.entry_text()?,
            command: self.entry_text()?,
            vm: self.entry_text()?,
            group: self.entry_text()?,
        })
    }

    pub(super) fn read_of_host(&mut self, tag: u8) -> Part<Record> {
        let to = self.time()?;
        if tag == 29 {
            let (cpu, from, events) = (self.cpu()?, self.before(to)?, self.number()?);
            return if from > to {
                Err(Damage::Damaged)
            } else {
                Ok(Record::Lost { cpu, from, to, events })
            };
        }
        let thread = self.host_thread()?;
        if tag == 27 {
            let what = self.number()?;
            let mark = if what & 1 == 0 { WakeMark::Waking } else { WakeMark::Wakeup };
            return Ok(Record::Awoken { at: to, thread, cpu: self.known(what >> 1)?, mark });
        }
        let what = if tag == 26 { self.number()? } else { 0 };
        let from = self.before(to)?;
        if from > to {
            return Err(Damage::Damaged);
        }
        Ok(match tag {
            26 => {
                let end = match what & 3 {
                    0 => OffCpu::Blocked,
                    1 => OffCpu::Ready,
                    2 => OffCpu::Unknown,
                    _ => return Err(Damage::Damaged),
                };
                Record::OnCpu { thread, cpu: self.known(what >> 2)?, from, to, end }
            }
            28 => Record::Halted { thread, from, to },
            _ => {
                let (used, ready) = (Span::from_ns(self.number()?), Span::from_ns(self.number()?));
                Record::Counted { thread, from, to, used, ready }
            }
        })
    }

    fn host_thread(&mut self) -> Part<HostThreadId> {
        let number = self.small()?;
        let is_known = number < self.host_threads;
        is_known.then_some(HostThreadId::new(number)).ok_or(Damage::Damaged)
    }

    /// Returns the CPU with this number.
    ///
    /// # Errors
    /// If the header has no such CPU.
    fn known(&self, number: u64) -> Part<CpuId> {
        let known = usize::try_from(number).ok().filter(|&cpu| cpu < self.header.cpus);
        known.map(CpuId::new).ok_or(Damage::UnknownCpu(number))
    }
}
