//! File of rounds that a live manager saves, and the replay of such a file.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::ValueEnum as _;
use serde::{Deserialize, Serialize};
use slackline_experiments::manage::{Replay, SavedDecision, SavedRound};
use slackline_manager::Pace;
use slackline_units::Span;

use crate::check::number_of;
use crate::manage_args::Mode;
use crate::problem::Problem;
use crate::{input, terminal};

/// Format of the file, in its first line.
const FORMAT: &str = "slackline-manager-1";

/// First line of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: String,
    /// Mode of the manager: `observe`, `recommend` or `act`.
    mode: String,
    /// Time between two decisions.
    round_ns: u64,
}

/// Line of one round.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RoundLine {
    /// Time since the manager started.
    pub(super) after_ns: u64,
    /// Inputs and decision. `None` if nothing could be measured.
    pub(super) round: Option<SavedRound>,
    /// Text of the round, as printed.
    pub(super) says: String,
    /// True if the manager made the change of this round.
    pub(super) is_done: bool,
}

/// File to which each round appends a line.
pub(super) struct RoundFile {
    file: File,
    path: PathBuf,
    /// Length of the complete lines in bytes.
    length: u64,
}

impl RoundFile {
    /// Creates the file, and writes its first line.
    pub(super) fn create(path: &Path, (mode, round): (Mode, Span)) -> Result<RoundFile, Problem> {
        let unwritable = |source| Problem::Unwritable { file: path.into(), source };
        let file = File::create(path).map_err(unwritable)?;
        let mut file = RoundFile { file, path: path.into(), length: 0 };
        file.append(&header_line(mode, round))?;
        Ok(file)
    }

    /// Appends the line of a round.
    pub(super) fn write(&mut self, line: &RoundLine) -> Result<(), Problem> {
        self.append(&json_line(line))
    }

    /// Appends a line. If only a part of the line can be written, that part is removed from the
    /// file again.
    fn append(&mut self, text: &str) -> Result<(), Problem> {
        if let Err(source) = self.file.write_all(text.as_bytes()) {
            let is_file = self.file.metadata().is_ok_and(|it| it.is_file());
            let _ = is_file.then(|| self.file.set_len(self.length));
            return Err(Problem::Unwritable { file: self.path.clone(), source });
        }
        self.length += text.len() as u64;
        Ok(())
    }
}

/// Returns the first line of the rounds of a manager.
pub(super) fn header_line(mode: Mode, round: Span) -> String {
    let (format, mode) = (FORMAT.into(), mode.word().into());
    json_line(&Header { format, mode, round_ns: round.ns() })
}

/// Returns a value as one line of JSON.
pub(super) fn json_line(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).expect("the line can be written as JSON");
    text + "\n"
}

/// Makes all decisions of a saved file a second time, and prints them. Fails if a decision differs
/// from the saved decision.
pub(super) fn replay(path: &Path) -> Result<(), Problem> {
    let text = input::text(path)?;
    let mut lines = text.lines().enumerate();
    let bad = |number: usize, why: String| Problem::BadOption {
        message: format!("{}:{}: {why}", path.display(), number + 1),
        hint: Some("give the file of `slackline manage --live --save FILE`".into()),
    };
    let header = lines.next().map(|(_, line)| serde_json::from_str::<Header>(line));
    let header = header.unwrap_or_else(|| serde_json::from_str(""));
    let header = header.map_err(|error| {
        let why = without_line(&error);
        bad(0, format!("the first line is not the header of a file of rounds: {why}"))
    })?;
    if header.format != FORMAT {
        return Err(bad(0, format!("the format is `{}`, not `{FORMAT}`", header.format)));
    }
    match Mode::from_str(&header.mode, false) {
        Ok(Mode::Recommend | Mode::Act) => {}
        Ok(Mode::Observe) => {
            return Err(bad(0, "cannot replay: a manager in mode observe decides nothing".into()));
        }
        Err(_) => return Err(bad(0, format!("there is no mode `{}`", header.mode))),
    }
    let mut replay = Replay::new(Pace::default());
    let (mut rounds, mut differences) = (0, 0);
    for (number, line) in lines {
        let line: RoundLine =
            serde_json::from_str(line).map_err(|error| bad(number, without_line(&error)))?;
        let Some(saved) = line.round else { continue };
        rounds += 1;
        let difference = replay.round(&saved);
        let difference = difference.map_err(|error| bad(number, error.to_string()))?;
        let after = line.after_ns / 1_000_000_000;
        if let Some(it) = difference {
            differences += 1;
            let [saved, again] = [it.saved, it.again].map(|it| text_of(it.as_ref()));
            terminal::say(&format!(
                "{after:>6} s  saved:    {saved}\n          replayed: {again}\n"
            ))?;
        } else if let Some(decision) = &saved.decision {
            terminal::say(&format!("{after:>6} s  {}\n", text_of(Some(decision))))?;
        }
    }
    let rounds = number_of(rounds, "round");
    let differ = if differences == 1 { "differs" } else { "differ" };
    let decisions = number_of(differences, "decision");
    terminal::say(&format!("{rounds} replayed, {decisions} {differ}\n"))?;
    if differences == 0 { Ok(()) } else { Err(Problem::ReplayDiffers) }
}

/// Returns the explanation of a decision as one line, with control characters replaced. The file
/// comes from the user, so the explanation may be any text.
fn text_of(decision: Option<&SavedDecision>) -> String {
    decision.map_or("no change".into(), |decision| terminal::printable(&decision.says, &[]))
}

/// Returns an error in JSON without the number of the line, which is always 1.
fn without_line(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column", " at column")
}
