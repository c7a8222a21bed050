//! Scenarios at the points of an experiment.

use std::path::Path;

use slackline_experiments::axes::{
    Edit, PathError, as_it_became, edits, last_place, value_at, vary,
};
use slackline_experiments::file_bytes;
use slackline_scenario::Scenario;
use toml::Table;

use crate::error::{FileFault, PaperError};
use crate::experiment::Experiment;

impl Experiment {
    /// Returns the scenario at a point.
    ///
    /// # Errors
    /// If the changes do not fit the scenario, or the result is not a valid scenario.
    pub fn scenario(&self, point: &[usize]) -> Result<Scenario, PaperError> {
        self.scaled(point, &Table::new())
    }

    /// Returns the scenario at a point, with some costs scaled.
    pub(crate) fn scaled(&self, point: &[usize], scale: &Table) -> Result<Scenario, PaperError> {
        let text = self.table(point, scale)?.to_string();
        let folder = self.base.file.parent().unwrap_or(Path::new("")).to_owned();
        let load = |named: &str| file_bytes(&folder.join(named));
        Scenario::with_bytes(&text, &load)
            .map_err(|error| self.bad(point, as_it_became(&text, &error), error.hint()))
    }

    /// Returns an error about a point. The error's position is the position of the point's value on
    /// the last axis in the file.
    pub(crate) fn bad(&self, point: &[usize], message: String, hint: Option<String>) -> PaperError {
        let place = last_place(&self.axes, point);
        let point = self.title_of(point);
        self.source.fault(&place, FileFault::BadScenario { point, message, hint })
    }

    /// Returns the value at a path of the scenario at a point, with some costs scaled.
    pub(crate) fn value_at(
        &self,
        point: &[usize],
        scale: &Table,
        path: &str,
    ) -> Result<String, PaperError> {
        let mut table = self.table(point, scale)?;
        value_at(&mut table, path).map_err(|unfit| self.unfit(point, &unfit))
    }

    /// Returns the TOML table of the scenario at a point.
    fn table(&self, point: &[usize], scale: &Table) -> Result<Table, PaperError> {
        let mut table: Table = self.base.parse()?;
        let mut edits: Vec<Edit<'_>> = edits(&self.axes, point).collect();
        let points = self.points();
        for other in &self.overrides {
            let meant = self.points_at(&other.at, other.at.get_ref())?;
            if meant.iter().any(|&index| points[index] == point) {
                edits.push(other.edit());
            }
        }
        let none = Table::new();
        if let Some(quick) = self.quick.as_ref().filter(|_| self.is_quick) {
            edits.push(Edit { lets: &none, set: quick.set(), scale: &none, unset: &[] });
        }
        edits.push(Edit { lets: &none, set: &none, scale, unset: &[] });
        vary(&mut table, &edits).map_err(|unfit| self.unfit(point, &unfit))?;
        Ok(table)
    }

    fn unfit(&self, point: &[usize], unfit: &PathError) -> PaperError {
        self.bad(point, unfit.to_string(), Some(unfit.hint()))
    }
}
