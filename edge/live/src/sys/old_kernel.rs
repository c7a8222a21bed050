//! For tests: programs as on Linux 4.4. Every system call that came later is refused as unknown,
//! which a program cannot tell from a kernel that does not have it.

#![allow(clippy::cast_possible_truncation)] // Codes of BPF have 16 bits.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The first number that Linux 4.4 did not know on x86-64 (`copy_file_range`, 4.5).
const FIRST_UNKNOWN: u32 = 326;

/// Has the program of this command, and all that it starts, run so. It cannot be started without
/// root, or where the kernel has no filters of system calls.
pub fn as_on_linux_4_4(command: &mut Command) {
    // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
    unsafe {
        command.pre_exec(refuse_later_calls);
    }
}

fn refuse_later_calls() -> io::Result<()> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    const NUMBER_OF_CALL: u32 = 0;
    let line = |code, k, jt| libc::sock_filter { code, jt, jf: 0, k };
    let mut filter = [
        line(LOAD, NUMBER_OF_CALL, 0),
        line(JUMP_IF_AT_LEAST, FIRST_UNKNOWN, 1),
        line(RETURN, libc::SECCOMP_RET_ALLOW, 0),
        line(RETURN, libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs(), 0),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which lives until the call returns.
    let result =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
