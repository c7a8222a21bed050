//! Provenance of figures and pages.

/// Provenance of a figure or page: the command and the conditions that reproduce it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FigureOrigin {
    command: String,
    seeds: Option<String>,
    commit: Option<String>,
    more: Vec<String>,
}

impl FigureOrigin {
    /// Creates a provenance with a command. Folders are removed from the file names in the command,
    /// so that a shared page does not reveal them.
    #[must_use]
    pub fn by(command: &str) -> FigureOrigin {
        let words = words(command).into_iter().map(without_folder).collect::<Vec<_>>();
        FigureOrigin { command: words.join(" "), ..FigureOrigin::default() }
    }

    /// Sets the seeds, as a text such as `1 to 10`.
    #[must_use]
    pub fn seeds(self, seeds: &str) -> FigureOrigin {
        FigureOrigin { seeds: Some(seeds.into()), ..self }
    }

    /// Sets the commit of the program, if it is known.
    #[must_use]
    pub fn commit(self, commit: Option<&str>) -> FigureOrigin {
        FigureOrigin { commit: commit.map(Into::into), ..self }
    }

    /// Adds another condition, such as the host or the version.
    #[must_use]
    pub fn with(mut self, what: &str) -> FigureOrigin {
        self.more.push(what.into());
        self
    }

    /// Returns the whole provenance as one line of text.
    #[must_use]
    pub fn line(&self) -> String {
        let seeds = self.seeds.as_ref().map(|seeds| format!("seeds {seeds}"));
        let commit = self.commit.as_ref().map(|commit| format!("commit {commit}"));
        let command = Some(self.command.clone()).filter(|command| !command.is_empty());
        let parts = command.into_iter().chain(seeds).chain(commit).chain(self.more.iter().cloned());
        parts.collect::<Vec<_>>().join(" \u{b7} ")
    }
}

/// Splits a command into words. Text in single quotes is one word.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut is_quoted) = (vec![String::new()], false);
    for letter in command.chars() {
        is_quoted ^= letter == '\'';
        match words.last_mut() {
            Some(word) if letter != ' ' || is_quoted => word.push(letter),
            _ => words.push(String::new()),
        }
    }
    words
}

/// Units that a number in a share may have, as in `5ms/10ms`.
const UNITS: [&str; 8] = ["ns", "us", "ms", "s", "min", "h", "d", "%"];

/// Removes the folder from a word that is a file name. A share such as `5ms/10ms` is no file name.
fn without_folder(word: String) -> String {
    let at = if word.starts_with("--") { word.find('=').map_or(0, |at| at + 1) } else { 0 };
    let (option, value) = word.split_at(at);
    let quote = if value.starts_with('\'') { "'" } else { "" };
    let path = value.trim_matches('\'');
    let is_amount = |part: &str| {
        let unit = part.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
        unit.len() < part.len() && UNITS.contains(&unit)
    };
    let is_share = path.split_once('/').is_some_and(|(a, b)| is_amount(a) && is_amount(b));
    if !path.contains('/') || is_share {
        return word;
    }
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    format!("{option}{quote}{name}{quote}")
}
