//! Finds the machines of this host: what can carry a reservation, what it is called, and which of
//! its threads are vCPUs.
//!
//! All is read from procfs and cgroups; nobody is asked, but for a QEMU that is wanted and whose
//! threads have no names. Names and command lines are chosen by whoever starts a process, so what
//! is found under a name says whose it is ([`Machine::owner`]), and only what is in a group that
//! libvirt made counts as a domain of libvirt.
//!
//! A process number is given to somebody else once its process is gone. What [`find`] returns was
//! therefore read while a descriptor of the process was held, and the process was there after it.

mod absent;
mod called;
mod ending;
mod groups;
mod line;
mod process;
mod shown;

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use slackline_linux::cgroup::TreePlace;
use slackline_linux::sys::Tid;
use slackline_linux::thread::{ThreadError, ThreadRef, threads_of};
use slackline_live::session::Who;
use slackline_live::vcpus::{self, FindError, VcpuThread};
use slackline_service::{Binding, BindingKind, Identity};

use crate::monitors::{self, NotTold};

pub use absent::Absent;
use called::{Called, called, is_called};
pub use ending::Ending;
use line::Said;
use process::Process;
pub use shown::shown;

/// Something that can carry a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// What it is.
    pub kind: Kind,
    /// What its owner calls it, as it is [`shown`]; empty if it has no name.
    pub name: String,
    /// How it is found again: as people would say it, by what lasts longest.
    pub binding: Binding,
    /// The UUID of a virtual machine, in small letters, if it says one.
    pub uuid: Option<String>,
    /// The user whose it is: that of the process, root for one that is several users at once; of a
    /// group, whose folder it is.
    pub owner: u32,
    /// Whether only root can have made what it is called by: the group that libvirt put it into, or
    /// the group that it is.
    pub is_vouched: bool,
    /// Which one it is, for as long as the host is up.
    pub identity: Identity,
    /// The threads that are its vCPUs, by number; none for what is scheduled as one.
    pub vcpus: Vec<Vcpu>,
    /// All its threads, where its monitor told which are its vCPUs.
    pub threads: Vec<Tid>,
    /// Why its vCPU threads cannot be told, where it is a virtual machine and they cannot.
    pub why: Option<String>,
    /// Its group of version 2, as the kernel names it, as far as that can be seen.
    pub group: Option<PathBuf>,
}

/// What carries a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A domain of libvirt.
    Libvirt,
    /// A QEMU that is not in a group that libvirt made.
    Qemu,
    /// A Firecracker.
    Firecracker,
    /// A Cloud Hypervisor.
    CloudHypervisor,
    /// A crosvm.
    Crosvm,
    /// A kvmtool.
    Kvmtool,
    /// A container.
    Container,
    /// A unit of systemd.
    Unit,
    /// Any other cgroup.
    Group,
    /// Any other process.
    Process,
}

impl Kind {
    /// It in a word.
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

/// A thread that is a vCPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vcpu {
    /// Which vCPU of its machine; there may be gaps.
    pub number: u32,
    /// The thread.
    pub tid: Tid,
    /// What the thread is called, as it is [`shown`].
    pub name: String,
}

/// A machine, and how its end is heard of.
#[derive(Debug)]
pub struct Found {
    /// The machine.
    pub machine: Machine,
    /// Held since before the machine was looked at: as long as it has not ended, the numbers mean
    /// this machine.
    pub ending: Ending,
    place: Option<TreePlace>,
}

impl Found {
    /// Whom a live session is to schedule as one of its vCPUs, by number. What has none is
    /// scheduled as one, as number 0: a process with all that descends from it, a group as it is.
    ///
    /// The thread is held when this returns, and is this machine's.
    ///
    /// # Errors
    /// When the machine has ended, has no such vCPU, or may not be touched by us.
    pub fn who(&self, number: u16) -> Result<Who, Absent> {
        if let Some(place) = &self.place {
            return Ok(Who::Group(place.clone()));
        }
        let gone = || not_here(&self.machine.binding);
        let pid = self.machine.pid().ok_or_else(gone)?;
        let who = if self.machine.vcpus.is_empty() && number == 0 {
            Who::Tree(pid)
        } else {
            let is_it = |vcpu: &&Vcpu| vcpu.number == u32::from(number);
            let vcpu = self.machine.vcpus.iter().find(is_it).ok_or_else(gone)?;
            Who::Thread(ThreadRef::open(pid, vcpu.tid)?)
        };
        // The process was there all the time, so the numbers were its own.
        match self.ending.has_ended() {
            Ok(false) => Ok(who),
            Ok(true) => Err(gone()),
            Err(source) => Err(unreadable(pid, "", source)),
        }
    }
}

impl Machine {
    /// Whether it goes by that binding.
    #[must_use]
    pub fn is(&self, binding: &Binding) -> bool {
        let number = self.pid().and_then(|pid| u32::try_from(pid.raw()).ok());
        match binding.kind() {
            BindingKind::Pid => number.is_some() && number == binding.pid(),
            BindingKind::Unit | BindingKind::Group => self.binding == *binding,
            _ => is_called((self.kind, &self.name, self.uuid.as_deref()), binding),
        }
    }

    /// It in the service's words.
    #[must_use]
    pub fn in_service(&self) -> slackline_service::Machine {
        let numbers = self.vcpus.iter().filter_map(|vcpu| u16::try_from(vcpu.number).ok());
        let mut vcpus: Vec<u16> = numbers.collect();
        if vcpus.is_empty() {
            vcpus.push(0);
        }
        let Machine { identity, owner: user, is_vouched, .. } = *self;
        slackline_service::Machine { identity, user, is_vouched, vcpus }
    }

    /// Its process; none for a group.
    #[must_use]
    pub fn pid(&self) -> Option<Tid> {
        match self.identity {
            Identity::Process { pid, .. } => i32::try_from(pid).ok().and_then(Tid::new),
            Identity::Group { .. } => None,
        }
    }
}

/// All virtual machines, containers and services of this host that may be held, in order of kind
/// and name. No monitor is asked: a QEMU whose threads have no names has no vCPUs here. One whose
/// vCPUs nothing tells is here all the same, with the reason.
///
/// What has just begun or is just ending may be left out. A machine may end while others are looked
/// at; [`find`] makes sure.
///
/// # Errors
/// When there is no procfs.
pub fn find_all() -> Result<Vec<Machine>, Absent> {
    let mut found = Vec::new();
    let mut known = BTreeMap::new();
    for pid in all()? {
        // One that ends meanwhile is not here.
        let Ok(Some(process)) = Process::read(pid) else { continue };
        let groups = process.groups().unwrap_or_default();
        if let Some(said) = line::read(&process.line)
            && let Ok(Some(machine)) = named_machine(&process, &said, &groups)
        {
            found.push(machine);
        }
        if let Some(group) = groups::unified(&groups).and_then(groups::known) {
            known.entry(group.group.clone()).or_insert(group);
        }
    }
    found.extend(known.into_values().filter_map(|known| group_of(&known)));
    found.sort_by(|a, b| (a.kind, &a.name, a.identity).cmp(&(b.kind, &b.name, b.identity)));
    Ok(found)
}

/// The machine that a binding means.
///
/// A virtual machine is returned with its vCPU threads, for which a QEMU may be asked over QMP:
/// that can take two seconds.
///
/// # Errors
/// Why there is none: not here, not one, or not to be held.
pub fn find(binding: &Binding) -> Result<Found, Absent> {
    find_of(binding, None)
}

/// As [`find`]; where several go by a name, only those of `user` count. Anybody can call his own as
/// others call theirs, and keeps them from nothing by that.
///
/// # Errors
/// As [`find`].
pub fn find_of(binding: &Binding, user: Option<u32>) -> Result<Found, Absent> {
    find_asking(binding, user, Asks::Monitors)
}

/// The same, at once: no monitor is asked.
///
/// # Errors
/// As [`find`]; [`Absent::NotAsked`] where only a monitor could tell.
pub fn find_at_once(binding: &Binding, user: Option<u32>) -> Result<Found, Absent> {
    find_asking(binding, user, Asks::Nobody)
}

/// Who is asked of what cannot be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asks {
    Monitors,
    Nobody,
}

fn find_asking(binding: &Binding, user: Option<u32>, asks: Asks) -> Result<Found, Absent> {
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

/// The machines that people mean by a name: one binding for each, as [`find`] takes it. A service
/// also goes by its name without `.service`.
///
/// # Errors
/// When there is no procfs.
pub fn named(name: &str) -> Result<Vec<Binding>, Absent> {
    let mut found = find_all()?;
    found.retain(|machine| {
        let short = machine.name.strip_suffix(".service").filter(|_| machine.kind == Kind::Unit);
        machine.name == name || short == Some(name)
    });
    Ok(found.into_iter().map(|machine| machine.binding).collect())
}

/// How the domain of libvirt is bound that has this name there.
#[must_use]
pub fn libvirt_binding(name: &str) -> Option<Binding> {
    Binding::new(BindingKind::Libvirt, &shown::bound(name.as_bytes())).ok()
}

/// Reads all that is read from procfs as if it were this.
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

fn found_by_name(binding: &Binding, user: Option<u32>, asks: Asks) -> Result<Found, Absent> {
    let mut fitting = Vec::new();
    for pid in all()? {
        let Ok(Some(process)) = Process::read(pid) else { continue };
        let Some(said) = line::read(&process.line) else { continue };
        let groups = process.groups().unwrap_or_default();
        let Called { kind, name, uuid } = called(&said, &groups);
        let is_it = is_called((kind, &name, uuid.as_deref()), binding);
        if is_it && process::may_be_held(pid).is_ok() {
            let is_roots = kind == Kind::Libvirt && user == Some(0);
            let is_meant = is_roots || user.is_some() && process.owner().ok() == user;
            fitting.push((pid, is_meant));
        }
    }
    if fitting.len() > 1 && fitting.iter().any(|&(_, is_meant)| is_meant) {
        fitting.retain(|&(_, is_meant)| is_meant);
    }
    // Programs fork, to become a daemon or to shut something in: that has the same command line.
    let carries =
        |(pid, _): &(Tid, bool)| vcpus::find_named(pid.raw()).is_ok_and(|found| !found.is_empty());
    if fitting.len() > 1 && fitting.iter().any(carries) {
        fitting.retain(carries);
    }
    match *fitting {
        [] => Err(not_here(binding)),
        [(pid, _)] => found_process(binding, pid, asks),
        [(first, _), (second, _), ..] => {
            Err(Absent::Several { binding: binding.clone(), first, second })
        }
    }
}

/// Holds a process, then looks what it is.
fn found_process(binding: &Binding, pid: Tid, asks: Asks) -> Result<Found, Absent> {
    process::may_be_held(pid)?;
    let gone = || not_here(binding);
    let (ending, inode) = match Ending::of_process(pid) {
        Ok(held) => held,
        Err(error) if is_missing(&error) => return Err(gone()),
        Err(source) => return Err(unreadable(pid, "", source)),
    };
    let process = Process::read(pid).map_err(|source| unreadable(pid, "cmdline", source))?;
    // While a program is loaded it has no command line for a moment, and some have none at all.
    let process = process.unwrap_or(Process { pid, line: Vec::new() });
    let groups = process.groups().map_err(|source| unreadable(pid, "cgroup", source))?;
    let called = match line::read(&process.line) {
        Some(said) => called(&said, &groups),
        None => Called { kind: Kind::Process, name: program_of(&process.line), uuid: None },
    };
    let mut threads = vcpus::find_named(pid.raw())?;
    let mut all_threads = Vec::new();
    if threads.is_empty() && called.kind != Kind::Process {
        // Where there is no monitor to be asked, that is the answer.
        let is_answerable = !matches!(vcpus::find_qmp_socket(pid.raw()), Ok(None));
        if asks == Asks::Nobody && is_answerable {
            return Err(Absent::NotAsked { binding: binding.clone() });
        }
        // Read before the monitor is asked, so that a thread that starts meanwhile counts as new.
        all_threads = threads_of(pid)?;
        let started = process.started().map_err(|source| unreadable(pid, "stat", source))?;
        threads = monitors::ask(pid, started).map_err(|why| match why {
            NotTold::Failed(error) => error.into(),
            NotTold::Silent(left) => Absent::Silent { binding: binding.clone(), left },
        })?;
    }
    let mut machine = described(&process, called, &groups, (&threads, inode))
        .map_err(|source| unreadable(pid, "status", source))?;
    machine.threads = all_threads;
    // Only now it is known that all of this was about one process.
    if !machine.is(binding) || ending.has_ended().map_err(|source| unreadable(pid, "", source))? {
        return Err(gone());
    }
    Ok(Found { machine, ending, place: None })
}

fn is_missing(error: &io::Error) -> bool {
    // Of a number that is a thread and no process, the kernel says that it is invalid.
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

/// The program of a command line, without its folders.
fn program_of(line: &[u8]) -> String {
    let word = line.split(|&byte| byte == 0).next().unwrap_or_default();
    shown(word.rsplit(|&byte| byte == b'/').next().unwrap_or(word))
}

/// A virtual machine as far as names tell; none for one that nobody may hold.
fn named_machine(process: &Process, said: &Said, groups: &[u8]) -> Result<Option<Machine>, Absent> {
    let pid = process.pid;
    if process::may_be_held(pid).is_err() {
        return Ok(None);
    }
    let failed = |source| unreadable(pid, "status", source);
    let (_, inode) = Ending::of_process(pid).map_err(failed)?;
    let (threads, why) = match vcpus::find_named(pid.raw()) {
        Ok(threads) if threads.is_empty() => (threads, why_not_named(pid)),
        Ok(threads) => (threads, None),
        Err(error @ FindError::NoProcess { .. }) => return Err(error.into()),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let called = called(said, groups);
    let machine = described(process, called, groups, (&threads, inode)).map_err(failed)?;
    Ok(Some(Machine { why, ..machine }))
}

/// Why no threads are known of a machine none of whose threads is named as a vCPU. `None` where a
/// monitor can be asked.
fn why_not_named(pid: Tid) -> Option<String> {
    match vcpus::find_qmp_socket(pid.raw()) {
        Ok(Some(_)) => None,
        Ok(None) => Some(FindError::NotFound { pid: pid.raw() }.to_string()),
        Err(error) => Some(error.to_string()),
    }
}

fn described(
    process: &Process,
    called: Called,
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
    let Called { kind, name, uuid } = called;
    let owner = process.owner()?;
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

/// None for one that has ended meanwhile.
fn vcpu(pid: Tid, thread: VcpuThread) -> Option<Vcpu> {
    let tid = Tid::new(thread.tid)?;
    let name = fs::read(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
    let name = shown(name.strip_suffix(b"\n").unwrap_or(&name));
    Some(Vcpu { number: thread.index, tid, name })
}

/// A group that is known by its name; none for one that nobody may hold, or that has just gone.
fn group_of(known: &groups::Known) -> Option<Machine> {
    let (kind, binding) = match known.what {
        groups::What::Container => (Kind::Container, None),
        groups::What::Unit => {
            let name = std::str::from_utf8(&known.name).ok()?;
            (Kind::Unit, Binding::new(BindingKind::Unit, name).ok())
        }
    };
    let by_path = || Binding::new(BindingKind::Group, known.group.to_str()?).ok();
    let binding = binding.or_else(by_path)?;
    let place = TreePlace::existing(&known.group).ok()?;
    let Found { mut machine, .. } = found_group(&binding, kind, &place).ok()?;
    machine.name = shown(&known.name);
    machine.group = Some(known.group.clone());
    Some(machine)
}

fn found_group(binding: &Binding, kind: Kind, place: &TreePlace) -> Result<Found, Absent> {
    let path = &place.group;
    let failed = |source| Absent::Unreadable { path: path.clone(), source };
    let (ending, inode) = Ending::of_group(path).map_err(failed)?;
    if ending.has_ended().map_err(failed)? {
        return Err(Absent::Empty { binding: binding.clone() });
    }
    for pid in place.processes()? {
        match process::may_be_held(pid) {
            Ok(()) | Err(ThreadError::Gone { .. }) => {}
            Err(error) => return Err(error.into()),
        }
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
    Ok(Found { machine, ending, place: Some(place.clone()) })
}
