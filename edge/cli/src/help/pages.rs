//! Help pages of topics and policies.

use std::fmt::Write as _;

use slackline_metrics::{GLOSSARY, Glossary, Term};
use slackline_policy::{Field, Spec};
use slackline_scenario::keys::{CLAIM, Key, KeyTable, LIVE, RELAY, TABLES, TESTS, WORK};

use crate::by_second;
use crate::terminal;

/// Maximum width of a help page in columns. On a narrower terminal the page is narrower.
const WIDTH: usize = 80;
/// Maximum width of the column of names, in characters. The text after a longer name starts on the
/// next line.
const NAMES: usize = 26;

const SCENARIO: &str = "\
A scenario is a TOML file: the VMs of a host, their shares, what changes during the
run, and claims about the result.

Use it with `slackline check`, `sim`, `run`, `compare` and `sweep`.

  title  = \"my host\"
  length = \"30s\"
  policy = { name = \"edf\", reserve = \"0.1cpu\" }   # 10 % of each CPU stays unreserved
  [host]
  cpus = 1
  [[domain]]
  name      = \"web\"
  work      = { kind = \"spin\" }
  share.edf = { slice = \"2ms\", period = \"10ms\" }   # 20 % of a CPU, every 10 ms
  [[claim]]
  that = \"misses of web\"
  is   = \"at most 0\"

Values:
  - A domain is a VM. In reports, NAME.1 is its second vCPU.
  - A time is a number with a unit: 250us, 4ms, 2s, 3min, 1h.
  - Some times can be random: \"uniform 1ms 3ms\", \"exponential 4ms\".
  - An amount of CPU is \"0.25cpu\".
";

const WORK_INTRO: &str = "\
The workload of a domain: what each of its vCPUs runs.

  work = { kind = \"periodic\", period = \"16ms\", work = \"3ms\" }

  - `sim` simulates the workload. `run` starts it as a real process, unless the domain
    has a `live` table (`slackline help live`).
  - `slackline load KIND` runs a workload by itself.
  - Times that can be random: \"4ms\", \"uniform 1ms 3ms\", \"exponential 4ms\".
";

const LIVE_INTRO: &str = "\
`slackline run FILE` runs a scenario on this host, as root.

Use it to schedule real processes and VMs by a policy. A domain is a process that does
its `work`, or the process or VM that its `live` table names:

  [[domain]]
  name = \"web\"
  share.edf = { slice = \"2ms\", period = \"10ms\" }
  live = { unit = \"web.service\" }

  - The threads run on the CPUs of --cpus [default: the last ones of this host], in the
    timeslices that the policy gives them. In a timeslice a thread has a real-time
    priority.
  - When the run ends, even by an error, a signal or kill -9, a keeper process restores
    every thread: it continues a stopped thread and sets its former priority and CPUs.
  - If the keeper is killed too, `slackline doctor --free` restores the threads.
  - QEMU must name its threads (-name NAME,debug-threads=on, as libvirt does) or have a
    QMP socket.
  - Under a policy such as `gaps` a guest can report urgent tasks (`slackline help agent`).
  - `slackline doctor` shows what this host supports and how to fix what is missing.
";

const CLAIMS: &str = "\
A claim is a condition on one metric of a run.

Use claims to test a scenario. Claims are checked after each run under the scenario's
own policy. A claim that does not hold is printed, and the exit code is then 1.

  [[claim]]
  that = \"wake to run p99 of web\"
  is   = \"below 8ms\"

`that` is METRIC of NAME:
  - NAME is a domain, a vCPU (`web.1`), a CPU (`cpu0`), a client (`client0` is the first
    `[[client]]`) or a named task (`web/0`). Without `of NAME`, or with `of total`, the
    claim is about the whole run.
  - For several vCPUs, amounts of CPU and counts are added. Of other metrics the worst
    value counts: the value farthest from zero.
  - `error` is compared without its sign.
  - `count` is the number of samples of a quantile. A single sample has no quantiles. A
    claim on a quantile then tests that sample.
  - A time of a CPU, such as `busy of cpu0`, is compared with a duration (`above 2s`) or
    with a part of the measured time (`above 20%`).
  - A metric that the run could not measure fails no claim.
";

const METRICS: &str = "\
Every number that Slackline measures, from the end of the warm-up to the end of the run.

For each metric:
  - Line 1 is the name in tables, or a dash if tables do not show the metric.
  - Line 2 is the field in JSON (_ns nanoseconds, _ppm millionths), then the name and unit
    in claims.
  - Line 3 is the meaning.
  - A field that ends in _* stands for five: _count (the number of samples, n in tables),
    _p50_ns, _p90_ns, _p99_ns and _worst_ns.

Quantiles:
  - p50 is the median: half of the samples are not larger.
  - A single sample has no quantiles, only a worst value. Below 100 samples p99 is the worst.
  - With up to 1000 samples quantiles are exact. With more samples they are less than
    0.1 % too high.
";

const AXES: &str = "
[[axis]] makes one scenario into many: one per combination of points of all axes.
`sim`, `compare` and `sweep` run every combination and show one table. `check` checks
whether each is admitted.

  [[axis]]
  name = \"period\"
  [[axis.point]]
  name = \"10ms\"
  [[axis.point]]
  name = \"100ms\"
  set  = { \"domain.web.share.edf\" = { slice = \"20ms\", period = \"100ms\" } }

  - `set` gives values to paths. In a path, a domain is written by its name.
  - `let = { period = \"20ms\" }` defines {period} for values of `set` on all axes.
    \"25% of {period}\" is a part of that time.
  - `scale = { \"host.switch\" = \"200%\" }` multiplies the present value.
  - `unset = [\"host.migrate\"]` removes a value.
";

const FAMILY_INTRO: &str = "\
A family is a scenario whose domains are drawn at random, for `slackline sweep`.

Use it to compare policies over many hosts. On each host a number of guests share by
weight, and each CPU may also have one reservation. For each seed, a host of each size is
drawn. Each host runs under each policy and at each point of the axes. Each such run is
a row of the table, with the distance of the guests from their fair shares.

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

  - A family has no [[domain]] and no [[change]]. Everything else is as in
    `slackline help scenario`.
  - Axes can set keys of the family: set = { \"family.sleepers\" = \"50%\" }.
  - `slackline help sweep` lists the columns of the table.
";

pub(super) fn family() -> String {
    let mut text = FAMILY_INTRO.to_owned();
    keys(&mut text, &slackline_experiments::family::keys::FAMILY);
    text
}

pub(super) fn scenario() -> String {
    let mut text = SCENARIO.to_owned();
    TABLES.iter().for_each(|table| keys(&mut text, table));
    text += AXES;
    text += "\nSee also: `slackline help work`, `live`, `claims`, `metrics`, `host`, `driver`, \
             `family`,\nand the page of each policy.\n";
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
    text += "\n`is` is one of:\n";
    entries(&mut text, TESTS.iter().map(|&Key { name, says }| (name, says)));
    text += "\nX is in the unit of the metric: a time (8ms), a percentage (20%) or a number \
             (3).\nFor a percentage it can be `promised`, the reserved share.\n";
    for Glossary { of, terms, .. } in GLOSSARY.iter().filter(|terms| terms.are_claimed) {
        let _ = writeln!(text, "\nMetrics of {of}:");
        let units: Vec<(String, String)> = terms
            .iter()
            .filter_map(|term| Some((claimed(term), term.unit()?.to_string())))
            .collect();
        entries(&mut text, units.iter().map(|(name, unit)| (name.as_str(), unit.as_str())));
    }
    text + "\nSee also: `slackline help metrics` explains each metric.\n"
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
    text += "\nColumns of --csv of `sim` and `run`, with one row per second and domain or CPU:\n\n";
    entries(&mut text, by_second::columns());
    text
}

/// Returns the name that a metric has in claims.
fn claimed(term: &Term) -> String {
    let end = if term.is_spread() { " p50|p90|p99|worst|count" } else { "" };
    format!("{}{end}", term.claimed_as())
}

/// Returns a help page of the crate `slackline-scenario` without the code fences around its
/// examples.
pub(super) fn without_marks(page: &str) -> String {
    let lines = page.lines().filter(|line| !line.starts_with("```"));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Returns the help page of a policy.
pub(super) fn policy(spec: &Spec) -> String {
    let mut parameters = String::new();
    let policy = format!("policy = {{ name = \"{}\", ... }}", spec.name);
    fields(&mut parameters, &policy, spec.policy_fields);
    fields(&mut parameters, &format!("share.{} = {{ ... }}", spec.name), spec.share_fields);
    let page = spec.page.replace("{parameters}\n", &parameters);
    format!("{}: {}\n\n{page}\n", spec.name, spec.summary)
}

fn fields(text: &mut String, heading: &str, fields: &[Field]) {
    if fields.is_empty() {
        return;
    }
    let _ = writeln!(text, "{heading}");
    let longest = fields.iter().map(|field| field.name.len()).max().unwrap_or(0);
    for field in fields {
        let default = match field.default {
            Some(default) => format!("default {default}"),
            None => "required".into(),
        };
        let mut lines = String::new();
        wrapped(&mut lines, longest + 4, field.help);
        wrapped(&mut lines, longest + 4, &format!("{}; {default}", field.kind));
        let _ = write!(text, "  {:longest$}  {}", field.name, lines.trim_start());
    }
    text.push('\n');
}

fn keys(text: &mut String, table: &KeyTable) {
    text.push('\n');
    wrapped(text, 0, &format!("{}: {}", table.heading, table.says));
    entries(text, table.keys.iter().map(|&Key { name, says }| (name, says)));
}

/// Appends entries in two columns: a name, and the text that explains it.
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

/// Appends words, wrapped into lines that are indented by `indent`.
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
