//! CPU time of the vCPUs of a domain with `spread = "use"`, on the simulated host beside random
//! other vCPUs. Numbers are in nanoseconds, without rounding.

use std::fmt::Write as _;

use crate::sets::{Got, Task, UNIT, UNITS, check_slices, check_time, set, work};
use proptest::prelude::*;
use slackline_scenario::{DeclinedVcpu, Scenario};
use slackline_sim::RunError;
use slackline_trace::Record;
use slackline_units::{Span, Time};

const LENGTH: u64 = 400_000_000;

/// Parameters of a domain with `spread = "use"`, whose vCPUs can borrow each other's unused budget.
#[derive(Clone, Debug)]
struct Family {
    /// Slice of each vCPU of the domain in every `period`, in nanoseconds.
    slice: u64,
    period: u64,
    /// Time at which each vCPU of the domain wakes. A time after the end of the run means never.
    wakes: Vec<u64>,
    /// Pairs of a time to compute and a time to sleep, in nanoseconds, for each vCPU. Empty for
    /// vCPUs that are always runnable.
    sleeps: Vec<(u64, u64)>,
    is_exact: bool,
    joins: u64,
    /// Time at which the slices change, and the new slice. `None` if the slices never change.
    change: Option<(u64, u64)>,
}

/// A vCPU of another domain, and the time at which it joins.
type Neighbour = (Task, u64);

/// Returns a scenario with the neighbours in the first slots. Domains whose vCPUs borrow budget
/// follow in the slots after them.
fn scenario(
    (cpus, place): (usize, &str),
    neighbours: &[Neighbour],
    families: &[Family],
) -> Scenario {
    let mut text = format!(
        "title = \"random\"\nlength = \"{LENGTH}ns\"\n\
         policy = {{ name = \"edf\", reserve = \"0cpu\", place = \"{place}\" }}\n\
         host = {{ cpus = {cpus} }}\n"
    );
    for (index, (task, joins)) in neighbours.iter().enumerate() {
        let Task { slice, period, is_exact, sleeps, change } = task;
        let share = |slice| {
            format!(
                "share.edf = {{ slice = \"{slice}ns\", period = \"{period}ns\", \
                 exact = {is_exact} }}\n"
            )
        };
        let _ = write!(
            text,
            "[[domain]]\nname = \"n{index}\"\nwork = {}\njoins = \"{joins}ns\"\n{}",
            work(sleeps),
            share(*slice)
        );
        if let Some((at, slice)) = change {
            let _ = write!(
                text,
                "[[change]]\nat = \"{at}ns\"\ndomain = \"n{index}\"\n{}",
                share(*slice)
            );
        }
    }
    for (index, family) in families.iter().enumerate() {
        let Family { slice, period, wakes, sleeps, is_exact, joins, change } = family;
        let share = |slice| {
            format!(
                "share.edf = {{ slice = \"{slice}ns\", period = \"{period}ns\", \
                 exact = {is_exact}, spread = \"use\" }}\n"
            )
        };
        let _ = write!(
            text,
            "[[domain]]\nname = \"f{index}\"\nvcpus = {}\nwork = {}\njoins = \"{joins}ns\"\n{}",
            wakes.len(),
            work(sleeps),
            share(*slice),
        );
        for (number, wakes) in wakes.iter().enumerate().filter(|(_, wakes)| **wakes > 0) {
            let wakes = (joins + wakes).min(LENGTH - 1);
            let _ = write!(text, "[[domain.vcpu]]\nnumber = {number}\nwakes = \"{wakes}ns\"\n");
        }
        if let Some((at, slice)) = change {
            let share = share(*slice);
            let _ = write!(text, "[[change]]\nat = \"{at}ns\"\ndomain = \"f{index}\"\n{share}");
        }
    }
    Scenario::read(&text).unwrap_or_else(|error| panic!("{error:?} in\n{text}"))
}

/// Runs all neighbours and domains that are admitted. Returns the trace, and the neighbours and
/// domains that were admitted.
fn run(
    host: (usize, &str),
    mut neighbours: Vec<Neighbour>,
    mut families: Vec<Family>,
) -> (Vec<Record>, Vec<Neighbour>, Vec<Family>) {
    loop {
        let mut trace = Vec::new();
        match slackline_sim::run(&scenario(host, &neighbours, &families), &mut trace) {
            Ok(_) => return (trace, neighbours, families),
            Err(RunError::Declined(DeclinedVcpu { domain, .. })) if domain < neighbours.len() => {
                drop(neighbours.remove(domain));
            }
            Err(RunError::Declined(DeclinedVcpu { domain, .. })) => {
                drop(families.remove(domain - neighbours.len()));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Returns the slots of the vCPUs of each domain. The slots follow the slots of the neighbours.
fn slots(neighbours: usize, families: &[Family]) -> Vec<std::ops::Range<usize>> {
    let mut first = neighbours;
    let slots = families.iter().map(|family| {
        let slots = first..first + family.wakes.len();
        first = slots.end;
        slots
    });
    slots.collect()
}

/// Returns the CPU time that all vCPUs of `all` together received until `until`.
fn had_by(all: &[Got], until: Time) -> Span {
    all.iter().map(|got| got.within(Time::START, until)).sum()
}

/// Returns an upper bound of the entitlement of a vCPU until `until`: its reservations rounded up,
/// plus its longest slice.
fn promised_by(got: &Got, until: Time) -> Span {
    let ends = got.promises.iter().skip(1).map(|&(at, _)| at).chain([Time::NEVER]);
    let each = got.promises.iter().zip(ends).filter(|((from, _), _)| *from < until);
    let come_to: Span = each
        .clone()
        .map(|((from, periods), end)| periods.reservation.over_rounded_up(end.min(until) - *from))
        .sum();
    let longest = each.map(|((_, periods), _)| periods.reservation.slice()).max();
    come_to + longest.unwrap_or(Span::ZERO)
}

fn family() -> impl Strategy<Value = Family> {
    let wake = prop_oneof![3 => Just(0), 2 => 1..200_000_000_u64, 2 => Just(LENGTH)];
    let sleeps = prop_oneof![
        2 => Just(Vec::new()),
        2 => prop::collection::vec((1..8_000_000_u64, 1..40_000_000_u64), 1..6),
    ];
    let part = prop::sample::select(vec![1_u64, 2, 3, 4, 5, 7, 11]);
    (
        (1..=600_u64, part, prop::collection::vec(wake, 2..=4)),
        (sleeps, any::<bool>(), prop_oneof![3 => Just(0), 1 => 0..60_000_000_u64]),
        prop::option::of((1..300_000_000_u64, 1..=600_u64)),
    )
        .prop_map(|((share, part, wakes), (sleeps, is_exact, joins), change)| {
            let period = UNITS / part * UNIT;
            let slice = |share: u64| (period * share / 1_000).max(1);
            let change = change.map(|(later, share)| (joins + later, slice(share)));
            let slice = slice(share);
            Family { slice, period, wakes, sleeps, is_exact, joins, change }
        })
}

fn neighbours() -> impl Strategy<Value = Vec<Neighbour>> {
    let each = prop::collection::vec((set(4, 700_000), any::<bool>()), 1..=2);
    let come = prop::collection::vec(
        (prop_oneof![Just(0), 0..300_000_000_u64], 1..300_000_000_u64, 1..=1_500_u64),
        8,
    );
    (each, come).prop_map(|(sets, come)| {
        let tasks = sets
            .into_iter()
            .flat_map(|(set, changes)| set.into_iter().map(move |task| (task, changes)));
        let neighbour =
            |((task, changes), (joins, later, part)): ((Task, bool), (u64, u64, u64))| {
                let slice = (task.slice * part / 1_000).clamp(1, task.period);
                let at = joins + later;
                let change = (changes && at < LENGTH).then_some((at, slice));
                (Task { change, ..task }, joins)
            };
        tasks.zip(come).map(neighbour).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Joins, changes and sleeps are random. Despite all borrowed budget, each vCPU receives its
    /// slice in every period. That includes vCPUs of the borrowing domains, and vCPUs whose loans a
    /// join cuts short.
    #[test]
    fn borrowing_of_budget_never_costs_a_vcpu_its_slice(
        cpus in 1..=3_usize,
        neighbours in neighbours(),
        families in prop::collection::vec(family(), 1..=3),
    ) {
        let (trace, neighbours, families) = run((cpus, "spread"), neighbours, families);
        let tasks: Vec<Task> = neighbours.iter().map(|(task, _)| task.clone()).collect();
        check_slices(&trace, &tasks)?;
        let host = crate::sets::Host { cpus, lateness: 0, length: LENGTH };
        check_time(&trace, &host)?;
        for (family, slots) in families.iter().zip(slots(tasks.len(), &families)) {
            for (slot, wakes) in slots.zip(&family.wakes) {
                if *wakes > 0 || !family.sleeps.is_empty() {
                    continue;
                }
                let all = Got::of(&trace, slot);
                let changed = all.promises.get(1).map_or(Time::NEVER, |&(at, _)| at);
                let mut advance = all.advance();
                for (start, got, slice) in all.periods() {
                    // The excess before the change is deducted first.
                    let without = if start < changed { Span::ZERO } else { advance };
                    prop_assert!(
                        got >= slice.left_after(without),
                        "s{slot} got {got} of {slice} less {without} from {start}"
                    );
                    advance = advance.left_after(if start < changed { Span::ZERO } else { slice });
                }
            }
        }
    }

    /// Borrowed budget costs no vCPU its slice beside vCPUs that are split over several CPUs. No
    /// budget is lent on those CPUs.
    #[test]
    fn budget_borrowing_beside_split_vcpus_costs_no_vcpu_a_slice(
        cpus in 2..=3_usize,
        neighbours in neighbours(),
        families in prop::collection::vec(family(), 1..=3),
    ) {
        let stays = |(task, joins): Neighbour| (Task { change: None, ..task }, joins);
        let neighbours = neighbours.into_iter().map(stays).collect();
        let stays = |family: Family| Family { change: None, ..family };
        let families = families.into_iter().map(stays).collect();
        let (trace, neighbours, families) = run((cpus, "split"), neighbours, families);
        let tasks: Vec<Task> = neighbours.into_iter().map(|(task, _)| task).collect();
        check_slices(&trace, &tasks)?;
        for (family, slots) in families.iter().zip(slots(tasks.len(), &families)) {
            for (slot, wakes) in slots.zip(&family.wakes) {
                if *wakes > 0 || !family.sleeps.is_empty() {
                    continue;
                }
                for (start, got, slice) in Got::of(&trace, slot).periods() {
                    prop_assert!(got >= slice, "s{slot} got {got} of {slice} from {start}");
                }
            }
        }
    }

    /// A domain with a hard limit borrows budget. At any time, the domain has received at most
    /// share × time since its vCPUs joined, plus one slice for each of its vCPUs.
    #[test]
    fn hard_limit_allows_at_most_one_extra_slice_per_vcpu(
        cpus in 1..=3_usize,
        neighbours in neighbours(),
        families in prop::collection::vec(family(), 1..=3),
    ) {
        let exact = |family: Family| Family { is_exact: true, ..family };
        let families = families.into_iter().map(exact).collect();
        let (trace, neighbours, families) = run((cpus, "spread"), neighbours, families);
        for (family, slots) in families.iter().zip(slots(neighbours.len(), &families)) {
            let all: Vec<Got> = slots.map(|slot| Got::of(&trace, slot)).collect();
            let ends = all.iter().flat_map(|got| &got.runs).map(|run| run.1);
            for until in ends {
                let most = all.iter().map(|got| promised_by(got, until)).sum();
                let had = had_by(&all, until);
                prop_assert!(had <= most, "{had}, not {most}, until {until}: {family:?}");
            }
        }
    }
}

/// Returns the CPU time that the one busy vCPU of a domain receives in a second. The domain has
/// four vCPUs, each on its own CPU. Each has a slice of `slice_us` microseconds in every 10 ms, as
/// a hard limit. Each CPU also has a hog with 3 of 10 ms. A twentieth of each CPU is never
/// reserved.
fn busy_one(slice_us: u64, spread: &str) -> Span {
    let mut text = "title = \"one of four\"\nlength = \"1s\"\npolicy = { name = \"edf\" }\n\
        host = { cpus = 4 }\n"
        .to_owned();
    for cpu in 0..4 {
        let _ = write!(
            text,
            "[[domain]]\nname = \"hog{cpu}\"\ncpus = [{cpu}]\nwork = {{ kind = \"spin\" }}\n\
             share.edf = {{ slice = \"3ms\", period = \"10ms\" }}\n"
        );
    }
    let _ = write!(
        text,
        "[[domain]]\nname = \"web\"\nvcpus = 4\nwork = {{ kind = \"spin\" }}\n\
         share.edf = {{ slice = \"{slice_us}us\", period = \"10ms\", exact = true, \
         spread = \"{spread}\" }}\n"
    );
    for number in 0..4 {
        let wakes = if number == 0 { "" } else { "wakes = \"999ms\"\n" };
        let _ = write!(text, "[[domain.vcpu]]\nnumber = {number}\ncpus = [{number}]\n{wakes}");
    }
    let mut trace: Vec<Record> = Vec::new();
    slackline_sim::run(&Scenario::read(&text).expect("the scenario is valid"), &mut trace)
        .expect("the run completes");
    Got::of(&trace, 4).within(Time::START, Time::START + Span::from_secs(1))
}

/// The CPU time of the busy vCPU is the least of three amounts: a whole CPU, the domain's share,
/// and the vCPU's equal share plus the available capacity of its CPU. A domain with 1.5 CPUs gives
/// each of its four vCPUs 0.375. The busy vCPU receives 0.65, because its CPU has 0.275 more
/// available. A domain with 0.4 CPU gives each vCPU 0.1, and the busy vCPU receives all of the 0.4.
/// In the first period nothing can be borrowed yet.
#[test]
fn busy_vcpu_receives_unused_sibling_budget_up_to_cpu_capacity() {
    for (slice_us, each_us) in [(3_750, 6_500), (1_000, 4_000)] {
        let even = Span::from_us(slice_us);
        assert_eq!(busy_one(slice_us, "even"), even * 100);
        // The capacity of a CPU is rounded down to a nanosecond in each period.
        let (had, most) = (busy_one(slice_us, "use"), even + Span::from_us(each_us) * 99);
        assert!(had <= most && had + Span::from_ns(99) >= most, "{had} of {most}");
    }
}

/// Runs three vCPUs on one CPU. The first has 4 of 10 ms and a sibling on another CPU that leaves
/// the same amount unused. The second has 4 of 20 ms. The third, the newcomer, joins and wakes at
/// the given times with the remaining 1.6 of 4 ms. `None` if the newcomer is not admitted.
fn newcomer(joins_ms: u64, wakes_ms: u64) -> Option<Vec<Record>> {
    let wakes = format!("wakes = \"{wakes_ms}ms\"\n");
    let wakes = if wakes_ms > joins_ms { &wakes } else { "" };
    let text = format!(
        "title = \"a newcomer\"\nlength = \"60ms\"\n\
         policy = {{ name = \"edf\", reserve = \"0cpu\" }}\nhost = {{ cpus = 2 }}\n\
         [[domain]]\nname = \"other\"\ncpus = [0]\nwork = {{ kind = \"spin\" }}\n\
         share.edf = {{ slice = \"4ms\", period = \"20ms\", exact = true }}\n\
         [[domain]]\nname = \"web\"\nvcpus = 2\nwork = {{ kind = \"spin\" }}\n\
         share.edf = {{ slice = \"4ms\", period = \"10ms\", exact = true, spread = \"use\" }}\n\
         [[domain.vcpu]]\nnumber = 0\ncpus = [0]\n\
         [[domain.vcpu]]\nnumber = 1\ncpus = [1]\nwakes = \"59ms\"\n\
         [[domain]]\nname = \"new\"\ncpus = [0]\njoins = \"{joins_ms}ms\"\n{wakes}\
         work = {{ kind = \"spin\" }}\n\
         share.edf = {{ slice = \"1600us\", period = \"4ms\", exact = true }}\n"
    );
    let mut trace: Vec<Record> = Vec::new();
    match slackline_sim::run(&Scenario::read(&text).expect("the scenario is valid"), &mut trace) {
        Ok(_) => Some(trace),
        Err(RunError::Declined(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// A vCPU borrows 4 ms for its period from 20 to 30 ms, and uses the loan from 24 to 28 ms. The
/// borrower becomes entitled to the loan evenly over the period. A newcomer that joins at 21 or 22
/// ms is admitted. The borrower keeps the part of the loan to which it is entitled at that time,
/// and the rest of the loan is cut. At 27 and 28 ms the borrower has used more of the loan than
/// that part. So a newcomer at these times is refused, and a newcomer at 30 ms is admitted.
#[test]
fn newcomer_may_reserve_lent_capacity_not_yet_used_by_borrower() {
    let ms = |ms| Time::START + Span::from_ms(ms);
    let had = |trace: &[Record]| Got::of(trace, 1).within(ms(20), ms(30));
    for (joins, wakes, expected) in
        [(21, 21, Some(4_400)), (22, 22, Some(4_800)), (22, 35, Some(4_800)), (27, 27, None)]
    {
        let trace = newcomer(joins, wakes);
        // The capacity for a loan is rounded down to a nanosecond.
        let had = trace.as_deref().map(|trace| had(trace) + Span::from_ns(1));
        assert_eq!(had, expected.map(Span::from_us), "{joins}");
    }
    assert!(newcomer(28, 28).is_none());
    let trace = newcomer(30, 30).expect("the whole loan has accrued");
    assert_eq!(had(&trace) + Span::from_ns(1), Span::from_ms(8));
    for joins in [20, 21, 22, 30] {
        let trace = newcomer(joins, joins).expect("the newcomer is admitted");
        for slot in [0, 1, 3] {
            for (start, got, slice) in Got::of(&trace, slot).periods() {
                assert!(got >= slice, "{joins}: s{slot} got {got} of {slice} from {start}");
            }
        }
    }
}
