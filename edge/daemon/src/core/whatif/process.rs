//! Worker process. This module starts a worker, asks it questions within a time limit, and ends it.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use slackline_control::{Kind, Problem};

use super::super::front_process::FrontCommand as WorkerCommand;
use crate::worker::MOST_MEMORY;

/// Maximum length of a worker's answer, in bytes. With this limit, the line that contains the
/// answer is short enough for the link to the front process.
const LONGEST_ANSWER: usize = 3 << 20;

/// Maximum number of bytes that are kept of a worker's output on standard error.
const LONGEST_REPORT: usize = 4096;

/// Interval of checks whether the caller has disconnected.
const LOOK: Duration = Duration::from_millis(100);

/// Stack size of the thread that waits for a killed process, in bytes.
const STACK: usize = 64 << 10;

/// A worker process. Dropping it kills the process.
#[derive(Debug)]
pub(super) struct Worker {
    /// Child process of the worker. `None` after the drop has begun.
    child: Option<Child>,
    input: ChildStdin,
    output: ChildStdout,
    report: ChildStderr,
    reported: Vec<u8>,
}

/// Reason why a worker has not answered.
#[derive(Debug)]
pub(super) enum WorkerFailure {
    /// There is no recording for the worker, for this reason.
    NoRecording(Problem),
    /// The caller of the question has disconnected.
    Cancelled,
    /// The time limit has passed without an answer.
    Hung,
    /// The answer has more than [`LONGEST_ANSWER`] bytes.
    TooLong,
    /// The process has ended without an answer. The text is its output on standard error.
    Ended(ExitStatus, String),
    /// The process cannot be started, or its pipes cannot be used.
    Io(io::Error),
}

impl From<io::Error> for WorkerFailure {
    fn from(error: io::Error) -> WorkerFailure {
        WorkerFailure::Io(error)
    }
}

impl Worker {
    /// Starts a worker process, and returns without waiting until the worker is ready.
    pub(super) fn start(command: &WorkerCommand) -> io::Result<Worker> {
        let mut child = Command::new(&command.program)
            .args(&command.arguments)
            .env_clear()
            // By default, glibc reserves 64 MiB of address space for the worker's second thread.
            .env("MALLOC_ARENA_MAX", "1")
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(output), Some(report)) = pipes else {
            return Err(io::Error::other("a pipe of the worker is missing"));
        };
        for pipe in [input.as_fd(), output.as_fd(), report.as_fd()] {
            let flags = rustix::fs::fcntl_getfl(pipe)?;
            rustix::fs::fcntl_setfl(pipe, flags | OFlags::NONBLOCK)?;
        }
        Ok(Worker { child: Some(child), input, output, report, reported: Vec::new() })
    }

    /// Sends `message`, which consists of frames, and returns the next frame of the worker.
    ///
    /// If this fails, the process is killed, and the call returns after the process has ended. So a
    /// principal never has two processes.
    pub(super) fn ask(
        &mut self,
        message: &[u8],
        until: Instant,
        is_cancelled: &AtomicBool,
    ) -> Result<Vec<u8>, WorkerFailure> {
        let answer = self.exchange(message, until, is_cancelled);
        if let (Err(_), Some(child)) = (&answer, &mut self.child) {
            let _ = child.kill();
            let _ = child.wait();
        }
        answer
    }

    fn exchange(
        &mut self,
        message: &[u8],
        until: Instant,
        is_cancelled: &AtomicBool,
    ) -> Result<Vec<u8>, WorkerFailure> {
        let (mut unsent, mut answer) = (message, Vec::new());
        loop {
            if is_cancelled.load(Ordering::Relaxed) {
                return Err(WorkerFailure::Cancelled);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(WorkerFailure::Hung);
            }
            self.wait(!unsent.is_empty(), left.min(LOOK))?;
            if !self.send(&mut unsent)? || self.receive(&mut answer)? {
                return Err(self.ended());
            }
            if let Some(answer) = whole(&answer)? {
                return Ok(answer);
            }
        }
    }

    /// Waits until a pipe to or from the worker is ready, at most for the time `most`.
    fn wait(&self, has_unsent: bool, most: Duration) -> io::Result<()> {
        let mut pipes = vec![PollFd::new(&self.output, PollFlags::IN)];
        if has_unsent {
            pipes.push(PollFd::new(&self.input, PollFlags::OUT));
        }
        let most = Timespec::try_from(most).map_err(io::Error::other)?;
        match poll(&mut pipes, Some(&most)) {
            Err(rustix::io::Errno::INTR) | Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends as many bytes as the pipe to the worker accepts now. Returns false if the worker has
    /// closed the pipe.
    fn send(&mut self, unsent: &mut &[u8]) -> io::Result<bool> {
        while !unsent.is_empty() {
            match self.input.write(unsent) {
                Ok(count) => *unsent = &unsent[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Reads all bytes of the worker's answer that have arrived. Returns true if the worker has
    /// closed its output.
    fn receive(&mut self, answer: &mut Vec<u8>) -> Result<bool, WorkerFailure> {
        self.read_report();
        let mut bytes = [0; 64 * 1024];
        loop {
            match self.output.read(&mut bytes) {
                Ok(0) => return Ok(whole(answer)?.is_none()),
                Ok(count) => answer.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
            if answer.len() > LONGEST_ANSWER + 8 {
                return Err(WorkerFailure::TooLong);
            }
        }
    }

    /// Reads the worker's standard error, so that the worker never blocks on a full pipe.
    fn read_report(&mut self) {
        let mut bytes = [0; LONGEST_REPORT];
        while let Ok(count @ 1..) = self.report.read(&mut bytes) {
            let left = LONGEST_REPORT - self.reported.len();
            self.reported.extend_from_slice(&bytes[..count.min(left)]);
        }
    }

    /// Returns the exit status and output of the process, which has closed its pipes. If the
    /// process does not end within 100 ms, returns `Hung`.
    fn ended(&mut self) -> WorkerFailure {
        for _ in 0..50 {
            let status = self.child.as_mut().map(Child::try_wait);
            if let Some(Ok(Some(status))) = status {
                self.read_report();
                let report = String::from_utf8_lossy(&self.reported).into_owned();
                return WorkerFailure::Ended(status, report);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        WorkerFailure::Hung
    }
}

impl Drop for Worker {
    /// Kills the process. A killed process of class `SCHED_IDLE` does not end until it gets CPU
    /// time, so a separate thread waits for its end.
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let _ = child.kill();
        if matches!(child.try_wait(), Ok(None)) {
            let reap = move || drop(child.wait());
            let reaper = Builder::new().name("slackline-reaper".into()).stack_size(STACK);
            // Without a thread, the process stays a zombie until the daemon ends.
            let _ = reaper.spawn(reap);
        }
    }
}

/// Returns the message in a frame. `None` if only a part of the frame has arrived.
fn whole(frame: &[u8]) -> Result<Option<Vec<u8>>, WorkerFailure> {
    let Some((length, rest)) = frame.split_first_chunk::<8>() else { return Ok(None) };
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if length > LONGEST_ANSWER {
        return Err(WorkerFailure::TooLong);
    }
    Ok(rest.get(..length).map(<[u8]>::to_vec))
}

impl WorkerFailure {
    /// Returns the refusal that the caller gets for this failure. `within` is the time limit.
    pub(super) fn problem(&self, within: Duration) -> Problem {
        let shorter = "ask about a shorter time, such as `\"since\": \"5s\"`";
        match self {
            WorkerFailure::NoRecording(problem) => problem.clone(),
            WorkerFailure::Cancelled => Problem::new(Kind::NotNow, "the caller has disconnected"),
            WorkerFailure::Hung => {
                let detail = format!("the prediction was not ready within {} s", within.as_secs());
                Problem::new(Kind::NotNow, detail).hinting(shorter)
            }
            WorkerFailure::TooLong => {
                let detail = format!("the prediction has more than {LONGEST_ANSWER} bytes");
                Problem::new(Kind::NotNow, detail).hinting(shorter)
            }
            WorkerFailure::Ended(_, report) if report.contains("memory allocation") => {
                let most = MOST_MEMORY >> 20;
                let detail = format!("the prediction needs more than {most} MiB of memory");
                Problem::new(Kind::NotNow, detail).hinting(shorter)
            }
            WorkerFailure::Ended(status, report) => {
                let line = report.lines().next().unwrap_or_default();
                let detail = format!("the process that predicts has ended: {status}: {line}");
                let detail = detail.trim_end_matches([':', ' ']).to_owned();
                let is_killed = status.signal().is_some_and(|signal| {
                    [libc::SIGKILL, libc::SIGTERM, libc::SIGXCPU].contains(&signal)
                });
                let kind = if is_killed { Kind::NotNow } else { Kind::Bug };
                Problem::new(kind, detail).hinting("ask again")
            }
            WorkerFailure::Io(error) => {
                let detail = format!("cannot use the process that predicts: {error}");
                Problem::new(Kind::NotNow, detail).hinting("ask again in a second")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::Pid;
    use rustix::thread::{CpuSet, sched_setaffinity};
    use slackline_linux::sys::{Scheduling, SchedulingOf, Tid, set_scheduling};

    use super::*;
    use crate::worker::frame;

    fn shell(script: &str) -> Worker {
        let arguments = vec!["-c".into(), script.into()];
        Worker::start(&WorkerCommand { program: "/bin/sh".into(), arguments }).unwrap()
    }

    fn ask(script: &str, within: Duration) -> Result<Vec<u8>, WorkerFailure> {
        let message = frame(&vec![7; 1 << 20]);
        shell(script).ask(&message, Instant::now() + within, &AtomicBool::new(false))
    }

    fn problem(script: &str) -> Problem {
        let within = Duration::from_secs(10);
        ask(script, within).expect_err("no answer").problem(within)
    }

    #[test]
    fn answer_of_whatif_worker_arrives_even_if_stderr_is_full() {
        let script = "head -c 1048584 >/dev/null; head -c 300000 /dev/zero >&2; \
                      printf '\\003\\000\\000\\000\\000\\000\\000\\000yes'";
        assert_eq!(ask(script, Duration::from_secs(10)).unwrap(), b"yes");
    }

    #[test]
    fn error_about_killed_whatif_worker_includes_signal_or_memory_limit() {
        let killed = problem("kill -KILL $$");
        assert_eq!(killed.kind, Kind::NotNow);
        assert!(killed.detail.contains("signal: 9"), "{}", killed.detail);
        let script = "echo 'memory allocation of 5 bytes failed' >&2; kill -ABRT $$";
        let full = problem(script);
        assert_eq!(full.kind, Kind::NotNow);
        assert!(full.detail.ends_with("more than 256 MiB of memory"), "{}", full.detail);
        let panicked = problem("echo 'a bug' >&2; exit 101");
        assert_eq!(panicked.kind, Kind::Bug);
        assert!(panicked.detail.ends_with("exit status: 101: a bug"), "{}", panicked.detail);
    }

    #[test]
    fn whatif_worker_that_hangs_is_killed_at_its_time_limit() {
        let within = Duration::from_millis(300);
        let began = Instant::now();
        // The worker reads nothing, answers nothing, or closes its pipes.
        for script in ["sleep 60", "cat >/dev/null; sleep 60", "exec <&- >&-; sleep 60"] {
            let failure = ask(script, within).expect_err("no answer");
            assert!(matches!(failure, WorkerFailure::Hung), "{script}: {failure:?}");
        }
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    /// Process that is killed when this value is dropped at the end of a test.
    struct Spinner(Child);

    impl Drop for Spinner {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Binds a process to CPU 0.
    fn bind(child: &Child) -> Tid {
        let pid = i32::try_from(child.id()).unwrap();
        let mut cpus = CpuSet::new();
        cpus.set(0);
        sched_setaffinity(Pid::from_raw(pid), &cpus).unwrap();
        Tid::new(pid).unwrap()
    }

    #[test]
    fn drop_of_whatif_handle_does_not_wait_for_starved_worker() {
        // Freeing 150 MB takes the worker some milliseconds of CPU time, which it does not get.
        let script = "x=$(head -c 150000000 /dev/zero | tr '\\000' a); \
                      printf '\\003\\000\\000\\000\\000\\000\\000\\000yes'; read y";
        let mut worker = shell(script);
        let until = Instant::now() + Duration::from_secs(60);
        let answer = worker.ask(b"", until, &AtomicBool::new(false));
        assert_eq!(answer.unwrap(), b"yes");
        let idle = SchedulingOf { class: Scheduling::Idle, reset_on_fork: false };
        set_scheduling(bind(worker.child.as_ref().unwrap()), &idle).unwrap();
        let spin = Command::new("/bin/sh").args(["-c", "while :; do :; done"]).spawn();
        let spinner = Spinner(spin.unwrap());
        bind(&spinner.0);
        std::thread::sleep(Duration::from_millis(100));
        let began = Instant::now();
        drop(worker);
        let took = began.elapsed();
        assert!(took < Duration::from_millis(100), "{took:?}");
    }

    #[test]
    fn whatif_worker_with_overlong_answer_or_departed_caller_is_killed() {
        let within = Duration::from_secs(10);
        let script = "cat >/dev/null & head -c 9000000 /dev/urandom | tr '\\000-\\377' 'a'";
        assert!(matches!(ask(script, within), Err(WorkerFailure::TooLong)));
        let gone = AtomicBool::new(true);
        let asked = shell("sleep 60").ask(b"", Instant::now() + within, &gone);
        assert!(matches!(asked, Err(WorkerFailure::Cancelled)));
    }
}
