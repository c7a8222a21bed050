//! Tests of reservations for vCPUs that do not exist yet or have left. Admission takes such a
//! reservation into account, and only the vCPU for which it was made can use it. A vCPU gains no
//! CPU time by leaving and joining again. The tests need root.

use std::collections::BTreeMap;

use crate::common::{Target, begin, cpus, options, request, share, wait_until};
use slackline_host::policy::{RawValue, Values, find};
use slackline_linux::{ClockStep, WallClock};
use slackline_live::session::{
    JoinId, JoinTarget, Options, Request, RequestError, RequestedId, Session,
};
use slackline_trace::{Entry, Record};
use slackline_units::{DomId, Span, Time};

const DOMAIN: DomId = DomId::new(7);
const PERIOD: Span = Span::from_ms(10);

fn open(state: &tempfile::TempDir) -> Session {
    Session::open(&options(cpus(1), state.path())).unwrap()
}

/// Returns a request for vCPU `number` of the VM in these tests. `slice` is in microseconds, and
/// the period is 10 ms.
fn vcpu(number: u16, who: JoinTarget, slice: u64) -> Request {
    let called = RequestedId::As(DOMAIN, number);
    Request { called, ..request(who, share(slice, 10_000, true)) }
}

fn two(slice: u64) -> Vec<Request> {
    (0..2).map(|number| vcpu(number, JoinTarget::Nobody, slice)).collect()
}

fn go_on(session: &mut Session, length: Span) -> Vec<JoinId> {
    let until = session.now() + length;
    let mut ended = Vec::new();
    while session.now() < until {
        ended.extend(session.poll(&mut Vec::new()).unwrap().ended);
        let _ = session.wait(&[], Span::from_ms(20));
    }
    ended
}

fn ids(session: &Session) -> Vec<JoinId> {
    session.members().map(|member| member.id).collect()
}

fn room(session: &Session) -> Span {
    session.room(PERIOD, None).unwrap().unwrap()
}

#[test]
fn capacity_reserved_before_threads_exist_is_kept_until_vcpus_join() {
    let Some(_alone) = begin() else { return };
    let state = tempfile::tempdir().unwrap();
    let mut session = open(&state);
    let all = room(&session);
    assert!(all > Span::from_ms(8) && all < PERIOD, "{all}");
    let places = session.join(two(4_000)).unwrap();
    assert!(room(&session) <= all - Span::from_ms(8), "{}", room(&session));
    // The available capacity is exactly what is admitted, to the nanosecond.
    let left = room(&session);
    let other = Target::spinner();
    for (slice, fits) in [(left + Span::from_ns(1), false), (left, true)] {
        let text = format!("{}ns", slice.ns());
        let given = RawValue::Text(&text);
        let edf = find("edf").unwrap();
        let period = RawValue::Text("10ms");
        let given = [("slice", given), ("period", period)];
        let share = Values::read(edf.share_fields, given.into_iter());
        let joined = session.join(vec![other.as_one(share.unwrap())]);
        assert_eq!(joined.is_ok(), fits, "{slice}: {joined:?}");
        joined.into_iter().flatten().for_each(|id| session.leave(id).unwrap());
    }
    // A reservation without threads does not end, stays blocked, and can be changed and paused as
    // other members can.
    assert_eq!(go_on(&mut session, Span::from_ms(300)), []);
    session.change(places[1], share(3_000, 10_000, false), Time::START).unwrap();
    session.change(places[1], share(4_000, 10_000, true), Time::START).unwrap();
    session.pause(places[0], Time::START).unwrap();
    session.resume(places[0], Time::START).unwrap();
    assert_eq!(ids(&session), places);
    // Its vCPUs join and take over the reservation.
    let machine = Target::threaded();
    let threads = machine.by_thread().into_iter().zip(0..);
    let group = threads.map(|(who, number)| vcpu(number, who, 4_000)).collect();
    let joined = session.replace(&places, group).unwrap();
    let names: Vec<_> = joined.iter().map(|id| id.vcpu().domain()).collect();
    assert_eq!(names, [DOMAIN; 2]);
    assert_eq!(ids(&session), joined);
    assert!(matches!(session.leave(places[0]), Err(RequestError::Unknown { .. })));
    machine.runs();
    // When the vCPUs have ended, the capacity can be reserved again.
    drop(machine);
    let mut ended = Vec::new();
    wait_until("the end of both vCPUs to be noticed", || {
        ended.extend(go_on(&mut session, Span::from_ms(50)));
        ended.len() == 2
    });
    session.join(two(4_000)).unwrap();
    session.close(&mut Vec::new()).unwrap();
    other.is_given_back();
}

#[test]
fn failed_join_of_reserved_vcpus_does_not_change_their_reservation() {
    let Some(_alone) = begin() else { return };
    let state = tempfile::tempdir().unwrap();
    let mut session = open(&state);
    let places = session.join(two(4_000)).unwrap();
    let before = room(&session);
    let machine = Target::threaded();
    let threads = machine.by_thread();
    let group = |slice| {
        let threads = threads.iter().cloned().zip(0..);
        threads.map(|(who, number)| vcpu(number, who, slice)).collect::<Vec<_>>()
    };
    let refused = session.replace(&places, group(5_000)).unwrap_err();
    assert_eq!(refused.index, 1);
    assert!(matches!(refused.error, RequestError::Declined(_)), "{refused:?}");
    assert_eq!((ids(&session), room(&session)), (places.clone(), before));
    machine.is_given_back();
    // No other vCPU may have the account of a member that is present.
    let taken = session.join(group(500)).unwrap_err();
    assert!(matches!(taken.error, RequestError::Taken { .. }), "{taken:?}");
    // A member that has threads cannot be replaced.
    let joined = session.replace(&places, group(4_000)).unwrap();
    let refused = session.replace(&joined, two(4_000)).unwrap_err();
    assert!(matches!(refused.error, RequestError::Taken { .. }), "{refused:?}");
    assert_eq!(ids(&session), joined);
    assert_eq!(go_on(&mut session, Span::from_ms(50)), []);
    session.close(&mut Vec::new()).unwrap();
    machine.is_given_back();
}

/// A vCPU with 100 ms in every second leaves and joins again ten times a second. It receives its
/// reservation plus at most one slice. It does not receive a whole slice after each join. A
/// tolerance of 50 % allows for a test machine that stops the vCPU late.
#[test]
fn vcpu_rejoining_ten_times_a_second_gains_no_cpu_time() {
    let Some(_alone) = begin() else { return };
    let state = tempfile::tempdir().unwrap();
    let mut session = open(&state);
    let target = Target::spinner();
    let terms = || Request {
        called: RequestedId::As(DOMAIN, 0),
        ..target.as_one(share(100_000, 1_000_000, true))
    };
    let (from, before) = (session.now(), target.used());
    let mut place = session.join(vec![Request { who: JoinTarget::Nobody, ..terms() }]).unwrap();
    for round in 0..20 {
        // In turn, the vCPU replaces a reservation, or joins right after the reservation has left.
        let mut joined = if round % 2 == 0 {
            session.replace(&place, vec![terms()]).unwrap()
        } else {
            session.leave(place[0]).unwrap();
            session.join(vec![terms()]).unwrap()
        };
        go_on(&mut session, Span::from_ms(100));
        session.leave(joined.remove(0)).unwrap();
        // A reservation without threads joins with the same id meanwhile.
        place = session.join(vec![Request { who: JoinTarget::Nobody, ..terms() }]).unwrap();
    }
    let (used, length) = (target.used() - before, session.now() - from);
    let most = length / 10 + Span::from_ms(100);
    assert!(!used.is_zero() && used <= most + most / 2, "{used} in {length}, at most {most}");
    session.close(&mut Vec::new()).unwrap();
    target.is_given_back();
}

const LONG: Span = Span::from_ms(40);
const MS: u64 = 1_000_000;

/// Returns a request for a VM with 4 ms in every 40 ms and a phase of 7 ms on the wall clock.
fn in_phase(number: u16, target: &Target) -> Request {
    let edf = find("edf").unwrap();
    let given = [("slice", "4ms"), ("period", "40ms"), ("phase", "7ms")];
    let given = given.map(|(name, text)| (name, RawValue::Text(text)));
    let given = given.into_iter().chain([("exact", RawValue::Flag(true))]);
    let share = Values::read(edf.share_fields, given).unwrap();
    Request { called: RequestedId::As(DOMAIN, number), ..target.as_one(share) }
}

/// Returns the offset of `at`, a time of the session, from the start of the VMs' current period on
/// the wall clock.
fn into_period(clock: &WallClock, session: &Session, at: Time) -> Span {
    let ahead = clock.now().since(session.now());
    (at.after(ahead) - Time::START).left_after(Span::from_ms(7)) % LONG
}

/// Returns for each VM the time from the start of its period until the VM begins to run. The result
/// is the median over many periods, since a busy hypervisor can delay the VMs in some periods.
fn begins(clock: &WallClock, session: &mut Session) -> [Span; 2] {
    let (from, mut all) = (session.now(), Vec::new());
    while session.now() < from + LONG * 20 {
        let mut records = Vec::new();
        session.poll(&mut records).unwrap();
        all.append(&mut records);
        let _ = session.wait(&[], Span::from_ms(20));
    }
    [0, 1].map(|number| {
        let mut first: BTreeMap<u64, Span> = BTreeMap::new();
        for entry in &all {
            let &Entry::Record(Record::Ran { vcpu, from: began, .. }) = entry else { continue };
            // The first period is left out, since it may have begun before the measurement.
            if vcpu.number() == number && began > from + LONG {
                let into = into_period(clock, session, began);
                let period = (began - Time::START + LONG - into) / LONG;
                let least = first.entry(period).or_insert(into);
                *least = into.min(*least);
            }
        }
        let mut all: Vec<Span> = first.into_values().collect();
        all.sort_unstable();
        assert!(all.len() > 10, "the VM ran in {} periods of 20", all.len());
        all[all.len() / 2]
    })
}

/// Asserts that the first VM begins to run at the start of its period. The second VM must begin to
/// run when the first VM has used up its slice.
fn are_in_phase(begins: [Span; 2]) {
    let (first, second) = (begins[0].min(begins[1]), begins[0].max(begins[1]));
    assert!(first < Span::from_ms(3), "{begins:?}");
    assert!(second > Span::from_ms(3) && second < Span::from_ms(9), "{begins:?}");
}

#[test]
fn vcpus_with_equal_phase_have_simultaneous_periods_whenever_joined() {
    let Some(_alone) = begin() else { return };
    let state = tempfile::tempdir().unwrap();
    let clock = WallClock::default();
    let wall_clock = Some(clock.clone());
    let options = Options { wall_clock, ..options(cpus(1), state.path()) };
    let mut session = Session::open(&options).unwrap();
    let targets = [Target::spinner(), Target::spinner()];
    for ((number, target), come) in (0..).zip(&targets).zip([12, 25]) {
        wait_until("the middle of a period", || {
            (come..come + 6).contains(&(into_period(&clock, &session, session.now()).ns() / MS))
        });
        session.join(vec![in_phase(number, target)]).unwrap();
    }
    are_in_phase(begins(&clock, &mut session));
    // Another program sets the clock: the starts of periods move with it, and the session reports
    // the step.
    clock.set_ahead(15_000_000);
    let step = session.poll(&mut Vec::new()).unwrap().clock_stepped.unwrap();
    let ClockStep { by, is_ahead } = step;
    assert!(is_ahead && by >= Span::from_ms(14) && by <= Span::from_ms(16), "{step:?}");
    are_in_phase(begins(&clock, &mut session));
    assert_eq!(session.poll(&mut Vec::new()).unwrap().clock_stepped, None);
    session.close(&mut Vec::new()).unwrap();
    targets.iter().for_each(Target::is_given_back);
}
