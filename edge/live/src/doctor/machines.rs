//! Probes of hardware virtualization and emulators.

use std::env;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Access, access};

use super::probe::{Host, ProbeError, Verdict};
use slackline_linux::sys::{kvm_api_version, try_kvm_machine};

pub(super) fn kvm(_: &Host) -> Result<Verdict, ProbeError> {
    let device = match std::fs::File::options().read(true).write(true).open("/dev/kvm") {
        Ok(device) => device,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Verdict::missing("there is no /dev/kvm")
                .hint("load the module `kvm_intel` or `kvm_amd`, if the processor supports it"));
        }
        Err(error) => {
            return Ok(Verdict::missing(format!("cannot open /dev/kvm: {error}"))
                .hint("run as root, or join the group `kvm`"));
        }
    };
    let version =
        kvm_api_version(device.as_fd()).map_err(ProbeError::tried("ask KVM for its version"))?;
    // Some hosts create KVM VMs although the processor has no virtualization. A guest kernel
    // crashes in such a VM.
    let processor = std::fs::read_to_string("/proc/cpuinfo")
        .map_err(ProbeError::tried("read about the processor"))?;
    if cfg!(target_arch = "x86_64")
        && !processor.split_ascii_whitespace().any(|flag| flag == "vmx" || flag == "svm")
    {
        return Ok(Verdict::limited(format!(
            "KVM version {version}, but the processor has neither vmx nor svm"
        ))
        .hint("use emulation (TCG): KVM may fail here; emulated guests can be scheduled too"));
    }
    Ok(match try_kvm_machine(device.as_fd()) {
        Ok(()) => Verdict::good(format!("KVM version {version}; an empty VM can be created")),
        Err(error) => {
            Verdict::missing(format!("KVM version {version}, but no VM can be created: {error}"))
                .hint("use emulation (TCG): emulated guests can be scheduled too")
        }
    })
}

pub(super) fn qemu(_: &Host) -> Result<Verdict, ProbeError> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut found: Vec<String> =
        env::split_paths(&path).flat_map(|folder| in_folder(&folder)).collect();
    found.sort();
    found.dedup();
    Ok(match found.len() {
        0 => Verdict::missing("no qemu-system-* in PATH")
            .hint("install QEMU, or schedule other programs"),
        1..=4 => Verdict::good(found.join(", ")),
        count => Verdict::good(format!("{}, and {} more", found[..3].join(", "), count - 3)),
    })
}

/// Returns the names of the QEMU emulators in one folder of `PATH`. The list is empty if the folder
/// cannot be read.
fn in_folder(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let emulators = entries.flatten().filter(|entry| {
        entry.file_name().as_encoded_bytes().starts_with(b"qemu-system-")
            && access(entry.path(), Access::EXEC_OK).is_ok()
    });
    emulators.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
