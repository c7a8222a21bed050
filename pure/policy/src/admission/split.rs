//! Split reservations. A vCPU that fits on no CPU as a whole has a part of its slice on each of
//! several CPUs, one after the other. Each part is a subtask. Source: Burns, Davis, Wang and Zhang,
//! Partitioned EDF scheduling for multiprocessors using a C=D scheme, Real-Time Systems 48, 2012,
//! cited as [C=D].
//!
//! The relative deadline of each subtask except the last equals its execution time (C=D). The first
//! subtask begins with the period, each later subtask at the deadline of its predecessor. A subtask
//! with C=D precedes all other work on its CPU, so it ends exactly at its deadline. The last
//! subtask has the end of the period as its deadline. A CPU can have one subtask with C=D, so there
//! are at most as many splits as CPUs minus one. Whole vCPUs never migrate. A split vCPU migrates
//! only between subtasks.
//!
//! A CPU is *strict* if it has a split vCPU, or had one since it was last quiescent. On a strict
//! CPU every reservation is admitted by the demand test.
//!
//! The longest subtask that a CPU can take does not depend on the slice, and each shorter subtask
//! fits too. So the longest slice that can be admitted is known exactly.

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, CpuShare, Reservation, Span, VcpuId};

use crate::Roster;
use crate::admission::demand::{Demand, Job, TaskDemand};
use crate::admission::dispatch_overhead::{DispatchOverhead, longest_slice};

/// One subtask of a split reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subtask {
    pub(crate) cpu: CpuId,
    /// CPU time of the subtask, without dispatch overhead.
    pub(crate) slice: Span,
    /// Latest start of the subtask, counted from the start of the period.
    pub(crate) begins: Span,
    /// Deadline of the subtask, counted from the start of the period.
    pub(crate) ends: Span,
}

impl Subtask {
    /// Returns the demand of the subtask on its CPU, including dispatch overhead.
    pub(crate) fn job(&self, period: Span, looks: DispatchOverhead) -> Job {
        let within = self.ends - self.begins;
        Job { time: looks.with(self.slice, within), within, period }
    }
}

/// CPUs that may take a reservation, and the time until the reservation starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CandidateCpus<'a> {
    /// Demand by CPU. If the entry of a CPU is `None` or missing, no vCPU can be split on that CPU.
    pub(crate) demands: &'a [Option<Demand>],
    pub(crate) allowed: CpuSet,
    /// Time from now to the start of the reservation's first period.
    pub(crate) wait: Span,
}

impl CandidateCpus<'_> {
    fn takes(&self, cpu: CpuId, more: TaskDemand, capacity: CpuShare) -> bool {
        let demand = self.demands.get(cpu.index()).and_then(Option::as_ref);
        demand.is_some_and(|demand| demand.takes(more, capacity))
    }
}

/// All split reservations, and the strict CPUs, on which the demand test admits reservations.
#[derive(Clone, Debug)]
pub(crate) struct Splits {
    /// Largest share of a CPU that reservations may take if the demand test admits them.
    capacity: CpuShare,
    looks: DispatchOverhead,
    /// CPUs on which every reservation is admitted by the demand test.
    strict: CpuSet,
    /// Period and subtasks of each split vCPU.
    split: Roster<(Span, Vec<Subtask>)>,
}

impl Splits {
    /// Creates a table without split reservations. `capacity` is the largest share of a CPU that
    /// reservations may take.
    pub(crate) fn new(capacity: CpuShare, looks: DispatchOverhead) -> Splits {
        let capacity = CpuShare::from_ppm(capacity.ppm().min(CpuShare::ONE.less(KEPT).ppm()));
        Splits { capacity, looks, strict: CpuSet::NONE, split: Roster::default() }
    }

    /// Returns the strict CPUs: those that have a split vCPU, or had one since they were last
    /// quiescent.
    pub(crate) fn strict(&self) -> CpuSet {
        self.strict
    }

    /// Records that a CPU is quiescent. Unless a vCPU is split there now, the CPU no longer needs
    /// the demand test.
    pub(crate) fn rest(&mut self, cpu: CpuId) {
        if self.is_left_over(cpu) {
            self.strict.remove(cpu);
        }
    }

    /// Returns true if a CPU is *strict* (admission by the demand test) only because of vCPUs that
    /// are no longer split on it.
    pub(crate) fn is_left_over(&self, cpu: CpuId) -> bool {
        let is_here = |(_, parts): &(Span, Vec<Subtask>)| parts.iter().any(|part| part.cpu == cpu);
        self.strict.contains(cpu) && !self.split.iter().any(is_here)
    }

    /// Adds a split reservation. Calls `promise` for each subtask, with its CPU and the share to
    /// book there.
    pub(crate) fn insert(
        &mut self,
        (vcpu, period, parts): (VcpuId, Span, &[Subtask]),
        promise: impl FnMut(CpuId, Reservation),
    ) {
        self.strict.extend(parts.iter().map(|part| part.cpu));
        self.each_rate(period, parts, promise);
        self.split.insert(vcpu, (period, parts.to_vec()));
    }

    /// Removes a split reservation and returns its subtasks. Empty if the vCPU was not split. Calls
    /// `give_back` for each subtask, with its CPU and the share to remove there.
    pub(crate) fn remove(
        &mut self,
        vcpu: VcpuId,
        give_back: impl FnMut(CpuId, Reservation),
    ) -> Vec<Subtask> {
        let Some((period, parts)) = self.split.remove(vcpu) else { return Vec::new() };
        self.each_rate(period, &parts, give_back);
        parts
    }

    /// Passes the CPU and the share of each subtask, with dispatch overhead, to `told`.
    fn each_rate(&self, period: Span, parts: &[Subtask], mut told: impl FnMut(CpuId, Reservation)) {
        for part in parts {
            let rate = Reservation::new(part.job(period, self.looks).time, period);
            told(part.cpu, rate.expect("a subtask is longer than zero and at most a period"));
        }
    }

    /// Returns true if `cpu`, which needs the demand test, can take the reservation `asked` as a
    /// whole.
    pub(crate) fn takes_whole(
        &self,
        cpu: CpuId,
        asked: Reservation,
        among: CandidateCpus<'_>,
    ) -> bool {
        let (slice, period) = (asked.slice(), asked.period());
        let job = Job { time: self.looks.with(slice, period), within: period, period };
        among.takes(cpu, TaskDemand { owed: None, next: among.wait, job }, self.capacity)
    }

    /// Returns subtasks for `asked`. `None` if they fit on no combination of CPUs that was
    /// searched.
    pub(crate) fn split(
        &self,
        asked: Reservation,
        among: CandidateCpus<'_>,
    ) -> Option<Vec<Subtask>> {
        let search = self.search(asked.period(), among);
        let plan = search.plans().find(|plan| plan.most >= asked.slice())?;
        Some(search.even(&plan, asked).unwrap_or_else(|| cut(&plan.parts, asked)))
    }

    /// Returns the existing subtasks, cut to the new slice. `None` if the period changes, the slice
    /// grows, or one of the subtasks does not fit any more.
    pub(crate) fn keep(
        &self,
        (share, parts): (Reservation, &[Subtask]),
        asked: Reservation,
        among: CandidateCpus<'_>,
    ) -> Option<Vec<Subtask>> {
        let is_less = asked.period() == share.period() && asked.slice() <= share.slice();
        let parts = if is_less { cut(parts, asked) } else { Vec::new() };
        let search = self.search(asked.period(), among);
        let can = |part: &Subtask| among.allowed.contains(part.cpu) && search.takes(part);
        (!parts.is_empty() && parts.iter().all(can)).then_some(parts)
    }

    /// Returns the longest slice that fits, either as a split reservation or whole on a CPU that
    /// needs the demand test.
    pub(crate) fn room(&self, period: Span, among: CandidateCpus<'_>) -> Span {
        let whole = |cpu| longest_slice(period, |asked| self.takes_whole(cpu, asked, among));
        let whole = among.allowed.and(&self.strict).iter().map(whole).max().unwrap_or(Span::ZERO);
        let search = self.search(period, among);
        search.plans().map(|plan| plan.most).fold(whole, Span::max)
    }

    fn search<'a>(&self, period: Span, among: CandidateCpus<'a>) -> Search<'a> {
        Search { among, capacity: self.capacity, looks: self.looks, period }
    }
}

/// Returns the first subtasks of `parts` that together have the slice of `asked`. The last of them
/// gets the end of the period as its deadline.
fn cut(parts: &[Subtask], asked: Reservation) -> Vec<Subtask> {
    let (mut left, mut taken) = (asked.slice(), Vec::new());
    for part in parts {
        let slice = part.slice.min(left);
        left -= slice;
        taken.push(Subtask { slice, ..*part });
        if left.is_zero() {
            break;
        }
    }
    if let Some(last) = taken.last_mut() {
        last.ends = asked.period();
    }
    taken
}

/// Search for the subtasks of a reservation with a given period.
struct Search<'a> {
    among: CandidateCpus<'a>,
    capacity: CpuShare,
    looks: DispatchOverhead,
    period: Span,
}

/// First subtasks of an incomplete plan. Each one ends when the next subtask begins.
#[derive(Clone, Debug, Default)]
struct SplitPrefix {
    parts: Vec<Subtask>,
    /// Total CPU time of the subtasks.
    slice: Span,
    /// Deadline of the last of these subtasks, at which the next subtask begins.
    ends: Span,
}

/// Complete list of subtasks for a reservation. The last subtask is as long as possible.
#[derive(Clone, Debug)]
struct SplitPlan {
    parts: Vec<Subtask>,
    /// Total CPU time of the subtasks: the longest slice that this plan can serve.
    most: Span,
}

/// Maximum number of subtasks of a split vCPU. Each subtask adds a migration per period.
const PARTS: usize = 4;

/// Maximum number of CPUs searched: those with the most capacity left.
const CPUS: usize = 8;

/// Number of incomplete plans that the search keeps, to extend each by another subtask. The plans
/// with the most CPU time are kept.
const BEGINNINGS: usize = 4;

/// Shortest subtask. A shorter subtask would not be worth the migration that it costs.
const LEAST: Span = Span::from_us(10);

/// Share of a CPU that stays unreserved if the demand test admits its reservations. The test takes
/// very long on a CPU that is nearly full.
const KEPT: CpuShare = CpuShare::from_ppm(1_000);

impl Search<'_> {
    /// Returns complete plans, those with fewer subtasks first. Plans with equally many subtasks
    /// are ordered by the longest slice that they can serve, shortest first. The plans depend on
    /// the period, not on the slice.
    fn plans(&self) -> impl Iterator<Item = SplitPlan> {
        let CandidateCpus { demands, allowed, .. } = self.among;
        let bound = |cpu: &CpuId| Some(demands.get(cpu.index())?.as_ref()?.bound());
        let mut cpus: Vec<CpuId> = allowed.iter().filter(|cpu| bound(cpu).is_some()).collect();
        cpus.sort_by_key(|cpu| (bound(cpu), *cpu));
        cpus.truncate(CPUS);
        let mut beginnings = alloc::vec![SplitPrefix::default()];
        (2..=PARTS.min(cpus.len())).flat_map(move |_| {
            beginnings = each(&beginnings, &cpus, |beginning, cpu| self.longer(beginning, cpu));
            let mut plans = each(&beginnings, &cpus, |beginning, cpu| self.plan(beginning, cpu));
            beginnings.sort_by_key(|beginning| core::cmp::Reverse(beginning.slice));
            beginnings.truncate(BEGINNINGS);
            plans.sort_by_key(|plan| plan.most);
            plans
        })
    }

    /// Appends the longest possible subtask on `cpu` to an incomplete plan. The deadline of the new
    /// subtask equals its execution time. `None` if the new subtask would be shorter than `LEAST`.
    fn longer(&self, beginning: &SplitPrefix, cpu: CpuId) -> Option<SplitPrefix> {
        let begins = beginning.ends;
        let part = |slice| Subtask {
            cpu,
            slice,
            begins,
            ends: begins + self.looks.with(slice, self.period),
        };
        let longest = longest_slice(self.period, |slice| {
            let part = part(slice.slice());
            part.ends < self.period && self.takes(&part)
        });
        (longest >= LEAST).then(|| beginning.with(part(longest)))
    }

    /// Appends the longest possible last subtask on `cpu`, which completes the plan. `None` if the
    /// CPU has no capacity for it.
    fn plan(&self, beginning: &SplitPrefix, cpu: CpuId) -> Option<SplitPlan> {
        let part = |slice| Subtask { cpu, slice, begins: beginning.ends, ends: self.period };
        let longest = longest_slice(self.period, |slice| {
            let part = part(slice.slice());
            self.looks.fits(part.slice, part.ends - part.begins) && self.takes(&part)
        });
        let SplitPrefix { parts, slice: most, .. } = beginning.with(part(longest));
        (!longest.is_zero()).then_some(SplitPlan { parts, most })
    }

    /// Shortens the subtasks of a plan, so that their slices add up to the requested slice. A plan
    /// uses all capacity of its CPUs, so its slices can add up to more. Each subtask is shortened
    /// by an equal part of this surplus, so that each CPU has some margin for overruns. `None` if
    /// the shortened subtasks do not fit.
    fn even(&self, plan: &SplitPlan, asked: Reservation) -> Option<Vec<Subtask>> {
        let left = (plan.most - asked.slice()) / plan.parts.len() as u64;
        let (last, others) = plan.parts.split_last()?;
        let mut even = SplitPrefix::default();
        for part in others {
            let slice = part.slice.left_after(left);
            let ends = even.ends + self.looks.with(slice, self.period);
            even = even.with(Subtask { slice, begins: even.ends, ends, ..*part });
        }
        let slice = asked.slice().left_after(even.slice);
        let last = Subtask { slice, begins: even.ends, ends: self.period, ..*last };
        let parts = even.with(last).parts;
        let fits = |part: &Subtask| {
            part.slice >= LEAST
                && self.looks.fits(part.slice, part.ends.left_after(part.begins))
                && self.takes(part)
        };
        parts.iter().all(fits).then_some(parts)
    }

    /// Returns true if the CPU of the subtask `part` has enough capacity for this subtask.
    fn takes(&self, part: &Subtask) -> bool {
        let job = part.job(self.period, self.looks);
        let more = TaskDemand { owed: None, next: self.among.wait + part.begins, job };
        self.among.takes(part.cpu, more, self.capacity)
    }
}

impl SplitPrefix {
    fn with(&self, part: Subtask) -> SplitPrefix {
        let mut parts = self.parts.clone();
        parts.push(part);
        SplitPrefix { parts, slice: self.slice + part.slice, ends: part.ends }
    }
}

/// Applies `with` to each incomplete plan and each CPU that the plan does not use yet. Returns the
/// results.
fn each<T>(
    beginnings: &[SplitPrefix],
    cpus: &[CpuId],
    with: impl Fn(&SplitPrefix, CpuId) -> Option<T>,
) -> Vec<T> {
    let pairs =
        beginnings.iter().flat_map(|beginning| cpus.iter().map(move |cpu| (beginning, *cpu)));
    let is_new = |(beginning, cpu): &(&SplitPrefix, CpuId)| {
        beginning.parts.iter().all(|part| part.cpu != *cpu)
    };
    pairs.filter(is_new).filter_map(|(beginning, cpu)| with(beginning, cpu)).collect()
}

#[cfg(test)]
mod tests {
    use slackline_units::DomId;

    use alloc::string::ToString;

    use super::*;
    use crate::picture::picture;
    use crate::{RawValue, Topology, Trial, Values, find};

    /// Random numbers from a seed (SplitMix64: Steele, Lea and Flood, 2014).
    struct Draws(u64);

    impl Draws {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        }

        fn between(&mut self, least: u64, most: u64) -> u64 {
            least + self.next() % (most - least + 1)
        }
    }

    /// Returns random reservations with a total share of `left` millionths of a CPU.
    fn set(draws: &mut Draws, mut left: u64, (least, most): (u64, u64)) -> Vec<Reservation> {
        let mut set = Vec::new();
        while left > 0 {
            let share = draws.between(least, most).min(left);
            left -= share;
            let period = draws.between(5_000, 100_000) * 1_000;
            let slice = (period / 1_000_000 * share).max(1_000);
            set.extend(Reservation::new(Span::from_ns(slice), Span::from_ns(period)));
        }
        set
    }

    fn admits(policy: &str, place: &str, cpus: usize, set: &[Reservation]) -> bool {
        let spec = find(policy).unwrap();
        let given = [("place", RawValue::Text(place)), ("reserve", RawValue::Text("0cpu"))];
        let values = Values::read(spec.policy_fields, given.into_iter()).unwrap();
        let mut trial = Trial::new(spec, &values, &Topology::flat(cpus));
        (0..).zip(set).all(|(slot, share)| {
            let text = [share.slice(), share.period()].map(|span| alloc::format!("{span}"));
            let given =
                ["slice", "period"].into_iter().zip(text.iter().map(|text| RawValue::Text(text)));
            let share = Values::read(spec.share_fields, given).unwrap();
            trial.join(VcpuId::new(slot, DomId::new(slot), 0), &share, None).is_ok()
        })
    }

    /// Loads all CPUs to 95 % with periods of 5 to 100 ms. Counts how many of 200 sets of vCPUs are
    /// admitted, first with `spread` and then with `split`.
    #[test]
    fn splitting_admits_nearly_all_vcpu_sets_of_95_percent_load() {
        const SETS: usize = 200;
        for (policy, cpus, seed, expected) in [
            ("edf", 4_usize, 17, [143, 200]),
            ("edf", 8, 18, [61, 200]),
            ("sedf", 4, 17, [143, 200]),
            // In one set the slice of the last vCPU is below 5 us, the minimum of sedf.
            ("sedf", 8, 18, [61, 199]),
        ] {
            let (mut admitted, mut draws) = ([0; 2], Draws(seed));
            for _ in 0..SETS {
                let set = set(&mut draws, cpus as u64 * 950_000, (10_000, 200_000));
                for (count, place) in admitted.iter_mut().zip(["spread", "split"]) {
                    *count += usize::from(admits(policy, place, cpus, &set));
                }
            }
            assert_eq!(admitted, expected, "{policy}, {cpus} CPUs");
            assert!(admitted[1] * 100 >= SETS * 93);
        }
    }

    /// Three vCPUs reserve 0.6 CPU each on two CPUs with a reserve of 0.1 CPU. The third vCPU, `c`,
    /// is split and gets 3 ms on each CPU.
    #[test]
    fn split_vcpu_runs_two_subtasks_on_two_cpus_each_period() {
        picture(
            "edf place=split reserve=0.1cpu",
            "
            a slice=6ms period=10ms exact   rrrrrrrrrrrrrrrrrrrr
            b slice=6ms period=10ms exact   rrrrrrrrrrrrrrrrrrrr
            c slice=6ms period=10ms exact   rrrrrrrrrrrrrrrrrrrr
            cpu0                            cccaaaaaa.cccaaaaaa.
            cpu1                            bbbbbbccc.bbbbbbccc.
        ",
        );
        picture(
            "sedf place=split reserve=0.1cpu",
            "
            a slice=6ms period=10ms extra=false   rrrrrrrrrrrrrrrrrrrr
            b slice=6ms period=10ms extra=false   rrrrrrrrrrrrrrrrrrrr
            c slice=6ms period=10ms extra=false   rrrrrrrrrrrrrrrrrrrr
            cpu0                                  cccaaaaaa.cccaaaaaa.
            cpu1                                  bbbbbbccc.bbbbbbccc.
        ",
        );
    }

    /// The split vCPU `c` forfeits the budget that it would have used while it was blocked.
    /// Otherwise `a` would miss its deadline.
    #[test]
    fn split_vcpu_forfeits_budget_for_the_time_it_is_blocked() {
        picture(
            "edf place=split reserve=0.1cpu",
            "
            a slice=6ms period=10ms exact   rrrrrrrrrrrrrrrrrrrr
            b slice=6ms period=10ms exact   rrrrrrrrrrrrrrrrrrrr
            c slice=6ms period=10ms exact   rrzzrrrrrrrrrrzzrrrr
            cpu0                            ccaaaaaa..cccaaaaaa.
            cpu1                            bbbbbbcc..bbbbbbc...
        ",
        );
        picture(
            "sedf place=split reserve=0.1cpu compensation=none",
            "
            a slice=6ms period=10ms extra=false   rrrrrrrrrrrrrrrrrrrr
            b slice=6ms period=10ms extra=false   rrrrrrrrrrrrrrrrrrrr
            c slice=6ms period=10ms extra=false   rrzzrrrrrrrrrrzzrrrr
            cpu0                                  ccaaaaaa..cccaaaaaa.
            cpu1                                  bbbbbbcc..bbbbbbc...
        ",
        );
    }

    #[test]
    fn refusal_under_split_placement_contains_the_longest_slice_that_fits() {
        for policy in ["edf", "sedf"] {
            let spec = find(policy).unwrap();
            let values =
                Values::read(spec.policy_fields, [("place", RawValue::Text("split"))].into_iter());
            let mut trial = Trial::new(spec, &values.unwrap(), &Topology::flat(2));
            let share = |slice| {
                let given = [("slice", RawValue::Text(slice)), ("period", RawValue::Text("10ms"))];
                Values::read(spec.share_fields, given.into_iter()).unwrap()
            };
            let vcpu = |slot| VcpuId::new(slot, DomId::new(slot), 0);
            for (slot, slice) in [(0, "6ms"), (1, "6ms"), (2, "6ms")] {
                assert_eq!(trial.join(vcpu(slot), &share(slice), None), Ok(()));
            }
            let refused = trial.join(vcpu(3), &share("2ms"), None).unwrap_err();
            assert_eq!(
                refused.to_string(),
                "2ms every 10ms (0.2cpu) does not fit, whole or split: 1.8cpu of at most 1.9cpu \
                 is already reserved on 2 CPUs"
            );
            let fits = "use a slice of at most 1ms every 10ms";
            assert_eq!(refused.hint().as_deref(), Some(fits));
        }
    }
}
