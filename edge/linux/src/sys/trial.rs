//! System calls that are made once to find out whether the kernel allows them.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::{check, malformed};

/// Creates the smallest possible BPF map and removes it, to find out whether the kernel allows BPF.
///
/// # Errors
/// `EPERM` without the privilege, `ENOSYS` if the kernel has no BPF.
pub fn try_bpf_map() -> io::Result<()> {
    /// First fields of the kernel's structure `bpf_attr` for creating a map. The kernel treats
    /// missing fields as zero.
    #[repr(C)]
    struct MapAttr {
        kind: u32,
        key_bytes: u32,
        value_bytes: u32,
        entries: u32,
    }
    const CREATE_MAP: libc::c_int = 0;
    const ARRAY: u32 = 2;
    let attr = MapAttr { kind: ARRAY, key_bytes: 4, value_bytes: 8, entries: 1 };
    let size = libc::c_uint::try_from(mem::size_of::<MapAttr>()).map_err(|_| malformed())?;
    // SAFETY: the kernel reads `size` bytes of `attr`, which is the size of `attr`.
    let result = unsafe { libc::syscall(libc::SYS_bpf, CREATE_MAP, &raw const attr, size) };
    close(check(result)?)
}

/// Returns the version of the kernel's KVM interface. `kvm` is a descriptor of `/dev/kvm`.
///
/// # Errors
/// `ENOTTY` if the descriptor does not refer to `/dev/kvm`.
pub fn kvm_api_version(kvm: BorrowedFd<'_>) -> io::Result<i64> {
    const GET_API_VERSION: libc::c_ulong = 0xAE00;
    const NOTHING: libc::c_ulong = 0;
    // SAFETY: this request touches no memory of this process.
    let result = unsafe { libc::ioctl(kvm.as_raw_fd(), GET_API_VERSION as _, NOTHING) };
    check(result.into())
}

/// Creates a virtual machine without vCPUs and memory, and removes it, to find out whether the host
/// allows VMs.
///
/// # Errors
/// If the processor or the host's own hypervisor does not allow a VM.
pub fn try_kvm_machine(kvm: BorrowedFd<'_>) -> io::Result<()> {
    const CREATE_VM: libc::c_ulong = 0xAE01;
    const DEFAULT_KIND: libc::c_ulong = 0;
    // SAFETY: this request takes a number and touches no memory of this process.
    let result = unsafe { libc::ioctl(kvm.as_raw_fd(), CREATE_VM as _, DEFAULT_KIND) };
    close(check(result.into())?)
}

/// Closes the descriptor that a system call has returned, or returns the error of the system call.
fn close(result: libc::c_long) -> io::Result<()> {
    let fd = RawFd::try_from(result).map_err(|_| malformed())?;
    // SAFETY: no other code knows of this descriptor.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}
