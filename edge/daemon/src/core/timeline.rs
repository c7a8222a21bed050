//! Timeline of the last 15 s for the web page: which vCPUs ran on which CPUs. The timeline consists
//! of columns, each of which covers a short interval.
//!
//! The page draws columns of pixels. So the daemon sends sums for each interval. The number of sums
//! does not depend on the number of context switches.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use slackline_control::{Timeline, TimelineColumn};
use slackline_trace::{HostThread, HostThreadId, Record, Sink};
use slackline_units::{CpuId, Span, Time};

/// Length of time that a column of the timeline covers.
const STEP: Span = Span::from_ms(20);

/// Maximum number of columns that the timeline keeps. Together they cover 15 s.
const KEPT: usize = 750;

/// Maximum number of vCPU names in the timeline. When this number is reached, the timeline drops
/// all columns, and the names of vCPUs that no longer have a thread.
const MOST_NAMES: usize = 4_096;

/// Number that stands for all threads that are not threads of vCPUs.
const OTHERS: u32 = 0;

/// Sums of the CPU time of vCPUs and other threads on each CPU, in columns of equal length.
#[derive(Debug)]
pub(super) struct TimelineKeeper {
    cpus: Vec<u32>,
    names: Vec<String>,
    numbers: BTreeMap<String, u32>,
    threads: BTreeMap<HostThreadId, u32>,
    /// Number of the oldest column in `columns`.
    first: u64,
    columns: VecDeque<Column>,
    /// For each CPU, the time up to which its run intervals are in the columns.
    drawn: Vec<Time>,
}

/// Sums of one column of the timeline.
#[derive(Debug, Default)]
struct Column {
    ran: BTreeMap<(u32, u32), Span>,
    missed: BTreeMap<u32, u32>,
}

impl TimelineKeeper {
    pub(super) fn new(cpus: &[CpuId]) -> TimelineKeeper {
        let number = |cpu: &CpuId| u32::try_from(cpu.index()).unwrap_or(u32::MAX);
        TimelineKeeper {
            cpus: cpus.iter().map(number).collect(),
            names: vec!["other threads".into()],
            numbers: BTreeMap::new(),
            threads: BTreeMap::new(),
            first: 0,
            columns: VecDeque::new(),
            drawn: vec![Time::START; cpus.len()],
        }
    }

    /// Adds `count` missed deadlines of a vCPU to the column that covers `at`, the time at which
    /// the misses were found.
    pub(super) fn missed(&mut self, vcpu: &str, at: Time, count: u64) {
        let number = self.number(vcpu);
        let column = at.since(Time::START) / STEP;
        if let Some(column) = self.column(column) {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            let sum = column.missed.entry(number).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    /// Forgets the vCPUs of threads for which `is_live` returns false, because they are no longer
    /// recorded.
    pub(super) fn keep_threads(&mut self, is_live: impl Fn(HostThreadId) -> bool) {
        self.threads.retain(|&id, _| is_live(id));
    }

    /// Returns the columns that are complete at the time `now`, beginning with the column number
    /// `from`. VMs for which `may_see` returns false count as other threads.
    pub(super) fn answer(
        &self,
        from: u64,
        now: Time,
        may_see: impl Fn(&str) -> bool,
    ) -> Box<Timeline> {
        let is_seen: Vec<bool> = self.names.iter().map(|name| may_see(name)).collect();
        let shown = |number: u32| if is_seen[number as usize] { number } else { OTHERS };
        let end = now.since(Time::START) / STEP;
        let from = from.max(self.first).min(end);
        let columns = self.columns.iter().zip(self.first..end);
        let columns = columns.filter(|(_, number)| *number >= from).map(|(column, _)| {
            let mut ran: BTreeMap<(u32, u32), Span> = BTreeMap::new();
            for (&(cpu, vcpu), &used) in &column.ran {
                *ran.entry((cpu, shown(vcpu))).or_default() += used;
            }
            let ran = ran.into_iter().map(|((cpu, vcpu), used)| (cpu, vcpu, thousandths(used)));
            let missed = column.missed.iter().filter(|(vcpu, _)| is_seen[**vcpu as usize]);
            TimelineColumn {
                ran: ran.filter(|(_, _, part)| *part > 0).collect(),
                missed: missed.map(|(&vcpu, &count)| (vcpu, count)).collect(),
            }
        });
        let hidden = |(name, is_seen): (&String, &bool)| match is_seen {
            true => name.clone(),
            false => String::new(),
        };
        Box::new(Timeline {
            first: from,
            step_ns: STEP.ns(),
            cpus: self.cpus.clone(),
            vcpus: self.names.iter().zip(&is_seen).map(hidden).collect(),
            columns: columns.collect(),
        })
    }

    fn number(&mut self, vcpu: &str) -> u32 {
        if let Some(number) = self.numbers.get(vcpu) {
            return *number;
        }
        if self.names.len() >= MOST_NAMES {
            self.start_again();
        }
        let number = u32::try_from(self.names.len()).expect("the number of names is bounded");
        self.names.push(vcpu.to_owned());
        self.numbers.insert(vcpu.to_owned(), number);
        number
    }

    /// Drops all columns, and the names of vCPUs that no longer have a thread. If more than half of
    /// the maximum number of names still have threads, drops all names.
    fn start_again(&mut self) {
        self.first += self.columns.len() as u64;
        self.columns.clear();
        self.numbers.clear();
        let names = self.names.split_off(1);
        let threads = std::mem::take(&mut self.threads);
        let used: BTreeSet<u32> = threads.values().copied().collect();
        if used.len() > MOST_NAMES / 2 {
            return;
        }
        for (id, number) in threads {
            // The first name, which stands for other threads, is not in `names`.
            let name = (number as usize).checked_sub(1).and_then(|index| names.get(index));
            let number = name.map_or(OTHERS, |name| self.number(name));
            self.threads.insert(id, number);
        }
    }

    /// Returns the timeline column with this number, and creates the column if it is new. Returns
    /// `None` if the column is too old to keep.
    fn column(&mut self, number: u64) -> Option<&mut Column> {
        let last = self.first + self.columns.len() as u64;
        if self.columns.is_empty() || number >= last + KEPT as u64 {
            self.columns.clear();
            self.first = number.max(self.first);
        }
        while self.first + self.columns.len() as u64 <= number {
            self.columns.push_back(Column::default());
            if self.columns.len() > KEPT {
                self.columns.pop_front();
                self.first += 1;
            }
        }
        let index = number.checked_sub(self.first)?;
        self.columns.get_mut(usize::try_from(index).ok()?)
    }

    /// Adds a run interval of a thread on a CPU. Run intervals that have not ended are added too.
    /// So only the part of an interval after [`drawn`](Self::drawn) is new and is added.
    pub(super) fn add(&mut self, (cpu, thread): (CpuId, HostThreadId), (from, to): (Time, Time)) {
        let Some(drawn) = self.drawn.get_mut(cpu.index()) else { return };
        let mut from = from.max(*drawn);
        *drawn = to.max(*drawn);
        let vcpu = self.threads.get(&thread).copied().unwrap_or(OTHERS);
        let cpu = u32::try_from(cpu.index()).unwrap_or(u32::MAX);
        while from < to {
            let column = from.since(Time::START) / STEP;
            let end = to.min(Time::START.after(STEP * (column + 1)));
            if let Some(column) = self.column(column) {
                *column.ran.entry((cpu, vcpu)).or_default() += end.since(from);
            }
            from = end;
        }
    }
}

fn thousandths(used: Span) -> u32 {
    let part = (used.ns().min(STEP.ns()) * 1_000 + STEP.ns() / 2) / STEP.ns();
    u32::try_from(part).expect("a part is at most the whole")
}

/// Sink that adds the threads and run intervals of recorded events to the timeline.
pub(super) struct TimelineSink<'a> {
    pub(super) keeper: &'a mut TimelineKeeper,
    /// Function that returns the name of a vCPU, or `None` if the vCPU is not known.
    pub(super) name: &'a dyn Fn(slackline_units::VcpuId) -> Option<String>,
}

impl Sink for TimelineSink<'_> {
    fn host_thread(&mut self, thread: &HostThread) {
        let name = thread.vcpu.and_then(|vcpu| (self.name)(vcpu));
        let number = name.map_or(OTHERS, |name| self.keeper.number(&name));
        self.keeper.threads.insert(thread.id, number);
    }

    fn record(&mut self, record: &Record) {
        if let Record::OnCpu { thread, cpu, from, to, .. } = *record {
            self.keeper.add((cpu, thread), (from, to));
        }
    }
}

#[cfg(test)]
mod tests {
    use slackline_trace::{HostThreadKind, OffCpu};
    use slackline_units::{DomId, VcpuId};

    use super::*;

    fn thread(number: u32, vcpu: Option<VcpuId>) -> HostThread {
        HostThread {
            at: Time::START,
            id: HostThreadId::new(number),
            kind: HostThreadKind::Vcpu,
            vcpu,
            tid: number,
            process: number,
            user: 0,
            name: String::new(),
            command: String::new(),
            vm: String::new(),
            group: String::new(),
        }
    }

    fn ran(keeper: &mut TimelineKeeper, number: u32, (from, to): (u64, u64)) {
        let at = |ms| Time::START.after(Span::from_ms(ms));
        let (thread, cpu, end) = (HostThreadId::new(number), CpuId::new(0), OffCpu::Unknown);
        let record = Record::OnCpu { thread, cpu, from: at(from), to: at(to), end };
        TimelineSink { keeper, name: &|_| None }.record(&record);
    }

    fn keeper() -> TimelineKeeper {
        let mut keeper = TimelineKeeper::new(&[CpuId::new(3)]);
        let web = VcpuId::new(0, DomId::new(1), 0);
        let name = |vcpu| (vcpu == web).then(|| "web.0".to_owned());
        let mut sink = TimelineSink { keeper: &mut keeper, name: &name };
        sink.host_thread(&thread(1, Some(web)));
        sink.host_thread(&thread(2, None));
        keeper
    }

    #[test]
    fn timeline_divides_run_interval_among_all_covered_columns() {
        let mut keeper = keeper();
        ran(&mut keeper, 1, (15, 45));
        ran(&mut keeper, 2, (45, 50));
        let now = Time::START.after(Span::from_ms(60));
        let shown = keeper.answer(0, now, |_| true);
        assert_eq!((shown.cpus[..].to_vec(), shown.vcpus[1].as_str()), (vec![3], "web.0"));
        let ran: Vec<_> = shown.columns.iter().map(|column| column.ran.clone()).collect();
        assert_eq!(ran, [vec![(0, 1, 250)], vec![(0, 1, 1_000)], vec![(0, 0, 250), (0, 1, 250)]]);
        assert_eq!(keeper.answer(2, now, |_| true).columns.len(), 1);
        // The last column is not complete yet.
        let before = Time::START.after(Span::from_ms(59));
        assert_eq!(keeper.answer(0, before, |_| true).columns.len(), 2);
    }

    #[test]
    fn timeline_omits_names_and_deadline_misses_of_hidden_vcpus() {
        let mut keeper = keeper();
        ran(&mut keeper, 1, (0, 20));
        keeper.missed("web.0", Time::START.after(Span::from_ms(5)), 2);
        let now = Time::START.after(Span::from_ms(20));
        assert_eq!(keeper.answer(0, now, |_| true).columns[0].missed, [(1, 2)]);
        let hidden = keeper.answer(0, now, |name| name != "web.0");
        assert_eq!(hidden.columns[0].ran, [(0, 0, 1_000)]);
        assert!(hidden.columns[0].missed.is_empty() && hidden.vcpus[1].is_empty());
    }

    #[test]
    fn running_vcpus_keep_their_names_when_the_timeline_starts_again() {
        let mut keeper = keeper();
        for number in 0..MOST_NAMES {
            keeper.missed(&format!("vm-{number}.0"), Time::START, 1);
        }
        assert!(keeper.names.len() < MOST_NAMES, "the timeline has started again");
        ran(&mut keeper, 1, (1_000, 1_020));
        ran(&mut keeper, 2, (1_020, 1_040));
        let shown = keeper.answer(50, Time::START.after(Span::from_ms(1_040)), |_| true);
        let ran = shown.columns.iter().map(|column| column.ran[0].1 as usize);
        let names: Vec<&str> = ran.map(|vcpu| shown.vcpus[vcpu].as_str()).collect();
        assert_eq!(names, ["web.0", "other threads"]);
    }

    #[test]
    fn timeline_keeps_only_the_columns_of_the_last_15_seconds() {
        let mut keeper = keeper();
        for second in [0, 10, 20, 10_000] {
            ran(&mut keeper, 1, (second * 1_000, second * 1_000 + 20));
            assert!(keeper.columns.len() <= KEPT);
        }
        let now = Time::START.after(Span::from_secs(10_001));
        let shown = keeper.answer(0, now, |_| true);
        assert_eq!((shown.first, shown.columns[0].ran.len()), (500_000, 1));
        // A run interval that lies in the drawn time is ignored.
        ran(&mut keeper, 1, (0, 20));
        assert_eq!(keeper.answer(0, now, |_| true).first, 500_000);
    }
}
