//! Help pages of topics and policies.

use std::fmt::Write as _;

use slackline_policy::{Field, Spec, find};
use slackline_scenario::keys::{CLAIM, Key, KeyTable, LIVE, RELAY, TABLES, TESTS, WORK};

use crate::entries::{entries, wrapped};

/// Headings of the scenario tables that the help page `domain` explains.
const DOMAIN_TABLES: [&str; 4] =
    ["[[domain]]", "[[domain.vcpu]]", "[[domain.task]]", "tells = { ... }"];

/// Word that stands for a default value which depends on the parameter `rules`.
const AS_RULES: &str = "as-rules";

/// Pairs of policies. The first policy takes all parameters of the second policy in addition to its
/// own. The help page of the first policy lists only the names of these parameters.
const BASES: [(&str, &str); 1] = [("gaps", "credit")];

const SCENARIO: &str = "\
A scenario is a TOML file: the VMs of a host, their shares, what changes during
the run, and claims about the result.

Use a scenario with `slackline check`, `sim`, `run`, `compare` and `sweep`.

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
  - A time is a number with a unit: 250us, 4ms, 2s, 3min, 1h.
  - Some times can be random: \"uniform 1ms 3ms\" or \"exponential 4ms\".
  - An amount of CPU is \"0.25cpu\".
";

const DOMAIN: &str = "\
A [[domain]] of a scenario is a VM, or a group of processes that is scheduled as
a VM.

Use one [[domain]] for each VM of the scenario.

  [[domain]]
  name      = \"web\"
  vcpus     = 2
  work      = { kind = \"interactive\", compute = \"2ms\", sleep = \"exponential 8ms\" }
  share.edf = { slice = \"3ms\", period = \"10ms\" }
  [[domain.vcpu]]
  number = 1
  work   = { kind = \"spin\" }          # the second vCPU computes forever

In tables and claims, web.1 is the second vCPU of the domain `web`.
";

const WORK_INTRO: &str = "\
The key `work` of a domain is its workload: what each of its vCPUs runs.

Use a kind that resembles the program in your VM, or `replay` of a recording.

  work = { kind = \"periodic\", period = \"16ms\", work = \"3ms\" }

  - `sim` simulates the workload. `run` starts it as a real process, unless the
    domain has a `live` table (`slackline help live`).
  - `slackline load KIND` runs a workload as a process, without a scenario.
  - A time of a workload is fixed (\"4ms\") or random (\"uniform 1ms 3ms\",
    \"exponential 4ms\").
";

const LIVE_INTRO: &str = "\
`slackline run FILE` runs a scenario on this host, as root.

Use `run` to schedule real processes and VMs by a policy. A domain is a process
that does its `work`, or the process or VM that its `live` table names:

  [[domain]]
  name = \"web\"
  share.edf = { slice = \"2ms\", period = \"10ms\" }
  live = { unit = \"web.service\" }

  - The threads of the domains run on the CPUs of --cpus [default: the last CPUs
    of this host], in the timeslices that the policy gives them. During its
    timeslice a thread has a real-time priority.
  - The keeper is a child process of `run`. When the run ends, even by an error,
    a signal or kill -9, the keeper restores every thread: it continues a
    stopped thread and sets its former priority and CPUs.
  - If the keeper is killed too, `slackline doctor --free` restores the threads.
  - `run` recognizes the vCPU threads of QEMU if QEMU names its threads
    (-name NAME,debug-threads=on, as libvirt does) or has a QMP socket.
  - Under a policy such as `gaps` a guest can report urgent tasks (`slackline
    help agent`).
  - `slackline doctor` shows what this host supports and how to fix what is
    missing.
";

const CLAIMS: &str = "\
A claim is a condition on one metric of a run.

Use claims to test a scenario. Each run under the scenario's own policy is
followed by a check of all claims. A claim that does not hold is printed, and
the exit code is then 1.

  [[claim]]
  that = \"wake to run p99 of web\"
  is   = \"below 8ms\"

`that` is METRIC of NAME:
  - `slackline help metrics` lists the metrics with their units.
  - NAME is a domain, a vCPU (`web.1`), a CPU (`cpu0`), a client (`client0` is
    the first `[[client]]`) or a named task (`web/0`). Without `of NAME`, or
    with `of total`, the claim is about the whole run.
  - For a domain of several vCPUs, amounts of CPU and counts are added up. For
    any other metric the value of one vCPU is tested: the value farthest from
    zero.
  - The metric `error` is compared without its sign.
  - `count` of a distribution is its number of samples. If there is a single
    sample, a claim on a quantile tests that sample.
  - A time of a CPU, such as `busy of cpu0`, is compared with a duration (`above
    2s`) or with a part of the measured time (`above 20%`).
  - A claim on a metric that the run could not measure always holds.
";

const AXES: &str = "
[[axis]] makes many scenarios from one. A combination has one point of each
axis, and each combination is a scenario. `sim`, `compare` and `sweep` run every
combination and show one table. `check` tests admission of every combination.

  [[axis]]
  name = \"period\"
  [[axis.point]]
  name = \"10ms\"
  [[axis.point]]
  name = \"100ms\"
  set  = { \"domain.web.share.edf\" = { slice = \"20ms\", period = \"100ms\" } }

  - `set` of a point replaces values of the scenario. The path of a value has
    the name of the domain, as in \"domain.web.share.edf\".
  - `let = { period = \"20ms\" }` of a point defines {period} for `set` on all
    axes. \"25% of {period}\" is then 5ms.
  - `scale = { \"host.switch\" = \"200%\" }` of a point multiplies a value of the
    scenario.
  - `unset = [\"host.migrate\"]` of a point removes a value.
  - `label = \"...\"` of an axis or point is the name of the axis or point in
    plots. `x = 0.5` of a point is its position in plots.
";

/// Page about task set files.
pub(super) const TASKS: &str = "\
A task set is a TOML file with the periodic tasks of a guest with one vCPU.

Use a task set with `slackline fit`, which finds the smallest reservation with
which every job meets its deadline.

  title     = \"engine control\"   # default: task set
  scheduler = \"edf\"              # or \"fixed\"; default edf

  [[task]]
  name     = \"control\"           # default: task0, task1, ...
  work     = \"250us\"             # longest CPU time of a job; required
  period   = \"5ms\"               # shortest time between releases; required
  deadline = \"3ms\"               # after the release; default the period

  [[task]]
  work   = \"2ms\"
  period = \"50ms\"

  - `scheduler` is the scheduler of the guest: \"edf\" runs the job with the
    earliest deadline, \"fixed\" the task with the highest priority.
  - With \"fixed\", `priority` (0 to 255, higher runs first) is given for all
    tasks or for none. Without priorities, the task with the shortest deadline
    runs first.
  - A task needs work <= deadline <= period. A set has at most 200 tasks.
  - Tasks may be released at any time, even all at the same time. Tasks share no
    locks, and do not suspend themselves within a job.
  - Add the time of the guest's own context switches to `work`.

See also: `slackline help fit`, `edf`.
";

const FAMILY_INTRO: &str = "\
A family is a scenario whose domains `slackline sweep` draws at random.

Use a family to compare policies over many hosts. On each host a random number
of guests share the CPUs by weight, and each CPU may also have one reservation.
`sweep` draws one host of each size for each seed, and runs the host under each
policy and at each point of the axes. Each run is a row of a table. A column of
the table shows how far the CPU time of the guests was from their fair shares.

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

  - A family has no [[domain]] and no [[change]]. All other tables of a scenario
    are allowed (`slackline help scenario`).
  - Axes can set keys of the family: set = { \"family.sleepers\" = \"50%\" }.
  - `slackline help sweep` lists the columns of the table of a sweep.
";

pub(super) fn family() -> String {
    let mut text = FAMILY_INTRO.to_owned();
    keys(&mut text, &slackline_experiments::family::keys::FAMILY);
    text
}

pub(super) fn scenario() -> String {
    let mut text = SCENARIO.to_owned();
    let elsewhere = |table: &&&KeyTable| {
        DOMAIN_TABLES.contains(&table.heading)
            || [LIVE.heading, RELAY.heading].contains(&table.heading)
    };
    TABLES.iter().filter(|table| !elsewhere(table)).for_each(|table| keys(&mut text, table));
    text += AXES;
    text += "\nSee also: `slackline help domain`, `work`, `live`, `claims`, `metrics`, `host`, \
             `driver`,\n`family`, and the page of each policy.\n";
    text
}

pub(super) fn domain() -> String {
    let mut text = DOMAIN.to_owned();
    let tables = TABLES.iter().filter(|table| DOMAIN_TABLES.contains(&table.heading));
    tables.for_each(|table| keys(&mut text, table));
    text += "\nSee also: `slackline help scenario`, `work`, `live`, `driver`.\n";
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
             (3).\nIf the metric is a percentage, X can be `promised`, the reserved share.\n";
    text + "\nSee also: `slackline help metrics`, `scenario`.\n"
}

/// Returns a help page of the crate `slackline-scenario` without the code fences around its
/// examples.
pub(super) fn without_marks(page: &str) -> String {
    let lines = page.lines().filter(|line| !line.starts_with("```"));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Returns the help page of a policy.
pub(super) fn policy(spec: &Spec) -> String {
    let base = BASES.iter().find(|(name, _)| *name == spec.name).and_then(|(_, base)| find(base));
    let known = base.map_or(&[][..], |base| base.policy_fields);
    let (shared, own): (Vec<&Field>, Vec<&Field>) =
        spec.policy_fields.iter().partition(|field| known.contains(field));
    let mut parameters = String::new();
    fields(&mut parameters, &format!("policy = {{ name = \"{}\", ... }}", spec.name), &own);
    if let Some(base) = base {
        let names: Vec<&str> = shared.iter().map(|field| field.name).collect();
        let (base, names) = (base.name, names.join(", "));
        let line = format!("{} also takes parameters of `{base}`: {names}.", spec.name);
        wrapped(&mut parameters, 0, &line);
        parameters.push('\n');
    }
    let share: Vec<&Field> = spec.share_fields.iter().collect();
    fields(&mut parameters, &format!("share.{} = {{ ... }}", spec.name), &share);
    let page = spec.page.replace("{parameters}\n", &parameters);
    format!("{}: {}\n\n{page}\n", spec.name, spec.summary)
}

fn fields(text: &mut String, heading: &str, fields: &[&Field]) {
    if fields.is_empty() {
        return;
    }
    let _ = writeln!(text, "{heading}");
    let longest = fields.iter().map(|field| field.name.len()).max().unwrap_or(0);
    for field in fields {
        let mut lines = String::new();
        wrapped(&mut lines, longest + 4, &format!("{} ({})", field.help, values(field)));
        let _ = write!(text, "  {:longest$}  {}", field.name, lines.trim_start());
    }
    if fields.iter().any(|field| field.default == Some(AS_RULES)) {
        let line = format!(
            "If no default is stated, the default is {AS_RULES}: the value that `rules` sets."
        );
        wrapped(text, 2, &line);
    }
    text.push('\n');
}

/// Returns the values of a parameter, and its default unless the default is [`AS_RULES`].
fn values(field: &Field) -> String {
    let kind = field.kind.to_string().replace(&format!("one of {AS_RULES}, "), "one of ");
    match field.default {
        Some(AS_RULES) => kind,
        Some(default) => format!("{kind}; default {default}"),
        None => format!("{kind}; required"),
    }
}

fn keys(text: &mut String, table: &KeyTable) {
    text.push('\n');
    wrapped(text, 0, &format!("{}: {}", table.heading, table.says));
    entries(text, table.keys.iter().map(|&Key { name, says }| (name, says)));
}
