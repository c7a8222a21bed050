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
    /// By this command.
    #[must_use]
    pub fn by(command: &str) -> Made {
        Made { command: command.into(), ..Made::default() }
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
