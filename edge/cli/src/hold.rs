//! Command `slackline hold`, which reserves CPU time for one target without a scenario, and shows
//! what the target receives.

mod cpus;
mod early_end;
mod kernel;
mod part;
mod reserved;
mod show;

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitStatus;

use slackline_fence::{FenceError, KeeperCommand};
use slackline_linux::cgroup::{CgroupError, TreePlace};
use slackline_linux::sys::Tid;
use slackline_linux::thread::{TaskFd, ThreadError, ThreadRef};
use slackline_linux::with_causes;
use slackline_live::Punctual;
use slackline_live::mechanism::DeadlineThread;
use slackline_live::session::{
    JoinId, JoinTarget, Options, OwnedCpus, Request, RequestError, RequestedId, Session,
    SessionError, knowledge,
};
use slackline_live::vcpus;
use slackline_play::play::LiveError;
use slackline_policy::{AdmitError, RawValue, Values, find};
use slackline_units::{CpuId, CpuShare, Reservation, Span, Time};

use crate::amounts::{percent_hint, share_hint};
use crate::command::{HeldCommand, exit_code};
use crate::hold_args::HoldArgs;
use crate::problem::Problem;
use crate::run::choose_cpus;
use crate::signals::{stay_running, stop_signal};
use crate::terminal;
use early_end::{await_vcpus, not_found, not_held};
use part::Parts;
use show::HoldOutput;
pub(crate) use show::percent;

/// Default period of the reservation. It applies if the user gives a share and no period.
const PERIOD: Span = Span::from_ms(10);

/// Maximum sleep of the main loop. After each sleep, the loop reads the session's records and
/// checks if the target still exists.
const ROUND: Span = Span::from_ms(100);

/// Largest reservation of a process tree on one CPU, in millionths. A tree that reserves more gets
/// one more CPU. The remaining part of each CPU is for ordinary threads and for dispatching.
const FULL: u32 = 900_000;

pub(crate) fn hold(args: &HoldArgs) -> Result<(), Problem> {
    let each = amount(args)?;
    let (stop, _raised) = stop_signal()?;
    stay_running()?;
    // Checks that this thread may be real-time before anything is started.
    let may = Punctual::begin().map_err(|source| SessionError::NoRealTime { source });
    drop(may.map_err(of_session)?);
    let mut command = HeldCommand::start(&args.command)?;
    let held = hold_target(args, each, &stop, &mut command);
    match (held, command) {
        (Err(problem), Some(command)) => not_held(problem, command),
        (held, _) => held.map_err(|problem| reserved::explained(problem, args)),
    }
}

/// Schedules the target until the target ends or the user stops the program. `command` is the
/// command of `hold -- COMMAND`. It is `None` after the return if the command ran under its limit.
fn hold_target(
    args: &HoldArgs,
    each: Option<Amount>,
    stop: &UnixStream,
    command: &mut Option<HeldCommand>,
) -> Result<(), Problem> {
    if let Some(command) = command.as_mut().filter(|_| args.vcpus) {
        // A VM monitor must run to start its vCPU threads.
        command.go()?;
    }
    let target = Target::find(args, command.as_mut(), stop)?;
    if let Some((selected, demand)) = kernel::selected(args, &target, each, command.is_some())? {
        return kernel::hold(args, &selected, (&target, demand), (stop, command));
    }
    let each = each.ok_or_else(no_amount)?;
    let cpus = match &args.cpus {
        Some(asked) => choose_cpus(asked.len(), Some(asked))?,
        None => target.default_cpus(each)?,
    };
    let target = target.on(each, &cpus);
    let spread = each.spread();
    let each = each.shared_by(&target)?;
    let policy = find("edf").expect("the policy is built in");
    let values = Values::defaults(policy.policy_fields).expect("all fields have defaults");
    let keeper = KeeperCommand::ourselves(["keep"]);
    // A tree on several CPUs uses all of them, although the session schedules only the first.
    let owned = OwnedCpus::take(&cpus).map_err(|error| of_session(error.into()))?;
    let options = Options {
        cpus: target.managed(&cpus),
        policy,
        values,
        keeper,
        owned: Some(owned),
        dispatch: None,
        origin: None,
        wall_clock: None,
    };
    let mut session = Session::open(&options).map_err(of_session)?;
    let requests = target.requests((each, spread), !args.at_least);
    let names = requests.iter().map(|request| request.name.clone()).collect();
    let parts = target.parts();
    let refused = |error: RequestError| in_same_terms(args, parts, error);
    let ids = session.join(requests).map_err(|error| refused(error.error))?;
    let checked = session.check_deadline_threads(&DeadlineThread::all());
    checked.map_err(|found| Problem::of_conflict(&found))?;
    command.as_mut().map_or(Ok(()), HeldCommand::go)?;
    let shown = HoldOutput::begin(args, &target.name, each, (target.parts(), &cpus))?;
    let (began, guest) = (session.now(), target.guest());
    let parts = Parts::new(names, target.width(), knowledge().sleep, began);
    let mut holding = Holding { began, session, ids, guest, parts, shown };
    let mut command = command.take();
    let end = holding.run(stop.as_fd(), command.as_mut());
    let left = end_command(&end, command.as_mut(), || holding.processes());
    let finished = holding.finish(end.as_ref().ok());
    conclude(end, command, &left, finished)
}

/// Ends the command and all processes that it started. If the command has exited by itself, ends
/// nothing, and returns those processes of the command that still run. Must be called while the
/// target is held, because only then `processes` returns all processes of the command.
fn end_command(
    end: &Result<End, Problem>,
    command: Option<&mut HeldCommand>,
    mut processes: impl FnMut() -> Vec<Tid>,
) -> Vec<(Tid, TaskFd)> {
    match (end, command) {
        (_, None) => Vec::new(),
        (Ok(End::Exited(_)), Some(_)) => {
            processes().into_iter().filter_map(|pid| Some((pid, TaskFd::open(pid).ok()?))).collect()
        }
        (_, Some(command)) => {
            command.end_with(processes);
            Vec::new()
        }
    }
}

/// Returns the result of `hold`. If the command has exited by itself, the result is the command's
/// exit code. `left` has the processes that the command started and that still run.
fn conclude(
    end: Result<End, Problem>,
    command: Option<HeldCommand>,
    left: &[(Tid, TaskFd)],
    finished: Result<(), Problem>,
) -> Result<(), Problem> {
    match (end?, command) {
        (End::Stopped, Some(command)) => {
            drop(command);
            finished.and(Err(Problem::Interrupted))
        }
        (End::Exited(status), command) => {
            // The exit code of the command is returned even if holding it failed.
            if let Err(problem) = finished {
                terminal::tell(&format!("warning: {problem}\n"));
            }
            command.into_iter().for_each(|command| command.tell_left(left));
            exit_code(status)
        }
        (End::Stopped | End::Gone, _) => finished,
    }
}

/// CPU time that the user requested for the target.
#[derive(Clone, Copy, Debug)]
enum Amount {
    /// The same reservation for each vCPU of the target.
    Each(Reservation),
    /// A share for all vCPUs together, and its period. Each vCPU reserves an equal part, and may
    /// borrow budget that the other vCPUs leave unused.
    Together(CpuShare, Span),
}

/// Returns the amount of CPU time that the user requested. `None` if the user gave a weight
/// instead.
fn amount(args: &HoldArgs) -> Result<Option<Amount>, Problem> {
    let bad = |message: String, hint: &str| Problem::BadOption { message, hint: Some(hint.into()) };
    match (args.cpu, args.slice) {
        (Some(cpu), _) => Ok(Some(Amount::Together(cpu, args.period.unwrap_or(PERIOD)))),
        (None, Some(slice)) => {
            let period = args.period.unwrap_or(PERIOD);
            let reservation = Reservation::new(slice, period);
            let hint = "write `--slice 2ms --period 10ms`";
            let each = reservation.map_err(|error| bad(error.to_string(), hint))?;
            Ok(Some(Amount::Each(each)))
        }
        (None, None) if args.weight.is_some() => Ok(None),
        (None, None) => Err(no_amount()),
    }
}

fn no_amount() -> Problem {
    Problem::BadOption {
        message: "no amount of CPU time is given".into(),
        hint: Some("add `--cpu 30%`, or `--slice 3ms --period 10ms`".into()),
    }
}

impl Amount {
    /// Returns the value of the parameter `spread` of the policy `edf`, which allows or forbids
    /// vCPUs of the target to borrow each other's unused budget.
    const fn spread(self) -> &'static str {
        match self {
            Amount::Each(_) => "even",
            Amount::Together(..) => "use",
        }
    }

    /// Returns the reservation that each vCPU of the target gets.
    fn shared_by(self, target: &Target) -> Result<Reservation, Problem> {
        let (cpu, period) = match self {
            Amount::Each(reservation) => return Ok(reservation),
            Amount::Together(cpu, period) => (cpu, period),
        };
        let parts = u32::try_from(target.parts()).unwrap_or(u32::MAX);
        let bad = |message: String, hint: &str| {
            let hint = Some(hint.into());
            Problem::BadOption { message, hint }
        };
        if cpu.ppm() > parts.saturating_mul(1_000_000) {
            let (asked, most) =
                (show::percent(cpu.ppm().into()), show::percent(u64::from(parts) * 1_000_000));
            let (of, hint) = target.most();
            let typed = percent_hint(cpu);
            let message = format!("cannot reserve {asked} of a CPU: {of} can have at most {most}");
            return Err(bad(message, typed.as_deref().unwrap_or(hint)));
        }
        let slice = Span::from_ns(
            u64::try_from(
                u128::from(period.ns()) * u128::from(cpu.ppm()) / u128::from(parts) / 1_000_000,
            )
            .unwrap_or(u64::MAX),
        );
        let reservation = Reservation::new(slice, period);
        reservation.map_err(|error| bad(error.to_string(), "use a longer `--period`"))
    }
}

/// Process, systemd unit, cgroup or VM that `hold` schedules.
struct Target {
    /// Name of the target in the output.
    name: String,
    /// Threads, trees or cgroups that get a reservation each: the vCPUs of a VM, or the target as a
    /// whole.
    who: Vec<JoinTarget>,
    /// Names of the vCPUs. Empty if the target is not a VM.
    vcpus: Vec<String>,
}

impl Target {
    fn find(
        args: &HoldArgs,
        command: Option<&mut HeldCommand>,
        stop: &UnixStream,
    ) -> Result<Target, Problem> {
        if let Some(unit) = &args.unit {
            let place = TreePlace::of_unit(unit).map_err(|error| of_group(&error))?;
            return Ok(Target::whole(unit.clone(), JoinTarget::Group(place)));
        }
        if let Some(path) = &args.cgroup {
            let place = TreePlace::existing(Path::new(path)).map_err(|error| of_group(&error))?;
            return Ok(Target::whole(format!("cgroup {path}"), JoinTarget::Group(place)));
        }
        let (number, name) = match &command {
            Some(command) => (command.pid().raw(), args.command[0].clone()),
            None => {
                let pid = args.pid.unwrap_or_default();
                (pid, format!("process {pid}"))
            }
        };
        let pid = Tid::new(number).ok_or_else(|| no_process(number))?;
        if !args.vcpus {
            return Ok(Target::whole(name, JoinTarget::Tree(pid)));
        }
        let found = match command {
            Some(command) => await_vcpus(command, stop)?,
            None => vcpus::find(number).map_err(|error| not_found(&error))?,
        };
        let open = |tid| ThreadRef::open(pid, tid).map_err(|error| of_thread(&error));
        let tids = found.iter().filter_map(|vcpu| Tid::new(vcpu.tid));
        let who =
            tids.map(|tid| Ok(JoinTarget::Thread(open(tid)?))).collect::<Result<_, Problem>>()?;
        let vcpus = found.iter().map(|vcpu| format!("vCPU {}", vcpu.index)).collect();
        Ok(Target { name, who, vcpus })
    }

    /// Returns a target that is scheduled as a whole, with one reservation.
    fn whole(name: String, who: JoinTarget) -> Target {
        Target { name, who: vec![who], vcpus: Vec::new() }
    }

    /// Returns the number of CPUs that the target needs, at most the number of online CPUs.
    fn cpus_for(&self, amount: Amount) -> usize {
        let online = slackline_linux::sys::online_cpus().map_or(1, |cpus| cpus.iter().count());
        let needed = match (amount, &self.who[..]) {
            // A tree gets the smallest number of CPUs that is enough.
            (Amount::Together(cpu, _), [JoinTarget::Tree(_)]) if cpu.ppm() > 1_000_000 => {
                usize::try_from(cpu.ppm().div_ceil(FULL)).unwrap_or(usize::MAX)
            }
            _ => self.who.len(),
        };
        needed.clamp(1, online)
    }

    /// Returns the target adapted to these CPUs: a process tree that needs several CPUs runs on all
    /// of them at once.
    fn on(mut self, amount: Amount, cpus: &[CpuId]) -> Target {
        if let (Amount::Together(cpu, _), [JoinTarget::Tree(root)]) = (amount, &self.who[..])
            && cpu.ppm() > 1_000_000
            && cpus.len() > 1
        {
            self.who = vec![JoinTarget::Wide(*root, cpus.iter().copied().collect())];
        }
        self
    }

    /// Returns the target as a VM if `hold` schedules its vCPU threads. Otherwise `None`.
    fn guest(&self) -> Option<HeldGuest> {
        let threads = self.who.iter().filter_map(|who| match who {
            JoinTarget::Thread(thread) => Some(thread),
            _ => None,
        });
        let pid = threads.clone().next()?.pid().raw();
        Some(HeldGuest { pid, scheduled: threads.map(|thread| thread.tid().raw()).collect() })
    }

    /// Returns the number of CPUs on which the target runs at the same time.
    fn width(&self) -> usize {
        match &self.who[..] {
            [JoinTarget::Wide(_, cpus)] => cpus.iter().count(),
            _ => 1,
        }
    }

    /// Returns the number of reservations: one for each vCPU, or one for each CPU of a tree that
    /// runs on several CPUs at once.
    fn parts(&self) -> usize {
        self.who.len().max(1) * self.width()
    }

    /// Returns the CPUs that the session schedules: all of `cpus`, or only the first of them for a
    /// tree that runs on several CPUs.
    fn managed(&self, cpus: &[CpuId]) -> Vec<CpuId> {
        if self.width() > 1 { cpus[..1].to_vec() } else { cpus.to_vec() }
    }

    /// Returns two phrases for the error message about a request that is too large: the resource
    /// that limits the target, such as `the chosen CPUs`, and advice.
    fn most(&self) -> (&'static str, &'static str) {
        match &self.who[..] {
            [JoinTarget::Thread(_), ..] => ("the vCPUs of the VM together", "reserve less"),
            [JoinTarget::Group(_)] => (
                "a cgroup",
                "hold a process by `--pid`, or start a command: a process can use several CPUs",
            ),
            _ => ("the chosen CPUs", "reserve less, or name more CPUs with `--cpus`"),
        }
    }

    /// Returns the names of the parts: the vCPUs, or the target as a whole.
    fn part_names(&self) -> Vec<String> {
        if self.vcpus.is_empty() { vec![self.name.clone()] } else { self.vcpus.clone() }
    }

    fn requests(&self, (each, spread): (Reservation, &str), exact: bool) -> Vec<Request> {
        let policy = find("edf").expect("the policy is built in");
        let (slice, period) = (each.slice().to_string(), each.period().to_string());
        let given = [
            ("slice", RawValue::Text(&slice)),
            ("period", RawValue::Text(&period)),
            ("exact", RawValue::Flag(exact)),
            ("spread", RawValue::Text(if self.who.len() > 1 { spread } else { "even" })),
        ];
        let share = Values::read(policy.share_fields, given.into_iter());
        let share = share.expect("every reservation is valid in the policy's parameters");
        let request = |(index, who): (usize, &JoinTarget)| Request {
            who: who.clone(),
            name: self.vcpus.get(index).unwrap_or(&self.name).clone(),
            domain: self.name.clone(),
            called: RequestedId::Anything,
            share: share.clone(),
            cpus: None,
        };
        self.who.iter().enumerate().map(request).collect()
    }
}

/// Reason why `hold` ended.
#[derive(Clone, Copy, Debug)]
enum End {
    /// A signal asked the program to stop.
    Stopped,
    /// The command of `hold -- COMMAND` has exited.
    Exited(ExitStatus),
    /// The target has no processes left.
    Gone,
}

/// A VM that is the target of `hold`.
struct HeldGuest {
    pid: i32,
    /// Ids of the vCPU threads that `hold` schedules.
    scheduled: BTreeSet<i32>,
}

/// Prints a note if the guest has vCPU threads that `hold` does not schedule.
fn report_more_vcpus(
    guest: Option<&HeldGuest>,
    shown: &mut HoldOutput,
    passed: Span,
) -> Result<(), Problem> {
    let Some(guest) = guest.filter(|_| shown.is_time_for_vcpus(passed)) else { return Ok(()) };
    // Only a monitor could count vCPUs of a guest whose threads have no names. The monitor is not
    // asked here. Thread ids are compared instead of numbers of vCPUs: a vCPU that was unplugged
    // and plugged in again has a new thread.
    let there = vcpus::find_all_named(guest.pid).unwrap_or_default();
    let more = there.iter().map(|vcpu| vcpu.tid).filter(|tid| !guest.scheduled.contains(tid));
    shown.more_vcpus(more.collect())
}

/// State of a running `hold`: the target and its session.
struct Holding {
    session: Session,
    ids: Vec<JoinId>,
    began: Time,
    guest: Option<HeldGuest>,
    parts: Parts,
    shown: HoldOutput,
}

impl Holding {
    fn run(
        &mut self,
        stop: std::os::fd::BorrowedFd<'_>,
        mut command: Option<&mut HeldCommand>,
    ) -> Result<End, Problem> {
        let mut records = Vec::new();
        loop {
            let ended = command.as_ref().and_then(|command| command.ended_fd());
            let wake: Vec<_> = std::iter::once(stop).chain(ended).collect();
            if self.session.wait(&wake, ROUND)[0] {
                return Ok(End::Stopped);
            }
            let seen = self.session.poll(&mut records).map_err(of_session)?;
            self.parts.count(&mut records);
            let passed = seen.now.since(self.began);
            self.shown.changes(&seen, passed)?;
            report_more_vcpus(self.guest.as_ref(), &mut self.shown, passed)?;
            self.shown.at(passed, self.parts.used())?;
            if let Some(status) = command.as_mut().and_then(|command| command.status()) {
                return Ok(End::Exited(status));
            }
            self.ids.retain(|id| !seen.ended.contains(id));
            if self.ids.is_empty() && command.is_none() || self.session.is_over() {
                return Ok(End::Gone);
            }
        }
    }

    /// Returns the current processes of the target, after the regular work of the session.
    fn processes(&mut self) -> Vec<Tid> {
        let mut records = Vec::new();
        // An error is returned again when the session is closed.
        let _ = self.session.poll(&mut records);
        self.parts.count(&mut records);
        self.ids.iter().flat_map(|&id| self.session.processes_of(id)).collect()
    }

    /// Restores all threads, and prints the totals.
    fn finish(self, end: Option<&End>) -> Result<(), Problem> {
        let Holding { session, began, mut parts, shown, .. } = self;
        let ended = session.now();
        let mut records = Vec::new();
        let closed = session.close(&mut records);
        parts.count(&mut records);
        closed.map_err(of_session)?;
        shown.end((began, ended), &parts, matches!(end, Some(End::Gone)))
    }
}

fn of_session(error: SessionError) -> Problem {
    Problem::Live(LiveError::Session(error))
}

fn of_request(error: RequestError) -> Problem {
    let hint = error.hint();
    match error {
        RequestError::Declined(error) => {
            Problem::BadOption { message: format!("cannot reserve: {error}"), hint: error.hint() }
        }
        RequestError::Host(error) => of_session(SessionError::Host(error)),
        RequestError::Thread(error) | RequestError::Fence(FenceError::Thread(error)) => {
            of_thread(&error)
        }
        RequestError::Fence(FenceError::Group(error)) => {
            let message = with_causes(&error);
            Problem::HostCannot { message, hint }
        }
        error => Problem::HostCannot { message: with_causes(&error), hint },
    }
}

/// Converts an error about a request. If capacity is lacking and the user requested a share, the
/// hint states a share and not a slice.
fn in_same_terms(args: &HoldArgs, parts: usize, error: RequestError) -> Problem {
    let hint = match &error {
        RequestError::Declined(
            AdmitError::NoRoom { asked, room, .. }
            | AdmitError::NoRoomInParts { asked, room, .. }
            | AdmitError::NoRoomTogether { asked, room, .. },
        ) if args.cpu.is_some() => {
            let parts = u64::try_from(parts).unwrap_or(u64::MAX);
            share_hint(*room, asked.period(), parts)
        }
        _ => None,
    };
    let is_process = args.cgroup.is_none() && args.unit.is_none() && !args.vcpus;
    match (of_request(error), hint) {
        (Problem::BadOption { message, .. }, Some(hint)) => {
            let more = if is_process && parts == 1 { ", or two CPUs with `--cpus`" } else { "" };
            Problem::BadOption { message, hint: Some(hint + more) }
        }
        (problem, _) => problem,
    }
}

fn of_thread(error: &ThreadError) -> Problem {
    match error {
        ThreadError::Gone { pid, tid } if pid == tid => no_process(pid.raw()),
        error => {
            let hint = Some(error.hint().into());
            Problem::HostCannot { message: error.to_string(), hint }
        }
    }
}

fn of_group(error: &CgroupError) -> Problem {
    let hint = error.hint().map(str::to_owned);
    Problem::HostCannot { message: with_causes(error), hint }
}

fn no_process(pid: i32) -> Problem {
    Problem::HostCannot {
        message: format!("there is no process {pid}"),
        hint: Some(format!("check with `ps -p {pid}` whether the process still runs")),
    }
}
