//! Reservations in parts: who fits on no CPU as a whole runs a part of its slice on one CPU and the
//! rest on others, one after the other.
//! Source: Burns, Davis, Wang and Zhang, Partitioned EDF scheduling for multiprocessors using a C=D
//! scheme, Real-Time Systems 48, 2012, cited as [C=D].
//!
//! Every part but the last has a deadline as short as itself: it begins with the period, or as the
//! part before it ends, comes before all others there, and is over when it must be. So it is known
//! when the next one begins, and the last one has all of what is left of the period. A CPU can have
//! only one part that comes before all others, so there are at most as many splits as CPUs but one.
//! Nobody else moves, and who is split moves at these times only.
//!
//! How much of a slice a CPU can take as such a part does not depend on how long the slice is, and
//! it takes whatever is shorter: so the longest slice that can be admitted is known exactly.

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, CpuShare, Reservation, Span, VcpuId};

use crate::Roster;
use crate::admission::demand::{Demand, Demanded, Job};
use crate::admission::dispatch_overhead::{Looks, longest_slice};

/// A part of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) cpu: CpuId,
    /// What of the slice is had here.
    pub(crate) slice: Span,
    /// When it begins after the begin of the period at the latest.
    pub(crate) begins: Span,
    /// When it is over after the begin of the period.
    pub(crate) ends: Span,
}

impl Part {
    /// What is demanded of its CPU, looks included.
    pub(crate) fn job(&self, period: Span, looks: Looks) -> Job {
        let within = self.ends - self.begins;
        Job { time: looks.with(self.slice, within), within, period }
    }
}

/// The CPUs among which somebody is to go, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Among<'a> {
    /// What is demanded of each; none, or nothing, where nobody can be split.
    pub(crate) demands: &'a [Option<Demand>],
    pub(crate) allowed: CpuSet,
    /// How long from now the first period begins.
    pub(crate) wait: Span,
}

impl Among<'_> {
    fn takes(&self, cpu: CpuId, more: Demanded, capacity: CpuShare) -> bool {
        let demand = self.demands.get(cpu.index()).and_then(Option::as_ref);
        demand.is_some_and(|demand| demand.takes(more, capacity))
    }
}

/// Who is split, and where.
#[derive(Clone, Debug)]
pub(crate) struct Splits {
    /// What a CPU may promise on which somebody is split.
    capacity: CpuShare,
    looks: Looks,
    strict: CpuSet,
    /// With their periods.
    split: Roster<(Span, Vec<Part>)>,
}

impl Splits {
    /// Nobody is split yet, where a CPU may promise so much.
    pub(crate) fn new(capacity: CpuShare, looks: Looks) -> Splits {
        let capacity = CpuShare::from_ppm(capacity.ppm().min(CpuShare::ONE.less(KEPT).ppm()));
        Splits { capacity, looks, strict: CpuSet::NONE, split: Roster::default() }
    }

    /// The CPUs where somebody is split, or has been since they rested last.
    pub(crate) fn strict(&self) -> CpuSet {
        self.strict
    }

    /// Nobody is owed anything on a CPU: what was before does not matter any more.
    pub(crate) fn rest(&mut self, cpu: CpuId) {
        if self.is_left_over(cpu) {
            self.strict.remove(cpu);
        }
    }

    /// Whether a CPU is strict although nobody is split there now.
    pub(crate) fn is_left_over(&self, cpu: CpuId) -> bool {
        let is_here = |(_, parts): &(Span, Vec<Part>)| parts.iter().any(|part| part.cpu == cpu);
        self.strict.contains(cpu) && !self.split.iter().any(is_here)
    }

    /// Somebody is split, with such a period; `promise` is told what that takes of which CPU.
    pub(crate) fn insert(
        &mut self,
        (vcpu, period, parts): (VcpuId, Span, &[Part]),
        promise: impl FnMut(CpuId, Reservation),
    ) {
        self.strict.extend(parts.iter().map(|part| part.cpu));
        self.each_rate(period, parts, promise);
        self.split.insert(vcpu, (period, parts.to_vec()));
    }

    /// Somebody is not split any more: the parts that it had, of which `give_back` is told as
    /// `promise` was.
    pub(crate) fn remove(
        &mut self,
        vcpu: VcpuId,
        give_back: impl FnMut(CpuId, Reservation),
    ) -> Vec<Part> {
        let Some((period, parts)) = self.split.remove(vcpu) else { return Vec::new() };
        self.each_rate(period, &parts, give_back);
        parts
    }

    fn each_rate(&self, period: Span, parts: &[Part], mut told: impl FnMut(CpuId, Reservation)) {
        for part in parts {
            let rate = Reservation::new(part.job(period, self.looks).time, period);
            told(part.cpu, rate.expect("a part is something, and no longer than a period"));
        }
    }

    /// Whether a CPU on which somebody is split takes another one as a whole.
    pub(crate) fn takes_whole(&self, cpu: CpuId, asked: Reservation, among: Among<'_>) -> bool {
        let (slice, period) = (asked.slice(), asked.period());
        let job = Job { time: self.looks.with(slice, period), within: period, period };
        among.takes(cpu, Demanded { owed: None, next: among.wait, job }, self.capacity)
    }

    /// The parts of somebody who asks for this.
    pub(crate) fn split(&self, asked: Reservation, among: Among<'_>) -> Option<Vec<Part>> {
        let search = self.search(asked.period(), among);
        let plan = search.plans().find(|plan| plan.most >= asked.slice())?;
        Some(search.even(&plan, asked).unwrap_or_else(|| cut(&plan.parts, asked)))
    }

    /// The parts of somebody who is split and asks for no more than it has: those that it has.
    pub(crate) fn keep(
        &self,
        (share, parts): (Reservation, &[Part]),
        asked: Reservation,
        among: Among<'_>,
    ) -> Option<Vec<Part>> {
        let is_less = asked.period() == share.period() && asked.slice() <= share.slice();
        let parts = if is_less { cut(parts, asked) } else { Vec::new() };
        let search = self.search(asked.period(), among);
        let can = |part: &Part| among.allowed.contains(part.cpu) && search.takes(part);
        (!parts.is_empty() && parts.iter().all(can)).then_some(parts)
    }

    /// The longest slice that is admitted in parts, or as a whole where somebody is split.
    pub(crate) fn room(&self, period: Span, among: Among<'_>) -> Span {
        let whole = |cpu| longest_slice(period, |asked| self.takes_whole(cpu, asked, among));
        let whole = among.allowed.and(&self.strict).iter().map(whole).max().unwrap_or(Span::ZERO);
        let search = self.search(period, among);
        search.plans().map(|plan| plan.most).fold(whole, Span::max)
    }

    fn search<'a>(&self, period: Span, among: Among<'a>) -> Search<'a> {
        Search { among, capacity: self.capacity, looks: self.looks, period }
    }
}

/// The first of some parts, as much as comes to a slice; the last of them has time until the period
/// is over.
fn cut(parts: &[Part], asked: Reservation) -> Vec<Part> {
    let (mut left, mut taken) = (asked.slice(), Vec::new());
    for part in parts {
        let slice = part.slice.min(left);
        left -= slice;
        taken.push(Part { slice, ..*part });
        if left.is_zero() {
            break;
        }
    }
    if let Some(last) = taken.last_mut() {
        last.ends = asked.period();
    }
    taken
}

/// A search for parts.
struct Search<'a> {
    among: Among<'a>,
    capacity: CpuShare,
    looks: Looks,
    period: Span,
}

/// Parts that each end when the next one begins.
#[derive(Clone, Debug, Default)]
struct Beginning {
    parts: Vec<Part>,
    /// What they come to.
    slice: Span,
    ends: Span,
}

/// Parts, the last of them as long as can be.
#[derive(Clone, Debug)]
struct Plan {
    parts: Vec<Part>,
    /// What they come to: whoever asks for less can be split so.
    most: Span,
}

/// How many parts there are at the most: each of them is one move more in every period.
const PARTS: usize = 4;

/// How many CPUs are looked at: those with most room.
const CPUS: usize = 8;

/// How many beginnings are made longer.
const BEGINNINGS: usize = 4;

/// A part that is shorter is not worth a move.
const LEAST: Span = Span::from_us(10);

/// What each CPU on which somebody is split keeps free at the least: nearly full it would take for
/// ever to find out whether all deadlines are met.
const KEPT: CpuShare = CpuShare::from_ppm(1_000);

impl Search<'_> {
    /// All plans that are worth a look, those with fewer parts first, and of those the tightest.
    /// They do not depend on what is asked for.
    fn plans(&self) -> impl Iterator<Item = Plan> {
        let Among { demands, allowed, .. } = self.among;
        let bound = |cpu: &CpuId| Some(demands.get(cpu.index())?.as_ref()?.bound());
        let mut cpus: Vec<CpuId> = allowed.iter().filter(|cpu| bound(cpu).is_some()).collect();
        cpus.sort_by_key(|cpu| (bound(cpu), *cpu));
        cpus.truncate(CPUS);
        let mut beginnings = alloc::vec![Beginning::default()];
        (2..=PARTS.min(cpus.len())).flat_map(move |_| {
            beginnings = each(&beginnings, &cpus, |beginning, cpu| self.longer(beginning, cpu));
            let mut plans = each(&beginnings, &cpus, |beginning, cpu| self.plan(beginning, cpu));
            beginnings.sort_by_key(|beginning| core::cmp::Reverse(beginning.slice));
            beginnings.truncate(BEGINNINGS);
            plans.sort_by_key(|plan| plan.most);
            plans
        })
    }

    /// One part more, which comes before all others on its CPU and is as long as can be.
    fn longer(&self, beginning: &Beginning, cpu: CpuId) -> Option<Beginning> {
        let begins = beginning.ends;
        let part =
            |slice| Part { cpu, slice, begins, ends: begins + self.looks.with(slice, self.period) };
        let longest = longest_slice(self.period, |slice| {
            let part = part(slice.slice());
            part.ends < self.period && self.takes(&part)
        });
        (longest >= LEAST).then(|| beginning.with(part(longest)))
    }

    /// The last part, as long as can be.
    fn plan(&self, beginning: &Beginning, cpu: CpuId) -> Option<Plan> {
        let part = |slice| Part { cpu, slice, begins: beginning.ends, ends: self.period };
        let longest = longest_slice(self.period, |slice| {
            let part = part(slice.slice());
            self.looks.fits(part.slice, part.ends - part.begins) && self.takes(&part)
        });
        let Beginning { parts, slice: most, .. } = beginning.with(part(longest));
        (!longest.is_zero()).then_some(Plan { parts, most })
    }

    /// What a plan has beyond what is asked for is left to all of its CPUs alike, where that can be
    /// done: a machine that is late somewhere has some room there.
    fn even(&self, plan: &Plan, asked: Reservation) -> Option<Vec<Part>> {
        let left = (plan.most - asked.slice()) / plan.parts.len() as u64;
        let (last, others) = plan.parts.split_last()?;
        let mut even = Beginning::default();
        for part in others {
            let slice = part.slice.left_after(left);
            let ends = even.ends + self.looks.with(slice, self.period);
            even = even.with(Part { slice, begins: even.ends, ends, ..*part });
        }
        let slice = asked.slice().left_after(even.slice);
        let last = Part { slice, begins: even.ends, ends: self.period, ..*last };
        let parts = even.with(last).parts;
        let fits = |part: &Part| {
            part.slice >= LEAST
                && self.looks.fits(part.slice, part.ends.left_after(part.begins))
                && self.takes(part)
        };
        parts.iter().all(fits).then_some(parts)
    }

    /// Whether a part can be taken on where it is.
    fn takes(&self, part: &Part) -> bool {
        let job = part.job(self.period, self.looks);
        let more = Demanded { owed: None, next: self.among.wait + part.begins, job };
        self.among.takes(part.cpu, more, self.capacity)
    }
}

impl Beginning {
    fn with(&self, part: Part) -> Beginning {
        let mut parts = self.parts.clone();
        parts.push(part);
        Beginning { parts, slice: self.slice + part.slice, ends: part.ends }
    }
}

/// What comes of each beginning with each CPU that is not in it yet.
fn each<T>(
    beginnings: &[Beginning],
    cpus: &[CpuId],
    with: impl Fn(&Beginning, CpuId) -> Option<T>,
) -> Vec<T> {
    let pairs =
        beginnings.iter().flat_map(|beginning| cpus.iter().map(move |cpu| (beginning, *cpu)));
    let is_new = |(beginning, cpu): &(&Beginning, CpuId)| {
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
    use crate::{Given, Topology, Trial, Values, find};

    /// Numbers from a seed (SplitMix64: Steele, Lea and Flood, 2014).
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

    /// Reservations that come to so much of so many CPUs, in millionths of one.
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
        let given = [("place", Given::Text(place)), ("reserve", Given::Text("0cpu"))];
        let values = Values::read(spec.policy_fields, given.into_iter()).unwrap();
        let mut trial = Trial::new(spec, &values, &Topology::flat(cpus));
        (0..).zip(set).all(|(slot, share)| {
            let text = [share.slice(), share.period()].map(|span| alloc::format!("{span}"));
            let given =
                ["slice", "period"].into_iter().zip(text.iter().map(|text| Given::Text(text)));
            let share = Values::read(spec.share_fields, given).unwrap();
            trial.join(VcpuId::new(slot, DomId::new(slot), 0), &share, None).is_ok()
        })
    }

    /// Periods of 5 to 100 ms, and all but a twentieth of all CPUs promised: how many of 200 sets
    /// are admitted by spreading and by splitting.
    #[test]
    fn nearly_all_sets_are_admitted_that_load_the_cpus_to_95_percent() {
        const SETS: usize = 200;
        for (policy, cpus, seed, expected) in [
            ("edf", 4_usize, 17, [143, 200]),
            ("edf", 8, 18, [61, 200]),
            ("sedf", 4, 17, [143, 200]),
            // The last in one set is shorter than 5 us.
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

    /// Three of 0.6 of a CPU on two, each of which keeps a tenth: 3 ms here, then 3 ms there.
    #[test]
    fn who_fits_nowhere_begins_on_one_cpu_and_ends_on_another() {
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

    /// What it sleeps it loses, as far as it would have run: else the one beside it were late.
    #[test]
    fn who_is_split_and_sleeps_goes_on_where_it_would_be() {
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
    fn a_refusal_says_what_there_is_and_what_would_fit() {
        for policy in ["edf", "sedf"] {
            let spec = find(policy).unwrap();
            let values =
                Values::read(spec.policy_fields, [("place", Given::Text("split"))].into_iter());
            let mut trial = Trial::new(spec, &values.unwrap(), &Topology::flat(2));
            let share = |slice| {
                let given = [("slice", Given::Text(slice)), ("period", Given::Text("10ms"))];
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
