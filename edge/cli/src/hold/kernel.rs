//! `hold` by a mechanism of the kernel (`--enforce deadline`, `quota` or `weight`). The kernel
//! enforces, and this program only measures and restores.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use slackline_fence::{Fence, KeeperCommand};
use slackline_linux::cgroup::Hierarchies;
use slackline_linux::sys::{Tid, monotonic, online_cpus};
use slackline_linux::thread::ThreadRef;
use slackline_live::Punctual;
use slackline_live::mechanism::{
    Bound, Choice, Demand, EnforceTarget, KernelEnforcement, KernelMechanism, MechanismError,
    TrialResult, choose, kernel_mechanism, mechanism,
};
use slackline_live::meter::{GroupMeter, Sampler};
use slackline_live::session::{EnforcedWatch, JoinTarget, NotOwned, OwnedCpus, SessionError};
use slackline_units::{CpuId, Enforcement, Reservation, Span, Time};

use super::part::Parts;
use super::show::{HoldOutput, KernelHeading};
use super::{
    Amount, End, HeldGuest, ROUND, Target, conclude, end_command, of_session, of_thread,
    report_more_vcpus,
};
use crate::command::HeldCommand;
use crate::enforce::Enforce;
use crate::hold_args::HoldArgs;
use crate::problem::Problem;
use crate::terminal;

/// Mechanism of the kernel that holds a target, and the target in the form that mechanisms take.
pub(super) struct KernelChoice {
    mechanism: &'static dyn KernelMechanism,
    target: EnforceTarget,
}

/// Returns the mechanism of the kernel that is to enforce the request, and the amount that the
/// target requests. `None` if the dispatcher is to enforce the request.
///
/// # Errors
/// If the mechanism that the user named cannot express the request.
pub(super) fn selected(
    args: &HoldArgs,
    named: &Target,
    amount: Option<Amount>,
    is_command: bool,
) -> Result<Option<(KernelChoice, Demand)>, Problem> {
    let is_plain = args.weight.is_none() && !args.at_most;
    if is_plain && matches!(args.enforce, None | Some(Enforce::Named(Enforcement::Dispatcher))) {
        return Ok(None);
    }
    let target = target_of(named, is_command)?;
    let each = amount.map(|amount| amount.shared_by(named)).transpose();
    let each = match each {
        // Only the dispatcher can give a tree several CPUs.
        Err(_) if args.enforce == Some(Enforce::Auto) => return Ok(None),
        each => each?,
    };
    let Some(demand) = demand(args, each) else { return Ok(None) };
    let enforcement = match args.enforce {
        Some(Enforce::Named(enforcement)) => enforcement,
        Some(Enforce::Auto) | None => chosen(args, &target, demand)?,
    };
    match kernel_mechanism(enforcement) {
        Some(_) if args.cpus.is_some() => Err(cannot_pin(enforcement)),
        Some(mechanism) => Ok(Some((KernelChoice { mechanism, target }, demand))),
        None => {
            let checked = mechanism(enforcement).check(&target, demand);
            checked.map(|()| None).map_err(|error| of_mechanism(&error))
        }
    }
}

/// Returns the demand of the arguments. `None` if the arguments have neither a weight nor an
/// amount.
fn demand(args: &HoldArgs, each: Option<Reservation>) -> Option<Demand> {
    let bound = match (args.at_least, args.at_most) {
        (true, _) => Bound::AtLeast,
        (_, true) => Bound::AtMost,
        _ => Bound::Exact,
    };
    let time = each.map(|each| Demand::Time(each, bound));
    args.weight.map(Demand::Weight).or(time)
}

/// Chooses a mechanism, and prints the reason.
fn chosen(args: &HoldArgs, target: &EnforceTarget, demand: Demand) -> Result<Enforcement, Problem> {
    let trial = TrialResult::read_all(Path::new(TrialResult::FILE));
    let chosen = choose(target, demand, args.cpus.is_some(), &trial);
    let chosen = chosen.map_err(|error| of_mechanism(&error.last))?;
    let chosen = beside(other_scheduler().as_ref(), chosen);
    terminal::tell(&format!("note:  {} was chosen: {}\n", chosen.enforcement, chosen.why));
    Ok(chosen.enforcement)
}

/// Replaces the choice `deadline` by the dispatcher if another Slackline process schedules CPUs.
/// Returns every other choice unchanged. `other` is the error that names the other process.
fn beside(other: Option<&MechanismError>, chosen: Choice) -> Choice {
    match other {
        Some(error) if chosen.enforcement == Enforcement::Deadline => Choice {
            enforcement: Enforcement::Dispatcher,
            why: format!("not deadline, because {error}"),
        },
        _ => chosen,
    }
}

/// Returns an error if another Slackline process schedules CPUs, otherwise `None`. With such a
/// process the mechanism `deadline` cannot be used, because the admission of the process does not
/// count deadline threads of this program.
fn other_scheduler() -> Option<MechanismError> {
    let cpus: Vec<CpuId> = online_cpus().ok()?.iter().collect();
    match OwnedCpus::first_taken(&cpus)? {
        NotOwned::Taken { cpu, by } => Some(MechanismError::OtherScheduler { cpu, by }),
        _ => None,
    }
}

/// Converts the target of `hold` to the form that mechanisms take.
fn target_of(target: &Target, is_command: bool) -> Result<EnforceTarget, Problem> {
    let threads = target.who.iter().filter_map(|who| match who {
        JoinTarget::Thread(thread) => Some(thread.clone()),
        _ => None,
    });
    let threads: Vec<ThreadRef> = threads.collect();
    match target.who.first() {
        Some(JoinTarget::Group(place)) => Ok(EnforceTarget::Group(place.clone())),
        Some(JoinTarget::Tree(pid) | JoinTarget::Process(pid) | JoinTarget::Wide(pid, _)) => {
            let root = ThreadRef::open(*pid, *pid).map_err(|error| of_thread(&error))?;
            Ok(if is_command { EnforceTarget::Command(root) } else { EnforceTarget::Tree(root) })
        }
        _ => Ok(EnforceTarget::Vcpus(threads)),
    }
}

/// Holds a target by a mechanism of the kernel, until the target ends or the user stops the
/// program.
pub(super) fn hold(
    args: &HoldArgs,
    selected: &KernelChoice,
    (target, demand): (&Target, Demand),
    (stop, command): (&UnixStream, &mut Option<HeldCommand>),
) -> Result<(), Problem> {
    let what = (selected.mechanism, &selected.target, demand);
    let mut holding = KernelHolding::begin(args, what, target)?;
    command.as_mut().map_or(Ok(()), HeldCommand::go)?;
    let mut command = command.take();
    let end = holding.run(stop, command.as_mut());
    let left = end_command(&end, command.as_mut(), || holding.processes());
    let finished = holding.finish(end.as_ref().ok());
    conclude(end, command, &left, finished)
}

struct KernelHolding {
    fence: Fence,
    enforced: KernelEnforcement,
    meters: Vec<PartMeter>,
    /// One watch for each vCPU thread of a VM. For a process tree, one watch for its first thread.
    watches: Vec<EnforcedWatch>,
    guest: Option<HeldGuest>,
    parts: Parts,
    shown: HoldOutput,
    began: Time,
    // Makes this thread real-time, so that it finds changes on a busy host too. Dropped after the
    // fence.
    _urgent: Punctual,
}

/// Meter of a vCPU thread or of a process tree.
enum PartMeter {
    Thread(ThreadRef, Sampler, Span),
    Group(GroupMeter),
}

impl KernelHolding {
    fn begin(
        args: &HoldArgs,
        (mechanism, target, demand): (&dyn KernelMechanism, &EnforceTarget, Demand),
        named: &Target,
    ) -> Result<KernelHolding, Problem> {
        let other = other_scheduler().filter(|_| mechanism.enforcement() == Enforcement::Deadline);
        if let Some(error) = other {
            return Err(of_mechanism(&error));
        }
        let urgent = Punctual::begin().map_err(|source| SessionError::NoRealTime { source });
        let _urgent = urgent.map_err(of_session)?;
        let fence = Fence::start(KeeperCommand::ourselves(["keep"]));
        let mut fence = fence.map_err(|error| of_session(SessionError::Fence(error)))?;
        let limits = foreign_limits(target, mechanism.enforcement(), demand);
        let enforced = mechanism.apply(target, demand, &mut fence);
        let enforced = enforced.map_err(|error| of_mechanism(&error))?;
        let mut meters = Vec::new();
        match target {
            EnforceTarget::Vcpus(threads) => {
                for thread in threads {
                    meters.push(PartMeter::thread(thread)?);
                }
            }
            EnforceTarget::Tree(root) | EnforceTarget::Command(root) => {
                meters.push(match enforced.groups.first() {
                    Some(group) => PartMeter::Group(GroupMeter::start(group)),
                    None => PartMeter::thread(root)?,
                });
            }
            EnforceTarget::Group(_) => {}
        }
        let heading = KernelHeading {
            name: &named.name,
            mechanism: mechanism.enforcement(),
            demand,
            parts: target.parts(),
        };
        let shown = HoldOutput::begin_by_kernel(args, &heading)?;
        limits.iter().for_each(|line| terminal::tell(line));
        let began = monotonic();
        let reserved = match demand {
            Demand::Time(each, _) => Some(each),
            Demand::Weight(_) => None,
        };
        let hierarchies = Hierarchies::read().ok();
        let watch = |(index, thread): (usize, &ThreadRef)| {
            let group = enforced.groups.get(index).map(PathBuf::as_path);
            let since = (&fence, hierarchies.as_ref(), began);
            EnforcedWatch::new((target, thread), (reserved, group), since)
        };
        let watches = target.threads().iter().enumerate().map(watch).collect();
        let parts = Parts::measured(named.part_names(), began);
        let guest = named.guest();
        Ok(KernelHolding { fence, enforced, meters, watches, guest, parts, shown, began, _urgent })
    }

    fn run(
        &mut self,
        stop: &UnixStream,
        mut command: Option<&mut HeldCommand>,
    ) -> Result<End, Problem> {
        loop {
            let ended = command.as_ref().and_then(|command| command.ended_fd());
            if is_stopped(stop, ended, self.fence.keeper_fd()) {
                return Ok(End::Stopped);
            }
            self.keep_keeper()?;
            let is_there = self.measure();
            let passed = monotonic().since(self.began);
            let all = EnforcedWatch::look_at_all(&mut self.watches, &mut self.fence, monotonic());
            for (part, seen) in all.into_iter().enumerate() {
                self.shown.enforced_changes(part, &seen, passed)?;
            }
            report_more_vcpus(self.guest.as_ref(), &mut self.shown, passed)?;
            self.shown.at(passed, self.parts.used())?;
            if let Some(status) = command.as_mut().and_then(|command| command.status()) {
                return Ok(End::Exited(status));
            }
            if !is_there && command.is_none() {
                return Ok(End::Gone);
            }
        }
    }

    /// Starts a new keeper if the keeper has died. The keeper restores all threads if this program
    /// dies.
    fn keep_keeper(&mut self) -> Result<(), Problem> {
        let mut keeper = [PollFd::from_borrowed_fd(self.fence.keeper_fd(), PollFlags::IN)];
        let _ = poll(&mut keeper, Some(&rustix::event::Timespec::default()));
        if keeper[0].revents().is_empty() {
            return Ok(());
        }
        self.fence.revive().map_err(|error| of_session(SessionError::Fence(error)))
    }

    /// Reads all meters. Returns true if a thread or process of the target still exists.
    fn measure(&mut self) -> bool {
        let mut is_there = false;
        for (index, meter) in self.meters.iter_mut().enumerate() {
            let (used, exists) = meter.read();
            self.parts.set_used(index, used);
            is_there |= exists;
        }
        // A process that was moved out of its cgroup still exists.
        is_there || self.watches.iter().any(|watch| !watch.is_gone())
    }

    /// Returns the current processes of the target. Includes processes that left their limit and
    /// are now stopped in a cell, a cgroup out of which their user cannot move them. Empty for a
    /// VM.
    fn processes(&self) -> Vec<Tid> {
        let groups = self.meters.iter().zip(&self.watches).filter_map(|it| match it {
            (PartMeter::Group(group), watch) => {
                Some([group.processes(), watch.confined_processes()].concat())
            }
            (PartMeter::Thread(..), _) => None,
        });
        groups.flatten().collect()
    }

    /// Restores all threads, and prints the totals.
    fn finish(mut self, end: Option<&End>) -> Result<(), Problem> {
        self.measure();
        let ended = monotonic();
        let released = self.fence.release_all();
        released.map_err(|errors| of_session(SessionError::NotGivenBack { errors }))?;
        debug_assert!(!self.enforced.tids.is_empty(), "a held target has threads");
        self.shown.end((self.began, ended), &self.parts, matches!(end, Some(End::Gone)))
    }
}

impl PartMeter {
    fn thread(thread: &ThreadRef) -> Result<PartMeter, Problem> {
        let sampler = Sampler::of_thread(thread.tid());
        let sampler = sampler.map_err(|error| Problem::HostCannot {
            message: error.to_string(),
            hint: Some("check with `ps` whether the process still runs".into()),
        })?;
        Ok(PartMeter::Thread(thread.clone(), sampler, Span::ZERO))
    }

    /// Returns the CPU time used since this meter started, and true if the metered thread, or a
    /// process of the metered tree, still exists.
    fn read(&mut self) -> (Span, bool) {
        match self {
            PartMeter::Thread(thread, sampler, used) => {
                *used += sampler.sample().map_or(Span::ZERO, |sample| sample.used);
                (*used, !thread.is_gone().unwrap_or(true))
            }
            PartMeter::Group(group) => (group.used(), !group.processes().is_empty()),
        }
    }
}

/// Waits until the next round, and returns true if a signal asked the program to stop.
fn is_stopped(
    stop: &UnixStream,
    ended: Option<std::os::fd::BorrowedFd<'_>>,
    keeper: std::os::fd::BorrowedFd<'_>,
) -> bool {
    let fds = [stop.as_fd(), keeper].into_iter().chain(ended);
    let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let round = ROUND.min(EnforcedWatch::INTERVAL);
    let round = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: i64::try_from(round.ns()).expect("a round is shorter than a second"),
    };
    // An interrupted wait is a short round.
    let _ = poll(&mut fds, Some(&round));
    !fds[0].revents().is_empty()
}

/// Returns a line for each CFS quota set by another program that limits the target to less than the
/// target requests.
fn foreign_limits(target: &EnforceTarget, by: Enforcement, demand: Demand) -> Vec<String> {
    let thread = match target {
        EnforceTarget::Vcpus(threads) => threads.first(),
        EnforceTarget::Tree(root) | EnforceTarget::Command(root) => Some(root),
        EnforceTarget::Group(_) => None,
    };
    // A deadline thread is not subject to CFS quotas.
    let Some(thread) = thread.filter(|_| by != Enforcement::Deadline) else { return Vec::new() };
    let around = Hierarchies::read().ok();
    let around = around.and_then(|of| of.around(thread.pid(), thread.tid()));
    let asked = asked_ppm(demand, target.parts());
    let note = |(group, quota): (&Path, &str)| quota_note(asked, group, quota);
    around.map_or_else(Vec::new, |around| around.quotas().filter_map(note).collect())
}

/// Returns the share that all parts of a target request together, in millionths of a CPU.
/// `u64::MAX` for a weight, which sets no upper limit.
fn asked_ppm(demand: Demand, parts: usize) -> u64 {
    match demand {
        Demand::Time(each, _) => {
            let parts = u64::try_from(parts).unwrap_or(u64::MAX);
            u64::from(each.share().ppm()).saturating_mul(parts)
        }
        Demand::Weight(_) => u64::MAX,
    }
}

/// Returns a note if the quota of another program is smaller than the share `asked`, in millionths
/// of a CPU. `quota` has the CPU time and the period of the quota, in microseconds.
fn quota_note(asked: u64, group: &Path, quota: &str) -> Option<String> {
    let (quota, period) = quota.split_once(' ')?;
    let ppm = quota.parse::<u64>().ok()? * 1_000_000 / period.parse::<u64>().ok()?.max(1);
    let group = group.display();
    (ppm < asked).then(|| {
        format!("note:  cgroup {group} allows the target only {quota} us in every {period} us\n")
    })
}

fn cannot_pin(enforcement: Enforcement) -> Problem {
    let why = match enforcement {
        Enforcement::Deadline => "the kernel requires that a deadline thread may run on all CPUs",
        _ => "a cgroup of the controller `cpu` acts on all CPUs",
    };
    Problem::BadOption {
        message: format!(
            "cannot restrict the target to the CPUs of `--cpus` with the mechanism \
             `{enforcement}`: {why}"
        ),
        hint: Some("drop --cpus, or use `--enforce dispatcher`".into()),
    }
}

pub(super) fn of_mechanism(error: &MechanismError) -> Problem {
    let (message, hint) = (error.to_string(), error.hint());
    match error {
        MechanismError::Thread(error) => of_thread(error),
        MechanismError::OtherScheduler { .. } => Problem::NotAdmitted { message, hint },
        error if error.is_of_host() => Problem::HostCannot { message, hint },
        _ => Problem::BadOption { message, hint },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A quota of one CPU limits two vCPUs that request 60 % each, but does not limit a single such
    /// vCPU.
    #[test]
    fn hold_command_reports_foreign_quota_below_total_vcpu_demand() {
        let each = Reservation::new(Span::from_ms(60), Span::from_ms(100)).expect("valid");
        let demand = Demand::Time(each, Bound::AtMost);
        let group = Path::new("/sys/fs/cgroup/vm");
        let note = |parts| quota_note(asked_ppm(demand, parts), group, "100000 100000");
        assert_eq!(note(1), None);
        let said = note(2).expect("1.2 CPUs are more than one");
        assert!(said.contains("only 100000 us in every 100000 us"), "{said}");
    }
    #[test]
    fn auto_enforcement_uses_dispatcher_instead_of_deadline_beside_another_slackline() {
        let other = MechanismError::OtherScheduler { cpu: CpuId::new(1), by: Some(77) };
        let choice = |enforcement| Choice { enforcement, why: "smaller error".into() };
        for enforcement in Enforcement::ALL {
            assert_eq!(beside(None, choice(enforcement)), choice(enforcement));
            let beside = beside(Some(&other), choice(enforcement));
            if enforcement == Enforcement::Deadline {
                assert_eq!(beside.enforcement, Enforcement::Dispatcher);
                assert!(beside.why.contains("process 77"), "{}", beside.why);
            } else {
                assert_eq!(beside, choice(enforcement));
            }
        }
    }
}
