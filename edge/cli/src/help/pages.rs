//! The pages.

use std::fmt::Write as _;

use slackline_metrics::{GLOSSARY, Glossary, Term};
use slackline_policy::{Field, Spec};
use slackline_scenario::keys::{CLAIM, Key, KeyTable, LIVE, RELAY, TABLES, TESTS, WORK};

use crate::by_second;
use crate::terminal;

/// How wide a page is, where the terminal is not narrower.
const WIDTH: usize = 80;
/// How wide the column of names is at most; what belongs to a longer one begins below it.
const NAMES: usize = 26;

const SCENARIO: &str = "\
A scenario is a text file in TOML: what runs, what it is promised, what changes when, and what
should come of it.

  title  = \"my machine\"
  length = \"30s\"
  policy = { name = \"edf\", reserve = \"0.1cpu\" }   # a tenth of each CPU stays for the rest
  [host]
  cpus = 1
  [[domain]]
  name      = \"web\"
  work      = { kind = \"spin\" }
  share.edf = { slice = \"2ms\", period = \"10ms\" }   # a fifth of a CPU, every 10 ms
  [[claim]]
  that = \"misses of web\"
  is   = \"at most 0\"

A length of time is a number with its unit: 250us, 4ms, 2s, 3min, 1h. Some may be drawn anew each
time: \"uniform 1ms 3ms\", \"exponential 4ms\". An amount of CPU is \"0.25cpu\".
";

const WORK_INTRO: &str = "\
work = { kind = \"periodic\", period = \"16ms\", work = \"3ms\" } says what each vCPU of a domain
does: simulated, and live as a real process (`slackline load`) unless `live` says whom to take.
Lengths of time that may be drawn: \"4ms\", \"uniform 1ms 3ms\", \"exponential 4ms\".
";

const LIVE_INTRO: &str = "\
`slackline run FILE` plays a scenario on this machine, as root: a domain is a process of its `work`,
or whom `live` names. Its threads run on the CPUs of the run (--cpus, or the last ones), each in the
turns that the policy gives it, at a real-time priority while they last.

Whatever happens to Slackline (an error, a signal, kill -9), a keeper process gives every thread
back: not stopped, not real-time, not pinned. If that is killed as well, `slackline doctor --free`
does. `slackline doctor` says what this machine allows, and what to do about the rest.
QEMU must name its threads (-name NAME,debug-threads=on, as libvirt does) or have a QMP socket.

Under a policy that listens (`gaps`) a guest may say what is urgent in it: `slackline help agent`.
";

const CLAIMS: &str = "\
Claims are checked after each run of the scenario's own policy; one that does not hold is told and
the exit code is 1. What the machine could not see contradicts nothing.

  [[claim]]
  that = \"wake to run p99 of web\"
  is   = \"below 8ms\"

NAME is a domain (of several vCPUs numbers are added up, and of the rest the worst is taken), a vCPU
(`web.1`) or a CPU (`cpu0`); without `of NAME`, or with `of total`, it is all of them. A `count` is
a number, of how many the quantiles are; a claim on a quantile of one alone is about that one.
The time of a CPU is a length (`busy of cpu0`, `above 2s`) or a part of it (`above 20%`).
";

const METRICS: &str = "\
Every number that Slackline measures. The first line of each is what tables call it, or - if they do
not show it; then the field in JSON (_ns nanoseconds, _ppm millionths); then what claims call it.
A field that ends in _* is five: _count says how many there were (n in tables), and then come
_p50_ns, _p90_ns, _p99_ns and _worst_ns, half of all being no more than p50. One alone has no
quantiles, only its worst; of fewer than a hundred the p99 is the worst, and tables show the n of
each, comparisons as `n of wakes`. Quantiles are of the values themselves up to a thousand of them,
and then less than a thousandth too high. Measured is from the end of the warm-up to the end of the
run.
";

const AXES: &str = "
[[axis]] makes many scenarios of one, for `sim` and `compare`: a run for each point where the axes
cross, in one table, with --json and --csv; `check` says of each point whether it fits. `set` gives
values by their paths, of domains by name.

  [[axis]]
  name = \"period\"
  [[axis.point]]
  name = \"10ms\"
  [[axis.point]]
  name = \"100ms\"
  set  = { \"domain.web.share.edf\" = { slice = \"20ms\", period = \"100ms\" } }

`let = { period = \"20ms\" }` fills in {period} in what any axis sets, where \"25% of {period}\" is
a part of it; `scale = { \"host.switch\" = \"200%\" }` takes a multiple of what is there, and
`unset = [\"host.migrate\"]` takes it out.
";

const FAMILY_INTRO: &str = "\
A family is a scenario whose domains are drawn at random, for `slackline sweep`: a number of guests
that share by weight, and on each CPU perhaps somebody with a reservation. Each size of host is
drawn with each seed, and each of those runs under each policy and at each point of the axes: a line
of the table for each, with how far every guest was from what would be fair there.

  title  = \"random hosts\"
  length = \"32s\"
  warmup = \"2s\"
  policy = { name = \"sedf\" }
  [family]
  cpus     = [2, 8]
  weights  = [1, 1, 2]
  reserved = [\"0%\", \"25%\"]
  [family.share]
  sedf = { extra-weight = \"{weight}\" }
  [family.reservation]
  sedf = { slice = \"{slice}\", period = \"{period}\", extra = false }

There is no [[domain]]; all else is as in `slackline help scenario`, and axes may set what the
family says: set = { \"family.sleepers\" = \"50%\" }.
";

pub(super) fn family() -> String {
    let mut text = FAMILY_INTRO.to_owned();
    keys(&mut text, &slackline_runs::family::keys::FAMILY);
    text
}

pub(super) fn scenario() -> String {
    let mut text = SCENARIO.to_owned();
    TABLES.iter().for_each(|table| keys(&mut text, table));
    text += AXES;
    text += "\nMore: `slackline help work`, `live`, `claims`, `metrics`, `host`, `driver`, \
             `family`\n(random hosts), and a page for each policy.\n";
    text
}

pub(super) fn work() -> String {
    let mut text = WORK_INTRO.to_owned();
    WORK.iter().for_each(|kind| keys(&mut text, kind));
    text
}

pub(super) fn live() -> String {
    let mut text = LIVE_INTRO.to_owned();
    keys(&mut text, &LIVE);
    keys(&mut text, &RELAY);
    text
}

pub(super) fn claims() -> String {
    let mut text = CLAIMS.to_owned();
    keys(&mut text, &CLAIM);
    text += "\nWhat `is` may say:\n";
    entries(&mut text, TESTS.iter().map(|&Key { name, says }| (name, says)));
    text += "\nX is in the unit of the metric: a length of time (8ms), a percentage (20%), a \
             number (3);\nof a percentage also `promised`, what the share promises.\n";
    for Glossary { of, terms, .. } in GLOSSARY.iter().filter(|terms| terms.are_claimed) {
        let _ = writeln!(text, "\nMetrics of {of}:");
        let units: Vec<(String, String)> = terms
            .iter()
            .filter_map(|term| Some((claimed(term), term.unit()?.to_string())))
            .collect();
        entries(&mut text, units.iter().map(|(name, unit)| (name.as_str(), unit.as_str())));
    }
    text + "\n`slackline help metrics` says what each means.\n"
}

pub(super) fn metrics() -> String {
    let mut text = METRICS.to_owned();
    for group in GLOSSARY {
        let _ = writeln!(text, "\nOf {}:", group.of);
        for term in group.terms {
            let shown = if term.heading.is_empty() { "-" } else { term.heading };
            let end = if term.is_spread() { "_*" } else { "" };
            let _ = write!(text, "\n  {shown}\n    {}{end}", term.field);
            if let Some(unit) = term.unit().filter(|_| group.are_claimed) {
                let _ = write!(text, "; `{}`, {unit}", claimed(term));
            }
            text.push('\n');
            wrapped(&mut text, 4, term.says);
        }
    }
    text += "\nColumns of --csv of `sim` and `run`, a line for each domain and each CPU in each \
             second:\n\n";
    entries(&mut text, by_second::columns());
    text
}

/// As a claim has it.
fn claimed(term: &Term) -> String {
    let end = if term.is_spread() { " p50|p90|p99|worst|count" } else { "" };
    format!("{}{end}", term.claimed_as())
}

/// A page about tables of a scenario, without the marks of its examples.
pub(super) fn without_marks(page: &str) -> String {
    let lines = page.lines().filter(|line| !line.starts_with("```"));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// The manual page of a policy.
pub(super) fn policy(spec: &Spec) -> String {
    let mut text = format!("{}: {}\n\n{}\n", spec.name, spec.summary, spec.page);
    let policy = format!("policy = {{ name = \"{}\", ... }}", spec.name);
    fields(&mut text, &policy, spec.policy_fields);
    fields(&mut text, &format!("share.{} = {{ ... }}", spec.name), spec.share_fields);
    text
}

fn fields(text: &mut String, heading: &str, fields: &[Field]) {
    if fields.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{heading}");
    let longest = fields.iter().map(|field| field.name.len()).max().unwrap_or(0);
    for field in fields {
        let _ = writeln!(text, "  {:longest$}  {}", field.name, field.help);
        let default = match field.default {
            Some(default) => format!("default {default}"),
            None => "must be said".into(),
        };
        let _ = writeln!(text, "  {:longest$}  {}; {default}", "", field.kind);
    }
}

fn keys(text: &mut String, table: &KeyTable) {
    text.push('\n');
    wrapped(text, 0, &format!("{}: {}", table.heading, table.says));
    entries(text, table.keys.iter().map(|&Key { name, says }| (name, says)));
}

/// Names, and what belongs to each beside it.
pub(super) fn entries<'a>(
    text: &mut String,
    entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
) {
    let longest = entries.clone().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let column = longest.min(NAMES) + 4;
    for (name, says) in entries {
        let gap = match name.chars().count() + 4 <= column {
            true => " ".repeat(column - 2 - name.chars().count()),
            false => format!("\n{}", " ".repeat(column)),
        };
        let mut lines = String::new();
        wrapped(&mut lines, column, says);
        let _ = write!(text, "  {name}{gap}{}", lines.trim_start());
    }
}

/// Words in lines that begin so far to the right.
fn wrapped(text: &mut String, indent: usize, words: &str) {
    let widest = terminal::columns().map_or(WIDTH, |columns| columns.min(WIDTH));
    let mut column = 0;
    for word in words.split_whitespace() {
        let width = word.chars().count();
        if column == 0 || column + 1 + width > widest {
            let new_line = if column == 0 { "" } else { "\n" };
            let _ = write!(text, "{new_line}{}{word}", " ".repeat(indent));
            column = indent + width;
        } else {
            let _ = write!(text, " {word}");
            column += 1 + width;
        }
    }
    text.push('\n');
}
