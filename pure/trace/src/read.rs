//! Reading of a trace: the header first, then one entry at a time.

mod index;
mod memory;
mod of_host;
mod primitives;
mod seldom;

use std::collections::BTreeMap;
use std::io::{self, BufRead};

use slackline_units::{ClientId, CpuId, CpuSet, DomId, Entitlement, Span, TaskId, Time, VcpuId};
use slackline_units::{Pending, Task, Tasks, Urgency, VcpuHint};
use thiserror::Error;

use crate::effort::LATEST;
use crate::encode::{CHECKSUM_START, END, LIMITED, REFUSED, tag};
use crate::exchange::{CpuUse, Exchange, Fact, KeptFact, Order, Outcome};
use crate::header::Header;
use crate::host_thread::Note;
use crate::record::{Knowledge, RanEnd, Record, Service};
use crate::sink::{Entry, Sink, VcpuName};
use crate::write::{HAS_INDEX, MAGIC, OLDEST_VERSION, VERSION};

pub use index::IndexedTrace;

/// Reason why a file cannot be read as a trace.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The input could not be read.
    #[error("cannot read the trace")]
    Io(#[source] io::Error),
    /// The file does not begin with the first bytes of a trace.
    #[error("this is not a Slackline trace")]
    NotATrace,
    /// The version of the trace is not supported.
    #[error(
        "this is a trace of version {version}; \
         this program reads versions {OLDEST_VERSION} to {VERSION}"
    )]
    OtherVersion {
        /// Version of the trace.
        version: u32,
    },
    /// The file ends before the trace does.
    #[error("the trace is cut off after {entries} entries")]
    Truncated {
        /// Number of entries that could be read: records, names and exchanges.
        entries: u64,
    },
    /// The file goes on after the end of the trace, which is the checksum or the index.
    #[error("the file has more data after the end of the trace, which has {entries} entries")]
    Trailing {
        /// Number of entries that could be read: records, names and exchanges.
        entries: u64,
    },
    /// An entry refers to a slot for which no vCPU was named before.
    #[error("entry {entry} of the trace names vCPU slot {slot}, but no vCPU has that slot")]
    UnknownVcpu {
        /// Number of the entry, counted from zero.
        entry: u64,
        /// Slot of the vCPU.
        slot: u64,
    },
    /// An entry names a CPU that the header does not have.
    #[error("entry {entry} of the trace names CPU {cpu}, but its {cpus} CPUs are numbered from 0")]
    UnknownCpu {
        /// Number of the entry, counted from zero.
        entry: u64,
        /// Number of the CPU.
        cpu: u64,
        /// Number of CPUs in the header.
        cpus: usize,
    },
    /// An entry is malformed.
    #[error("the trace is damaged after {entries} entries")]
    Damaged {
        /// Number of entries that could be read: records, names and exchanges.
        entries: u64,
    },
}

/// Reads a trace: the header first, then one entry at a time.
pub struct Reader<R: BufRead> {
    input: R,
    sum: u64,
    last: Time,
    entries: u64,
    header: Header,
    /// vCPU that was last named for each slot.
    vcpus: BTreeMap<u64, VcpuId>,
    /// Number of host threads read so far. Host threads are numbered in order of appearance.
    host_threads: u32,
    is_over: bool,
    /// True if the trace is a recording, which is valid without its end.
    is_recording: bool,
    /// True if the trace is a recording and its end is missing.
    is_cut: bool,
    /// True if an index follows the checksum.
    has_index: bool,
}

/// Error within an entry, without the position of the entry.
enum Damage {
    Io(io::Error),
    Version(u32),
    UnknownVcpu(u64),
    UnknownCpu(u64),
    Damaged,
}

impl From<io::Error> for Damage {
    fn from(error: io::Error) -> Damage {
        Damage::Io(error)
    }
}

type Part<T> = Result<T, Damage>;

impl<R: BufRead> Reader<R> {
    /// Creates a reader and reads the header.
    ///
    /// # Errors
    /// If the input is not a trace, or if the trace has an unsupported version.
    pub fn new(input: R) -> Result<Reader<R>, ReadError> {
        let header = Header {
            title: String::new(),
            machine: String::new(),
            policy: String::new(),
            parameters: String::new(),
            seed: 0,
            cpus: 0,
            groups: Vec::new(),
            dispatch: Span::ZERO,
            warmup: Span::ZERO,
            knows: Knowledge {
                sleep: false,
                stretches: false,
                resolution: Span::ZERO,
                overhead: false,
            },
            scenario: String::new(),
        };
        let (sum, last, vcpus) = (CHECKSUM_START, Time::START, BTreeMap::new());
        let mut reader = Reader {
            input,
            sum,
            last,
            entries: 0,
            header,
            vcpus,
            host_threads: 0,
            is_over: false,
            is_recording: false,
            is_cut: false,
            has_index: false,
        };
        let mut magic = [0; MAGIC.len()];
        if reader.bytes(&mut magic).is_err() || magic != MAGIC {
            return Err(ReadError::NotATrace);
        }
        reader.read_version().map_err(|fault| reader.explain(fault))?;
        reader.read_header().map_err(|fault| reader.explain(fault))?;
        Ok(reader)
    }

    /// Returns the header of the trace.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the next entry. `None` after the last entry.
    ///
    /// # Errors
    /// If the trace is cut short or damaged, or refers to an unknown vCPU or CPU.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, ReadError> {
        if self.is_over {
            return Ok(None);
        }
        match self.next_or_end() {
            Err(ReadError::Truncated { .. }) if self.is_recording => {
                (self.is_over, self.is_cut) = (true, true);
                Ok(None)
            }
            result => result,
        }
    }

    /// Returns true if this is a recording whose end is missing: its recorder was killed, or the
    /// disk was full.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    fn next_or_end(&mut self) -> Result<Option<Entry>, ReadError> {
        let mut tag = self.byte().map_err(|fault| self.explain(fault))?;
        while tag == tag::CHECK {
            self.check()?;
            tag = self.byte().map_err(|fault| self.explain(fault))?;
        }
        if tag == END {
            return self.end().map(|()| None);
        }
        let entry = self.read_entry(tag).map_err(|fault| self.explain(fault))?;
        self.entries += 1;
        Ok(Some(entry))
    }

    fn check(&mut self) -> Result<(), ReadError> {
        let (expected, entries) = (self.sum, self.entries);
        let mut sum = [0; 8];
        self.bytes(&mut sum).map_err(|fault| self.explain(fault))?;
        if u64::from_le_bytes(sum) == expected {
            Ok(())
        } else {
            Err(ReadError::Damaged { entries })
        }
    }

    /// Passes all remaining entries to a sink.
    ///
    /// # Errors
    /// If the trace is cut short or damaged, or refers to an unknown vCPU or CPU.
    pub fn pass_to(&mut self, sink: &mut impl Sink) -> Result<(), ReadError> {
        while let Some(entry) = self.next_entry()? {
            entry.pass_to(sink);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), ReadError> {
        self.is_over = true;
        let (expected, entries) = (self.sum, self.entries);
        let mut sum = [0; 8];
        self.bytes(&mut sum).map_err(|fault| self.explain(fault))?;
        if u64::from_le_bytes(sum) != expected {
            return Err(ReadError::Damaged { entries });
        }
        if self.has_index {
            self.check_index().map_err(|fault| self.explain(fault))?;
        }
        if self.byte().is_ok() { Err(ReadError::Trailing { entries }) } else { Ok(()) }
    }

    fn explain(&self, fault: Damage) -> ReadError {
        let entries = self.entries;
        match fault {
            Damage::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                ReadError::Truncated { entries }
            }
            Damage::Io(error) => ReadError::Io(error),
            Damage::Version(version) => ReadError::OtherVersion { version },
            Damage::UnknownVcpu(slot) => ReadError::UnknownVcpu { entry: entries, slot },
            Damage::UnknownCpu(cpu) => {
                ReadError::UnknownCpu { entry: entries, cpu, cpus: self.header.cpus }
            }
            Damage::Damaged => ReadError::Damaged { entries },
        }
    }

    fn read_version(&mut self) -> Part<()> {
        let mut version = 0_u32;
        loop {
            match self.byte()? {
                b'\n' => break,
                digit @ b'0'..=b'9' => {
                    let next = version.checked_mul(10);
                    let next = next.and_then(|next| next.checked_add(u32::from(digit - b'0')));
                    version = next.ok_or(Damage::Damaged)?;
                }
                _ => return Err(Damage::Damaged),
            }
        }
        let is_read = (OLDEST_VERSION..=VERSION).contains(&version);
        if is_read { Ok(()) } else { Err(Damage::Version(version)) }
    }

    fn read_header(&mut self) -> Part<()> {
        self.header.title = self.text()?;
        self.header.machine = self.text()?;
        self.header.policy = self.text()?;
        self.header.parameters = self.text()?;
        self.header.seed = self.number()?;
        self.header.cpus = self.index(CpuId::LIMIT)?;
        for _ in 0..self.number()? {
            let level = (0..self.number()?).map(|_| self.set()).collect::<Part<_>>()?;
            self.header.groups.push(level);
        }
        self.header.warmup = Span::from_ns(self.number()?);
        let knows = self.number()?;
        let resolution = Span::from_ns(self.number()?);
        let [sleep, stretches, overhead] = [1, 2, 8].map(|flag| knows & flag != 0);
        self.is_recording = knows & 16 != 0;
        self.has_index = knows & HAS_INDEX != 0;
        self.header.knows = Knowledge { sleep, stretches, resolution, overhead };
        if knows & 4 != 0 {
            self.header.dispatch = Span::from_ns(self.number()?);
        }
        self.header.scenario = self.text()?;
        Ok(())
    }

    fn read_entry(&mut self, tag: u8) -> Part<Entry> {
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
        self.vcpus.insert(slot, vcpu);
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

    fn small(&mut self) -> Part<u32> {
        u32::try_from(self.number()?).map_err(|_| Damage::Damaged)
    }

    fn task(&mut self) -> Part<TaskId> {
        u16::try_from(self.number()?).map(TaskId::new).map_err(|_| Damage::Damaged)
    }

    fn client(&mut self) -> Part<ClientId> {
        u16::try_from(self.number()?).map(ClientId::new).map_err(|_| Damage::Damaged)
    }

    fn pending(&mut self) -> Part<Pending> {
        let mut pending = Pending::nothing(DomId::new(self.small()?));
        (pending.items, pending.asked) = (self.small()?, self.small()?);
        for task in &mut pending.tasks {
            *task = self.maybe_task()?;
        }
        Ok(pending)
    }

    fn maybe_task(&mut self) -> Part<Option<TaskId>> {
        let Some(number) = self.number()?.checked_sub(1) else { return Ok(None) };
        u16::try_from(number).map(|number| Some(TaskId::new(number))).map_err(|_| Damage::Damaged)
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

    fn vcpu(&mut self) -> Part<VcpuId> {
        let slot = self.number()?;
        self.vcpus.get(&slot).copied().ok_or(Damage::UnknownVcpu(slot))
    }

    fn cpu(&mut self) -> Part<CpuId> {
        let number = self.number()?;
        let known = usize::try_from(number).ok().filter(|&cpu| cpu < self.header.cpus);
        known.map(CpuId::new).ok_or(Damage::UnknownCpu(number))
    }

    /// Reads a set of CPUs, which can contain CPUs that the header does not have.
    fn set(&mut self) -> Part<CpuSet> {
        (0..self.number()?).map(|_| self.index(CpuId::LIMIT - 1).map(CpuId::new)).collect()
    }

    fn signed(&mut self) -> Part<i64> {
        let value = self.number()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    fn time(&mut self) -> Part<Time> {
        self.last = self.after(self.last)?;
        Ok(self.last)
    }

    /// Reads the time of an event that was reported to a policy. In a replay, a policy adds its
    /// periods to the time, and the sums must not overflow.
    fn time_of_event(&mut self) -> Part<Time> {
        let at = self.time()?;
        (at <= LATEST).then_some(at).ok_or(Damage::Damaged)
    }

    fn after(&mut self, at: Time) -> Part<Time> {
        let difference = self.signed()?.cast_unsigned();
        Ok(Time::from_ns(at.ns().wrapping_add(difference)))
    }

    fn before(&mut self, at: Time) -> Part<Time> {
        let difference = self.signed()?.cast_unsigned();
        Ok(Time::from_ns(at.ns().wrapping_sub(difference)))
    }
}
