//! Common parts of tests that run the program as a user does and check the results.

#![allow(dead_code, unreachable_pub)] // Each topic uses its own part.

pub mod budgets;
pub mod live;
pub mod service;

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// Path of the program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_slackline");
/// Environment variable with the path of another program to test, such as a release build.
const OTHER_PROGRAM: &str = "SLACKLINE_TEST_PROGRAM";

/// Scenario with a VM that always computes and a VM that often blocks. They reserve 60 % and 30 %
/// of one CPU. The scenario passes admission and ends quickly.
pub const GOOD: &str = r#"title = "two hogs"
length = "400ms"
policy = { name = "edf", reserve = "0.05cpu" }
[host]
cpus = 1
[[domain]]
name = "gold"
work = { kind = "spin" }
share.edf = { slice = "6ms", period = "10ms", exact = true }
[[domain]]
name = "silver"
work = { kind = "interactive", compute = "exponential 1ms", sleep = "exponential 5ms" }
share.edf = { slice = "3ms", period = "10ms" }
[[claim]]
that = "delivered of gold"
is = "within 2% of promised"
on = "sim"
"#;

/// Copies the program under test. It runs `cp` to write the copy. If the test process wrote it, a
/// child of another test could inherit the open file. A file that is open for writing cannot be
/// executed.
pub fn copy_program(to: &Path) {
    let copied = Command::new("cp").arg(PROGRAM).arg(to).status().expect("cp");
    assert!(copied.success(), "cannot copy {PROGRAM} to {}", to.display());
}

/// Result of a command.
pub struct Ran {
    /// Exit code. `None` if a signal ended the command.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn new(output: &Output) -> Ran {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("output is UTF-8");
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        Ran { code: output.status.code(), out, err: without_cost(&err) }
    }

    /// Asserts success without output on standard error. Returns the standard output.
    #[track_caller]
    pub fn good(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (Some(0), ""), "{}", self.out);
        self.out
    }

    #[track_caller]
    pub fn ended_with(self, code: i32) -> Ran {
        assert_eq!(self.code, Some(code), "out: {}\nerr: {}", self.out, self.err);
        self
    }

    #[track_caller]
    pub fn says(self, text: &str) -> Ran {
        assert!(self.err.contains(text), "`{text}` is not said:\n{}", self.err);
        self
    }

    #[track_caller]
    pub fn shows(self, text: &str) -> Ran {
        assert!(self.out.contains(text), "`{text}` is not shown:\n{}", self.out);
        self
    }

    /// Returns the standard error without the notes about the host at its start.
    pub fn complaint(&self) -> &str {
        let mut rest = self.err.as_str();
        while let Some((line, more)) = rest.split_once('\n')
            && line.starts_with("note:")
        {
            rest = more;
        }
        rest
    }

    /// Asserts that the exit code is `code`, and that the only output is one error with a hint.
    #[track_caller]
    pub fn refused(self, code: i32) -> Ran {
        let ran = self.ended_with(code);
        assert_eq!(ran.out, "", "a refused command prints nothing on standard output");
        assert!(ran.complaint().starts_with("error: "), "{}", ran.err);
        let begins = |word: &str| ran.err.lines().filter(|line| line.starts_with(word)).count();
        assert_eq!((begins("error: "), begins("hint:  ")), (1, 1), "{}", ran.err);
        assert!(!ran.err.contains("panicked"), "{}", ran.err);
        ran
    }
}

/// Returns a text without the note about dispatch overhead. Every live run prints that note, and it
/// differs between hosts.
pub fn without_cost(err: &str) -> String {
    let is_cost = |line: &&str| line.starts_with("note:  dispatch overhead is ");
    err.split_inclusive('\n').filter(|line| !is_cost(line)).collect()
}

/// A folder for one test, in which the program runs.
pub struct Place {
    pub folder: TempDir,
}

impl Place {
    pub fn new() -> Place {
        Place { folder: tempfile::tempdir().expect("a folder for the test") }
    }

    /// Returns a folder with one scenario, in the file `it.toml`.
    pub fn with(scenario: &str) -> Place {
        let place = Place::new();
        place.write("it.toml", scenario.as_bytes());
        place
    }

    /// Returns a folder with one scenario, in the file `it.toml`, and the traces `a.trace` and
    /// `b.trace` of two simulated runs with different seeds.
    pub fn with_traces(scenario: &str) -> Place {
        let place = Place::with(scenario);
        place.run(&["sim", "it.toml", "--save", "a.trace"]).good();
        place.run(&["sim", "it.toml", "--seed", "7", "--save", "b.trace"]).good();
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).expect("a file for the test");
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).expect("a file that was made")
    }

    pub fn files(&self) -> Vec<String> {
        files_in(self.folder.path())
    }

    /// Returns a command that runs a copy of the program as an unprivileged user. A copy is needed
    /// because that user may not enter the build folder. Prints a note and returns `None` if the
    /// test does not run as root.
    pub fn command_of_nobody(&self, arguments: &[&str]) -> Option<Command> {
        const NOBODY: u32 = 65534;
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root, to run as another user");
            return None;
        }
        let program = self.path("slackline");
        if !program.exists() {
            copy_program(&program);
        }
        let all = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.folder.path(), all).expect("the test owns the folder");
        let mut command = Command::new(&program);
        command.args(arguments).current_dir(self.folder.path()).uid(NOBODY).gid(NOBODY);
        Some(command)
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let other = std::env::var_os(OTHER_PROGRAM);
        let mut command = Command::new(other.unwrap_or_else(|| PROGRAM.into()));
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    /// Runs the program to its end.
    pub fn run(&self, arguments: &[&str]) -> Ran {
        Ran::new(&self.command(arguments).output().expect("the program can be started"))
    }

    /// Runs the program with its output into a pipe. The reader of the pipe closes it after one
    /// line.
    pub fn run_into_head(&self, arguments: &[&str]) -> Ran {
        let mut command = self.command(arguments);
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let mut child = command
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program can be started");
        drop(command); // The command holds the other end of the pipe.
        let mut byte = [0];
        while matches!(reader.read(&mut byte), Ok(1)) && byte != *b"\n" {}
        drop(reader);
        let mut err = String::new();
        child
            .stderr
            .take()
            .expect("the stream is a pipe")
            .read_to_string(&mut err)
            .expect("output is UTF-8");
        let code = child.wait().expect("the program ends").code();
        Ran { code, out: String::new(), err }
    }
}

/// Returns the names of all files in a folder, including hidden files.
pub fn files_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").file_name();
    let mut names: Vec<_> = entries.map(|it| name(it).to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Opens a pseudo-terminal. Returns the controlling side, and the side for the program.
pub fn terminal() -> (std::fs::File, std::fs::File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let outside =
        openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    grantpt(&outside).and_then(|()| unlockpt(&outside)).expect("a terminal");
    let name = ptsname(&outside, Vec::new()).expect("the terminal's name");
    let name = name.to_str().expect("a path");
    let inside = std::fs::OpenOptions::new().read(true).write(true).open(name);
    (outside.into(), inside.expect("the terminal's other end"))
}

/// Runs a command on a pseudo-terminal with this width. Returns its exit status and its output.
pub fn on_terminal(mut command: Command, columns: u16) -> (std::process::ExitStatus, String) {
    let (mut outside, inside) = terminal();
    let size = rustix::termios::Winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&inside, size).expect("a terminal's size");
    command.env("NO_COLOR", "1").env_remove("COLUMNS");
    command.stdout(inside.try_clone().expect("a terminal")).stderr(inside);
    let mut child = command.spawn().expect("the program can be started");
    drop(command); // The command holds the other end of the terminal.
    let mut text = Vec::new();
    // Reading from a terminal whose other end is closed gives an error.
    let _ = outside.read_to_end(&mut text);
    let end = child.wait().expect("the program ends");
    (end, String::from_utf8_lossy(&text).into_owned())
}

/// Asserts that the text fits a terminal of 40 columns, except for single long words.
#[track_caller]
pub fn is_narrow(text: &str) {
    // Of a line that was overwritten, only the last text counts.
    let seen =
        |line: &str| line.rsplit("\r\x1b[K").next().unwrap_or_default().trim_end().to_owned();
    for line in text.split('\n').map(seen) {
        let is_word = line.split_whitespace().count() == 1;
        assert!(line.chars().count() <= 40 || is_word, "`{line}` of\n{text}");
    }
}
