//! Tests of a paper's live experiments on this host. Needs root.

use std::fs;

use crate::common::live;

const PAPER: &str = r#"
title       = "A paper with real processes"
cite        = "nobody"
experiments = ["shares"]
"#;

const PUBLISHED: &str = r#"
[[value]]
id    = "more"
says  = "who is promised more has more"
value = "more"
from  = "page 1"
read  = "text"
"#;

const SCENARIO: &str = r#"
title  = "one"
length = "600ms"
warmup = "100ms"
policy = { name = "edf" }
[[domain]]
name      = "vm"
work      = { kind = "spin" }
share.edf = { slice = "2ms", period = "10ms", exact = true }
"#;

const SHARES: &str = r#"
title       = "shares"
live        = true
scenario    = "one.toml"
seeds       = 1
may_decline = true
[quick]
only = { share = ["fifth", "half"] }
[[axis]]
name  = "share"
point = [
  { name = "fifth" },
  { name = "half", set = { "domain.vm.share.edf.slice" = "5ms" } },
  { name = "all", set = { "domain.vm.share.edf.slice" = "10ms" } },
]
[[measure]]
name   = "cpu"
metric = "delivered of vm"
unit   = "%"
[[compare]]
title   = "promised and had"
measure = "cpu"
  [[compare.row]]
  published = "more"
  at        = "half"
  against   = "fifth"
  test      = "higher"
"#;

/// A VM with half of a CPU receives more than a VM with a fifth, also on a busy host. A VM that
/// requests a whole CPU is refused and left out of the results.
#[test]
fn paper_run_command_runs_a_live_experiment_and_prints_verdicts() {
    let Some(live) = live::begin() else { return };
    let folder = live.place.path("papers/lively");
    fs::create_dir_all(&folder).expect("a folder");
    let files = [
        ("paper.toml", PAPER),
        ("published.toml", PUBLISHED),
        ("one.toml", SCENARIO),
        ("shares.toml", SHARES),
    ];
    for (name, text) in files {
        fs::write(folder.join(name), text).expect("a file");
    }
    let out = live.run(&["paper", "run", "lively"]).ended_with(0).out;
    assert!(out.contains("same shape         more: more; here "), "{out}");
    let results = fs::read_to_string(folder.join("results/shares.csv")).expect("results");
    assert!(results.contains("; live, kernel: Linux "), "{results}");
    assert!(results.contains("\nall,cpu,%,-,-,-\n"), "{results}");
    let out = live.run(&["paper", "run", "lively", "--quick"]).ended_with(0).out;
    assert!(out.contains("same shape         more: more; here "), "{out}");
    let results = fs::read_to_string(folder.join("results/shares.csv")).expect("results");
    assert!(!results.contains("\nall,"), "{results}");
    live.nothing_is_left();
}
