//! A fake VM of the soak test: it has threads named like vCPUs, or is a plain process without such
//! threads. The threads alternate between short work and sleep.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::{self, Builder};
use std::time::Duration;

use slackline_linux::sys::{
    Scheduling, SchedulingOf, Tid, die_with_us, own_tid, set_scheduling, thread_cpu_time,
};
use slackline_linux::thread::threads_of;
use slackline_units::{CpuSet, Span};

use crate::common::live::{PART, State, groups_left, states, wait_until};

/// Environment variable with the number of vCPUs (zero for a plain process), and a flag that makes
/// the threads compute all the time.
const SHAPE: &str = "SLACKLINE_SOAK_SHAPE";

/// CPU time of one burst of work. The thread sleeps for [`REST`] after it.
const WORK: Span = Span::from_us(500);
const REST: Duration = Duration::from_millis(50);

/// Number of threads and kind of work of a fake VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of vCPU threads. Zero for a process that has one reservation as a whole.
    pub vcpus: u16,
    /// True if the threads compute all the time and never sleep.
    pub spins: bool,
}

pub struct Machine {
    child: Child,
    shape: Shape,
    /// Worker threads of the fake VM, in the order of their vCPU numbers.
    pub workers: Vec<Tid>,
    before: Vec<State>,
}

/// Runs as the fake VM, if a test has started this program as the fake VM. Returns at once in other
/// processes.
pub fn play() {
    if !env::var(PART).is_ok_and(|part| part == "machine") {
        return;
    }
    let shape = env::var(SHAPE).expect("the test sets the variable");
    let (vcpus, spins) = shape.split_once(' ').expect("two words");
    let (vcpus, spins) = (vcpus.parse::<u16>().expect("a number"), spins == "true");
    let work = move || loop {
        let began = thread_cpu_time(own_tid()).expect("the clock of this thread");
        while spins || thread_cpu_time(own_tid()).expect("the clock of this thread") < began + WORK
        {
            std::hint::spin_loop();
        }
        thread::park_timeout(REST);
    };
    for number in 0..vcpus.max(1) {
        Builder::new().name(name_of(vcpus, number)).spawn(work).expect("a thread");
    }
    // The process ends with its parent.
    let _ = std::io::stdin().read_line(&mut String::new());
    std::process::exit(0);
}

/// Returns the name of a worker thread. vCPU threads are named like QEMU's.
fn name_of(vcpus: u16, number: u16) -> String {
    if vcpus > 0 { format!("CPU {number}/TCG") } else { format!("worker {number}") }
}

impl Machine {
    /// Starts a fake VM. If it has vCPUs, `name` is the name of the VM.
    pub fn start(name: &str, shape: Shape) -> Machine {
        let mut command = Command::new(env::current_exe().expect("this program"));
        if shape.vcpus > 0 {
            command.arg0("qemu-system-x86_64");
        }
        // QEMU parses its arguments in pairs, and so would find the name here. The parser of the
        // test harness takes `-name` as the value of `--skip`.
        command.args([
            "--exact",
            "soak_service::entry_point_of_helper_vm",
            "--nocapture",
            "--skip",
            "-name",
            name,
        ]);
        command.env(PART, "machine").env(SHAPE, format!("{} {}", shape.vcpus, shape.spins));
        die_with_us(&mut command);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let child = child.expect("this program");
        let mut machine = Machine { child, shape, workers: Vec::new(), before: Vec::new() };
        wait_until("the machine to work", || {
            machine.workers = machine.threads_that_work();
            machine.workers.len() == usize::from(machine.vcpus())
        });
        // A high nice value spares other programs, and is unusual enough to be recognized.
        let now = states(machine.pid()).expect("the machine runs");
        for (place, state) in now.iter().enumerate() {
            let class =
                Scheduling::Other { nice: 10 + i32::try_from(place % 9).expect("a small number") };
            set_scheduling(state.tid, &SchedulingOf { class, reset_on_fork: false })
                .expect("root may do this");
        }
        machine.before = states(machine.pid()).expect("the machine runs");
        machine
    }

    /// Returns the worker threads in the order of their numbers.
    fn threads_that_work(&self) -> Vec<Tid> {
        let pid = self.pid();
        let threads = threads_of(Tid::new(pid).expect("a process id")).unwrap_or_default();
        let is_called = |tid: Tid, name: &str| {
            let comm = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"));
            comm.is_ok_and(|comm| comm.trim_end() == name)
        };
        let numbers = (0..self.vcpus()).map(|number| name_of(self.shape.vcpus, number));
        let thread_of = |name: String| threads.iter().copied().find(|&tid| is_called(tid, &name));
        numbers.filter_map(thread_of).collect()
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// Returns the number of vCPUs that the reservation needs: one for each worker, or one for a
    /// plain process.
    pub fn vcpus(&self) -> u16 {
        self.shape.vcpus.max(1)
    }

    /// Returns descriptions of the differences between the current state of the VM's threads and
    /// their state before the VM had a reservation. Empty if there are none.
    pub fn differs(&self) -> Vec<String> {
        let now = states(self.pid()).unwrap_or_default();
        let mut differs: Vec<String> = now
            .iter()
            .zip(&self.before)
            .filter(|(now, before)| now != before)
            .map(|(now, before)| format!("{now:?} was {before:?}"))
            .collect();
        if now.len() != self.before.len() {
            differs.push(format!("{} threads, and {} before", now.len(), self.before.len()));
        }
        let tids: Vec<Tid> = now.iter().map(|state| state.tid).collect();
        differs.extend(groups_left(&tids));
        differs
    }

    /// Returns true if every thread that a reservation schedules is pinned to these CPUs.
    pub fn is_on(&self, cpus: CpuSet) -> bool {
        let now = states(self.pid()).unwrap_or_default();
        let is_held = |state: &&State| self.shape.vcpus == 0 || self.workers.contains(&state.tid);
        !now.is_empty() && now.iter().filter(is_held).all(|state| state.affinity == cpus)
    }

    /// Returns the CPU time that the workers have used.
    pub fn used(&self) -> Span {
        let each = self.workers.iter().filter_map(|&tid| thread_cpu_time(tid).ok());
        each.fold(Span::ZERO, |sum, used| sum + used)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
