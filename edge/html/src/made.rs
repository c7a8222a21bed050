//! Who made it, and how.

/// What made a figure or a page, so that somebody can make it again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Made {
    command: String,
    seeds: Option<String>,
    commit: Option<String>,
    more: Vec<String>,
}

impl Made {
    /// By this command. Of the files that it names only the names are kept: a page that is given
    /// away tells of no folders.
    #[must_use]
    pub fn by(command: &str) -> Made {
        let words = words(command).into_iter().map(without_folder).collect::<Vec<_>>();
        Made { command: words.join(" "), ..Made::default() }
    }

    /// With these seeds, as people would say it: `1 to 10`.
    #[must_use]
    pub fn seeds(self, seeds: &str) -> Made {
        Made { seeds: Some(seeds.into()), ..self }
    }

    /// At this commit, where it is known.
    #[must_use]
    pub fn commit(self, commit: Option<&str>) -> Made {
        Made { commit: commit.map(Into::into), ..self }
    }

    /// Something else that has to be known to make it again: the machine, the version.
    #[must_use]
    pub fn with(mut self, what: &str) -> Made {
        self.more.push(what.into());
        self
    }

    /// All of it in one line.
    #[must_use]
    pub fn line(&self) -> String {
        let seeds = self.seeds.as_ref().map(|seeds| format!("seeds {seeds}"));
        let commit = self.commit.as_ref().map(|commit| format!("commit {commit}"));
        let command = Some(self.command.clone()).filter(|command| !command.is_empty());
        let parts = command.into_iter().chain(seeds).chain(commit).chain(self.more.iter().cloned());
        parts.collect::<Vec<_>>().join(" \u{b7} ")
    }
}

/// The words of a command; what is in single quotes is one.
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

/// A word without the folders of the file that it names, if it names one.
fn without_folder(word: String) -> String {
    let at = if word.starts_with("--") { word.find('=').map_or(0, |at| at + 1) } else { 0 };
    let (option, value) = word.split_at(at);
    let quote = if value.starts_with('\'') { "'" } else { "" };
    let path = value.trim_matches('\'');
    let is_number = |part: &str| part.starts_with(|first: char| first.is_ascii_digit());
    if !path.contains('/') || path.split('/').all(is_number) {
        return word;
    }
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    format!("{option}{quote}{name}{quote}")
}
