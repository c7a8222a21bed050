//! Tests of `apply`, `list --toml` and patterns of names. The daemon's front process is real, and
//! the tests answer in place of its core process.

use slackline_control::link::{Answer, Request};
use slackline_control::{
    ANOTHER_VM, AppliedChange, Event, Kind, Machine, Problem, Reservation, Thread,
};

use crate::service::{Daemon, Outcome, fine};

fn machine(name: &str, vcpus: u16) -> Machine {
    let thread = |vcpu| Thread { vcpu, tid: 100 + i32::from(vcpu) };
    Machine {
        name: name.into(),
        kind: "libvirt".into(),
        binding: format!("libvirt:{name}"),
        uid: 0,
        pid: 100,
        cpu_ppm: None,
        vcpus: (0..vcpus).map(thread).collect(),
        reserved: None,
        why: None,
    }
}

/// Answers requests in place of the daemon's core process, and accepts lists of reservations
/// without the name `big`. The VM `new` has two vCPUs.
fn applies(request: &Request) -> Outcome {
    match request {
        Request::Find { .. } => Ok(Answer::Machines(vec![machine("new", 2), machine("x", 1)])),
        Request::Apply { list } => {
            if list.reservations.contains_key("big") {
                let refused = Problem::new(Kind::NoRoom, "big: no room");
                return Err(refused.hinting("nothing was changed"));
            }
            let change = |(name, wanted): (&String, &slackline_control::ReservationParameters)| {
                AppliedChange {
                    name: name.clone(),
                    action: "create".into(),
                    before: None,
                    after: Some(format!("2ms/10ms, {}", wanted.binding.as_deref().unwrap_or("?"))),
                    revision: Some(8),
                }
            };
            Ok(Answer::Applied(list.reservations.iter().map(change).collect()))
        }
        Request::Predict(_) => Ok(Answer::Predictions(Vec::new())),
        other => fine(other),
    }
}

#[test]
fn apply_command_sets_binding_and_vcpu_count_of_new_reservation() {
    let Some(daemon) = Daemon::new(applies) else { return };
    daemon.write("list.toml", "[new]\ncpu = \"30%\"\n[web]\nslice = \"3ms\"\nexact = true\n");
    let file = daemon.path("list.toml");
    let text = daemon.run(&["apply", &file, "--prune"]).good();
    assert!(text.contains("2ms/10ms, libvirt:new"), "{text}");
    assert!(text.ends_with("create 2, change 0, release 0, keep 0\n"), "{text}");
    let list = loop {
        if let Request::Apply { list } = daemon.heard() {
            break list;
        }
    };
    let new = &list.reservations["new"];
    assert_eq!((new.binding.as_deref(), new.vcpus), (Some("libvirt:new"), Some(2)));
    // An existing reservation keeps its VM.
    assert_eq!(list.reservations["web"].binding, None);
    assert!(list.prune && !list.dry_run);
}

#[test]
fn apply_command_error_about_invalid_file_states_line_and_vm() {
    let Some(daemon) = Daemon::new(applies) else { return };
    let refused = |text: &str, code: i32| {
        daemon.write("list.toml", text);
        daemon.run(&["apply", &daemon.path("list.toml")]).refused(code)
    };
    refused("[web]\nslize = \"3ms\"\n", 2).says("list.toml:2:1: ").says("unknown field `slize`");
    refused("[web]\ncpu = 3\n", 2).says("list.toml:2:7: ").says("hint:");
    refused("[nowhere]\ncpu = \"3%\"\n", 2).says("nowhere: cannot find nowhere on this host");
    let big = "[big]\ncpu = \"90%\"\nfor = \"libvirt:big\"\nvcpus = 1\n";
    refused(big, 4).says("big: no room").says("nothing was changed");
}

/// A reservation guarantees CPU time, which a quota or a weight cannot do alone.
#[test]
fn reservation_with_mechanism_quota_or_weight_is_refused_with_hint() {
    let Some(daemon) = Daemon::new(applies) else { return };
    for by in ["quota", "weight"] {
        let says = format!("`{by}` guarantees no share of its own");
        let limit = "limit a VM by `slackline hold --at-most`";
        let list = format!("[web]\nslice = \"3ms\"\nenforce = \"{by}\"\n");
        daemon.write("list.toml", &list);
        let file = daemon.path("list.toml");
        daemon.run(&["apply", &file]).refused(2).says("list.toml:3:11: ").says(&says).says(limit);
        for command in ["reserve", "change"] {
            let more = [command, "web", "--slice", "3ms", "--enforce", by];
            daemon.run(&more).ended_with(2).says(&says).says(limit);
        }
    }
}

/// Predictions of a plan are sent to the daemon after the reservations. A mistake in a plan is
/// reported at its own line.
#[test]
fn apply_command_sends_plan_predictions_and_reports_error_line_numbers() {
    let Some(daemon) = Daemon::new(applies) else { return };
    let prediction = "[[web.predicted]]\nvcpu = \"web.0\"\nlength_ns = 9\nshare_ppm = [1, 2]\n";
    let plan = format!("[web]\nslice = \"3ms\"\nperiod = \"10ms\"\n{prediction}");
    daemon.write("plan.toml", &plan);
    let file = daemon.path("plan.toml");
    daemon.run(&["apply", &file]).good();
    let sent = loop {
        if let Request::Predict(predictions) = daemon.heard() {
            break predictions;
        }
    };
    assert_eq!((&*sent[0].vcpu, sent[0].share_ppm), ("web.0", (1, 2)));
    daemon.write("plan.toml", &plan.replace("\"3ms\"", "\"3 apples\""));
    daemon.run(&["apply", &file]).ended_with(2).says("plan.toml:2:9");
    daemon.write("plan.toml", &plan.replace("vcpu = ", "cpu = "));
    daemon.run(&["apply", &file]).ended_with(2).says("plan.toml:5:");
}

/// Answers requests in place of the daemon's core process. Each reservation of a list already has
/// the parameters of the list.
fn keeps(request: &Request) -> Outcome {
    let mut answer = applies(request)?;
    if let Answer::Applied(changes) = &mut answer {
        for change in changes {
            change.action = "keep".into();
            change.before = change.after.clone();
        }
    }
    Ok(answer)
}

#[test]
fn plan_that_changes_nothing_records_no_predictions() {
    let Some(daemon) = Daemon::new(keeps) else { return };
    let prediction = "[[web.predicted]]\nvcpu = \"web.0\"\nlength_ns = 9\nshare_ppm = [1, 2]\n";
    daemon.write("plan.toml", &format!("[web]\nslice = \"2ms\"\n{prediction}"));
    let ran = daemon.run(&["apply", &daemon.path("plan.toml")]).ended_with(0);
    ran.shows("keep 1").says("the plan changes nothing, so its predictions are not recorded");
    daemon.run(&["log"]).good();
    loop {
        match daemon.heard() {
            Request::Predict(predictions) => panic!("recorded: {predictions:?}"),
            Request::Log { .. } => break,
            _ => {}
        }
    }
}

/// The daemon compares the revision of the host in a plan with the present revision of the host.
#[test]
fn apply_command_sends_plan_revision_and_refuses_an_invalid_one() {
    let Some(daemon) = Daemon::new(applies) else { return };
    let file = daemon.path("plan.toml");
    daemon.write("plan.toml", "_revision = 12\n[web]\nslice = \"3ms\"\n");
    for dry_run in [&[][..], &["--dry-run"]] {
        daemon.run(&[&["apply", &file][..], dry_run].concat()).good();
        let list = loop {
            if let Request::Apply { list } = daemon.heard() {
                break list;
            }
        };
        assert_eq!((list.revision, list.dry_run), (Some(12), !dry_run.is_empty()));
    }
    for wrong in ["\"12\"", "-1", "1.5", "[]"] {
        daemon.write("plan.toml", &format!("# a plan\n_revision = {wrong}\n"));
        let refused = daemon.run(&["apply", &file]).refused(2);
        refused.says("plan.toml:2:13: ").says("`_revision` is not a whole number");
    }
}

#[test]
fn apply_command_with_dry_run_option_reports_nothing_was_changed() {
    let Some(daemon) = Daemon::new(applies) else { return };
    daemon.write("list.toml", "[new]\ncpu = \"30%\"\n");
    let text = daemon.run(&["apply", &daemon.path("list.toml"), "--dry-run"]).good();
    assert!(text.ends_with("dry run: nothing was changed\n"), "{text}");
}

#[test]
fn apply_command_accepts_file_that_list_command_printed_as_toml() {
    let Some(daemon) = Daemon::new(applies) else { return };
    let text = daemon.run(&["list", "--toml"]).good();
    daemon.write("list.toml", &text);
    daemon.run(&["apply", &daemon.path("list.toml")]).good();
    let list = loop {
        if let Request::Apply { list } = daemon.heard() {
            break list;
        }
    };
    let names: Vec<&str> = list.reservations.keys().map(String::as_str).collect();
    assert_eq!(names, ["db", "web"]);
    let web = serde_json::to_string(&list.reservations["web"]).expect("JSON");
    // The default mechanism of the daemon does not replace the mechanism in the file.
    let expected = r#"{"slice":"2ms","period":"10ms","exact":true,"vcpus":2,"for":"libvirt:web","#
        .to_owned()
        + r#""user":0,"enforce":"dispatcher"}"#;
    assert_eq!(web, expected);
}

/// Answers requests in place of the daemon's core process, as for a tenant who may not see the
/// names of two further reservations.
fn hides(request: &Request) -> Outcome {
    let mut answer = applies(request)?;
    if let (Request::List { name: None, .. }, Answer::Reservations(all)) = (request, &mut answer) {
        let (name, binding) = (ANOTHER_VM.to_owned(), ANOTHER_VM.to_owned());
        let hidden = Reservation { name, binding, user: u32::MAX, ..all[0].clone() };
        all.extend([hidden.clone(), hidden]);
    }
    Ok(answer)
}

#[test]
fn toml_output_and_name_patterns_omit_reservations_with_hidden_names() {
    let Some(daemon) = Daemon::new(hides) else { return };
    let text = daemon.run(&["list", "--toml"]).good();
    assert!(text.contains("\n# Reservations of other owners, left out: 2.\n"), "{text}");
    let list: toml::Table = text.parse().expect("TOML");
    assert_eq!(list.keys().collect::<Vec<_>>(), ["db", "web"]);
    daemon.write("list.toml", &text);
    daemon.run(&["apply", &daemon.path("list.toml")]).good();
    let released = daemon.run(&["release", "*"]).good();
    assert_eq!(released, "db is released\nweb is released\n");
}

/// Answers requests in place of the daemon's core process. One of the two reservations has an end
/// time.
fn ends(request: &Request) -> Outcome {
    let mut answer = applies(request)?;
    if let Answer::Reservations(all) = &mut answer {
        let until = "2126-12-01T18:00".parse().expect("a time");
        all[0].until = Some(slackline_control::Moment(until));
        all[0].until_ns = Some(until.ns());
    }
    Ok(answer)
}

#[test]
fn list_command_output_keeps_reservation_end_times_when_applied() {
    let Some(daemon) = Daemon::new(ends) else { return };
    let shown = daemon.run(&["list", "--columns", "name,until", "--csv"]).good();
    assert_eq!(shown, "name,until\ndb,2126-12-01 18:00:00\nweb,\n");
    assert!(daemon.run(&["list"]).good().contains("2126-12-01 18:00:00"));
    daemon.write("list.toml", &daemon.run(&["list", "--toml"]).good());
    daemon.run(&["apply", &daemon.path("list.toml")]).good();
    let list = loop {
        if let Request::Apply { list } = daemon.heard() {
            break list;
        }
    };
    let until = |name: &str| list.reservations[name].until.map(|until| until.0.to_string());
    assert_eq!((until("db").as_deref(), until("web")), (Some("2126-12-01T18:00:00Z"), None));
    // A list in which no reservation has an end time has no column `until`.
    let Some(daemon) = Daemon::new(applies) else { return };
    assert!(!daemon.run(&["list"]).good().contains("until"));
}

#[test]
fn command_with_name_pattern_sends_one_request_per_matching_reservation() {
    let Some(daemon) = Daemon::new(applies) else { return };
    let text = daemon.run(&["release", "*b"]).good();
    assert_eq!(text, "db is released\nweb is released\n");
    daemon.run(&["pause", "w?b", "--yes"]).good();
    daemon.run(&["change", "x*", "--slice", "1ms"]).refused(2).says("no reservation matches `x*`");
    let both = ["resume", "*", "--if-revision", "7"];
    daemon.run(&both).refused(2).says("--if-revision cannot be combined with the pattern `*`");
}

/// Answers requests in place of the daemon's core process, and refuses every second change, as if
/// the rate limit was exceeded.
fn limits(request: &Request) -> Outcome {
    static CHANGES: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let is_change = matches!(request, Request::Change { .. });
    let changes = || CHANGES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    if is_change && changes().is_multiple_of(2) {
        return Err(Problem::new(Kind::TooMany, "too many changes"));
    }
    applies(request)
}

#[test]
fn command_with_name_pattern_waits_if_daemon_limits_request_rate() {
    let Some(daemon) = Daemon::new(limits) else { return };
    let text = daemon.run(&["change", "*", "--slice", "2ms"]).good();
    assert_eq!(text.lines().count(), 2, "{text}");
}

/// Answers requests in place of the daemon's core process. Its log has the events 1 to 1,200, in
/// which event 7 is missing.
fn logs(request: &Request) -> Outcome {
    let Request::Log { before, limit, .. } = request else { return fine(request) };
    let newest = before.map_or(1_200, |before| before - 1);
    let numbers = (1..=newest).rev().filter(|number| *number != 7).take(*limit);
    let event = |seq| Event {
        seq,
        // Events are an hour apart, and the newest is now.
        at_ns: now() - (1_200 - seq) * 3_600_000_000_000,
        principal: "uid 0".into(),
        verb: "pause".into(),
        name: "web".into(),
        before: None,
        after: None,
        outcome: "pause".into(),
        was_late: false,
    };
    Ok(Answer::Events(numbers.map(event).collect()))
}

fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(now.expect("after 1970").as_nanos()).expect("before 2500")
}

#[test]
fn log_command_fetches_enough_pages_for_the_requested_events() {
    let Some(daemon) = Daemon::new(logs) else { return };
    let lines = |args: &[&str]| daemon.run(args).good().lines().count() - 1;
    assert_eq!(lines(&["log", "--csv"]), 20);
    assert_eq!(lines(&["log", "--csv", "--last", "1100"]), 1_100);
    // The missing number 7 has a line of its own.
    assert_eq!(lines(&["log", "--csv", "--last", "5000"]), 1_200);
    let text = daemon.run(&["log", "--csv", "--last", "5000"]).good();
    assert!(text.contains("\n7,,,,\"no change (a repeated request,"), "{text}");
    // The time is between two events, so that the duration of the test does not matter.
    assert_eq!(lines(&["log", "--csv", "--since", "36030min"]), 601);
    let ran = daemon.run(&["log", "--since", "yesterday"]);
    assert!(ran.code == Some(2) && ran.err.contains("a day such as `2026-11-26`"), "{}", ran.err);
}

#[test]
fn tables_are_not_wrapped_if_the_output_is_a_pipe() {
    let Some(daemon) = Daemon::new(fine) else { return };
    for verb in ["list", "log"] {
        let text = daemon.run(&[verb]).good();
        let heads = text.lines().filter(|line| line.starts_with('\u{2500}')).count();
        assert_eq!(heads, 1, "one table:\n{text}");
    }
    let chosen = daemon.run(&["list", "--columns", "state,name", "--csv"]).good();
    assert_eq!(chosen, "state,name\npartial,db\npartial,web\n");
    daemon.run(&["list", "--columns", "sate"]).refused(2).says("choose from name, state,");
}
