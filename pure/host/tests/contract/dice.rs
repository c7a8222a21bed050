//! Random draws for scripts of the contract suite. Everything random in a run derives from numbers
//! in its script.

use slackline_policy::{Field, Groups, Kind, Level, RawValue, Topology, Values};
use slackline_units::{CpuId, CpuSet};
use slackline_units::{
    CpuShare, DomId, Pending, Span, TASKS, Task, TaskId, Tasks, Urgency, VcpuHint,
};

/// A stream of random numbers from a seed (SplitMix64: Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `values`, which must not be zero. Small numbers are a little
    /// likelier, which does not matter for tests.
    pub(crate) fn below(&mut self, values: u64) -> u64 {
        self.roll() % values
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64))
            .expect("an index below a length fits `usize`")]
    }

    /// Draws a topology of `cpus` CPUs: sockets, and within them nodes, caches and cores. The CPUs
    /// are numbered in random order.
    pub(crate) fn topology(&mut self, cpus: usize) -> Topology {
        let labels: Vec<[u64; Level::ALL.len()]> =
            (0..cpus).map(|_| std::array::from_fn(|_| self.below(4) / 3)).collect();
        let group = |level: Level, cpu: usize| -> CpuSet {
            let of = |cpu: usize| &labels[cpu][level as usize..];
            (0..cpus).filter(|&other| of(other) == of(cpu)).map(CpuId::new).collect()
        };
        let groups = |level| {
            let is_first = |&cpu: &usize| group(level, cpu).first() == Some(CpuId::new(cpu));
            (0..cpus).filter(is_first).map(|cpu| group(level, cpu)).collect()
        };
        let [cores, caches, nodes, sockets] = Level::ALL.map(groups);
        let groups = Groups { cores, caches, nodes, sockets };
        Topology::new(cpus, &groups).expect("nested groups form a topology")
    }

    /// Draws a duration from `least` to `most`: a round number, plus up to 998 ns in half of the
    /// draws.
    pub(crate) fn span(&mut self, least: Span, most: Span) -> Span {
        let round = self.pick(&[200, 500, 1_000, 2_000, 3_000, 5_000, 10_000, 20_000, 50_000]);
        let off = if self.below(2) == 0 { 0 } else { self.below(999) };
        (Span::from_us(round) + Span::from_ns(off)).clamp(least, most)
    }

    /// Draws parameters for a table of fields. Each field with a default is left out in half of the
    /// draws.
    pub(crate) fn values(&mut self, fields: &'static [Field]) -> Values {
        let mut given = Vec::new();
        for field in fields {
            if field.default.is_none() || self.below(2) == 0 {
                given.push((field.name, self.value(field.kind)));
            }
        }
        let given = given.iter().map(|(name, drawn)| (*name, drawn.given()));
        Values::read(fields, given).expect("each value was drawn from its field's kind")
    }

    /// Draws any hint that a guest or a driver domain can send, likely or not.
    pub(crate) fn told(&mut self) -> VcpuHint {
        if self.below(3) == 0 {
            let domain = DomId::new(self.small(12));
            let [items, asked] = [(); 2].map(|()| self.pick(&[0, 1, 17, u32::MAX]));
            let tasks = self.some_tasks();
            return VcpuHint::Pending(Pending { domain, items, asked, tasks });
        }
        let (runnable, blocked) = (self.tasks(), self.tasks());
        VcpuHint::Tasks(Tasks { runnable, blocked, woken: self.some_tasks() })
    }

    fn some_tasks(&mut self) -> [Option<TaskId>; TASKS] {
        [(); TASKS].map(|()| (self.below(2) == 0).then(|| self.task()))
    }

    fn tasks(&mut self) -> [Option<Task>; TASKS] {
        let count = self.below(TASKS as u64 + 1);
        let mut left = 0..count;
        [(); TASKS].map(|()| {
            left.next()?;
            let urgency = Urgency(self.pick(&[0, 99, 100, 120, 140, u8::MAX]));
            Some(Task { id: self.task(), urgency })
        })
    }

    fn task(&mut self) -> TaskId {
        TaskId::new(self.pick(&[0, 1, 2, 3, 5, 8, u16::MAX]))
    }

    fn small(&mut self, values: u64) -> u32 {
        u32::try_from(self.below(values)).expect("the bound fits `u32`")
    }

    fn value(&mut self, kind: Kind) -> Drawn {
        match kind {
            Kind::Span { least, most } => Drawn::Text(self.span(least, most).to_string()),
            Kind::MaybeSpan => {
                let some = self.below(4) > 0;
                let span = self.span(Span::ZERO, Span::MAX).to_string();
                Drawn::Text(if some { span } else { "none".to_owned() })
            }
            Kind::Share { most } => {
                let any = u32::try_from(self.below(u64::from(most.ppm()) + 1))
                    .expect("at most the largest share in ppm");
                let ppm = self.pick(&[0, most.ppm() / 20, any]);
                Drawn::Text(CpuShare::from_ppm(ppm).to_string())
            }
            Kind::Cap { most } => {
                let any = u32::try_from(1 + self.below(u64::from(most.ppm())))
                    .expect("at most the largest cap in ppm");
                let cap = CpuShare::from_ppm(any).to_string();
                Drawn::Text(if self.below(2) == 0 { "none".to_owned() } else { cap })
            }
            Kind::Weight => Drawn::Number(self.pick(&[1, 2, 3, 128, 256, 65_535]).to_string()),
            Kind::Whole { least, most } => {
                let number = self.pick(&[least, 1, 2, 10, 20, 1_000, most]);
                Drawn::Number(number.clamp(least, most).to_string())
            }
            Kind::Flag => Drawn::Flag(self.below(2) == 0),
            Kind::Choice(words) => Drawn::Text(self.pick(words).to_string()),
        }
    }
}

enum Drawn {
    Text(String),
    Number(String),
    Flag(bool),
}

impl Drawn {
    fn given(&self) -> RawValue<'_> {
        match self {
            Drawn::Text(text) => RawValue::Text(text),
            Drawn::Number(text) => RawValue::Number(text),
            Drawn::Flag(flag) => RawValue::Flag(*flag),
        }
    }
}
