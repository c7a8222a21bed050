//! Runs other programs, and turns their failures into errors.

use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Nice value of programs that run beside the live tests.
const LOWEST_PRIORITY: i32 = 19;

/// Returns a command for the `cargo` that runs this program, so that one toolchain builds
/// everything.
#[must_use]
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Returns a `cargo` command that compiles the crates of this workspace with clippy. Clippy is the
/// compiler with more warnings, so one pass builds and lints the tests. A plain build afterwards
/// would compile them again.
#[must_use]
pub fn linting_cargo() -> Command {
    let mut cargo = cargo();
    // Clippy is in the folder of the toolchain's cargo.
    let driver = std::path::Path::new(cargo.get_program()).with_file_name("clippy-driver");
    cargo.env("RUSTC_WORKSPACE_WRAPPER", driver);
    cargo
}

/// Runs a command. Its output goes to the terminal.
///
/// # Errors
///
/// If the command cannot be started, or fails.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot start {}", shown(command)))?;
    if status.success() { Ok(()) } else { bail!("{} ended with {status}", shown(command)) }
}

/// Makes the release build of `slackline`.
///
/// # Errors
///
/// If the build fails.
pub fn build_release() -> Result<()> {
    run(cargo().args(["build", "--release", "--locked", "-p", "slackline"]))
}

/// Passes the release build to a Python program in `xtask`, with a number: a length in seconds or a
/// count. Returns success if the Python program succeeds.
///
/// # Errors
///
/// If the build fails, or Python cannot be started.
pub fn check_by_python(program: &str, seconds: u64) -> Result<ExitCode> {
    build_release()?;
    let mut python = Command::new("python3");
    python.arg(format!("xtask/{program}")).arg("target/release/slackline").arg(seconds.to_string());
    let status = python.status().context("cannot start python3")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Parses a whole number above zero.
///
/// # Errors
///
/// If the text is something else.
pub fn positive(text: &str) -> Result<u64> {
    let number = text.parse::<u64>().ok().filter(|number| *number > 0);
    number.with_context(|| format!("`{text}` is not a whole number above zero"))
}

/// Returns the output of a command. If the command fails, its messages become the error.
///
/// # Errors
///
/// If the command cannot be started, fails, or prints output that is not text.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", shown(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} ended with {}\n{}", shown(command), output.status, said.trim_end());
    }
    String::from_utf8(output.stdout).with_context(|| format!("{}: no text", shown(command)))
}

/// Gives this thread, and the programs that it starts from now on, the lowest priority of ordinary
/// programs.
///
/// # Errors
///
/// If the kernel refuses.
pub fn give_way() -> Result<()> {
    rustix::process::nice(LOWEST_PRIORITY).context("cannot lower the priority of a thread")?;
    Ok(())
}

/// Returns a note for the report if a step took longer than its budget, and an empty text
/// otherwise. A slow step does not fail, because the machines of CI are shared.
#[must_use]
pub fn late(took: Duration, budget: Duration) -> String {
    let over = took.saturating_sub(budget);
    if over.is_zero() {
        return String::new();
    }
    format!(", {} s over its budget of {} s", over.as_secs().max(1), budget.as_secs())
}

/// Returns the command line as a user would type it, without the folder of the program.
#[must_use]
pub fn shown(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let name = program.file_name().unwrap_or(command.get_program()).to_string_lossy();
    let words = command.get_args().map(|word| word.to_string_lossy());
    std::iter::once(name).chain(words).collect::<Vec<_>>().join(" ")
}
