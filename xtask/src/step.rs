//! Runs other programs, and turns their failures into errors.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Returns a command for the `cargo` that runs this program, so that everything is built by one
/// toolchain.
#[must_use]
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Returns a `cargo` command that compiles this workspace's crates with clippy. Clippy is the
/// compiler with more warnings, so tests are built and linted in one pass. Builds with the plain
/// compiler would compile them again.
#[must_use]
pub fn linting_cargo() -> Command {
    let mut cargo = cargo();
    // Clippy is in the same folder as the cargo of its toolchain.
    let driver = std::path::Path::new(cargo.get_program()).with_file_name("clippy-driver");
    cargo.env("RUSTC_WORKSPACE_WRAPPER", driver);
    cargo
}

/// Runs a command. Its output goes to the terminal.
///
/// # Errors
///
/// If it cannot be started or fails.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot start {}", shown(command)))?;
    if status.success() { Ok(()) } else { bail!("{} ended with {status}", shown(command)) }
}

/// Returns the output of a command. If it fails, its messages become the error.
///
/// # Errors
///
/// If it cannot be started, fails, or prints something that is no text.
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

/// Returns a note for the report of a step that took longer than its budget, otherwise an empty
/// text. A slow step does not fail, because the machines of CI are shared.
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
