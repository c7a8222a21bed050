//! `slackline import`, which converts files of other programs. Also lets other commands read
//! recordings of perf and ftrace in place of traces.

mod workloads;

use std::fmt::Write as _;
use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Read as _, Seek as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use slackline_import::{Import, Kind, Target, read};
use slackline_live::recorder::anonymise::Anonymiser;
use slackline_trace::Writer;

use crate::counted::counted;
use crate::import_args::{ImportArgs, ImportKind};
use crate::input;
use crate::pending::Pending;
use crate::places::Places;
use crate::problem::Problem;
use crate::terminal;

/// Maximum length of a recording that can be read, in bytes, because the whole recording is held in
/// memory.
const LONGEST: u64 = 1 << 31;

/// Permissions of a file that shows what ran on a host: only its owner may read it.
const MODE: u32 = 0o600;

pub(crate) fn import(args: &ImportArgs) -> Result<(), Problem> {
    let [files @ .., out] = &args.files[..] else { unreachable!("a file is required") };
    if files.is_empty() && args.kind != ImportKind::Uunifast {
        let message = format!("cannot import {}: the file to write is not named", out.display());
        let hint = "name the file to write last: slackline import KIND FILE... OUT";
        return Err(Problem::BadOption { message, hint: Some(hint.into()) });
    }
    match (args.kind.recording(), args.kind.workload()) {
        (Some(kind), _) => recording(args, kind, files, out),
        (None, Some(kind)) => workloads::import(args, kind, files, out),
        (None, None) => unreachable!("a kind is a recording or a workload"),
    }
}

/// Converts one recording to a trace, and prints its VMs and assumptions.
fn recording(args: &ImportArgs, kind: Kind, files: &[PathBuf], name: &Path) -> Result<(), Problem> {
    let [file] = files else {
        let message = format!("cannot convert {} recordings in one command", files.len());
        return Err(Problem::BadOption { message, hint: Some("convert one at a time".into()) });
    };
    if let Some(option) = args.workload.given() {
        return Err(workloads::not_for(option, args.kind));
    }
    let places = Places::of(&[("the recording", Some(name))])?;
    places.read("the file", file)?;
    let bytes = read_whole(file)?;
    let found = Kind::of(&bytes);
    if found != Some(kind) {
        return Err(not_of_kind(file, kind, found));
    }
    let import = parsed(file, kind, &bytes, &args.r#for)?;
    let (pending, out) = Pending::new(name)?;
    let unwritable = |source| Problem::Unwritable { file: name.into(), source };
    if out.get_ref().metadata().is_ok_and(|it| it.is_file()) {
        out.get_ref().set_permissions(Permissions::from_mode(MODE)).map_err(unwritable)?;
    }
    pending.keep(write(&import, out, args.anonymise))?;
    terminal::say(&summary(&import))
}

/// Notes that a command prints about a recording that perf or ftrace made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tells {
    /// The VMs of the recording, and how they were recognised.
    Vms,
    /// No note, because the command itself has printed the VMs or uses the whole screen.
    Nothing,
}

/// Returns a file with a trace: `file` itself, or the converted recording if perf or ftrace made
/// `file`.
pub(crate) fn as_trace(name: &Path, mut file: File, tells: Tells) -> Result<File, Problem> {
    let unreadable = |source| Problem::Unreadable { file: name.into(), source };
    let mut begin = Vec::new();
    let most = slackline_import::BEGINS as u64;
    (&mut file).take(most).read_to_end(&mut begin).map_err(unreadable)?;
    file.rewind().map_err(unreadable)?;
    let Some(kind) = Kind::of(&begin) else { return Ok(file) };
    let import = parsed(name, kind, &bytes(name, file)?, &[])?;
    if tells == Tells::Vms {
        terminal::tell(&note(name, &import));
    }
    let copied = tempfile::tempfile().and_then(|mut copy| {
        write(&import, BufWriter::new(copy.try_clone()?), false)?;
        copy.rewind()?;
        Ok(copy)
    });
    copied.map_err(|source| Problem::Unwritable { file: std::env::temp_dir(), source })
}

/// Returns a note about the VMs of a recording, and how they were recognised.
fn note(name: &Path, import: &Import) -> String {
    let (name, vms) = (name.display(), import.vms());
    let vms = if vms.is_empty() { "none".into() } else { vms.join(", ") };
    let how = import.assumptions().into_iter().next().unwrap_or_default();
    let mut text = format!("note:  VMs of {name}: {vms}; {how}\n");
    if import.lost() > 0 {
        let _ = writeln!(text, "note:  the recorder lost at least {} events", import.lost());
    }
    text
}

fn parsed(name: &Path, kind: Kind, bytes: &[u8], targets: &[Target]) -> Result<Import, Problem> {
    read(kind, bytes, targets).map_err(|error| Problem::BadImport { file: name.into(), error })
}

/// Reads a whole file, or standard input.
fn read_whole(name: &Path) -> Result<Vec<u8>, Problem> {
    let opened = input::open(name);
    bytes(name, opened.map_err(|source| Problem::Unreadable { file: name.into(), source })?)
}

fn bytes(name: &Path, file: File) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    let read = file.take(LONGEST + 1).read_to_end(&mut bytes);
    read.map_err(|source| Problem::Unreadable { file: name.into(), source })?;
    if bytes.len() as u64 > LONGEST {
        return Err(Problem::TooLong { file: name.into(), longest: LONGEST });
    }
    Ok(bytes)
}

/// Writes the trace of a recording. If `is_anonymous` is true, names of VMs and processes are
/// replaced.
fn write(import: &Import, out: BufWriter<File>, is_anonymous: bool) -> io::Result<()> {
    let writer = Writer::new(out, &import.header());
    if is_anonymous {
        let mut sink = Anonymiser::new(writer);
        import.pass_to(&mut sink);
        return sink.into_sink().finish();
    }
    let mut writer = writer;
    import.pass_to(&mut writer);
    writer.finish()
}

fn not_of_kind(file: &Path, kind: Kind, found: Option<Kind>) -> Problem {
    let file = file.display();
    let message = match found {
        Some(found) => {
            format!("{file} is {found}, not {wanted}", found = found.name(), wanted = kind.name())
        }
        None => format!("{file} is not {}", kind.name()),
    };
    let hint = match found {
        Some(Kind::Perf) => "write `slackline import perf`",
        Some(Kind::Ftrace) => "write `slackline import trace-cmd`",
        None => {
            "use perf.data of `perf sched record`, or the text of `trace-cmd report` or of tracefs"
        }
    };
    Problem::BadOption { message, hint: Some(hint.into()) }
}

fn summary(import: &Import) -> String {
    let header = import.header();
    let mut text = format!("{}, {}\n", header.title, counted(header.cpus, "CPU"));
    let vms = import.vms();
    let _ = match vms[..] {
        [] => writeln!(text, "VMs:     none"),
        _ => writeln!(text, "VMs:     {}", vms.join(", ")),
    };
    for assumption in import.assumptions() {
        let _ = writeln!(text, "assumed: {assumption}");
    }
    let _ = writeln!(text, "lost:    {} events", import.lost());
    text
}
