//! Tests of `slackline fit`, which finds the smallest reservation of a task set or of a VM in a
//! scenario.

use serde_json::Value;

use crate::common::Place;

const TASKS: &str = "title = 'engine control'\n\
    [[task]]\nname = 'control'\nwork = '1ms'\nperiod = '10ms'\n\
    [[task]]\nname = 'sensor'\nwork = '500us'\nperiod = '20ms'\ndeadline = '12ms'\n\
    [[task]]\nname = 'log'\nwork = '8ms'\nperiod = '100ms'\n";

/// A task with a period of 1 ms and 100 us of work, as in the measurements of HCBS.
const SHORT: &str = "title = 'short tasks'\n[[task]]\nname = 'short'\nwork = '100us'\n\
    period = '1ms'\n";

fn place(tasks: &str) -> Place {
    let place = Place::new();
    place.write("tasks.toml", tasks.as_bytes());
    place
}

fn json(place: &Place, arguments: &[&str]) -> Value {
    let out = place.run(&[&["fit", "tasks.toml", "--json"], arguments].concat()).good();
    serde_json::from_str(&out).expect("an answer in JSON")
}

#[test]
fn fit_command_proves_smallest_slice_and_shows_failing_smaller_slice() {
    let place = place(TASKS);
    let ran = place.run(&["fit", "tasks.toml", "--period", "5ms"]).ended_with(0);
    let ran = ran.shows("1.5ms every 5ms, 30.00 % of a CPU");
    let ran = ran.shows("with 1.499ms/5ms a job of `sensor` misses its deadline");
    ran.shows("slackline reserve NAME --slice 1.5ms --period 5ms");
    let answer = json(&place, &["--period", "5ms"]);
    assert_eq!(answer["witnesses"], serde_json::json!(["proof", "trace"]));
    assert_eq!(answer["reservation"]["slice_ns"], 1_500_000);
    assert_eq!(answer["trace"]["reservation"]["slice_ns"], 1_499_000);
    let late = |key: &str| answer["trace"][key].as_u64().unwrap();
    assert_eq!(late("done_ns") - late("deadline_ns"), 3_000);
    for point in answer["proof"]["points"].as_array().unwrap() {
        assert!(point["supplied_within_ns"].as_u64() <= point["interval_ns"].as_u64(), "{point}");
    }
}

#[test]
fn fit_command_saves_replayable_trace_and_scenario_of_deadline_miss() {
    for scheduler in ["edf", "fixed"] {
        let place = place(&format!("scheduler = '{scheduler}'\n{TASKS}"));
        let save = ["--save", "miss.trace", "--save-scenario", "miss.toml"];
        place.run(&[&["fit", "tasks.toml", "--period", "3ms"], &save[..]].concat()).ended_with(0);
        place.run(&["replay", "miss.trace"]).ended_with(0).shows("all as recorded");
        let table = place.run(&["show", "miss.trace", "--table", "--json"]).good();
        let table: Value = serde_json::from_str(&table).unwrap();
        let vm =
            table["runs"][0]["domains"].as_array().unwrap().iter().find(|of| of["name"] == "vm");
        assert!(vm.unwrap()["jobs_late"].as_u64() > Some(0), "{table:#}");
        let ran = place.run(&["sim", "miss.toml"]).ended_with(1);
        ran.says("claim failed: jobs late of vm is at most 0, but it is");
        // With the slice of the answer, the claim of the same scenario holds.
        let answer = json(&place, &["--period", "3ms"]);
        let slices = ["reservation", "trace"].map(|key| match key {
            "trace" => answer[key]["reservation"]["slice_ns"].as_u64().unwrap(),
            _ => answer[key]["slice_ns"].as_u64().unwrap(),
        });
        assert_eq!(slices[0] - slices[1], 1_000);
    }
}

#[test]
fn fit_command_finds_largest_period_and_warns_about_overlong_period() {
    let place = place(SHORT);
    let answer = json(&place, &["--share", "50%"]);
    // With half a CPU, the longest time without CPU time is one period. The 100 us of work then
    // follow without a pause.
    assert_eq!(answer["reservation"]["period_ns"], 900_000);
    let ran = place.run(&["fit", "tasks.toml", "--period", "5ms"]).ended_with(0);
    ran.says("the period 5ms is more than twice the shortest period of a task, 1ms");
    let ran = place.run(&["fit", "tasks.toml", "--period", "20ms"]).ended_with(4);
    ran.says("19.55ms/20ms is 97.75 % of a CPU, and at most 95.00 % can be reserved")
        .says("use a shorter --period");
}

/// A published finding: the longer the period of the reservation, the larger the share that short
/// tasks need.
#[test]
fn share_needed_by_short_tasks_grows_with_reservation_period() {
    let place = place(SHORT);
    let share = |period: &str| {
        let answer = json(&place, &["--period", period, "--reserve", "0%"]);
        answer["reservation"]["share_ppm"].as_u64().unwrap()
    };
    let shares = ["125us", "500us", "1ms", "5ms"].map(share);
    assert!(shares.windows(2).all(|two| two[0] < two[1]), "{shares:?}");
    assert!(shares[0] < 150_000 && shares[3] > 900_000, "{shares:?}");
}

#[test]
fn fit_command_refuses_infeasible_tasks_and_states_smallest_sufficient_share() {
    let place = place(TASKS);
    let ran = place.run(&["fit", "tasks.toml", "--share", "20%"]).ended_with(4);
    ran.says("with 20.00 % of a CPU the tasks miss deadlines with each period")
        .says("down to 1us")
        .says("use a larger --share: with a period of 100us, 20.60 % suffices");
    place.write("tasks.toml", TASKS.replace("'8ms'", "'99ms'").as_bytes());
    let ran = place.run(&["fit", "tasks.toml"]).ended_with(4);
    ran.says("the tasks miss deadlines even with a whole CPU");
}

#[test]
fn fit_command_gives_reservation_that_keeps_the_given_maximum_delay() {
    let place = Place::new();
    let ran = place.run(&["fit", "--share", "20%", "--delay", "15ms"]).ended_with(0);
    ran.shows("1.875ms every 9.375ms, 20.00 % of a CPU").shows("a job of `probe` misses");
    place.run(&["fit", "--delay", "15ms"]).ended_with(2).says("--share");
    place.run(&["fit", "--share", "20%", "--delay", "1us"]).refused(2);
    place.run(&["fit", "--share", "20%", "--delay", "40s"]).ended_with(0).shows("25s");
    let long = place.run(&["fit", "--share", "20%", "--delay", "1000000h"]).ended_with(2);
    long.says("the delay 3600000000s is not below one hour");
    let whole = place.run(&["fit", "--share", "100%", "--delay", "1ms"]).ended_with(2);
    whole.says("a share of 1cpu is never without CPU time");
}

#[test]
fn most_vms_option_packs_more_vms_than_fixed_period() {
    let place = place(TASKS);
    let most = json(&place, &["--most-vms"]);
    let long = json(&place, &["--period", "10ms"]);
    assert!(most["vms_per_cpu"].as_u64() > long["vms_per_cpu"].as_u64(), "{most}");
    assert_eq!(most["witnesses"], serde_json::json!(["proof", "trace"]));
    assert!(most["tried_periods"]["count"].as_u64() > Some(0), "{most}");
    assert!(long["tried_periods"].is_null());
    place.run(&["fit", "tasks.toml", "--most-vms"]).ended_with(0).shows("  periods      ");
}

#[test]
fn most_vms_option_of_fit_prefers_reservations_that_a_daemon_accepts() {
    let place = place("[[task]]\nwork = '45us'\nperiod = '6ms'\n");
    let ran = place.run(&["fit", "tasks.toml", "--most-vms"]).ended_with(0);
    let ran = ran.shows("slackline reserve NAME --slice 50us --period ");
    ran.shows("\n               with slices of at least 50us in steps of 1us\n")
        .shows("trace        none: a slice that was not tried has capacity for more VMs");
    let answer = json(&place, &["--most-vms"]);
    assert_eq!(answer["tried_periods"]["shortest_slice_ns"], 50_000);
    assert!(answer["tried_periods"]["shortest_ns"].as_u64() >= Some(1_000_000), "{answer}");
    place.write("tasks.toml", b"[[task]]\nwork = '150us'\nperiod = '200us'\n");
    let ran = place.run(&["fit", "tasks.toml", "--most-vms"]).ended_with(0);
    assert!(!ran.out.contains("slackline reserve"), "{}", ran.out);
    ran.says("the daemon and `hold` refuse periods below 1ms, slices below 50us, and slices that");
    let answer = json(&place, &["--most-vms"]);
    assert!(answer["hint"].as_str().is_some_and(|hint| hint.contains("leave less than 50us")));
}

#[test]
fn hint_of_fit_refusal_names_options_that_the_question_allows() {
    let place = place("[[task]]\nwork = '427us'\nperiod = '5ms'\n");
    let coarse = place.run(&["fit", "tasks.toml", "--share", "9%", "--step", "1ms"]).ended_with(4);
    coarse.says("hint:  use a shorter --step\n");
    let large = place.run(&["fit", "tasks.toml", "--share", "97%"]).ended_with(4);
    large.says("hint:  use a smaller --share, or a smaller --reserve\n");
    let large = place.run(&["fit", "--share", "97%", "--delay", "1ms"]).ended_with(4);
    large.says("hint:  use a smaller --share, or a smaller --reserve\n");
}

#[test]
fn invalid_task_set_or_fit_option_is_refused_with_reason() {
    let place = place(&TASKS.replace("'12ms'", "'21ms'"));
    let ran = place.run(&["fit", "tasks.toml"]).refused(2);
    ran.says("tasks.toml:6:1: deadline 21ms is more than the period 20ms");
    place.write("tasks.toml", TASKS.replace("work = '8ms'", "wcet = '8ms'").as_bytes());
    place.run(&["fit", "tasks.toml"]).refused(2).says("unknown field `wcet`");
    place.write("tasks.toml", TASKS.as_bytes());
    place.run(&["fit", "tasks.toml", "--vm", "web"]).refused(2).says("is a task set");
    place.run(&["fit", "tasks.toml", "--step", "1h"]).refused(2).says("the step 3600s must be");
    place.run(&["fit", "tasks.toml", "--seeds", "5"]).refused(2).says("cannot use --seeds 5");
    place.run(&["fit", "tasks.toml", "--share", "20"]).refused(2).says("did you mean 20%?");
    place.run(&["fit", "--share", "20", "--delay", "1ms"]).refused(2).says("did you mean 20%?");
}

const HOST: &str = "title = 'web and batch'\nlength = '2s'\npolicy = { name = 'edf' }\n\
    [[domain]]\nname = 'web'\nwork = { kind = 'periodic', period = '20ms', \
    work = 'uniform 1ms 4ms' }\nshare.edf = { slice = '5ms', period = '10ms', exact = true }\n\
    [[domain]]\nname = 'batch'\nwork = { kind = 'spin' }\n\
    share.edf = { slice = '3ms', period = '10ms' }\n\
    [[claim]]\nthat = 'jobs late of web'\nis = 'at most 0'\n\
    [[claim]]\nthat = 'delivered of batch'\nis = 'at least 29%'\n";

#[test]
fn fit_of_scenario_searches_over_seeds_and_states_confidence() {
    let place = Place::with(HOST);
    let save = ["--save", "miss.trace", "--save-scenario", "miss.toml"];
    let fit = ["fit", "it.toml", "--vm", "web", "--seeds", "20", "--step", "500us"];
    let ran = place.run(&[&fit[..], &save].concat()).ended_with(0);
    ran.shows("confidence   95 %: a claim fails with at most 13.91 % of all seeds")
        .shows("all claims hold with seeds 1 to 20, and with fresh seeds 21 to 40")
        .shows("jobs late of web is at most 0, but it is");
    place.run(&["replay", "miss.trace"]).ended_with(0);
    let ran = place.run(&["sim", "miss.toml"]).ended_with(1);
    ran.says("claim failed: jobs late of web is at most 0");
    let text = place.run(&[&fit[..], &["--json"]].concat()).good();
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["witnesses"], serde_json::json!(["seeds", "trace"]));
    let slice = answer["reservation"]["slice_ns"].as_u64().unwrap();
    assert_eq!(slice - answer["trace"]["slice_ns"].as_u64().unwrap(), 500_000);
    assert!(answer["larger"].is_null() && answer["hint"].is_null(), "{answer}");
}

#[test]
fn json_of_scenario_fit_has_larger_failing_slice_and_hint() {
    let json = |text: &str| {
        let fit = ["fit", "it.toml", "--vm", "web", "--seeds", "5", "--step", "500us", "--json"];
        let text = Place::with(text).run(&fit).good();
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let bounded = format!("{HOST}[[claim]]\nthat = 'promised of web'\nis = 'at most 30%'\n");
    let answer = json(&bounded);
    assert_eq!(answer["larger"]["slice_ns"], 6_500_000);
    let claim = answer["larger"]["claim"].as_str().unwrap();
    assert!(claim.starts_with("promised of web is at most 30"), "{claim}");
    let answer = json(&HOST.replace("jobs late of web", "misses of web"));
    assert!(answer["hint"].as_str().is_some_and(|hint| hint.contains("`jobs late of web`")));
}

#[test]
fn fit_of_scenario_without_selected_vm_or_claims_is_refused() {
    let place = Place::with(HOST);
    place.run(&["fit", "it.toml"]).refused(2).says("scenario has 2 VMs").says("--vm: web, batch");
    place.run(&["fit", "it.toml", "--vm", "db"]).refused(2).says("scenario has no such VM: `db`");
    let with_share = ["fit", "it.toml", "--vm", "web", "--share", "30%"];
    place.run(&with_share).refused(2).says("cannot use --share with a scenario");
    let reserve = ["fit", "it.toml", "--vm", "web", "--reserve", "50%"];
    let ran = place.run(&reserve).refused(2).says("cannot use --reserve with a scenario");
    ran.says("hint:  write the key reserve = \"10%\" into `policy` of the scenario\n");
    let impossible = HOST.replace("at least 29%", "at least 99%");
    place.write("it.toml", impossible.as_bytes());
    let ran = place.run(&["fit", "it.toml", "--vm", "web", "--seeds", "2"]).ended_with(4);
    ran.says("with the largest slice that admission accepts, 6.5ms in 10ms");
    place.write("it.toml", HOST.split("[[claim]]").next().unwrap().as_bytes());
    place.run(&["fit", "it.toml", "--vm", "web"]).refused(2).says("that a run could break");
}
