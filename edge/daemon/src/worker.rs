//! The worker: a process without rights that computes predictions from a recording.
//!
//! A recording contains whatever the host did, and a simulation of it can take any amount of time
//! and memory. So the daemon itself neither parses nor simulates a recording for a prediction. The
//! worker is another process of this program, with an unprivileged user, no capabilities, no files,
//! `SCHED_IDLE`, and at most 256 MiB of memory. It reads a recording and then questions from its
//! standard input, and writes answers to its standard output. When its input ends, the worker ends.
//!
//! A worker that may use several CPUs has a second thread for simulations. A process without rights
//! cannot start threads, so this thread is started first and then drops its own rights.
//!
//! Each message is a frame: the length of the message as eight bytes in little-endian order, and
//! then the bytes of the message.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::sync::{Arc, Barrier};
use std::thread::available_parallelism;

use rayon::ThreadPoolBuilder;
use rustix::process::{Resource, Rlimit, setrlimit};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use slackline_control::{Problem, WhatIf};
use slackline_linux::sys::{Scheduling, SchedulingOf, own_tid, set_scheduling};

use crate::front::give_up_rights_of_thread;
use crate::people::front_user;

/// Maximum size of the address space of a worker, in bytes.
pub(crate) const MOST_MEMORY: u64 = 256 << 20;

/// Maximum number of threads of a worker, including the main thread. A prediction consists of at
/// least two independent simulations.
const MOST_THREADS: usize = 2;

/// Maximum CPU time of a worker, in seconds. The daemon ends a worker much earlier, so this limit
/// matters only if the daemon has died.
const MOST_SECONDS: u64 = 30;

/// Question that the daemon sends to a worker about its recording.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerQuestion {
    /// Question of the caller about other parameters, policies or neighbours.
    pub asked: WhatIf,
    /// Names of the VMs whose numbers may be in the answer. VMs that the question adds are always
    /// allowed. If this field is `None`, all VMs are allowed.
    pub own: Option<Vec<String>>,
}

/// Prediction as a JSON object.
pub type PredictionFields = BTreeMap<String, Value>;

/// System calls that a worker may make: the calls for its pipes, for its memory, and for its end.
const LEFT: [libc::c_long; 25] = [
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_read,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Runs a worker. Drops all rights, loads the recording, and answers questions until the input
/// ends.
#[must_use]
pub fn main<T>(
    load: impl FnOnce(Vec<u8>) -> Result<T, Problem>,
    answer: impl FnMut(&T, &WorkerQuestion) -> Result<PredictionFields, Problem>,
) -> ExitCode {
    let worked = restrict().and_then(|()| work((io::stdin(), io::stdout()), load, answer));
    match worked {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(report(&error)),
    }
}

/// Permanently drops all rights of this process, and limits its memory and CPU time. Starts the
/// second thread for [`run_both`].
fn restrict() -> io::Result<()> {
    set_scheduling(own_tid(), &SchedulingOf { class: Scheduling::Idle, reset_on_fork: false })?;
    rustix::process::nice(19)?;
    // If this write fails, the kernel may kill another program before the worker when memory is
    // short.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    let rights = LeftRights { user: front_user()?, calls: calls()? };
    start_threads(rights.clone())?;
    give_up_rights_of_thread(rights.user)?;
    let at_most = |most| Rlimit { current: Some(most), maximum: Some(most) };
    setrlimit(Resource::As, at_most(MOST_MEMORY))?;
    setrlimit(Resource::Cpu, at_most(MOST_SECONDS))?;
    setrlimit(Resource::Fsize, at_most(0))?;
    // Files that are open stay open.
    setrlimit(Resource::Nofile, at_most(0))?;
    apply_filter(&rights.calls).map_err(io::Error::other)
}

/// Rights that each thread of a worker keeps.
#[derive(Clone)]
struct LeftRights {
    /// Ids of the user and the group that the thread gets if it runs as root.
    user: Option<(u32, u32)>,
    /// Filter for system calls.
    calls: BpfProgram,
}

/// Returns the filter that allows only the system calls in [`LEFT`].
fn calls() -> io::Result<BpfProgram> {
    let rules: BTreeMap<_, _> = LEFT.into_iter().map(|call| (call, Vec::new())).collect();
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let architecture = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, architecture);
    filter.and_then(TryInto::try_into).map_err(io::Error::other)
}

/// Starts the threads for simulations, and waits until they have dropped their rights. The calling
/// thread becomes one of these threads and keeps its rights.
fn start_threads(rights: LeftRights) -> io::Result<()> {
    let threads = available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    let is_restricted = Arc::new(Barrier::new(threads));
    let all_restricted = Arc::clone(&is_restricted);
    let begin = move |_| {
        let given_up = give_up_rights_of_thread(rights.user);
        let filtered =
            given_up.and_then(|()| apply_filter(&rights.calls).map_err(io::Error::other));
        if let Err(error) = filtered {
            std::process::exit(i32::from(report(&error)));
        }
        is_restricted.wait();
    };
    let pool = ThreadPoolBuilder::new().num_threads(threads).use_current_thread();
    pool.start_handler(begin).build_global().map_err(io::Error::other)?;
    all_restricted.wait();
    Ok(())
}

/// Runs two tasks at the same time, or one after the other if the worker has only one thread.
pub fn run_both(one: &mut (dyn FnMut() + Send), other: &mut (dyn FnMut() + Send)) {
    rayon::join(one, other);
}

/// Writes the reason why the worker ends to standard error. Returns the exit code.
fn report(error: &io::Error) -> u8 {
    // If stderr is closed, the exit code still reports the failure.
    let _ = io::stderr().write_all(format!("slackline worker: {error}\n").as_bytes());
    3
}

fn work<T>(
    (mut input, mut output): (impl Read, impl Write),
    load: impl FnOnce(Vec<u8>) -> Result<T, Problem>,
    mut answer: impl FnMut(&T, &WorkerQuestion) -> Result<PredictionFields, Problem>,
) -> io::Result<()> {
    let Some(recording) = read_frame(&mut input)? else { return Ok(()) };
    let loaded = load(recording);
    while let Some(question) = read_frame(&mut input)? {
        let question: WorkerQuestion = serde_json::from_slice(&question)?;
        let answer = match &loaded {
            Ok(loaded) => answer(loaded, &question),
            Err(problem) => Err(problem.clone()),
        };
        output.write_all(&frame(&serde_json::to_vec(&answer)?))?;
        output.flush()?;
    }
    Ok(())
}

/// Returns the frame of a message: its length, followed by the message.
pub(crate) fn frame(message: &[u8]) -> Vec<u8> {
    let mut frame = (message.len() as u64).to_le_bytes().to_vec();
    frame.extend_from_slice(message);
    frame
}

/// Reads a frame and returns its message. `None` at the end of the input.
fn read_frame(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 8];
    match input.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    // The daemon sent this length. A message above the memory limit ends this process.
    let length = usize::try_from(u64::from_le_bytes(length)).map_err(io::Error::other)?;
    let mut message = vec![0; length];
    input.read_exact(&mut message)?;
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use slackline_control::Kind;

    use super::*;

    #[test]
    fn whatif_worker_loads_recording_once_and_answers_each_question() {
        let question = WorkerQuestion { asked: WhatIf::default(), own: None };
        let question = frame(&serde_json::to_vec(&question).unwrap());
        let input = [frame(b"recording"), question.clone(), question].concat();
        let mut output = Vec::new();
        let mut count = 0;
        let answer = |loaded: &usize, _: &WorkerQuestion| {
            count += 1;
            match count {
                1 => Ok(PredictionFields::from([("length".into(), (*loaded).into())])),
                _ => Err(Problem::new(Kind::NoRoom, "no")),
            }
        };
        work((&*input, &mut output), |bytes| Ok(bytes.len()), answer).unwrap();
        let mut output = &*output;
        let first = read_frame(&mut output).unwrap().unwrap();
        assert_eq!(first, br#"{"Ok":{"length":9}}"#);
        let second = read_frame(&mut output).unwrap().unwrap();
        let second: Result<PredictionFields, Problem> = serde_json::from_slice(&second).unwrap();
        assert_eq!(second.unwrap_err().kind, Kind::NoRoom);
        assert_eq!(read_frame(&mut output).unwrap(), None);
    }
}
