//! Ownership of the host's CPUs by a program. If two programs scheduled the same CPU, they would
//! both reserve the same capacity of it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use slackline_units::CpuId;
use thiserror::Error;

/// Folder of the lock files. All programs on a host use this folder, whatever their options are.
const FOLDER: &str = "/run/slackline/cpus";

/// Number of further attempts to lock a lock file, one attempt per millisecond. A first attempt can
/// fail because a program that asks for the owner of a CPU also locks the file for a moment.
const RETRIES: usize = 5;

/// Reason why this process cannot take ownership of a CPU.
#[derive(Debug, Error)]
pub enum NotOwned {
    /// Another program already schedules the CPU.
    #[error(
        "cannot schedule CPU {}: another slackline{} schedules it already",
        cpu.index(),
        process(*by)
    )]
    Taken {
        /// Kernel's number of the CPU.
        cpu: CpuId,
        /// Process id of the other program. `None` if the lock file does not contain the id.
        by: Option<u32>,
    },
    /// The lock file cannot be written.
    #[error("cannot write {file}, which marks a CPU as scheduled: {source}", file = file.display())]
    NotNoted {
        /// Path of the lock file.
        file: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
}

/// Ownership of CPUs. No other program can take these CPUs while this value or a clone of it
/// exists.
#[derive(Clone, Debug)]
pub struct OwnedCpus(#[allow(dead_code)] Arc<Vec<OwnedCpu>>);

#[derive(Debug)]
struct OwnedCpu(File);

impl OwnedCpus {
    /// Takes ownership of the CPUs with the numbers `cpus`: of all of them or, if it fails, of
    /// none.
    ///
    /// # Errors
    /// If another program owns one of the CPUs, or a lock file cannot be written.
    pub fn take(cpus: &[CpuId]) -> Result<OwnedCpus, NotOwned> {
        let owned = cpus.iter().map(|&cpu| OwnedCpu::take_in(Path::new(FOLDER), cpu));
        Ok(OwnedCpus(Arc::new(owned.collect::<Result<_, _>>()?)))
    }

    /// Returns the error with which [`OwnedCpus::take`] would refuse the first CPU that another
    /// process owns. `None` if another process owns none of the CPUs. Does not take ownership.
    #[must_use]
    pub fn first_taken(cpus: &[CpuId]) -> Option<NotOwned> {
        cpus.iter().find_map(|&cpu| OwnedCpu::owner_in(Path::new(FOLDER), cpu))
    }
}

impl OwnedCpu {
    fn owner_in(folder: &Path, cpu: CpuId) -> Option<NotOwned> {
        let mut file = File::open(folder.join(cpu.index().to_string())).ok()?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::AGAIN) => {}
            Ok(()) => {
                let _ = rustix::fs::flock(&file, FlockOperation::Unlock);
                return None;
            }
            Err(_) => return None,
        }
        let by = process_in(&mut file);
        (by != Some(std::process::id())).then_some(NotOwned::Taken { cpu, by })
    }

    fn take_in(folder: &Path, cpu: CpuId) -> Result<OwnedCpu, NotOwned> {
        let path = folder.join(cpu.index().to_string());
        let failed = |source| NotOwned::NotNoted { file: path.clone(), source };
        DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(failed)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&path).map_err(failed)?;
        let mut locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        for _ in 0..RETRIES {
            if locked != Err(Errno::AGAIN) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
            locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        }
        match locked {
            Ok(()) => {}
            Err(Errno::AGAIN) => {
                return Err(NotOwned::Taken { cpu, by: process_in(&mut file) });
            }
            Err(errno) => return Err(failed(errno.into())),
        }
        // The process id only serves error messages. The lock holds even if the id cannot be
        // written, for example because there is no space.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(OwnedCpu(file))
    }
}

impl Drop for OwnedCpu {
    fn drop(&mut self) {
        // Closing the file is not enough. A child process has a copy of the descriptor between fork
        // and exec, and the lock lasts until that copy is closed.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// Returns the process id in a lock file. `None` if the file contains no process id.
fn process_in(file: &mut File) -> Option<u32> {
    let mut by = String::new();
    let _ = file.read_to_string(&mut by);
    by.trim().parse().ok()
}

fn process(by: Option<u32>) -> String {
    by.map_or_else(String::new, |pid| format!(", process {pid},"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_of_cpu_in_use_names_the_using_process() {
        let folder = tempfile::tempdir().unwrap();
        let take = |index| OwnedCpu::take_in(folder.path(), CpuId::new(index));
        let one = take(1).unwrap();
        let _other = take(2).unwrap();
        let said = take(1).unwrap_err().to_string();
        let us = std::process::id();
        assert_eq!(
            said,
            format!("cannot schedule CPU 1: another slackline, process {us}, schedules it already")
        );
        drop(one);
        take(1).unwrap();
    }

    #[test]
    fn cpu_owner_is_reported_only_if_owned_by_another_process() {
        let folder = tempfile::tempdir().unwrap();
        let cpu = CpuId::new(1);
        let owner = || OwnedCpu::owner_in(folder.path(), cpu);
        assert!(owner().is_none(), "no process has ever owned the CPU");
        let owned = OwnedCpu::take_in(folder.path(), cpu).unwrap();
        assert!(owner().is_none(), "this process owns the CPU");
        std::fs::write(folder.path().join("1"), "4194304\n").unwrap();
        let says = owner().unwrap().to_string();
        assert!(says.contains("CPU 1: another slackline, process 4194304,"), "{says}");
        drop(owned);
        assert!(owner().is_none(), "the owner has given the CPU back");
        OwnedCpu::take_in(folder.path(), cpu).unwrap();
    }

    /// The test tries several times to take the CPU, since the other thread that has locked the
    /// file can release it late.
    #[test]
    fn cpu_can_be_taken_although_its_file_is_briefly_locked() {
        let folder = tempfile::tempdir().unwrap();
        drop(OwnedCpu::take_in(folder.path(), CpuId::new(1)).unwrap());
        let is_taken = || {
            let file = File::open(folder.path().join("1")).unwrap();
            rustix::fs::flock(&file, FlockOperation::LockShared).unwrap();
            let asking = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(2));
                rustix::fs::flock(&file, FlockOperation::Unlock).unwrap();
            });
            let taken = OwnedCpu::take_in(folder.path(), CpuId::new(1));
            asking.join().unwrap();
            taken.is_ok()
        };
        assert!((0..20).any(|_| is_taken()));
    }

    #[test]
    fn cpu_cannot_be_owned_if_lock_file_cannot_be_created() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = OwnedCpu::take_in(file.path(), CpuId::new(0)).unwrap_err();
        assert!(matches!(error, NotOwned::NotNoted { .. }), "{error}");
    }
}
