//! Tests of a session without a scenario: vCPUs join, change parameters, are paused and migrated,
//! and leave. A request that fails changes nothing. The tests need root.

use std::time::Duration;

use crate::common::{
    Target, begin, cpus, kill, let_pass, nap, options, request, share, wait_until,
};
use rustix::process::Signal;
use slackline_fence::FenceError;
use slackline_linux::sys::{
    Scheduling, SchedulingOf, get_affinity, get_scheduling, set_affinity, set_scheduling,
};
use slackline_live::session::{
    ForeignChange, JoinId, NotOwned, Request, RequestError, Session, SessionError,
};
use slackline_trace::{Entry, Record};
use slackline_units::{CpuId, CpuSet, Span, Time};

/// A session in a test, with all records that it has returned and the folder of its journal.
struct Open {
    session: Session,
    records: Vec<Entry>,
    _state: tempfile::TempDir,
}

impl Open {
    fn on(cpus: Vec<CpuId>) -> Open {
        let state = tempfile::tempdir().unwrap();
        let session = Session::open(&options(cpus, state.path())).unwrap();
        Open { session, records: Vec::new(), _state: state }
    }

    fn join(&mut self, request: Request) -> JoinId {
        self.session.join(vec![request]).unwrap()[0]
    }

    /// Polls the session for a length of time. Returns the members that have ended during the
    /// polling.
    fn go_on(&mut self, length: Span) -> Vec<JoinId> {
        let until = self.session.now() + length;
        let mut ended = Vec::new();
        while self.session.now() < until {
            let mut records = Vec::new();
            ended.extend(self.session.poll(&mut records).unwrap().ended);
            self.records.append(&mut records);
            let _ = self.session.wait(&[], Span::from_ms(20));
        }
        ended
    }

    /// Returns the changes by other programs that the session undoes in its next two checks.
    fn undone(&mut self) -> Vec<(JoinId, ForeignChange)> {
        let until = self.session.now() + Span::from_ms(110);
        let mut undone = Vec::new();
        while self.session.now() < until {
            undone.append(&mut self.session.poll(&mut self.records).unwrap().meddled);
            let _ = self.session.wait(&[], Span::from_ms(20));
        }
        undone.dedup();
        undone
    }

    /// Returns the CPU time that a member has used since a time of the session, and the CPUs on
    /// which it ran.
    fn ran(&self, id: JoinId, since: Time) -> (Span, CpuSet) {
        let mut ran = (Span::ZERO, CpuSet::NONE);
        for record in &self.records {
            if let Entry::Record(Record::Ran { vcpu, cpu, from, used, .. }) = *record
                && vcpu == id.vcpu()
                && from >= since
            {
                ran.0 += used;
                ran.1.insert(cpu);
            }
        }
        ran
    }

    fn close(mut self) -> Vec<Entry> {
        let mut records = Vec::new();
        self.session.close(&mut records).unwrap();
        self.records.append(&mut records);
        self.records
    }
}

const NOW: Time = Time::START;

/// Maximum excess of CPU time over the share. On a busy test machine a vCPU may be stopped late by
/// up to this time. The resulting excess is paid back only afterwards.
const LATE: Span = Span::from_ms(50);

#[test]
fn vcpu_in_session_is_limited_to_reserved_share_until_leaving() {
    let Some(_alone) = begin() else { return };
    let target = Target::spinner();
    let mut open = Open::on(cpus(1));
    assert!(open.session.members().next().is_none());
    let id = open.join(target.as_one(share(2_000, 10_000, true)));
    let (from, before) = (open.session.now(), target.used());
    assert_eq!(open.go_on(Span::from_secs(1)), []);
    let (used, length) = (target.used() - before, open.session.now() - from);
    // The share is a fifth of the CPU. On a busy test machine the target may get less.
    assert!(used <= length / 5 + LATE, "{used} in {length}");
    assert!(used >= length / 50, "{used} in {length}");
    let told = open.ran(id, from).0;
    assert!(told <= used + Span::from_ms(5), "records say {told}, the target used {used}");
    open.session.leave(id).unwrap();
    target.is_given_back();
    target.runs();
    let records = open.close();
    let is_left =
        |record: &Record| matches!(record, Record::Left { vcpu, .. } if *vcpu == id.vcpu());
    let left = |entry: &&Entry| matches!(entry, Entry::Record(record) if is_left(record));
    assert_eq!(records.iter().filter(left).count(), 1);
    assert!(matches!(records.last(), Some(Entry::Record(Record::Ended { .. }))));
}

/// If two sessions scheduled the same CPU, both would reserve the same capacity of it.
#[test]
fn second_session_on_a_managed_cpu_is_refused() {
    let Some(_alone) = begin() else { return };
    let target = Target::spinner();
    let mut open = Open::on(cpus(1));
    open.join(target.as_one(share(2_000, 10_000, true)));
    let state = tempfile::tempdir().unwrap();
    let second = Session::open(&options(cpus(1), state.path()));
    let Err(error) = second else { panic!("the second session opened on a managed CPU") };
    assert!(matches!(error, SessionError::Claim(NotOwned::Taken { .. })), "{error}");
    assert_eq!(open.go_on(Span::from_ms(50)), []);
    assert!(!open.session.is_over());
    open.close();
    target.is_given_back();
    Open::on(cpus(1)).close();
}

#[test]
fn share_change_refused_by_admission_keeps_the_old_share() {
    let Some(_alone) = begin() else { return };
    let (one, other) = (Target::spinner(), Target::spinner());
    let mut open = Open::on(cpus(1));
    let first = open.join(one.as_one(share(1_000, 10_000, true)));
    let second = open.join(other.as_one(share(3_000, 10_000, false)));
    open.session.change(first, share(4_000, 10_000, true), NOW).unwrap();
    let refused = open.session.change(second, share(9_000, 10_000, false), NOW);
    assert!(matches!(refused, Err(RequestError::Declined(_))), "{refused:?}");
    let shares: Vec<_> = open.session.members().map(|member| member.share.clone()).collect();
    assert_eq!(shares, [share(4_000, 10_000, true), share(3_000, 10_000, false)]);
    // This change gives the second member, which could use slack, a hard limit.
    open.session.change(second, share(1_000, 10_000, true), NOW).unwrap();
    open.go_on(Span::from_ms(200));
    let (from, before) = (open.session.now(), other.used());
    open.go_on(Span::from_secs(1));
    let (used, length) = (other.used() - before, open.session.now() - from);
    assert!(used <= length / 10 + LATE, "{used} in {length}");
    // This change lets the second member use slack again.
    open.session.change(second, share(1_000, 10_000, false), NOW).unwrap();
    wait_until("the second target to run without being stopped", || {
        open.go_on(Span::from_ms(100));
        !other.is_stopped()
    });
    open.close();
    one.is_given_back();
    other.is_given_back();
}

#[test]
fn vcpu_paused_in_session_uses_no_cpu_time_until_resumed() {
    let Some(_alone) = begin() else { return };
    for is_exact in [true, false] {
        let (one, many) = (Target::spinner(), Target::threaded());
        let mut open = Open::on(cpus(1));
        let first = open.join(one.as_one(share(2_000, 10_000, is_exact)));
        let second = open.join(many.as_one(share(2_000, 10_000, is_exact)));
        open.go_on(Span::from_ms(100));
        for (id, target) in [(first, &one), (second, &many)] {
            open.session.pause(id, NOW).unwrap();
            target.rests();
            let paused = open.session.members().filter(|member| member.is_paused);
            assert_eq!(paused.map(|member| member.id).collect::<Vec<_>>(), [id]);
            // A second pause or resume has no effect.
            open.session.pause(id, NOW).unwrap();
            open.session.resume(id, NOW).unwrap();
            target.runs();
            open.session.resume(id, NOW).unwrap();
        }
        // A member that leaves while it is paused is restored and runs.
        open.session.pause(first, NOW).unwrap();
        open.session.pause(second, NOW).unwrap();
        open.session.leave(first).unwrap();
        one.is_given_back();
        one.runs();
        many.rests();
        let records = open.close();
        many.is_given_back();
        many.runs();
        let paused = |entry: &&Entry| matches!(entry, Entry::Record(Record::Paused { .. }));
        assert!(records.iter().filter(paused).count() >= 3, "{is_exact}");
    }
}

/// The vCPU is blocked when it is paused, and is woken during the pause. So it must be runnable
/// when it is resumed.
#[test]
fn vcpu_that_is_blocked_can_be_paused_and_resumed() {
    let Some(_alone) = begin() else { return };
    let target = Target::sleeper();
    let mut open = Open::on(cpus(1));
    let id = open.join(target.as_one(share(2_000, 10_000, true)));
    for _ in 0..10 {
        open.go_on(Span::from_ms(40));
        open.session.pause(id, NOW).unwrap();
        target.rests();
        open.session.resume(id, NOW).unwrap();
        target.runs();
    }
    open.close();
    target.is_given_back();
}

/// Two vCPUs are threads of one process. Pausing and resuming one of them does not affect the
/// other.
#[test]
fn pausing_one_thread_of_a_process_leaves_other_threads_running() {
    let Some(_alone) = begin() else { return };
    let target = Target::threaded();
    let mut open = Open::on(cpus(1));
    let threads = target.by_thread();
    let share = share(2_000, 10_000, false);
    let request = |who| request(who, share.clone());
    let ids = open.session.join(threads.into_iter().map(request).collect()).unwrap();
    assert_eq!(ids.iter().map(|id| id.vcpu().number()).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(ids[0].vcpu().domain(), ids[1].vcpu().domain());
    open.go_on(Span::from_ms(100));
    match open.session.pause(ids[0], NOW) {
        Err(RequestError::Fence(FenceError::Group(why))) => {
            println!("skipped: needs the freezer: {why}");
            return;
        }
        result => result.unwrap(),
    }
    target.runs();
    open.session.pause(ids[1], NOW).unwrap();
    target.rests_frozen();
    open.session.resume(ids[0], NOW).unwrap();
    target.runs();
    open.close();
    target.is_given_back();
    target.runs();
}

#[test]
fn vcpu_with_changed_affinity_runs_only_on_its_new_cpu() {
    let Some(_alone) = begin() else { return };
    let real = cpus(2);
    if real.len() < 2 {
        println!("skipped: needs two CPUs");
        return;
    }
    let target = Target::spinner();
    let mut open = Open::on(real.clone());
    let only = |cpu| CpuSet::one(CpuId::new(cpu));
    // The target joins on one CPU only, and may use slack on that CPU.
    let mut request = target.as_one(share(1_000, 10_000, false));
    request.cpus = Some(only(1));
    let id = open.join(request);
    for cpu in [1, 0, 1] {
        open.session.move_to(id, only(cpu), NOW).unwrap();
        assert_eq!(get_affinity(target.pid()).unwrap(), CpuSet::one(real[cpu]));
        let since = open.session.now();
        open.go_on(Span::from_ms(200));
        // Records that arrive late for the previous CPU start before this time.
        assert_eq!(open.ran(id, since + Span::from_ms(20)).1, only(cpu));
        assert_eq!(get_affinity(target.pid()).unwrap(), CpuSet::one(real[cpu]));
    }
    let nowhere = open.session.move_to(id, only(2), NOW);
    assert!(matches!(nowhere, Err(RequestError::NoSuchCpus { .. })), "{nowhere:?}");
    // The session refuses to move the target to a CPU without enough available capacity.
    let other = Target::spinner();
    let mut request = other.as_one(share(8_500, 10_000, false));
    request.cpus = Some(only(0));
    open.join(request);
    open.session.change(id, share(2_000, 10_000, false), NOW).unwrap();
    let refused = open.session.move_to(id, only(0), NOW);
    assert!(matches!(refused, Err(RequestError::Declined(_))), "{refused:?}");
    assert_eq!(get_affinity(target.pid()).unwrap(), CpuSet::one(real[1]));
    open.close();
    target.is_given_back();
    other.is_given_back();
}

/// The programs `chrt` and `taskset` change a member's thread. The session undoes the changes and
/// reports them.
#[test]
fn scheduling_class_and_affinity_set_by_other_programs_are_undone() {
    let Some(_alone) = begin() else { return };
    let real = cpus(2);
    let target = Target::spinner();
    let mut open = Open::on(real[..1].to_vec());
    let id = open.join(target.as_one(share(5_000, 10_000, true)));
    open.go_on(Span::from_ms(100));
    assert_eq!(open.undone(), []);
    let ordered = get_affinity(target.pid()).unwrap();
    let mut found = Vec::new();
    wait_until("a change of class to be noticed", || {
        // A target with budget left is real-time, and otherwise it may have its original class. So
        // the test sets a class that differs from both.
        let ordinary = SchedulingOf { class: Scheduling::Batch { nice: 3 }, reset_on_fork: false };
        set_scheduling(target.pid(), &ordinary).unwrap();
        found = open.undone();
        !found.is_empty()
    });
    assert!(matches!(found[..], [(it, ForeignChange::Class { .. })] if it == id), "{found:?}");
    let now = get_scheduling(target.pid()).unwrap().class;
    assert!(!matches!(now, Scheduling::Batch { .. }), "{now:?}");
    if let [_, other] = real[..] {
        wait_until("a change of CPUs to be noticed, or to be impossible", || {
            let moved = set_affinity(target.pid(), &CpuSet::one(other));
            found = open.undone();
            moved.is_err() || found.iter().any(|(_, it)| matches!(it, ForeignChange::Cpus { .. }))
        });
        assert_eq!(get_affinity(target.pid()).unwrap(), ordered);
    }
    open.close();
    target.is_given_back();
}

#[test]
fn join_id_of_departed_vcpu_stays_unknown_after_slot_reuse() {
    let Some(_alone) = begin() else { return };
    let target = Target::spinner();
    let mut open = Open::on(cpus(1));
    let mut before: Vec<JoinId> = Vec::new();
    for _ in 0..20 {
        let id = open.join(target.as_one(share(1_000, 10_000, false)));
        assert_eq!(id.vcpu().slot(), 0);
        for &old in &before {
            let answers = [
                open.session.change(old, share(2_000, 10_000, false), NOW),
                open.session.pause(old, NOW),
                open.session.resume(old, NOW),
                open.session.leave(old),
            ];
            let is_unknown =
                |answer: &Result<(), _>| matches!(answer, Err(RequestError::Unknown { .. }));
            assert!(answers.iter().all(is_unknown), "{answers:?}");
        }
        open.session.leave(id).unwrap();
        target.is_given_back();
        before.push(id);
    }
    open.close();
}

#[test]
fn failed_join_restores_its_threads_and_affects_no_other_vcpu() {
    let Some(_alone) = begin() else { return };
    let (one, two) = (Target::spinner(), Target::threaded());
    let mut open = Open::on(cpus(1));
    let id = open.join(one.as_one(share(5_000, 10_000, true)));
    // The target is already a member.
    let again = open.session.join(vec![one.as_one(share(1_000, 10_000, true))]).unwrap_err();
    assert!(
        matches!(again.error, RequestError::Fence(FenceError::HeldAlready { .. })),
        "{again:?}"
    );
    // The second request of the group exceeds the capacity, so the first does not join either.
    let request = |who| request(who, share(3_000, 10_000, false));
    let group: Vec<Request> = two.by_thread().into_iter().map(request).collect();
    let declined = open.session.join(group).unwrap_err();
    assert_eq!(declined.index, 1);
    assert!(matches!(declined.error, RequestError::Declined(_)), "{declined:?}");
    two.is_given_back();
    // The target process does not exist.
    let gone = Target::spinner();
    let request = gone.as_one(share(1_000, 10_000, true));
    drop(gone);
    let refused = open.session.join(vec![request]).unwrap_err();
    assert!(matches!(refused.error, RequestError::Thread(_)), "{refused:?}");
    let mut request = two.as_one(share(1_000, 10_000, true));
    request.cpus = Some(CpuSet::NONE);
    let refused = open.session.join(vec![request]).unwrap_err();
    assert!(matches!(refused.error, RequestError::NoSuchCpus { .. }), "{refused:?}");
    let members: Vec<_> =
        open.session.members().map(|it| (it.id, it.share.clone(), it.cpus)).collect();
    assert_eq!(members, [(id, share(5_000, 10_000, true), None)]);
    let before = one.used();
    open.go_on(Span::from_ms(300));
    assert!(one.used() > before);
    assert_eq!(get_affinity(one.pid()).unwrap(), cpus(1).into_iter().collect());
    open.close();
    one.is_given_back();
}

#[test]
fn sigstopped_target_stays_stopped_and_cannot_join_with_hard_limit() {
    let Some(_alone) = begin() else { return };
    let target = Target::spinner();
    target.signal(Signal::STOP);
    wait_until("the target to stop", || target.is_stopped());
    let mut open = Open::on(cpus(1));
    let refused = open.session.join(vec![target.as_one(share(1_000, 10_000, true))]).unwrap_err();
    assert!(matches!(refused.error, RequestError::Fence(FenceError::Stopped { .. })));
    let id = open.join(target.as_one(share(1_000, 10_000, false)));
    let refused = open.session.pause(id, NOW);
    assert!(matches!(refused, Err(RequestError::Fence(FenceError::Stopped { .. }))), "{refused:?}");
    open.go_on(Span::from_ms(100));
    assert!(target.is_stopped());
    target.signal(Signal::CONT);
    target.runs();
    open.session.pause(id, NOW).unwrap();
    target.rests();
    open.session.resume(id, NOW).unwrap();
    target.runs();
    target.signal(Signal::STOP);
    wait_until("the target to stop", || target.is_stopped());
    open.session.leave(id).unwrap();
    assert!(target.is_stopped());
    open.close();
    assert!(target.is_stopped());
    target.signal(Signal::CONT);
    target.is_given_back();
}

#[test]
fn session_reports_ended_vcpus_and_replaces_dead_keeper_processes() {
    let Some(_alone) = begin() else { return };
    let (stays, goes) = (Target::spinner(), Target::spinner());
    let mut open = Open::on(cpus(1));
    let first = open.join(stays.as_one(share(1_000, 10_000, true)));
    let second = open.join(goes.as_one(share(1_000, 10_000, true)));
    drop(goes);
    let mut ended = Vec::new();
    wait_until("the session to report the ended member", || {
        ended.extend(open.go_on(Span::from_ms(50)));
        !ended.is_empty()
    });
    assert_eq!(ended, [second]);
    let members: Vec<JoinId> = open.session.members().map(|member| member.id).collect();
    assert_eq!(members, [first]);
    // The next request finds that the keeper is dead, and the session starts another.
    let keeper = i32::try_from(open.session.keeper_id()).unwrap();
    kill(keeper, Signal::KILL);
    let_pass(Duration::from_millis(50));
    let other = Target::spinner();
    let third = open.join(other.as_one(share(1_000, 10_000, true)));
    assert_ne!(i32::try_from(open.session.keeper_id()).unwrap(), keeper);
    // A poll also finds that the keeper is dead.
    let keeper = open.session.keeper_id();
    kill(i32::try_from(keeper).unwrap(), Signal::KILL);
    wait_until("another keeper to start", || {
        nap();
        let seen = open.session.poll(&mut Vec::new()).unwrap();
        seen.keeper_replaced
    });
    assert_ne!(open.session.keeper_id(), keeper);
    open.session.pause(third, NOW).unwrap();
    other.rests();
    open.close();
    stays.is_given_back();
    other.is_given_back();
}

/// A thread of the target exits while the target is scheduled. The remaining threads are still
/// stopped and resumed.
#[test]
fn target_stays_limited_after_one_of_its_threads_exits() {
    let Some(_alone) = begin() else { return };
    let (mut target, hog) = (Target::ending(), Target::spinner());
    let mut open = Open::on(cpus(1));
    let id = open.join(target.as_one(share(2_000, 10_000, true)));
    open.join(hog.as_one(share(2_000, 10_000, false)));
    open.go_on(Span::from_ms(100));
    std::thread::scope(|scope| {
        let ends = scope.spawn(|| target.end_a_thread());
        while !ends.is_finished() {
            open.go_on(Span::from_ms(20));
        }
    });
    let (from, before) = (open.session.now(), target.used());
    wait_until("the target to run after one of its threads has exited", || {
        open.go_on(Span::from_ms(100));
        target.used() > before + Span::from_ms(20)
    });
    // Beside the hog, a target that is never stopped would receive about half of this second.
    open.go_on(Span::from_secs(1));
    let (used, length) = (target.used() - before, open.session.now() - from);
    assert!(used <= length / 5 + LATE, "{used} in {length}");
    open.session.leave(id).unwrap();
    target.is_given_back();
    target.runs();
    open.close();
    hog.is_given_back();
}

/// A hundred members share one CPU. Each has a hard limit of 0.5 % of this CPU.
#[test]
fn hundred_session_vcpus_on_one_cpu_stay_within_reserved_shares() {
    let Some(_alone) = begin() else { return };
    // The session is opened first, because a keeper that starts while a hundred spinners run may
    // take too long.
    let mut open = Open::on(cpus(1));
    let targets: Vec<Target> = (0..100).map(|_| Target::spinner()).collect();
    let group = targets.iter().map(|target| target.as_one(share(500, 100_000, true))).collect();
    open.session.join(group).unwrap();
    assert_eq!(open.session.members().count(), 100);
    let (from, before) = (open.session.now(), targets.iter().map(Target::used).collect::<Vec<_>>());
    assert_eq!(open.go_on(Span::from_secs(2)), []);
    // On a busy test machine it may take long until every target has run once.
    wait_until("every target to run", || {
        open.go_on(Span::from_ms(100));
        targets.iter().zip(&before).all(|(target, &before)| target.used() > before)
    });
    let length = open.session.now() - from;
    let used: Vec<_> =
        targets.iter().zip(&before).map(|(target, &before)| target.used() - before).collect();
    assert!(used.iter().all(|&used| used <= length / 200 + LATE), "{used:?} in {length}");
    let all = used.iter().fold(Span::ZERO, |all, &used| all + used);
    assert!(all <= length / 2 + LATE * 2, "{all} in {length}");
    open.close();
    for target in &targets {
        target.is_given_back();
    }
}

/// A member with 100 ms in every second increases and reduces its slice by a millisecond in turn,
/// ten times a second. It receives its reservation plus at most one slice. If each change granted a
/// whole slice, the member would receive several times its reservation. A tolerance of 50 % allows
/// for a test machine that stops the member late.
#[test]
fn ten_slice_changes_per_second_gain_no_cpu_time() {
    let Some(_alone) = begin() else { return };
    let target = Target::spinner();
    let mut open = Open::on(cpus(1));
    let terms = |round: u64| share(100_000 + round % 2 * 1_000, 1_000_000, true);
    let id = open.join(target.as_one(terms(0)));
    let (from, before) = (open.session.now(), target.used());
    for round in 1..=25 {
        open.go_on(Span::from_ms(100));
        open.session.change(id, terms(round), NOW).unwrap();
    }
    let (used, length) = (target.used() - before, open.session.now() - from);
    let most = length * 101 / 1_000 + Span::from_ms(101);
    assert!(!used.is_zero() && used <= most + most / 2, "{used} in {length}, at most {most}");
    open.session.leave(id).unwrap();
    target.is_given_back();
    open.close();
}
