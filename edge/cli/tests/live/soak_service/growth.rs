//! Detection of processes whose use of resources grows over time.

use std::fmt;
use std::fs;
use std::time::Duration;

/// Resources that a process uses at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Resident memory in KiB.
    pub kib: u64,
    pub descriptors: u64,
    pub threads: u64,
}

impl Needs {
    /// Reads the resources that a process uses now. `None` if the process has ended.
    pub fn of(pid: i32) -> Option<Needs> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let number = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
        Some(Needs {
            kib: number("VmRSS:")?,
            descriptors: u64::try_from(descriptors).ok()?,
            threads: number("Threads:")?,
        })
    }

    fn most(self, other: Needs) -> Needs {
        Needs {
            kib: self.kib.max(other.kib),
            descriptors: self.descriptors.max(other.descriptors),
            threads: self.threads.max(other.threads),
        }
    }

    /// Returns the resources that are higher than in `before` by more than the load can explain.
    fn more_than(self, before: Needs) -> Vec<String> {
        let mut more = Vec::new();
        let mut compare = |what: &str, before: u64, now: u64, allowed: u64| {
            if now > before + allowed {
                more.push(format!("{what} from {before} to {now}"));
            }
        };
        compare("KiB", before.kib, self.kib, (before.kib / 20).max(1024));
        compare("descriptors", before.descriptors, self.descriptors, 6);
        compare("threads", before.threads, self.threads, 0);
        more
    }
}

impl fmt::Display for Needs {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} KiB {} fds {} threads", self.kib, self.descriptors, self.threads)
    }
}

/// Samples of the resources that one process used during its life.
pub struct Growth {
    pub pid: i32,
    /// Age of the process at each sample, with its resources.
    seen: Vec<(Duration, Needs)>,
}

/// Age of a process from which on its samples are used. A younger process still allocates what it
/// needs for its start.
const SETTLES: Duration = Duration::from_secs(600);

/// Minimum time after [`SETTLES`] that samples must cover before growth can be detected.
const MIN_SAMPLED_TIME: Duration = Duration::from_secs(400);

impl Growth {
    pub fn new(pid: i32) -> Growth {
        Growth { pid, seen: Vec::new() }
    }

    pub fn note(&mut self, age: Duration, needs: Needs) {
        self.seen.push((age, needs));
    }

    /// Returns the resources whose maximum in the second half of the samples is higher than in the
    /// first half.
    pub fn grew(&self) -> Vec<String> {
        let settled: Vec<_> = self.seen.iter().filter(|(age, _)| *age >= SETTLES).collect();
        let (Some((first, _)), Some((last, _))) = (settled.first(), settled.last()) else {
            return Vec::new();
        };
        if *last - *first < MIN_SAMPLED_TIME {
            return Vec::new();
        }
        let middle = *first + (*last - *first) / 2;
        let most = |late: bool| {
            let half = settled.iter().filter(|(age, _)| (*age >= middle) == late);
            half.fold(Needs::default(), |most, (_, needs)| most.most(*needs))
        };
        most(true).more_than(most(false))
    }
}

#[test]
fn leak_check_reports_steady_resource_growth_but_not_variation() {
    let life = |needs: fn(u64) -> Needs| {
        let mut growth = Growth::new(1);
        (0..60).for_each(|half| growth.note(Duration::from_secs(half * 30), needs(half)));
        growth.grew()
    };
    const USUAL: Needs = Needs { kib: 20_000, descriptors: 50, threads: 5 };
    // The resources settle first, and then vary with the load.
    let steady = |half: u64| Needs {
        kib: USUAL.kib + if half < 20 { half * 500 } else { 10_000 },
        descriptors: USUAL.descriptors + half % 7 * 5,
        ..USUAL
    };
    assert_eq!(life(steady), Vec::<String>::new());
    assert_eq!(life(|half| Needs { kib: USUAL.kib + 80 * half, ..USUAL }).len(), 1);
    assert_eq!(life(|half| Needs { descriptors: 50 + half, ..USUAL }).len(), 1);
    assert_eq!(life(|half| Needs { threads: 5 + half / 40, ..USUAL }).len(), 1);
}
