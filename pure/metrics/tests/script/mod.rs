//! Hand-written records of a run with a few vCPUs. Times are in microseconds.

#![allow(dead_code, unreachable_pub)]

use slackline_metrics::{Meter, OverTime, Summary, VcpuSummary};
use slackline_trace::{Entry, Header, Knowledge, RanEnd, Record, VcpuName};
use slackline_units::{CpuId, DomId, Enforcement, Reservation, Span, Time, VcpuId};

/// Builder for the records of a run.
pub struct Script {
    pub header: Header,
    pub entries: Vec<Entry>,
}

/// Returns the id of the vCPU in slot `slot`, the only vCPU of its domain.
pub const fn vcpu(slot: u32) -> VcpuId {
    VcpuId::new(slot, DomId::new(slot), 0)
}

pub fn us(us: u64) -> Span {
    Span::from_us(us)
}

fn at(us: u64) -> Time {
    Time::START + Span::from_us(us)
}

/// Returns the header of a run on two CPUs.
pub fn header() -> Header {
    Header {
        title: "a title".into(),
        machine: "sim".into(),
        policy: "edf".into(),
        parameters: String::new(),
        seed: 1,
        cpus: 2,
        groups: Vec::new(),
        dispatch: Span::ZERO,
        warmup: Span::ZERO,
        knows: Knowledge::ALL,
        scenario: String::new(),
    }
}

impl Script {
    /// Starts a run on two CPUs with vCPUs of these names. All of them join at the start of the
    /// run.
    pub fn new(names: &[&str]) -> Script {
        let script = Script { header: header(), entries: Vec::new() };
        let named = (0..).zip(names).fold(script, |script, (slot, name)| script.named(slot, name));
        (0..).zip(names).fold(named, |script, (slot, _)| script.joined(slot, 0))
    }

    /// Names a vCPU from the time of the last record on. The part of the name before a dot is the
    /// name of its domain.
    pub fn named(self, slot: u32, name: &str) -> Script {
        self.named_in(slot, name, name.split('.').next().unwrap_or(name))
    }

    /// Gives a vCPU the name `name` and its domain the name `domain`, from the time of the last
    /// record on.
    pub fn named_in(mut self, slot: u32, name: &str, domain: &str) -> Script {
        let (name, domain) = (name.to_string(), domain.to_string());
        let named = VcpuName { at: self.now(), vcpu: vcpu(slot), name, domain };
        self.entries.push(Entry::Named(named));
        self
    }

    pub fn joined(self, slot: u32, us: u64) -> Script {
        self.with(Record::Joined { at: at(us), vcpu: vcpu(slot) })
    }

    /// Returns the time of the last record.
    fn now(&self) -> Time {
        let when = |entry: &Entry| match entry {
            Entry::Record(record) => record.when().1,
            _ => Time::START,
        };
        self.entries.iter().map(when).max().unwrap_or(Time::START)
    }

    pub fn warmup(mut self, us: u64) -> Script {
        self.header.warmup = Span::from_us(us);
        self
    }

    pub fn machine(mut self, machine: &str) -> Script {
        self.header.machine = machine.into();
        self
    }

    pub fn knows(mut self, sleep: bool, stretches: bool) -> Script {
        self.header.knows = Knowledge { sleep, stretches, resolution: Span::ZERO, overhead: true };
        self
    }

    /// Makes the run a run of a live host, which records only the total CPU time of scheduling.
    pub fn knows_overhead_in_all(mut self) -> Script {
        self.header.knows.overhead = false;
        self
    }

    pub fn with(mut self, record: Record) -> Script {
        self.entries.push(Entry::Record(record));
        self
    }

    pub fn promised(self, slot: u32, us: u64, slice: u64, period: u64) -> Script {
        self.promise(slot, us, Some((slice, period)), false)
    }

    pub fn exactly(self, slot: u32, us: u64, slice: u64, period: u64) -> Script {
        self.promise(slot, us, Some((slice, period)), true)
    }

    pub fn promise(self, slot: u32, us: u64, of: Option<(u64, u64)>, exact: bool) -> Script {
        let span = Span::from_us;
        let reservation = of.map(|(slice, period)| {
            Reservation::new(span(slice), span(period)).expect("a slice fits in its period")
        });
        self.with(Record::Promised {
            at: at(us),
            vcpu: vcpu(slot),
            reservation,
            exact,
            phase: None,
            by: Enforcement::Dispatcher,
        })
    }

    pub fn woke(self, slot: u32, us: u64) -> Script {
        self.with(Record::Woke { at: at(us), vcpu: vcpu(slot) })
    }

    pub fn blocked(self, slot: u32, us: u64) -> Script {
        self.with(Record::Blocked { at: at(us), vcpu: vcpu(slot) })
    }

    pub fn left(self, slot: u32, us: u64) -> Script {
        self.with(Record::Left { at: at(us), vcpu: vcpu(slot) })
    }

    /// Adds a run interval on the first CPU, on reserved time.
    pub fn ran(self, slot: u32, from: u64, to: u64) -> Script {
        self.ran_late(slot, from, to, 0)
    }

    /// Adds a run interval on the first CPU, on reserved time. The last `late` us are overrun.
    pub fn ran_late(self, slot: u32, from: u64, to: u64, late: u64) -> Script {
        self.used(slot, 0, (from, to, to - from), (late, true))
    }

    /// Adds a run interval on the first CPU, on slack.
    pub fn ran_spare(self, slot: u32, from: u64, to: u64) -> Script {
        self.used(slot, 0, (from, to, to - from), (0, false))
    }

    pub fn used(
        self,
        slot: u32,
        cpu: usize,
        (from, to, used): (u64, u64, u64),
        (late, due): (u64, bool),
    ) -> Script {
        self.with(Record::Ran {
            vcpu: vcpu(slot),
            cpu: CpuId::new(cpu),
            from: at(from),
            to: at(to),
            used: Span::from_us(used),
            granted: None,
            late: Span::from_us(late),
            end: RanEnd::Limit,
            due,
        })
    }

    pub fn job(self, slot: u32, released: u64, deadline: u64, done: u64) -> Script {
        let (released, deadline, done) = (at(released), at(deadline), at(done));
        let (vcpu, task, client) = (vcpu(slot), None, None);
        self.with(Record::Job { vcpu, task, client, released, deadline, done })
    }

    /// Ends the run and returns its summary.
    pub fn ended(self, us: u64) -> Summary {
        let Script { header, entries } = self.with(Record::Ended { at: at(us) });
        let mut meter = Meter::new(&header);
        entries.iter().for_each(|entry| entry.pass_to(&mut meter));
        meter.view().expect("every record names a known vCPU")
    }

    /// Ends the run and returns the CPU time of each vCPU in each window.
    pub fn over_time(self, window: Span, us: u64) -> Vec<(String, Vec<Span>)> {
        let Script { entries, .. } = self.with(Record::Ended { at: at(us) });
        let mut over_time = OverTime::new(window);
        entries.iter().for_each(|entry| entry.pass_to(&mut over_time));
        over_time.finish().expect("every record names a known vCPU")
    }

    /// Ends the run and returns the summary of the first vCPU.
    pub fn first_ended(self, us: u64) -> VcpuSummary {
        self.ended(us).vcpus.remove(0)
    }
}

/// Summary of two seconds with five vCPUs. Two vCPUs are web servers that block, and the second of
/// them is starved once. The other vCPUs are a work-conserving batch job, a player that has jobs
/// and a hard limit, and a VM without a reservation.
pub fn web_servers() -> Summary {
    let mut script = Script::new(&["web.0", "web.1", "batch", "player", "idle"]);
    script = script.promised(0, 0, 2_000, 10_000).promised(1, 0, 2_000, 10_000);
    script = script.promised(2, 0, 30_000, 100_000).exactly(3, 0, 4_000, 20_000);
    script = script.promise(4, 0, None, false).woke(2, 0).woke(3, 0);
    for start in (0..2_000_000_u64).step_by(20_000) {
        // The web servers run first on both CPUs, except once after a wait of 12 ms.
        script = script.woke(0, start).ran(0, start, start + 2_000).blocked(0, start + 2_000);
        let delay = if start == 1_000_000 { 12_000 } else { start / 20_000 };
        let from = start + delay;
        script = script.woke(1, start).used(1, 1, (from, from + 1_900, 1_900), (0, true));
        script = script.blocked(1, from + 1_900);
        script =
            script.ran(3, start + 2_000, start + 6_001).job(3, start, start + 6_000, start + 6_001);
        script = script.ran(2, start + 6_001, start + 11_000).ran_spare(
            2,
            start + 11_000,
            start + 20_000,
        );
    }
    let late = |at, late| Record::RangLate {
        at: Time::START + us(at),
        cpu: CpuId::new(0),
        late: us(late),
    };
    let changed =
        Record::Changed { due: Time::START + us(70), at: Time::START + us(82), vcpu: vcpu(2) };
    let overhead = Record::Overhead { cpu: CpuId::new(0), used: us(1_234) };
    script = script.with(late(1, 3)).with(late(2, 61)).with(changed).with(overhead);
    script = script.knows_overhead_in_all();
    script.ended(2_000_000)
}
