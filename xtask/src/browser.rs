//! Browser test: Chromium runs a script, the story, on the daemon's page, with a real service and
//! real processes.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::step;

/// Script that the browser runs, called the story.
const STORY: &str = "edge/daemon/tests/browser/story.mjs";

/// Folder for the npm packages that the story needs, and for its screenshots.
const FOLDER: &str = "target/browser";

/// Path of Debian's browser, which the story starts.
const CHROMIUM: &str = "/usr/bin/chromium";

/// Time budget of the story. A story that takes longer is reported, but does not fail.
const BUDGET: Duration = Duration::from_secs(90);

/// Picture of the page in README. The picture is made from a screenshot of the story.
const PICTURE: &str = "docs/page.png";

/// Returns the first requirement of the story that this host does not meet. `None` if it meets all.
fn missing() -> Option<&'static str> {
    let has = |program: &str, option: &str| {
        Command::new(program).arg(option).output().is_ok_and(|output| output.status.success())
    };
    let user = step::output(Command::new("id").arg("-u"));
    let is_root = user.is_ok_and(|user| user.trim() == "0");
    let needs = [
        (is_root, "root"),
        (Path::new(CHROMIUM).exists(), "chromium"),
        (has("node", "--version"), "node"),
        (has("unshare", "--version"), "unshare"),
        (Path::new(FOLDER).join("node_modules/playwright-core").is_dir(), "npm packages"),
    ];
    needs.into_iter().find(|(is_there, _)| !is_there).map(|(_, what)| what)
}

/// Runs the story with the program `program`.
///
/// # Errors
///
/// If a part of the story fails.
pub fn run(program: &Path) -> Result<String> {
    if let Some(what) = missing() {
        return Ok(format!("skipped: needs {what}"));
    }
    let began = Instant::now();
    step::run(Command::new("node").arg(STORY).arg(program).arg(FOLDER))?;
    let late = step::late(began.elapsed(), BUDGET);
    Ok(format!("screenshots are in {FOLDER}/screenshots{late}"))
}

/// Makes the picture of the page for README.
///
/// # Errors
///
/// If this host lacks something that the story needs, or if the story fails.
pub fn picture(program: &Path) -> Result<String> {
    if let Some(what) = missing() {
        anyhow::bail!("cannot make the picture: it needs {what}");
    }
    step::run(Command::new("node").arg(STORY).arg(program).arg(FOLDER).arg("picture"))?;
    let from = Path::new(FOLDER).join("screenshots/picture.png");
    std::fs::copy(&from, PICTURE).with_context(|| from.display().to_string())?;
    Ok(format!("wrote {PICTURE}"))
}
