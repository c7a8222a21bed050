//! EDF in pictures and scripts.

use slackline_units::DomId;

use super::*;
use crate::Given;
use crate::picture::picture;

#[test]
fn the_nearest_deadline_runs_first() {
    picture(
        "edf",
        "
        a slice=2ms period=10ms exact   rrrrrrrrrrrrrrrrrrrr
        b slice=2ms period=5ms exact    rrrrrrrrrrrrrrrrrrrr
        cpu0                            bbaa.bb...bbaa.bb...
    ",
    );
}

/// A textbook's example over its whole hyperperiod, worked out by hand: of equal deadlines the
/// lower id comes first.
#[test]
fn three_tasks_meet_all_deadlines() {
    picture(
        "edf",
        "
        a slice=1ms period=8ms exact    rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b slice=2ms period=5ms exact    rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        c slice=4ms period=10ms exact   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0                            bbaccbbccabbcccbbca.bbcccbbca.bbaccbbcc.
    ",
    );
}

#[test]
fn time_that_nobody_is_owed_is_shared_by_those_who_may_have_more() {
    picture(
        "edf quantum=1ms",
        "
        a slice=2ms period=10ms         rrrrrrrrrrrrrrrrrrrr
        b slice=4ms period=10ms exact   rrrrrrrrrrrrrrrrrrrr
        c slice=1ms period=10ms         rrrrrrrrrrrrrrrrrrrr
        cpu0                            aabbbbcacaaabbbbccac
    ",
    );
}

/// Its first period is half of one, and worth half a slice; asleep or not, the next begin on
/// the grid.
#[test]
fn with_a_phase_periods_begin_on_a_grid() {
    picture(
        "edf",
        "
        a slice=2ms period=10ms phase=5ms exact   rrrrrrrrrrrrrrrrrrrr
        b slice=1ms period=5ms phase=3ms exact    zzzzzzzzzzzzzrrrrrrr
        cpu0                                      a....aa......b.aa.b.
    ",
    );
}

/// Of a domain of two that may use 0.6 of a CPU together, one sleeps: what it left of the period
/// before is lent to the other, whose turn is as much longer. That it sleeps on its other CPU is no
/// matter.
#[test]
fn by_use_who_is_busy_has_what_its_sibling_left() {
    picture(
        "edf",
        "
        a of=w slice=3ms period=10ms exact spread=use   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b of=w slice=3ms period=10ms exact spread=use   zzzzzzzzzzzzzzzzzzzzzzzzzzzzzz
        cpu0                                            aaa.......aaaaaa....aaaaaa....
        cpu1                                            ..............................
    ",
    );
}

/// It has its even part at once when it wakes, and what it left before is the other's all the same.
#[test]
fn who_wakes_has_its_even_part_at_once() {
    picture(
        "edf",
        "
        a of=w slice=3ms period=10ms exact spread=use   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b of=w slice=3ms period=10ms exact spread=use   zzzzzzzzzzzzzzzzzzzzrrrrrrrrrrrrrrrrrrrr
        cpu0                                            aaa.......aaaaaa....aaaaaa....aaa.......
        cpu1                                            ....................bbb.......bbb.......
    ",
    );
}

/// `c` is promised 0.2 of the CPU, and so of 0.6 of it only 0.2 more can be lent: what is promised
/// is never late for a loan.
#[test]
fn no_more_is_lent_than_its_cpu_has_left() {
    picture(
        "edf reserve=0cpu",
        "
        a of=w slice=3ms period=10ms exact spread=use   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b of=w slice=3ms period=10ms exact spread=use   zzzzzzzzzzzzzzzzzzzzzzzzzzzzzz
        c slice=2ms period=10ms exact                   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0                                            aaacc.....aaaaacc...aaaaacc...
    ",
    );
}

/// Two that want it have equal parts of what the third has left.
#[test]
fn what_is_left_is_lent_in_equal_parts() {
    picture(
        "edf",
        "
        a of=w slice=2ms period=10ms exact spread=use   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b of=w slice=2ms period=10ms exact spread=use   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        c of=w slice=2ms period=10ms exact spread=use   zzzzzzzzzzzzzzzzzzzzzzzzzzzzzz
        cpu0                                            aa........aaa.......aaa.......
        cpu1                                            bb........bbb.......bbb.......
        cpu2                                            ..............................
    ",
    );
}

/// Who runs out for the first time need not wait for its next period.
#[test]
fn the_busy_one_may_be_another_one_each_time() {
    picture(
        "edf",
        "
        a of=w slice=2ms period=10ms exact spread=use   rrrrrrrrrrrrrrrrrrrrzzzzzzzzzzzzzzzzzzzzrrrr
        b of=w slice=2ms period=10ms exact spread=use   zzzzzzzzzzzzzzzzzzzzrrrrrrrrrrrrrrrrrrrrzzzz
        c of=w slice=2ms period=10ms exact spread=use   zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz
        cpu0                                            aa........aaaaaa........................aaaa
        cpu1                                            ....................bbbb......bbbbbb........
        cpu2                                            ............................................
    ",
    );
}

/// Other domains, and vCPUs of the same that are not spread by use, leave nothing to anybody.
#[test]
fn only_siblings_by_use_leave_anything() {
    picture(
        "edf",
        "
        a of=w slice=3ms period=10ms exact spread=use   rrrrrrrrrrrrrrrrrrrr
        b of=w slice=3ms period=10ms exact              zzzzzzzzzzzzzzzzzzzz
        c slice=3ms period=10ms exact spread=use        zzzzzzzzzzzzzzzzzzzz
        cpu0                                            aaa.......aaa.......
        cpu1                                            ....................
        cpu2                                            ....................
    ",
    );
}

#[test]
fn a_sleeper_gets_its_slice_when_it_wakes_at_its_period() {
    picture(
        "edf",
        "
        a slice=3ms period=10ms         zzzzzzzzzzrrrzzzzzzz
        b slice=6ms period=20ms         rrrrrrrrrrrrrrrrrrrr
        cpu0                            bbbbbbbbbbaaabbbbbbb
    ",
    );
}

#[test]
fn waking_late_in_a_period_takes_nothing_from_others() {
    picture(
        "edf reserve=0cpu",
        "
        a slice=5ms period=10ms exact   zzzzzzzzrrrrrrrrrrrr
        b slice=5ms period=10ms exact   rrrrrrrrrrrrrrrrrrrr
        cpu0                            bbbbb...a.aaaaabbbbb
    ",
    );
}

#[test]
fn a_short_block_costs_no_more_than_it_lasts() {
    picture(
        "edf reserve=0cpu",
        "
        a slice=5ms period=20ms exact   rrrrrrrrrzrrrrrrrrrr
        b slice=6ms period=10ms exact   rrrrrrrrrrrrrrrrrrrr
        cpu0                            bbbbbbaaa.aabbbbbb..
    ",
    );
}

#[test]
fn vcpus_are_spread_over_the_cpus() {
    picture(
        "edf",
        "
        a slice=6ms period=10ms exact   rrrrrrrrrrrrrrrrrrrr
        b slice=5ms period=10ms exact   rrrrrrrrrrrrrrrrrrrr
        c slice=4ms period=10ms exact   rrrrrrrrrrrrrrrrrrrr
        cpu0                            aaaaaa....aaaaaa....
        cpu1                            bbbbbcccc.bbbbbcccc.
    ",
    );
}

/// A timer was late by 5 ms, and `b` had 1 of its 4 ms by its deadline: what it lacks comes
/// when nobody is owed anything, and never as something that is owed now.
#[test]
fn what_was_missed_is_made_up_in_time_that_nobody_is_owed() {
    let values = |fields, terms: &[(&'static str, &'static str)]| {
        let given = terms.iter().map(|&(name, value)| (name, Given::Text(value)));
        Values::read(fields, given).unwrap()
    };
    let mut at = Moment::at_start(1);
    let mut edf = Edf::new(&values(SPEC.policy_fields, &[]), &Topology::flat(1));
    let cpu = CpuId::new(0);
    let ms = |ms| Time::START + Span::from_ms(ms);
    let vcpus = [0, 1].map(|slot| VcpuId::new(slot, DomId::new(slot), 0));
    for vcpu in vcpus {
        at.join(vcpu);
        let share = values(SPEC.share_fields, &[("slice", "4ms"), ("period", "10ms")]);
        edf.admit(&at, vcpu, &share).unwrap();
        at.set_awake(vcpu, true);
        edf.wake(&at, vcpu);
    }
    let [a, b] = vcpus;
    let mut run = |vcpu, until, rings: bool| {
        at.occupy(cpu, vcpu);
        let ran = until - at.now();
        at.advance(until);
        edf.charge(&at, vcpu, ran);
        if rings {
            edf.ring(&at, cpu);
        }
        at.vacate(cpu);
        match edf.pick(&at, cpu) {
            Pick::Run { vcpu, limit, entitlement } => (vcpu, limit.unwrap(), entitlement),
            Pick::Idle => unreachable!("both want to run"),
        }
    };
    // The first period has begun as they woke, and is not judged.
    assert_eq!(run(a, ms(4), false), (b, Span::from_ms(4), Entitlement::Due));
    assert_eq!(run(b, ms(8), false), (a, Span::from_ms(10), Entitlement::Spare));
    assert_eq!(run(a, ms(10), true), (a, Span::from_ms(4), Entitlement::Due));
    // `a` uses 5 ms too much, which is more than its next slice.
    assert_eq!(run(a, ms(19), false), (b, Span::from_ms(4), Entitlement::Due));
    assert_eq!(run(b, ms(20), true), (b, Span::from_ms(4), Entitlement::Due));
    assert_eq!(run(b, ms(24), false), (b, Span::from_ms(3), Entitlement::Arrears));
    assert_eq!(run(b, ms(26), false), (b, Span::from_ms(1), Entitlement::Arrears));
    assert_eq!(run(b, ms(27), false).2, Entitlement::Spare);
}

/// Who is exact had its slice, and ran on for 40 us as it was stopped, in another turn than its
/// own: nobody was kept waiting, and its next slice is whole, to what cannot be told.
#[test]
fn what_is_used_as_one_is_stopped_is_not_taken_from_the_next_slice() {
    let values = |fields, terms: &[(&'static str, Given<'static>)]| {
        Values::read(fields, terms.iter().copied()).unwrap()
    };
    let mut at = Moment::at_start(1);
    let mut edf = Edf::new(&values(SPEC.policy_fields, &[]), &Topology::flat(1));
    let (cpu, a) = (CpuId::new(0), VcpuId::new(0, DomId::new(0), 0));
    let text = Given::Text;
    let terms = [("slice", text("4ms")), ("period", text("10ms")), ("exact", Given::Flag(true))];
    at.join(a);
    edf.admit(&at, a, &values(SPEC.share_fields, &terms)).unwrap();
    at.set_awake(a, true);
    edf.wake(&at, a);
    let ms = |ms| Time::START + Span::from_ms(ms);
    at.occupy(cpu, a);
    at.advance(ms(4));
    edf.charge(&at, a, Span::from_ms(4));
    at.vacate(cpu);
    assert_eq!(edf.pick(&at, cpu), Pick::Idle);
    at.advance(ms(10) - Span::from_us(10));
    edf.charge(&at, a, Span::from_us(40));
    at.advance(ms(10));
    edf.ring(&at, cpu);
    let Pick::Run { limit, .. } = edf.pick(&at, cpu) else { panic!("it is owed a slice") };
    assert_eq!(limit, Some(Span::from_ms(4) - overrun::history::UNTOLD));
}

/// Half of its period is worth three and a half nanoseconds, which is three; the rest of it, all of
/// it, is rounded up. It has had nothing in advance all the same, and all of its CPU is free again.
#[test]
fn who_comes_on_a_grid_and_goes_at_once_leaves_nothing_behind() {
    let values = |fields, terms: &[(&'static str, &'static str)]| {
        let given = terms.iter().map(|&(name, value)| (name, Given::Text(value)));
        Values::read(fields, given).unwrap()
    };
    let mut edf = Edf::new(&values(SPEC.policy_fields, &[]), &Topology::flat(1));
    let share =
        values(SPEC.share_fields, &[("slice", "7000001ns"), ("period", "10ms"), ("phase", "5ms")]);
    let mut at = Moment::at_start(1);
    let vcpu = VcpuId::new(0, DomId::new(0), 0);
    let room = |edf: &Edf, at: &Moment| edf.room(at, Span::from_ms(10), CpuSet::one(CpuId::new(0)));
    at.advance(Time::START + Span::from_ms(10));
    // What is had in advance counts where somebody waits for its due.
    let waits = VcpuId::new(1, DomId::new(1), 0);
    at.join(waits);
    let little = values(SPEC.share_fields, &[("slice", "1ms"), ("period", "10ms")]);
    edf.admit(&at, waits, &little).unwrap();
    at.set_awake(waits, true);
    edf.wake(&at, waits);
    let before = room(&edf, &at);
    at.join(vcpu);
    edf.admit(&at, vcpu, &share).unwrap();
    assert!(room(&edf, &at) < before);
    at.leave(vcpu);
    let _ = edf.leave(&at, vcpu);
    assert_eq!(room(&edf, &at), before);
}

/// An EDF on so many CPUs and its host, by hand, with these fields.
fn by_hand(cpus: usize, words: &[(&'static str, Given<'static>)]) -> (Edf, Moment) {
    let values = Values::read(SPEC.policy_fields, words.iter().copied()).unwrap();
    (Edf::new(&values, &Topology::flat(cpus)), Moment::at_start(cpus))
}

/// Somebody joins, asleep, and is exact.
fn join(edf: &mut Edf, at: &mut Moment, slot: u32, (slice, period): (&str, &str)) -> VcpuId {
    let vcpu = VcpuId::new(slot, DomId::new(slot), 0);
    let (slice, period) = (("slice", Given::Text(slice)), ("period", Given::Text(period)));
    let terms = [slice, period, ("exact", Given::Flag(true))];
    at.join(vcpu);
    edf.admit(at, vcpu, &Values::read(SPEC.share_fields, terms.into_iter()).unwrap()).unwrap();
    vcpu
}

fn wake(edf: &mut Edf, at: &mut Moment, vcpu: VcpuId) {
    at.set_awake(vcpu, true);
    edf.wake(at, vcpu);
}

/// Three of three fifths on two CPUs: the third is split over both. When it has gone, the others
/// may still be late for what it had, until nobody is owed anything.
#[test]
fn a_cpu_is_left_over_where_nobody_is_split_any_more_until_it_rests() {
    let (mut edf, mut at) = by_hand(2, &[("place", Given::Text("split"))]);
    let share = ("6ms", "10ms");
    let vcpus = [0, 1, 2].map(|slot| join(&mut edf, &mut at, slot, share));
    vcpus.iter().for_each(|&vcpu| wake(&mut edf, &mut at, vcpu));
    let cpus = [0, 1].map(CpuId::new);
    let left_over = |edf: &Edf| cpus.map(|cpu| edf.promised.is_left_over(cpu));
    assert_eq!(edf.promised.strict(), CpuSet::first_n(2));
    assert_eq!(left_over(&edf), [false, false]);
    at.leave(vcpus[2]);
    edf.leave(&at, vcpus[2]);
    assert_eq!(left_over(&edf), [true, true]);
    let here = edf.servers[vcpus[0]].cpu;
    at.occupy(here, vcpus[0]);
    at.advance(Time::START + Span::from_ms(6));
    edf.charge(&at, vcpus[0], Span::from_ms(6));
    let late = join(&mut edf, &mut at, 3, ("1ms", "10ms"));
    wake(&mut edf, &mut at, late);
    assert_eq!(left_over(&edf), cpus.map(|cpu| cpu != here));
}

#[test]
fn reserved_share_of_a_cpu_counts_slices_and_parts_without_overhead() {
    let values = Values::read(SPEC.policy_fields, [("place", Given::Text("split"))].into_iter());
    let topology = Topology::flat(2).with_dispatch(Span::from_us(100));
    let (mut edf, mut at) = (Edf::new(&values.unwrap(), &topology), Moment::at_start(2));
    let reserved = |edf: &Edf| [0, 1].map(|cpu| edf.reserved(CpuId::new(cpu)).unwrap().ppm());
    assert_eq!(reserved(&edf), [0, 0]);
    let vcpus = [0, 1, 2].map(|slot| join(&mut edf, &mut at, slot, ("6ms", "10ms")));
    let [one, other] = reserved(&edf);
    assert_eq!(one + other, 1_800_000, "the third is split: {one} and {other}");
    assert!(one > 600_000 && other > 600_000, "{one} and {other}");
    at.leave(vcpus[2]);
    edf.leave(&at, vcpus[2]);
    assert_eq!(reserved(&edf), [600_000; 2]);
}

/// Somebody else has had 3 ms in advance and leaves. What it gives up stays promised while a
/// sleeper with 4 of 10 ms would have them still to come had it not slept; to the nanosecond.
#[test]
fn a_sleeper_claims_its_slice_for_as_long_as_it_would_have_taken() {
    let ns = Span::from_ns(1);
    let ms = |ms| Time::START + Span::from_ms(ms);
    let leaves = [(ms(4) - ns, false), (ms(4), true), (ms(10) - ns, true), (ms(10), false)];
    for (now, is_free) in leaves.into_iter().chain([(ms(24) - ns, false), (ms(24), true)]) {
        let (mut edf, mut at) = by_hand(1, &[]);
        let cpu = CpuId::new(0);
        let room = |edf: &Edf, at: &Moment| edf.room(at, Span::from_ms(10), CpuSet::one(cpu));
        join(&mut edf, &mut at, 0, ("4ms", "10ms"));
        let before = room(&edf, &at);
        at.advance(now - Span::from_ms(3));
        let vcpu = join(&mut edf, &mut at, 1, ("3ms", "10ms"));
        wake(&mut edf, &mut at, vcpu);
        at.occupy(cpu, vcpu);
        at.advance(now);
        edf.charge(&at, vcpu, Span::from_ms(3));
        at.vacate(cpu);
        at.leave(vcpu);
        edf.leave(&at, vcpu);
        assert_eq!(room(&edf, &at) == before, is_free, "left at {now}");
    }
}

/// Its stops are late by 10 us, 64 times. Then it stops by itself as it has had its slice; or it is
/// late, and has not had all of it; either tells nothing of how late its stops are.
#[test]
fn only_who_is_stopped_tells_how_late_stops_are() {
    let late = Span::from_us(10);
    for (had, sleeps) in [(Span::from_ms(4), true), (Span::from_ms(3), false)] {
        let (mut edf, mut at) = by_hand(1, &[]);
        let (cpu, period) = (CpuId::new(0), Span::from_ms(10));
        let vcpu = join(&mut edf, &mut at, 0, ("4ms", "10ms"));
        wake(&mut edf, &mut at, vcpu);
        let limit = |edf: &Edf, at: &Moment| match edf.pick(at, cpu) {
            Pick::Run { limit, .. } => limit.expect("all turns end"),
            Pick::Idle => unreachable!("it is owed its slice"),
        };
        let mut end = Time::START;
        for number in 0..66 {
            end = end.after(period);
            let is_told = number != 64;
            let ran = if is_told { limit(&edf, &at) + late } else { had.min(limit(&edf, &at)) };
            at.occupy(cpu, vcpu);
            at.advance(at.now().after(ran));
            at.set_awake(vcpu, is_told || !sleeps);
            edf.charge(&at, vcpu, ran);
            at.vacate(cpu);
            if !at.is_awake(vcpu) {
                edf.block(&at, vcpu);
            }
            at.advance(end);
            edf.ring(&at, cpu);
            if !at.is_awake(vcpu) {
                wake(&mut edf, &mut at, vcpu);
            }
        }
        assert_eq!(limit(&edf, &at), Span::from_ms(4) - late, "{had}");
    }
}

/// Where somebody is whole on each of two CPUs a third is split over both. Once it has had its part
/// on the first it goes on where the rest of it is to be had.
#[test]
fn who_has_had_its_part_goes_on_where_the_rest_is() {
    let (mut edf, mut at) = by_hand(2, &[("place", Given::Text("split"))]);
    let vcpus = [0, 1, 2].map(|slot| join(&mut edf, &mut at, slot, ("6ms", "10ms")));
    let split = vcpus[2];
    wake(&mut edf, &mut at, split);
    let first = edf.servers[split].cpu;
    let Pick::Run { vcpu, limit: Some(part), .. } = edf.pick(&at, first) else {
        panic!("it is owed its slice");
    };
    assert_eq!(vcpu, split);
    assert!(part < Span::from_ms(6), "{part}");
    at.occupy(first, split);
    at.advance(Time::START + part);
    let cpus = edf.charge(&at, split, part);
    let second = CpuId::new(1 - first.index());
    assert!(cpus.contains(second));
    assert_eq!(edf.pass(&at, first), CpuSet::one(second), "once it has gone from here");
    at.vacate(first);
    assert_eq!(edf.pick(&at, first), Pick::Idle);
    let Pick::Run { vcpu, limit: Some(rest), .. } = edf.pick(&at, second) else {
        panic!("it is owed the rest");
    };
    assert_eq!((vcpu, part + rest), (split, Span::from_ms(6)));
}

/// Of 6 ms in 10 it is split and has had 3 ms in 3 ms, which is 1.2 ms in advance, while others
/// wait for theirs. It leaves and comes back, and has them not again.
#[test]
fn who_is_split_comes_back_to_what_it_has_had() {
    let (mut edf, mut at) = by_hand(2, &[("place", Given::Text("split"))]);
    let vcpus = [0, 1, 2].map(|slot| join(&mut edf, &mut at, slot, ("6ms", "10ms")));
    let split = vcpus[2];
    vcpus.iter().for_each(|&vcpu| wake(&mut edf, &mut at, vcpu));
    let part = edf.servers[split].limit();
    assert_eq!(part, Span::from_ms(3));
    at.occupy(edf.servers[split].cpu, split);
    at.advance(Time::START + part);
    edf.charge(&at, split, part);
    at.vacate(CpuId::new(0));
    at.vacate(CpuId::new(1));
    at.leave(split);
    edf.leave(&at, split);
    join(&mut edf, &mut at, 2, ("2ms", "10ms"));
    let account = edf.account(split);
    let remaining = account.iter().find(|(name, _)| *name == "remaining");
    assert_eq!(remaining.map(|(_, text)| text.as_str()), Some("800us"));
}

/// Two have got nothing yet of 6 ms when there are 6 ms until their deadlines: who is split now
/// would make one of them late. At the start there is room for it.
#[test]
fn who_is_late_already_leaves_no_room_for_a_part() {
    for (now, has_room) in [(0, true), (4, false)] {
        let (mut edf, mut at) = by_hand(2, &[("place", Given::Text("split"))]);
        for slot in [0, 1] {
            let vcpu = join(&mut edf, &mut at, slot, ("6ms", "10ms"));
            wake(&mut edf, &mut at, vcpu);
        }
        at.advance(Time::START + Span::from_ms(now));
        let room = edf.room(&at, Span::from_ms(10), CpuSet::first_n(2)).unwrap();
        assert_eq!(room >= Span::from_ms(6), has_room, "{room} at {now} ms");
    }
}

/// Two vCPUs of a domain that may use 0.6 of a CPU together, one of them asleep, at 10 ms: the
/// other has had its slice and is lent what its sibling has left, until 20 ms.
fn lent() -> (Edf, Moment, VcpuId) {
    let (mut edf, mut at) = by_hand(2, &[]);
    let vcpus = [0, 1].map(|number| VcpuId::new(u32::from(number), DomId::new(0), number));
    let terms = [("slice", "3ms"), ("period", "10ms"), ("spread", "use")];
    let terms = terms.map(|(name, text)| (name, Given::Text(text)));
    let share = Values::read(SPEC.share_fields, terms.into_iter()).unwrap();
    for vcpu in vcpus {
        at.join(vcpu);
        edf.admit(&at, vcpu, &share).unwrap();
    }
    let (busy, cpu) = (vcpus[0], edf.servers[vcpus[0]].cpu);
    wake(&mut edf, &mut at, busy);
    had(&mut edf, &mut at, busy, Span::from_ms(3));
    at.advance(Time::START + Span::from_ms(10));
    edf.ring(&at, cpu);
    assert_eq!(edf.servers[busy].loan(), Span::from_ms(3));
    (edf, at, busy)
}

/// Somebody has its CPU for so long.
fn had(edf: &mut Edf, at: &mut Moment, vcpu: VcpuId, time: Span) {
    let cpu = edf.servers[vcpu].cpu;
    at.occupy(cpu, vcpu);
    at.advance(at.now().after(time));
    edf.charge(at, vcpu, time);
    at.vacate(cpu);
}

/// What was had of a loan in advance others wait for: so much cannot be promised until it has been
/// earned, unless nobody waits.
#[test]
fn what_was_lent_in_advance_is_not_free_while_somebody_waits() {
    for (is_somebody_there, room) in [(false, 5_500), (true, 2_500)] {
        let (mut edf, mut at, busy) = lent();
        let cpu = edf.servers[busy].cpu;
        let other = join(&mut edf, &mut at, 2, ("1ms", "10ms"));
        assert_eq!(edf.servers[other].cpu, cpu);
        had(&mut edf, &mut at, busy, Span::from_ms(6));
        if is_somebody_there {
            wake(&mut edf, &mut at, other);
        } else {
            at.advance(Time::START + Span::from_us(16_999));
        }
        let free = edf.room(&at, Span::from_ms(10), CpuSet::one(cpu));
        assert_eq!(free, Some(Span::from_us(room)));
    }
}

/// Of 0.6 ms a millisecond that is lent, what has been earned when somebody else needs the room
/// stays, although it has not been had.
#[test]
fn what_was_earned_of_a_loan_stays_when_somebody_is_admitted() {
    let (mut edf, mut at, busy) = lent();
    at.advance(Time::START + Span::from_ms(16));
    let other = join(&mut edf, &mut at, 2, ("5ms", "10ms"));
    assert_eq!(edf.servers[other].cpu, edf.servers[busy].cpu);
    assert_eq!(edf.servers[busy].loan(), Span::from_us(1_800));
    assert_eq!(edf.servers[busy].remaining, Span::from_us(4_800));
}
