//! Encoding of entries as bytes: a tag, numbers and texts. `write` describes the format.

use slackline_units::{CpuId, CpuSet, Enforcement, Entitlement, Reservation, Span, Time, VcpuId};
use slackline_units::{Pending, Task, TaskId, Tasks, VcpuHint};

use crate::exchange::{CpuUse, Exchange, Fact, KeptFact, Order, Outcome};
use crate::host_thread::{HostThread, HostThreadId, Note};
use crate::record::{OffCpu, Record, Service, WakeMark};
use crate::sink::VcpuName;

/// Number that stands for an absent value. No value that can be absent is that large.
pub(crate) const NOTHING: u64 = u64::MAX;

/// Tag that follows the last entry.
pub(crate) const END: u8 = 0;

/// Number of bits that encode the kind of overhead of a [`Record::Spent`]. The next higher bit is
/// set if a vCPU follows.
pub(crate) const KIND_BITS: u32 = 3;

/// Number of bits below the enforcement mechanism in the flags of a [`Record::Promised`]. The
/// mechanism is stored as its index in [`Enforcement::ALL`]: zero for the dispatcher.
pub(crate) const MECHANISM_SHIFT: u32 = 2;

/// Flag of an order that was refused.
pub(crate) const REFUSED: u64 = 4;
/// Flag of an order to run a vCPU up to a time limit.
pub(crate) const LIMITED: u64 = 8;

/// Maximum length of a text in an entry, in bytes. Longer texts are shortened. A reader thus
/// detects a damaged length, instead of taking the rest of the file for a text.
pub(crate) const LONGEST_TEXT: usize = 1 << 16;

/// Encodes entries as bytes. A time is written as its difference to the previous time.
pub(crate) struct Encoder {
    pub(crate) buffer: Vec<u8>,
    last: Time,
}

impl Encoder {
    pub(crate) fn new(capacity: usize) -> Encoder {
        Encoder { buffer: Vec::with_capacity(capacity), last: Time::START }
    }

    /// Returns the time that was encoded last. The next time is encoded as its difference to this
    /// time.
    pub(crate) fn last(&self) -> Time {
        self.last
    }

    pub(crate) fn record(&mut self, record: &Record) {
        self.buffer.push(record_tag(record));
        match *record {
            Record::Joined { at, vcpu }
            | Record::Left { at, vcpu }
            | Record::Woke { at, vcpu }
            | Record::Blocked { at, vcpu }
            | Record::Paused { at, vcpu }
            | Record::Declined { at, vcpu } => {
                self.time(at);
                self.vcpu(vcpu);
            }
            Record::Promised { at, vcpu, reservation, exact, phase, by } => {
                self.time(at);
                self.vcpu(vcpu);
                self.promise(reservation, (exact, by), phase);
            }
            Record::Ran { vcpu, cpu, from, to, used, granted, late, end, due } => {
                self.time(to);
                self.vcpu(vcpu);
                self.cpu(cpu);
                self.difference(to, from);
                self.difference(to, from + used);
                // Zero stands for a timeslice without a limit. A timeslice of length zero therefore
                // reads back as one without a limit.
                self.number(granted.map_or(0, Span::ns));
                self.number(late.ns());
                self.number(end as u64 | u64::from(due) << 3);
            }
            Record::RangLate { at, cpu, late } => {
                self.time(at);
                self.cpu(cpu);
                self.number(late.ns());
            }
            Record::Served { at, by, of, service } => {
                self.time(at);
                self.vcpu(by);
                self.vcpu(of);
                self.service(&service);
            }
            Record::Job { .. }
            | Record::ClientStarted { .. }
            | Record::Unfinished { .. }
            | Record::Moved { .. } => self.of_workload(record),
            Record::ClockSet { .. }
            | Record::Refused { .. }
            | Record::Changed { .. }
            | Record::Spun { .. }
            | Record::Boosted { .. }
            | Record::Slowed { .. }
            | Record::Stopped { .. }
            | Record::Spent { .. }
            | Record::Elsewhere { .. }
            | Record::Accounted { .. } => self.seldom(record),
            Record::Overhead { .. }
            | Record::OnCpu { .. }
            | Record::Awoken { .. }
            | Record::Halted { .. }
            | Record::Lost { .. }
            | Record::Counted { .. } => self.of_host(record),
            Record::Ended { at } => self.time(at),
        }
    }

    /// Writes records of jobs, clients and data.
    fn of_workload(&mut self, record: &Record) {
        match *record {
            Record::Job { vcpu, task, client, released, deadline, done } => {
                self.time(done);
                self.vcpu(vcpu);
                self.difference(done, released);
                self.difference(deadline, done);
                match client {
                    Some(client) => {
                        self.number(u64::from(client.number()));
                        self.task_id(task);
                    }
                    None => task.iter().for_each(|task| self.number(u64::from(task.number()))),
                }
            }
            Record::ClientStarted { at, client, vcpu } => {
                self.time(at);
                self.number(u64::from(client.number()));
                self.vcpu(vcpu);
            }
            Record::Unfinished { at, vcpu, task, released, deadline } => {
                self.time(at);
                self.vcpu(vcpu);
                self.difference(at, released);
                self.difference(at, deadline);
                self.task_id(task);
            }
            Record::Moved { at, vcpu, bytes } => {
                self.time(at);
                self.vcpu(vcpu);
                self.number(bytes);
            }
            _ => {}
        }
    }

    /// Writes records that are rare. They are about a vCPU, a CPU, the speed of a CPU or the clock
    /// that aligns periods with a phase.
    fn seldom(&mut self, record: &Record) {
        match *record {
            Record::Boosted { vcpu, from, to, used_up } => {
                self.time(to);
                self.vcpu(vcpu);
                self.difference(to, from);
                self.number(u64::from(used_up));
            }
            Record::ClockSet { at, ahead } => {
                self.time(at);
                self.number(ahead.ns());
            }
            Record::Refused { at, vcpu, cpu } => {
                self.time(at);
                self.vcpu(vcpu);
                self.cpu(cpu);
            }
            Record::Slowed { vcpu, from, to, work } => {
                self.time(to);
                self.vcpu(vcpu);
                self.difference(to, from);
                self.number(work.ns());
            }
            Record::Changed { due, at, vcpu } => {
                self.time(at);
                self.difference(at, due);
                self.vcpu(vcpu);
            }
            Record::Stopped { vcpu, from, to } => {
                self.time(to);
                self.vcpu(vcpu);
                self.difference(to, from);
            }
            Record::Elsewhere { vcpu, from, to, used } => {
                self.time(to);
                self.vcpu(vcpu);
                self.difference(to, from);
                self.number(used.ns());
            }
            Record::Spun { at, vcpu, used } => {
                self.time(at);
                self.vcpu(vcpu);
                self.number(used.ns());
            }
            Record::Spent { cpu, vcpu, kind, from, to } => {
                self.time(to);
                self.cpu(cpu);
                self.difference(to, from);
                self.number(kind as u64 | u64::from(vcpu.is_some()) << KIND_BITS);
                if let Some(vcpu) = vcpu {
                    self.vcpu(vcpu);
                }
            }
            Record::Accounted { cpu, from, to, idle, stolen, dispatching } => {
                self.time(to);
                self.cpu(cpu);
                self.difference(to, from);
                [idle, stolen, dispatching].iter().for_each(|span| self.number(span.ns()));
            }
            _ => {}
        }
    }

    /// Writes records of host threads, and the total scheduling overhead of a CPU.
    fn of_host(&mut self, record: &Record) {
        match *record {
            Record::Overhead { cpu, used } => {
                self.cpu(cpu);
                self.number(used.ns());
            }
            Record::OnCpu { thread, cpu, from, to, end } => {
                self.time(to);
                self.host_thread(thread);
                let end = match end {
                    OffCpu::Blocked => 0,
                    OffCpu::Ready => 1,
                    OffCpu::Unknown => 2,
                };
                self.number(end | (cpu.index() as u64) << 2);
                self.difference(to, from);
            }
            Record::Awoken { at, thread, cpu, mark } => {
                self.time(at);
                self.host_thread(thread);
                self.number(u64::from(mark == WakeMark::Wakeup) | (cpu.index() as u64) << 1);
            }
            Record::Halted { thread, from, to } => {
                self.time(to);
                self.host_thread(thread);
                self.difference(to, from);
            }
            Record::Lost { cpu, from, to, events } => {
                self.time(to);
                self.cpu(cpu);
                self.difference(to, from);
                self.number(events);
            }
            Record::Counted { thread, from, to, used, ready } => {
                self.time(to);
                self.host_thread(thread);
                self.difference(to, from);
                [used, ready].iter().for_each(|span| self.number(span.ns()));
            }
            _ => {}
        }
    }

    fn host_thread(&mut self, thread: HostThreadId) {
        self.number(u64::from(thread.number()));
    }

    pub(crate) fn host_thread_named(&mut self, thread: &HostThread) {
        let HostThread { at, id, kind, vcpu, tid, process, user, .. } = thread;
        self.buffer.push(tag::HOST_THREAD);
        self.time(*at);
        self.host_thread(*id);
        self.number(*kind as u64 | u64::from(vcpu.is_some()) << KIND_BITS);
        if let Some(vcpu) = vcpu {
            self.vcpu(*vcpu);
        }
        [tid, process, user].iter().for_each(|number| self.number(u64::from(**number)));
        let HostThread { name, command, vm, group, .. } = thread;
        [name, command, vm, group].iter().for_each(|text| self.entry_text(text));
    }

    pub(crate) fn note(&mut self, note: &Note) {
        self.buffer.push(tag::NOTE);
        self.entry_text(&note.name);
        self.entry_text(&note.text);
    }

    pub(crate) fn named(&mut self, named: &VcpuName) {
        let VcpuName { at, vcpu, name, domain } = named;
        self.buffer.push(tag::NAMED);
        self.time(*at);
        self.vcpu(*vcpu);
        self.number(u64::from(vcpu.domain().number()));
        self.number(u64::from(vcpu.number()));
        self.entry_text(name);
        self.entry_text(domain);
    }

    pub(crate) fn exchange(&mut self, exchange: &Exchange) {
        match exchange {
            Exchange::Noticed(used) => self.used(tag::NOTICED, used),
            Exchange::Measured(used) => self.used(tag::MEASURED, used),
            Exchange::Reported { now, fact } => {
                self.buffer.push(fact_tag(fact));
                self.time(*now);
                self.fact(fact);
            }
            Exchange::Ordered { order, outcome } => self.order(*order, *outcome),
            Exchange::AlarmSet { cpu, alarm: Some(alarm) } => {
                self.buffer.push(tag::ALARM_SET);
                self.cpu(*cpu);
                self.difference(*alarm, self.last);
            }
            Exchange::AlarmSet { cpu, alarm: None } => {
                self.buffer.push(tag::ALARM_OFF);
                self.cpu(*cpu);
            }
            Exchange::Declined => self.buffer.push(tag::DECLINED),
        }
    }

    fn fact(&mut self, fact: &KeptFact) {
        match fact {
            Fact::Joined(vcpu, terms) | Fact::TermsChanged(vcpu, terms) => {
                self.vcpu(*vcpu);
                self.entry_text(&terms.share);
                self.number(u64::from(terms.cpus.is_some()));
                if let Some(cpus) = &terms.cpus {
                    self.set(cpus);
                }
            }
            Fact::Told(vcpu, told) => {
                self.vcpu(*vcpu);
                self.told(told);
            }
            Fact::Left(vcpu)
            | Fact::Woke(vcpu)
            | Fact::Blocked(vcpu)
            | Fact::Paused(vcpu)
            | Fact::Allowed(vcpu) => self.vcpu(*vcpu),
            Fact::Yielded(cpu) | Fact::LimitReached(cpu) | Fact::AlarmRang(cpu) => self.cpu(*cpu),
            Fact::ClockSet(ahead) => self.number(ahead.ns()),
            Fact::Passed | Fact::Settled | Fact::Ended => {}
        }
    }

    fn told(&mut self, told: &VcpuHint) {
        match told {
            VcpuHint::Tasks(Tasks { runnable, blocked, woken }) => {
                runnable.iter().chain(blocked).for_each(|task| self.task(task.as_ref()));
                woken.iter().for_each(|id| self.task_id(*id));
            }
            VcpuHint::Pending(Pending { domain, items, asked, tasks }) => {
                for number in [domain.number(), *items, *asked] {
                    self.number(u64::from(number));
                }
                tasks.iter().for_each(|id| self.task_id(*id));
            }
        }
    }

    fn task(&mut self, task: Option<&Task>) {
        self.task_id(task.map(|task| task.id));
        if let Some(task) = task {
            self.buffer.push(task.urgency.0);
        }
    }

    /// Writes the number of a task plus one, or zero for no task.
    fn task_id(&mut self, id: Option<TaskId>) {
        self.number(id.map_or(0, |id| u64::from(id.number()) + 1));
    }

    fn used(&mut self, tag: u8, used: &CpuUse) {
        let CpuUse { vcpu, cpu, from, to, ran } = *used;
        self.buffer.push(tag);
        self.vcpu(vcpu);
        self.cpu(cpu);
        self.difference(to, self.last);
        self.difference(to, from);
        // The interval less the CPU time is mostly zero: the vCPU used the whole interval. The
        // subtraction wraps around, since invalid reports of the hardware are recorded unchanged.
        let length = to.ns().wrapping_sub(from.ns());
        self.signed(length.wrapping_sub(ran.ns()).cast_signed());
    }

    fn order(&mut self, order: Order, outcome: Outcome) {
        let refused = if outcome == Outcome::Refused { REFUSED } else { 0 };
        match order {
            Order::Run { cpu, vcpu, until, entitlement } => {
                self.buffer.push(tag::RUN);
                self.cpu(cpu);
                self.vcpu(vcpu);
                let entitlement = match entitlement {
                    Entitlement::Due => 0,
                    Entitlement::Arrears => 1,
                    Entitlement::Spare => 2,
                };
                let limited = if until.is_some() { LIMITED } else { 0 };
                self.number(entitlement | refused | limited);
                if let Some(until) = until {
                    self.difference(until, self.last);
                }
            }
            Order::Idle { cpu } => {
                self.buffer.push(tag::IDLE);
                self.cpu(cpu);
                self.number(refused);
            }
        }
    }

    pub(crate) fn set(&mut self, cpus: &CpuSet) {
        self.number(cpus.len() as u64);
        cpus.iter().for_each(|cpu| self.cpu(cpu));
    }

    pub(crate) fn number(&mut self, mut value: u64) {
        loop {
            let byte = value.to_le_bytes()[0] & 0x7f;
            value >>= 7;
            if value == 0 {
                self.buffer.push(byte);
                return;
            }
            self.buffer.push(byte | 0x80);
        }
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.buffer.extend_from_slice(text.as_bytes());
    }

    fn entry_text(&mut self, text: &str) {
        self.text(&text[..text.floor_char_boundary(LONGEST_TEXT)]);
    }

    fn vcpu(&mut self, vcpu: VcpuId) {
        self.number(vcpu.slot() as u64);
    }

    fn cpu(&mut self, cpu: CpuId) {
        self.number(cpu.index() as u64);
    }

    fn time(&mut self, at: Time) {
        self.difference(at, self.last);
        self.last = at;
    }

    fn promise(
        &mut self,
        reservation: Option<Reservation>,
        (exact, by): (bool, Enforcement),
        phase: Option<Span>,
    ) {
        self.number(reservation.map_or(NOTHING, |reservation| reservation.slice().ns()));
        self.number(reservation.map_or(NOTHING, |reservation| reservation.period().ns()));
        let by = (by as u64) << MECHANISM_SHIFT;
        self.number(u64::from(exact) | u64::from(phase.is_some()) << 1 | by);
        if let Some(phase) = phase {
            self.number(phase.ns());
        }
    }

    fn service(&mut self, service: &Service) {
        let Service { used, received, sent, requests, events } = *service;
        self.number(used.ns());
        for count in [received, sent, requests, events] {
            self.number(count.into());
        }
    }

    fn difference(&mut self, at: Time, from: Time) {
        self.signed(at.ns().wrapping_sub(from.ns()).cast_signed());
    }

    fn signed(&mut self, value: i64) {
        self.number(((value << 1) ^ (value >> 63)).cast_unsigned());
    }
}

fn record_tag(record: &Record) -> u8 {
    match record {
        Record::Joined { .. } => 1,
        Record::Promised { .. } => 2,
        Record::Left { .. } => 3,
        Record::Woke { .. } => 4,
        Record::Blocked { .. } => 5,
        Record::Ran { .. } => 6,
        Record::RangLate { .. } => 7,
        Record::Refused { .. } => 8,
        Record::Declined { .. } => 9,
        Record::Changed { .. } => 10,
        Record::Job { client: Some(_), .. } => tag::ANSWERED,
        Record::Job { task: None, .. } => 11,
        Record::Overhead { .. } => 12,
        Record::Ended { .. } => 13,
        Record::Paused { .. } => 14,
        Record::Served { .. } => 15,
        Record::Moved { .. } => 16,
        Record::Job { task: Some(_), .. } => 17,
        Record::Accounted { .. } => 18,
        Record::ClockSet { .. } => 19,
        Record::Slowed { .. } => 20,
        Record::Spun { .. } => 21,
        Record::Spent { .. } => 22,
        Record::Stopped { .. } => 23,
        Record::Elsewhere { .. } => 24,
        Record::Unfinished { .. } => 25,
        Record::ClientStarted { .. } => tag::CLIENT_STARTED,
        Record::Boosted { .. } => tag::BOOSTED,
        Record::OnCpu { .. } => 26,
        Record::Awoken { .. } => 27,
        Record::Halted { .. } => 28,
        Record::Lost { .. } => 29,
        Record::Counted { .. } => 30,
    }
}

/// Tags: the first byte of an encoded entry gives its kind. These are the tags of names, exchanges,
/// host threads, notes and checkpoints, and of the records of clients and boosts.
pub(crate) mod tag {
    pub(crate) const NAMED: u8 = 31;
    pub(crate) const JOINED: u8 = 32;
    pub(crate) const TERMS_CHANGED: u8 = 33;
    pub(crate) const LEFT: u8 = 34;
    pub(crate) const WOKE: u8 = 35;
    pub(crate) const BLOCKED: u8 = 36;
    pub(crate) const PAUSED: u8 = 37;
    pub(crate) const YIELDED: u8 = 38;
    pub(crate) const LIMIT_REACHED: u8 = 39;
    pub(crate) const ALARM_RANG: u8 = 40;
    pub(crate) const ALLOWED: u8 = 41;
    pub(crate) const PASSED: u8 = 42;
    pub(crate) const ENDED: u8 = 43;
    pub(crate) const TOLD_TASKS: u8 = 44;
    pub(crate) const TOLD_PENDING: u8 = 45;
    pub(crate) const SETTLED: u8 = 46;
    pub(crate) const CLOCK_SET: u8 = 47;
    pub(crate) const ANSWERED: u8 = 48;
    pub(crate) const CLIENT_STARTED: u8 = 49;
    pub(crate) const BOOSTED: u8 = 50;
    pub(crate) const NOTICED: u8 = 64;
    pub(crate) const MEASURED: u8 = 65;
    pub(crate) const RUN: u8 = 66;
    pub(crate) const IDLE: u8 = 67;
    pub(crate) const ALARM_SET: u8 = 68;
    pub(crate) const ALARM_OFF: u8 = 69;
    pub(crate) const DECLINED: u8 = 70;
    pub(crate) const HOST_THREAD: u8 = 96;
    pub(crate) const NOTE: u8 = 97;
    pub(crate) const CHECK: u8 = 98;
}

fn fact_tag(fact: &KeptFact) -> u8 {
    match fact {
        Fact::Joined(..) => tag::JOINED,
        Fact::TermsChanged(..) => tag::TERMS_CHANGED,
        Fact::Left(_) => tag::LEFT,
        Fact::Woke(_) => tag::WOKE,
        Fact::Blocked(_) => tag::BLOCKED,
        Fact::Paused(_) => tag::PAUSED,
        Fact::Yielded(_) => tag::YIELDED,
        Fact::LimitReached(_) => tag::LIMIT_REACHED,
        Fact::AlarmRang(_) => tag::ALARM_RANG,
        Fact::Allowed(_) => tag::ALLOWED,
        Fact::Told(_, told) => match **told {
            VcpuHint::Tasks(_) => tag::TOLD_TASKS,
            VcpuHint::Pending(_) => tag::TOLD_PENDING,
        },
        Fact::ClockSet(_) => tag::CLOCK_SET,
        Fact::Passed => tag::PASSED,
        Fact::Settled => tag::SETTLED,
        Fact::Ended => tag::ENDED,
    }
}

/// Initial value of an FNV-1a checksum.
pub(crate) const CHECKSUM_START: u64 = 0xcbf2_9ce4_8422_2325;

/// Extends an FNV-1a checksum of 64 bits by these bytes.
pub(crate) fn checksum(sum: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(sum, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
