//! Test of the Python module: its wheel is built once, installed and tested.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::step;

/// Python environment with the tools of `python/tests/requirements.txt`. `./test` creates it.
const TOOLS: &str = "target/python-venv";

/// Folder for the build of the module and for its wheel.
const BUILD: &str = "target/python";

/// Minor versions of CPython 3 that are tried if the host has them. The wheel supports 3.11 and
/// later.
const MINORS: RangeInclusive<u32> = 11..=30;

/// Builds the wheel, installs it, and runs the tests, the examples and the type check.
///
/// # Errors
///
/// If the build, the installation, a test, an example or the type check fails.
pub fn run() -> Result<String> {
    let tool = |name: &str| Command::new(Path::new(TOOLS).join("bin").join(name));
    if !Path::new(TOOLS).join("bin/maturin").exists() {
        return Ok("skipped: needs the packages of python/tests/requirements.txt".to_owned());
    }
    step::run(step::cargo().args(["fmt", "--manifest-path", "python/Cargo.toml", "--check"]))?;
    let wheels = Path::new(BUILD).join("wheels");
    if wheels.exists() {
        std::fs::remove_dir_all(&wheels)?;
    }
    let mut build = tool("maturin");
    build.args(["build", "--release", "--locked", "--generate-stubs", "--quiet"]);
    build.args(["--manifest-path", "python/Cargo.toml", "--out"]).arg(&wheels);
    build.env("CARGO_TARGET_DIR", BUILD).env("RUSTFLAGS", "-D warnings");
    step::run(&mut build)?;
    let files = std::fs::read_dir(&wheels)?.collect::<Result<Vec<_>, _>>()?;
    let [wheel] = &files[..] else { anyhow::bail!("{} has {} files", BUILD, files.len()) };
    let size = wheel.metadata()?.len();
    ensure!(size <= 10 << 20, "the wheel has {size} bytes, more than the maximum of 10 MiB");
    let mut install = tool("python");
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    step::run(install.args(["--force-reinstall", "--no-deps"]).arg(wheel.path()))?;
    step::run(tool("python").args(["-m", "pytest", "-q", "python/tests"]))?;
    step::run(tool("python").arg("python/examples/policies.py"))?;
    let mut types = tool("python");
    types.args(["-m", "mypy", "--config-file", "python/pyproject.toml", "python/module/slackline"]);
    step::run(types.args(["python/tests", "python/benches", "python/examples"]))?;
    let others = run_under_others(&wheel.path())?;
    Ok(format!(
        "a wheel of {} KiB passes its tests, and runs under {others} other version{} of CPython",
        size >> 10,
        if others == 1 { "" } else { "s" }
    ))
}

/// Sweeps `count` scenarios on a Dask cluster of this machine. Compares two values with their
/// limits: the CPU time of Python and Dask, and the memory of the scheduler. Needs the wheel of
/// [`run`].
///
/// # Errors
///
/// If `count` is not a whole number above zero, or the Python program cannot be started.
pub fn long_sweep(count: &str) -> Result<ExitCode> {
    let count = step::positive(count)?.to_string();
    let python = Path::new(TOOLS).join("bin/python");
    let mut measure = Command::new(python);
    let status = measure.args(["python/benches/long_sweep.py", &count]).status();
    let status = status.context("cannot start Python: run `cargo xtask python` first")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs an example under each further version of CPython that this host has and that the wheel
/// supports. Returns the number of these versions.
fn run_under_others(wheel: &Path) -> Result<usize> {
    let plain = Path::new(BUILD).join("plain");
    if plain.exists() {
        std::fs::remove_dir_all(&plain)?;
    }
    let python = Path::new(TOOLS).join("bin/python");
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    step::run(install.arg("--target").arg(&plain).arg(wheel))?;
    let version = |python: &Path| {
        let mut print = Command::new(python);
        step::output(print.args(["-c", "import sys; print(*sys.version_info[:2], sep='.')"])).ok()
    };
    let tested = version(&python);
    let mut others = 0;
    for minor in MINORS {
        let name = PathBuf::from(format!("python3.{minor}"));
        // A version manager can have a command for a version that is not installed.
        if version(&name).is_none_or(|found| Some(found) == tested) {
            continue;
        }
        let mut example = Command::new(&name);
        step::run(example.arg("python/examples/policies.py").env("PYTHONPATH", &plain))?;
        others += 1;
    }
    Ok(others)
}
