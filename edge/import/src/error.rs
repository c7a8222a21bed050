//! Errors of recordings.

use thiserror::Error;

use crate::foreign::Place;

/// Reason why a recording cannot be read.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ImportError {
    /// Recording of a host with the other byte order.
    #[error("this perf.data was recorded on a big-endian host")]
    BigEndian,
    /// Output of perf to a pipe.
    #[error("this perf.data was written to a pipe, and its head has {found} bytes of {expected}")]
    Piped {
        /// Length of its head.
        found: u64,
        /// Length of the head of a file.
        expected: u64,
    },
    /// Recording whose recorder was killed.
    #[error("the recording was not finished: its head tells of no data")]
    Unfinished,
    /// File that ends early.
    #[error("the file is cut: {what} ends at byte {end}, and the file has {length} bytes")]
    Cut {
        /// Part of the file.
        what: &'static str,
        /// End of that part by the head of the file.
        end: u64,
        /// Length of the file.
        length: u64,
    },
    /// Part of a file that is shorter than its kind allows.
    #[error("{place}: {what} has {found} bytes, and needs at least {least}")]
    Short {
        /// Position in the file.
        place: Place,
        /// Part of the file.
        what: &'static str,
        /// Number of bytes.
        found: u64,
        /// Least number of bytes.
        least: u64,
    },
    /// Text that ends within a line.
    #[error("{place}: the last line ends early: it has no {missing}")]
    CutLine {
        /// Position in the file.
        place: Place,
        /// First part that is missing.
        missing: &'static str,
    },
    /// Line of a switch or wake that cannot be parsed.
    #[error("{place}: cannot read {what} `{found}`")]
    BadField {
        /// Position in the file.
        place: Place,
        /// Name of the field.
        what: &'static str,
        /// Text of the field.
        found: String,
    },
    /// Compressed data.
    #[error("{place}: the recording is compressed")]
    Compressed {
        /// Position in the file.
        place: Place,
    },
    /// Samples that do not tell their time, CPU or raw data.
    #[error("event {event} of {events} has samples without their {missing}")]
    NoSampleField {
        /// Number of the event, from 1.
        event: usize,
        /// Number of events.
        events: usize,
        /// Name of what is missing.
        missing: &'static str,
    },
    /// Samples whose event cannot be told.
    #[error("event {event} of {events} has samples of another form, and nothing tells them apart")]
    Ambiguous {
        /// Number of the event, from 1.
        event: usize,
        /// Number of events.
        events: usize,
    },
    /// Sample of an event that the head of the file does not describe.
    #[error("{place}: a sample names event {id}, which is none of the {events} events")]
    UnknownEvent {
        /// Position in the file.
        place: Place,
        /// Id that the sample names.
        id: u64,
        /// Number of events.
        events: usize,
    },
    /// Event whose format is missing or has no such field.
    #[error("the format of {event} has no field {field}")]
    NoFormat {
        /// Name of the event.
        event: &'static str,
        /// Name of the field.
        field: &'static str,
    },
    /// CPU number beyond the largest.
    #[error("{place}: CPU {cpu} is beyond the largest number, {most}")]
    BadCpu {
        /// Position in the file.
        place: Place,
        /// Number of the CPU.
        cpu: u64,
        /// Largest number.
        most: u64,
    },
    /// Thread id that no thread has.
    #[error("{place}: {tid} is no thread id; they go from 0 to {most}")]
    BadThread {
        /// Position in the file.
        place: Place,
        /// Number instead of a thread id.
        tid: i64,
        /// Largest thread id.
        most: i64,
    },
    /// Time that no clock of a host shows.
    #[error("{place}: time {at} is beyond the latest possible, {most}")]
    BadTime {
        /// Position in the file.
        place: Place,
        /// Time of the event in seconds.
        at: String,
        /// Latest time in seconds.
        most: String,
    },
    /// Events of one CPU that are not in order.
    #[error(
        "{place}: time {at} of CPU {cpu} is before {before}, that of an earlier event of the CPU"
    )]
    Reordered {
        /// Position in the file.
        place: Place,
        /// CPU of the event.
        cpu: u64,
        /// Time of the event in seconds.
        at: String,
        /// Time of the event before it in seconds.
        before: String,
    },
    /// Gap between two events that no host has.
    #[error("{place}: time jumps from {before} to {at}, more than {most} s")]
    ClockJump {
        /// Position in the file.
        place: Place,
        /// Time of the event in seconds.
        at: String,
        /// Time of the event before it in seconds.
        before: String,
        /// Longest gap in seconds.
        most: u64,
    },
    /// Recording without switches.
    #[error("the recording has {events} events, and 0 of them are sched_switch")]
    NoSwitches {
        /// Number of events.
        events: u64,
    },
    /// Process that does not occur in the recording.
    #[error("no thread of process {pid} is among the {threads} threads of the recording")]
    NoProcess {
        /// Process id that was asked for.
        pid: i32,
        /// Number of threads.
        threads: usize,
        /// Busiest processes: names and ids.
        busiest: Vec<(String, i32)>,
    },
    /// More vCPUs than a recording can have.
    #[error("the recording would have {vcpus} vCPUs, more than {most}")]
    TooManyVcpus {
        /// Number of vCPUs.
        vcpus: usize,
        /// Largest number.
        most: usize,
    },
}

impl ImportError {
    /// Returns what to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            ImportError::BigEndian => "convert it there: `perf script > sched.txt`".into(),
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
                None => "list its threads with `slackline show FILE --list`".into(),
            },
            ImportError::TooManyVcpus { .. } => "name the VMs with --for NAME=pid:NUMBER".into(),
            ImportError::Reordered { .. } | ImportError::ClockJump { .. } => {
                "use the file as the recorder wrote it, of one host and one boot".into()
            }
            _ => "copy the file again, or record again".into(),
        }
    }
}
