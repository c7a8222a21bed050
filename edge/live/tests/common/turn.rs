//! Permission for live tests to run, one after the other. A test has either the whole host, or one
//! CPU while other tests have other CPUs. Live tests of the crate `slackline` use this file too.

use std::env;
use std::fs::File;

use slackline_linux::sys::online_cpus;
use slackline_units::CpuId;

/// Permission to schedule CPUs of this host. It ends when this value is dropped, also if the test
/// panics.
pub struct Turn {
    /// CPU that the test may schedule. If the test has all CPUs, it is the last CPU.
    pub cpu: CpuId,
    /// Locks on files in the folder for temporary files, which all test programs share.
    _locks: [File; 2],
}

impl Turn {
    /// Waits until no other live test runs. The test then has all CPUs.
    pub fn on_all_cpus() -> Turn {
        let queue = locked("queue");
        let host = locked("host");
        Turn { cpu: last_cpu(), _locks: [queue, host] }
    }

    /// Waits until a CPU is free and no test has all CPUs. The test then has that CPU.
    pub fn on_one_cpu() -> Turn {
        // A test that waits for all CPUs holds this lock, so tests that come later wait behind it.
        let queue = locked("queue");
        let host = lock_file("host");
        host.lock_shared().expect("a lock");
        drop(queue);
        let mut cpus: Vec<CpuId> = online_cpus().expect("CPUs").iter().collect();
        cpus.reverse();
        let files = cpus.iter().map(|cpu| (*cpu, lock_file(&format!("cpu{}", cpu.index()))));
        for (cpu, file) in files {
            if file.try_lock().is_ok() {
                return Turn { cpu, _locks: [host, file] };
            }
        }
        let cpu = last_cpu();
        Turn { cpu, _locks: [host, locked(&format!("cpu{}", cpu.index()))] }
    }
}

/// Returns the last CPU of this host.
pub fn last_cpu() -> CpuId {
    online_cpus().expect("CPUs").iter().last().expect("a CPU")
}

fn lock_file(name: &str) -> File {
    let name = format!("slackline-live-tests.{name}.lock");
    File::create(env::temp_dir().join(name)).expect("a lock")
}

fn locked(name: &str) -> File {
    let file = lock_file(name);
    file.lock().expect("a lock");
    file
}
