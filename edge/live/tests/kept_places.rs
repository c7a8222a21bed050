//! Promises to who is not there yet, or was: they count, they end in nobody's hands but who they
//! are for, and coming back is worth nothing. Needs root.

mod common;

use common::{Target, begin, cpus, options, request, share, wait_until};
use slackline_live::session::{Called, JoinId, Request, RequestError, Session, Who};
use slackline_units::{DomId, Span, Time};

#[test]
fn part_keeper() {
    common::play_keeper();
}

#[test]
fn part_target() {
    common::play_target();
}

const DOMAIN: DomId = DomId::new(7);
const PERIOD: Span = Span::from_ms(10);

fn open(state: &tempfile::TempDir) -> Session {
    Session::open(&options(cpus(1), state.path())).unwrap()
}

/// vCPU `number` of the one machine, so many microseconds in every 10 ms.
fn vcpu(number: u16, who: Who, slice: u64) -> Request {
    let called = Called::As(DOMAIN, number);
    Request { called, ..request(who, share(slice, 10_000, true)) }
}

fn two(slice: u64) -> Vec<Request> {
    (0..2).map(|number| vcpu(number, Who::Nobody, slice)).collect()
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
fn what_is_kept_for_nobody_is_promised_until_who_it_is_for_comes() {
    let Some(_alone) = begin() else { return };
    let state = tempfile::tempdir().unwrap();
    let mut session = open(&state);
    let all = room(&session);
    assert!(all > Span::from_ms(8) && all < PERIOD, "{all}");
    let places = session.join(two(4_000)).unwrap();
    assert!(room(&session) <= all - Span::from_ms(8), "{}", room(&session));
    // What room says is what is admitted: so much, and no nanosecond more.
    let left = room(&session);
    let other = Target::spinner();
    for (slice, fits) in [(left + Span::from_ns(1), false), (left, true)] {
        let text = format!("{}ns", slice.ns());
        let given = slackline_host::policy::Given::Text(&text);
        let edf = slackline_host::policy::find("edf").unwrap();
        let period = slackline_host::policy::Given::Text("10ms");
        let given = [("slice", given), ("period", period)];
        let share = slackline_host::policy::Values::read(edf.share_fields, given.into_iter());
        let joined = session.join(vec![other.as_one(share.unwrap())]);
        assert_eq!(joined.is_ok(), fits, "{slice}: {joined:?}");
        joined.into_iter().flatten().for_each(|id| session.leave(id).unwrap());
    }
    // Nobody ends, sleeps on, and may be asked of whatever others are.
    assert_eq!(go_on(&mut session, Span::from_ms(300)), []);
    session.change(places[1], share(3_000, 10_000, false), Time::START).unwrap();
    session.change(places[1], share(4_000, 10_000, true), Time::START).unwrap();
    session.pause(places[0], Time::START).unwrap();
    session.resume(places[0], Time::START).unwrap();
    assert_eq!(ids(&session), places);
    // They come, and what was theirs is.
    let machine = Target::threaded();
    let threads = machine.by_thread().into_iter().zip(0..);
    let group = threads.map(|(who, number)| vcpu(number, who, 4_000)).collect();
    let joined = session.replace(&places, group).unwrap();
    let names: Vec<_> = joined.iter().map(|id| id.vcpu().domain()).collect();
    assert_eq!(names, [DOMAIN; 2]);
    assert_eq!(ids(&session), joined);
    assert!(matches!(session.leave(places[0]), Err(RequestError::Unknown { .. })));
    machine.runs();
    // And when they end, others can be kept in their place.
    drop(machine);
    let mut ended = Vec::new();
    wait_until("the end to be noticed", || {
        ended.extend(go_on(&mut session, Span::from_ms(50)));
        ended.len() == 2
    });
    session.join(two(4_000)).unwrap();
    session.close(&mut Vec::new()).unwrap();
    other.is_given_back();
}

#[test]
fn who_does_not_fit_in_the_place_of_nobody_leaves_it_as_it_was() {
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
    // Nobody else is to have the account of somebody who is there.
    let taken = session.join(group(500)).unwrap_err();
    assert!(matches!(taken.error, RequestError::Taken { .. }), "{taken:?}");
    // Somebody who is there does not give way.
    let joined = session.replace(&places, group(4_000)).unwrap();
    let refused = session.replace(&joined, two(4_000)).unwrap_err();
    assert!(matches!(refused.error, RequestError::Taken { .. }), "{refused:?}");
    assert_eq!(ids(&session), joined);
    assert_eq!(go_on(&mut session, Span::from_ms(50)), []);
    session.close(&mut Vec::new()).unwrap();
    machine.is_given_back();
}

/// 100 ms in every second, given up and asked for again ten times a second: what is promised and
/// one slice, not a whole slice each time. Half as much again is for a machine that stops it late.
#[test]
fn whoever_leaves_and_comes_back_all_the_time_gets_no_more_for_it() {
    let Some(_alone) = begin() else { return };
    let state = tempfile::tempdir().unwrap();
    let mut session = open(&state);
    let target = Target::spinner();
    let terms = || Request {
        called: Called::As(DOMAIN, 0),
        ..target.as_one(share(100_000, 1_000_000, true))
    };
    let (from, before) = (session.now(), target.used());
    let mut place = session.join(vec![Request { who: Who::Nobody, ..terms() }]).unwrap();
    for round in 0..20 {
        // In turn: as who has waited, and as who has just left.
        let mut joined = if round % 2 == 0 {
            session.replace(&place, vec![terms()]).unwrap()
        } else {
            session.leave(place[0]).unwrap();
            session.join(vec![terms()]).unwrap()
        };
        go_on(&mut session, Span::from_ms(100));
        session.leave(joined.remove(0)).unwrap();
        // Given back it is nobody's business what it uses: it is held all the same.
        place = session.join(vec![Request { who: Who::Nobody, ..terms() }]).unwrap();
    }
    let (used, length) = (target.used() - before, session.now() - from);
    let most = length / 10 + Span::from_ms(100);
    assert!(!used.is_zero() && used <= most + most / 2, "{used} in {length}, at most {most}");
    session.close(&mut Vec::new()).unwrap();
    target.is_given_back();
}
