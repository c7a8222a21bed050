//! Kernel accounting of the managed CPUs: the times of each CPU, as the kernel counts them. These
//! are the idle time, the steal time that a hypervisor below the host took, and the time that the
//! dispatcher used. The remaining time was used by vCPUs or by other programs.
//!
//! `/proc/stat` counts in ticks of 10 ms. Over a long time the sums are exact. The value for a
//! single second is wrong by at most one tick. A CPU whose values cannot be read gets no entry.

use slackline_trace::{Entry, Record};
use slackline_units::{CpuId, Span, Time};

use slackline_linux::sys::{Tid, clock_tick, monotonic, thread_cpu_time};

/// Minimum interval between two entries about a CPU in the accounting.
const EVERY: Span = Span::from_secs(1);

/// Minimum interval between readings of `/proc/stat`, as a multiple of the time that the last
/// reading took. With many CPUs and interrupts a reading takes milliseconds, and the reading thread
/// can delay a vCPU.
const RARELY: u64 = 1_000;

/// Kernel accounting of the managed CPUs.
#[derive(Default)]
pub(crate) struct Books {
    tick: Span,
    cpus: Vec<CpuBooks>,
    next: Time,
}

struct CpuBooks {
    /// Number of the CPU in the run.
    cpu: CpuId,
    /// Number of the CPU in the kernel.
    real: CpuId,
    /// Thread id of the CPU's dispatcher.
    dispatcher: Tid,
    /// Time and counts of the latest entry of the CPU. `None` before the first entry.
    last: Option<(Time, CpuTimeCounts)>,
}

/// Accounting of a CPU from the boot of the host until now, as the kernel counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CpuTimeCounts {
    idle: Span,
    stolen: Span,
    dispatching: Span,
}

impl Books {
    /// Creates the accounting of managed CPUs. Each item is the CPU's number in the run, its number
    /// in the kernel, and the thread id of its dispatcher.
    pub(crate) fn new(cpus: impl Iterator<Item = (CpuId, CpuId, Tid)>) -> Books {
        let books = |(cpu, real, dispatcher)| CpuBooks { cpu, real, dispatcher, last: None };
        let cpus = cpus.map(books);
        Books { tick: clock_tick(), cpus: cpus.collect(), next: Time::START }
    }

    /// Appends an entry for each CPU if the last entries are old enough. Appends nothing before the
    /// run has begun.
    pub(crate) fn tell(&mut self, now: Time, into: &mut Vec<Entry>) {
        if now > Time::START && now >= self.next {
            let begun = monotonic();
            self.tell_now(now, into);
            self.next = now + EVERY.max(monotonic().since(begun) * RARELY);
        }
    }

    /// Appends an entry for each CPU immediately, however recent the last entries are.
    pub(crate) fn tell_now(&mut self, now: Time, into: &mut Vec<Entry>) {
        let Ok(text) = std::fs::read_to_string("/proc/stat") else { return };
        for books in &mut self.cpus {
            let counted = counted(&text, books.real, self.tick);
            let Some((idle, stolen)) = counted else { continue };
            let Ok(dispatching) = thread_cpu_time(books.dispatcher) else { continue };
            let counts = CpuTimeCounts { idle, stolen, dispatching };
            into.push(Entry::Record(books.entry(now, counts)));
        }
    }
}

impl CpuBooks {
    /// Returns an entry for the time since the last entry about this CPU. The first entry about a
    /// CPU covers no time.
    fn entry(&mut self, now: Time, counts: CpuTimeCounts) -> Record {
        let (from, before) = self.last.unwrap_or((now, counts));
        // The kernel may correct its count of idle time downwards a little.
        let [idle, stolen, dispatching] = [
            (counts.idle, before.idle),
            (counts.stolen, before.stolen),
            (counts.dispatching, before.dispatching),
        ]
        .map(|(now, before)| now.left_after(before));
        let kept = CpuTimeCounts {
            idle: counts.idle.max(before.idle),
            stolen: counts.stolen.max(before.stolen),
            dispatching: counts.dispatching.max(before.dispatching),
        };
        self.last = Some((now, kept));
        Record::Accounted { cpu: self.cpu, from, to: now, idle, stolen, dispatching }
    }
}

/// Reads the idle and the stolen time of a CPU from the text of `/proc/stat`. `None` if the CPU is
/// offline or the kernel counts no stolen time.
fn counted(text: &str, cpu: CpuId, tick: Span) -> Option<(Span, Span)> {
    let name = format!("cpu{}", cpu.index());
    let mut lines = text.lines().map(str::split_ascii_whitespace);
    let line = lines.find_map(|mut line| (line.next() == Some(&*name)).then_some(line))?;
    // Columns: user nice system idle iowait irq softirq steal guest guest_nice. Kernels before
    // 2.6.11 have no steal.
    let ticks: Vec<u64> = line.map_while(|word| word.parse().ok()).collect();
    let (idle, waiting) = (ticks.get(3)?, ticks.get(4)?);
    Some((tick * (idle + waiting), tick * *ticks.get(7)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  30 1 2 400 5 0 7 80 9 0\n\
                        cpu0 10 1 1 100 2 0 3 40 9 0\n\
                        cpu1 10 0 1 200 3 0 4 40 0 0\n\
                        cpu10 0 0 0 100 0 0 0 0 0 0\nintr 12 13 14\n";

    #[test]
    fn idle_and_stolen_time_per_cpu_come_from_proc_stat() {
        let read = |text, cpu| counted(text, CpuId::new(cpu), Span::from_ms(10));
        let ms = Span::from_ms;
        assert_eq!(read(STAT, 0), Some((ms(1_020), ms(400))));
        assert_eq!(read(STAT, 1), Some((ms(2_030), ms(400))));
        assert_eq!(read(STAT, 10), Some((ms(1_000), ms(0))));
        assert_eq!(read(STAT, 2), None, "CPU 2 is offline");
        assert_eq!(read("cpu0 1 2 3\n", 0), None);
    }

    #[test]
    fn cpu_time_accounting_records_are_contiguous_and_never_negative() {
        let ms = Span::from_ms;
        let (cpu, real) = (CpuId::new(0), CpuId::new(7));
        let dispatcher = Tid::new(1).expect("thread ids are positive");
        let mut books = CpuBooks { cpu, real, dispatcher, last: None };
        let mut told = |at, idle, stolen, dispatching| {
            let [idle, stolen, dispatching] = [idle, stolen, dispatching].map(ms);
            let counts = CpuTimeCounts { idle, stolen, dispatching };
            match books.entry(Time::START + ms(at), counts) {
                Record::Accounted { from, to, idle, stolen, dispatching, .. } => {
                    ((from, to - from), [idle, stolen, dispatching])
                }
                record => panic!("{record:?}"),
            }
        };
        let at = |at| Time::START + ms(at);
        assert_eq!(told(5, 1_000, 400, 3), ((at(5), ms(0)), [ms(0); 3]), "first entry is empty");
        assert_eq!(told(1_005, 1_200, 410, 7), ((at(5), ms(1_000)), [ms(200), ms(10), ms(4)]));
        assert_eq!(told(2_005, 1_190, 410, 8), ((at(1_005), ms(1_000)), [ms(0), ms(0), ms(1)]));
        assert_eq!(told(3_005, 1_230, 420, 8), ((at(2_005), ms(1_000)), [ms(30), ms(10), ms(0)]));
    }
}
