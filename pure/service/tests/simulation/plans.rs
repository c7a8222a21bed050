//! Tests of plans: outcomes of canaries, undoing a plan, and deaths of the service before each
//! call.

use slackline_service::{
    Amount, Answer, EventKind, Input, Name, PlanStage, Principal, Refusal, Request, Role, Row,
    VmPrediction,
};
use slackline_units::{CpuShare, Span};

use crate::checks::Checked;
use crate::draw::Draw;
use crate::requests::{self, ROOT, Who};
use crate::run::Run;

/// An administrator who is not root.
const OTHER: Who = (Principal::User(7), Some(slackline_service::Role::Administrator));

const WATCH: Span = Span::from_secs(2);

fn reserve(name: &str, slice_ms: u64) -> Request {
    requests::reserve(name, &format!("qemu:{name}"), slice_ms, None)
}

fn targets(targets: &[(&str, u64)]) -> Vec<Request> {
    targets.iter().map(|&(name, slice)| reserve(name, slice)).collect()
}

fn list(of: &[(&str, u64)]) -> Request {
    Request::Apply { targets: targets(of), prune: false, dry_run: false, revision: None }
}

/// Returns a request to apply a list with a canary. The request predicts a share of 20 % of a CPU
/// for each VM.
fn canary(of: &[(&str, u64)], prune: bool, revision: Option<u64>) -> Request {
    let prediction = |&(name, _): &(&str, u64)| VmPrediction {
        name: name.parse().expect("a name"),
        share_ppm: (200_000, 200_000),
        missed: Some(0),
        length: WATCH,
    };
    let predictions = of.iter().map(prediction).collect();
    Request::Canary { targets: targets(of), prune, watch: WATCH, revision, predictions }
}

fn change(name: &str, slice_ms: u64) -> Request {
    let Request::Reserve { name, amount, .. } = reserve(name, slice_ms) else { unreachable!() };
    let (exact, phase, vcpus) = (None, None, None);
    let (until, enforce, if_revision) = (None, None, None);
    let amount = Some(amount);
    Request::Change { name, amount, exact, phase, vcpus, until, enforce, why: None, if_revision }
}

/// Sends a request, and returns its answer after the commit.
fn ask(run: &mut Run, who: Who, request: Request) -> Result<Answer, Refusal> {
    run.ask(who, request, None).expect("no check fails");
    run.pass(Span::from_ms(100)).expect("no check fails");
    let replies = run.replies();
    let [(_, reply)] = <[_; 1]>::try_from(replies).expect("a request has one answer");
    reply
}

/// Returns the name and the slice in milliseconds of each reservation that the service lists.
fn listed(run: &Run) -> Vec<(String, u64)> {
    let all = run.service.listed().map(|(_, listed)| listed.row);
    all.map(|row| (row.name.to_string(), row.terms.each().slice().ns() / 1_000_000)).collect()
}

fn named(rows: &[(&str, u64)]) -> Vec<(String, u64)> {
    rows.iter().map(|&(name, slice)| (name.to_owned(), slice)).collect()
}

fn stage(run: &Run, who: Who) -> Option<PlanStage> {
    run.service.plan_of(who.0).map(|plan| plan.stage.clone())
}

/// Returns all entries of the log that are about canaries.
fn logged(run: &Run) -> Vec<String> {
    let events = run.model.disk.events.iter().map(|event| event.what.to_string());
    events.filter(|what| what.starts_with("canary")).collect()
}

#[test]
fn plan_continues_with_all_changes_if_canary_is_as_predicted() {
    let mut run = Run::new(1, None, false);
    ask(&mut run, ROOT, list(&[("a", 2), ("b", 2), ("c", 1)])).expect("there is room");
    run.model.measured_ppm = 210_000;
    let answer = ask(&mut run, ROOT, canary(&[("a", 1), ("b", 3), ("d", 2)], true, None));
    assert!(matches!(answer, Ok(Answer::Applied { .. })), "{answer:?}");
    assert_eq!(listed(&run), named(&[("a", 1), ("b", 2), ("c", 1)]), "only the first is changed");
    let again = ask(&mut run, ROOT, list(&[("a", 2)]));
    assert!(matches!(again, Err(Refusal::NotNow { .. })), "{again:?}");
    run.pass(Span::from_ms(2_200)).expect("all holds");
    assert_eq!(listed(&run), named(&[("a", 1), ("b", 2), ("c", 1)]));
    run.pass(Span::from_ms(300)).expect("all holds");
    assert_eq!(listed(&run), named(&[("a", 1), ("b", 3), ("d", 2)]));
    assert_eq!(stage(&run, ROOT), Some(PlanStage::Done));
    let told = [
        "canary: a is changed first and watched for 2s; waiting changes: 3",
        "canary: a behaves as predicted; other changes made: 3",
    ];
    assert_eq!(logged(&run), told);
    // Undoing the plan reverts all its changes.
    ask(&mut run, ROOT, Request::Undo).expect("nothing has moved");
    assert_eq!(listed(&run), named(&[("a", 2), ("b", 2), ("c", 1)]));
    assert_eq!(ask(&mut run, ROOT, Request::Undo), Err(Refusal::NothingToUndo));
    run.finish().expect("no check fails");
}

#[test]
fn canary_that_differs_from_prediction_is_undone_and_ends_plan() {
    let mut run = Run::new(1, None, false);
    ask(&mut run, ROOT, list(&[("a", 2), ("b", 2)])).expect("there is room");
    run.model.measured_ppm = 230_000;
    ask(&mut run, ROOT, canary(&[("a", 1), ("b", 3)], false, None)).expect("there is room");
    run.pass(Span::from_secs(3)).expect("all holds");
    assert_eq!(listed(&run), named(&[("a", 2), ("b", 2)]));
    let why = "a received 23.00 % of a CPU, predicted were 20.00 to 20.00 %";
    assert_eq!(stage(&run, ROOT), Some(PlanStage::Undone(why.into())));
    assert_eq!(logged(&run).last(), Some(&format!("canary: undone: {why}")));
    assert_eq!(ask(&mut run, ROOT, Request::Undo), Err(Refusal::NothingToUndo));
    run.finish().expect("no check fails");
}

#[test]
fn canary_is_undone_if_later_plan_changes_are_refused() {
    for moves in [true, false] {
        let mut run = Run::new(1, None, false);
        ask(&mut run, ROOT, list(&[("a", 2), ("b", 2)])).expect("there is room");
        run.model.measured_ppm = 200_000;
        ask(&mut run, ROOT, canary(&[("a", 1), ("b", 4)], false, None)).expect("there is room");
        let meanwhile = if moves { change("b", 3) } else { reserve("late", 5) };
        ask(&mut run, OTHER, meanwhile).expect("there is room");
        run.pass(Span::from_secs(3)).expect("all holds");
        let Some(PlanStage::Undone(why)) = stage(&run, ROOT) else { panic!("it is not undone") };
        let begin = "cannot make the other changes: ";
        let part = if moves { "b is at revision" } else { "cannot make the other changes: b: " };
        assert!(why.starts_with(begin) && why.contains(part), "{why}");
        assert_eq!(listed(&run)[0], ("a".to_owned(), 2));
        run.finish().expect("no check fails");
    }
}

#[test]
fn plan_stops_if_another_user_changes_the_canary_reservation() {
    let mut run = Run::new(1, None, false);
    ask(&mut run, ROOT, list(&[("a", 2), ("b", 2)])).expect("there is room");
    run.model.measured_ppm = 200_000;
    ask(&mut run, ROOT, canary(&[("a", 1), ("b", 3)], false, None)).expect("there is room");
    ask(&mut run, OTHER, change("a", 3)).expect("there is room");
    run.pass(Span::from_secs(3)).expect("all holds");
    assert!(matches!(stage(&run, ROOT), Some(PlanStage::Stopped(_))));
    assert_eq!(listed(&run), named(&[("a", 3), ("b", 2)]));
    run.finish().expect("no check fails");
}

#[test]
fn canary_request_based_on_outdated_host_revision_is_refused() {
    let mut run = Run::new(1, None, false);
    ask(&mut run, ROOT, list(&[("a", 2), ("b", 2)])).expect("there is room");
    let asked = run.service.revision();
    ask(&mut run, OTHER, change("b", 3)).expect("there is room");
    let is = run.service.revision();
    let refused = ask(&mut run, ROOT, canary(&[("a", 1)], false, Some(asked)));
    assert_eq!(refused, Err(Refusal::HostMoved { asked, is }));
    assert_eq!(listed(&run), named(&[("a", 2), ("b", 3)]));
    ask(&mut run, ROOT, canary(&[("a", 1)], false, Some(is))).expect("it is as recorded");
    // The end of a reservation also changes the revision of the host.
    let b: Name = "b".parse().expect("a name");
    ask(&mut run, OTHER, Request::Release { name: b, if_revision: None }).expect("it is there");
    assert!(run.service.revision() > is);
}

/// A client that got no answer may send its list again. The first application of the list has
/// changed the host's revision, but the repeated list changes nothing and is accepted.
#[test]
fn outdated_apply_request_is_refused_if_any_reservation_would_change() {
    let mut run = Run::new(1, None, false);
    ask(&mut run, ROOT, list(&[("a", 2), ("b", 2)])).expect("there is room");
    let asked = run.service.revision();
    ask(&mut run, OTHER, change("b", 3)).expect("there is room");
    let is = run.service.revision();
    let for_revision = |of: &[(&str, u64)], dry_run, revision| {
        let revision = Some(revision);
        Request::Apply { targets: targets(of), prune: false, dry_run, revision }
    };
    for dry_run in [false, true] {
        let refused = ask(&mut run, ROOT, for_revision(&[("a", 1), ("b", 2)], dry_run, asked));
        assert_eq!(refused, Err(Refusal::HostMoved { asked, is }), "dry run: {dry_run}");
    }
    assert_eq!(listed(&run), named(&[("a", 2), ("b", 3)]));
    ask(&mut run, ROOT, for_revision(&[("a", 2), ("b", 3)], false, asked)).expect("no change");
    ask(&mut run, ROOT, for_revision(&[("a", 1)], false, is)).expect("it is as recorded");
    assert_eq!(listed(&run), named(&[("a", 1), ("b", 3)]));
    run.finish().expect("no check fails");
}

#[test]
fn undo_request_is_refused_after_later_change_by_another_user() {
    let mut run = Run::new(1, None, false);
    ask(&mut run, ROOT, list(&[("a", 2), ("b", 2)])).expect("there is room");
    ask(&mut run, ROOT, change("a", 3)).expect("there is room");
    let asked = run.model.disk.rows[&"a".parse::<Name>().expect("a name")].revision;
    ask(&mut run, OTHER, change("a", 4)).expect("there is room");
    let is = run.model.disk.rows[&"a".parse::<Name>().expect("a name")].revision;
    let refused = ask(&mut run, ROOT, Request::Undo).expect_err("it has moved");
    assert_eq!(
        refused.to_string(),
        format!("a is at revision {is}, and the plan is for revision {asked}")
    );
    // Each principal can undo its own last change.
    ask(&mut run, OTHER, Request::Undo).expect("nothing has moved since");
    assert_eq!(listed(&run), named(&[("a", 3), ("b", 2)]));
}

#[test]
fn undone_release_restores_owner_and_all_parameters() {
    let mut run = Run::new(1, None, false);
    let tenant = (Principal::User(5001), Some(slackline_service::Role::Tenant));
    let mut request = reserve("a", 2);
    if let Request::Reserve { amount, phase, .. } = &mut request {
        let (share, period) = (CpuShare::from_ppm(200_000), Some(Span::from_ms(10)));
        *amount = Amount::Together { share, period };
        *phase = Some(Span::from_ms(3));
    }
    ask(&mut run, tenant, request).expect("it is its own VM");
    let a: Name = "a".parse().expect("a name");
    let before = run.model.disk.rows[&a].clone();
    let release = Request::Release { name: a.clone(), if_revision: None };
    ask(&mut run, ROOT, release).expect("it is there");
    assert!(!run.model.disk.rows.contains_key(&a), "it is released");
    ask(&mut run, ROOT, Request::Undo).expect("the name and the VM are free");
    let after = run.model.disk.rows[&a].clone();
    let (revision, since) = (after.revision, after.since);
    assert_eq!(after, Row { revision, since, ..before });
    run.finish().expect("no check fails");
}

#[test]
fn undo_works_after_a_vm_start_and_a_service_restart() {
    let mut run = Run::new(1, None, false);
    ask(&mut run, ROOT, list(&[("a", 2)])).expect("there is room");
    ask(&mut run, ROOT, change("a", 3)).expect("there is room");
    run.model.kernel.start("a", 0, 1);
    run.tell().expect("no check fails");
    run.pass(Span::from_ms(100)).expect("all holds");
    run.die().expect("no check fails");
    run.pass(Span::from_ms(100)).expect("all holds");
    ask(&mut run, ROOT, Request::Undo).expect("the reservation has not changed");
    assert_eq!(listed(&run), named(&[("a", 2)]));
    run.finish().expect("no check fails");
}

/// Behaviour of the model world in one run with a plan.
#[derive(Clone, Copy, Debug)]
struct Way {
    measured_ppm: u64,
    /// Number of the call before which the service dies.
    dies_at: u32,
    /// True if the commit that is in progress when the service dies is on the disk.
    is_there: bool,
    /// True if a commit takes longer than the watch of the canary.
    is_slow: bool,
}

const OLD: [(&str, u64); 3] = [("a", 2), ("b", 2), ("c", 1)];
const NEW: [(&str, u64); 3] = [("a", 1), ("b", 3), ("d", 2)];

/// Runs a plan in which the service can die. Returns two values: true if the service died, and true
/// if the plan was carried out.
fn play(run: &mut Run, way: Way) -> Result<(bool, bool), String> {
    ask(run, ROOT, list(&OLD)).expect("there is room");
    run.model.measured_ppm = way.measured_ppm;
    run.model.sync = if way.is_slow { WATCH * 2 } else { run.model.sync };
    run.is_there = way.is_there;
    run.model.dies_after = Some(run.model.calls + way.dies_at);
    run.ask(ROOT, canary(&NEW, true, None), None)?;
    let step = Span::from_ms(250);
    for _ in 0..60 {
        run.pass(step)?;
        let is_between = |(name, slice): &(String, u64)| {
            OLD.iter().chain(&NEW).any(|it| (it.0, it.1) == (name.as_str(), *slice))
        };
        if !listed(run).iter().all(is_between) {
            return Err(format!("neither old nor new: {:?}", listed(run)));
        }
    }
    let rows = listed(run);
    let died = run.deaths > 0;
    run.finish()?;
    if rows == named(&OLD) {
        Ok((died, false))
    } else if rows == named(&NEW) {
        Ok((died, true))
    } else {
        Err(format!("half of the plan is left: {rows:?}"))
    }
}

#[test]
fn service_crash_during_canary_leaves_plan_complete_or_undone() -> Checked {
    let (mut deaths, mut done, mut undone) = (0, 0, 0);
    for measured_ppm in [200_000, 300_000] {
        for (is_there, is_slow) in [(false, false), (true, false), (false, true), (true, true)] {
            for dies_at in 1.. {
                let way = Way { measured_ppm, dies_at, is_there, is_slow };
                let mut run = Run::new(1, None, true);
                match play(&mut run, way) {
                    Ok((false, _)) => break,
                    Ok((true, is_done)) => {
                        deaths += 1;
                        done += u32::from(is_done);
                        undone += u32::from(!is_done);
                        // A plan with a wrong prediction is never carried out.
                        assert!(!is_done || measured_ppm == 200_000, "{way:?}");
                    }
                    Err(error) => {
                        let trace = run.model.trace.unwrap_or_default().join("\n");
                        return Err(format!("{way:?}: {error}\n{trace}"));
                    }
                }
            }
        }
    }
    assert!(deaths > 60 && done > 20 && undone > 20, "{deaths} {done} {undone}");
    Ok(())
}

#[test]
fn ledger_failure_during_canary_leaves_plan_complete_or_undone() {
    // The ledger fails for four seconds, starting at each tenth of a second of the plan.
    for fails_ms in (0..3_000).step_by(100) {
        let mut run = Run::new(1, None, false);
        ask(&mut run, ROOT, list(&OLD)).expect("there is room");
        run.model.measured_ppm = 200_000;
        run.model.sync = Span::from_ms(60);
        run.ask(ROOT, canary(&NEW, true, None), None).expect("no check fails");
        run.pass(Span::from_ms(fails_ms)).expect("all holds");
        run.model.disk.fails = true;
        run.pass(Span::from_secs(4)).expect("all holds");
        run.model.disk.fails = false;
        run.pass(Span::from_secs(6)).expect("all holds");
        let rows = listed(&run);
        run.finish().expect("no check fails");
        // A smaller reservation takes nothing from other VMs, so that change may stay in force
        // without the ledger.
        let is_first = rows == named(&[("a", 1), ("b", 2), ("c", 1)]);
        let is_whole = rows == named(&OLD) || rows == named(&NEW);
        assert!(is_whole || is_first && fails_ms == 0, "at {fails_ms} ms: {rows:?}");
    }
}

/// Returns a random request about reservations for four VMs.
fn drawn_request(draw: &mut Draw) -> Request {
    let mut some = || -> Vec<(&str, u64)> {
        let all = ["a", "b", "c", "d"];
        let listed = all.into_iter().filter(|_| draw.percent(60)).collect::<Vec<_>>();
        listed.into_iter().map(|name| (name, 1 + draw.below(6))).collect()
    };
    let (one, other) = (some(), some());
    let name = draw.one_of(&["a", "b", "c", "d"]);
    match draw.below(10) {
        0..=1 => list(&one),
        2..=4 => canary(&other, draw.percent(30), None),
        5..=6 => Request::Undo,
        7 => change(name, 1 + draw.below(7)),
        8 => Request::Pause { name: name.parse().expect("a name"), if_revision: None },
        _ => Request::Release { name: name.parse().expect("a name"), if_revision: None },
    }
}

/// Sends random requests of two principals. Meanwhile VMs start and end, calls fail, the ledger
/// fails and the service dies. All invariants are checked after each step.
fn drawn(seed: u64, with_trace: bool) -> Result<[u32; 4], (String, Vec<String>)> {
    // With one CPU, the capacity that a refused list used for an instant may be missing when the
    // list is undone.
    let mut run = Run::new(2, None, with_trace);
    let played = play_drawn(&mut run, seed);
    played.map_err(|error| (error, run.model.trace.take().unwrap_or_default()))
}

fn play_drawn(run: &mut Run, seed: u64) -> Result<[u32; 4], String> {
    let mut draw = Draw::new(seed);
    run.model.faults = Some(Draw::new(seed ^ 0xff));
    for _ in 0..40 {
        run.model.measured_ppm = draw.one_of(&[200_000, 210_000, 260_000]);
        match draw.below(12) {
            0 => run.model.kernel.start(draw.one_of(&["a", "b", "c", "d"]), 0, 1),
            1 => run.model.kernel.end(draw.one_of(&["a", "b", "c", "d"])),
            2 => run.tell()?,
            3 => run.model.disk.fails = draw.percent(40),
            4 => {
                run.is_there = draw.percent(50);
                run.model.dies_after =
                    Some(run.model.calls + 1 + u32::try_from(draw.below(30)).expect("small"));
            }
            5 => run.model.sync = Span::from_ms(1 + draw.below(400)),
            _ => {
                let request = drawn_request(&mut draw);
                run.ask(draw.one_of(&[ROOT, OTHER]), request, None)?;
            }
        }
        run.pass(Span::from_ms(draw.below(1_500)))?;
        run.replies();
    }
    run.finish()?;
    run.pass(WATCH * 3)?;
    let mut stages = [0; 4];
    for who in [ROOT, OTHER] {
        let plan = run.service.plan_of(who.0);
        if plan != run.model.disk.plans.get(&who.0) {
            return Err(format!("{plan:?} differs from the ledger"));
        }
        match plan.map(|plan| &plan.stage) {
            Some(PlanStage::Watching { .. }) => return Err("a canary is watched forever".into()),
            Some(PlanStage::Done) => stages[0] += 1,
            Some(PlanStage::Undone(_)) => stages[1] += 1,
            Some(PlanStage::Stopped(_)) => stages[2] += 1,
            None => stages[3] += 1,
        }
    }
    Ok(stages)
}

#[test]
fn random_plans_under_faults_end_and_keep_all_invariants() {
    let mut all = [0; 4];
    for seed in 0..500 {
        match drawn(seed, false) {
            Ok(stages) => all.iter_mut().zip(stages).for_each(|(sum, more)| *sum += more),
            Err(_) => {
                let (error, trace) = drawn(seed, true).expect_err("it fails again");
                let last = trace.len().saturating_sub(60);
                panic!("seed {seed}: {error}\n{}", trace[last..].join("\n"));
            }
        }
    }
    // Each outcome of a plan must occur often.
    assert!(all.iter().all(|&count| count > 20), "{all:?}");
}

#[test]
fn canary_is_undone_when_access_of_its_caller_changes() {
    let mut run = Run::new(1, None, false);
    ask(&mut run, ROOT, list(&[("a", 2), ("b", 2)])).expect("there is room");
    run.model.measured_ppm = 200_000;
    let operator = (Principal::User(7), Some(slackline_service::Role::Operator));
    ask(&mut run, operator, canary(&[("a", 1), ("b", 1)], false, None)).expect("there is room");
    let (by, whom) = (Principal::User(0), Some(Principal::User(7)));
    let what = EventKind::Granted("uid 7 is tenant".into());
    run.step(Input::Access { by, whom, what }).expect("no check fails");
    run.pass(Span::from_ms(3_000)).expect("no check fails");
    assert_eq!(listed(&run), named(&[("a", 2), ("b", 2)]));
    let undone = PlanStage::Undone("the access of its caller was changed".into());
    assert_eq!(stage(&run, operator), Some(undone));
    run.finish().expect("no check fails");
}

/// Sends a request whose plan needs 3.3 MB in the ledger, because the caller may reserve for
/// 300,000 users and the plan stores them.
fn ask_at_length(run: &mut Run, who: Who, request: Request) -> Result<Answer, Refusal> {
    run.users = vec![1; 300_000];
    let answer = ask(run, who, request);
    run.users.clear();
    answer
}

/// Returns the users in `uids` that have a plan: first those in the service, then those in the
/// ledger.
fn with_plans(run: &Run, uids: std::ops::Range<u32>) -> [Vec<u32>; 2] {
    let has_plan = |uid: &u32| run.service.plan_of(Principal::User(*uid)).is_some();
    let is_stored = |uid: &u32| run.model.disk.plans.contains_key(&Principal::User(*uid));
    [uids.clone().filter(has_plan).collect(), uids.filter(is_stored).collect()]
}

const fn of_role(uid: u32, role: Role) -> Who {
    (Principal::User(uid), Some(role))
}

#[test]
fn oldest_plans_beyond_the_size_limit_are_dropped_except_canaries() {
    let mut run = Run::new(1, None, false);
    ask(&mut run, ROOT, list(&[("a", 2), ("b", 2)])).expect("there is room");
    let watched = of_role(10, Role::Operator);
    ask_at_length(&mut run, watched, canary(&[("a", 1)], false, None)).expect("a canary");
    run.model.measured_ppm = 200_000;
    for uid in 11..18 {
        let slice = u64::from(1 + uid % 2);
        ask_at_length(&mut run, of_role(uid, Role::Operator), change("b", slice)).expect("b");
        let disk = run.model.disk.plans.values();
        let bytes: usize = disk.map(slackline_service::Plan::stored_bytes).sum();
        assert!(bytes <= slackline_service::PLANS_BYTES, "{bytes} in the ledger");
    }
    // Five plans of 3.3 MB fit into 16 MiB. The plan in progress is not dropped.
    let left = vec![10, 14, 15, 16, 17];
    assert_eq!(with_plans(&run, 10..18), [left.clone(), left]);
}

#[test]
fn plans_in_progress_leave_room_for_plans_of_administrators() {
    let mut run = Run::new(1, None, false);
    let names = ["a", "b", "c", "d"];
    ask(&mut run, ROOT, list(&names.map(|name| (name, 1)))).expect("there is room");
    run.model.measured_ppm = 200_000;
    let canary_of = |name| canary(&[(name, 2)], false, None);
    for (uid, name) in (10..).zip(&names[..3]) {
        let who = of_role(uid, Role::Operator);
        ask_at_length(&mut run, who, canary_of(name)).expect("a canary");
    }
    let fourth = canary_of("d");
    let refused = ask_at_length(&mut run, of_role(13, Role::Operator), fourth.clone());
    let Err(Refusal::NotNow { why, .. }) = refused else { panic!("{refused:?}") };
    assert!(why.ends_with("and at most 12582912 are allowed"), "{why}");
    ask_at_length(&mut run, of_role(14, Role::Administrator), fourth).expect("an administrator");
    assert_eq!(with_plans(&run, 10..15)[0], [10, 11, 12, 14]);
}

#[test]
fn apply_request_with_too_large_undo_record_is_refused() {
    let mut run = Run::new(1, None, false);
    run.users = vec![1; 400_000];
    for request in [list(&[("a", 2)]), canary(&[("a", 1)], false, None)] {
        let refused = ask(&mut run, ROOT, request);
        let Err(Refusal::LargePlan { bytes, most }) = refused else { panic!("{refused:?}") };
        assert!(bytes > 4_400_000 && most == slackline_service::PLAN_BYTES, "{bytes}");
    }
    assert_eq!(listed(&run), []);
}
