//! Perf events of the kernel: records of activity on a CPU, and the time that a thread has spent on
//! CPUs.

use std::ffi::CStr;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::ioctl::{IntegerSetter, ioctl, opcode};
use slackline_units::{CpuId, Span};

use super::{Tid, check, malformed};

/// Structure `perf_event_attr` of the kernel in its fifth revision (Linux 4.1). Earlier revisions
/// lack fields that this program sets.
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    registers_user: u64,
    stack_user: u32,
    clock: i32,
    registers_interrupt: u64,
    aux_watermark: u32,
    max_stack: u16,
    reserved: u16,
}

const SOFTWARE: u32 = 1;
const TRACEPOINT: u32 = 2;
/// Event `PERF_COUNT_SW_DUMMY`. The event counts nothing, but the kernel can write records about
/// other activity, such as context switches, for it.
const DUMMY: u64 = 9;
/// Events `PERF_COUNT_SW_CPU_CLOCK` and `PERF_COUNT_SW_TASK_CLOCK`, which count CPU time.
const CPU_CLOCK: u64 = 0;
const TASK_CLOCK: u64 = 1;
/// Flag `PERF_FLAG_PID_CGROUP`: the argument for the thread is a descriptor of a cgroup's folder.
const BY_GROUP: libc::c_ulong = 1 << 2;
const SAMPLE_TID: u64 = 1 << 1;
const SAMPLE_TIME: u64 = 1 << 2;
const SAMPLE_RAW: u64 = 1 << 10;
const READ_TIME_RUNNING: u64 = 1 << 1;

/// Returns a mask with one bit of the flags in `perf_event_attr`. `number` is the number of the
/// bit, from 0, in the order in which the kernel declares the flags. C compilers place bit fields
/// from the low end on little-endian processors and from the high end on big-endian processors.
const fn flag(number: u32) -> u64 {
    if cfg!(target_endian = "little") { 1 << number } else { 1 << (63 - number) }
}

const DISABLED: u64 = flag(0);
const EXCLUDE_KERNEL: u64 = flag(5);
const EXCLUDE_HYPERVISOR: u64 = flag(6);
const TASK: u64 = flag(13);
const SAMPLE_ID_ALL: u64 = flag(18);
const USE_CLOCK: u64 = flag(25);
const CONTEXT_SWITCH: u64 = flag(26);

/// Opens an event that is never switched on. The other events of its CPU share its ring. If a
/// tracepoint is given, this event keeps the tracepoint's probe installed. Without this event, the
/// kernel would remove the probe when the last other event of the tracepoint is closed, which takes
/// tens of milliseconds.
///
/// # Errors
/// `ENODEV` if the CPU is offline. `EACCES` or `EPERM` without the privilege (events of whole CPUs
/// need `CAP_PERFMON`). `EMFILE` if this process cannot open more descriptors. `ENOSYS` if the
/// kernel has no perf events.
pub fn open_holder(cpu: CpuId, tracepoint: Option<u64>) -> io::Result<OwnedFd> {
    let attr = match tracepoint {
        Some(config) => Attr { kind: TRACEPOINT, config, ..Attr::default() },
        None => Attr { kind: SOFTWARE, config: DUMMY, ..Attr::default() },
    };
    let (flags, clock) = (USE_CLOCK | DISABLED, libc::CLOCK_MONOTONIC);
    open(ANYBODY, number(cpu), Attr { flags, clock, ..attr })
}

/// Opens an event that writes records about context switches, starts of threads and exits of
/// threads. The event writes records after [`share_ring`] was called for it.
///
/// Every switch on this CPU has two records (`PERF_RECORD_SWITCH_CPU_WIDE`): one for the thread
/// that leaves and one for the next thread. Each record has three words: process and thread id of
/// the other thread, process and thread id of the record's own thread, and the time
/// (`CLOCK_MONOTONIC`, nanoseconds). A start of a thread on this CPU has one record
/// (`PERF_RECORD_FORK`), written before the new thread runs. An exit has one record
/// (`PERF_RECORD_EXIT`), written before the thread leaves the CPU for the last time. The records of
/// starts and exits have three words: ids of the process and its parent, ids of the thread and the
/// thread that started it, and the time.
///
/// # Errors
/// On the same conditions as [`open_holder`].
pub fn open_switches(cpu: CpuId) -> io::Result<OwnedFd> {
    let attr = Attr {
        kind: SOFTWARE,
        config: DUMMY,
        sample_type: SAMPLE_TID | SAMPLE_TIME,
        flags: SAMPLE_ID_ALL | USE_CLOCK | CONTEXT_SWITCH | TASK,
        clock: libc::CLOCK_MONOTONIC,
        ..Attr::default()
    };
    open(ANYBODY, number(cpu), attr)
}

/// Rule for notifying the reader of a ring about hits of a tracepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tell {
    /// Every hit notifies the thread that polls the ring.
    Watcher,
    /// Hits notify the thread that polls the ring only when the ring is half full.
    Nobody,
}

/// Opens an event that writes a record when a tracepoint is hit on this CPU and the hit passes the
/// filter. The event writes records after [`share_ring`] and [`switch_on`] were called for it.
/// `tell` says whether the reader of the ring is notified. A record has a word with the time
/// (`CLOCK_MONOTONIC`, nanoseconds), a half word with the size of the data, and the data of the
/// tracepoint.
///
/// The event belongs to the CPU. Events that belong to the watched threads would cost other threads
/// less, but would miss wake-ups, because the event of a blocked thread is off. Since a fix in 2026
/// (6.1.167, 6.6.130, 6.12.77, 6.18.17) the kernel records nothing for an event that is off.
///
/// # Errors
/// `EINVAL` if the filter is longer than a page or malformed, otherwise as for [`open_holder`].
pub fn open_hits(tracepoint: u64, cpu: CpuId, filter: &CStr, tell: Tell) -> io::Result<OwnedFd> {
    let event = open_all_hits(tracepoint, cpu, tell)?;
    // SAFETY: PERF_EVENT_IOC_SET_FILTER reads a string that ends in zero, though it declares itself
    // as taking a pointer to a pointer. `filter` is such a string and lives until the call returns.
    unsafe {
        let set = IntegerSetter::<{ opcode::write::<*mut u8>(b'$', 6) }>::new_usize(
            filter.as_ptr().expose_provenance(),
        );
        ioctl(&event, set)?;
    }
    Ok(event)
}

/// Opens an event as [`open_hits`] does, but without a filter: each hit on this CPU writes a
/// record.
///
/// # Errors
/// On the same conditions as [`open_holder`].
pub fn open_all_hits(tracepoint: u64, cpu: CpuId, tell: Tell) -> io::Result<OwnedFd> {
    let attr = Attr {
        kind: TRACEPOINT,
        config: tracepoint,
        sample_period: 1,
        sample_type: SAMPLE_TIME | SAMPLE_RAW,
        flags: USE_CLOCK | DISABLED,
        wakeup_events: u32::from(tell == Tell::Watcher),
        clock: libc::CLOCK_MONOTONIC,
        ..Attr::default()
    };
    open(ANYBODY, number(cpu), attr)
}

/// Switches on a perf event.
///
/// # Errors
/// `ENOTTY` if the descriptor is not a perf event.
pub fn switch_on(event: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: PERF_EVENT_IOC_ENABLE takes a number by value and touches no memory of this process.
    let enable = unsafe { IntegerSetter::<{ opcode::none(b'$', 0) }>::new_usize(0) };
    // SAFETY: as above. The kernel refuses a descriptor that is no event.
    Ok(unsafe { ioctl(event, enable) }?)
}

fn number(cpu: CpuId) -> i32 {
    i32::try_from(cpu.index()).expect("CPU numbers are below 256")
}

/// Makes an event write its records into the ring of another event of the same CPU, and wake the
/// threads that poll the other event.
///
/// # Errors
/// `EINVAL` if the two events have different CPUs or clocks.
pub fn share_ring(event: BorrowedFd<'_>, ring: BorrowedFd<'_>) -> io::Result<()> {
    let ring = usize::try_from(ring.as_raw_fd()).map_err(|_| malformed())?;
    // SAFETY: PERF_EVENT_IOC_SET_OUTPUT takes a descriptor by value and no pointer.
    let set = unsafe { IntegerSetter::<{ opcode::none(b'$', 5) }>::new_usize(ring) };
    // SAFETY: as above. The kernel refuses a descriptor that is no event.
    Ok(unsafe { ioctl(event, set) }?)
}

/// Clock of the time that a thread has spent on CPUs since the clock was opened. The clock is exact
/// for threads of any process, even while the thread runs.
#[derive(Debug)]
pub struct TaskClock(OwnedFd);

impl TaskClock {
    /// Opens a clock for a thread. The clock starts at zero.
    ///
    /// # Errors
    /// `ESRCH` if there is no such thread, otherwise as for [`open_holder`]. The caller needs only
    /// the privilege to observe this one thread.
    pub fn open(tid: Tid) -> io::Result<TaskClock> {
        // Without these flags, ordinary users could not watch even their own threads.
        let flags = EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR;
        let read_format = READ_TIME_RUNNING;
        let attr = Attr { kind: SOFTWARE, config: DUMMY, read_format, flags, ..Attr::default() };
        open(tid.raw(), ANY_CPU, attr).map(TaskClock)
    }

    /// Returns the time that the thread has spent on CPUs so far. If the thread is running, the
    /// kernel interrupts its CPU for the reading.
    ///
    /// # Errors
    /// If the system call `read` fails. If the thread has exited, the call succeeds and returns the
    /// final time.
    pub fn read(&self) -> io::Result<Span> {
        // The first word is the count, which is always zero for a dummy event.
        let mut words = [[0_u8; 8]; 2];
        if rustix::io::read(&self.0, words.as_flattened_mut())? != 16 {
            return Err(malformed());
        }
        Ok(Span::from_ns(u64::from_ne_bytes(words[1])))
    }
}

/// Threads whose CPU time an event counts.
#[derive(Clone, Copy, Debug)]
pub enum CountTarget<'a> {
    /// One thread, given by its id.
    Thread(Tid),
    /// All threads in a version 2 cgroup, given by a descriptor of its folder.
    Group(BorrowedFd<'a>),
}

/// Opens an event for the CPU time of threads, which is active after [`share_ring`] and
/// [`switch_on`] were called for it. Each time the threads have received `every` of CPU time on
/// this CPU, the event writes an empty record and notifies the reader of the ring. The kernel's
/// minimum for `every` is 10 us. The event costs nothing while none of the threads runs.
///
/// # Errors
/// `ESRCH` if there is no such thread, `EBADF` or `EINVAL` if the kernel cannot count for such a
/// cgroup, otherwise as for [`open_holder`].
pub fn open_use(counted: CountTarget<'_>, cpu: CpuId, every: Span) -> io::Result<OwnedFd> {
    let (id, config, way) = match counted {
        CountTarget::Thread(tid) => (tid.raw(), TASK_CLOCK, 0),
        CountTarget::Group(folder) => (folder.as_raw_fd(), CPU_CLOCK, BY_GROUP),
    };
    let attr = Attr {
        kind: SOFTWARE,
        config,
        sample_period: every.ns().max(1),
        flags: USE_CLOCK | DISABLED,
        wakeup_events: 1,
        clock: libc::CLOCK_MONOTONIC,
        ..Attr::default()
    };
    open_by(way, id, number(cpu), attr)
}

/// Switches off a perf event.
///
/// # Errors
/// `ENOTTY` if the descriptor is not a perf event.
pub fn switch_off(event: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: PERF_EVENT_IOC_DISABLE takes a number by value and touches no memory of this process.
    let disable = unsafe { IntegerSetter::<{ opcode::none(b'$', 1) }>::new_usize(0) };
    // SAFETY: as above. The kernel refuses a descriptor that is no event.
    Ok(unsafe { ioctl(event, disable) }?)
}

/// Value of the thread argument of `perf_event_open` that selects all threads.
const ANYBODY: i32 = -1;
/// Value of the CPU argument of `perf_event_open` that selects all CPUs.
const ANY_CPU: i32 = -1;

fn open(tid: i32, cpu: i32, attr: Attr) -> io::Result<OwnedFd> {
    open_by(0, tid, cpu, attr)
}

fn open_by(way: libc::c_ulong, tid: i32, cpu: i32, mut attr: Attr) -> io::Result<OwnedFd> {
    const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;
    attr.size = u32::try_from(mem::size_of::<Attr>()).map_err(|_| malformed())?;
    let (no_group, flags) = (-1, CLOSE_ON_EXEC | way);
    // SAFETY: the kernel reads as many bytes of `attr` as its field `size` says, which is the size
    // of `attr`. The kernel keeps no pointer to `attr`.
    let result = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw mut attr, tid, cpu, no_group, flags)
    };
    let fd = RawFd::try_from(check(result)?).map_err(|_| malformed())?;
    // SAFETY: the kernel has just made this descriptor, and no other code knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
