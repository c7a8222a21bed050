//! Kernel services for single threads, as safe calls. This module has the only unsafe code of the
//! crate.
//!
//! The functions of this module make single system calls: they make no decisions, keep no state and
//! do not retry. Errors are those of the kernel, unless a function says otherwise. Threads are
//! identified by [`Tid`]. An id is valid only as long as the thread lives. So code that keeps an id
//! across a wait must keep a descriptor of the thread too.

#![allow(unsafe_code)]

mod child;
mod clock_error;
#[cfg(target_arch = "x86_64")]
mod old_kernel;
mod owner_rights;
mod peer;
mod perf;
mod pidfd;
mod ring;
mod tracefs;
mod trial;

pub use child::{WaitingCommand, die_with_us};
pub use clock_error::wall_clock_error;
#[cfg(target_arch = "x86_64")]
pub use old_kernel::{as_on_linux_4_4, only_with_calls, without_perf_events};
pub use owner_rights::OwnerRights;
pub use peer::peer_groups;
pub use perf::{
    CountTarget, TaskClock, Tell, open_all_hits, open_hits, open_holder, open_switches, open_use,
    share_ring, switch_off, switch_on,
};
pub use pidfd::{
    pidfd_of_process, pidfd_of_thread, signal_by, signal_group, signal_process, signal_process_by,
    signal_thread,
};
pub use ring::{Record, Ring};
pub use tracefs::{Tracepoint, TracepointError, tracepoint};
pub use trial::{kvm_api_version, try_bpf_map, try_kvm_machine};

use std::os::fd::{BorrowedFd, OwnedFd};
use std::{fmt, fs, io, mem};

use rustix::io::Errno;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Pid, test_kill_process};
use rustix::thread;
use slackline_units::{CpuId, CpuSet, Span, Time};

/// Id of a thread in the kernel, always above zero. The id of a process is that of its first
/// thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tid(i32);

impl Tid {
    /// Creates an id from a number. `None` if the number is not positive.
    #[must_use]
    pub const fn new(number: i32) -> Option<Tid> {
        if number > 0 { Some(Tid(number)) } else { None }
    }

    /// Returns the id as a number.
    #[must_use]
    pub const fn raw(self) -> i32 {
        self.0
    }

    fn pid(self) -> Pid {
        Pid::from_raw(self.0).expect("a thread id is above zero")
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)
    }
}

/// Returns the id of the calling thread.
#[must_use]
pub fn own_tid() -> Tid {
    Tid(thread::gettid().as_raw_nonzero().get())
}

/// Returns true if there is a thread with this id. A thread that has ended exists until it is
/// reaped.
#[must_use]
pub fn thread_exists(tid: Tid) -> bool {
    test_kill_process(tid.pid()) != Err(Errno::SRCH)
}

/// Reads a file of a thread in procfs, such as `stat`.
///
/// Files of a thread that no longer exists are not looked up. The kernel removes them in a loop
/// that can wait for another thread. If a real-time caller has taken the CPU from that thread, both
/// would wait forever.
///
/// # Errors
/// If there is no such thread, or the file cannot be read.
pub fn read_of_thread((process, tid): (Tid, Tid), file: &str) -> io::Result<Vec<u8>> {
    if !thread_exists(tid) {
        return Err(Errno::NOENT.into());
    }
    fs::read(format!("/proc/{process}/task/{tid}/{file}"))
}

/// Returns the process to which a thread belongs, as the id of its first thread.
///
/// # Errors
/// If there is no such thread, or procfs cannot be read.
pub fn process_of(tid: Tid) -> io::Result<Tid> {
    let status = read_of_thread((tid, tid), "status")?;
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line.and_then(|text| text.trim().parse().ok()).and_then(Tid::new).ok_or_else(malformed)
}

/// Scheduling class of a thread, with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduling {
    /// `SCHED_OTHER`: fair sharing of CPU time.
    Other {
        /// Nice value: -20 (highest priority) to 19 (lowest).
        nice: i32,
    },
    /// `SCHED_BATCH`: fair sharing, but the thread does not preempt another thread when it wakes.
    Batch {
        /// Nice value: -20 (highest priority) to 19 (lowest).
        nice: i32,
    },
    /// `SCHED_IDLE`: the thread runs only on CPU time that other threads do not use.
    Idle,
    /// `SCHED_FIFO`: real-time. Threads of one priority run in order of arrival.
    Fifo {
        /// Priority: 1 to 99, higher is more urgent.
        priority: u32,
    },
    /// `SCHED_RR`: real-time. Threads of one priority take turns.
    RoundRobin {
        /// Priority: 1 to 99, higher is more urgent.
        priority: u32,
    },
    /// `SCHED_DEADLINE`: reserved CPU time in every period.
    Deadline {
        /// CPU time in every period.
        runtime: Span,
        /// Time after the start of a period by which the thread must have received its CPU time.
        deadline: Span,
        /// Length of a period.
        period: Span,
    },
    /// A class that this program does not know, such as `SCHED_EXT`. Its values are recorded, so
    /// that the thread can be restored to the class.
    Unknown {
        /// The kernel's number of the class.
        policy: u32,
        /// Nice value at the time when the scheduling was read.
        nice: i32,
        /// Priority at the time when the scheduling was read.
        priority: u32,
    },
}

/// Scheduling of a thread, and of the threads that it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulingOf {
    /// Class of the thread itself.
    pub class: Scheduling,
    /// True if threads that the thread starts return to `SCHED_OTHER`.
    pub reset_on_fork: bool,
}

/// Returns the current scheduling of a thread.
///
/// The result lacks the timeslice length, which a `SCHED_OTHER` thread can set since Linux 6.12. A
/// thread whose scheduling is restored from the result gets the host's default length.
///
/// # Errors
/// `ESRCH` if there is no such thread.
pub fn get_scheduling(tid: Tid) -> io::Result<SchedulingOf> {
    let mut attr = no_attr();
    let size = attr.size;
    // SAFETY: the kernel writes at most `size` bytes, which is the size of `attr`. Every bit
    // pattern is a valid `sched_attr`.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_getattr, tid.0, &raw mut attr, size, NO_FLAGS) };
    check(result)?;
    let class = match i32::try_from(attr.sched_policy) {
        Ok(libc::SCHED_OTHER) => Scheduling::Other { nice: attr.sched_nice },
        Ok(libc::SCHED_BATCH) => Scheduling::Batch { nice: attr.sched_nice },
        Ok(libc::SCHED_IDLE) => Scheduling::Idle,
        Ok(libc::SCHED_FIFO) => Scheduling::Fifo { priority: attr.sched_priority },
        Ok(libc::SCHED_RR) => Scheduling::RoundRobin { priority: attr.sched_priority },
        Ok(libc::SCHED_DEADLINE) => Scheduling::Deadline {
            runtime: Span::from_ns(attr.sched_runtime),
            deadline: Span::from_ns(attr.sched_deadline),
            period: Span::from_ns(attr.sched_period),
        },
        _ => Scheduling::Unknown {
            policy: attr.sched_policy,
            nice: attr.sched_nice,
            priority: attr.sched_priority,
        },
    };
    Ok(SchedulingOf { class, reset_on_fork: attr.sched_flags & RESET_ON_FORK != 0 })
}

/// Sets the scheduling of a thread.
///
/// # Errors
/// `EPERM` without the privilege. `EPERM` also for `SCHED_FIFO` and `SCHED_RR` without a real-time
/// budget in the thread's cgroup, and for `SCHED_DEADLINE` if the thread is pinned. `EBUSY` if the
/// host has no deadline bandwidth left, `EINVAL` for values out of range, `ESRCH` if there is no
/// such thread.
pub fn set_scheduling(tid: Tid, to: &SchedulingOf) -> io::Result<()> {
    let mut attr = no_attr();
    let policy = match to.class {
        Scheduling::Other { nice } => {
            attr.sched_nice = nice;
            libc::SCHED_OTHER
        }
        Scheduling::Batch { nice } => {
            attr.sched_nice = nice;
            libc::SCHED_BATCH
        }
        Scheduling::Idle => libc::SCHED_IDLE,
        Scheduling::Fifo { priority } => {
            attr.sched_priority = priority;
            libc::SCHED_FIFO
        }
        Scheduling::RoundRobin { priority } => {
            attr.sched_priority = priority;
            libc::SCHED_RR
        }
        Scheduling::Deadline { runtime, deadline, period } => {
            attr.sched_runtime = runtime.ns();
            attr.sched_deadline = deadline.ns();
            attr.sched_period = period.ns();
            libc::SCHED_DEADLINE
        }
        Scheduling::Unknown { policy, nice, priority } => {
            attr.sched_nice = nice;
            attr.sched_priority = priority;
            i32::try_from(policy).map_err(|_| malformed())?
        }
    };
    attr.sched_policy = policy.cast_unsigned();
    if to.reset_on_fork {
        attr.sched_flags = RESET_ON_FORK;
    }
    set_attr(tid, &attr)
}

/// Gives a thread the highest priority among ordinary threads: the lowest nice value and the
/// longest timeslices. Then no other ordinary thread preempts it while it runs. Threads that the
/// favoured thread starts get the default nice value.
///
/// # Errors
/// On the same conditions as [`set_scheduling`].
pub fn favour(tid: Tid) -> io::Result<()> {
    let mut attr = no_attr();
    attr.sched_policy = libc::SCHED_OTHER.cast_unsigned();
    attr.sched_nice = -20;
    // Longest timeslice that the kernel accepts, since 6.12. Older kernels ignore this field.
    attr.sched_runtime = Span::from_ms(100).ns();
    attr.sched_flags = RESET_ON_FORK;
    set_attr(tid, &attr)
}

/// Returns the nice value of a thread. A real-time thread has a nice value too, which applies once
/// the thread becomes ordinary.
///
/// # Errors
/// `ESRCH` if there is no such thread.
pub fn nice_of(tid: Tid) -> io::Result<i32> {
    Ok(rustix::process::getpriority_process(Some(tid.pid()))?)
}

fn set_attr(tid: Tid, attr: &libc::sched_attr) -> io::Result<()> {
    // SAFETY: the kernel only reads `attr`, and no more bytes than its field `size` says, which is
    // the size of `attr`.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_setattr, tid.0, &raw const *attr, NO_FLAGS) };
    check(result)?;
    Ok(())
}

const RESET_ON_FORK: u64 = libc::SCHED_FLAG_RESET_ON_FORK.cast_unsigned() as u64;
const NO_FLAGS: libc::c_uint = 0;

fn no_attr() -> libc::sched_attr {
    libc::sched_attr {
        size: u32::try_from(mem::size_of::<libc::sched_attr>()).expect("48 bytes"),
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    }
}

/// Returns the CPUs on which a thread may run.
///
/// # Errors
/// `ESRCH` if there is no such thread. `Unsupported` if the thread may run on a CPU with a number
/// of [`CpuId::LIMIT`] or above: [`CpuSet`] cannot contain this CPU, so restoring the affinity
/// would drop it.
pub fn get_affinity(tid: Tid) -> io::Result<CpuSet> {
    let kernel = thread::sched_getaffinity(Some(tid.pid()))?;
    let count = kernel.count() as usize;
    // Most sets contain few CPUs, so the search ends early.
    let cpus = (0..CpuId::LIMIT).filter(|&cpu| kernel.is_set(cpu)).take(count).map(CpuId::new);
    let cpus: CpuSet = cpus.collect();
    if cpus.len() == count { Ok(cpus) } else { Err(io::ErrorKind::Unsupported.into()) }
}

/// Restricts a thread to these CPUs. When the call returns, the thread has left all other CPUs.
///
/// # Errors
/// `EINVAL` if the set contains no CPU that is online and in the thread's cpuset. `EPERM` without
/// the privilege, `ESRCH` if there is no such thread, `EBUSY` for `SCHED_DEADLINE` threads.
pub fn set_affinity(tid: Tid, cpus: &CpuSet) -> io::Result<()> {
    let mut kernel = thread::CpuSet::new();
    for cpu in cpus.iter() {
        kernel.set(cpu.index());
    }
    Ok(thread::sched_setaffinity(Some(tid.pid()), &kernel)?)
}

/// Returns the time on `CLOCK_MONOTONIC`, the clock of the kernel's event timestamps.
#[must_use]
pub fn monotonic() -> Time {
    time_on(rustix::time::ClockId::Monotonic)
}

/// Returns the time since the host booted, including the time in which the host was suspended.
#[must_use]
pub fn boot_time() -> Time {
    time_on(rustix::time::ClockId::Boottime)
}

/// Returns the time on `CLOCK_REALTIME`, the wall clock, since 1970.
#[must_use]
pub fn wall() -> Time {
    time_on(rustix::time::ClockId::Realtime)
}

fn time_on(clock: rustix::time::ClockId) -> Time {
    let time = rustix::time::clock_gettime(clock);
    let part = |number: i64| u64::try_from(number).expect("the kernel sets no clock before zero");
    Time::START + Span::from_secs(part(time.tv_sec)) + Span::from_ns(part(time.tv_nsec))
}

/// Returns the CPUs that are online now.
///
/// # Errors
/// If sysfs cannot be read. `Unsupported` if a CPU has a number of [`CpuId::LIMIT`] or above.
pub fn online_cpus() -> io::Result<CpuSet> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online")?;
    let mut online = CpuSet::NONE;
    for cpu in cpu_list(&text).ok_or_else(malformed)? {
        if cpu >= CpuId::LIMIT {
            return Err(io::ErrorKind::Unsupported.into());
        }
        online.insert(CpuId::new(cpu));
    }
    Ok(online)
}

/// Parses a list of ranges, such as `0-3,8`. The result is empty for an empty text, and `None` for
/// a malformed text.
#[must_use]
pub fn cpu_list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        numbers.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(numbers)
}

/// Returns the CPU time that a thread has used since it was started.
///
/// For a thread of the calling process the result is exact, even if the thread is running. For a
/// thread of another process the time is read from procfs, since the kernel refuses the exact
/// clock. The time in procfs is exact while the thread is not running. So it is always exact if the
/// caller runs on the thread's CPU. While the thread runs, the time in procfs is behind by up to
/// one tick of the kernel (4 ms at 250 Hz). [`TaskClock`] is exact in all cases.
///
/// # Errors
/// `ESRCH` or `NotFound` if there is no such thread.
pub fn thread_cpu_time(tid: Tid) -> io::Result<Span> {
    match read_clock(cpu_clock(tid, PER_THREAD | BY_SCHEDULER)) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => scheduler_time(tid),
        result => result,
    }
}

/// Returns the CPU time that all threads of a process have used, including threads that have
/// exited. For another process than the caller's, the result is behind by up to one tick of the
/// kernel for each running thread.
///
/// # Errors
/// `EINVAL` if there is no such process.
pub fn process_cpu_time(process: Tid) -> io::Result<Span> {
    read_clock(cpu_clock(process, BY_SCHEDULER))
}

/// Returns the length of a clock tick, the unit of the times in `/proc/stat`.
#[must_use]
pub fn clock_tick() -> Span {
    // SAFETY: the call takes a number and returns a number.
    let a_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    // If the C library returns an error, use 100 ticks a second, the value on all supported
    // architectures.
    Span::from_secs(1) / u64::try_from(a_second).ok().filter(|&ticks| ticks > 0).unwrap_or(100)
}

/// Value of the two lowest bits in the id of a CPU clock. This value selects the CPU time as the
/// scheduler counts it (`CPUCLOCK_SCHED`). The third bit is [`PER_THREAD`]. The bits above are the
/// complement of the id of the thread or process.
const BY_SCHEDULER: libc::clockid_t = 2;
/// Bit of a CPU clock's id that selects the clock of a thread instead of a process.
const PER_THREAD: libc::clockid_t = 4;

fn cpu_clock(of: Tid, which: libc::clockid_t) -> libc::clockid_t {
    (!of.0) << 3 | which
}

fn read_clock(clock: libc::clockid_t) -> io::Result<Span> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one `timespec`, and `time` is one.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    check(result.into())?;
    let part = |number: i64| u64::try_from(number).map_err(|_| malformed());
    Ok(Span::from_secs(part(time.tv_sec)?) + Span::from_ns(part(time.tv_nsec)?))
}

/// Reads the first number of a thread's `schedstat`: its CPU time in nanoseconds. The kernel
/// updates this number at every tick and when the thread leaves its CPU.
fn scheduler_time(tid: Tid) -> io::Result<Span> {
    let text = fs::read_to_string(format!("/proc/{tid}/schedstat"))?;
    let used = text.split_ascii_whitespace().next().and_then(|number| number.parse().ok());
    used.map(Span::from_ns).ok_or_else(malformed)
}

/// Clock of one thread's CPU time as the scheduler counts it. The thread may belong to any process.
/// Reading the clock is cheap.
///
/// The clock is exact while the thread does not run. While the thread runs, the clock is behind by
/// up to one tick of the kernel.
#[derive(Debug)]
pub struct ThreadClock(fs::File);

impl ThreadClock {
    /// Opens the clock of a thread. The clock never shows the time of a later thread with the same
    /// id.
    ///
    /// # Errors
    /// If there is no such thread.
    pub fn open(tid: Tid) -> io::Result<ThreadClock> {
        fs::File::open(format!("/proc/{tid}/schedstat")).map(ThreadClock)
    }

    /// Returns the CPU time that the thread has used so far.
    ///
    /// # Errors
    /// `ESRCH` if the thread has exited.
    pub fn read(&self) -> io::Result<Span> {
        use std::os::unix::fs::FileExt;
        // Three numbers of at most 20 digits.
        let mut text = [0; 64];
        let length = self.0.read_at(&mut text, 0)?;
        let mut digits = text[..length].iter().take_while(|byte| byte.is_ascii_digit());
        let digit = |byte: &u8| u64::from(byte - b'0');
        let used = digits.try_fold(0_u64, |sum, byte| {
            sum.checked_mul(10).and_then(|sum| sum.checked_add(digit(byte)))
        });
        used.filter(|_| length > 0).map(Span::from_ns).ok_or_else(malformed)
    }
}

/// Locks all present and future memory of this process in RAM.
///
/// All pages are allocated immediately. If pages were allocated at their first use (`MCL_ONFAULT`),
/// page faults could delay a dispatcher. So each thread's whole stack of 2 MiB takes RAM, even if
/// most of it is unused.
///
/// # Errors
/// `ENOMEM` or `EPERM` if `RLIMIT_MEMLOCK` is too low for a caller without `CAP_IPC_LOCK`.
pub fn lock_memory() -> io::Result<()> {
    Ok(mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)?)
}

/// Converts the return value of a system call into a `Result`. The error is the one that the kernel
/// has set.
fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn malformed() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// Takes over a descriptor that this process was started with, such as a socket from systemd.
/// Programs that this process starts do not inherit the descriptor.
///
/// # Errors
/// `EBADF` if there is no such descriptor, or if it is a standard descriptor, which is already in
/// use.
pub fn inherited_fd(number: i32) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the call sets a flag of a descriptor and touches no memory of this process.
    check(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) }.into())?;
    // Return a copy, because other code of this process may own the descriptor `number`.
    // SAFETY: the descriptor is open, as the call before has shown, and is borrowed for one call.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    borrowed.try_clone_to_owned()
}

/// Ignores a signal in the whole process, from now on and across `exec`. The keeper calls this
/// function, since it must survive signals that are sent to it together with its parent.
///
/// # Errors
/// `EINVAL` for signals that cannot be ignored.
pub fn ignore_signal(signal: rustix::process::Signal) -> io::Result<()> {
    // SAFETY: no handler is installed, so the signal runs no code of this process.
    let before = unsafe { libc::signal(signal.as_raw(), libc::SIG_IGN) };
    if before == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_cpu_lists_with_gaps_and_empty_lists_are_parsed() {
        assert_eq!(cpu_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(cpu_list("\n"), Some(vec![]));
        assert_eq!(cpu_list("0-"), None);
    }

    #[test]
    fn procfs_files_of_zombie_process_are_readable_until_reaped() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let tid = Tid::new(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(thread_exists(tid));
        assert!(read_of_thread((tid, tid), "stat").is_ok_and(|text| !text.is_empty()));
        child.wait().unwrap();
        assert!(!thread_exists(tid));
        let error = read_of_thread((tid, tid), "stat").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn scheduling_class_that_was_set_is_read_back_unchanged() {
        // The test uses a new thread, so that the changed class ends with that thread.
        std::thread::spawn(|| {
            let own = own_tid();
            let before = get_scheduling(own).unwrap();
            for class in [Scheduling::Batch { nice: 5 }, Scheduling::Idle] {
                let to = SchedulingOf { class, reset_on_fork: true };
                set_scheduling(own, &to).unwrap();
                assert_eq!(get_scheduling(own).unwrap(), to);
            }
            let fifo = Scheduling::Fifo { priority: 1 };
            match set_scheduling(own, &SchedulingOf { class: fifo, reset_on_fork: true }) {
                Ok(()) => assert_eq!(get_scheduling(own).unwrap().class, fifo),
                Err(why) => return println!("skipped: needs real-time scheduling ({why})"),
            }
            set_scheduling(own, &before).unwrap();
            assert_eq!(get_scheduling(own).unwrap(), before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn affinity_that_was_set_is_read_back_unchanged() {
        std::thread::spawn(|| {
            let one = CpuSet::one(get_affinity(own_tid()).unwrap().first().unwrap());
            set_affinity(own_tid(), &one).unwrap();
            assert_eq!(get_affinity(own_tid()).unwrap(), one);
            assert!(online_cpus().unwrap().contains(one.first().unwrap()));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn thread_cpu_time_never_decreases_and_is_readable_across_users() {
        let own = own_tid();
        let before = thread_cpu_time(own).unwrap();
        assert!(thread_cpu_time(own).unwrap() >= before);
        let process = process_of(own).unwrap();
        assert!(process_cpu_time(process).unwrap() >= before);
        // The first process of the host belongs to another user.
        assert!(!thread_cpu_time(Tid(1)).unwrap().is_zero());
    }
}
