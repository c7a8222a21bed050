//! Simulation of other kernels for tests, by filters that refuse system calls. Three kernels can be
//! simulated:
//!
//! - Linux 4.4: every newer system call is refused as unknown.
//! - A sandbox without perf events.
//! - A systemd service that allows only some system calls.

#![allow(clippy::cast_possible_truncation)] // Codes of BPF have 16 bits, numbers of calls 32.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// First system call number on x86-64 that Linux 4.4 does not know: `copy_file_range`, from 4.5.
const FIRST_UNKNOWN: u32 = 326;

/// Makes the program of this command, and all programs that it starts, run as on Linux 4.4. The
/// start fails without root, or if the kernel does not support system call filters.
pub fn as_on_linux_4_4(command: &mut Command) {
    // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
    unsafe {
        command.pre_exec(refuse_later_calls);
    }
}

/// Makes the kernel refuse perf events to the program of this command and to all programs that it
/// starts. The start fails without root, or if the kernel does not support system call filters.
pub fn without_perf_events(command: &mut Command) {
    // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
    unsafe {
        command.pre_exec(|| refuse(JUMP_IF_IS, PERF_EVENT_OPEN, libc::EACCES));
    }
}

/// Kills the program of this command, and each program that it starts, when it makes a system call
/// whose number is not in `allowed`. The start fails without root, or if the kernel does not
/// support system call filters.
pub fn only_with_calls(command: &mut Command, allowed: &[u32]) {
    let mut filter = vec![line(LOAD, NUMBER_OF_CALL, 0)];
    for &call in allowed {
        // If the system call has another number, the filter skips its next line.
        filter.push(libc::sock_filter { code: JUMP_IF_IS, jt: 0, jf: 1, k: call });
        filter.push(line(RETURN, libc::SECCOMP_RET_ALLOW, 0));
    }
    filter.push(line(RETURN, libc::SECCOMP_RET_KILL_PROCESS, 0));
    // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
    unsafe {
        command.pre_exec(move || install(&mut filter));
    }
}

const PERF_EVENT_OPEN: u32 = libc::SYS_perf_event_open as u32;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
/// Offset of the system call number in the data that a filter sees, in bytes.
const NUMBER_OF_CALL: u32 = 0;
const JUMP_IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const JUMP_IF_IS: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;

fn refuse_later_calls() -> io::Result<()> {
    refuse(JUMP_IF_AT_LEAST, FIRST_UNKNOWN, libc::ENOSYS)
}

/// Installs a filter that refuses some system calls with `error`. The filter compares the number of
/// each system call with `call`, by the comparison `jump`. If the comparison is true, the system
/// call is refused.
fn refuse(jump: u16, call: u32, error: i32) -> io::Result<()> {
    install(&mut [
        line(LOAD, NUMBER_OF_CALL, 0),
        line(jump, call, 1),
        line(RETURN, libc::SECCOMP_RET_ALLOW, 0),
        line(RETURN, libc::SECCOMP_RET_ERRNO | error.unsigned_abs(), 0),
    ])
}

fn line(code: u16, k: u32, jt: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf: 0, k }
}

/// Installs a filter for this process and for all programs that it starts.
fn install(filter: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which lives until the call returns.
    let result =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
