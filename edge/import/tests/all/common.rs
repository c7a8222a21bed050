//! Recordings for tests, and functions that read them.

use slackline_import::{Import, ImportError, Kind, Target, read};
use slackline_metrics::{Answer, CulpritFinder};
use slackline_trace::{Entry, HostThread, Note, Record};
use slackline_units::Span;

/// Recording of `perf sched record -C 1` that lasts 1.8 s: two processes with vCPU threads and a
/// third process on one CPU. Paths, the name of the host, and names of other processes were
/// removed.
pub(crate) const PERF: &[u8] = include_bytes!("../fixtures/perf.data");
/// The file `trace` of tracefs, recorded during a part of [`PERF`].
pub(crate) const TRACEFS: &[u8] = include_bytes!("../fixtures/tracefs.txt");
/// Output of `trace-cmd report -t` for the events of [`TRACEFS`].
pub(crate) const TRACE_CMD: &[u8] = include_bytes!("../fixtures/trace-cmd.txt");

/// Reads a recording. Its kind is recognised by its first bytes.
pub(crate) fn import(bytes: &[u8]) -> Result<Import, ImportError> {
    read(Kind::of(bytes).expect("a recording"), bytes, &[])
}

/// Reads a recording. The VMs are the processes in `targets`.
pub(crate) fn import_for(bytes: &[u8], targets: &[&str]) -> Result<Import, ImportError> {
    let targets: Vec<Target> =
        targets.iter().map(|text| text.parse().expect("a valid target")).collect();
    read(Kind::of(bytes).expect("a recording"), bytes, &targets)
}

pub(crate) fn entries(import: &Import) -> Vec<Entry> {
    let mut entries = Vec::new();
    import.pass_to(&mut entries);
    entries
}

pub(crate) fn records(import: &Import) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    import.pass_to(&mut records);
    records
}

pub(crate) fn notes(import: &Import) -> Vec<Note> {
    let of = |entry| match entry {
        Entry::Note(note) => Some(note),
        _ => None,
    };
    entries(import).into_iter().filter_map(of).collect()
}

pub(crate) fn threads(import: &Import) -> Vec<HostThread> {
    let of = |entry| match entry {
        Entry::HostThread(thread) => Some(*thread),
        _ => None,
    };
    entries(import).into_iter().filter_map(of).collect()
}

/// Returns the culprits of a VM's waiting time.
pub(crate) fn why(import: &Import, vm: &str) -> Answer {
    let mut finder = CulpritFinder::new(vm);
    import.pass_to(&mut finder);
    finder.answer()
}

/// Returns the CPU time of a vCPU.
pub(crate) fn used(import: &Import, vm: &str) -> Span {
    why(import, vm).vcpus.iter().map(|it| it.ran).sum()
}
