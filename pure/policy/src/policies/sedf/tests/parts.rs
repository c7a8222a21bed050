//! Tests of placement, and of vCPUs that are split over two CPUs.

use alloc::vec::Vec;
use std::string::ToString;

use slackline_units::{CpuId, CpuSet, DomId, Span, VcpuId};

use super::{ms, values};
use crate::policies::sedf::{SPEC, Sedf, rules};
use crate::{AdmitError, Moment, Pick, Policy, TimesliceEnd, Topology, Values};

/// A policy and a host with two CPUs, driven step by step.
struct Host {
    sedf: Sedf,
    at: Moment,
}

const SIX: &str = "slice=6ms period=10ms extra=false";

impl Host {
    fn new(words: &str) -> Host {
        let sedf = Sedf::new(&values(SPEC.policy_fields, words), &Topology::flat(2));
        Host { sedf, at: Moment::at_start(2) }
    }

    /// Creates three runnable vCPUs with 6 of 10 ms each on two CPUs. The third vCPU is split over
    /// both CPUs. No CPU has made a scheduling pass yet.
    fn of_three() -> (Host, [VcpuId; 3]) {
        let mut host = Host::new("place=split");
        let vcpus = [0, 1, 2].map(|slot| host.join(slot, SIX).unwrap());
        vcpus.iter().for_each(|&vcpu| host.wake(vcpu));
        (host, vcpus)
    }

    fn join(&mut self, slot: u32, share: &str) -> Result<VcpuId, AdmitError> {
        let vcpu = VcpuId::new(slot, DomId::new(slot), 0);
        self.at.join(vcpu);
        let admitted = self.sedf.admit(&self.at, vcpu, &values(SPEC.share_fields, share));
        admitted.inspect_err(|_| self.at.leave(vcpu)).map(|()| vcpu)
    }

    fn wake(&mut self, vcpu: VcpuId) {
        self.at.set_awake(vcpu, true);
        self.sedf.on_wake(&self.at, vcpu);
    }

    fn leave(&mut self, vcpu: VcpuId) {
        self.at.leave(vcpu);
        self.sedf.on_leave(&self.at, vcpu);
    }

    /// Makes a scheduling pass of a CPU and starts the vCPU that it chose. Returns that vCPU with
    /// its limit, and the CPUs to reschedule.
    fn ask(&mut self, cpu: CpuId) -> (Option<(VcpuId, Span)>, CpuSet) {
        let cpus = self.sedf.prepare_pick(&self.at, cpu);
        let Pick::Run { vcpu, limit: Some(limit), .. } = self.sedf.pick(&self.at, cpu) else {
            self.at.vacate(cpu);
            return (None, cpus);
        };
        self.at.occupy(cpu, vcpu);
        self.sedf.on_start(&self.at, vcpu);
        (Some((vcpu, limit)), cpus)
    }

    /// Runs the current vCPU of a CPU for `ran` and ends its run interval.
    fn runs(&mut self, cpu: CpuId, ran: Span) {
        let vcpu = self.at.occupant(cpu).expect("the CPU runs a vCPU");
        self.at.advance(self.at.now().after(ran));
        self.sedf.charge(&self.at, vcpu, ran);
        self.sedf.on_timeslice_end(&self.at, vcpu, TimesliceEnd::Limit);
    }

    fn here(&self, vcpu: VcpuId) -> CpuId {
        self.sedf.servers[vcpu].cpu
    }

    fn shows(&self, vcpu: VcpuId, row: &str) -> Option<alloc::string::String> {
        let account = self.sedf.account(vcpu);
        account.into_iter().find(|(name, _)| *name == row).map(|(_, text)| text)
    }

    fn left_over(&self) -> [bool; 2] {
        let parting = self.sedf.parting.as_ref().expect("place=split allows split vCPUs");
        [0, 1].map(|cpu| parting.splits.is_left_over(CpuId::new(cpu)))
    }

    fn room(&self) -> Span {
        self.sedf.available_slice(&self.at, Span::from_ms(10), CpuSet::first_n(2)).unwrap()
    }
}

/// After its subtask on the first CPU the vCPU continues on the second CPU, as soon as it has left
/// the first CPU. After its slice is exhausted it waits on the first CPU.
#[test]
fn sedf_split_vcpu_migrates_to_second_cpu_after_first_subtask() {
    let (mut host, [.., whole, split]) = Host::of_three();
    assert_eq!(host.shows(split, "split").as_deref(), Some("3ms on cpu0, then 3ms on cpu1"));
    let [first, second] = [0, 1].map(CpuId::new);
    assert_eq!(host.ask(first).0, Some((split, Span::from_ms(3))));
    assert_eq!(host.ask(second).0, Some((whole, Span::from_ms(6))));
    host.runs(first, Span::from_ms(3));
    host.sedf.charge(&host.at, whole, Span::from_ms(3));
    let (next, asked) = host.ask(first);
    assert!(next.is_some_and(|(next, _)| next != split));
    assert_eq!(asked, CpuSet::one(second));
    assert_eq!(host.ask(second).0, Some((whole, Span::from_ms(3))));
    host.runs(second, Span::from_ms(3));
    assert_eq!(host.ask(second).0, Some((split, Span::from_ms(3))));
    host.runs(second, Span::from_ms(3));
    assert_eq!(host.here(split), second, "the timeslice is settled at the next pass");
    assert_eq!(host.ask(second), (None, CpuSet::one(first)));
    assert_eq!(host.here(split), first);
}

/// The host keeps the vCPU from running in its first subtask. At the deadline of that subtask the
/// vCPU continues on the second CPU with all of its remaining budget.
#[test]
fn sedf_split_vcpu_kept_from_running_migrates_at_subtask_deadline() {
    let (mut host, [.., split]) = Host::of_three();
    let [first, second] = [0, 1].map(CpuId::new);
    host.at.set_barred(split, true);
    assert!(host.ask(first).0.is_some_and(|(vcpu, _)| vcpu != split));
    assert_eq!(host.sedf.next_timer(first), Some(ms(3)));
    host.runs(first, Span::from_ms(3));
    host.at.set_barred(split, false);
    host.sedf.on_timer(&host.at, first);
    assert_eq!(host.ask(first).1, CpuSet::one(second));
    assert_eq!(host.here(split), second);
    assert_eq!(host.sedf.servers[split].left_here(Span::from_ms(6)), Span::from_ms(6));
}

/// Other vCPUs can still be tardy because of CPU time that the split vCPU used, until the CPU is
/// quiescent.
#[test]
fn sedf_keeps_demand_test_until_quiescence_after_split_vcpu_leaves() {
    let (mut host, [one, _, split]) = Host::of_three();
    assert_eq!(host.left_over(), [false, false]);
    host.leave(split);
    assert_eq!(host.left_over(), [true, true]);
    let here = host.here(one);
    host.ask(here);
    host.runs(here, Span::from_ms(6));
    host.ask(here);
    let late = host.join(3, "slice=1ms period=10ms").unwrap();
    host.wake(late);
    assert_eq!(host.left_over(), [0, 1].map(|cpu| CpuId::new(cpu) != here));
}

/// A split vCPU with 6 of 10 ms used 3 ms within 3 ms, while others waited. That is 1.2 ms above
/// the fluid rate. It leaves and rejoins, and the 1.2 ms are deducted.
#[test]
fn sedf_excess_cpu_time_of_rejoining_split_vcpu_is_deducted() {
    let (mut host, [.., split]) = Host::of_three();
    let first = host.here(split);
    host.ask(first);
    host.runs(first, Span::from_ms(3));
    host.at.vacate(first);
    host.leave(split);
    let back = host.join(2, "slice=2ms period=10ms").unwrap();
    assert_eq!(host.shows(back, "used").as_deref(), Some("1.2ms"));
}

/// Two vCPUs have received nothing of 6 ms, and 6 ms are left until their deadlines. A subtask
/// would make one of them tardy, so it is refused. At time zero the subtask fits. It also fits
/// after the two vCPUs have received CPU time, whether that has been charged or not.
#[test]
fn sedf_subtask_that_would_make_another_vcpu_tardy_is_refused() {
    for (now, runs, has_room) in [(0, false, true), (4, false, false), (4, true, true)] {
        let mut host = Host::new("place=split");
        for slot in [0, 1] {
            let vcpu = host.join(slot, SIX).unwrap();
            host.wake(vcpu);
        }
        let cpus = [0, 1].map(CpuId::new);
        for cpu in cpus {
            host.ask(cpu);
        }
        host.at.advance(ms(now));
        for cpu in cpus.into_iter().filter(|_| runs) {
            let vcpu = host.at.occupant(cpu).unwrap();
            host.sedf.charge(&host.at, vcpu, Span::from_ms(now));
        }
        let room = host.room();
        assert_eq!(room >= Span::from_ms(6), has_room, "{room} at {now} ms");
    }
}

/// vCPUs with a weight take all of a CPU that reservations leave, so no subtask fits beside them.
#[test]
fn sedf_splits_no_vcpu_onto_a_cpu_with_weighted_vcpus() {
    let mut host = Host::new("place=split");
    host.join(0, SIX).unwrap();
    host.join(1, SIX).unwrap();
    let weighted = host.join(2, "weight=1").unwrap();
    assert!(host.join(3, SIX).is_err());
    host.leave(weighted);
    let split = host.join(3, SIX).unwrap();
    assert_eq!(host.sedf.servers[split].in_parts.as_ref().unwrap().cpus(), CpuSet::first_n(2));
    assert_eq!(
        host.join(2, "weight=1").unwrap_err().to_string(),
        "1ns every 100ms (under 0.000001cpu) does not fit, whole or split: 1.8cpu of at most \
         1.9cpu is already reserved on 2 CPUs"
    );
    host.join(2, "").expect("best effort is never refused");
}

/// Split vCPUs cannot reserve the share of CPU 0 that is kept for balancing. After they have taken
/// all other capacity, a service vCPU (charged for balancing) is still admitted.
#[test]
fn sedf_split_vcpus_cannot_reserve_the_balancer_slice() {
    let mut host = Host::new("place=split reserve=0cpu balancer=repaired balancer-slice=2ms");
    for slot in 0..2 {
        host.join(slot, SIX).unwrap();
    }
    for slot in 2..20 {
        let room = host.room();
        if room.is_zero() {
            break;
        }
        host.join(slot, &alloc::format!("slice={room} period=10ms")).unwrap();
    }
    let payer = VcpuId::new(20, DomId::new(20), 0);
    host.at.join(payer);
    host.at.allow(payer, CpuSet::one(CpuId::new(0)));
    let share = values(SPEC.share_fields, "slice=2ms period=50ms extra=false balances=true");
    assert_eq!(host.sedf.admit(&host.at, payer, &share), Ok(()));
}

/// The third slice goes to the first CPU with enough capacity (`pack`), or to the CPU with the most
/// capacity. A best-effort vCPU always goes to the CPU where it gets the most slack.
#[test]
fn sedf_place_field_affects_slices_but_not_best_effort_vcpus() {
    for (place, cpus) in [("spread", [0, 1, 0, 1]), ("pack", [0, 0, 0, 1]), ("split", [0, 1, 0, 1])]
    {
        let mut host = Host::new(&alloc::format!("place={place}"));
        let shares = ["slice=3ms period=10ms"; 3].into_iter().chain([""]);
        let vcpus: Vec<_> =
            (0..).zip(shares).map(|(slot, share)| host.join(slot, share).unwrap()).collect();
        let homes: Vec<_> = vcpus.iter().map(|&vcpu| host.here(vcpu).index()).collect();
        assert_eq!(homes, cpus, "{place}");
    }
}

/// Packing needs admission control, and splitting also needs periods that do not move.
#[test]
fn sedf_place_value_that_conflicts_with_another_field_is_refused() {
    let refused = |words: &str| {
        let values = Values::read_written(SPEC.policy_fields, words).unwrap();
        (SPEC.conflict)(&values).map(|error| (error.to_string(), error.hint().unwrap()))
    };
    let says = |said: &str, hint: &str| Some((said.to_string(), hint.to_string()));
    for fine in ["", "place=split", "place=pack unblocking=burst", "rules=thesis place=spread"] {
        assert_eq!(refused(fine), None, "{fine}");
    }
    assert_eq!(
        refused("rules=xen-3.0.3 unblocking=proportional place=split"),
        says(
            "`place = \"split\"` needs admission = \"exact\", first-period = \"at-once\"",
            "add admission = \"exact\", first-period = \"at-once\", or write place = \"spread\"",
        )
    );
    assert_eq!(
        refused("place=split unblocking=isochronous"),
        says(
            "`place = \"split\"` needs unblocking = \"proportional\"",
            "add unblocking = \"proportional\", or write place = \"spread\"",
        )
    );
    assert!(refused("rules=thesis place=pack").is_some());
    // A policy that is built with these values nevertheless ignores `place`.
    let said = values(SPEC.policy_fields, "place=split unblocking=isochronous");
    assert_eq!(rules::SedfRules::read(&said).packing, crate::admission::placement::Packing::Spread);
}
