//! Simulation of the workload manager by `slackline manage`.

use serde_json::Value;

use crate::common::Place;

/// Returns a folder with a series of demand for two VMs. From the seventh round on, `web` needs
/// twice as much CPU time as before.
fn place() -> Place {
    let place = Place::with("");
    let line = |round| if round < 6 { "15.0,20.0\n" } else { "30.0,20.0\n" };
    let lines: String = (0..14).map(line).collect();
    place.write("it.csv", format!("# a step\nweb,db\n{lines}").as_bytes());
    place
}

#[test]
fn manage_command_explains_decisions_and_compares_allocation_rules() {
    let place = place();
    let told = place.run(&["manage", "it.csv", "--round", "1s"]).good();
    assert!(told.contains("web 18 to "), "{told}");
    assert!(told.contains("100 periods demanded more than reserved, 0 misses predicted"), "{told}");
    for rule in ["fixed", "oracle", "manager", "neon", "vpa", "proxmox"] {
        assert!(told.contains(&format!(" {rule} ")), "{rule}: {told}");
    }
    let again = place.run(&["manage", "it.csv", "--round", "1s"]).good();
    assert_eq!(told, again);
}

#[test]
fn manage_command_raises_share_to_the_floor_in_goals_file() {
    let place = place();
    let goals = "[vm.web]\nfloor = \"40%\"\n[vm.db]\nleave = true\n";
    place.write("goals.toml", goals.as_bytes());
    let args = ["manage", "it.csv", "--round", "1s", "--goals", "goals.toml", "--json"];
    let told: Value = serde_json::from_str(&place.run(&args).good()).expect("JSON");
    assert_eq!(told["format"], "slackline-manage-1");
    assert_eq!(told["vms"], serde_json::json!(["web"]));
    let rules = told["rules"].as_array().expect("rules");
    let managed = rules.iter().find(|rule| rule["rule"] == "manager").expect("the manager");
    let rounds = managed["rounds"].as_array().expect("rounds");
    let share = |round: &Value| round["share_ppm"][0].as_u64().expect("a share");
    assert!(share(&rounds[0]) < 400_000);
    assert!(rounds[2..].iter().all(|round| share(round) >= 400_000), "{rounds:?}");
}

#[test]
fn manage_command_refuses_impossible_demand_and_goals_for_unknown_vm() {
    let place = place();
    place.write("goals.toml", b"[vm.wbe]\nfloor = \"4%\"\n");
    let told = place.run(&["manage", "it.csv", "--goals", "goals.toml"]).ended_with(2).err;
    assert!(told.contains("`wbe`") && told.contains("web, db"), "{told}");
    place.write("bad.csv", b"web\n10\n120\n");
    let told = place.run(&["manage", "bad.csv"]).ended_with(2).err;
    assert!(told.contains("line 3") && told.contains("`120`"), "{told}");
    place.write("bad.csv", b"web,web\n10,10\n");
    let told = place.run(&["manage", "bad.csv"]).ended_with(2).err;
    assert!(told.contains("line 1") && told.contains("two VMs called `web`"), "{told}");
    place.run(&["manage", "it.csv", "--noise", "10"]).ended_with(2).says("write it as `10%`");
    place.run(&["manage", "it.csv", "--noise", "10cpu"]).ended_with(2).says("write it as `10%`");
    place.run(&["manage", "it.csv", "--round", "1s", "--noise", "0%"]).good();
    place.run(&["manage", "it.csv", "--round", "1s", "--noise", "0.1cpu"]).good();
}

/// Returns the header and one round of a file of `--save`. In that round a VM missed 90 of 100
/// periods.
fn saved_rounds() -> (Value, Value) {
    let predicted = |share: u32| {
        serde_json::json!({
            "shares_ppm": [share],
            "vms": [{ "misses": 0, "periods": 100, "share_ppm": [0, share],
                      "length_ns": 1_000_000_000 }],
        })
    };
    let round = serde_json::json!({
        "round": 0,
        "length_ns": 1_000_000_000,
        "capacity_ppm": 900_000,
        "vms": [{
            "name": "web", "period_ns": 10_000_000, "share_ppm": 200_000, "floor_ppm": 10_000,
            "ceiling_ppm": 1_000_000, "priority": 0, "misses_goal_ppm": 1_000,
            "demand": [[3_000_000, 100]], "misses": 90, "received_ns": 200_000_000,
        }],
        "predictions": [predicted(200_000), predicted(309_000)],
        "decision": { "name": "web", "from_ppm": 200_000, "to_ppm": 309_000,
                      "says": "web 20 to 30.9 %: 90 misses in 1 s, 0 misses predicted" },
    });
    let header = serde_json::json!({
        "format": "slackline-manager-1", "mode": "act", "round_ns": 1_000_000_000,
    });
    (header, round)
}

fn replay(place: &Place, header: &Value, rounds: &[Value]) -> crate::common::Ran {
    let line = |round: &Value| {
        let says = "";
        serde_json::json!({ "after_ns": 0, "round": round, "says": says, "is_done": false })
    };
    let lines: Vec<String> = rounds.iter().map(|round| line(round).to_string()).collect();
    place.write("rounds.jsonl", format!("{header}\n{}\n", lines.join("\n")).as_bytes());
    place.run(&["manage", "--replay", "rounds.jsonl"])
}

#[test]
fn replay_by_manage_command_refuses_rounds_with_impossible_numbers() {
    let place = Place::with("");
    let (header, good) = saved_rounds();
    let told = replay(&place, &header, std::slice::from_ref(&good)).good();
    assert!(told.contains("1 round replayed, 0 decisions differ"), "{told}");
    let most = u64::MAX;
    let changes = [
        ("/vms/0/demand", serde_json::json!([[3_000_000, most], [4_000_000, most]]), "`demand`"),
        ("/vms/0/demand", serde_json::json!([[most, 100]]), "584 years"),
        ("/vms/0/period_ns", most.into(), "584 years"),
        ("/vms/0/period_ns", 0.into(), "the period of `web` is 0s"),
        ("/vms/0/misses", most.into(), "18446744073709551615 periods, above 3600000000"),
        ("/vms/0/received_ns", most.into(), "`web` received"),
        ("/length_ns", 0.into(), "the round takes 0s"),
        ("/round", most.into(), "the number of the round"),
        ("/vms/0/misses", serde_json::json!(-1), "rounds.jsonl:2: invalid value"),
        ("/vms/0/name", "We b".into(), "the name of a VM"),
    ];
    for (place_of, value, says) in changes {
        let mut round = good.clone();
        *round.pointer_mut(place_of).expect("the round has it") = value;
        let told = replay(&place, &header, &[round]).ended_with(2).err;
        assert!(told.contains(says) && told.contains("rounds.jsonl:2: "), "{place_of}: {told}");
    }
    let mut twice = good.clone();
    twice["vms"] = serde_json::json!([good["vms"][0], good["vms"][0]]);
    let told = replay(&place, &header, &[twice]).ended_with(2).err;
    assert!(told.contains("VM `web` is listed twice"), "{told}");
    let told = replay(&place, &header, &[good.clone(), good.clone()]).ended_with(2).err;
    assert!(told.contains("rounds.jsonl:3: round 0 cannot follow round 0"), "{told}");
    let mut other = header.clone();
    other["mode"] = "kill".into();
    let told = replay(&place, &other, &[good]).ended_with(2).err;
    assert!(told.contains("there is no mode `kill`"), "{told}");
}

#[test]
fn manage_replay_survives_maximal_predictions_and_replaces_control_characters() {
    let place = Place::with("");
    let (header, mut round) = saved_rounds();
    let most = u64::MAX;
    for prediction in round["predictions"].as_array_mut().expect("predictions") {
        prediction["vms"][0] = serde_json::json!({
            "misses": most, "periods": most, "share_ppm": [most, 0], "length_ns": most,
        });
    }
    round["decision"]["says"] = "web \u{1b}[31m\nrises".into();
    let told = replay(&place, &header, &[round]).ended_with(1).out;
    assert!(told.contains("1 round replayed, 1 decision differs"), "{told}");
    assert!(told.contains("[31m\u{fffd}rises") && !told.contains('\u{1b}'), "{told:?}");
}

#[test]
fn manage_command_refuses_live_options_for_simulation_and_replay() {
    let place = place();
    let (header, round) = saved_rounds();
    replay(&place, &header, &[round]).ended_with(0);
    for option in ["--mode=act", "--rounds=3", "--save=it.jsonl", "--socket=socket"] {
        let told = place.run(&["manage", "it.csv", option]).ended_with(2).err;
        assert!(told.contains("cannot be used with"), "{option}: {told}");
        place.run(&["manage", "--replay", "rounds.jsonl", option]).ended_with(2);
    }
}

#[test]
fn manage_command_refuses_goals_that_contradict_each_other() {
    let place = place();
    place.write("goals.toml", b"[vm.web]\nfloor = \"60%\"\nceiling = \"10%\"\n");
    let args = ["manage", "it.csv", "--goals", "goals.toml"];
    let told = place.run(&args).ended_with(2).err;
    assert!(told.contains("the floor 0.6cpu of web is above its ceiling 0.1cpu"), "{told}");
    let live = ["manage", "--live", "--goals", "goals.toml", "--save", "goals.toml"];
    let told = place.run(&live).ended_with(2).err;
    assert!(told.contains("--save and --goals are the same file"), "{told}");
    for csv in ["goals.toml", "it.csv"] {
        let told = place.run(&[&args[..], &["--csv", csv]].concat()).ended_with(2).err;
        assert!(told.contains("are the same file"), "{told}");
    }
    assert!(place.read("goals.toml").starts_with(b"[vm.web]"));
    assert!(place.read("it.csv").starts_with(b"# a step"));
    place.write("goals.toml", b"[vm.web]\nfloor = \"\x1b[31m\"\n");
    let told = place.run(&args).ended_with(2).err;
    assert!(told.contains("line 2, column") && !told.contains('\u{1b}'), "{told:?}");
}
