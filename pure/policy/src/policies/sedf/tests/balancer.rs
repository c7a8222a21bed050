//! Tests of the balancer: its accounting, its costs and the share kept for it.

use std::string::ToString;

use slackline_units::{CpuId, CpuSet, DomId, Span, VcpuId};

use super::{Script, ms, values};
use crate::balance::{Move, Weight};
use crate::policies::sedf::{SPEC, Sedf};
use crate::{Moment, Pick, Policy, TimesliceEnd, Topology};

/// A slice of half a CPU counts as much as an extra-weight of 64. So both vCPUs get equal slack,
/// and for a balancer their weights sum to 128. [balancer §5.1, N10]
#[test]
fn sedf_50_percent_slice_counts_as_extra_weight_64() {
    let shares = ["slice=10ms period=20ms", "extra-weight=64"];
    let mut script = Script::new("");
    let vcpus = [0, 1].map(|slot| script.join(slot, shares[slot as usize]).unwrap());
    vcpus.iter().for_each(|&vcpu| script.wake(vcpu));
    let spare = script.spare(4_000);
    assert!(spare[0].abs_diff(spare[1]) <= spare[0] / 100, "{spare:?}");

    let mut at = Moment::at_start(2);
    let fields = values(SPEC.policy_fields, "balancer=thesis");
    let mut sedf = Sedf::new(&fields, &Topology::flat(2));
    for (vcpu, share) in vcpus.into_iter().zip(shares) {
        at.join(vcpu);
        sedf.admit(&at, vcpu, &values(SPEC.share_fields, share)).unwrap();
        at.set_awake(vcpu, true);
        sedf.on_wake(&at, vcpu);
    }
    at.advance(ms(100));
    sedf.sample(&at, &vcpus);
    let balancer = sedf.balancer.take().unwrap();
    let loads = sedf.loads(&at, &balancer, &vcpus);
    let weight: u64 = loads.iter().map(|load| load.weight).sum();
    assert_eq!(weight, Weight::fraction(128, 1).units());
    // Only a vCPU without a slice may migrate.
    let members = loads.iter().flat_map(|load| &load.members).map(|member| member.vcpu);
    assert_eq!(members.collect::<Vec<_>>(), [vcpus[1]]);
}

/// No service vCPU reserves the cost of balancing, so CPU 0 keeps a slice free for balancing.
#[test]
fn sedf_admission_leaves_the_balancer_slice_unreserved_on_cpu_0() {
    let promised = |words: &str, cpu: usize| {
        let topology = Topology::flat(2);
        let mut policy = (SPEC.build)(&values(SPEC.policy_fields, words), &topology);
        let mut at = Moment::at_start(2);
        let vcpu = VcpuId::new(0, DomId::new(0), 0);
        let there = CpuSet::one(CpuId::new(cpu));
        at.join(vcpu);
        at.allow(vcpu, there);
        let room = policy.available_slice(&at, Span::from_ms(50), there).unwrap();
        let all = values(SPEC.share_fields, "slice=47500us period=50ms");
        (room, policy.admit(&at, vcpu, &all).map_err(|refused| refused.to_string()))
    };
    let all = (Span::from_us(47_500), Ok(()));
    assert_eq!(promised("balancer=none", 0), all);
    assert_eq!(promised("balancer=repaired balancer-slice=0ns", 0), all);
    assert_eq!(promised("balancer=repaired", 1), all);
    let refused = "47.5ms every 50ms (0.95cpu) does not fit: 0cpu of at most 0.948cpu is already \
                   reserved on the CPU";
    for balancer in ["thesis", "repaired", "planned"] {
        let words = alloc::format!("balancer={balancer}");
        assert_eq!(promised(&words, 0), (Span::from_us(47_400), Err(refused.to_string())));
    }
    assert_eq!(promised("balancer=planned balancer-slice=1ms", 0).0, Span::from_us(46_500));
}

/// Each of three equal vCPUs should get 2/3 of a CPU, so one of them fits on no CPU as a whole and
/// is split. While it is on one of its CPUs, it gets 2/3 of that CPU, and the other vCPU there gets
/// 1/3. So a quantum of slack costs the split vCPU half as much as it costs the other vCPU.
#[test]
fn sedf_split_vcpu_is_charged_for_slack_at_planned_rate() {
    let cpus = [0, 1].map(CpuId::new);
    let mut at = Moment::at_start(2);
    let fields = values(SPEC.policy_fields, "balancer=planned balancer-slice=0ns");
    let mut sedf = Sedf::new(&fields, &Topology::flat(2));
    let vcpus = [0, 1, 2].map(|slot| VcpuId::new(slot, DomId::new(slot), 0));
    for vcpu in vcpus {
        at.join(vcpu);
        sedf.admit(&at, vcpu, &values(SPEC.share_fields, "extra-weight=64")).unwrap();
        at.set_awake(vcpu, true);
        sedf.on_wake(&at, vcpu);
    }
    for (cpu, vcpu) in cpus.into_iter().zip(vcpus) {
        at.occupy(cpu, vcpu);
        sedf.on_start(&at, vcpu);
    }
    while at.now() < ms(500) {
        at.advance(at.now().after(Span::from_ms(50)));
        for (vcpu, ran) in vcpus.into_iter().zip([25, 50, 25]) {
            sedf.charge(&at, vcpu, Span::from_ms(ran));
        }
        sedf.on_timer(&at, cpus[0]);
    }
    let costs = vcpus.map(|vcpu| sedf.cost(vcpu, Span::from_us(500)));
    let [whole, split] = [costs.iter().max(), costs.iter().min()].map(Option::unwrap);
    assert_eq!(costs.iter().filter(|&cost| cost == whole).count(), 2, "{costs:?}");
    assert_eq!(*split + *split, *whole, "{costs:?}");
}

/// The vCPU has a slice of 50 of 100 ms and gets the other half as slack. For vCPUs that migrate,
/// half of the CPU is available.
#[test]
fn sedf_balancer_counts_only_slack_as_available_cpu_time() {
    let cpu = CpuId::new(0);
    let mut at = Moment::at_start(2);
    let fields = values(SPEC.policy_fields, "balancer=thesis balancer-slice=0ns");
    let mut sedf = Sedf::new(&fields, &Topology::flat(2));
    let vcpu = VcpuId::new(0, DomId::new(0), 0);
    at.join(vcpu);
    sedf.admit(&at, vcpu, &values(SPEC.share_fields, "slice=50ms period=100ms")).unwrap();
    at.set_awake(vcpu, true);
    sedf.on_wake(&at, vcpu);
    sedf.prepare_pick(&at, cpu);
    at.occupy(cpu, vcpu);
    sedf.on_start(&at, vcpu);
    for now in [50, 100] {
        at.advance(ms(now));
        sedf.charge(&at, vcpu, Span::from_ms(50));
        sedf.on_timeslice_end(&at, vcpu, TimesliceEnd::Limit);
        sedf.on_timer(&at, cpu);
        sedf.prepare_pick(&at, cpu);
    }
    let balancer = sedf.balancer.as_ref().unwrap();
    assert_eq!(balancer.books.available(cpu), Span::from_ms(50));
}

/// A running vCPU can start on its new CPU only after its old CPU has made a scheduling pass. Until
/// then the new CPU waits, and it is then rescheduled once.
#[test]
fn sedf_migrating_vcpu_starts_only_after_old_cpu_reschedules() {
    let [from, to] = [0, 1].map(CpuId::new);
    let mut at = Moment::at_start(2);
    let fields = values(SPEC.policy_fields, "balancer=thesis balancer-slice=0ns");
    let mut sedf = Sedf::new(&fields, &Topology::flat(2));
    let vcpu = VcpuId::new(0, DomId::new(0), 0);
    at.join(vcpu);
    sedf.admit(&at, vcpu, &values(SPEC.share_fields, "extra-weight=64")).unwrap();
    at.set_awake(vcpu, true);
    sedf.on_wake(&at, vcpu);
    assert_eq!(sedf.prepare_pick(&at, from), CpuSet::NONE);
    at.occupy(from, vcpu);
    sedf.on_start(&at, vcpu);
    at.advance(ms(3));
    sedf.charge(&at, vcpu, Span::from_ms(3));
    let both = [from, to].into_iter().collect();
    assert_eq!(sedf.carry_out(&at, &[Move { vcpu, from, to }]), both);
    assert_eq!(sedf.prepare_pick(&at, to), CpuSet::NONE);
    assert_eq!(sedf.pick(&at, to), Pick::Idle, "the vCPU still occupies its old CPU");
    assert_eq!(sedf.prepare_pick(&at, from), CpuSet::one(to));
    at.vacate(from);
    assert_eq!(sedf.prepare_pick(&at, to), CpuSet::NONE);
    assert!(matches!(sedf.pick(&at, to), Pick::Run { vcpu: runs, .. } if runs == vcpu));
    assert_eq!(sedf.prepare_pick(&at, from), CpuSet::NONE, "no vCPU is migrating any more");
}
