//! Ownership of the host's CPUs by a program. If two programs scheduled the same CPU, both would
//! reserve the same time on it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use slackline_units::CpuId;
use thiserror::Error;

/// Folder of the lock files. It is the same for all programs on a host, even if their options
/// differ.
const FOLDER: &str = "/run/slackline/cpus";

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
        /// Number of the CPU in the kernel.
        cpu: CpuId,
        /// Process id of the other program. `None` if the lock file does not contain it.
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
    /// Takes ownership of CPUs, either all of them or none. `cpus` has the kernel's numbers.
    ///
    /// # Errors
    /// If another program owns one of the CPUs, or a lock file cannot be written.
    pub fn take(cpus: &[CpuId]) -> Result<OwnedCpus, NotOwned> {
        let owned = cpus.iter().map(|&cpu| OwnedCpu::take_in(Path::new(FOLDER), cpu));
        Ok(OwnedCpus(Arc::new(owned.collect::<Result<_, _>>()?)))
    }
}

impl OwnedCpu {
    fn take_in(folder: &Path, cpu: CpuId) -> Result<OwnedCpu, NotOwned> {
        let path = folder.join(cpu.index().to_string());
        let failed = |source| NotOwned::NotNoted { file: path.clone(), source };
        DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(failed)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&path).map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::AGAIN) => {
                let mut by = String::new();
                let _ = file.read_to_string(&mut by);
                return Err(NotOwned::Taken { cpu, by: by.trim().parse().ok() });
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
    fn cpu_cannot_be_owned_if_lock_file_cannot_be_created() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = OwnedCpu::take_in(file.path(), CpuId::new(0)).unwrap_err();
        assert!(matches!(error, NotOwned::NotNoted { .. }), "{error}");
    }
}
