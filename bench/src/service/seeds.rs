//! Number of seeds per minute with which the simulation of the service runs on one core.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::daemon::ServiceSetting;
use crate::report::Row;

const SEEDS: u32 = 10_000;

/// Runs `cargo xtask service`, which first builds the simulation.
pub(super) fn rows(_: &ServiceSetting) -> Result<Vec<Row>> {
    let tree = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut command = Command::new("cargo");
    command.args(["xtask", "service", "--seeds", &SEEDS.to_string()]).current_dir(tree);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    let said = String::from_utf8(output.stdout)?;
    ensure!(output.status.success(), "{said}");
    let took = said.rsplit(" in ").next().and_then(|rest| rest.trim().strip_suffix(" s"));
    let took: f64 =
        took.and_then(|took| took.parse().ok()).context("the output contains the duration")?;
    Ok(vec![Row {
        what: format!("simulation of the service with {SEEDS} seeds, on one CPU core"),
        got: format!("{took:.1} s, 0 failures; {:.0} seeds/min", f64::from(SEEDS) / took * 60.0),
        promised: "60 s",
        holds: Some(took <= 60.0),
    }])
}
