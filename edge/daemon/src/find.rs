//! Search for everything on this host that can have a reservation: VMs, containers, services,
//! cgroups and processes. In this module, each of them is called a *machine*. The search also finds
//! the names of machines, and which threads of a VM are vCPUs.
//!
//! The search reads procfs and cgroups. The only exception is a QEMU whose threads have no names:
//! its monitor may be asked. Any user can choose names and command lines of their own processes. So
//! a machine has an owner ([`Machine::owner`]), and only a process in a cgroup made by libvirt
//! counts as a domain of libvirt.
//!
//! The kernel reuses the id of a process that has ended. So [`find`] holds a descriptor of the
//! process while it reads, and checks at the end that the process still exists.

mod absent;
mod all;
mod around;
mod by_name;
mod called;
mod ending;
mod groups;
mod line;
mod process;
mod shown;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use slackline_linux::cgroup::{CgroupError, TreePlace};
use slackline_linux::sys::Tid;
use slackline_linux::thread::{ThreadError, ThreadRef, threads_of};
use slackline_live::session::JoinTarget;
use slackline_live::vcpus::{self, FindError, VcpuThread};
use slackline_service::{Binding, BindingKind, Identity};

use crate::monitors::{self, NotTold};

pub use absent::Absent;
pub use all::{MachineList, find_all, list_all};
pub(crate) use around::Around;
use by_name::{Asks, found_by_name};
use called::{MachineIdentity, called, is_called};
pub use ending::Ending;
use line::VmCommandLine;
use process::Process;
pub use shown::shown;

/// A machine: a VM, container, unit, cgroup or process that can have a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Kind of the machine. The kind determines where its name comes from.
    pub kind: Kind,
    /// Name given by the owner, escaped by [`shown()`]. Empty if the machine has no name.
    pub name: String,
    /// Binding by which the daemon can find the machine again. The binding contains the name of the
    /// machine or, if no binding can contain the name, its UUID. Without both it contains the
    /// process id.
    pub binding: Binding,
    /// UUID of a VM in lower case. `None` if the command line of the VM contains no UUID.
    pub uuid: Option<String>,
    /// Id of the user that owns the machine. A process with several user ids counts as root's. A
    /// cgroup belongs to the owner of its folder.
    pub owner: u32,
    /// True if only root can have set the name. This is so if libvirt created the cgroup, or if the
    /// parent folder of the cgroup belongs to the user root.
    pub is_vouched: bool,
    /// Identity of the machine, unique until the host is rebooted.
    pub identity: Identity,
    /// Threads that are vCPUs, sorted by the number of the vCPU. Empty if the machine is scheduled
    /// as a whole.
    pub vcpus: Vec<Vcpu>,
    /// All threads of a VM whose monitor reported the vCPUs. Empty for other machines.
    pub threads: Vec<Tid>,
    /// Reason why the vCPU threads of a VM cannot be found. `None` if they were found, or if the
    /// machine is not a VM.
    pub why: Option<String>,
    /// Path of the machine's version 2 cgroup, as `/proc/PID/cgroup` states it. `None` if the path
    /// cannot be read.
    pub group: Option<PathBuf>,
}

/// Kind of a machine: a VM of a certain program, a container, a unit, a cgroup or a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A VM that libvirt manages.
    Libvirt,
    /// A VM of QEMU that is not in a cgroup of libvirt.
    Qemu,
    /// A Firecracker VM, with or without jailer.
    Firecracker,
    /// A Cloud Hypervisor VM.
    CloudHypervisor,
    /// A VM of crosvm.
    Crosvm,
    /// A VM of kvmtool, whose program is `lkvm`.
    Kvmtool,
    /// A container of any runtime.
    Container,
    /// A unit of systemd.
    Unit,
    /// A cgroup that is neither a container nor a unit.
    Group,
    /// A process that is not a VM.
    Process,
}

impl Kind {
    /// Returns the kind as the word that users see.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Kind::Libvirt => "libvirt",
            Kind::Qemu => "qemu",
            Kind::Firecracker => "firecracker",
            Kind::CloudHypervisor => "cloud-hypervisor",
            Kind::Crosvm => "crosvm",
            Kind::Kvmtool => "kvmtool",
            Kind::Container => "container",
            Kind::Unit => "unit",
            Kind::Group => "cgroup",
            Kind::Process => "process",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.word())
    }
}

/// A thread of a VM that is a vCPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vcpu {
    /// Number of the vCPU in its VM. The numbers of a VM's vCPUs can have gaps.
    pub number: u32,
    /// Id of the thread.
    pub tid: Tid,
    /// Name of the thread, escaped by [`shown()`].
    pub name: String,
}

/// A machine that was found, with a descriptor that reports its end.
#[derive(Debug)]
pub struct FoundMachine {
    /// Description of the machine.
    pub machine: Machine,
    /// Descriptor of the process or cgroup, opened before the properties in `machine` were read. As
    /// long as this descriptor does not report the end, all ids in `machine` refer to this machine.
    pub ending: Ending,
    /// Cgroup of the machine, with the cgroup to which its processes return when they are restored.
    /// `None` if the machine is a process.
    place: Option<TreePlace>,
}

impl FoundMachine {
    /// Returns the processes of the machine: all processes in its cgroup, or its only process.
    ///
    /// # Errors
    /// If the cgroup cannot be read, or has too many processes or cgroups below it.
    pub fn processes(&self) -> Result<Vec<Tid>, CgroupError> {
        match &self.place {
            Some(place) => place.processes(),
            None => Ok(self.machine.pid().into_iter().collect()),
        }
    }

    /// Returns the vCPU `number` in the form in which a live session can schedule it. A machine
    /// without vCPUs is scheduled as a whole, as number 0: a process with all its descendants, or a
    /// cgroup.
    ///
    /// The returned value holds a descriptor, so that it always refers to a thread of this machine.
    ///
    /// # Errors
    /// If the machine has ended, has no such vCPU, or must not be scheduled.
    pub fn join_target(&self, number: u16) -> Result<JoinTarget, Absent> {
        if let Some(place) = &self.place {
            return Ok(JoinTarget::Group(place.clone()));
        }
        let gone = || not_here(&self.machine.binding);
        let pid = self.machine.pid().ok_or_else(gone)?;
        let who = if self.machine.vcpus.is_empty() && number == 0 {
            JoinTarget::Tree(pid)
        } else {
            let is_it = |vcpu: &&Vcpu| vcpu.number == u32::from(number);
            let vcpu = self.machine.vcpus.iter().find(is_it).ok_or_else(gone)?;
            JoinTarget::Thread(ThreadRef::open(pid, vcpu.tid)?)
        };
        // The process existed during the whole look-up, so the ids were its own.
        match self.ending.has_ended() {
            Ok(false) => Ok(who),
            Ok(true) => Err(gone()),
            Err(source) => Err(unreadable(pid, "", source)),
        }
    }
}

impl Machine {
    /// Returns true if the binding refers to this machine.
    #[must_use]
    pub fn is(&self, binding: &Binding) -> bool {
        let number = self.pid().and_then(|pid| u32::try_from(pid.raw()).ok());
        match binding.kind() {
            BindingKind::Pid => number.is_some() && number == binding.pid(),
            BindingKind::Unit | BindingKind::Group => self.binding == *binding,
            _ => is_called((self.kind, &self.name, self.uuid.as_deref()), binding),
        }
    }

    /// Converts the machine to the type that the service uses.
    #[must_use]
    pub fn in_service(&self) -> slackline_service::Machine {
        let numbers = self.vcpus.iter().filter_map(|vcpu| u16::try_from(vcpu.number).ok());
        let mut vcpus: Vec<u16> = numbers.collect();
        if vcpus.is_empty() {
            vcpus.push(0);
        }
        let Machine { identity, owner: user, is_vouched, .. } = *self;
        let by_uuid = self.by_uuid();
        slackline_service::Machine { identity, user, is_vouched, by_uuid, vcpus }
    }

    /// Returns the binding by UUID if the machine is a libvirt domain. Otherwise returns `None`.
    #[must_use]
    pub fn by_uuid(&self) -> Option<Binding> {
        let uuid = self.uuid.as_ref().filter(|_| self.kind == Kind::Libvirt)?;
        Binding::new(BindingKind::Uuid, uuid).ok()
    }

    /// Returns the id of the machine's process. `None` if the machine is a cgroup.
    #[must_use]
    pub fn pid(&self) -> Option<Tid> {
        match self.identity {
            Identity::Process { pid, .. } => i32::try_from(pid).ok().and_then(Tid::new),
            Identity::Group { .. } => None,
        }
    }
}

/// Returns the machine to which a binding refers.
///
/// If the machine is a VM, the result contains its vCPU threads. A QEMU may be asked for these
/// threads over QMP, which can take two seconds.
///
/// # Errors
/// If no machine or several machines match the binding, or if the machine must not be scheduled.
pub fn find(binding: &Binding) -> Result<FoundMachine, Absent> {
    find_of(binding, None)
}

/// Finds a machine as [`find`] does. If several machines have the name, prefers machines of `user`.
/// If `user` is root, also prefers domains of libvirt. So a VM can be found even if another user
/// gives a VM the same name.
///
/// # Errors
/// The same errors as [`find`].
pub fn find_of(binding: &Binding, user: Option<u32>) -> Result<FoundMachine, Absent> {
    find_asking(binding, user, Asks::Monitors)
}

/// Finds a machine for a caller as [`find_of`] does. A monitor serves one client at a time. So the
/// function asks only monitors of users for whom `may_have` returns true.
///
/// # Errors
/// The same errors as [`find`], and [`Absent::NotYours`] if another user's monitor would have to be
/// asked.
pub fn find_for(
    binding: &Binding,
    user: u32,
    may_have: &dyn Fn(u32) -> bool,
) -> Result<FoundMachine, Absent> {
    find_asking(binding, Some(user), Asks::MonitorsOf(may_have))
}

/// Finds a machine for a tenant as [`find_for`] does. A tenant must not learn the names of other
/// users' VMs. So a VM of a user for whom `may_have` returns false is not found by name or UUID.
///
/// # Errors
/// The same errors as [`find_for`].
pub fn find_own(
    binding: &Binding,
    user: u32,
    may_have: &dyn Fn(u32) -> bool,
) -> Result<FoundMachine, Absent> {
    find_asking(binding, Some(user), Asks::VmsOf(may_have))
}

/// Finds a machine as [`find_of`] does, but never asks a VM's monitor. So the function returns
/// without waiting.
///
/// # Errors
/// The same errors as [`find`], and [`Absent::NotAsked`] if only a monitor knows the vCPUs.
pub fn find_at_once(binding: &Binding, user: Option<u32>) -> Result<FoundMachine, Absent> {
    find_asking(binding, user, Asks::Nobody)
}

fn find_asking(
    binding: &Binding,
    user: Option<u32>,
    asks: Asks<'_>,
) -> Result<FoundMachine, Absent> {
    match binding.kind() {
        BindingKind::Unit => {
            let place = TreePlace::of_unit(binding.name())?;
            found_group(binding, Kind::Unit, &place)
        }
        BindingKind::Group => {
            let place = TreePlace::existing(Path::new(binding.name()))?;
            found_group(binding, Kind::Group, &place)
        }
        BindingKind::Pid => {
            let pid = binding.pid().and_then(|pid| i32::try_from(pid).ok()).and_then(Tid::new);
            let pid = pid.ok_or_else(|| not_here(binding))?;
            found_process(binding, pid, asks)
        }
        BindingKind::Libvirt
        | BindingKind::Qemu
        | BindingKind::Uuid
        | BindingKind::Firecracker
        | BindingKind::CloudHypervisor => found_by_name(binding, user, asks),
    }
}

/// Returns the bindings of all machines with the name `name`, for use with [`find`]. The name of a
/// service can be given with or without `.service`.
///
/// # Errors
/// If procfs is not mounted.
pub fn named(name: &str) -> Result<Vec<Binding>, Absent> {
    named_for(name, &|_| true)
}

/// Returns bindings of machines with the name `name`, as [`named`] does. The function `may_have`
/// returns true for each user whose machines the caller may use. If such machines have the name,
/// only their bindings are returned. Otherwise the binding of one other machine is returned.
///
/// # Errors
/// If procfs is not mounted.
pub fn named_for(name: &str, may_have: &dyn Fn(u32) -> bool) -> Result<Vec<Binding>, Absent> {
    let mut found = all_named(name)?;
    match found.iter().filter(|machine| may_have(machine.owner)).count() {
        0 => found.truncate(1),
        _ => found.retain(|machine| may_have(machine.owner)),
    }
    Ok(found.into_iter().map(|machine| machine.binding).collect())
}

/// Returns bindings for a tenant as [`named_for`] does, but only of machines of the users for whom
/// `may_have` returns true.
///
/// # Errors
/// If procfs is not mounted.
pub fn named_own(name: &str, may_have: &dyn Fn(u32) -> bool) -> Result<Vec<Binding>, Absent> {
    let found = all_named(name)?.into_iter().filter(|machine| may_have(machine.owner));
    Ok(found.map(|machine| machine.binding).collect())
}

fn all_named(name: &str) -> Result<Vec<Machine>, Absent> {
    let mut found = find_all()?;
    found.retain(|machine| {
        let short = machine.name.strip_suffix(".service").filter(|_| machine.kind == Kind::Unit);
        machine.name == name || short == Some(name)
    });
    Ok(found)
}

/// Returns the binding of the libvirt domain with this name. `None` if libvirt allows no such name.
#[must_use]
pub fn libvirt_binding(name: &str) -> Option<Binding> {
    Binding::new(BindingKind::Libvirt, &shown::bound(name.as_bytes())).ok()
}

/// Passes a text to every parser of procfs files, for fuzzing.
#[cfg(test)]
pub(crate) fn read_anything(text: &[u8]) {
    line::read(text);
    groups::of_libvirt(text);
    groups::of_jailer(text);
    groups::unified(text).and_then(groups::known);
    groups::known(text);
    process::owner(text);
    ending::is_populated(text);
    let _ = slackline_linux::thread::Stat::parse(text);
    let _ = shown(text);
}

fn not_here(binding: &Binding) -> Absent {
    Absent::NotHere { binding: binding.clone() }
}

fn all() -> Result<Vec<Tid>, Absent> {
    process::all().map_err(|source| Absent::Unreadable { path: "/proc".into(), source })
}

/// Opens a descriptor of a process, then reads the process's properties.
fn found_process(binding: &Binding, pid: Tid, asks: Asks<'_>) -> Result<FoundMachine, Absent> {
    process::may_be_held(pid)?;
    let gone = || not_here(binding);
    let (ending, inode) = match Ending::of_process(pid) {
        Ok(held) => held,
        Err(error) if is_missing(&error) => return Err(gone()),
        Err(source) => return Err(unreadable(pid, "", source)),
    };
    let process = Process::read(pid).map_err(|source| unreadable(pid, "cmdline", source))?;
    // A process has no command line while it loads a program, and some never have one.
    let process = process.unwrap_or(Process { pid, line: Vec::new() });
    let groups = process.groups().map_err(|source| unreadable(pid, "cgroup", source))?;
    let called = match line::read(&process.line) {
        Some(said) => called(&said, &groups),
        None => {
            MachineIdentity { kind: Kind::Process, name: program_of(&process.line), uuid: None }
        }
    };
    let mut threads = vcpus::find_named(pid.raw())?;
    let mut all_threads = Vec::new();
    if threads.is_empty() && called.kind != Kind::Process {
        // A VM without a monitor socket cannot be asked. It is found without vCPUs.
        let is_answerable = !matches!(vcpus::find_qmp_socket(pid.raw()), Ok(None));
        if matches!(asks, Asks::Nobody) && is_answerable {
            return Err(Absent::NotAsked { binding: binding.clone() });
        }
        let user = process.owner().map_err(|source| unreadable(pid, "status", source))?;
        if !asks.may_ask(user) {
            return Err(Absent::NotYours { binding: binding.clone(), user });
        }
        // Threads are read before the monitor is asked, so that a thread that starts meanwhile
        // counts as new.
        all_threads = threads_of(pid)?;
        let started = process.started().map_err(|source| unreadable(pid, "stat", source))?;
        threads = monitors::ask(pid, started, user).map_err(|why| match why {
            NotTold::Failed(error) => error.into(),
            NotTold::Silent(why, left) => Absent::Silent { why, left },
        })?;
    }
    let mut machine = described(&process, called, &groups, (&threads, inode))
        .map_err(|source| unreadable(pid, "status", source))?;
    machine.threads = all_threads;
    // Only this check proves that everything was read from one process.
    if !machine.is(binding) || ending.has_ended().map_err(|source| unreadable(pid, "", source))? {
        return Err(gone());
    }
    Ok(FoundMachine { machine, ending, place: None })
}

fn is_missing(error: &io::Error) -> bool {
    // The kernel answers `EINVAL` for the id of a thread that is not a process.
    let codes = [libc::ESRCH, libc::EINVAL, libc::ENOENT];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

fn unreadable(pid: Tid, file: &str, source: io::Error) -> Absent {
    if is_missing(&source) {
        return Absent::Untouchable(ThreadError::Gone { pid, tid: pid });
    }
    let path = Path::new("/proc").join(pid.to_string()).join(file);
    Absent::Unreadable { path, source }
}

/// Returns the name of the program in a command line, without its folder.
fn program_of(line: &[u8]) -> String {
    let word = line.split(|&byte| byte == 0).next().unwrap_or_default();
    shown(word.rsplit(|&byte| byte == b'/').next().unwrap_or(word))
}

/// Returns a VM whose vCPUs are identified by the names of its threads. `None` if the VM must not
/// be scheduled.
fn named_machine(
    process: &Process,
    said: &VmCommandLine,
    groups: &[u8],
) -> Result<Option<Machine>, Absent> {
    let pid = process.pid;
    if process::may_be_held(pid).is_err() {
        return Ok(None);
    }
    let failed = |source| unreadable(pid, "status", source);
    let (_, inode) = Ending::of_process(pid).map_err(failed)?;
    let (threads, why) = match vcpus::find_named(pid.raw()) {
        Ok(threads) if threads.is_empty() => (threads, why_not_named(process)),
        Ok(threads) => (threads, None),
        Err(error @ FindError::NoProcess { .. }) => return Err(error.into()),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let called = called(said, groups);
    let machine = described(process, called, groups, (&threads, inode)).map_err(failed)?;
    Ok(Some(Machine { why, ..machine }))
}

/// Returns the reason why the vCPU threads of a VM without thread names cannot be found. `None` if
/// the VM's monitor can be asked and has not failed.
fn why_not_named(process: &Process) -> Option<String> {
    let pid = process.pid;
    match vcpus::find_qmp_socket(pid.raw()) {
        Ok(Some(_)) => monitors::last_failure(pid, process.started().ok()?),
        Ok(None) => Some(FindError::NotFound { pid: pid.raw() }.to_string()),
        Err(error) => Some(error.to_string()),
    }
}

fn described(
    process: &Process,
    called: MachineIdentity,
    groups: &[u8],
    (threads, inode): (&[VcpuThread], Option<u64>),
) -> io::Result<Machine> {
    let pid = process.pid;
    let binding = called.binding(pid).ok_or(io::ErrorKind::InvalidData)?;
    let identity = Identity::Process {
        pid: u32::try_from(pid.raw()).map_err(|_| io::ErrorKind::InvalidData)?,
        started: process.started()?.ticks(),
        inode: inode.unwrap_or(0),
    };
    let group =
        groups::unified(groups).map(|group| PathBuf::from(std::ffi::OsStr::from_bytes(group)));
    let vcpus = threads.iter().filter_map(|thread| vcpu(pid, *thread)).collect();
    let MachineIdentity { kind, name, uuid } = called;
    let owner = process.owner()?;
    // The process can have executed another program since its command line was read. Such a
    // program, like `sudo`, can have rights that the author of that line lacks.
    if kind != Kind::Process && !process.has_same_line()? {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    let is_vouched = kind == Kind::Libvirt;
    Ok(Machine {
        kind,
        name,
        binding,
        uuid,
        owner,
        is_vouched,
        identity,
        vcpus,
        threads: Vec::new(),
        why: None,
        group,
    })
}

/// Returns a vCPU thread with its name. `None` if the thread has ended since it was found.
fn vcpu(pid: Tid, thread: VcpuThread) -> Option<Vcpu> {
    let tid = Tid::new(thread.tid)?;
    let name = fs::read(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
    let name = shown(name.strip_suffix(b"\n").unwrap_or(&name));
    Some(Vcpu { number: thread.index, tid, name })
}

/// Returns the machine that a known cgroup represents. `None` if the machine must not be scheduled,
/// or if the cgroup has just been removed.
fn group_of(known: &groups::KnownGroup) -> Option<Machine> {
    let (kind, binding) = match known.what {
        groups::GroupKind::Container => (Kind::Container, None),
        groups::GroupKind::Unit => {
            let name = std::str::from_utf8(&known.name).ok()?;
            (Kind::Unit, Binding::new(BindingKind::Unit, name).ok())
        }
    };
    let by_path = || Binding::new(BindingKind::Group, known.group.to_str()?).ok();
    let binding = binding.or_else(by_path)?;
    let place = TreePlace::existing(&known.group).ok()?;
    let FoundMachine { mut machine, .. } = found_group(&binding, kind, &place).ok()?;
    machine.name = shown(&known.name);
    machine.group = Some(known.group.clone());
    Some(machine)
}

fn found_group(binding: &Binding, kind: Kind, place: &TreePlace) -> Result<FoundMachine, Absent> {
    let path = &place.group;
    let failed = |source| Absent::Unreadable { path: path.clone(), source };
    let (ending, inode) = Ending::of_group(path).map_err(failed)?;
    if ending.has_ended().map_err(failed)? {
        return Err(Absent::Empty { binding: binding.clone() });
    }
    // The members are not listed, since a user can nest units and can make thousands of cgroups in
    // the innermost one. Kernel threads are in the root cgroup, which contains this process too.
    if let Some(first) = Tid::new(1)
        && place.holds(first)?
    {
        return Err(ThreadError::Init.into());
    }
    let above = path.parent().unwrap_or(path);
    let parent = fs::metadata(above).map_err(failed)?;
    let machine = Machine {
        kind,
        name: shown(path.file_name().unwrap_or_default().as_bytes()),
        binding: binding.clone(),
        uuid: None,
        owner: fs::metadata(path).map_err(failed)?.uid(),
        is_vouched: parent.uid() == 0,
        identity: Identity::Group { inode },
        vcpus: Vec::new(),
        threads: Vec::new(),
        why: None,
        group: Some(path.clone()),
    };
    Ok(FoundMachine { machine, ending, place: Some(place.clone()) })
}
