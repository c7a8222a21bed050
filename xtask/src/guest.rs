//! A small Linux guest for tests: Debian's kernel, and an initial file system with busybox and the
//! guest agent.
//!
//! Live tests need VMs that boot in seconds, that need no disk, network or hardware virtualization,
//! and that have a known load. The kernel and busybox are Debian packages, which the host's own
//! `apt-get` downloads by name. All other parts are made here.
//!
//! The guest prints [`READY`] as its first serial line. Then it does the work that its kernel
//! command line names as `slackline.work=`: `spin`, `serve`, `idle` or `exit`, see [`Work`]. With
//! `slackline.agent=` and a rule, an agent reports urgent tasks to the host through a virtio-serial
//! port. With `slackline.stop=`, the agent is killed after this number of seconds.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// Debian package that depends on the newest kernel of the release. The cloud kernel has everything
/// built in that a guest needs to boot, and is half as large as the general kernel.
const KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";

/// Debian package of busybox, the guest's shell and tools. The program is static, because the guest
/// has no libraries.
const BUSYBOX_PACKAGE: &str = "busybox-static";

/// Kernel modules that a virtio-serial port needs, in the order of their dependencies. The modules
/// are not built into the kernel, but the kernel's package contains them.
const MODULES: [&str; 6] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "virtio_console",
];

/// Line that the guest prints on its serial line when it has booted.
pub const READY: &str = "slackline guest ready";

/// Kernel arguments, except those that select the work of the guest. No argument selects a clock
/// source. In trials every clock source was reliable, even while the vCPU was stopped for seconds,
/// or for 2 ms in every 10 ms.
const KERNEL_ARGUMENTS: [&str; 7] = [
    // The only text device of the guest.
    "console=ttyS0",
    // Each character that the kernel prints on an emulated serial port costs a trap.
    "quiet",
    // A guest that cannot continue restarts instead of spinning, and with `-no-reboot` a restart
    // ends QEMU.
    "panic=-1",
    // Without this argument the kernel checks that timer interrupts arrive, and spins for ten of
    // them. A vCPU that is throttled during the check sees too few interrupts, and the kernel then
    // gives up.
    "no_timer_check",
    // Without this argument the kernel compares its clock with another clock. If the readings
    // differ much, the kernel stops using its clock. They do differ if the vCPU is stopped between
    // them.
    "tsc=reliable",
    // The kernel detects lockups and stalls by real time. A throttled vCPU would be reported as a
    // lockup, and the reports would take all of its CPU time when it runs again.
    "nowatchdog",
    "rcupdate.rcu_cpu_stall_suppress=1",
];

/// Script of the guest's first process. The script spins inside the shell, without system calls,
/// forks or timers, so the vCPU never blocks. With `serve` there is also a task with the highest
/// priority. That task echoes each line from the virtio-serial port `slackline.echo`, without a
/// fork. `READY` and `MODULES` in the text are replaced.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t tracefs trace /sys/kernel/tracing
read -r line < /proc/cmdline
work=idle
agent=
stop=
for word in $line; do
    case $word in
        slackline.work=*) work=${word#slackline.work=} ;;
        slackline.agent=*) agent=${word#slackline.agent=} ;;
        slackline.stop=*) stop=${word#slackline.stop=} ;;
    esac
done
if [ -n "$agent" ] || [ $work = serve ]; then
    for module in MODULES; do /bin/busybox insmod /modules/$module.ko; done
fi
serve() {
    device=
    while [ -z "$device" ]; do
        /bin/busybox usleep 50000
        for port in /sys/class/virtio-ports/*; do
            name=
            # The host names ports after they are there.
            [ -e $port/name ] && read -r name < $port/name
            if [ "$name" = slackline.echo ]; then device=/dev/${port##*/}; fi
        done
    done
    exec 3<> $device
    # If no program has the other end open, `read` returns at once without data. So pause.
    while :; do
        while read -r line <&3; do echo "$line" >&3; done
        /bin/busybox usleep 100000
    done
}
if [ $work = serve ]; then
    serve & /bin/busybox renice -n -10 -p $!
fi
if [ -n "$agent" ]; then
    /bin/slackline-agent --urgent "$agent" & told=$!
    if [ -n "$stop" ]; then (/bin/busybox sleep $stop; kill -9 $told) & fi
fi
echo "READY"
case $work in
    spin|serve) while :; do :; done ;;
    exit) /bin/busybox poweroff -f ;;
esac
while :; do /bin/busybox sleep 3600; done
"#;

/// A guest that is ready to boot.
#[derive(Clone, Debug)]
pub struct Guest {
    /// Path of the kernel, for QEMU's `-kernel`.
    pub kernel: PathBuf,
    /// Path of the initial file system, for QEMU's `-initrd`.
    pub initramfs: PathBuf,
}

/// Work of the guest after the boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Computes forever in the shell.
    Spin,
    /// Computes forever, and has an urgent task that echoes lines from a virtio-serial port.
    Serve,
    /// Sleeps forever in the shell.
    Idle,
    /// Powers off immediately. QEMU then exits with success.
    Exit,
}

impl Work {
    const ALL: [Self; 4] = [Self::Spin, Self::Serve, Self::Idle, Self::Exit];

    /// Returns the kernel's command line that selects this work.
    pub(crate) fn kernel_arguments(self) -> String {
        format!("{} slackline.work={}", KERNEL_ARGUMENTS.join(" "), self.name())
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Spin => "spin",
            Self::Serve => "serve",
            Self::Idle => "idle",
            Self::Exit => "exit",
        }
    }
}

impl FromStr for Work {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        let named = Self::ALL.into_iter().find(|work| work.name() == name);
        named.with_context(|| {
            format!("`{name}` is not work of a guest: use `spin`, `serve`, `idle` or `exit`")
        })
    }
}

impl Guest {
    /// Returns a command that runs this guest in QEMU. The guest has one emulated vCPU, on a thread
    /// named `CPU 0/TCG`. The serial line is written to the file `serial`, and QMP listens at the
    /// UNIX socket `monitor`.
    ///
    /// Emulation is requested explicitly. `accel=kvm:tcg` falls back to emulation only if KVM
    /// cannot create a VM. On some hosts KVM creates a VM but cannot run this kernel in it.
    #[must_use]
    pub fn qemu(&self, work: Work, serial: &Path, monitor: &Path) -> Command {
        let mut qemu = Command::new("qemu-system-x86_64");
        // The guest has only the devices that are named here: no network, disk, screen or user
        // configuration.
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        qemu.args(["-name", "web,debug-threads=on", "-machine", "pc", "-accel", "tcg"]);
        // One vCPU is enough for one spinning task. The kernel and the unpacked initial file system
        // fit in 72 MB, but not in 64 MB.
        qemu.args(["-smp", "1", "-m", "96"]);
        qemu.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(&self.initramfs);
        qemu.args(["-append", &work.kernel_arguments()]);
        qemu.arg("-serial").arg(with_path("file:", serial, ""));
        qemu.arg("-qmp").arg(with_path("unix:", monitor, ",server=on,wait=off"));
        qemu
    }
}

/// Returns a QEMU option with a path. A comma in the path would end the option, so each comma is
/// doubled.
fn with_path(before: &str, path: &Path, after: &str) -> OsString {
    let mut option = before.as_bytes().to_vec();
    for &byte in path.as_os_str().as_bytes() {
        option.extend(if byte == b',' { b",,".to_vec() } else { vec![byte] });
    }
    option.extend(after.as_bytes());
    OsString::from_vec(option)
}

/// Builds the guest in the folder `cache`, unless that folder already contains it.
///
/// # Errors
///
/// If a package cannot be downloaded or unpacked, or the folder cannot be written.
pub fn fetch(cache: &Path) -> Result<Guest> {
    fs::create_dir_all(cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let guest = Guest { kernel: cache.join("vmlinuz"), initramfs: cache.join("initramfs.cpio") };
    let modules = MODULES.map(|name| cache.join(format!("{name}.ko")));
    // Kernel and modules must come from one package. Otherwise the kernel rejects the modules.
    if !guest.kernel.exists() || !modules.iter().all(|module| module.exists()) {
        let package = newest_kernel_package()?;
        let folder =
            reported(&format!("downloading {package}"), cache, || unpack(&package, cache))?;
        for (module, name) in modules.iter().zip(MODULES) {
            put(module, &module_of(&folder, name)?)?;
        }
        put(&guest.kernel, &fs::read(only_kernel(&folder.join("boot"))?)?)?;
        fs::remove_dir_all(folder)?;
    }
    let busybox = cache.join("busybox");
    if !busybox.exists() {
        let what = format!("downloading {BUSYBOX_PACKAGE}");
        let folder = reported(&what, cache, || unpack(BUSYBOX_PACKAGE, cache))?;
        put(&busybox, &fs::read(folder.join("bin/busybox"))?)?;
        fs::remove_dir_all(folder)?;
    }
    // The content is compared, because the source of the first process may have changed.
    let mut programs = vec![(
        "bin/slackline-agent".to_owned(),
        fs::read(reported("building the agent", cache, agent)?)?,
    )];
    for (module, name) in modules.iter().zip(MODULES) {
        programs.push((format!("modules/{name}.ko"), fs::read(module)?));
    }
    let archive = initramfs(&fs::read(&busybox)?, &programs);
    if fs::read(&guest.initramfs).ok().as_ref() != Some(&archive) {
        put(&guest.initramfs, &archive)?;
    }
    Ok(guest)
}

/// Interval at which the progress of a long step is reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// Runs a step. Reports its start, its progress and its duration on standard error. A step of less
/// than a second is not reported.
fn reported<T>(what: &str, cache: &Path, step: impl FnOnce() -> Result<T>) -> Result<T> {
    let began = Instant::now();
    let (done, is_done) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut wait = Duration::from_secs(1);
            while is_done.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                let (seconds, size) = (began.elapsed().as_secs(), bytes_in(cache) >> 20);
                eprintln!("guest: {what}: {seconds} s, {size} MiB in {}", cache.display());
                wait = REPORT_INTERVAL;
            }
        });
        let result = step();
        drop(done);
        result
    })
}

/// Returns the bytes of all files in a folder. Files that cannot be read count as empty.
fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() => bytes_in(&entry.path()),
        Ok(data) => data.len(),
        Err(_) => 0,
    });
    bytes.sum()
}

/// Builds the agent without shared libraries, which the guest lacks. Returns its path.
fn agent() -> Result<PathBuf> {
    let version = run(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("`rustc -vV` names no host")?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--locked", "--release", "--package", "slackline-agent"]);
    // With an explicit target, build scripts are built as usual.
    cargo.args(["--target", host]).env("RUSTFLAGS", "-C target-feature=+crt-static");
    run(&mut cargo)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
    Ok(target.join(host).join("release/slackline-agent"))
}

/// Returns a kernel module from an unpacked package, decompressed.
fn module_of(package: &Path, name: &str) -> Result<Vec<u8>> {
    let mut folders = vec![package.join("lib/modules"), package.join("usr/lib/modules")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry?.path();
            let is = |file: String| path.file_name().is_some_and(|it| it == file.as_str());
            if path.is_dir() {
                folders.push(path);
            } else if is(format!("{name}.ko")) {
                return Ok(fs::read(path)?);
            } else if is(format!("{name}.ko.xz")) {
                let output = Command::new("xz").arg("-dc").arg(&path).output()?;
                ensure!(output.status.success(), "cannot unpack {}", path.display());
                return Ok(output.stdout);
            }
        }
    }
    bail!("{} has no module {name}", package.display())
}

/// Writes a file completely or not at all, even if this program is interrupted.
fn put(path: &Path, content: &[u8]) -> Result<()> {
    let unfinished = path.with_extension("unfinished");
    let write = || -> std::io::Result<()> {
        fs::write(&unfinished, content)?;
        fs::rename(&unfinished, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the name of the newest kernel package, on which `KERNEL_PACKAGE` depends.
fn newest_kernel_package() -> Result<String> {
    let listing = run(Command::new("apt-cache").args(["depends", "--important", KERNEL_PACKAGE]))
        .with_context(|| without_lists(KERNEL_PACKAGE))?;
    let mut words = listing.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    words
        .find(|name| name.starts_with("linux-image-"))
        .map(str::to_owned)
        .with_context(|| without_lists(KERNEL_PACKAGE))
}

fn without_lists(package: &str) -> String {
    format!(
        "cannot get the package {package}\n\
         hint:  this needs Debian with its package lists: `apt-get update`, as root"
    )
}

/// Downloads a package and unpacks it in its own folder inside `cache`.
fn unpack(package: &str, cache: &Path) -> Result<PathBuf> {
    let folder = cache.join(format!("{package}.unpacked"));
    // An interrupted run may have left an incomplete folder.
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    // Without this option, apt run by root downloads as another user, who cannot write to this
    // folder.
    let mut download = Command::new("apt-get");
    download.args(["-q", "-o", "APT::Sandbox::User=root", "download", package]);
    run(download.current_dir(&folder)).with_context(|| without_lists(package))?;
    let archive = only_entry(&folder, |name| name.ends_with(".deb"))?;
    run(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&folder))?;
    Ok(folder)
}

fn only_kernel(boot: &Path) -> Result<PathBuf> {
    only_entry(boot, |name| name.starts_with("vmlinuz-"))
}

fn only_entry(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("no {}", folder.display()))? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(&wanted) {
            found.push(entry.path());
        }
    }
    let names = || found.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
    ensure!(found.len() == 1, "expected one file in {}, found {:?}", folder.display(), names());
    Ok(found.remove(0))
}

/// Returns the output of a command. If the command fails, the error contains its messages.
fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .env("LC_ALL", "C")
        .output()
        .with_context(|| format!("cannot run {program}: is it installed?"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program} ended with {}: {}", output.status, said.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("{program} printed no text"))
}

/// Kind and content of an entry in the archive.
enum Entry<'a> {
    Folder,
    /// An executable file with its content.
    Program(&'a [u8]),
    /// The console device (5, 1). Without it, the output of the first process is lost.
    Console,
}

/// Returns the initial file system as a cpio archive. The format is `newc`, because kernels accept
/// no other.
fn initramfs(busybox: &[u8], programs: &[(String, Vec<u8>)]) -> Vec<u8> {
    let init = INIT.replace("READY", READY).replace("MODULES", &MODULES.join(" "));
    let mut entries = vec![
        ("bin", Entry::Folder),
        ("bin/busybox", Entry::Program(busybox)),
        ("dev", Entry::Folder),
        ("dev/console", Entry::Console),
        ("init", Entry::Program(init.as_bytes())),
        ("modules", Entry::Folder),
        ("proc", Entry::Folder),
        ("sys", Entry::Folder),
    ];
    entries.extend(programs.iter().map(|(name, content)| (&name[..], Entry::Program(content))));
    let mut archive = Vec::new();
    for (number, (name, entry)) in (1..).zip(entries) {
        append(&mut archive, number, name, &entry);
    }
    // An empty regular file with this name marks the end of an archive.
    append(&mut archive, 0, "TRAILER!!!", &Entry::Program(b""));
    archive
}

/// Appends an entry to the archive: thirteen numbers of eight hexadecimal digits each, the name
/// with a final zero byte, and the content. Name and content are padded to a multiple of four
/// bytes.
fn append(archive: &mut Vec<u8>, number: usize, name: &str, entry: &Entry<'_>) {
    let none: &[u8] = b"";
    let (mode, content, device) = match entry {
        Entry::Folder => (0o040_755, none, (0, 0)),
        Entry::Program(content) => (0o100_755, *content, (0, 0)),
        Entry::Console => (0o020_600, none, (5, 1)),
    };
    let (owner, group, links, changed, on_device) = (0, 0, 1, 0, (0, 0));
    let (size, name_size, checksum) = (content.len(), name.len() + 1, 0);
    let fields = [
        number,
        mode,
        owner,
        group,
        links,
        changed,
        size,
        on_device.0,
        on_device.1,
        device.0,
        device.1,
        name_size,
        checksum,
    ];
    archive.extend_from_slice(b"070701");
    for field in fields {
        archive.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    archive.extend_from_slice(name.as_bytes());
    archive.push(0);
    fill_up(archive);
    archive.extend_from_slice(content);
    fill_up(archive);
}

fn fill_up(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_archive_is_written_in_the_format_of_cpio() {
        let mut archive = Vec::new();
        append(&mut archive, 1, "init", &Entry::Program(b"hello"));
        let expected = "07070100000001000081ed0000000000000000000000010000000000000005\
                        00000000000000000000000000000000000000050000000\
                        0init\0\0hello\0\0\0";
        assert_eq!(String::from_utf8(archive).as_deref(), Ok(expected));
    }

    #[test]
    fn comma_in_a_path_within_a_qemu_option_is_doubled() {
        let option = with_path("unix:", Path::new("a,b"), ",server=on");
        assert_eq!(option, "unix:a,,b,server=on");
    }
}
