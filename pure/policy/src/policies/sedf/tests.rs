//! Tests of amounts, late timers and changes of parameters, which drawn timelines (`pictures`)
//! cannot show.

mod balancer;
mod parts;

use std::string::{String, ToString};

use slackline_units::{CpuId, CpuSet, DomId, Span, Time, VcpuId};

use super::SPEC;
use crate::{
    AdmitError, Entitlement, Moment, Pick, Policy, RawValue, TimesliceEnd, Topology, Values,
};

/// A policy and a host with one CPU, driven step by step to test late timers and share changes.
struct Script {
    policy: Box<dyn Policy>,
    at: Moment,
}

const CPU: CpuId = CpuId::new(0);

fn values<'a>(fields: &'static [crate::Field], words: &'a str) -> Values {
    let given = words.split_whitespace().map(|word: &'a str| {
        let (name, value) = word.split_once('=').expect("each word is name=value");
        let given = match value {
            "true" | "false" => RawValue::Flag(value == "true"),
            _ if value.parse::<i64>().is_ok() => RawValue::Number(value),
            _ => RawValue::Text(value),
        };
        (name, given)
    });
    Values::read(fields, given).unwrap()
}

impl Script {
    fn new(words: &str) -> Script {
        let policy = (SPEC.build)(&values(SPEC.policy_fields, words), &Topology::flat(1));
        Script { policy, at: Moment::at_start(1) }
    }

    fn join(&mut self, slot: u32, share: &str) -> Result<VcpuId, AdmitError> {
        let vcpu = VcpuId::new(slot, DomId::new(slot), 0);
        self.at.join(vcpu);
        self.policy.admit(&self.at, vcpu, &values(SPEC.share_fields, share))?;
        Ok(vcpu)
    }

    fn change(&mut self, vcpu: VcpuId, share: &str) {
        self.policy.adjust(&self.at, vcpu, &values(SPEC.share_fields, share)).unwrap();
    }

    fn wake(&mut self, vcpu: VcpuId) {
        self.at.set_awake(vcpu, true);
        self.policy.on_wake(&self.at, vcpu);
        self.dispatch();
    }

    fn block(&mut self, vcpu: VcpuId) {
        self.at.set_awake(vcpu, false);
        self.at.vacate(CPU);
        self.policy.on_block(&self.at, vcpu);
        self.dispatch();
    }

    /// Runs the current vCPU until `until`, even beyond its limit, and ends its run interval.
    fn run(&mut self, until: Time) {
        let ran = until - self.at.now();
        self.at.advance(until);
        match self.at.occupant(CPU) {
            Some(vcpu) => {
                self.policy.charge(&self.at, vcpu, ran);
                self.policy.on_timeslice_end(&self.at, vcpu, TimesliceEnd::Limit);
            }
            None => {
                self.policy.on_timer(&self.at, CPU);
            }
        }
        self.dispatch();
    }

    fn dispatch(&mut self) {
        self.policy.prepare_pick(&self.at, CPU);
        match self.policy.pick(&self.at, CPU) {
            Pick::Run { vcpu, .. } => {
                self.at.occupy(CPU, vcpu);
            }
            Pick::Idle => self.at.vacate(CPU),
        }
    }

    /// Returns the slot of the vCPU to run, its limit and its entitlement.
    fn turn(&self) -> (Option<usize>, Option<Span>, Entitlement) {
        match self.policy.pick(&self.at, CPU) {
            Pick::Run { vcpu, limit, entitlement } => (Some(vcpu.slot()), limit, entitlement),
            Pick::Idle => (None, None, Entitlement::Spare),
        }
    }

    /// Returns the slack that each of two vCPUs received over a number of timeslices, in ns.
    fn spare(&mut self, turns: u32) -> [u64; 2] {
        let mut spare = [0, 0];
        for _ in 0..turns {
            let (who, limit, right) = self.turn();
            let limit = limit.expect("each timeslice has a limit");
            if let (Some(slot), Entitlement::Spare) = (who, right) {
                spare[slot] += limit.ns();
            }
            self.run(self.at.now().after(limit));
        }
        spare
    }

    fn shows(&self, vcpu: VcpuId, row: &str) -> String {
        let account = self.policy.account(vcpu);
        let found = account.into_iter().find(|(name, _)| *name == row);
        found.map(|(_, text)| text).unwrap()
    }
}

fn ms(ms: u64) -> Time {
    Time::START + Span::from_ms(ms)
}

/// Reference on SEDF, §13.7: 65 of 100 ms are left for vCPUs with a weight.
#[test]
fn sedf_unreserved_time_is_divided_into_slices_by_weight() {
    let mut script = Script::new("");
    script.join(0, "slice=3ms period=10ms").unwrap();
    let weighted: Vec<VcpuId> = [(1, "weight=2"), (2, "weight=7"), (3, "weight=3")]
        .into_iter()
        .map(|(slot, share)| script.join(slot, share).unwrap())
        .collect();
    let slices: Vec<String> = weighted.iter().map(|&vcpu| script.shows(vcpu, "slice")).collect();
    assert_eq!(slices, ["10.833333ms", "37.916666ms", "16.25ms"]);
    script.policy.on_leave(&script.at, weighted[1]);
    assert_eq!(script.shows(weighted[0], "slice"), "26ms");
}

/// A run interval overruns by 1 ms. The next slice is 1 ms shorter, unless the vCPU received slack
/// in between.
#[test]
fn sedf_overrun_field_decides_if_slack_received_cancels_an_overrun() {
    for (overrun, next) in [("carried", 1), ("forgiven", 2)] {
        let rules = format!("first-period=at-once overrun={overrun}");
        let mut script = Script::new(&rules);
        let vcpu = script.join(0, "slice=2ms period=10ms").unwrap();
        script.wake(vcpu);
        assert_eq!(script.turn(), (Some(0), Some(Span::from_ms(2)), Entitlement::Due));
        script.run(ms(3));
        assert_eq!(script.turn(), (Some(0), Some(Span::from_us(500)), Entitlement::Spare));
        script.run(ms(10));
        assert_eq!(
            script.turn(),
            (Some(0), Some(Span::from_ms(next)), Entitlement::Due),
            "{overrun}"
        );
    }
}

/// A vCPU with a hard limit repays its overrun under Xen's rules too.
#[test]
fn sedf_hard_limited_vcpu_overrun_is_deducted_under_xen_rules() {
    let mut script = Script::new("rules=xen-3.0.3 first-period=at-once");
    let vcpu = script.join(0, "slice=2ms period=10ms extra=false").unwrap();
    script.wake(vcpu);
    script.run(ms(3));
    script.run(ms(10));
    assert_eq!(script.turn(), (Some(0), Some(Span::from_ms(1)), Entitlement::Due));
}

/// A best-effort vCPU waits for 345 ms, because another vCPU has reserved the whole CPU. During the
/// wait, three periods of the best-effort vCPU end. Depending on the field `catch-up`, one
/// scheduling pass skips all three periods, or each pass skips one of them.
#[test]
fn sedf_catch_up_field_decides_how_many_periods_are_skipped() {
    for (rules, passes) in [("thesis", 2), ("xen-3.0.2", 0)] {
        let mut script = Script::new(&format!("rules={rules} first-period=at-once"));
        let hog = script.join(0, "slice=350ms period=350ms extra=false").unwrap();
        let other = script.join(1, "").unwrap();
        script.wake(hog);
        script.wake(other);
        script.at.advance(ms(345));
        script.policy.charge(&script.at, hog, Span::from_ms(345));
        script.block(hog);
        let mut idle = 0;
        while script.turn().0.is_none() {
            idle += 1;
            let alarm =
                script.policy.next_timer(CPU).expect("an idle CPU with a waiting vCPU has a timer");
            assert_eq!(alarm, script.at.now() + Span::from_us(500));
            script.run(alarm);
        }
        assert_eq!(idle, passes, "{rules}");
    }
}

/// A vCPU gives up a slice of 3/10 for an extra-weight. The slice is then free, or still counts as
/// reserved, depending on the field `old-reservation`.
#[test]
fn sedf_old_reservation_field_decides_if_removed_slice_stays_reserved() {
    for (old, slice) in [("forgotten", "95ms"), ("counted", "65ms")] {
        let mut script = Script::new(&format!("old-reservation={old}"));
        let first = script.join(0, "slice=3ms period=10ms").unwrap();
        let weighted = script.join(1, "weight=1").unwrap();
        assert_eq!(script.shows(weighted, "slice"), "65ms");
        script.change(first, "extra-weight=5");
        assert_eq!(script.shows(weighted, "slice"), slice, "{old}");
    }
}

#[test]
fn sedf_refuses_slices_beyond_one_cpu_only_with_admission_control() {
    let full = "slice=95ms period=100ms";
    let mut script = Script::new("rules=xen-3.0.3");
    assert!((0..9).all(|slot| script.join(slot, full).is_ok()));
    let mut script = Script::new("");
    script.join(0, full).unwrap();
    let says = |script: &mut Script, share| script.join(1, share).unwrap_err().to_string();
    assert_eq!(
        says(&mut script, "slice=10us period=10s"),
        "10us every 10s (0.000001cpu) does not fit: 0.95cpu of at most 0.95cpu is already \
         reserved on the CPU"
    );
    assert_eq!(says(&mut script, "extra=false"), "the slice is zero");
    assert_eq!(says(&mut script, "slice=4us"), "a slice of 4us is too short: the shortest is 5us");
    // Best effort is never refused. A weight is refused only if no capacity is left for it.
    script.join(2, "").unwrap();
    assert!(script.join(3, "weight=1").is_err());
}

/// In a run of a century with the largest weight, no score overflows, and slack is still divided by
/// weight. Rule sets that skip only one period per scheduling pass are not tested. They would need
/// too many passes to catch up with a century.
#[test]
fn sedf_slack_is_still_divided_by_weight_after_a_century() {
    let century = Span::from_secs(100 * 365 * 24 * 3_600);
    for rules in ["best", "xen-3.0.3", "xen-3.0.2"] {
        let mut script = Script::new(&format!("rules={rules} quantum=10us"));
        let light = script.join(0, "extra-weight=1").unwrap();
        let heavy = script.join(1, "extra-weight=32767").unwrap();
        let fine = script.join(2, "slice=5us period=10s").unwrap();
        for vcpu in [light, heavy, fine] {
            script.wake(vcpu);
        }
        for step in 1..=40 {
            script.run(Time::START + (century / 40) * step);
        }
        script.block(fine);
        script.run(Time::START + century + Span::from_secs(1));
        script.wake(fine);
        let mut quanta = [0; 3];
        for step in 1..=2_000 {
            let now = Time::START + century + Span::from_secs(2) + Span::from_us(10) * step;
            script.run(now);
            if let (Some(slot), _, Entitlement::Spare) = script.turn() {
                quanta[slot] += 1;
            }
        }
        assert!(quanta[1] > 1_000 * quanta[0], "{rules}: {quanta:?}");
    }
}

/// A vCPU receives a century of slack in one step. Then a vCPU with 1/32767 of its weight wakes.
/// The heavier vCPU waits, and the lighter vCPU gets the next thousand quanta of slack.
#[test]
fn sedf_vcpu_with_century_of_slack_waits_for_lighter_vcpu() {
    let century = Time::START + Span::from_secs(100 * 365 * 24 * 3_600);
    let mut script = Script::new("rules=best quantum=10us");
    let heavy = script.join(0, "extra-weight=32767").unwrap();
    let light = script.join(1, "extra-weight=1").unwrap();
    script.wake(heavy);
    script.run(century);
    script.wake(light);
    for step in 1..=1_000 {
        script.run(century + Span::from_us(10) * step);
        assert_eq!(script.turn().0, Some(1), "after {step} quanta");
    }
}

/// With equal scores the vCPU that woke first gets slack first, whatever its number.
#[test]
fn sedf_vcpus_with_equal_slack_scores_run_in_wake_order() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let mut script = Script::new("");
        let hog = script.join(3, "slice=1ms period=10ms extra=false").unwrap();
        let vcpus = [0, 1, 2].map(|slot| script.join(slot, "").unwrap());
        script.wake(hog);
        order.iter().for_each(|&slot| script.wake(vcpus[slot]));
        let turns = [(); 3].map(|()| {
            let (_, limit, _) = script.turn();
            script.run(script.at.now().after(limit.unwrap()));
            script.turn().0.unwrap()
        });
        assert_eq!(turns, order);
    }
}

#[test]
fn sedf_vcpu_picked_after_timeslice_end_gets_time_limit_zero() {
    let mut script = Script::new("rules=xen-3.0.3");
    let vcpu = script.join(0, "").unwrap();
    script.wake(vcpu);
    let Pick::Run { limit: Some(limit), .. } = script.policy.pick(&script.at, CPU) else {
        panic!("the only vCPU is picked with a limit");
    };
    script.at.advance(script.at.now().after(limit));
    script.policy.charge(&script.at, vcpu, limit);
    let pick = script.policy.pick(&script.at, CPU);
    assert!(matches!(pick, Pick::Run { limit: Some(Span::ZERO), .. }), "{pick:?}");
}

/// A vCPU has a slice of 2 of 10 ms, or a weight that gives it 95 of 100 ms, beside a best-effort
/// vCPU. By slice/period it gets 25.6 or 121.6 times as much slack as the best-effort vCPU. It gets
/// the same amount if both count as extra-weight 1. In Xen a fixed slice counts by slice/period
/// (reference on SEDF, §13.5).
#[test]
fn sedf_slack_share_field_decides_if_share_counts_as_weight() {
    let (set, by_weight) = ("slice=2ms period=10ms", "weight=1");
    for (rules, share, parts) in [
        ("rules=best", set, 25),
        ("rules=thesis", set, 25),
        ("rules=xen-3.0.2", set, 25),
        ("rules=xen-3.0.3", set, 25),
        ("rules=best", by_weight, 121),
        ("rules=xen-3.0.3", by_weight, 1),
        ("rules=xen-3.0.3 slack-share=slice", by_weight, 121),
        ("rules=xen-3.0.3 slack-share=one", set, 1),
        ("rules=xen-3.0.3 slack-share=one", "slice=2ms period=10ms extra-weight=4", 4),
    ] {
        let mut script = Script::new(rules);
        let vcpus = [script.join(0, share).unwrap(), script.join(1, "").unwrap()];
        vcpus.iter().for_each(|&vcpu| script.wake(vcpu));
        let spare = script.spare(20_000);
        let error = spare[0].abs_diff(spare[1] * parts);
        assert!(error <= spare[0] / 20, "{rules}, {share}: {spare:?}");
    }
}

impl Script {
    /// Runs until `until` and handles each limit and each timer on the way.
    fn run_until(&mut self, until: Time) {
        while self.at.now() < until {
            let (now, limit) = (self.at.now(), self.turn().1.unwrap_or(Span::MAX));
            let alarm = self.policy.next_timer(CPU).unwrap_or(Time::NEVER);
            let next = now.after(limit).min(alarm).min(until);
            if self.at.occupant(CPU).is_some() && alarm == next {
                self.policy.on_timer(&self.at, CPU);
            }
            self.run(next);
        }
    }

    fn leave(&mut self, vcpu: VcpuId) {
        if self.at.occupant(CPU) == Some(vcpu) {
            self.at.vacate(CPU);
        }
        self.at.leave(vcpu);
        self.policy.on_leave(&self.at, vcpu);
        self.dispatch();
    }
}

/// Three vCPUs with a weight have slices of 25 ms in each 100 ms. Two of them leave after they have
/// used their slices. The slice of the third vCPU grows only when its next period begins. So a
/// fourth vCPU, which reserves 30 ms in each 150 ms, still receives its slice by its deadline.
#[test]
fn sedf_departing_weighted_vcpus_cause_no_deadline_miss() {
    let mut script = Script::new("");
    let slice = script.join(0, "slice=30ms period=150ms extra=false").unwrap();
    let weighted = [1, 2, 3].map(|slot| script.join(slot, "weight=1 extra=false").unwrap());
    weighted.iter().for_each(|&vcpu| script.wake(vcpu));
    script.wake(slice);
    script.run_until(ms(25));
    script.leave(weighted[0]);
    assert_eq!(script.shows(weighted[1], "slice"), "25ms");
    script.run_until(ms(50));
    script.leave(weighted[1]);
    script.run_until(ms(75));
    assert_eq!(script.turn(), (Some(0), Some(Span::from_ms(25)), Entitlement::Due));
    script.run_until(ms(100));
    // The excess has accrued by the time the next period begins.
    assert_eq!(script.shows(weighted[2], "slice"), "75ms");
    script.run_until(ms(149));
    assert_eq!(script.shows(slice, "deadline"), "in 300ms", "the slice was delivered");
}

/// vCPU A has a weight, and has used its slice of 50 ms in 100 ms when vCPU C joins with nearly all
/// of the weight. vCPU B reserves 67.5 ms in 150 ms and has received none of it yet. So C gets only
/// 1 ns as its slice in this period.
#[test]
fn sedf_newcomer_with_weight_receives_slice_from_next_period() {
    let mut script = Script::new("");
    let slice = script.join(0, "slice=67500us period=150ms extra=false").unwrap();
    let first = script.join(1, "weight=1 extra=false").unwrap();
    script.wake(first);
    script.wake(slice);
    script.run_until(ms(50));
    let second = script.join(2, "weight=32767 extra=false").unwrap();
    script.wake(second);
    assert_eq!(script.shows(second, "slice"), "1ns");
    script.run_until(ms(149));
    assert_eq!(script.shows(slice, "deadline"), "in 300ms", "the slice was delivered");
    assert_eq!(script.shows(first, "slice"), "1.525us", "shrunk since 100 ms");
    assert_eq!(script.shows(second, "slice"), "1ns", "its first period ends at 150 ms");
    script.run_until(ms(151));
    assert_eq!(script.shows(second, "slice"), "49.998474ms");
}

/// vCPU A reserves half of the CPU and uses its budget of 50 ms in the first 50 ms of its period.
/// vCPU B blocks at 60 ms with 10 ms of budget left. If B wakes before 70 ms, it still has some of
/// this budget. So if A leaves at 69 ms, the share of A stays reserved. From 70 ms on B has no
/// budget left, and the CPU is quiescent. If A leaves then, its share is free at once.
#[test]
fn sedf_departed_vcpu_share_stays_reserved_until_cpu_is_quiescent() {
    for (leaves, has_room) in [(69, false), (70, true)] {
        let mut script = Script::new("first-period=at-once");
        let leaver = script.join(0, "slice=50ms period=100ms extra=false").unwrap();
        script.wake(leaver);
        script.run_until(ms(50));
        let sleeper = script.join(1, "slice=20ms period=100ms extra=false").unwrap();
        script.wake(sleeper);
        script.run_until(ms(60));
        script.block(sleeper);
        script.run_until(ms(leaves));
        script.leave(leaver);
        let joins = script.join(2, "slice=75ms period=100ms extra=false").is_ok();
        assert_eq!(joins, has_room, "left at {leaves} ms");
    }
}

/// A vCPU uses its slice, 5 ms in 10 ms, in the first 5 ms. So it is 2.5 ms ahead of the fluid
/// rate, and stays so if its slice is removed and restored at that time.
#[test]
fn sedf_usage_is_remembered_if_slice_is_removed_and_restored() {
    for meanwhile in ["", "weight=1"] {
        let mut script = Script::new("");
        let vcpu = script.join(0, "slice=5ms period=10ms").unwrap();
        script.wake(vcpu);
        script.run_until(ms(5));
        script.change(vcpu, meanwhile);
        script.change(vcpu, "slice=5ms period=10ms");
        assert_eq!(script.shows(vcpu, "used"), "2.5ms", "{meanwhile}");
    }
}

/// A vCPU with 2 of 100 ms uses its slice at once, of which 1.96 ms exceed the fluid rate. A
/// smaller slice repays all of this excess: nine slices of 0.2 ms, and 0.16 ms of the tenth slice,
/// whose period ends at 1002 ms.
#[test]
fn sedf_small_slices_repay_excess_cpu_time_of_large_slice() {
    let (large, small) = ("slice=2ms period=100ms", "slice=200us period=100ms");
    for leaves in [false, true] {
        let mut script = Script::new("");
        let vcpu = script.join(0, large).unwrap();
        script.wake(vcpu);
        script.run_until(ms(2));
        let comes_back = |script: &mut Script, share| {
            script.at.vacate(CPU);
            script.at.leave(vcpu);
            script.policy.on_leave(&script.at, vcpu);
            script.join(0, share).unwrap();
        };
        if leaves {
            comes_back(&mut script, small);
        } else {
            script.change(vcpu, small);
        }
        assert_eq!(script.shows(vcpu, "used"), "160us");
        assert_eq!(script.shows(vcpu, "deadline"), "in 1.002s");
        comes_back(&mut script, "slice=5ms period=100ms");
        assert_eq!(script.shows(vcpu, "used"), "1.96ms");
    }
}

/// A vCPU is stopped late, after the next vCPU was chosen. It pays for the overrun from its next
/// slice or as slack, and the other vCPU keeps its full slice.
#[test]
fn sedf_overrun_from_late_enforcement_is_charged_to_overrunning_vcpu() {
    for (extra, row) in [(false, "used"), (true, "extra time")] {
        let share = alloc::format!("slice=2ms period=10ms extra={extra}");
        let mut script = Script::new("first-period=at-once");
        let vcpus = [0, 1].map(|slot| script.join(slot, &share).unwrap());
        vcpus.iter().for_each(|&vcpu| script.wake(vcpu));
        script.run(ms(2));
        assert_eq!(script.turn().0, Some(1));
        script.policy.charge(&script.at, vcpus[0], Span::from_us(40));
        assert_eq!(script.shows(vcpus[0], row), "40us");
        script.run(ms(3));
        script.policy.on_timeslice_end(&script.at, vcpus[1], TimesliceEnd::Limit);
        assert_eq!(script.shows(vcpus[1], "used"), "1ms");
    }
}

/// Two vCPUs of equal weight get half of 95 ms each, and both slices are exhausted. The CPU is
/// quiescent when one of them leaves, so a newcomer gets its part at once.
#[test]
fn sedf_departed_weighted_vcpu_frees_its_slice_on_quiescent_cpu() {
    let mut script = Script::new("");
    let weighted = [0, 1].map(|slot| script.join(slot, "weight=1 extra=false").unwrap());
    weighted.iter().for_each(|&vcpu| script.wake(vcpu));
    script.run_until(ms(95));
    script.leave(weighted[0]);
    let comes = script.join(2, "weight=1 extra=false").unwrap();
    assert_eq!(script.shows(comes, "slice"), "47.5ms");
}

/// A vCPU with a weight has all of the CPU and has used a part of it when a reservation arrives.
/// The slice of the vCPU with the weight shrinks at once to the time that the reservation leaves.
#[test]
fn sedf_weighted_vcpu_slice_shrinks_when_a_reservation_is_admitted() {
    let mut script = Script::new("");
    let weighted = script.join(0, "weight=1 extra=false").unwrap();
    script.wake(weighted);
    script.run_until(ms(10));
    assert_eq!(script.shows(weighted, "slice"), "95ms");
    script.join(1, "slice=50ms period=100ms extra=false").unwrap();
    assert_eq!(script.shows(weighted, "slice"), "45ms");
}

#[test]
fn sedf_slice_is_ignored_if_a_weight_is_given() {
    let mut script = Script::new("");
    let vcpu = script.join(0, "slice=3ms period=10ms weight=1").unwrap();
    assert_eq!(script.shows(vcpu, "slice"), "95ms");
    let mut script = Script::new("");
    let vcpu = script.join(0, "slice=3ms period=10ms").unwrap();
    assert_eq!(script.shows(vcpu, "slice"), "3ms");
}

/// Of all policies only `sedf` divides slack by weight.
#[test]
fn sedf_is_the_only_policy_that_divides_slack_by_weight() {
    for spec in crate::ALL {
        let policy = Values::defaults(spec.policy_fields).unwrap();
        let policy = (spec.build)(&policy, &Topology::flat(1));
        assert_eq!(policy.weighs_slack(), spec.name == SPEC.name, "{}", spec.name);
    }
}

/// On each of two CPUs a vCPU has exhausted its slice. The timer of each CPU is set for its own
/// vCPU.
#[test]
fn sedf_cpu_timer_ignores_periods_of_vcpus_on_other_cpus() {
    let mut at = Moment::at_start(2);
    let topology = Topology::flat(2);
    let fields = values(SPEC.policy_fields, "first-period=at-once");
    let mut policy = (SPEC.build)(&fields, &topology);
    let periods = ["slice=2ms period=10ms extra=false", "slice=2ms period=20ms extra=false"];
    for (slot, share) in (0..).zip(periods) {
        let vcpu = VcpuId::new(slot, DomId::new(slot), 0);
        let cpu = CpuId::new(vcpu.slot());
        at.join(vcpu);
        at.allow(vcpu, CpuSet::one(cpu));
        policy.admit(&at, vcpu, &values(SPEC.share_fields, share)).unwrap();
        at.set_awake(vcpu, true);
        policy.on_wake(&at, vcpu);
        policy.prepare_pick(&at, cpu);
        at.occupy(cpu, vcpu);
        policy.on_start(&at, vcpu);
    }
    at.advance(ms(2));
    for slot in 0..2 {
        let vcpu = VcpuId::new(slot, DomId::new(slot), 0);
        policy.charge(&at, vcpu, Span::from_ms(2));
        policy.on_timeslice_end(&at, vcpu, TimesliceEnd::Limit);
        policy.prepare_pick(&at, CpuId::new(vcpu.slot()));
    }
    assert_eq!([0, 1].map(|cpu| policy.next_timer(CpuId::new(cpu))), [Some(ms(10)), Some(ms(20))]);
}

/// A vCPU with a weight is placed beside another vCPU with a weight, where its slice is half of 95
/// ms. That is more than all of the 40 ms that a reservation leaves on the other CPU.
#[test]
fn sedf_vcpu_with_weight_is_placed_where_slice_is_largest() {
    let mut at = Moment::at_start(2);
    let mut policy = (SPEC.build)(&values(SPEC.policy_fields, ""), &Topology::flat(2));
    let both = CpuSet::first_n(2);
    let here = |cpu| CpuSet::one(CpuId::new(cpu));
    let joins = [("weight=1", here(0)), ("slice=55ms period=100ms", here(1)), ("weight=1", both)];
    for (slot, (share, cpus)) in (0..).zip(joins) {
        let vcpu = VcpuId::new(slot, DomId::new(slot), 0);
        at.join(vcpu);
        at.allow(vcpu, cpus);
        policy.admit(&at, vcpu, &values(SPEC.share_fields, share)).unwrap();
    }
    let last = policy.account(VcpuId::new(2, DomId::new(2), 0));
    assert!(last.contains(&("cpu", CPU.to_string())), "{last:?}");
}
