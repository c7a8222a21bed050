//! Simulation of the workload manager by `slackline manage`.

use serde_json::Value;

use crate::common::Place;

/// Two VMs, of which `web` needs twice as much from the seventh round on.
fn place() -> Place {
    let place = Place::with("");
    let line = |round| if round < 6 { "15.0,20.0\n" } else { "30.0,20.0\n" };
    let lines: String = (0..14).map(line).collect();
    place.write("it.csv", format!("# a step\nweb,db\n{lines}").as_bytes());
    place
}

#[test]
fn manage_command_explains_each_decision_and_compares_the_rules() {
    let place = place();
    let told = place.run(&["manage", "it.csv", "--round", "1s"]).good();
    assert!(told.contains("web 18 to "), "{told}");
    assert!(told.contains("100 periods demanded more, 0 misses predicted"), "{told}");
    for rule in ["fixed", "oracle", "manager", "neon", "vpa", "proxmox"] {
        assert!(told.contains(&format!(" {rule} ")), "{rule}: {told}");
    }
    let again = place.run(&["manage", "it.csv", "--round", "1s"]).good();
    assert_eq!(told, again);
}

#[test]
fn manage_command_keeps_the_floor_of_a_goals_file() {
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
fn manage_command_refuses_goals_of_an_unknown_vm_and_a_wrong_series() {
    let place = place();
    place.write("goals.toml", b"[vm.wbe]\nfloor = \"4%\"\n");
    let told = place.run(&["manage", "it.csv", "--goals", "goals.toml"]).ended_with(2).err;
    assert!(told.contains("`wbe`") && told.contains("web, db"), "{told}");
    place.write("bad.csv", b"web\n10\n120\n");
    let told = place.run(&["manage", "bad.csv"]).ended_with(2).err;
    assert!(told.contains("line 3") && told.contains("`120`"), "{told}");
}
