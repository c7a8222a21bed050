//! Identities of threads, read from procfs. Command arguments are read only to recognise
//! Slackline's own processes, and are never recorded.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use slackline_linux::sys::{Tid, thread_cpu_time};
use slackline_linux::thread::Stat;
use slackline_trace::HostThreadKind;
use slackline_units::{Span, is_unseen};

/// Identity of a thread, as read from procfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Kind of the thread, derived from its process.
    pub kind: HostThreadKind,
    /// Process of the thread. `None` if the process has ended.
    pub process: Option<Tid>,
    /// User id of the process.
    pub user: u32,
    /// Name of the thread.
    pub name: String,
    /// Name of the process.
    pub command: String,
    /// Name of the VM to which the process belongs. Empty if the process belongs to no VM.
    pub vm: String,
    /// Systemd unit or cgroup of the process. Empty for the root cgroup.
    pub group: String,
}

/// Source of the identities of threads.
pub trait Identify {
    /// Returns the identity of the thread with this id. If the thread has ended, the identity has
    /// no process.
    fn identify(&mut self, tid: Tid) -> Identity;

    /// Returns the present state of a thread. `None` if the state is unknown, as when a recording
    /// of the past is converted.
    fn stat(&mut self, _process: Tid, _tid: Tid) -> Option<Stat> {
        None
    }

    /// Returns the CPU time of a thread and its time on run queues, as the kernel counts them.
    /// `None` if these times are unknown.
    fn counted(&mut self, _process: Tid, _tid: Tid) -> Option<(Span, Span)> {
        None
    }
}

/// Reader that takes the identities of threads from procfs.
#[derive(Debug, Default)]
pub struct Procfs {
    /// Names of the processes that are VMs, by process id.
    vms: BTreeMap<i32, String>,
    /// Path of this process's program. `None` if it cannot be read.
    ourselves: Option<PathBuf>,
}

/// Verbs of the `slackline` command. A process that runs the command with one of these verbs is
/// part of the service, of a recorder or of a live run.
const OWN_VERBS: [&[u8]; 6] = [b"serve", b"serve-front", b"keep", b"record", b"hold", b"run"];

impl Procfs {
    /// Creates a reader. `vms` maps the id of each process that is a VM to the VM's name.
    #[must_use]
    pub fn new(vms: BTreeMap<i32, String>) -> Procfs {
        Procfs { vms, ourselves: fs::read_link("/proc/self/exe").ok() }
    }

    /// Registers a process as a VM with this name. Identities that are read from now on have the
    /// name.
    pub fn add_vm(&mut self, process: Tid, name: &str) {
        self.vms.insert(process.raw(), name.into());
    }

    /// Removes the VM with this name: no process belongs to it any more.
    pub fn remove_vm(&mut self, name: &str) {
        self.vms.retain(|_, vm| vm != name);
    }

    /// Returns true if a process runs this program with one of the verbs [`OWN_VERBS`].
    fn is_ours(&self, process: Tid) -> bool {
        let program = fs::read_link(format!("/proc/{process}/exe")).ok();
        if program.is_none() || program != self.ourselves {
            return false;
        }
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let verb = line.split(|&byte| byte == 0).nth(1).unwrap_or_default();
        OWN_VERBS.contains(&verb)
    }
}

impl Identify for Procfs {
    fn stat(&mut self, process: Tid, tid: Tid) -> Option<Stat> {
        Stat::of(process, tid).ok()
    }

    fn counted(&mut self, process: Tid, tid: Tid) -> Option<(Span, Span)> {
        let text = fs::read_to_string(format!("/proc/{process}/task/{tid}/schedstat")).ok()?;
        let ready = text.split_ascii_whitespace().nth(1)?.parse().ok().map(Span::from_ns)?;
        Some((thread_cpu_time(tid).ok()?, ready))
    }

    fn identify(&mut self, tid: Tid) -> Identity {
        let status = fs::read(format!("/proc/{tid}/status")).unwrap_or_default();
        let status = String::from_utf8_lossy(&status);
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let number = |text: &str| text.split_ascii_whitespace().next()?.parse::<i32>().ok();
        let process = field("Tgid:").and_then(number).and_then(Tid::new);
        let name = name_of(&format!("/proc/{tid}/comm"));
        let Some(process) = process else {
            return Identity {
                kind: HostThreadKind::Process,
                process: None,
                user: 0,
                name: format!("thread {tid}"),
                command: "(ended)".into(),
                vm: String::new(),
                group: String::new(),
            };
        };
        let user = field("Uid:").and_then(number).unwrap_or(0);
        let is_kernel = Stat::of(process, tid).is_ok_and(Stat::is_of_kernel);
        let vm = self.vms.get(&process.raw()).cloned().unwrap_or_default();
        let kind = if is_kernel {
            HostThreadKind::Kernel
        } else if !vm.is_empty() {
            HostThreadKind::Monitor
        } else if self.is_ours(process) {
            HostThreadKind::Slackline
        } else {
            HostThreadKind::Process
        };
        let group = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
        Identity {
            kind,
            process: Some(process),
            user: user.cast_unsigned(),
            name: name.clone().unwrap_or_default(),
            command: name_of(&format!("/proc/{process}/comm")).or(name).unwrap_or_default(),
            vm,
            group: if is_kernel { String::new() } else { unit(&group) },
        }
    }
}

/// Reads a name that a user can set, such as the name of a thread. `None` if the file cannot be
/// read.
fn name_of(file: &str) -> Option<String> {
    let bytes = fs::read(file).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    Some(clean(text.trim_end_matches('\n')))
}

/// Replaces control characters and invisible characters by `?`.
fn clean(text: &str) -> String {
    let shown = |it: char| if it.is_control() || is_unseen(it) { '?' } else { it };
    text.chars().map(shown).collect()
}

/// Returns the systemd unit in the text of a `cgroup` file. If the text names no unit, returns the
/// path of the cgroup. The result is empty for the root cgroup.
fn unit(text: &str) -> String {
    let path = |line: &str| line.splitn(3, ':').nth(2).map(str::to_owned);
    let of = |start: &str| text.lines().find(|line| line.starts_with(start)).and_then(path);
    let named = text.lines().find(|line| line.contains(":name=systemd:")).and_then(path);
    let is_some_group = |path: &String| path != "/";
    let path = of("0::").filter(is_some_group).or(named).filter(is_some_group);
    let path = path.unwrap_or_default();
    let is_unit = |part: &&str| part.ends_with(".service") || part.ends_with(".scope");
    match path.split('/').rfind(is_unit) {
        Some(unit) => clean(unit),
        None => clean(path.trim_start_matches('/')),
    }
}

#[cfg(test)]
mod tests {
    use slackline_linux::sys::own_tid;

    use super::*;

    #[test]
    fn thread_unit_is_innermost_systemd_unit_or_else_cgroup_path() {
        assert_eq!(unit("0::/system.slice/db.service/vcpu0\n"), "db.service");
        assert_eq!(unit("3:cpu:/\n1:name=systemd:/user.slice/a.scope\n0::/\n"), "a.scope");
        assert_eq!(unit("0::/kubepods/x\n"), "kubepods/x");
        assert_eq!(unit("0::/\n"), "");
        assert_eq!(unit("0::/a/\u{1b}[2J\u{61c}.service\n"), "?[2J?.service");
        assert_eq!(unit("0::/a/\u{202e}b\n"), "a/?b");
        assert_eq!(unit(""), "");
    }

    #[test]
    fn recorder_identifies_threads_of_its_own_process_and_ended_threads() {
        let mut procfs = Procfs::default();
        let found = procfs.identify(own_tid());
        let own = i32::try_from(std::process::id()).expect("a number of a process");
        assert_eq!(found.process, Tid::new(own));
        assert_eq!(found.kind, HostThreadKind::Process);
        let ended = procfs.identify(Tid::new(i32::MAX).expect("above zero"));
        assert_eq!((ended.process, ended.command.as_str()), (None, "(ended)"));
    }
}
