//! Command `slackline record`, which records which threads ran on the CPUs of this host.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slackline_control::Recording;
use slackline_daemon::record::{TargetError, Targets};
use slackline_linux::sys::{favour, own_tid};
use slackline_linux::with_causes;
use slackline_live::recorder::anonymise::Anonymiser;
use slackline_live::recorder::host::HostRecorder;
use slackline_live::recorder::identity::Procfs;
use slackline_live::watch::perf::WatchError;
use slackline_trace::{Reader, Sink, Writer};
use slackline_units::{Span, Time};

use crate::counted::counted;
use crate::pending::Pending;
use crate::problem::Problem;
use crate::service;
use crate::service::args::RecordArgs;
use crate::signals::stop_signal;
use crate::terminal::{self, Progress};

/// Interval at which the kernel's event rings are read.
const TICK: Span = Span::from_ms(25);

/// Permissions of a recording: only its owner may read it, because it shows what ran on this host.
const MODE: u32 = 0o600;

/// Interval at which the recording is written to its file.
const CHECKPOINT: Span = Span::from_secs(1);

/// Output of a recording. `checkpoint` writes all records so far, `end` completes the output.
trait Output: Sink {
    fn checkpoint(&mut self) -> io::Result<()>;
    fn end(self) -> io::Result<()>;
}

type FileWriter = Writer<BufWriter<File>>;

impl Output for FileWriter {
    fn checkpoint(&mut self) -> io::Result<()> {
        Writer::checkpoint(self)
    }

    fn end(self) -> io::Result<()> {
        self.finish()
    }
}

impl Output for Anonymiser<FileWriter> {
    fn checkpoint(&mut self) -> io::Result<()> {
        self.sink().checkpoint()
    }

    fn end(self) -> io::Result<()> {
        self.into_sink().finish()
    }
}

pub(crate) fn record(args: &RecordArgs) -> Result<(), Problem> {
    if let Some(since) = args.since {
        return of_the_daemon(args, since);
    }
    let targets = Targets::find(&args.r#for).map_err(|error| no_target(&error))?;
    let (stop, _raised) = stop_signal()?;
    let recorder = HostRecorder::open(Procfs::new(targets.vms.clone()));
    let recorder = recorder.map_err(|error| cannot_watch(&error))?;
    let file = create(&args.file).map_err(|source| unwritable(args, source))?;
    let header = recorder.header("recording");
    let writer = Writer::recording(BufWriter::new(file), &header);
    // Busy programs on the CPUs must not delay the reading of the event rings.
    let _ = favour(own_tid());
    if args.anonymise {
        run(args, recorder, targets, Anonymiser::new(writer), &stop)
    } else {
        run(args, recorder, targets, writer, &stop)
    }
}

fn run(
    args: &RecordArgs,
    mut recorder: HostRecorder,
    targets: Targets,
    mut out: impl Output,
    stop: &impl AsFd,
) -> Result<(), Problem> {
    let (vms, vcpus) = (count_vms(&targets), targets.vcpus.len());
    targets.growing.into_iter().for_each(|vm| recorder.assembler().grow(vm));
    recorder.begin(targets.vcpus, &mut out);
    let mut progress = Progress::new("recorded", args.length);
    let (end, mut next_checkpoint) = (Time::START + args.length, Time::START);
    let (mut was_stopped, mut written) = (false, Ok(()));
    while recorder.now() < end && !was_stopped && written.is_ok() {
        was_stopped = waits(stop, TICK.min(end.since(recorder.now())));
        recorder.step(&mut out).map_err(|error| cannot_watch(&error))?;
        let now = recorder.now();
        progress.at(now);
        if now >= next_checkpoint {
            next_checkpoint = now + CHECKPOINT;
            written = out.checkpoint();
        }
    }
    drop(progress);
    let length = recorder.now();
    let lost = recorder.finish(&mut out).map_err(|error| cannot_watch(&error))?;
    written.and(out.end()).map_err(|source| unwritable(args, source))?;
    let losses = match lost {
        0 => "no events lost".into(),
        _ => format!("{} lost", counted(lost, "event")),
    };
    terminal::tell(&format!(
        "note:  recorded {} with {} for {}; {losses}\n",
        counted(vms, "VM"),
        counted(vcpus, "vCPU"),
        rounded(length.since(Time::START)),
    ));
    Ok(())
}

/// Makes the daemon save what its flight recorder recorded in the last `since`, and copies that
/// recording to the output file.
fn of_the_daemon(args: &RecordArgs, since: Span) -> Result<(), Problem> {
    let Recording { file, length_ns } = service::save_recording(&args.socket, since)?;
    let unreadable = |source| Problem::Unreadable { file: file.clone().into(), source };
    let mut from = File::open(&file).map_err(unreadable)?;
    let copied = Pending::new(&args.file).and_then(|(pending, mut to)| {
        let copied = protect(to.get_ref()).and_then(|()| match args.anonymise {
            true => copy_without_names(&from, &mut to),
            false => io::copy(&mut from, &mut to).map(drop),
        });
        pending.keep(copied.and_then(|()| to.flush()))
    });
    // If this process may not remove the file, the daemon removes it at its next start.
    let _ = fs::remove_file(&file);
    copied?;
    let length = rounded(Span::from_ns(length_ns));
    terminal::tell(&format!("note:  saved the last {length} of the daemon's recorded events\n"));
    Ok(())
}

fn copy_without_names(from: &File, to: impl io::Write) -> io::Result<()> {
    let unreadable = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut reader = Reader::new(from).map_err(unreadable)?;
    let mut out = Anonymiser::new(Writer::recording(to, reader.header()));
    reader.pass_to(&mut out).map_err(unreadable)?;
    out.into_sink().finish()
}

fn rounded(length: Span) -> Span {
    Span::from_ms(length.ns() / 1_000_000)
}

fn count_vms(targets: &Targets) -> usize {
    let mut domains: Vec<_> = targets.vcpus.iter().map(|vcpu| vcpu.vcpu.domain()).collect();
    domains.dedup();
    domains.len()
}

/// Waits until `stop` is readable, but at most for `most`. Returns true if `stop` is readable.
fn waits(stop: &impl AsFd, most: Span) -> bool {
    let mut fds = [PollFd::new(stop, PollFlags::IN)];
    let ns = i64::try_from(most.ns()).unwrap_or(i64::MAX);
    let timeout = Timespec { tv_sec: ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 };
    matches!(poll(&mut fds, Some(&timeout)), Ok(count) if count > 0)
}

/// Creates a file that only its owner may read, since it shows what ran on this host. It has its
/// final name from the start, so that a part of the recording remains if this program is killed.
fn create(file: &Path) -> io::Result<File> {
    let out = File::options().write(true).create(true).truncate(true).mode(MODE).open(file)?;
    protect(&out)?;
    Ok(out)
}

/// Makes a file readable only for its owner. Changes no device or pipe.
fn protect(file: &File) -> io::Result<()> {
    match file.metadata()?.is_file() {
        true => file.set_permissions(Permissions::from_mode(MODE)),
        false => Ok(()),
    }
}

fn unwritable(args: &RecordArgs, source: io::Error) -> Problem {
    Problem::Unwritable { file: args.file.clone(), source }
}

fn no_target(error: &TargetError) -> Problem {
    let hint = match error {
        TargetError::NoVms => "name a process with `--for pid:NUMBER`",
        TargetError::NotABinding { .. } => {
            "write a binding as in `slackline reserve`, e.g. `--for qemu:web` or `--for pid:17`"
        }
        TargetError::Absent { .. } => "list VMs with `slackline find`",
    };
    let message = error.to_string();
    match error {
        TargetError::NotABinding { .. } => Problem::BadOption { message, hint: Some(hint.into()) },
        _ => Problem::HostCannot { message, hint: Some(hint.into()) },
    }
}

fn cannot_watch(error: &WatchError) -> Problem {
    let hint = match error {
        WatchError::NotPermitted { .. } | WatchError::NoTracepoint(_) => {
            Some("run `slackline record` as root, on the host and not in a container".into())
        }
        WatchError::Namespace { .. } => {
            Some("run `slackline record` in the host's pid namespace".into())
        }
        _ => None,
    };
    Problem::HostCannot { message: format!("cannot record: {}", with_causes(error)), hint }
}
