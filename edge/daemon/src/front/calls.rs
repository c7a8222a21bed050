//! Filter for the system calls of the front process. While the process serves clients, it may make
//! only calls for its open descriptors, its memory and the time.
//!
//! So a compromised front process cannot open files or connections, start processes, or inspect
//! other processes. All other calls fail with `EPERM`. A call of another architecture (32 bits on
//! 64) kills the process.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

/// System calls that remain allowed. Tokio, rustls, the allocator and the standard library still
/// make these calls after all sockets are open.
const LEFT: [libc::c_long; 53] = [
    // Connections.
    libc::SYS_accept4,
    libc::SYS_close,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_write,
    libc::SYS_writev,
    // Waiting. The runtime wakes itself by a pair of sockets.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_fcntl,
    libc::SYS_futex,
    libc::SYS_gettimeofday,
    libc::SYS_ioctl,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    libc::SYS_socketpair,
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // The process itself, and its end.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fstat,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
];

/// Older system calls that also remain allowed, for the same purposes. They exist on x86-64 only.
#[cfg(target_arch = "x86_64")]
const OLDER: [libc::c_long; 3] = [libc::SYS_epoll_wait, libc::SYS_poll, libc::SYS_time];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: [libc::c_long; 0] = [];

/// Restricts the calling thread, and all threads that it starts, to the system calls that the front
/// process needs. The caller must have set `no_new_privs` before.
///
/// # Errors
/// If the kernel or the architecture does not support such filters. The process must then serve no
/// clients.
pub(super) fn leave_few() -> io::Result<()> {
    let rules: BTreeMap<_, _> =
        LEFT.into_iter().chain(OLDER).map(|call| (call, Vec::new())).collect();
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let architecture = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, architecture);
    let program: BpfProgram = filter.and_then(TryInto::try_into).map_err(io::Error::other)?;
    apply_filter(&program).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_under_seccomp_filter_can_write_but_not_open_files() {
        let tried = std::thread::spawn(|| {
            rustix::thread::set_no_new_privs(true).unwrap();
            let (mut kept, other) = std::os::unix::net::UnixStream::pair().unwrap();
            leave_few().unwrap();
            io::Write::write_all(&mut kept, b"still").unwrap();
            let mut heard = [0; 5];
            io::Read::read_exact(&mut &other, &mut heard).unwrap();
            let refused = [
                std::fs::File::open("/proc/self/status").map(drop),
                std::net::TcpStream::connect("127.0.0.1:1").map(drop),
                std::process::Command::new("true").status().map(drop),
                std::thread::Builder::new().spawn(|| ()).map(drop),
                std::fs::read_dir("/").map(drop),
            ];
            (heard, refused.map(|tried| tried.unwrap_err().raw_os_error()))
        });
        let (heard, refused) = tried.join().unwrap();
        assert_eq!(&heard, b"still");
        assert_eq!(refused, [Some(libc::EPERM); 5]);
    }
}
