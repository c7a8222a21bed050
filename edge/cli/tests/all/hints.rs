//! Tests that refusals name what the user should type instead, in the notation that the user used.

use slackline_control::link::Request;
use slackline_control::{Kind, Length, NoRoom, Problem, Share};
use slackline_units::{CpuShare, Span};

use crate::common::Place;
use crate::service::{Daemon, Outcome, fine};

/// Answers requests in place of the daemon's core process. Refuses a reservation that requests a
/// share for two vCPUs, because of a lack of capacity.
fn full(request: &Request) -> Outcome {
    let Request::Reserve { wanted, .. } = request else { return fine(request) };
    let Some(Share(share)) = wanted.cpu else { return fine(request) };
    if share >= CpuShare::from_ppm(2_000_000) {
        return Err(Problem::new(Kind::Bad, "50cpu is more than 1 vCPU can use"));
    }
    let slice = Length(Span::from_ns(u64::from(share.ppm()) * 5));
    let mut problem = Problem::new(Kind::NoRoom, "no room").hinting("use a slice of at most 4ms");
    problem.room = Some(Box::new(NoRoom {
        asked_slice: slice,
        asked_slice_ns: slice.0.ns(),
        asked_period: Length(Span::from_ms(10)),
        asked_period_ns: 10_000_000,
        promised_ppm: 500_000,
        capacity_ppm: 900_000,
        largest: Length(Span::from_us(3_217)),
        largest_ns: 3_217_000,
    }));
    Err(problem)
}

#[test]
fn refused_share_causes_hint_with_largest_fitting_share() {
    let Some(daemon) = Daemon::new(full) else { return };
    let refused = |cpu| daemon.run(&["reserve", "web", "--cpu", cpu, "--vcpus", "2"]);
    refused("150%").ended_with(4).says("hint:  use `--cpu 64%`");
    refused("50").ended_with(2).says("hint:  for 50 % of a CPU write `--cpu 50%`");
}

#[test]
fn reservation_name_with_capitals_causes_a_hint_in_lower_case() {
    let Some(daemon) = Daemon::new(fine) else { return };
    let ran = daemon.run(&["reserve", "Win10", "--cpu", "30%"]).ended_with(2);
    ran.says("name the reservation `win10`, and its VM by `--for`")
        .says("e.g. `reserve win10 --for libvirt:Win10`");
}

#[test]
fn exact_and_at_least_options_are_mutually_exclusive() {
    let Some(daemon) = Daemon::new(fine) else { return };
    for (option, exact) in [("--exact", true), ("--at-least", false)] {
        daemon.run(&["reserve", "web", "--slice", "2ms", option]).good();
        let Request::Reserve { wanted, .. } = daemon.heard() else { panic!("no reservation") };
        assert_eq!(wanted.exact, exact, "{option}");
    }
    let place = Place::new();
    for command in ["hold", "reserve", "change"] {
        let target: &[&str] = if command == "hold" { &["--pid", "1"] } else { &["web"] };
        let both = ["--slice", "2ms", "--exact", "--at-least"];
        let ran = place.run(&[&[command], target, &both].concat()).ended_with(2);
        ran.says("'--exact' cannot be used with '--at-least'");
        place.run(&[command, "--help"]).ended_with(0).shows("--at-least").shows("default");
    }
}

#[test]
fn until_option_accepts_duration_or_time_or_the_word_none() {
    let Some(daemon) = Daemon::new(fine) else { return };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.expect("after 1970").as_secs();
    let reserve = |until| {
        daemon.run(&["reserve", "web", "--slice", "2ms", "--until", until]).good();
        let Request::Reserve { wanted, .. } = daemon.heard() else { panic!("no reservation") };
        wanted.until.map(|until| until.0)
    };
    let in_two_hours = reserve("2h").expect("an end").ns() / 1_000_000_000;
    assert!((now + 7_200..now + 7_260).contains(&in_two_hours), "{in_two_hours} {now}");
    let at = |text| reserve(text).map(|until| until.to_string());
    assert_eq!(at("2126-12-01T18:00").as_deref(), Some("2126-12-01T18:00:00Z"));
    assert_eq!(at("2126-12-01 18:00+02:00").as_deref(), Some("2126-12-01T16:00:00Z"));
    assert_eq!(at("none"), None);
    daemon.run(&["change", "web", "--until", "none"]).good();
    let Request::Change { change, .. } = daemon.heard() else { panic!("no change") };
    assert_eq!(change.until, Some(slackline_control::End(None)));
    for (wrong, says) in [("2126-02-30", "does not exist"), ("soon", "as `2026-12-01T18:00`")] {
        let ran = daemon.run(&["reserve", "web", "--slice", "2ms", "--until", wrong]);
        ran.ended_with(2).says(says);
    }
}

#[test]
fn unknown_rename_command_causes_a_hint_to_use_change_command() {
    let ran = Place::new().run(&["rename", "web", "shop"]).ended_with(2);
    assert!(!ran.err.contains("resume"), "{}", ran.err);
    ran.says("slackline change NAME --for BINDING");
}

#[test]
fn refusal_of_overlong_socket_path_states_path_length() {
    let path = format!("/tmp/{}", "x".repeat(140));
    let ran = Place::new().run(&["list", "--socket", &path]).ended_with(2);
    ran.says("its path has 145 bytes; at most 107 are allowed").says("a shorter path");
}

#[test]
fn refusal_of_a_malformed_cpu_list_shows_a_valid_example() {
    let place = Place::new();
    for list in ["a", "3-1", "0-999", "1,,2"] {
        let ran = place.run(&["hold", "--cpu", "30%", "--cpus", list, "--", "true"]);
        ran.ended_with(2).says("--cpus");
    }
    let ran = place.run(&["hold", "--cpu", "30%", "--cpus", "3-1", "--", "true"]);
    ran.ended_with(2).says("write it as `1-3`");
}
