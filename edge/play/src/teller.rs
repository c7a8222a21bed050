//! Reader of the notes that a load process writes to its pipe.

use std::io::Read;
use std::os::fd::AsFd;
use std::process::ChildStdout;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slackline_load::{Job, Note, NoteReader, Ports};
use slackline_trace::Record;
use slackline_units::{ClientId, Time, VcpuId};

/// Time within which a load process must be ready. Some load processes first create a file to read.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// Pipe from a load process, which writes notes into the pipe.
#[derive(Debug)]
pub(crate) struct JobPipe {
    pipe: ChildStdout,
    reader: NoteReader,
    /// Notes that were read together with the note that the process is ready. They are returned by
    /// the next call of [`take`](JobPipe::take).
    early: Vec<Note>,
}

impl JobPipe {
    pub(crate) fn new(pipe: ChildStdout) -> JobPipe {
        JobPipe { pipe, reader: NoteReader::default(), early: Vec::new() }
    }

    /// Waits until the load process reports that it is ready. `None` if the process closes the pipe
    /// before that, or takes too long.
    pub(crate) fn ready(&mut self) -> Option<Ports> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            let left = deadline.checked_duration_since(Instant::now())?;
            if !is_readable(&self.pipe, left) {
                continue;
            }
            let notes = self.read()?;
            let mut ports = None;
            for note in notes {
                match note {
                    Note::Ready(told) => ports = Some(told),
                    note => self.early.push(note),
                }
            }
            if ports.is_some() {
                return ports;
            }
        }
    }

    /// Returns the notes since the last call.
    pub(crate) fn take(&mut self) -> Vec<Note> {
        let mut notes = std::mem::take(&mut self.early);
        while is_readable(&self.pipe, Duration::ZERO) {
            let Some(more) = self.read() else { break };
            notes.extend(more);
        }
        notes
    }

    /// Reads the available notes. `None` if the pipe is closed.
    fn read(&mut self) -> Option<Vec<Note>> {
        let mut bytes = [0; 4096];
        let Ok(count @ 1..) = self.pipe.read(&mut bytes) else { return None };
        Some(self.reader.take(&bytes[..count]))
    }
}

/// Returns the trace record for a note. `origin` is the start of the run. The note is about `vcpu`,
/// or comes from a client that connects to `vcpu`. `None` if the note has no record in the trace.
pub(crate) fn record(
    note: Note,
    (vcpu, client): (VcpuId, Option<ClientId>),
    origin: Time,
) -> Option<Record> {
    let of_run = |at: Time| Time::START + at.since(origin);
    match note {
        Note::Job(Job { released, deadline, done }) => {
            let deadline = deadline.map_or(Time::NEVER, of_run);
            let (released, done) = (of_run(released), of_run(done));
            Some(Record::Job { vcpu, task: None, client, released, deadline, done })
        }
        Note::Moved { at, bytes } => Some(Record::Moved { at: of_run(at), vcpu, bytes }),
        Note::Lost { .. } | Note::Ready(_) => None,
    }
}

/// Returns true as soon as data can be read from the pipe, and false if there is none within the
/// time `within`.
pub(crate) fn is_readable(pipe: &impl AsFd, within: Duration) -> bool {
    let mut fds = [PollFd::new(pipe, PollFlags::IN)];
    let within = Timespec {
        tv_sec: i64::try_from(within.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: within.subsec_nanos().into(),
    };
    poll(&mut fds, Some(&within)).is_ok_and(|ready| ready > 0)
        && fds[0].revents().intersects(PollFlags::IN | PollFlags::HUP)
}
