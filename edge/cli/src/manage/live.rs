//! `slackline manage --live`: the loop that measures, decides and acts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use slackline_control::{Change, Length, Reservation};
use slackline_experiments::manage::{decide, slice_of};
use slackline_manager::{Decision, Manager, Pace, VmRound};
use slackline_units::{CpuShare, Span};

use super::daemon::{DaemonPredictor, ManagedHost, MeasuredRound, is_final, may_be_done};
use super::rounds::{RoundFile, RoundLine, header_line, json_line};
use crate::manage_args::{Manage, Mode};
use crate::places::Places;
use crate::problem::Problem;
use crate::signals::stop_flag;
use crate::terminal;

/// Shortest and longest round. A recording of the daemon has two rounds, and at most 60 s.
const ROUND_LIMITS: (Span, Span) = (Span::from_secs(1), Span::from_secs(30));

/// Interval of checks for signals.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Extra length of the round after a change, so that none of its measurements is from before the
/// change. The end of a recording can be 60 ms before the request for the recording, and its second
/// half can be 125 ms longer than a round.
const EXTRA_AFTER_CHANGE: Duration = Duration::from_millis(500);

/// Number of consecutive rounds without an answer of the daemon after which the manager ends.
const MAX_SILENT_ROUNDS: u32 = 12;

/// A manager of the reservations of a daemon.
struct LiveManager<'a> {
    args: &'a Manage,
    host: ManagedHost,
    manager: Manager,
    file: Option<RoundFile>,
    begin: Instant,
    /// End of the current round.
    due: Instant,
    /// Last change of this manager: the reservation before the change, and the shares before and
    /// after the change. `None` after a round has measured the effect of the change.
    last: Option<(Reservation, CpuShare, CpuShare)>,
    /// Latest known revision of each measured reservation. A change by this manager updates the
    /// revision.
    revisions: BTreeMap<String, u64>,
    /// Text of the last round if that round had no decision. A round with the same text prints
    /// nothing.
    quiet: String,
    /// Number of consecutive rounds without an answer of the daemon.
    silent: u32,
}

/// Result of a round.
struct RoundResult {
    line: RoundLine,
    /// True if the text is printed although the round before had the same text.
    is_news: bool,
}

pub(super) fn live(args: &Manage) -> Result<(), Problem> {
    let (least, most) = ROUND_LIMITS;
    if !(least..=most).contains(&args.round) {
        return Err(Problem::BadOption {
            message: format!(
                "cannot manage live in rounds of {}: a round must last {least} to {most}",
                args.round
            ),
            hint: Some("write --round 5s".into()),
        });
    }
    let places = Places::of(&[("--save", args.at.save.as_deref())])?;
    args.goals.as_ref().map_or(Ok(()), |file| places.read("--goals", file))?;
    let goals = super::goals(args.goals.as_deref())?;
    let mut host = ManagedHost::open(args.at.daemon.clone(), goals, args.round)?;
    if args.at.mode == Mode::Act {
        host.check_right_to_change()?;
    }
    let save = args.at.save.as_deref();
    let file = save.map(|path| RoundFile::create(path, (args.at.mode, args.round))).transpose()?;
    // Opening a pipe waits for its reader. Until then a signal ends the program at once.
    let stop = stop_flag()?;
    let mut manager = LiveManager {
        args,
        host,
        manager: Manager::new(Pace::default()),
        file,
        begin: Instant::now(),
        due: Instant::now() + Duration::from_nanos(args.round.ns()),
        last: None,
        revisions: BTreeMap::new(),
        quiet: String::new(),
        silent: 0,
    };
    manager.introduce()?;
    let ended = manager.run(&stop);
    manager.tell_how_to_undo();
    ended
}

impl LiveManager<'_> {
    /// Prints the mode, the managed VMs, and for each other VM the reason why it is not managed.
    fn introduce(&mut self) -> Result<(), Problem> {
        let all = self.host.reservations()?;
        // A change by another client in the first round is recognised by these revisions.
        self.revisions = all.iter().map(|it| (it.name.clone(), it.revision)).collect();
        let managed = all.iter().filter(|it| self.host.reason_to_leave(it).is_none());
        let managed: Vec<&str> = managed.map(|it| it.name.as_str()).collect();
        let (mode, round) = (self.args.at.mode, self.args.round);
        if self.args.at.daemon.json {
            return terminal::print(&header_line(mode, round));
        }
        let mode = mode.word();
        let mut text = format!("{mode}: {} in rounds of {round}\n", managed.join(", "));
        for it in &all {
            if let Some(why) = self.host.reason_to_leave(it) {
                text += &format!("{} is not managed: {why}\n", it.name);
            }
        }
        terminal::say(&text)
    }

    /// Runs all rounds, until a signal asks to stop.
    fn run(&mut self, stop: &Arc<AtomicBool>) -> Result<(), Problem> {
        let rounds = self.args.at.rounds.unwrap_or(u64::MAX);
        for number in 0..rounds {
            if !self.wait(stop) {
                break;
            }
            let result = self.round(number)?;
            self.begin_next_round(result.line.is_done);
            self.tell(&result)?;
        }
        Ok(())
    }

    /// Prints how to undo the last change, if no round has measured its effect.
    fn tell_how_to_undo(&self) {
        if let Some((before, ..)) = &self.last {
            let (name, slice, at) = (&before.name, before.slice.0, self.daemon_options());
            terminal::tell(&format!(
                "note:  the effect of the last change of {name} was not measured; undo the change \
                 with `slackline change {name} --slice {slice}{at}`\n"
            ));
        }
    }

    /// Waits for the end of the round. Returns false if a signal asks to stop.
    fn wait(&self, stop: &Arc<AtomicBool>) -> bool {
        loop {
            if stop.load(Ordering::Relaxed) {
                return false;
            }
            let left = self.due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(SIGNAL_CHECK_INTERVAL.min(left));
        }
    }

    /// Begins the next round. Rounds that have already ended are skipped. A round after a change
    /// begins at the change.
    fn begin_next_round(&mut self, is_changed: bool) {
        let round = Duration::from_nanos(self.args.round.ns());
        let now = Instant::now();
        if is_changed {
            self.due = now + round + EXTRA_AFTER_CHANGE;
            return;
        }
        while self.due <= now {
            self.due += round;
        }
    }

    /// Measures the round and decides about a change. After an error that is not final, the manager
    /// changes nothing in this round.
    fn round(&mut self, number: u64) -> Result<RoundResult, Problem> {
        match self.try_round(number) {
            Ok(result) => {
                self.silent = 0;
                Ok(result)
            }
            Err(problem) if is_final(&problem) => Err(problem),
            Err(problem) => {
                self.silent += 1;
                if self.silent >= MAX_SILENT_ROUNDS {
                    return Err(problem);
                }
                Ok(self.result_without_change(format!("no change: {problem}")))
            }
        }
    }

    fn result_without_change(&self, says: String) -> RoundResult {
        let line = RoundLine { after_ns: self.after_ns(), says, ..RoundLine::default() };
        RoundResult { line, is_news: false }
    }

    fn after_ns(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn try_round(&mut self, number: u64) -> Result<RoundResult, Problem> {
        let Some(measured) = self.host.measure(number)? else {
            return Ok(self.result_without_change("no change: no VM can be measured".into()));
        };
        if self.args.at.mode == Mode::Observe {
            let says = measured.round.vms.iter().map(describe_measurements).collect::<Vec<_>>();
            let mut silent = Silent;
            let (_, saved) = decide(&mut Manager::default(), &measured.round, &mut silent);
            let mut result = self.result_without_change(says.join("\n          "));
            (result.line.round, result.is_news) = (Some(saved), true);
            return Ok(result);
        }
        if let Some(held) = self.changed_by_others(&measured) {
            return Ok(self.result_without_change(held));
        }
        let mut predictor = DaemonPredictor {
            host: &mut self.host,
            measured: &measured,
            why_not: None,
            failed: None,
        };
        let (decision, saved) = decide(&mut self.manager, &measured.round, &mut predictor);
        let DaemonPredictor { why_not, failed, .. } = predictor;
        if let Some(problem) = failed.filter(is_final) {
            return Err(problem);
        }
        let before = self.last.take();
        let mut result = match &decision {
            Some(decision) => self.enact_decision(&measured, decision, before)?,
            None => {
                let why = measured.refused.clone().or(why_not);
                let why = why.map(|why| format!("no change: {why}"));
                self.result_without_change(why.unwrap_or_else(|| "no beneficial change".into()))
            }
        };
        result.line.round = Some(saved);
        Ok(result)
    }

    /// Returns a text if another client has changed a reservation since the previous round. Then
    /// the manager changes nothing, because the measurements of the round are from two different
    /// slices. Also, two managers that act would undo each other's changes.
    fn changed_by_others(&mut self, measured: &MeasuredRound) -> Option<String> {
        let revisions = measured.reservations.iter().map(|it| (it.name.clone(), it.revision));
        let before = std::mem::replace(&mut self.revisions, revisions.collect());
        let is_other = |(name, now): &(&String, &u64)| {
            before.get(*name).is_some_and(|revision| revision != *now)
        };
        let (name, now) = self.revisions.iter().find(is_other)?;
        let known = before[name];
        // The change of another client has replaced the change of this manager.
        self.last.take_if(|(last, ..)| last.name == *name);
        Some(format!("no change: another client changed {name}: revision {now}, expected {known}"))
    }

    /// Recommends or makes the change that was decided, depending on the mode.
    fn enact_decision(
        &mut self,
        measured: &MeasuredRound,
        decision: &Decision,
        last: Option<(Reservation, CpuShare, CpuShare)>,
    ) -> Result<RoundResult, Problem> {
        let name = decision.name.as_str();
        let before = measured.reservations.iter().find(|it| it.name == name);
        let before = before.expect("the manager decides about measured VMs").clone();
        // An undo restores the exact slice. A slice computed from the share may be rounded.
        let undone = last.filter(|(last, from, to)| {
            last.name == name && *from == decision.to && *to == decision.from
        });
        let slice = undone.as_ref().map_or_else(
            || slice_of(decision.to, before.period.0),
            |(reservation, ..)| reservation.slice.0,
        );
        let mut result = self.result_without_change(decision.to_string());
        result.is_news = true;
        if self.args.at.mode == Mode::Recommend {
            let command = self.command(&before, slice, decision);
            result.line.says += &format!("\n          {command}");
            return Ok(result);
        }
        let why = Some(reason(decision));
        let change = Change { slice: Some(Length(slice)), why, ..Change::default() };
        match self.host.client()?.change(name, &change, Some(before.revision)) {
            Ok((after, _)) => {
                result.line.is_done = true;
                self.revisions.insert(name.into(), after.revision);
                result.line.says += &format!("\n          done: {slice} every {}", after.period.0);
                if undone.is_none() {
                    self.last = Some((before, decision.from, decision.to));
                }
            }
            Err(error) => {
                let is_unknown = may_be_done(&error);
                if is_unknown {
                    self.revisions.remove(name);
                    if undone.is_none() {
                        self.last = Some((before, decision.from, decision.to));
                    }
                }
                let problem = Problem::Service(error);
                if is_final(&problem) {
                    return Err(problem);
                }
                let done = if is_unknown { "perhaps done" } else { "not done" };
                result.line.says += &format!("\n          {done}: {problem}");
            }
        }
        Ok(result)
    }

    /// Returns the command that makes a change.
    fn command(&self, before: &Reservation, slice: Span, decision: &Decision) -> String {
        let (name, revision) = (&before.name, before.revision);
        let at = self.daemon_options();
        let why = reason(decision).replace('\'', "\u{2019}");
        format!(
            "slackline change {name} --slice {slice} --if-revision {revision} --why '{why}'{at}"
        )
    }

    /// Returns the options that name the daemon. Empty for the default socket.
    fn daemon_options(&self) -> String {
        match &self.args.at.daemon.host {
            Some(host) => format!(" --host {host}"),
            None if self.args.at.daemon.socket.as_os_str() == slackline_control::SOCKET => {
                String::new()
            }
            None => format!(" --socket {}", self.args.at.daemon.socket.display()),
        }
    }

    fn tell(&mut self, result: &RoundResult) -> Result<(), Problem> {
        let line = &result.line;
        if self.args.at.daemon.json {
            terminal::print(&json_line(line))?;
        } else if result.is_news || line.says != self.quiet {
            let after = line.after_ns / 1_000_000_000;
            terminal::say(&format!("{after:>6} s  {}\n", line.says))?;
        }
        self.quiet = if result.is_news { String::new() } else { line.says.clone() };
        self.file.as_mut().map_or(Ok(()), |file| file.write(line))
    }
}

/// Predictor of a manager that only observes. It never predicts.
struct Silent;

impl slackline_manager::Predictor for Silent {
    fn predict(&mut self, _: &[CpuShare]) -> Option<Vec<slackline_manager::PredictedVm>> {
        None
    }
}

/// Returns the reason to store with a change: the explanation of the decision, shortened to 256
/// bytes.
fn reason(decision: &Decision) -> String {
    const LONGEST: usize = 256;
    let mut why = format!("manager: {decision}");
    let end = (0..=LONGEST.min(why.len())).rev().find(|&end| why.is_char_boundary(end));
    why.truncate(end.unwrap_or(0));
    why
}

/// Describes the measurements of a VM.
fn describe_measurements(vm: &VmRound) -> String {
    let percent = |part: Span, whole: Span| {
        let tenths = u128::from(part.ns()) * 1_000 / u128::from(whole.ns().max(1));
        format!("{}.{}", tenths / 10, tenths % 10)
    };
    let periods = vm.periods();
    let most = vm.demand.keys().next_back().copied().unwrap_or_default();
    let all = vm.period * periods.max(1);
    let share = vm.share.ppm() / 1_000;
    format!(
        "{}: {}.{} % reserved, {} % received, {} % demanded (at most {} % in a period), {} of \
         {periods} periods missed",
        vm.name,
        share / 10,
        share % 10,
        percent(vm.received, all),
        percent(vm.demanded(), all),
        percent(most, vm.period),
        vm.misses,
    )
}
