//! Looks around on this host, in a thread of ordinary priority: what takes long there, such as
//! reading all of procfs or asking a machine's monitor, keeps nobody waiting.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, scope};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags};
use slackline_linux::sys::{Tid, process_cpu_time};
use slackline_linux::thread::threads_of;
use slackline_service::{Binding, BindingKind, Identity, Name, Sought};
use slackline_units::{DomId, Span};

use crate::find::{Absent, Found, Kind, Machine, find_all, find_at_once, find_of, named};

/// The stack of the thread, in bytes: all of it is locked into memory.
const STACK: usize = 1 << 18;

/// Most threads that ask monitors at once in a look around.
const ASKERS: usize = 4;

/// Time after which no further monitor of one user is asked in this look around.
const ASKING_FOR_ONE: Duration = Duration::from_secs(1);

/// What to look for.
pub(super) enum Order {
    /// Machines that are waited for, and the vCPUs of those that are held.
    Around(Vec<Awaited>, Vec<Held>),
    /// All machines.
    Find,
    /// The machine that somebody asks for, and whose it should be.
    Look(Wanted, u32),
}

/// What somebody's request is for.
pub(super) enum Wanted {
    /// The machine that goes by this name, if there is just one.
    Named(Name),
    /// The machine that a binding means.
    Bound(Binding),
}

impl From<Sought<'_>> for Wanted {
    fn from(sought: Sought<'_>) -> Wanted {
        match sought {
            Sought::Named(name) => Wanted::Named(name.clone()),
            Sought::Bound(binding) => Wanted::Bound(binding.clone()),
        }
    }
}

/// What there is of it.
#[derive(Default)]
pub(super) struct Looked {
    /// What goes by the name, if it is by name.
    pub(super) named: Option<(Name, Vec<Binding>)>,
    /// The machine, if it is known which.
    pub(super) found: Option<(Binding, Result<Found, Absent>)>,
}

/// Something that is waited for, and whose it should be.
pub(super) type Awaited = (Binding, u32);

/// A machine that is held, as it was when it was looked at last.
pub(super) struct Held {
    pub(super) domain: DomId,
    pub(super) machine: Machine,
    pub(super) pid: Tid,
    /// True if one of its vCPUs is to be held and is not.
    pub(super) is_wanting: bool,
}

/// What was seen.
pub(super) enum Seen {
    /// A machine that is waited for is here.
    Here(Binding, Found),
    /// One is here, and cannot be had.
    Unclear(Binding),
    /// A machine that is held has other vCPUs.
    Vcpus(DomId, Found),
    /// Whether the monitor of a machine that is held has suspended its guest, and what it says.
    Suspended(DomId, Identity, Option<String>),
    /// All that was to be seen has been told.
    Around,
    /// All machines.
    Machines(Listing),
    /// What there is of what was asked for.
    Looked(Looked),
}

/// All machines and what each uses of a CPU, in millionths, as far as that can be told; or why they
/// cannot be listed.
pub(super) type Listing = Arc<Result<Vec<(Machine, Option<u32>)>, Absent>>;

/// The thread, and what goes to and fro.
pub(super) struct Scout {
    orders: Sender<Order>,
    seen: Receiver<Seen>,
    /// Says how many are there.
    told: OwnedFd,
    /// Whether it is looking around.
    is_out: bool,
}

impl Scout {
    /// Starts it.
    pub(super) fn start() -> io::Result<Scout> {
        let told = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let tell = told.try_clone()?;
        let (orders, ordered) = channel();
        let (seen_there, seen) = channel();
        let body = move || {
            for order in ordered {
                carry_out(order, &|seen| {
                    // Only then, so that whoever is told finds it.
                    if seen_there.send(seen).is_ok() {
                        let _ = rustix::io::write(&tell, &1_u64.to_ne_bytes());
                    }
                });
            }
        };
        let thread = Builder::new().name("slackline-scout".into()).stack_size(STACK);
        thread.spawn(body)?;
        Ok(Scout { orders, seen, told, is_out: false })
    }

    /// Sends it to look around, unless it is out still.
    pub(super) fn look_around(&mut self, waiting: Vec<Awaited>, held: Vec<Held>) {
        let is_somebody_wanted = !waiting.is_empty() || !held.is_empty();
        if is_somebody_wanted && !self.is_out {
            self.is_out = self.orders.send(Order::Around(waiting, held)).is_ok();
        }
    }

    /// Gives it something to look for.
    pub(super) fn order(&self, order: Order) {
        // It only ends with us.
        let _ = self.orders.send(order);
    }

    /// What it has seen. Never waits.
    pub(super) fn seen(&mut self) -> Vec<Seen> {
        let mut count = [0; 8];
        let count = match rustix::io::read(&self.told, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        };
        let seen: Vec<Seen> = (0..count).map_while(|_| self.seen.try_recv().ok()).collect();
        self.is_out &= !seen.iter().any(|seen| matches!(seen, Seen::Around));
        seen
    }
}

impl AsFd for Scout {
    /// Readable when it has seen something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.told.as_fd()
    }
}

fn carry_out(order: Order, tell: &(impl Fn(Seen) + Sync)) {
    match order {
        Order::Around(waiting, held) => {
            look_around(&waiting, &held, tell);
            tell(Seen::Around);
        }
        Order::Find => tell(Seen::Machines(Arc::new(find_all().map(with_use)))),
        Order::Look(wanted, user) => tell(Seen::Looked(look(wanted, user))),
    }
}

fn look(wanted: Wanted, user: u32) -> Looked {
    let found = |binding: Binding| {
        let found = find_of(&binding, Some(user));
        (binding, found)
    };
    match wanted {
        Wanted::Bound(binding) => Looked { named: None, found: Some(found(binding)) },
        Wanted::Named(name) => {
            // Where nothing can be read nobody goes by the name.
            let bindings = named(name.as_str()).unwrap_or_default();
            let found = match bindings.as_slice() {
                [one] => Some(found(one.clone())),
                _ => None,
            };
            Looked { named: Some((name, bindings)), found }
        }
    }
}

/// How long is looked at what machines use.
const LOOK: Duration = Duration::from_millis(100);

fn with_use(machines: Vec<Machine>) -> Vec<(Machine, Option<u32>)> {
    let used = |machine: &Machine| process_cpu_time(machine.pid()?).ok();
    let before: Vec<Option<Span>> = machines.iter().map(used).collect();
    let began = Instant::now();
    if before.iter().any(Option::is_some) {
        std::thread::sleep(LOOK);
    }
    let machines = machines.into_iter().zip(before).map(|(machine, before)| {
        let more = before.and_then(|before| Some(used(&machine)?.left_after(before)));
        let ppm =
            more.map(|more| u128::from(more.ns()) * 1_000_000 / began.elapsed().as_nanos().max(1));
        (machine, ppm.map(|ppm| u32::try_from(ppm).unwrap_or(u32::MAX)))
    });
    machines.collect()
}

fn look_around(waiting: &[Awaited], held: &[Held], tell: &(impl Fn(Seen) + Sync)) {
    // One pass over all for those who go by a name; the others are found where they are.
    let by_name = |(binding, _): &&Awaited| {
        let kind = binding.kind();
        !matches!(kind, BindingKind::Unit | BindingKind::Group | BindingKind::Pid)
    };
    let is_name_waited_for = waiting.iter().any(|one| by_name(&one));
    let machines = if is_name_waited_for {
        // Where nothing can be read, nobody is there; whoever asks is told why.
        find_all().unwrap_or_default()
    } else {
        Vec::new()
    };
    let mut unasked: BTreeMap<u32, Vec<&Binding>> = BTreeMap::new();
    for one @ (binding, user) in waiting {
        if by_name(&one) && !machines.iter().any(|machine| machine.is(binding)) {
            continue;
        }
        match find_at_once(binding, Some(*user)) {
            Ok(found) => tell(Seen::Here(binding.clone(), found)),
            Err(Absent::NotAsked { .. }) => unasked.entry(*user).or_default().push(binding),
            Err(absent) if absent.is_here() => tell(Seen::Unclear(binding.clone())),
            Err(_) => {}
        }
    }
    ask_monitors(&unasked.into_iter().collect::<Vec<_>>(), tell);
    for held in held {
        let known = &held.machine;
        tell(Seen::Suspended(held.domain, known.identity, suspended(known, held.pid)));
        // One that has ended is heard of elsewhere.
        let number = Binding::new(BindingKind::Pid, &held.pid.to_string());
        let found = number.ok().map(|it| find_at_once(&it, None));
        let is_other = match &found {
            Some(Ok(Found { machine, .. })) => {
                machine.identity == known.identity
                    && !machine.vcpus.is_empty()
                    && (machine.vcpus != known.vcpus || held.is_wanting)
            }
            // Of one whose threads have no names only its monitor can tell, and is asked where a
            // thread has come or gone.
            Some(Err(Absent::NotAsked { .. })) => !has_threads(held.pid, &known.threads),
            _ => false,
        };
        if !is_other {
            continue;
        }
        match find_of(&known.binding, Some(known.owner)) {
            Ok(found) if found.machine.identity == known.identity => {
                tell(Seen::Vcpus(held.domain, found));
            }
            _ => {}
        }
    }
}

/// Asks the monitors of VMs that are waited for, by user: one user's silent monitors take time from
/// that user's VMs only. What is not asked for lack of time is asked in the next look around.
fn ask_monitors(of_users: &[(u32, Vec<&Binding>)], tell: &(impl Fn(Seen) + Sync)) {
    let next = AtomicUsize::new(0);
    let ask = || {
        while let Some((user, bindings)) = of_users.get(next.fetch_add(1, Ordering::Relaxed)) {
            let began = Instant::now();
            for binding in bindings {
                if began.elapsed() >= ASKING_FOR_ONE {
                    break;
                }
                match find_of(binding, Some(*user)) {
                    Ok(found) => tell(Seen::Here((*binding).clone(), found)),
                    Err(absent) if absent.is_here() => tell(Seen::Unclear((*binding).clone())),
                    Err(_) => {}
                }
            }
        }
    };
    scope(|scope| {
        for _ in 1..of_users.len().min(ASKERS) {
            let thread = Builder::new().name("slackline-scout".into()).stack_size(STACK);
            // Where there can be no further thread, this one asks all.
            let _ = thread.spawn_scoped(scope, ask);
        }
        ask();
    });
}

/// State of a guest that libvirt has suspended, from the file that libvirt keeps for each VM.
/// `None` if the guest runs, or its state is not known.
fn suspended(machine: &Machine, pid: Tid) -> Option<String> {
    if machine.kind != Kind::Libvirt {
        return None;
    }
    let notes = notes_of(Path::new(LIBVIRT_STATES), &machine.name)?;
    let reason = read_state(&notes, pid)?;
    Some(format!("libvirt says that its guest is {reason}"))
}

/// Text of libvirt's file for a VM. `None` for a name that leads out of the folder, and for what is
/// not a file: a guest may have changed its command line, and with it its name.
fn notes_of(folder: &Path, name: &str) -> Option<String> {
    if name.contains('/') || name.starts_with('.') {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let path = folder.join(format!("{name}.xml"));
    let file = File::from(rustix::fs::open(&path, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut notes = String::new();
    file.take(LONGEST_NOTES).read_to_string(&mut notes).ok()?;
    Some(notes)
}

/// Maximum length of libvirt's file that is read, in bytes. The state of the guest is at its begin.
const LONGEST_NOTES: u64 = 1 << 20;

/// Folder in which libvirt keeps the state of each VM.
const LIBVIRT_STATES: &str = "/run/libvirt/qemu";

/// State of a guest that does not run, from libvirt's file for the VM of this process.
fn read_state(notes: &str, pid: Tid) -> Option<String> {
    let start = notes.find("<domstatus ")?;
    let tag = notes[start..].split('>').next()?;
    let value = |key: &str| tag.split(&format!(" {key}='")).nth(1)?.split('\'').next();
    let is_it = value("pid").and_then(|text| text.parse().ok()) == Some(pid.raw());
    let state = value("state").filter(|state| is_it && *state != "running")?;
    let reason = value("reason").map(|reason| format!(" ({reason})")).unwrap_or_default();
    Some(format!("{state}{reason}"))
}

/// True if a process has these threads, and no others.
fn has_threads(pid: Tid, threads: &[Tid]) -> bool {
    threads_of(pid).is_ok_and(|now| now == threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libvirt_notes_tell_a_guest_that_is_suspended() {
        let notes = |state: &str| {
            format!(
                "<!--\nWARNING\n-->\n\
                 <domstatus state='{state}' reason='user' pid='77'>\n  <taint flag='x'/>"
            )
        };
        let pid = Tid::new(77).unwrap();
        assert_eq!(read_state(&notes("paused"), pid).as_deref(), Some("paused (user)"));
        assert_eq!(read_state(&notes("running"), pid), None);
        assert_eq!(read_state(&notes("paused"), Tid::new(78).unwrap()), None);
        assert_eq!(read_state("", pid), None);
    }

    #[test]
    fn name_that_leads_out_of_the_folder_has_no_notes() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("qemu");
        std::fs::create_dir(&inside).unwrap();
        for at in [folder.path(), &inside] {
            std::fs::write(at.join("web.xml"), "<domstatus ").unwrap();
        }
        assert_eq!(notes_of(&inside, "web").as_deref(), Some("<domstatus "));
        let outside = folder.path().join("web").display().to_string();
        for name in ["../web", "./web", &outside, "..", "none"] {
            assert_eq!(notes_of(&inside, name), None, "{name}");
        }
        std::os::unix::fs::symlink("../web.xml", inside.join("link.xml")).unwrap();
        assert_eq!(notes_of(&inside, "link"), None);
        // One that nobody writes to would be waited for without end.
        let pipe = inside.join("pipe.xml");
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(notes_of(&inside, "pipe"), None);
    }
}
