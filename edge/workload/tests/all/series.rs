//! Tests of CPU series.

use proptest::prelude::*;
use slackline_scenario::Scenario;
use slackline_units::Span;
use slackline_workload::{BurstModel, Kind, Options, SourceFile, WrittenScenario, convert};

use crate::{one, refused};

const BITBRAINS: &[u8] = include_bytes!("../fixtures/bitbrains.csv");
const AZURE: &[u8] = include_bytes!("../fixtures/azure.csv");
const RT_APP: &[u8] = include_bytes!("../fixtures/rt-app.json");
const PLANETLAB: &[u8] = include_bytes!("../fixtures/planetlab.txt");

/// Returns the jobs of a file: ready time and work in milliseconds.
fn jobs(written: &WrittenScenario, file: &str) -> Vec<(u64, u64)> {
    let (_, text) = written
        .files
        .iter()
        .find(|(name, _)| name == file)
        .expect("the scenario has this file of jobs");
    let job = |line: &str| {
        let (ready, work) = line.split_once(',').expect("a line has two columns");
        let ms = |text: &str| text.parse::<u64>().expect("a column is a number") / 1_000_000;
        (ms(ready), ms(work))
    };
    text.lines().skip(1).map(job).collect()
}

#[test]
fn bitbrains_series_is_repaired_with_a_comment_for_each_repair() {
    let block = Options { bursts: vec![BurstModel::Block], ..Options::default() };
    let file = SourceFile { name: "fastStorage/7.csv", bytes: BITBRAINS };
    let written = convert(Kind::Bitbrains, &[file], &block, "fleet").expect("the series is valid");
    assert_eq!(jobs(&written, "fleet-7-block.jobs"), [(0, 100), (1_000, 1_000), (3_000, 500)]);
    for text in [
        "1 reading above the capacity is taken as the capacity",
        "1 interval without a reading is taken as idle",
        "100 % in `CPU usage [%]` is all cores of a VM",
    ] {
        assert!(written.assumptions.iter().any(|it| it == text), "{:?}", written.assumptions);
        assert!(written.text.contains(&format!("# assumed: {text}\n")), "{}", written.text);
    }
    let scenario = written.scenario().expect("the scenario is valid");
    assert_eq!((scenario.host.cpus, scenario.length), (2, Span::from_secs(4)));
    assert_eq!(scenario.domains[0].vcpus.len(), 2);
    let idle = String::from_utf8_lossy(BITBRAINS).replacen("\t2;", "\t0;", 1);
    let written = one(Kind::Bitbrains, "7.csv", idle.as_bytes()).expect("the series is valid");
    let text = "# assumed: 1 reading with 0 cores is taken as idle\n";
    assert!(written.text.contains(text), "{}", written.text);
}

#[test]
fn azure_readings_of_several_vms_become_one_scenario() {
    let written = one(Kind::Azure, "readings.csv", AZURE).expect("the readings are valid");
    let scenario = written.scenario().expect("the scenario is valid");
    let names: Vec<&str> = scenario.domains.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["yJe-9-db", "second"]);
    let jobs = jobs(&written, "it-yJe-9-db-even.jobs");
    assert_eq!(jobs.len(), 20, "there is a job every 100 ms in both intervals");
    assert_eq!((jobs[0], jobs[19]), ((0, 12), (1_900, 25)));
}

#[test]
fn vms_with_readings_at_different_times_keep_their_time_offset() {
    let text = b"0,a,0,0,90\n300,a,0,0,0\n600,b,0,0,90\n";
    let block = Options { bursts: vec![BurstModel::Block], ..Options::default() };
    let file = SourceFile { name: "readings.csv", bytes: text };
    let written = convert(Kind::Azure, &[file], &block, "it").expect("the readings are valid");
    assert_eq!(jobs(&written, "it-a-block.jobs"), [(0, 900)]);
    assert_eq!(jobs(&written, "it-b-block.jobs"), [(2_000, 900)]);
    let scenario = written.scenario().expect("the scenario is valid");
    assert_eq!(scenario.host.cpus, 1, "the VMs are never busy together");
    let text = "1 VM without a reading at the start is idle until the first reading";
    assert!(written.assumptions.iter().any(|it| it == text), "{:?}", written.assumptions);
}

#[test]
fn scenario_with_inlined_jobs_needs_no_other_file() {
    for (kind, bytes) in [(Kind::PlanetLab, PLANETLAB), (Kind::RtApp, RT_APP)] {
        let written = one(kind, "file", bytes).expect("the workload is valid");
        let inlined = Scenario::read(&written.inlined()).expect("the scenario is valid");
        let steps = |it: &Scenario| it.vcpus().count();
        assert_eq!(steps(&inlined), steps(&written.scenario().expect("the scenario is valid")));
        assert!(!written.inlined().contains("file ="), "{}", written.inlined());
    }
}

#[test]
fn experiment_converted_from_series_has_variant_per_burst_model() {
    let bursts = vec![BurstModel::Even, BurstModel::Random, BurstModel::Block];
    let options = Options { bursts, part: Some((1, 2)), ..Options::default() };
    let file = SourceFile { name: "vm.txt", bytes: PLANETLAB };
    let written = convert(Kind::PlanetLab, &[file], &options, "it").expect("the series is valid");
    for model in BurstModel::NAMES {
        let work: u64 = jobs(&written, &format!("it-vm-{model}.jobs")).iter().map(|it| it.1).sum();
        // `jobs` rounds the work of each job down to milliseconds.
        assert!((980..=1_000).contains(&work), "{model}: {work}");
        assert!(written.axis.contains(&format!("[[axis.point]]\nname = \"{model}\"")));
    }
}

#[test]
fn damaged_series_file_is_refused_with_the_line_number() {
    refused(Kind::PlanetLab, b"12\n1x\n", "file:2: `1x` is not a whole percentage");
    refused(Kind::PlanetLab, b"12\n\n7\n", "file:2: the line is empty");
    refused(Kind::PlanetLab, b"\x1f\x8b\x08", "file: the file is compressed");
    let marked = one(Kind::PlanetLab, "file", b"\xef\xbb\xbf12\n");
    assert!(marked.is_ok(), "a byte order mark before the text is skipped");
    refused(Kind::PlanetLab, b"\n", "file: the file has no readings");
    refused(Kind::Azure, b"0,a,1,2\n", "file:1: the line has 4 columns, not 5");
    refused(Kind::Azure, b"0,a,1,2,3\n300,a,1,2,-3\n", "file:2: `-3` is not a percentage");
    refused(
        Kind::Azure,
        b"600,a,1,2,3\n300,a,1,2,3\n",
        "file:2: time 300 comes after 600; times must not decrease",
    );
    refused(Kind::Bitbrains, b"a;b\n1;2\n", "file:1: column `Timestamp [ms]` is missing");
    let text = String::from_utf8_lossy(BITBRAINS).replace("\t2;", "\t0;");
    refused(
        Kind::Bitbrains,
        text.as_bytes(),
        "file:2: VM `file` has 0 cores; 1 to 256 are possible",
    );
}

#[test]
fn series_with_more_jobs_than_a_scenario_allows_is_refused() {
    let options = Options { burst: Span::from_us(1), ..Options::default() };
    let file = SourceFile { name: "vm.txt", bytes: "50\n".repeat(288).leak().as_bytes() };
    let error = convert(Kind::PlanetLab, &[file], &options, "it")
        .expect_err("the series has too many jobs");
    assert_eq!(
        error.to_string(),
        "cannot write about 288000000 jobs: at most 5000000 are possible"
    );
}

proptest! {
    #[test]
    fn altered_series_file_gives_valid_scenario_or_error(
        kind in prop::sample::select(vec![Kind::Bitbrains, Kind::Azure, Kind::PlanetLab]),
        at in 0_usize..400, byte: u8,
    ) {
        let mut bytes = match kind {
            Kind::Bitbrains => BITBRAINS.to_vec(),
            Kind::Azure => AZURE.to_vec(),
            _ => PLANETLAB.to_vec(),
        };
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(written) = one(kind, "file", &bytes) {
            prop_assert!(written.scenario().is_ok(), "{}", written.text);
        }
    }
}

/// A reading at the end of ten years would otherwise cause intervals for all the time before it.
#[test]
fn cpu_series_with_too_many_empty_intervals_is_refused() {
    let late = |vms: u64| {
        let mut text = "0,first,0,0,90\n".to_owned();
        (0..vms).for_each(|vm| text += &format!("316000000,vm{vm},0,0,90\n"));
        one(Kind::Azure, "readings.csv", text.as_bytes()).expect_err("it is too long").to_string()
    };
    let why = "cannot convert 10533341 intervals of 11 VMs: at most 10000000 are possible";
    assert!(late(10).contains(why), "{}", late(10));
    assert!(late(9).contains("cannot write about"), "{}", late(9));
    assert!(late(999).contains("intervals of 1000 VMs"), "{}", late(999));
    assert!(late(1_000).contains("cannot convert 1001 VMs"), "{}", late(1_000));
}
