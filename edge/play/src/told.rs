//! Records of jobs and requests from the processes of a live run. They are added to the records of
//! the run's session.

use slackline_trace::{Entry, Record, Sink};
use slackline_units::Time;

use crate::outside::ExternalProcesses;
use crate::processes::ManagedProcesses;

/// Returns the records that load processes, clients and the file server have reported since the
/// last call. `origin` is the start of the run. A job that was done after `until`, a time of the
/// run, still counts as overdue.
pub(crate) fn take_told(
    (origin, until): (Time, Time),
    processes: &mut ManagedProcesses,
    outside: &mut ExternalProcesses,
) -> Vec<Record> {
    let mut told = Vec::new();
    processes.take_jobs((origin, until), &mut told);
    outside.take_records(origin, &mut told);
    told
}

/// Writes to the sink the records of the session, and then the records of load processes. The
/// record of the end of the run comes last. Records of load processes after the end of the run are
/// left out.
pub(crate) fn hand_on<S: Sink>(records: &mut Vec<Entry>, mut told: Vec<Record>, sink: &mut S) {
    let end = records.pop_if(|entry| matches!(entry, Entry::Record(Record::Ended { .. })));
    if let Some(Entry::Record(Record::Ended { at })) = end {
        // Load processes continue until they are ended. Records after the end of the run do not
        // count.
        told.retain(|record| record.when().1 <= at);
    }
    let told = told.into_iter().map(Entry::Record);
    records.drain(..).chain(told).chain(end).for_each(|entry| entry.pass_to(sink));
}
