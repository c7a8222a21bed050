//! Tests of `slackline sweep --part` and `slackline join`, which run a sweep on several machines.

use crate::common::Place;

const GRID: &str = "title = 'a grid'\nlength = '200ms'\npolicy = { name = 'edf' }\n\
    [[domain]]\nname = 'web'\nwork = { kind = 'interactive', compute = '1ms', \
    sleep = 'exponential 5ms' }\nshare.edf = { slice = '2ms', period = '10ms' }\n\
    share.sedf = { slice = '2ms', period = '10ms' }\n\
    [[axis]]\nname = 'slice'\n\
    [[axis.point]]\nname = 'short'\n\
    [[axis.point]]\nname = 'long'\nset = { 'domain.web.share.edf.slice' = '4ms' }\n";

/// Options of the sweep, with 2 points, 2 policies and 5 seeds: 20 runs.
const SWEEP: [&str; 8] = [
    "sweep",
    "it.toml",
    "--seeds",
    "5",
    "--policies",
    "edf,sedf",
    "--metric",
    "wake to run p99 of web",
];

const PARTS: [&str; 3] = ["parts.csv.1-of-3", "parts.csv.2-of-3", "parts.csv.3-of-3"];

fn run_part(place: &Place, part: &str) {
    let ran = place.run(&[&SWEEP[..], &["--csv", "parts.csv", "--part", part]].concat());
    ran.ended_with(0).says(&format!("runs of part {part}"));
}

fn with_parts() -> Place {
    let place = Place::with(GRID);
    ["1/3", "2/3", "3/3"].iter().for_each(|part| run_part(&place, part));
    place
}

fn join(place: &Place, parts: &[&str]) -> crate::common::Ran {
    place.run(&[&["join", "--csv", "joined.csv"], parts].concat())
}

fn edit(place: &Place, name: &str, edit: impl Fn(String) -> String) {
    let text = String::from_utf8(place.read(name)).unwrap();
    place.write(name, edit(text).as_bytes());
}

#[test]
fn joined_sweep_parts_give_table_and_page_of_whole_sweep() {
    let place = with_parts();
    let whole = [&SWEEP[..], &["--csv", "it.csv", "--page", "it.html"]].concat();
    let shown = place.command(&whole).output().expect("the program can be started").stdout;
    assert!(!place.files().contains(&"parts.csv".to_owned()), "a part writes no table");
    let parts = [PARTS[2], PARTS[0], PARTS[1], "--page", "joined.html"];
    join(&place, &parts).ended_with(0).says("note: joined 3 parts with 20 runs");
    let again = [&["join", "--csv", "joined.csv"], &PARTS[..]].concat();
    let joined = place.command(&again).output().expect("the program can be started").stdout;
    assert_eq!(String::from_utf8(joined), String::from_utf8(shown));
    assert_eq!(place.read("joined.csv"), place.read("it.csv"));
    assert_eq!(place.read("joined.html"), place.read("it.html"));
}

#[test]
fn incomplete_sweep_part_can_continue_but_cannot_be_joined() {
    let place = with_parts();
    let whole = String::from_utf8(place.read(PARTS[1])).unwrap();
    edit(&place, PARTS[1], |text| text.lines().take(5).map(|line| format!("{line}\n")).collect());
    let ran = join(&place, &PARTS).refused(2);
    ran.says("cannot join parts.csv.2-of-3: it has only 3 of its 7 runs");
    let ran = place.run(&[&SWEEP[..], &["--csv", "parts.csv", "--part", "2/3"]].concat());
    ran.ended_with(0).says("note: 4 runs of part 2/3, 3 finished before");
    assert_eq!(String::from_utf8(place.read(PARTS[1])).unwrap().len(), whole.len());
    join(&place, &PARTS).ended_with(0);
}

#[test]
fn join_command_refuses_missing_duplicate_and_damaged_sweep_parts() {
    let place = with_parts();
    let ran = join(&place, &PARTS[..2]).refused(2);
    ran.says("cannot join 2 of 3 parts: part 3/3 is missing").says("with --part 3/3");
    let ran = join(&place, &PARTS[..1]).refused(2);
    ran.says("cannot join 1 of 3 parts: 2/3, 3/3 are missing");
    place.write("again", &place.read(PARTS[1]));
    let ran = join(&place, &[PARTS[0], PARTS[1], "again", PARTS[2]]).refused(2);
    ran.says("cannot join again: parts.csv.2-of-3 is part 2/3 too");
    join(&place, &["it.toml"]).refused(2).says("cannot join it.toml: it is not a part of a sweep");
    edit(&place, PARTS[2], |text| text.replacen("\tdone\t", "\trefused\t", 1));
    let ran = join(&place, &PARTS).refused(2);
    ran.says("cannot join parts.csv.3-of-3: line 3 is damaged");
    edit(&place, PARTS[2], |text| text[..text.len() - 5].to_owned());
    join(&place, &PARTS).refused(2).says("its last line is not complete");
}

#[test]
fn join_command_refuses_sweep_part_with_missing_or_impossible_options() {
    let place = with_parts();
    edit(&place, PARTS[1], |text| text.split_inclusive('\n').take(1).collect());
    let ran = join(&place, &PARTS).refused(2);
    ran.says("cannot join parts.csv.2-of-3: it has no options").says("--fresh");
    run_part(&place, "2/3");
    join(&place, &PARTS).ended_with(0);
    let changes = [
        ("\"seeds\":5", "\"seeds\":0", "its options have 0 seeds; 1 to 1000000 are possible"),
        ("\"seeds\":5", "\"seeds\":1000000000000000000", "1000000000000000000 seeds"),
        ("\"cpus\":[]", "\"cpus\":[60000]", "60000 CPUs; 1 to 256 are possible"),
        ("\"length_ns\":null", "\"length_ns\":18446744073709551615", "its options have the length"),
    ];
    let whole = place.read(PARTS[0]);
    for (from, to, why) in changes {
        edit(&place, PARTS[0], |text| {
            let line = text.lines().nth(1).unwrap();
            let (options, _) = line.rsplit_once('\t').unwrap();
            let options = options.replacen(from, to, 1);
            text.replacen(line, &format!("{options}\t{:016x}", fnv(&options)), 1)
        });
        assert_ne!(place.read(PARTS[0]), whole, "{from}");
        join(&place, &PARTS).refused(2).says("cannot join parts.csv.1-of-3").says(why);
        place.write(PARTS[0], &whole);
    }
}

/// Returns the FNV-1a hash of a text, with which each line of a part ends.
fn fnv(text: &str) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

#[test]
fn join_command_refuses_parts_of_different_sweeps_builds_or_divisions() {
    let place = with_parts();
    let other = [&SWEEP[..], &["--seed", "9", "--csv", "other.csv", "--part", "3/3"]].concat();
    place.run(&other).ended_with(0);
    let ran = join(&place, &[PARTS[0], PARTS[1], "other.csv.3-of-3"]).refused(2);
    ran.says("cannot join other.csv.3-of-3: it and parts.csv.1-of-3 are parts of different sweeps");
    run_part(&place, "2/4");
    let ran = join(&place, &[PARTS[0], "parts.csv.2-of-4"]).refused(2);
    ran.says("cannot join parts.csv.2-of-4: it is part 2/4, but parts.csv.1-of-3 is part 1/3");
    edit(&place, PARTS[1], |text| {
        let (before, after) = text.split_once(", build ").unwrap();
        format!("{before}, build 0123456789abcdef{}", &after[16..])
    });
    let ran = join(&place, &PARTS).refused(2);
    ran.says("cannot join parts.csv.2-of-3: its build of slackline is 0123456789abcdef, but this");
}

#[test]
fn join_command_refuses_sweep_parts_after_recording_of_scenario_changed() {
    let recorded = GRID.replace(
        "{ kind = 'interactive', compute = '1ms', sleep = 'exponential 5ms' }",
        "{ kind = 'replay', file = 'web.txt' }",
    );
    assert_ne!(recorded, GRID);
    let place = Place::with(&recorded);
    place.write("web.txt", b"run_ns,block_ns\n1000000,4000000\n");
    ["1/3", "2/3", "3/3"].iter().for_each(|part| run_part(&place, part));
    join(&place, &PARTS).ended_with(0);
    place.write("web.txt", b"run_ns,block_ns\n1000000,5000000\n");
    join(&place, &PARTS)
        .refused(2)
        .says("that its scenario names has changed since the part was made");
}

#[test]
fn sweep_part_number_outside_1_to_part_count_is_refused() {
    let place = Place::with(GRID);
    for (part, why) in [("0/3", "parts are 1/N to N/N"), ("4/3", "parts are"), ("3", "`3/8`")] {
        let ran = place.run(&[&SWEEP[..], &["--csv", "it.csv", "--part", part]].concat());
        ran.ended_with(2).says(why);
    }
}
