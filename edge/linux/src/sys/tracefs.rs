//! Ids of the kernel's tracepoints, and offsets of their fields.
//!
//! The ids and offsets are read from tracefs. If tracefs is not mounted, it is mounted for this
//! process only, without a mount point, so that the host is not changed.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, fsconfig_create,
    fsmount, fsopen, mount, mount_change,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::malformed;

/// Directories where hosts mount tracefs, the newer convention first.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Id and field offsets of a kernel tracepoint, as perf events need them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracepoint<const FIELDS: usize> {
    /// Id that the kernel gave the tracepoint.
    pub id: u64,
    /// Offsets of the requested fields in the tracepoint's records, in bytes.
    pub offsets: [usize; FIELDS],
}

/// Failure to find a tracepoint, with one error for each place where tracefs was searched.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot find a tracepoint: private mount of tracefs: {own}; /sys/kernel/tracing: {tracing}; \
     /sys/kernel/debug/tracing: {debug}"
)]
pub struct TracepointError {
    /// Error of mounting tracefs for this process only.
    pub own: io::Error,
    /// Error at `/sys/kernel/tracing`, the usual mount point of tracefs.
    pub tracing: io::Error,
    /// Error at `/sys/kernel/debug/tracing`, the older mount point of tracefs.
    pub debug: io::Error,
}

/// Finds a tracepoint such as `sched/sched_wakeup`, and the offsets of its fields `fields`.
///
/// # Errors
/// If no tracefs can be reached, or none has the tracepoint and its fields.
pub fn tracepoint<const FIELDS: usize>(
    name: &str,
    fields: [&str; FIELDS],
) -> Result<Tracepoint<FIELDS>, TracepointError> {
    let [tracing, debug] = PLACES.map(|place| look_up(open_directory(place), name, fields));
    let (tracing, debug) = match (tracing, debug) {
        (Ok(found), _) | (_, Ok(found)) => return Ok(found),
        (Err(tracing), Err(debug)) => (tracing, debug),
    };
    look_up(own_mount(), name, fields).map_err(|own| TracepointError { own, tracing, debug })
}

fn look_up<const FIELDS: usize>(
    tracefs: io::Result<OwnedFd>,
    name: &str,
    fields: [&str; FIELDS],
) -> io::Result<Tracepoint<FIELDS>> {
    let path = format!("events/{name}/format");
    let file = openat(tracefs?, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = String::new();
    File::from(file).read_to_string(&mut text)?;
    let id = text.lines().find_map(|line| line.strip_prefix("ID: ")?.parse().ok());
    let mut offsets = [0; FIELDS];
    for (offset, field) in offsets.iter_mut().zip(fields) {
        *offset = text.lines().find_map(|line| offset_of(line, field)).ok_or_else(malformed)?;
    }
    Ok(Tracepoint { id: id.ok_or_else(malformed)?, offsets })
}

/// Parses a line like `field:pid_t pid; offset:24; size:4; signed:1;` and returns the offset of the
/// field. `None` if the line is about another field.
fn offset_of(line: &str, field: &str) -> Option<usize> {
    let mut parts = line.trim().strip_prefix("field:")?.split(';').map(str::trim);
    let declared = parts.next()?.split_ascii_whitespace().last()?;
    let offset = parts.find_map(|part| part.strip_prefix("offset:"))?.parse().ok()?;
    (declared == field).then_some(offset)
}

fn open_directory(place: &str) -> io::Result<OwnedFd> {
    Ok(openat(CWD, place, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

fn own_mount() -> io::Result<OwnedFd> {
    match detached_mount() {
        Err(Errno::NOSYS) => mount_of_a_thread(),
        mount => Ok(mount?),
    }
}

fn detached_mount() -> Result<OwnedFd, Errno> {
    let filesystem = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&filesystem)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&filesystem, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Mounts tracefs on kernels before Linux 5.2, where a mount always needs a directory. A new thread
/// with its own mount namespace makes the mount, so no other thread sees it. When the thread ends,
/// the namespace ends too. The returned file descriptor keeps the mounted tracefs usable.
fn mount_of_a_thread() -> io::Result<OwnedFd> {
    let mount_and_open = || {
        // SAFETY: all threads still share their descriptors. Of the state that is not shared any
        // more, this thread uses only the mount that it makes, and then it ends.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        mount("tracefs", PLACES[0], "tracefs", flags | MountFlags::NOEXEC, None)?;
        open_directory(PLACES[0])
    };
    let thread = std::thread::Builder::new().name("tracefs".into()).spawn(mount_and_open)?;
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mounts tracefs by `mount_of_a_thread` and reads it through the returned file descriptor,
    /// after the thread that made the mount has ended. The mounts of this process are the same as
    /// before.
    #[test]
    fn private_tracefs_mount_is_visible_only_through_its_file_descriptor() {
        let mounts =
            || std::fs::read_to_string("/proc/self/mounts").expect("this process has mounts");
        let before = mounts();
        let tracefs = match mount_of_a_thread() {
            Ok(tracefs) => tracefs,
            Err(error) => {
                println!("skipped: needs root, and a tracefs: {error}");
                return;
            }
        };
        let found = look_up(Ok(tracefs), "sched/sched_wakeup", ["pid"]).expect("the tracepoint");
        assert!(found.id > 0 && found.offsets[0] > 0, "{found:?}");
        assert_eq!(mounts(), before);
    }
}
