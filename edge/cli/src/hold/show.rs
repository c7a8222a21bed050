//! Output of `hold`: its target and reservation, progress lines, and totals.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, stderr, stdout};

use serde_json::{Value, json};
use slackline_live::mechanism::{Bound, Demand};
use slackline_live::session::{EnforcedChange, ForeignChange, JoinId, SessionEvents};
use slackline_units::{CpuId, Enforcement, Reservation, Span, Time};

use super::part::{Part, Parts, Times};
use crate::hold_args::HoldArgs;
use crate::problem::Problem;
use crate::terminal;

/// Interval of progress lines if the output is a terminal or is read by a program.
const OFTEN: Span = Span::from_secs(1);

/// Interval of progress lines if the output is a file.
const SELDOM: Span = Span::from_secs(10);

/// Width of a complete progress line, in columns.
const LINE: usize = 72;

/// State of the output of the command `hold`.
pub(super) struct HoldOutput {
    json: bool,
    /// True if the output goes to standard error, so that it is not mixed with the output of the
    /// held command.
    aside: bool,
    in_place: bool,
    /// Width of the progress line that is overwritten on a terminal, in columns.
    columns: usize,
    /// Mechanism that enforces the demand.
    mechanism: Enforcement,
    /// Reservation of each part of the target, in millionths of a CPU. `None` if the target has a
    /// weight.
    each: Option<u64>,
    /// Reservation of all parts together, in millionths of a CPU. `None` if the target has a
    /// weight.
    promised: Option<u64>,
    /// Word for the amount that is reserved: `promised`, or `at most` for a limit.
    word: &'static str,
    every: Span,
    /// Time of the last progress line, and the CPU time that the target had used by then.
    last: (Span, Span),
    /// Descriptions of the changes that other programs keep making to parts of the target, by the
    /// number of the part.
    contested: BTreeMap<usize, String>,
    /// Time at which the vCPUs of the guest were last counted.
    counted: Span,
    /// Ids of the guest's vCPU threads that started after `hold` and are not scheduled.
    not_scheduled: BTreeSet<i32>,
    /// Number of changes by other programs that were undone.
    undone: u64,
    /// Time at which `undone` was last printed. `None` if it was never printed.
    told_undone: Option<Span>,
}

/// Target of a `hold` by the kernel, and the demand that the kernel enforces.
pub(super) struct KernelHeading<'a> {
    /// Name of the target.
    pub(super) name: &'a str,
    /// Mechanism that enforces the demand.
    pub(super) mechanism: Enforcement,
    /// Demand of each part of the target.
    pub(super) demand: Demand,
    /// Number of vCPUs of a VM. 1 for other targets.
    pub(super) parts: usize,
}

/// Interval at which the vCPUs of a guest are counted.
const VCPUS_EVERY: Span = Span::from_secs(2);

/// Minimum interval between two printed counts of undone changes.
const UNDONE_EVERY: Span = Span::from_secs(10);

impl HoldOutput {
    /// Prints the target and its reservation.
    pub(super) fn begin(
        args: &HoldArgs,
        name: &str,
        each: Reservation,
        (parts, cpus): (usize, &[CpuId]),
    ) -> Result<HoldOutput, Problem> {
        let parts = u64::try_from(parts).unwrap_or(u64::MAX);
        // The share is computed from slice and period. Admission rounds its share up.
        let one = ppm(each.slice(), each.period());
        let promised = one.saturating_mul(parts);
        let shown = HoldOutput {
            each: Some(one),
            promised: Some(promised),
            ..HoldOutput::new(args, Enforcement::Dispatcher)
        };
        if !args.json {
            let (slice, period, share) = (each.slice(), each.period(), percent(one));
            let all = percent(promised);
            let of = match (parts, args.vcpus) {
                (1, _) => String::new(),
                (_, true) if args.cpu.is_some() => {
                    format!(
                        " for each of {parts} vCPUs, plus CPU time that other vCPUs leave unused"
                    )
                }
                (_, true) => format!(" for each of {parts} vCPUs"),
                (_, false) => format!(" on {parts} CPUs at once, together {all}"),
            };
            let more = if args.at_least { "plus slack" } else { "and no more" };
            let list: Vec<String> = cpus.iter().map(|cpu| cpu.index().to_string()).collect();
            let plural = if list.len() == 1 { "" } else { "s" };
            let (list, all) = (list.join(", "), if args.vcpus { "" } else { " and all it starts" });
            shown.say(&format!(
                "holding {name}{all}: {slice} in every {period} ({share}){of}, {more}, on \
                 CPU{plural} {list}; Ctrl-C ends it\n"
            ))?;
        }
        Ok(shown)
    }

    /// Prints the target and the demand that the kernel enforces.
    pub(super) fn begin_by_kernel(
        args: &HoldArgs,
        heading: &KernelHeading<'_>,
    ) -> Result<HoldOutput, Problem> {
        let mut shown = HoldOutput::new(args, heading.mechanism);
        let parts = u64::try_from(heading.parts).unwrap_or(u64::MAX);
        let amount = match heading.demand {
            Demand::Weight(weight) => format!("weight {weight} among sibling cgroups"),
            Demand::Time(each, bound) => {
                let one = ppm(each.slice(), each.period());
                shown.each = Some(one);
                shown.promised = Some(one.saturating_mul(parts));
                let (slice, period, share) = (each.slice(), each.period(), percent(one));
                let (most, more) = match bound {
                    Bound::AtMost => ("at most ", ", without a guarantee"),
                    Bound::Exact => ("", ", and no more"),
                    Bound::AtLeast => ("", ", plus slack"),
                };
                if bound == Bound::AtMost {
                    shown.word = "at most";
                }
                let of =
                    if parts == 1 { String::new() } else { format!(" for each of {parts} vCPUs") };
                format!("{most}{slice} in every {period} ({share}){of}{more}")
            }
        };
        if !args.json {
            let all = match heading.mechanism {
                Enforcement::Deadline => ", and nothing that it starts",
                _ if args.vcpus => ", without the emulator's own threads",
                _ => " and all it starts",
            };
            let (name, by) = (heading.name, heading.mechanism);
            shown.say(&format!("holding {name}{all}: {amount}, by {by}; Ctrl-C ends it\n"))?;
        }
        Ok(shown)
    }

    fn new(args: &HoldArgs, mechanism: Enforcement) -> HoldOutput {
        let aside = !args.command.is_empty();
        let is_terminal = if aside { stderr().is_terminal() } else { stdout().is_terminal() };
        let in_place = is_terminal && !args.json;
        let every = if in_place || args.json { OFTEN } else { SELDOM };
        let columns = if aside { terminal::told_columns() } else { terminal::columns() };
        HoldOutput {
            json: args.json,
            aside,
            in_place,
            columns: columns.unwrap_or(LINE),
            mechanism,
            each: None,
            promised: None,
            word: "promised",
            every,
            last: (Span::ZERO, Span::ZERO),
            contested: BTreeMap::new(),
            counted: Span::ZERO,
            not_scheduled: BTreeSet::new(),
            undone: 0,
            told_undone: None,
        }
    }

    /// Formats a reservation, such as `promised 30.00 %`: the field `word`, the reservation `of`,
    /// and the text `after`. Empty if the target has a weight.
    fn promise(&self, of: Option<u64>, after: &str) -> String {
        of.map_or_else(String::new, |of| format!("{} {}{after}", self.word, percent(of)))
    }

    /// Prints changes to the scheduling of the target's threads that other programs or the target
    /// itself have made.
    pub(super) fn changes(&mut self, seen: &SessionEvents, passed: Span) -> Result<(), Problem> {
        for (id, finding) in &seen.contested {
            let effect = match finding {
                ForeignChange::Refused { .. } => "the order is repeated until the kernel allows it",
                _ if seen.still_enforced.contains(id) => {
                    "the limit stays in force for the other threads"
                }
                _ => "the vCPU runs without a limit until the change is undone",
            };
            self.contest(part_of(*id), finding, effect)?;
        }
        for id in &seen.settled {
            self.settle(part_of(*id))?;
        }
        seen.meddled.iter().try_for_each(|(_, finding)| self.undo(finding, passed))
    }

    /// Prints changes by other programs to a part of a target that the kernel limits.
    pub(super) fn enforced_changes(
        &mut self,
        part: usize,
        seen: &[EnforcedChange],
        passed: Span,
    ) -> Result<(), Problem> {
        for change in seen {
            match change {
                EnforcedChange::Meddled(finding) => self.undo(finding, passed)?,
                EnforcedChange::Contested(finding) => {
                    let effect = match finding {
                        ForeignChange::Frozen { .. } | ForeignChange::Stopped { .. } => {
                            "the vCPU does not run until the change is undone"
                        }
                        _ => "the vCPU is not limited as requested until the change is undone",
                    };
                    self.contest(part, finding, effect)?;
                }
                EnforcedChange::Settled => self.settle(part)?,
            }
        }
        Ok(())
    }

    /// Prints a change that makes a part of the target contested, and the effect of the change.
    fn contest(
        &mut self,
        part: usize,
        finding: &ForeignChange,
        effect: &str,
    ) -> Result<(), Problem> {
        self.contested.insert(part, finding.to_string());
        self.tell_change(&format!("contested: vCPU {part}: {finding}; {effect}\n"))
    }

    fn settle(&mut self, part: usize) -> Result<(), Problem> {
        self.contested.remove(&part);
        self.tell_change(&format!(
            "settled: vCPU {part}: the change was undone, so the vCPU is scheduled again\n"
        ))
    }

    /// Counts a change that was undone. Prints the change and the count, at most once in
    /// [`UNDONE_EVERY`].
    fn undo(&mut self, finding: &ForeignChange, passed: Span) -> Result<(), Problem> {
        self.undone += 1;
        if self.told_undone.is_some_and(|told| passed.left_after(told) < UNDONE_EVERY) {
            return Ok(());
        }
        self.told_undone = Some(passed);
        let number = self.undone;
        self.tell_change(&format!(
            "undone or without effect: {finding}; {number} such changes so far\n"
        ))
    }

    fn tell_change(&self, line: &str) -> Result<(), Problem> {
        if self.json { Ok(()) } else { self.say(line) }
    }

    /// Returns true every two seconds, when the vCPUs of the guest must be counted again.
    pub(super) fn is_time_for_vcpus(&mut self, passed: Span) -> bool {
        let is_time = passed.left_after(self.counted) >= VCPUS_EVERY;
        if is_time {
            self.counted = passed;
        }
        is_time
    }

    /// Prints the number of vCPU threads that have appeared since the last call. `not_scheduled`
    /// has the ids of all vCPU threads that `hold` does not schedule.
    pub(super) fn more_vcpus(&mut self, not_scheduled: BTreeSet<i32>) -> Result<(), Problem> {
        let more = not_scheduled.difference(&self.not_scheduled).count();
        self.not_scheduled = not_scheduled;
        let (plural, are) = if more == 1 { ("", "is") } else { ("s", "are") };
        let line =
            format!("{more} more vCPU{plural} appeared since the start and {are} not scheduled\n");
        if self.json || more == 0 { Ok(()) } else { self.say(&line) }
    }

    /// Returns as JSON the descriptions of the changes that other programs keep making to the
    /// scheduling of the target. The result is null if there are no such changes.
    fn contested(&self) -> Value {
        let found: Vec<&str> = self.contested.values().map(String::as_str).collect();
        if found.is_empty() { Value::Null } else { found.join("; ").into() }
    }

    /// Prints a progress line if one is due. `passed` is the time since the start, and `used` is
    /// the target's CPU time since then.
    pub(super) fn at(&mut self, passed: Span, used: Span) -> Result<(), Problem> {
        let (since, before) = self.last;
        let lately = passed.left_after(since);
        if lately < self.every {
            return Ok(());
        }
        self.last = (passed, used);
        let (all, last) = (ppm(used, passed), ppm(used.left_after(before), lately));
        if self.json {
            return self.say(&format!(
                "{}\n",
                json!({
                    "passed_ns": passed.ns(), "enforce": self.mechanism.name(),
                    "promised_ppm": self.promised,
                    "delivered_ppm": all, "last_ppm": last, "used_ns": used.ns(),
                    "contested": self.contested(), "undone": self.undone,
                    "vcpus_not_scheduled": self.not_scheduled.len(),
                })
            ));
        }
        let seconds = passed / OFTEN;
        let (all, last) = (percent(all), percent(last));
        let (begin, end) = if self.in_place { ("\r\x1b[K", "") } else { ("", "\n") };
        let line = match self.columns < LINE {
            // A line that the terminal wraps cannot be overwritten.
            true => match self.promised {
                Some(promised) => {
                    format!("{seconds} s  {all} of {}, now {last}", percent(promised))
                }
                None => format!("{seconds} s  {all}, now {last}"),
            },
            false => format!(
                "{seconds:>6} s  {}delivered {all}  in the last {} {last}",
                self.promise(self.promised, "  "),
                self.every
            ),
        };
        self.say(&format!("{begin}{line}{end}"))
    }

    /// Prints the totals. Must be called after all threads have been restored.
    pub(super) fn end(
        self,
        (began, ended): (Time, Time),
        parts: &Parts,
        has_ended: bool,
    ) -> Result<(), Problem> {
        let passed = ended.since(began);
        let (used, each) = (parts.used(), self.each);
        let all = ppm(used, passed);
        if self.json {
            let part = |(part, times): (&Part, Times)| {
                let of_passed = |span| ppm(span, passed);
                json!({
                    "name": part.name, "promised_ppm": each, "used_ns": times.used.ns(),
                    "delivered_ppm": of_passed(times.used),
                    "stopped_ppm": times.stopped.map(of_passed),
                    "ready_ppm": times.ready.map(of_passed),
                    "asleep_ppm": times.asleep.map(of_passed),
                })
            };
            let parts: Vec<Value> = parts.each(ended).map(part).collect();
            return self.say(&format!(
                "{}\n",
                json!({
                    "passed_ns": passed.ns(), "enforce": self.mechanism.name(),
                    "promised_ppm": self.promised,
                    "delivered_ppm": all, "used_ns": used.ns(), "parts": parts,
                    "given_back": true,
                })
            ));
        }
        let begin = if self.in_place { "\r\x1b[K" } else { "" };
        let tenths = passed / (OFTEN / 10);
        let (seconds, tenth) = (tenths / 10, tenths % 10);
        let why = if has_ended { "target has ended" } else { "threads restored" };
        let (promise, all) = (self.promise(self.promised, ", "), percent(all));
        let mut text = format!("held for {seconds}.{tenth} s: {promise}delivered {all}");
        let rest = |times: &Times| {
            let words =
                [("stopped", times.stopped), ("ready", times.ready), ("blocked", times.asleep)];
            let words = words.into_iter().filter_map(|(word, span)| {
                Some(format!(", {word} {}", percent(ppm(span?, passed))))
            });
            words.collect::<String>()
        };
        let mut each_of_several = String::new();
        match parts.each(ended).collect::<Vec<_>>().as_slice() {
            [(_, alone)] => text += &rest(alone),
            several => {
                for (part, times) in several {
                    let (name, used) = (&part.name, percent(ppm(times.used, passed)));
                    let promise = self.promise(each, ", ");
                    each_of_several +=
                        &format!("  {name}: {promise}delivered {used}{}\n", rest(times));
                }
            }
        }
        self.say(begin)?;
        self.say(&format!("{text}; {why}\n{each_of_several}"))
    }

    fn say(&self, text: &str) -> Result<(), Problem> {
        if self.aside {
            terminal::tell(text);
            Ok(())
        } else {
            terminal::say(text)
        }
    }
}

/// Returns the number of the part of the target that has this id.
fn part_of(id: JoinId) -> usize {
    id.vcpu().number().into()
}

/// Returns `part` / `of` in millionths.
fn ppm(part: Span, of: Span) -> u64 {
    if of.is_zero() {
        return 0;
    }
    u64::try_from(u128::from(part.ns()) * 1_000_000 / u128::from(of.ns())).unwrap_or(u64::MAX)
}

/// Formats millionths of a CPU in percent.
pub(crate) fn percent(ppm: u64) -> String {
    let hundredths = (ppm + 50) / 100;
    format!("{}.{:02} %", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_in_millionths_is_shown_as_percent_rounded_to_hundredths() {
        let texts = [0, 49, 50, 300_000, 1_500_000].map(percent);
        assert_eq!(texts, ["0.00 %", "0.00 %", "0.01 %", "30.00 %", "150.00 %"]);
        assert_eq!(ppm(Span::from_ms(3), Span::from_ms(10)), 300_000);
        assert_eq!(ppm(Span::from_ms(3), Span::ZERO), 0);
    }
}
