//! Decoding of names, and of entries about host threads.

use slackline_units::Span;

use super::decode::Decoder;
use super::{Damage, Part};
use crate::encode::KIND_BITS;
use crate::host_thread::{HostThread, HostThreadId, HostThreadKind};
use crate::record::{OffCpu, Record, WakeMark};

/// Maximum length of a name that a reader returns, in bytes. Names of VMs and threads are shorter.
const LONGEST_NAME: usize = 255;

impl Decoder<'_> {
    /// Reads a text and shortens it to [`LONGEST_NAME`]. Readers repeat a name for each record of
    /// its vCPU, so a long name would multiply the size of a trace.
    pub(super) fn name(&mut self) -> Part<String> {
        let mut text = self.entry_text()?;
        text.truncate(text.floor_char_boundary(LONGEST_NAME));
        Ok(text)
    }

    pub(super) fn read_host_thread(&mut self) -> Part<HostThread> {
        let (at, number) = (self.time()?, self.small()?);
        // Threads are numbered in order of appearance. A number that skips others is damaged. It
        // must not make readers allocate memory for all threads up to it.
        if number > self.state.host_threads {
            return Err(Damage::Damaged);
        }
        self.state.host_threads = self.state.host_threads.max(number.saturating_add(1));
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
            name: self.name()?,
            command: self.name()?,
            vm: self.name()?,
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
            return Ok(Record::Awoken { at: to, thread, cpu: self.known_cpu(what >> 1)?, mark });
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
                Record::OnCpu { thread, cpu: self.known_cpu(what >> 2)?, from, to, end }
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
        let is_known = number < self.state.host_threads;
        is_known.then_some(HostThreadId::new(number)).ok_or(Damage::Damaged)
    }
}
