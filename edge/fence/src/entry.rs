//! Journal entry of a held thread: everything that is needed to restore the thread. An entry is one
//! line of text, which is sent to the keeper and written to the journal.
//!
//! ```text
//! hold PID PID-START TID TID-START CLASS RESET CPUS WAY [MORE]
//! ```
//!
//! Fields contain no spaces, and single spaces separate them. Start times are in clock ticks since
//! the host booted. `CLASS` is `other,NICE`, `fifo,PRIORITY`, `deadline,NS,NS,NS` and so on.
//! `RESET` is `reset` if the reset-on-fork flag is set, otherwise `keep`. `CPUS` is the affinity as
//! CPU numbers separated by commas. `WAY` is one of these:
//!
//! - `nothing` (never stopped) or `process` (stopped by a signal).
//! - `v1` or `v2` (frozen), `limit1` or `limit2` (a limited process), or `thread1` (a limited
//!   thread). The paths of the cgroup that Slackline made and of the original cgroup follow.
//! - `tree` (a process tree, frozen) and the same two paths. The second path is `-` if Slackline
//!   did not make the first cgroup.
//! - `member`: a thread that was seen in a tree.
//! - `helper`, followed by the id and the start time of the program that limits the thread.
//!
//! `cpuset` and two paths can follow: a cpuset that Slackline made, and the original cpuset.
//! `cell` and two paths can follow: the cell in which the target is stopped, and the cgroup to
//! which its processes return.
//! `first` and CPU numbers can follow: the affinity that the first thread of the process had. The
//! last words `kept MILLISECONDS` mean that the kernel enforces the thread's limit for that time
//! after the owner has died. They have no effect while `WAY` is not `nothing`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::str::{FromStr, SplitAsciiWhitespace};
use std::time::Duration;

use slackline_units::{CpuId, CpuSet, Span};

use slackline_linux::cgroup::{Controller, Place, TreePlace, Version};
use slackline_linux::sys::{Scheduling, SchedulingOf, Tid};
use slackline_linux::thread::StartTime;

/// A process or thread, identified by id and start time. The id alone is not enough, since the
/// kernel reuses ids after a process or thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TaskIdentity {
    pub(super) id: Tid,
    pub(super) started: StartTime,
}

/// Method by which a thread is stopped or limited. When the thread is restored, the method is
/// undone, in addition to the thread's scheduling and affinity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HoldMethod {
    Nothing,
    Process,
    Thread(Place),
    /// A cgroup limits the CPU time of the thread's process.
    Limit(Place),
    /// The thread represents a process tree in a cgroup with a freezer. Each thread in the cgroup
    /// is restored to the original state in this entry, unless the thread has an entry of its own.
    Tree(TreePlace),
    /// The thread was seen in a process tree. If it has left the tree, it is restored, but only
    /// while it has a scheduling class that the fence gives to trees.
    Member,
    /// A helper program that Slackline started limits the process, for example by stopping it
    /// repeatedly.
    Helper(TaskIdentity),
}

/// A thread that must be restored, with its original state and the method by which it is stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) process: TaskIdentity,
    pub(super) thread: TaskIdentity,
    pub(super) scheduling: SchedulingOf,
    pub(super) affinity: CpuSet,
    pub(super) way: HoldMethod,
    /// Version 1 cpuset that Slackline made to keep the thread on the managed CPUs. Always `None`
    /// with version 2 cgroups, where the cgroup that freezes the thread also restricts its CPUs.
    pub(super) cpuset: Option<Place>,
    /// Cell (frozen cgroup directly below the root cgroup) in which the target is stopped for some
    /// time. `None` if the target has no cell.
    pub(super) cell: Option<TreePlace>,
    /// Affinity that the first thread of the process had when this other thread was recorded.
    /// `None` if the entry is for the first thread or for a process tree, or if an older version of
    /// Slackline wrote the journal.
    pub(super) first: Option<CpuSet>,
    /// Time for which the kernel may enforce the thread's limit after the owner has died. `None` if
    /// the owner has ordered no such time. The method [`Entry::kept_for`] returns this time unless
    /// the thread is stopped.
    pub(super) kept: Option<Duration>,
}

/// Time in milliseconds that is assumed for the word `kept` without a time, which an older version
/// of Slackline has written. The value is the default of `serve --keep-for`.
const UNSTATED_KEEP_MS: u64 = 600_000;

/// Sorts entries into the order in which threads are restored. Process trees come first. If a
/// single thread of a tree has an entry of its own, that entry comes later and takes precedence.
pub(super) fn trees_first(entries: &mut [Entry]) {
    entries.sort_by_key(|entry| !matches!(entry.way, HoldMethod::Tree(_)));
}

impl Entry {
    /// Returns the time for which the thread is left as it is after the owner has died. `None` if
    /// the thread must be restored immediately. A stopped thread is restored immediately, even if
    /// the kernel would enforce its limit.
    pub(super) fn kept_for(&self) -> Option<Duration> {
        self.kept.filter(|_| self.way == HoldMethod::Nothing)
    }

    /// Returns the entry as a line, without a newline.
    pub(super) fn to_line(&self) -> String {
        let mut line = format!(
            "hold {} {} {} {} ",
            self.process.id, self.process.started, self.thread.id, self.thread.started
        );
        line += &class_text(self.scheduling.class);
        line += if self.scheduling.reset_on_fork { " reset " } else { " keep " };
        line += &cpus_text(&self.affinity);
        match &self.way {
            HoldMethod::Nothing => line += " nothing",
            HoldMethod::Process => line += " process",
            HoldMethod::Member => line += " member",
            HoldMethod::Thread(place) | HoldMethod::Limit(place) => {
                line += match (place.controller, place.version) {
                    (Controller::Freezer, Version::V1) => " v1 ",
                    (Controller::Freezer, Version::V2) => " v2 ",
                    (Controller::CpuThread, _) => " thread1 ",
                    (_, Version::V1) => " limit1 ",
                    (_, Version::V2) => " limit2 ",
                };
                line += &path_text(&place.group);
                line += " ";
                line += &path_text(&place.origin);
            }
            HoldMethod::Tree(place) => {
                line += " tree ";
                line += &path_text(&place.group);
                line += " ";
                line += &place.origin.as_deref().map_or("-".into(), path_text);
            }
            HoldMethod::Helper(helper) => {
                let _ = write!(line, " helper {} {}", helper.id, helper.started);
            }
        }
        if let Some(place) = &self.cpuset {
            let (group, origin) = (path_text(&place.group), path_text(&place.origin));
            let _ = write!(line, " cpuset {group} {origin}");
        }
        if let Some(TreePlace { group, origin: Some(origin) }) = &self.cell {
            let _ = write!(line, " cell {} {}", path_text(group), path_text(origin));
        }
        if let Some(first) = &self.first {
            line += " first ";
            line += &cpus_text(first);
        }
        if let Some(time) = self.kept {
            let _ = write!(line, " kept {}", time.as_millis());
        }
        line
    }

    /// Parses a line of the journal. Returns `None` if the line is not a complete, valid entry.
    pub(super) fn from_line(line: &str) -> Option<Entry> {
        let mut fields = line.split_ascii_whitespace();
        if fields.next()? != "hold" {
            return None;
        }
        let mut entry = Entry {
            process: task_identity(&mut fields)?,
            thread: task_identity(&mut fields)?,
            scheduling: SchedulingOf {
                class: class(fields.next()?)?,
                reset_on_fork: match fields.next()? {
                    "reset" => true,
                    "keep" => false,
                    _ => return None,
                },
            },
            affinity: cpus(fields.next()?)?,
            way: way(&mut fields)?,
            cpuset: None,
            cell: None,
            first: None,
            kept: None,
        };
        let mut next = fields.next();
        if next == Some("cpuset") {
            entry.cpuset = Some(cpuset(&mut fields)?);
            next = fields.next();
        }
        if next == Some("cell") {
            let (group, origin) = (path(fields.next()?)?, path(fields.next()?)?);
            entry.cell = Some(TreePlace { group, origin: Some(origin) });
            next = fields.next();
        }
        if next == Some("first") {
            entry.first = Some(cpus(fields.next()?)?);
            next = fields.next();
        }
        match next {
            None => {}
            Some("kept") => {
                let time = fields.next().map_or(Some(UNSTATED_KEEP_MS), |time| time.parse().ok());
                entry.kept = Some(Duration::from_millis(time?));
            }
            Some(_) => return None,
        }
        // More fields mean that two lines were run together, so the line is not valid.
        fields.next().is_none().then_some(entry)
    }
}

fn cpus_text(set: &CpuSet) -> String {
    let cpus: Vec<String> = set.iter().map(|cpu| cpu.index().to_string()).collect();
    cpus.join(",")
}

fn cpuset(fields: &mut SplitAsciiWhitespace<'_>) -> Option<Place> {
    let (group, origin) = (path(fields.next()?)?, path(fields.next()?)?);
    Some(Place { version: Version::V1, controller: Controller::Cpuset, group, origin })
}

/// Parses two fields: an id and a start time.
pub(super) fn task_identity(fields: &mut SplitAsciiWhitespace<'_>) -> Option<TaskIdentity> {
    let id = Tid::new(number(fields.next()?)?)?;
    Some(TaskIdentity { id, started: StartTime::from_ticks(number(fields.next()?)?) })
}

fn number<N: FromStr>(text: &str) -> Option<N> {
    text.parse().ok()
}

fn way(fields: &mut SplitAsciiWhitespace<'_>) -> Option<HoldMethod> {
    let (controller, version) = match fields.next()? {
        "nothing" => return Some(HoldMethod::Nothing),
        "process" => return Some(HoldMethod::Process),
        "member" => return Some(HoldMethod::Member),
        "helper" => return task_identity(fields).map(HoldMethod::Helper),
        "tree" => {
            let group = path(fields.next()?)?;
            let origin = match fields.next()? {
                "-" => None,
                origin => Some(path(origin)?),
            };
            return Some(HoldMethod::Tree(TreePlace { group, origin }));
        }
        "v1" => (Controller::Freezer, Version::V1),
        "v2" => (Controller::Freezer, Version::V2),
        "limit1" => (Controller::Cpu, Version::V1),
        "limit2" => (Controller::Cpu, Version::V2),
        "thread1" => (Controller::CpuThread, Version::V1),
        _ => return None,
    };
    let (group, origin) = (path(fields.next()?)?, path(fields.next()?)?);
    let place = Place { version, controller, group, origin };
    Some(match controller {
        Controller::Freezer => HoldMethod::Thread(place),
        Controller::Cpu | Controller::CpuThread | Controller::Cpuset => HoldMethod::Limit(place),
    })
}

fn class_text(class: Scheduling) -> String {
    match class {
        Scheduling::Other { nice } => format!("other,{nice}"),
        Scheduling::Batch { nice } => format!("batch,{nice}"),
        Scheduling::Idle => "idle".into(),
        Scheduling::Fifo { priority } => format!("fifo,{priority}"),
        Scheduling::RoundRobin { priority } => format!("rr,{priority}"),
        Scheduling::Deadline { runtime, deadline, period } => {
            format!("deadline,{},{},{}", runtime.ns(), deadline.ns(), period.ns())
        }
        Scheduling::Unknown { policy, nice, priority } => {
            format!("unknown,{policy},{nice},{priority}")
        }
    }
}

fn class(text: &str) -> Option<Scheduling> {
    let fields: Vec<&str> = text.split(',').collect();
    let span = |text| number(text).map(Span::from_ns);
    Some(match fields[..] {
        ["other", nice] => Scheduling::Other { nice: number(nice)? },
        ["batch", nice] => Scheduling::Batch { nice: number(nice)? },
        ["idle"] => Scheduling::Idle,
        ["fifo", priority] => Scheduling::Fifo { priority: number(priority)? },
        ["rr", priority] => Scheduling::RoundRobin { priority: number(priority)? },
        ["deadline", runtime, deadline, period] => Scheduling::Deadline {
            runtime: span(runtime)?,
            deadline: span(deadline)?,
            period: span(period)?,
        },
        ["unknown", policy, nice, priority] => Scheduling::Unknown {
            policy: number(policy)?,
            nice: number(nice)?,
            priority: number(priority)?,
        },
        _ => return None,
    })
}

fn cpus(text: &str) -> Option<CpuSet> {
    text.split(',')
        .map(|cpu| number(cpu).filter(|&cpu| cpu < CpuId::LIMIT).map(CpuId::new))
        .collect()
}

/// Formats a path as one field without spaces. Each `%`, and each byte that is not a printable
/// ASCII character or is a space, becomes `%` and two hexadecimal digits.
pub(super) fn path_text(path: &Path) -> String {
    let mut text = String::new();
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02x}");
        }
    }
    text
}

/// Parses a path that [`path_text`] formatted.
pub(super) fn path(text: &str) -> Option<PathBuf> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (code, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(code, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    Some(PathBuf::from(OsString::from_vec(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(class: Scheduling, way: HoldMethod) -> Entry {
        let who = |id, ticks| TaskIdentity {
            id: Tid::new(id).unwrap(),
            started: StartTime::from_ticks(ticks),
        };
        Entry {
            process: who(10, 99),
            thread: who(11, 100),
            scheduling: SchedulingOf { class, reset_on_fork: false },
            affinity: [0, 3, 200].map(CpuId::new).into_iter().collect(),
            way,
            cpuset: None,
            cell: None,
            first: None,
            kept: None,
        }
    }

    #[test]
    fn line_of_a_journal_entry_has_the_documented_format() {
        let line = entry(Scheduling::Other { nice: -5 }, HoldMethod::Process).to_line();
        assert_eq!(line, "hold 10 99 11 100 other,-5 keep 0,3,200 process");
    }

    #[test]
    fn every_journal_entry_is_unchanged_if_written_and_read() {
        let ms = Span::from_ms;
        let place = |controller, version| {
            let (group, origin) = ("/a b/100%/\u{e9}\n".into(), "/a b".into());
            Place { version, controller, group, origin }
        };
        let helper = TaskIdentity { id: Tid::new(7).unwrap(), started: StartTime::from_ticks(8) };
        for class in [
            Scheduling::Batch { nice: 19 },
            Scheduling::Idle,
            Scheduling::Fifo { priority: 1 },
            Scheduling::RoundRobin { priority: 99 },
            Scheduling::Deadline { runtime: ms(1), deadline: ms(5), period: ms(10) },
            Scheduling::Unknown { policy: 7, nice: -3, priority: 0 },
        ] {
            for way in [
                HoldMethod::Nothing,
                HoldMethod::Process,
                HoldMethod::Member,
                HoldMethod::Thread(place(Controller::Freezer, Version::V1)),
                HoldMethod::Thread(place(Controller::Freezer, Version::V2)),
                HoldMethod::Limit(place(Controller::Cpu, Version::V1)),
                HoldMethod::Limit(place(Controller::Cpu, Version::V2)),
                HoldMethod::Limit(place(Controller::CpuThread, Version::V1)),
                HoldMethod::Helper(helper),
                HoldMethod::Tree(TreePlace { group: "/a b".into(), origin: Some("/".into()) }),
                HoldMethod::Tree(TreePlace { group: "/-".into(), origin: None }),
            ] {
                let written = entry(class, way);
                assert_eq!(Entry::from_line(&written.to_line()), Some(written.clone()));
                let cpuset = Some(place(Controller::Cpuset, Version::V1));
                let written = Entry { cpuset, ..written };
                assert_eq!(Entry::from_line(&written.to_line()), Some(written.clone()));
                let cell = TreePlace { group: "/cell 1".into(), origin: Some("/a".into()) };
                let written = Entry { cell: Some(cell), ..written };
                assert_eq!(Entry::from_line(&written.to_line()), Some(written.clone()));
                let first = Some(CpuSet::one(CpuId::new(1)));
                let written = Entry { kept: Some(Duration::from_millis(700)), first, ..written };
                assert_eq!(Entry::from_line(&written.to_line()), Some(written));
            }
        }
    }

    #[test]
    fn journal_line_that_is_cut_off_is_refused() {
        let (version, controller) = (Version::V2, Controller::Freezer);
        let (group, origin) = ("/own".into(), "/first".into());
        let place = Place { version, controller, group, origin };
        let line = entry(Scheduling::Idle, HoldMethod::Thread(place)).to_line();
        let fields: Vec<&str> = line.split(' ').collect();
        for kept in 0..fields.len() {
            assert_eq!(Entry::from_line(&fields[..kept].join(" ")), None, "{kept} fields");
        }
        for more in ["more", "kept soon", "kept 700 more"] {
            assert_eq!(Entry::from_line(&format!("{line} {more}")), None, "{more}");
        }
    }

    #[test]
    fn limit_without_retention_time_in_journal_is_kept_ten_minutes() {
        let line = entry(Scheduling::Idle, HoldMethod::Nothing).to_line() + " kept";
        let read = Entry::from_line(&line).unwrap();
        assert_eq!(read.kept, Some(Duration::from_mins(10)));
    }
}
