//! Random generation of the hosts of a family.

use slackline_scenario::{Draw, Purpose, Stream};
use slackline_units::{Span, Time};
use toml::{Table, Value};

use super::{Cpus, Family, Length, Lengths, Part};

const MILLION: u32 = 1_000_000;

/// Maximum number of changes of one CPU's reservation in a run.
const MOST_JUMPS: usize = 10_000;

/// Properties of a random host from which fair CPU time is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Weights of the guests. The guests are the first domains of the scenario, with one vCPU each.
    pub weights: Vec<u32>,
    /// Number of CPUs. Guests can use all of a CPU until the first entry in `room` for that CPU.
    pub cpus: usize,
    /// Changes of the capacity that guests can use, in order of time. An entry has the time, the
    /// CPU and the capacity in millionths.
    pub room: Vec<(Time, usize, u32)>,
}

/// Kinds of random draws for a host. Each kind has its own random stream.
#[derive(Clone, Copy)]
enum DrawKind {
    Count,
    Weights,
    Programs,
    Reserved,
    Jumps,
}

/// Generates the host that has `cpus` CPUs and the seed `seed`. Returns the table of a scenario and
/// the plan of fair shares. The scenario has the length `length`, and takes its other keys from
/// `base`.
#[must_use]
pub fn drawn(
    family: &Family,
    base: &Table,
    Cpus(cpus): Cpus,
    (seed, length): (u64, Span),
) -> (Table, Plan) {
    let stream = |about: DrawKind, nth: usize| {
        let entity = (cpus as u64) << 32 | (about as u64) << 16 | nth as u64;
        Stream::new(seed, entity, Purpose::Host)
    };
    let mut plan = Plan { weights: Vec::new(), cpus, room: Vec::new() };
    let (mut domains, mut changes) = (Vec::new(), Vec::new());
    let mut weights = stream(DrawKind::Weights, 0);
    for nth in 0..guests(family, cpus, &mut stream(DrawKind::Count, 0)) {
        let weight = one_of(family.weights.all(), &mut weights).0;
        plan.weights.push(weight.into());
        // Sleepers are spread evenly, so that their number is exact.
        let sleepers = |guests: usize| guests as u64 * u64::from(family.sleepers.0) / 1_000_000;
        let sleeps = sleepers(nth + 1) > sleepers(nth);
        let work =
            if sleeps { sleeper(family, &mut stream(DrawKind::Programs, nth)) } else { spin() };
        let share = filled(&family.share, &[("weight", weight.to_string())]);
        domains.push(domain(&format!("guest-{nth}"), work, share));
    }
    let mut reserved = stream(DrawKind::Reserved, 0);
    for cpu in 0..cpus {
        let first = one_of(family.reserved.all(), &mut reserved);
        let jumps = family.jumps.map_or(Vec::new(), |every| {
            jumps(every, family.jumps_to.all(), length, &mut stream(DrawKind::Jumps, cpu))
        });
        let parts = || std::iter::once(first).chain(jumps.iter().map(|&(_, part)| part));
        // A reservation of zero is not possible, so a domain whose part is zero is paused.
        let Some(promised) = parts().find(|part| part.0 > 0) else { continue };
        let name = format!("reserved-{cpu}");
        let mut holder = domain(&name, spin(), reservation(family, promised));
        holder.insert("cpus".into(), Value::Array(vec![whole(cpu)]));
        domains.push(holder);
        plan.room.push((Time::START, cpu, MILLION - first.0));
        let begins = (first.0 == 0).then_some((Time::START, first));
        for (at, part) in begins.into_iter().chain(jumps) {
            changes.push((at, change(family, &name, at, part)));
            plan.room.push((at, cpu, MILLION - part.0));
        }
    }
    plan.room.sort_by_key(|&(at, ..)| at);
    changes.sort_by_key(|&(at, _)| at);
    let changes = changes.into_iter().map(|(_, change)| change).collect();
    (scenario(base, cpus, domains, changes), plan)
}

fn scenario(base: &Table, cpus: usize, domains: Vec<Table>, changes: Vec<Table>) -> Table {
    let mut scenario = base.clone();
    scenario.remove("family");
    let host = scenario.entry("host").or_insert_with(|| Value::Table(Table::new()));
    if let Value::Table(host) = host {
        host.insert("cpus".into(), whole(cpus));
    }
    let tables = |tables: Vec<Table>| Value::Array(tables.into_iter().map(Value::Table).collect());
    scenario.insert("domain".into(), tables(domains));
    if !changes.is_empty() {
        scenario.insert("change".into(), tables(changes));
    }
    scenario
}

/// Draws the number of guests on a host. The number per CPU is drawn in hundredths. The total is
/// rounded and at least one.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // The number is small.
fn guests(family: &Family, cpus: usize, stream: &mut Stream) -> usize {
    let hundredths = |guests: f64| (guests * 100.0).round() as usize;
    let (least, most) = (hundredths(family.guests_per_cpu.0), hundredths(family.guests_per_cpu.1));
    let per_cpu = least + stream.pick(most - least + 1);
    ((per_cpu * cpus + 50) / 100).max(1)
}

fn one_of<T: Copy>(all: &[T], stream: &mut Stream) -> T {
    all[stream.pick(all.len())]
}

fn domain(name: &str, work: Table, share: Table) -> Table {
    let mut domain = Table::new();
    domain.insert("name".into(), name.into());
    domain.insert("work".into(), Value::Table(work));
    if !share.is_empty() {
        domain.insert("share".into(), Value::Table(share));
    }
    domain
}

fn spin() -> Table {
    Table::from_iter([("kind".to_owned(), "spin".into())])
}

/// Returns a workload that computes and sleeps in turn. Both times vary around means that are drawn
/// for this guest.
fn sleeper(family: &Family, stream: &mut Stream) -> Table {
    let mut around = |Lengths(least, most): Lengths| {
        let mean = stream.draw(&Draw::Uniform { least, most }).ns();
        let off = mean / 1_000_000 * u64::from(family.varies.0);
        format!("uniform {}ns {}ns", mean - off, mean + off)
    };
    let (compute, sleep) = (around(family.compute), around(family.sleep));
    let words = [("kind", "interactive".to_owned()), ("compute", compute), ("sleep", sleep)];
    words.into_iter().map(|(key, word)| (key.to_owned(), word.into())).collect()
}

/// Returns the times at which the reservation on a CPU changes, each with the new reserved part.
/// The times are a Poisson process.
fn jumps(every: Length, to: &[Part], length: Span, stream: &mut Stream) -> Vec<(Time, Part)> {
    let (mut at, mut jumps) = (Time::START, Vec::new());
    while jumps.len() < MOST_JUMPS {
        at = at.after(stream.draw(&Draw::Exponential { mean: every.0 }));
        if at >= Time::START + length {
            break;
        }
        jumps.push((at, one_of(to, stream)));
    }
    jumps
}

/// Returns the shares that reserve a part of a CPU, for each policy.
fn reservation(family: &Family, part: Part) -> Table {
    let period = family.period.0.ns();
    let slice = u128::from(period) * u128::from(part.0) / u128::from(MILLION);
    let words = [
        ("slice", format!("{slice}ns")),
        ("period", format!("{period}ns")),
        ("part", format!("{}.{:06}cpu", part.0 / MILLION, part.0 % MILLION)),
    ];
    filled(&family.reservation, &words)
}

/// Returns the table of a scenario's timed change: at the time `at`, the reserved part of the
/// domain `of` changes to `part`. If `part` is zero, the domain is paused.
fn change(family: &Family, of: &str, at: Time, part: Part) -> Table {
    let mut change = Table::new();
    // A change must come after the join.
    let at = at.since(Time::START).ns().max(1);
    change.insert("at".into(), format!("{at}ns").into());
    change.insert("domain".into(), of.into());
    change.insert("paused".into(), (part.0 == 0).into());
    if part.0 > 0 && !family.reservation.is_empty() {
        change.insert("share".into(), Value::Table(reservation(family, part)));
    }
    change
}

/// Returns a table in which variables are replaced by their values. If a text consists of one
/// variable only, the value of the variable becomes a number if possible.
fn filled(table: &Table, words: &[(&str, String)]) -> Table {
    let fill = |value: &Value| match value {
        Value::Table(table) => Value::Table(filled(table, words)),
        Value::String(text) => {
            let fill = |text: String, (name, word): &(&str, String)| {
                text.replace(&format!("{{{name}}}"), word)
            };
            let full = words.iter().fold(text.clone(), fill);
            match full.parse::<i64>() {
                Ok(number) if full != *text => number.into(),
                _ => full.into(),
            }
        }
        other => other.clone(),
    };
    table.iter().map(|(key, value)| (key.clone(), fill(value))).collect()
}

fn whole(number: usize) -> Value {
    i64::try_from(number).expect("a number of a host is small").into()
}

#[cfg(test)]
mod tests {
    use slackline_scenario::Scenario;

    use super::*;

    const FAMILY: &str = r#"
title = "random"
length = "10s"
policy = { name = "sedf" }
[host]
switch = "2us"
[family]
cpus = [4, 16]
weights = [1, 1, 4]
reserved = ["0%", "50%"]
sleepers = "50%"
varies = "50%"
jumps = "2s"
jumps_to = ["0%", "75%"]
share.sedf = { extra-weight = "{weight}" }
share.credit = { weight = "{weight}" }
reservation.sedf = { slice = "{slice}", period = "{period}", extra = false }
reservation.credit = { cap = "{part}" }
"#;

    fn host(cpus: usize, seed: u64) -> (Table, Plan) {
        let base: Table = FAMILY.parse().unwrap();
        let family = base["family"].clone().try_into().unwrap();
        drawn(&family, &base, Cpus(cpus), (seed, Span::from_secs(10)))
    }

    #[test]
    fn random_host_of_family_is_valid_scenario_determined_by_seed() {
        for cpus in [4, 16] {
            let (table, plan) = host(cpus, 7);
            assert_eq!(host(cpus, 7), (table.clone(), plan.clone()));
            assert_ne!(host(cpus, 8), (table.clone(), plan.clone()));
            let scenario = Scenario::read(&table.to_string()).unwrap();
            assert_eq!(scenario.host.topology.cpus(), cpus);
            let guests = plan.weights.len();
            assert!((cpus * 5 / 4..=cpus * 3).contains(&guests), "{guests} on {cpus}");
            let names = scenario.domains[..guests].iter().map(|domain| &domain.name);
            assert!(names.enumerate().all(|(nth, name)| *name == format!("guest-{nth}")));
            for (nth, weight) in plan.weights.iter().enumerate() {
                let said = &table["domain"][nth]["share"]["credit"]["weight"];
                assert_eq!(said.as_integer(), Some(i64::from(*weight)));
            }
            let is_sleeper = |nth: &usize| table["domain"][nth]["work"].get("sleep").is_some();
            assert_eq!((0..guests).filter(is_sleeper).count(), guests / 2);
            assert!(plan.room.is_sorted_by_key(|&(at, ..)| at));
            assert!(plan.room.iter().all(|&(_, cpu, ppm)| cpu < cpus && ppm >= 250_000));
        }
    }

    #[test]
    fn random_hosts_of_a_family_match_its_configured_averages() {
        let (mut heavy, mut all, mut half, mut cpus) = (0, 0, 0, 0);
        for seed in 1..=200 {
            let (_, plan) = host(16, seed);
            heavy += plan.weights.iter().filter(|&&weight| weight == 4).count();
            all += plan.weights.len();
            let begins = plan.room.iter().take_while(|&&(at, ..)| at == Time::START);
            half += begins.filter(|&&(_, _, ppm)| ppm == 500_000).count();
            cpus += 16;
        }
        let near = |part: usize, of: usize, percent: usize| {
            assert!((100 * part).abs_diff(of * percent) < 3 * of, "{part} of {of}");
        };
        near(heavy, all, 33);
        near(half, cpus, 50);
        assert!(all.abs_diff(200 * 16 * 17 / 8) < 200, "{all}: 2.125 a CPU on average");
    }
}
