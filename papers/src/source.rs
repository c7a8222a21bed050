//! A TOML file with the position of each value, for error messages.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::Spanned;

use crate::error::{FileFault, PaperError};

/// A TOML file: its path and its text.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) file: PathBuf,
    pub(crate) text: String,
}

impl Source {
    pub(crate) fn read(file: &Path) -> Result<Source, PaperError> {
        let unreadable = |source| PaperError::Unreadable { file: file.into(), source };
        let text = fs::read_to_string(file).map_err(unreadable)?;
        Ok(Source { file: file.into(), text })
    }

    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, PaperError> {
        toml::from_str(&self.text).map_err(|error| {
            let message = error.message().lines().next().unwrap_or("this is not TOML").to_owned();
            self.fault(&error.span().unwrap_or(0..0), FileFault::Syntax { message })
        })
    }

    /// Returns an error at a position in the file.
    pub(crate) fn fault(&self, span: &Range<usize>, kind: FileFault) -> PaperError {
        let before = self.text.get(..span.start).unwrap_or("");
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        PaperError::InFile { file: self.file.clone(), line, column, kind: Box::new(kind) }
    }

    /// Returns an error about a name that does not exist.
    pub(crate) fn unknown(
        &self,
        name: &Spanned<String>,
        what: &'static str,
        known: Vec<String>,
    ) -> PaperError {
        let fault = FileFault::Unknown { what, name: name.get_ref().clone(), known };
        self.fault(&name.span(), fault)
    }

    /// Checks that no name occurs twice. The error names the first name that occurs twice.
    pub(crate) fn once<'a>(
        &self,
        what: &'static str,
        names: impl Iterator<Item = &'a Spanned<String>>,
    ) -> Result<(), PaperError> {
        let mut seen = std::collections::BTreeSet::new();
        for name in names {
            if !seen.insert(name.get_ref()) {
                let name_text = name.get_ref().clone();
                return Err(self.fault(&name.span(), FileFault::Twice { what, name: name_text }));
            }
        }
        Ok(())
    }
}
