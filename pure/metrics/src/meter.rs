//! The fold: records in, a summary out.

use slackline_trace::{Header, Record, Sink};
use slackline_units::{CpuId, Span, Time, VcpuId};

use crate::distribution::Tally;
use crate::promise::{Promised, Ran};
use crate::split::Stretch;
use crate::vcpu::VcpuMeter;
use crate::{CpuSummary, Summary};

/// Takes the records of a run as they come and keeps what the summary needs: sums and histograms,
/// whose size does not depend on how long the run is.
///
/// Panics on a record of a vCPU or a CPU that the header does not have.
#[derive(Debug)]
pub struct Meter {
    header: Header,
    warmup: Time,
    /// The time of the last record.
    now: Time,
    /// By slot.
    vcpus: Vec<VcpuMeter>,
    cpus: Vec<CpuMeter>,
    timer_lateness: Tally,
    changes: Tally,
    declined: u64,
    refused: u64,
}

/// What is kept of one CPU.
#[derive(Clone, Copy, Debug, Default)]
struct CpuMeter {
    due: Span,
    spare: Span,
    overhead: Option<Span>,
    switches: u64,
    /// Who ran last, and until when.
    last: Option<(VcpuId, Time)>,
}

impl Meter {
    /// A meter for the run that this header is of.
    #[must_use]
    pub fn new(header: &Header) -> Meter {
        let slots = header.vcpus.iter().map(|vcpu| vcpu.id.slot() + 1).max().unwrap_or(0);
        Meter {
            header: header.clone(),
            warmup: Time::START.after(header.warmup),
            now: Time::START,
            vcpus: (0..slots).map(|_| VcpuMeter::new(header)).collect(),
            cpus: vec![CpuMeter::default(); header.cpus],
            timer_lateness: Tally::default(),
            changes: Tally::default(),
            declined: 0,
            refused: 0,
        }
    }

    /// What the run amounted to. A run whose end was not recorded ends with its last record.
    #[must_use]
    pub fn finish(mut self) -> Summary {
        let end = self.now;
        self.vcpus.iter_mut().for_each(|vcpu| vcpu.over(end));
        let length = end.since(self.warmup);
        let cpus = self.cpus.iter().enumerate();
        let cpus = cpus.map(|(index, cpu)| cpu.summary(CpuId::new(index), length)).collect();
        // Names are in the order of the header, rows in that of the ids.
        let mut names: Vec<Option<(VcpuId, &str)>> = vec![None; self.vcpus.len()];
        for vcpu in &self.header.vcpus {
            names[vcpu.id.slot()] = Some((vcpu.id, &vcpu.name));
        }
        let named = self.vcpus.into_iter().zip(names);
        let rows = named.filter_map(|(vcpu, name)| name.map(|(id, name)| vcpu.finish(id, name)));
        let vcpus = rows.flatten().collect();
        Summary {
            title: self.header.title,
            machine: self.header.machine,
            policy: self.header.policy,
            seed: self.header.seed,
            length,
            vcpus,
            cpus,
            timer_lateness: self.timer_lateness.distribution(),
            changes: self.changes.distribution(),
            knows: self.header.knows,
            declined: self.declined,
            refused: self.refused,
        }
    }

    #[inline]
    fn at(&mut self, at: Time) {
        self.now = self.now.max(at);
    }

    #[inline]
    fn vcpu(&mut self, vcpu: VcpuId) -> &mut VcpuMeter {
        match self.vcpus.get_mut(vcpu.slot()) {
            Some(meter) => meter,
            None => panic!("{vcpu} is in the records but not in the header"),
        }
    }

    #[inline]
    fn cpu(&mut self, cpu: CpuId) -> &mut CpuMeter {
        match self.cpus.get_mut(cpu.index()) {
            Some(meter) => meter,
            None => panic!("{cpu} is in the records but not in the header"),
        }
    }

    #[inline]
    fn ran(&mut self, vcpu: VcpuId, cpu: CpuId, ran: Ran) {
        let Stretch { from, to, .. } = ran.stretch;
        let is_measured = from >= self.warmup;
        let meter = self.cpu(cpu);
        let is_switch = meter.last != Some((vcpu, from));
        meter.last = Some((vcpu, to));
        meter.switches += u64::from(is_switch && is_measured);
        let used = self.vcpu(vcpu).ran(ran, cpu, is_switch);
        let meter = self.cpu(cpu);
        *(if ran.due { &mut meter.due } else { &mut meter.spare }) += used;
        self.at(to);
    }

    /// The records that are rare.
    fn seldom(&mut self, record: &Record) {
        match *record {
            Record::Joined { at, vcpu } => {
                self.at(at);
                self.vcpu(vcpu).joined(at);
            }
            Record::Promised { at, vcpu, reservation, exact } => {
                self.at(at);
                self.vcpu(vcpu).promised(Promised { at, reservation, exact });
            }
            Record::Left { at, vcpu } => {
                self.at(at);
                self.vcpu(vcpu).over(at);
            }
            Record::RangLate { at, late, .. } => {
                self.at(at);
                if at >= self.warmup {
                    self.timer_lateness.add(late);
                }
            }
            Record::Refused { at, .. } => {
                self.at(at);
                self.refused += u64::from(at >= self.warmup);
            }
            Record::Declined { at, .. } => {
                self.at(at);
                self.declined += u64::from(at >= self.warmup);
            }
            Record::Changed { due, at, .. } => {
                self.at(at);
                if due >= self.warmup {
                    self.changes.add(at.since(due));
                }
            }
            Record::Job { vcpu, released, deadline, done, .. } => {
                self.at(done);
                self.vcpu(vcpu).job(released, deadline, done);
            }
            Record::Overhead { cpu, used } => {
                let overhead = &mut self.cpu(cpu).overhead;
                *overhead = Some(overhead.unwrap_or_default() + used);
            }
            Record::Moved { at, vcpu, bytes } => {
                self.at(at);
                self.vcpu(vcpu).moved(at, bytes);
            }
            Record::Served { at, .. } | Record::Ended { at } => {
                self.at(at);
            }
            Record::Woke { .. }
            | Record::Blocked { .. }
            | Record::Paused { .. }
            | Record::Ran { .. } => {}
        }
    }
}

impl Sink for Meter {
    #[inline]
    fn record(&mut self, record: &Record) {
        match *record {
            Record::Woke { at, vcpu } => {
                self.at(at);
                self.vcpu(vcpu).woke(at);
            }
            Record::Blocked { at, vcpu } | Record::Paused { at, vcpu } => {
                self.at(at);
                self.vcpu(vcpu).blocked(at);
            }
            Record::Ran { vcpu, cpu, from, to, used, late, due, .. } => {
                let stretch = Stretch { from, to, used };
                self.ran(vcpu, cpu, Ran { stretch, late, due });
            }
            _ => self.seldom(record),
        }
    }
}

impl CpuMeter {
    fn summary(&self, cpu: CpuId, length: Span) -> CpuSummary {
        let busy = self.due + self.spare;
        CpuSummary {
            cpu,
            busy,
            due: self.due,
            spare: self.spare,
            idle: length.left_after(busy),
            overhead: self.overhead,
            switches: self.switches,
        }
    }
}
