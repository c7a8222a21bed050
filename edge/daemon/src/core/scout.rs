//! The scout: a thread that searches for VMs on the host and is not real-time. The scout does slow
//! work, such as reading all of procfs or asking a VM's monitor, so that the daemon's main thread
//! need not wait.

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
use slackline_linux::sys::{
    Scheduling, SchedulingOf, Tid, own_tid, process_cpu_time, set_scheduling,
};
use slackline_linux::thread::threads_of;
use slackline_live::mechanism::DeadlineThread;
use slackline_live::vcpus::FindError;
use slackline_service::{Binding, BindingKind, Identity, LookError, Name, Reason, Row, VmLookup};
use slackline_units::{DomId, Span};

use super::vm_list::{MOST_SEARCHED, VmList};
use crate::find::{
    Absent, Around, FoundMachine, Kind, Machine, MachineList, find_at_once, find_for, find_of,
    find_own, list_all, named_for, named_own,
};

/// Stack size of the scout (the thread that searches for VMs), in bytes. All of the stack is locked
/// into memory.
const STACK: usize = 1 << 18;

/// Nice value for preferred work:
/// - look-ups for administrators, which one thread makes,
/// - the search for VMs that reservations wait for,
/// - the list of VMs, which is made at most once a second for all callers.
pub(super) const PREFERRED: i32 = -10;

/// Maximum number of threads that query virtual machine monitors at the same time in one discovery
/// pass.
const ASKERS: usize = 4;

/// Time after which a discovery pass queries no further monitor of the same user.
const ASKING_FOR_ONE: Duration = Duration::from_secs(1);

/// Number of discovery passes per reading of all deadline threads on the host. A reading takes some
/// milliseconds on a host with many processes.
const PASSES_PER_READING: u32 = 5;

/// A task for the scout, the thread that searches for VMs.
pub(super) enum Order {
    /// Make a discovery pass: search for awaited VMs, and check the vCPUs of VMs that the daemon
    /// schedules. If `reads_threads` is true, also read the deadline threads of all programs.
    Around { waiting: Vec<AwaitedVm>, held: Vec<ReservedVm>, reads_threads: bool },
    /// List all VMs of the host.
    Find,
    /// Look up the VM that a request names.
    Look(VmQuery, VmUsers),
}

/// Users that matter for the look-up of a VM for a request.
pub(super) struct VmUsers {
    /// Id of the user to whom the VM should belong.
    pub(super) meant: u32,
    /// Ids of the users whose VMs' monitors the look-up may ask. If `None`, it may ask all
    /// monitors.
    pub(super) may_ask: Option<Vec<u32>>,
    /// True if the look-up must not find VMs of other users than those in `may_ask`.
    pub(super) hides_others: bool,
}

/// Name or binding by which a request names its VM.
pub(super) enum VmQuery {
    /// Name of the VM. Exactly one VM must have this name.
    Named(Name),
    /// Binding that refers to the VM.
    Bound(Binding),
}

impl From<VmLookup<'_>> for VmQuery {
    fn from(sought: VmLookup<'_>) -> VmQuery {
        match sought {
            VmLookup::Named(name) => VmQuery::Named(name.clone()),
            VmLookup::Bound(binding) => VmQuery::Bound(binding.clone()),
        }
    }
}

/// Result of the look-up for a request.
#[derive(Default)]
pub(super) struct LookupResult {
    /// Name that was looked up, and the bindings of all VMs with that name. `None` if the look-up
    /// was by binding.
    pub(super) named: Option<(Name, Vec<Binding>)>,
    /// Binding of the VM, and the VM or the reason why it was not found. `None` if the look-up was
    /// by name, and no VM or several VMs have the name.
    pub(super) found: Option<(Binding, Result<FoundMachine, Absent>)>,
    /// Deadline threads of all programs, read after the look-up.
    pub(super) deadline_threads: Vec<DeadlineThread>,
}

/// A VM that a reservation waits for.
pub(super) struct AwaitedVm {
    row: Row,
    /// Reason why the reservation waits for its VM. `None` if the reservation waits for capacity.
    reason: Option<Reason>,
}

impl AwaitedVm {
    pub(super) fn of((row, reason): (&Row, Option<&Reason>)) -> AwaitedVm {
        AwaitedVm { row: row.clone(), reason: reason.cloned() }
    }

    /// Returns the finding for an awaited VM that cannot be scheduled. `None` if the service need
    /// not learn of it, because the service knows the reason already, or because the reservation
    /// waits for capacity.
    fn not_found(&self, absent: &Absent) -> Option<ScoutFinding> {
        let error = absent.in_background();
        let is_told = if self.row.binding.lasts() {
            let reason = Reason::not_found(&self.row, &error);
            self.reason.as_ref().is_some_and(|known| *known != reason)
        } else {
            // The reservation of a process ends with the process.
            absent.is_gone() || matches!(error, LookError::Unclear { .. })
        };
        is_told.then(|| ScoutFinding::NotFound(self.row.binding.clone(), self.row.user, error))
    }

    /// Returns the libvirt domain that was last scheduled for this reservation, if it now runs
    /// under another name. `None` if no domain or several domains have its UUID.
    fn renamed<'a>(&self, machines: &'a [Machine]) -> Option<&'a Machine> {
        let by_uuid = self.row.by_uuid.as_ref()?;
        let mut named = machines.iter().filter(|one| one.by_uuid().as_ref() == Some(by_uuid));
        named.next().filter(|_| named.next().is_none())
    }
}

impl AwaitedVm {
    fn find_renamed(&self, around: &Around) -> Option<FoundMachine> {
        let machines = around.machines();
        if machines.iter().any(|machine| machine.is(&self.row.binding)) {
            return None;
        }
        let machine = self.renamed(machines)?;
        around.find(&machine.binding, Some(self.row.user)).ok()
    }
}

/// A VM with a reservation, as the last look-up found it.
pub(super) struct ReservedVm {
    pub(super) domain: DomId,
    pub(super) machine: Machine,
    pub(super) pid: Tid,
    /// True if the VM's domain has an empty place although the VM has a vCPU without a place.
    pub(super) is_wanting: bool,
    /// Reason, as last reported, why the vCPUs of the VM cannot be told apart. `None` if they can
    /// be told apart.
    pub(super) unclear: Option<String>,
}

/// A finding of the scout, the thread that searches for VMs.
pub(super) enum ScoutFinding {
    /// A VM that a reservation waits for exists now. The fields are the binding of the reservation,
    /// the user who must own the VM, and the VM.
    Here(Binding, u32, FoundMachine),
    /// A libvirt domain that a reservation waits for exists under another name.
    Renamed(Binding, FoundMachine),
    /// The VM that a reservation waits for cannot be scheduled, for another reason than before. The
    /// fields are the binding of the reservation, the user who must own the VM, and the reason.
    NotFound(Binding, u32, LookError),
    /// Reason why the vCPUs of a VM with a reservation cannot be told apart. `None` if they could
    /// not be told apart before, and now can.
    Unclear(DomId, Identity, Option<String>),
    /// The vCPUs of a VM with a reservation have changed.
    Vcpus(DomId, FoundMachine),
    /// State of the guest of a VM with a reservation, if libvirt has suspended the guest. `None` if
    /// the guest is running.
    Suspended(DomId, Identity, Option<String>),
    /// Deadline threads of all programs.
    DeadlineThreads(Vec<DeadlineThread>),
    /// The discovery pass is complete.
    Around,
    /// List of all VMs.
    Machines(Listing),
    /// Result of a look-up for a request.
    Looked(LookupResult),
}

/// Result of listing all VMs: the list, or the reason why VMs cannot be listed.
pub(super) type Listing = Arc<Result<VmList, Absent>>;

/// Handle of the scout, the thread that searches for VMs.
pub(super) struct Scout {
    orders: Sender<Order>,
    seen: Receiver<ScoutFinding>,
    /// Eventfd that counts the unread findings.
    told: OwnedFd,
    /// True while the scout makes a discovery pass.
    is_out: bool,
    /// Number of discovery passes until the deadline threads of all programs are read again.
    passes_left: u32,
}

impl Scout {
    /// Starts the scout's thread with the nice value `nice`. The thread has another nice value
    /// while it lists all VMs.
    pub(super) fn start(nice: i32) -> io::Result<Scout> {
        let told = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let tell = told.try_clone()?;
        let (orders, ordered) = channel();
        let (seen_there, seen) = channel();
        let body = move || {
            for order in ordered {
                set_own_nice(if matches!(order, Order::Find) { PREFERRED } else { nice });
                carry_out(order, &|seen| {
                    // The count follows the finding, so that each counted finding can be received.
                    if seen_there.send(seen).is_ok() {
                        let _ = rustix::io::write(&tell, &1_u64.to_ne_bytes());
                    }
                });
            }
        };
        let thread = Builder::new().name("slackline-scout".into()).stack_size(STACK);
        thread.spawn(body)?;
        Ok(Scout { orders, seen, told, is_out: false, passes_left: 0 })
    }

    /// Starts a discovery pass in the scout thread, unless a pass is running already. Does nothing
    /// if there is no VM to search for or to check. The one exception is a pass in which the
    /// deadline threads of all programs are due to be read.
    pub(super) fn look_around(&mut self, waiting: Vec<AwaitedVm>, held: Vec<ReservedVm>) {
        let is_vm_sought = !waiting.is_empty() || !held.is_empty();
        let reads_threads = self.passes_left == 0;
        self.passes_left = self.passes_left.checked_sub(1).unwrap_or(PASSES_PER_READING - 1);
        if (is_vm_sought || reads_threads) && !self.is_out {
            let order = Order::Around { waiting, held, reads_threads };
            self.is_out = self.orders.send(order).is_ok();
        }
    }

    /// Queues an order for the scout.
    pub(super) fn order(&self, order: Order) {
        // The thread runs as long as this process.
        let _ = self.orders.send(order);
    }

    /// Returns the findings since the last call. Never blocks.
    pub(super) fn seen(&mut self) -> Vec<ScoutFinding> {
        let mut count = [0; 8];
        let count = match rustix::io::read(&self.told, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        };
        let seen: Vec<ScoutFinding> = (0..count).map_while(|_| self.seen.try_recv().ok()).collect();
        self.is_out &= !seen.iter().any(|seen| matches!(seen, ScoutFinding::Around));
        seen
    }
}

impl AsFd for Scout {
    /// Returns a descriptor that is readable when the scout has findings.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.told.as_fd()
    }
}

/// Sets the nice value of the calling thread. Errors are ignored: without the nice value, the
/// thread is only slower on a busy host.
fn set_own_nice(nice: i32) {
    let class = Scheduling::Other { nice };
    let _ = set_scheduling(own_tid(), &SchedulingOf { class, reset_on_fork: false });
}

fn carry_out(order: Order, tell: &(impl Fn(ScoutFinding) + Sync)) {
    match order {
        Order::Around { waiting, held, reads_threads } => {
            if reads_threads {
                tell(ScoutFinding::DeadlineThreads(DeadlineThread::all()));
            }
            look_around(&waiting, &held, tell);
            tell(ScoutFinding::Around);
        }
        Order::Find => {
            let list = list_all(MOST_SEARCHED).map(|MachineList { machines, omitted }| VmList {
                vms: with_use(machines),
                omitted,
            });
            tell(ScoutFinding::Machines(Arc::new(list)));
        }
        Order::Look(wanted, users) => {
            let looked = look(wanted, &users);
            let deadline_threads = DeadlineThread::all();
            tell(ScoutFinding::Looked(LookupResult { deadline_threads, ..looked }));
        }
    }
}

fn look(wanted: VmQuery, users: &VmUsers) -> LookupResult {
    let may_ask = |user| users.may_ask.as_ref().is_none_or(|all| all.contains(&user));
    let found = |binding: Binding| {
        let find = if users.hides_others { find_own } else { find_for };
        let found = find(&binding, users.meant, &may_ask);
        (binding, found)
    };
    match wanted {
        VmQuery::Bound(binding) => {
            LookupResult { found: Some(found(binding)), ..LookupResult::default() }
        }
        VmQuery::Named(name) => {
            // If nothing can be read, no VM has the name.
            let named = if users.hides_others { named_own } else { named_for };
            let bindings = named(name.as_str(), &may_ask).unwrap_or_default();
            let found = match bindings.as_slice() {
                [one] => Some(found(one.clone())),
                _ => None,
            };
            LookupResult { named: Some((name, bindings)), found, ..LookupResult::default() }
        }
    }
}

/// Length of time over which the CPU use of VMs is measured.
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

fn look_around(waiting: &[AwaitedVm], held: &[ReservedVm], tell: &(impl Fn(ScoutFinding) + Sync)) {
    let around = Around::look(waiting.iter().map(|one| &one.row.binding));
    let mut unasked: BTreeMap<u32, Vec<UnaskedVm<'_>>> = BTreeMap::new();
    for one in waiting {
        let (binding, user) = (&one.row.binding, one.row.user);
        match around.find(binding, Some(user)) {
            Ok(found) => tell(ScoutFinding::Here(binding.clone(), user, found)),
            Err(Absent::NotAsked { .. }) => {
                unasked.entry(user).or_default().push(UnaskedVm::Awaited(one));
            }
            Err(absent) => match one.find_renamed(&around) {
                Some(found) => tell(ScoutFinding::Renamed(binding.clone(), found)),
                None => one.not_found(&absent).into_iter().for_each(tell),
            },
        }
    }
    for held in held {
        let known = &held.machine;
        tell(ScoutFinding::Suspended(held.domain, known.identity, suspended(known, held.pid)));
        if let Some(unasked_vm) = check_vcpus(held, tell) {
            unasked.entry(known.owner).or_default().push(unasked_vm);
        }
    }
    ask_monitors(&around, &unasked.into_iter().collect::<Vec<_>>(), tell);
}

/// A VM whose monitor must be asked for its vCPUs.
enum UnaskedVm<'a> {
    Awaited(&'a AwaitedVm),
    /// A VM with a reservation, and the binding of its process.
    Reserved(&'a ReservedVm, Binding),
}

/// Reports a change of the vCPUs of a VM with a reservation. Returns the VM if its monitor must be
/// asked: only the monitor knows the vCPUs, and a thread of the VM has started or ended since the
/// last question.
fn check_vcpus<'a>(held: &'a ReservedVm, tell: &impl Fn(ScoutFinding)) -> Option<UnaskedVm<'a>> {
    let known = &held.machine;
    // Another VM may have the same name by now. The process identifies the VM that is scheduled.
    let number = Binding::new(BindingKind::Pid, &held.pid.to_string()).ok()?;
    let unclear = |why| tell(ScoutFinding::Unclear(held.domain, known.identity, why));
    match find_at_once(&number, None) {
        Ok(found) => {
            let machine = &found.machine;
            let is_it = machine.identity == known.identity && !machine.vcpus.is_empty();
            if is_it && (machine.vcpus != known.vcpus || held.is_wanting) {
                tell(ScoutFinding::Vcpus(held.domain, found));
            } else if is_it && held.unclear.is_some() {
                unclear(None);
            }
        }
        Err(Absent::NotAsked { .. }) if !has_threads(held.pid, &known.threads) => {
            return Some(UnaskedVm::Reserved(held, number));
        }
        // Two threads may have the name of one vCPU, so one of them runs without a reservation.
        Err(absent @ Absent::NoVcpus(FindError::SameIndex { .. })) => {
            let why = absent.text();
            if held.unclear.as_ref() != Some(&why) {
                unclear(Some(why));
            }
        }
        // The end of a VM is reported by the session.
        Err(_) => {}
    }
    None
}

impl UnaskedVm<'_> {
    fn ask(&self, around: &Around) -> Option<ScoutFinding> {
        match self {
            UnaskedVm::Awaited(one) => {
                let (binding, user) = (&one.row.binding, one.row.user);
                match around.ask(binding, user) {
                    Ok(found) => Some(ScoutFinding::Here(binding.clone(), user, found)),
                    Err(absent) => one.not_found(&absent),
                }
            }
            UnaskedVm::Reserved(held, number) => {
                let found = find_of(number, None).ok()?;
                let is_it = found.machine.identity == held.machine.identity;
                is_it.then(|| ScoutFinding::Vcpus(held.domain, found))
            }
        }
    }
}

/// Asks the monitors of VMs for their vCPUs. The VMs are grouped by user, so that a monitor that
/// does not answer delays only VMs of the same user. If the time for a user is over, the user's
/// remaining VMs wait for the next discovery pass.
fn ask_monitors(
    around: &Around,
    of_users: &[(u32, Vec<UnaskedVm<'_>>)],
    tell: &(impl Fn(ScoutFinding) + Sync),
) {
    let next = AtomicUsize::new(0);
    let ask = || {
        while let Some((_, unasked)) = of_users.get(next.fetch_add(1, Ordering::Relaxed)) {
            let began = Instant::now();
            for one in unasked {
                if began.elapsed() >= ASKING_FOR_ONE {
                    break;
                }
                one.ask(around).into_iter().for_each(tell);
            }
        }
    };
    scope(|scope| {
        for _ in 1..of_users.len().min(ASKERS) {
            let thread = Builder::new().name("slackline-scout".into()).stack_size(STACK);
            // If no further thread can be started, this one asks all monitors.
            let _ = thread.spawn_scoped(scope, ask);
        }
        ask();
    });
}

/// Returns the state of a VM's guest if libvirt has suspended the guest. The state comes from
/// libvirt's file about the VM. `None` if the guest is running or its state is unknown.
fn suspended(machine: &Machine, pid: Tid) -> Option<String> {
    if machine.kind != Kind::Libvirt {
        return None;
    }
    let notes = notes_of(Path::new(LIBVIRT_STATES), &machine.name)?;
    let reason = read_state(&notes, pid)?;
    Some(format!("libvirt reports that the guest is {reason}"))
}

/// Reads libvirt's file about the VM `name`. Returns `None` if `name` leads out of the folder, or
/// to something other than a regular file. The name is not trusted: it comes from the command line
/// of the VM's process, which the process can change.
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

/// Maximum number of bytes that are read from libvirt's file about a VM. The state of the guest is
/// at the beginning of the file.
const LONGEST_NOTES: u64 = 1 << 20;

/// Folder in which libvirt keeps the state of each VM.
const LIBVIRT_STATES: &str = "/run/libvirt/qemu";

/// Returns the state of a guest from the text of libvirt's file about its VM. `None` if the guest
/// is running, or if the file is about another process than `pid`.
fn read_state(notes: &str, pid: Tid) -> Option<String> {
    let start = notes.find("<domstatus ")?;
    let tag = notes[start..].split('>').next()?;
    let value = |key: &str| tag.split(&format!(" {key}='")).nth(1)?.split('\'').next();
    let is_it = value("pid").and_then(|text| text.parse().ok()) == Some(pid.raw());
    let state = value("state").filter(|state| is_it && *state != "running")?;
    let reason = value("reason").map(|reason| format!(" ({reason})")).unwrap_or_default();
    Some(format!("{state}{reason}"))
}

/// Returns true if the process `pid` has the threads `threads` and no others.
fn has_threads(pid: Tid, threads: &[Tid]) -> bool {
    threads_of(pid).is_ok_and(|now| now == threads)
}

#[cfg(test)]
mod tests;
