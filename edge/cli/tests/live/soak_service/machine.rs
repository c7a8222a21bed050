//! A machine as the soak has it: threads that are vCPUs, or a process without such, which work a
//! little and rest.

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

/// Says to a process how many vCPUs it has, none for a process without such, and whether it rests.
const SHAPE: &str = "SLACKLINE_SOAK_SHAPE";

/// What a vCPU computes at a time, and how long it rests then.
const WORK: Span = Span::from_us(500);
const REST: Duration = Duration::from_millis(50);

/// What a machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// How many vCPU threads it has; none is a process of which all is one target.
    pub vcpus: u16,
    /// Whether it never rests.
    pub spins: bool,
}

pub struct Machine {
    child: Child,
    shape: Shape,
    /// The threads that work.
    pub workers: Vec<Tid>,
    before: Vec<State>,
}

/// The body of a test that is a machine where it is told to be one, and else does nothing.
pub fn play() {
    if !env::var(PART).is_ok_and(|part| part == "machine") {
        return;
    }
    let shape = env::var(SHAPE).expect("it is told");
    let (vcpus, spins) = shape.split_once(' ').expect("two words");
    let (vcpus, spins) = (vcpus.parse::<u16>().expect("a number"), spins == "true");
    let work = move || loop {
        let began = thread_cpu_time(own_tid()).expect("our own");
        while spins || thread_cpu_time(own_tid()).expect("our own") < began + WORK {
            std::hint::spin_loop();
        }
        thread::park_timeout(REST);
    };
    for number in 0..vcpus.max(1) {
        Builder::new().name(name_of(vcpus, number)).spawn(work).expect("a thread");
    }
    // Until whoever started this is gone.
    let _ = std::io::stdin().read_line(&mut String::new());
    std::process::exit(0);
}

/// What a thread that works is called, as QEMU names those of vCPUs.
fn name_of(vcpus: u16, number: u16) -> String {
    if vcpus > 0 { format!("CPU {number}/TCG") } else { format!("worker {number}") }
}

impl Machine {
    /// Starts one that goes by this name, if it has vCPUs.
    pub fn start(name: &str, shape: Shape) -> Machine {
        let mut command = Command::new(env::current_exe().expect("this program"));
        if shape.vcpus > 0 {
            command.arg0("qemu-system-x86_64");
        }
        // Read in pairs, as QEMU does, it has the name; the test's own reader passes over it.
        command.args([
            "--exact",
            "soak_service::part_machine",
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
        // Nice to whoever else is on this machine, and not what threads usually are.
        let now = states(machine.pid()).expect("the machine is there");
        for (place, state) in now.iter().enumerate() {
            let class = Scheduling::Other { nice: 10 + i32::try_from(place % 9).expect("a few") };
            set_scheduling(state.tid, &SchedulingOf { class, reset_on_fork: false }).expect("ours");
        }
        machine.before = states(machine.pid()).expect("the machine is there");
        machine
    }

    /// By number.
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

    /// What is reserved: the workers, or all of the process where those are no vCPUs.
    pub fn vcpus(&self) -> u16 {
        self.shape.vcpus.max(1)
    }

    /// How it is not as it was before anybody touched it; nothing if it is.
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

    /// Whether every thread that is to be held may only run there.
    pub fn is_on(&self, cpus: CpuSet) -> bool {
        let now = states(self.pid()).unwrap_or_default();
        let is_held = |state: &&State| self.shape.vcpus == 0 || self.workers.contains(&state.tid);
        !now.is_empty() && now.iter().filter(is_held).all(|state| state.affinity == cpus)
    }

    /// The CPU time of those who work.
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
