//! Reasons why a recording cannot be read.

use thiserror::Error;

use crate::place::Place;

/// Reason why a recording cannot be read.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ImportError {
    /// The recording was made on a host with the opposite byte order.
    #[error("this perf.data was recorded on a big-endian host")]
    BigEndian,
    /// The recording was written by perf to a pipe, in a form that cannot be read.
    #[error("this perf.data was written to a pipe: its header has {found} bytes, not {expected}")]
    Piped {
        /// Length of the header that was found.
        found: u64,
        /// Length of the header of a `perf.data` file.
        expected: u64,
    },
    /// The recorder was killed before it completed the recording.
    #[error("the recording was not finished: its header names no data")]
    Unfinished,
    /// The file ends early.
    #[error("the file is cut: {what} ends at byte {end}, and the file has {length} bytes")]
    Cut {
        /// Part of the file that is incomplete.
        what: &'static str,
        /// End of that part according to the header of the file.
        end: u64,
        /// Length of the file.
        length: u64,
    },
    /// The id lists of several events overlap in the file.
    #[error("{place}: the lists of event ids overlap, and no recorder writes such a file")]
    Overlap {
        /// Position in the file.
        place: Place,
    },
    /// A part of the file is shorter than this kind of part can be.
    #[error("{place}: {what} has {found} bytes, and needs at least {least}")]
    Short {
        /// Position in the file.
        place: Place,
        /// Kind of the part.
        what: &'static str,
        /// Number of bytes that the part has.
        found: u64,
        /// Minimum number of bytes of a part of this kind.
        least: u64,
    },
    /// The text ends in the middle of a line.
    #[error("{place}: the last line ends early: it has no {missing}")]
    CutLine {
        /// Position in the file.
        place: Place,
        /// Name of the first part that is missing in the line.
        missing: &'static str,
    },
    /// A line about a switch or wake cannot be parsed.
    #[error("{place}: cannot read {what} `{found}`")]
    BadField {
        /// Position in the file.
        place: Place,
        /// Name of the field.
        what: &'static str,
        /// Text of the field as found.
        found: String,
    },
    /// The recording was compressed by perf.
    #[error("{place}: the recording is compressed")]
    Compressed {
        /// Position in the file.
        place: Place,
    },
    /// Samples do not contain their time, CPU or raw data.
    #[error("event {event} of {events} has samples without {missing}")]
    NoSampleField {
        /// Number of the event, from 1.
        event: usize,
        /// Number of events in the recording.
        events: usize,
        /// Name of the missing field.
        missing: &'static str,
    },
    /// The event to which a sample belongs cannot be determined: the samples have no event id, or
    /// have it at different positions.
    #[error("event {event} of {events} has samples without an event id at a known position")]
    Ambiguous {
        /// Number of the event, from 1.
        event: usize,
        /// Number of events in the recording.
        events: usize,
    },
    /// A sample belongs to an event that the header of the file does not describe.
    #[error(
        "{place}: a sample names event {id}, which is not among the {events} events of the header"
    )]
    UnknownEvent {
        /// Position in the file.
        place: Place,
        /// Id of the event in the sample.
        id: u64,
        /// Number of events in the recording.
        events: usize,
    },
    /// The description of an event is missing, or lacks a field.
    #[error("the format of {event} has no field {field}")]
    NoFormat {
        /// Name of the event.
        event: &'static str,
        /// Name of the field.
        field: &'static str,
    },
    /// A CPU number is too large.
    #[error("{place}: CPU {cpu} is beyond the largest number, {most}")]
    BadCpu {
        /// Position in the file.
        place: Place,
        /// Number of the CPU.
        cpu: u64,
        /// Largest possible number of a CPU.
        most: u64,
    },
    /// A number cannot be a thread id.
    #[error("{place}: {tid} is no thread id; thread ids go from 0 to {most}")]
    BadThread {
        /// Position in the file.
        place: Place,
        /// Number in place of the thread id.
        tid: i64,
        /// Largest possible thread id.
        most: i64,
    },
    /// A time is later than the clock of any host can show.
    #[error("{place}: time {at} is beyond the latest possible, {most}")]
    BadTime {
        /// Position in the file.
        place: Place,
        /// Time of the event in seconds.
        at: String,
        /// Latest time that is accepted, in seconds.
        most: String,
    },
    /// The events of one CPU are not in order of time.
    #[error("{place}: time {at} of CPU {cpu} is before {before}, the time of an earlier event")]
    Reordered {
        /// Position in the file.
        place: Place,
        /// CPU of the event.
        cpu: u64,
        /// Time of the event in seconds.
        at: String,
        /// Time of the previous event of the CPU in seconds.
        before: String,
    },
    /// The time between two events is longer than on any host.
    #[error("{place}: time jumps from {before} to {at}, more than {most} s")]
    ClockJump {
        /// Position in the file.
        place: Place,
        /// Time of the event in seconds.
        at: String,
        /// Time of the previous event in seconds.
        before: String,
        /// Maximum time between two events in seconds.
        most: u64,
    },
    /// The recording contains no switches between threads.
    #[error("none of the {events} events of the recording is sched_switch")]
    NoSwitches {
        /// Number of events in the recording.
        events: u64,
    },
    /// A requested process does not occur in the recording.
    #[error("no thread of process {pid} is among the {threads} threads of the recording")]
    NoProcess {
        /// Process id that the user requested.
        pid: i32,
        /// Number of threads in the recording.
        threads: usize,
        /// Names and ids of the processes that used the most CPU time.
        busiest: Vec<(String, i32)>,
    },
    /// The recording would have too many vCPUs.
    #[error("the recording would have {vcpus} vCPUs, more than {most}")]
    TooManyVcpus {
        /// Number of vCPUs that were found.
        vcpus: usize,
        /// Largest possible number of vCPUs.
        most: usize,
    },
}

impl ImportError {
    /// Returns advice for the user.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            ImportError::BigEndian => {
                "convert the file on the recorded host: `perf script > sched.txt`".into()
            }
            ImportError::Piped { .. } => {
                "record to a file with `perf sched record -o perf.data`".into()
            }
            ImportError::Unfinished => "end `perf sched record` with Ctrl-C, not with kill".into(),
            ImportError::Compressed { .. } => "record without -z".into(),
            ImportError::NoSampleField { .. } | ImportError::Ambiguous { .. } => {
                "record with `perf sched record`, or read the text of `perf script`".into()
            }
            ImportError::NoFormat { .. } | ImportError::NoSwitches { .. } => {
                "record with `perf sched record`, or `trace-cmd record -e sched_switch -e \
                 sched_waking`"
                    .into()
            }
            ImportError::CutLine { .. } => "remove the last line".into(),
            ImportError::NoProcess { busiest, .. } => match busiest.first() {
                Some((name, pid)) => {
                    format!("the busiest process is {name}: write --for {name}=pid:{pid}")
                }
                None => "list the threads with `slackline show FILE --list`".into(),
            },
            ImportError::TooManyVcpus { .. } => "name the VMs with --for NAME=pid:NUMBER".into(),
            ImportError::Reordered { .. } | ImportError::ClockJump { .. } => {
                "use the file as the recorder wrote it, of one host and one boot".into()
            }
            _ => "copy the file again, or record again".into(),
        }
    }
}
