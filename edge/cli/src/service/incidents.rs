//! Output of `slackline incidents`, a list of the recordings of missed deadlines.

use std::fmt::Write as _;

use slackline_control::Incident;

use super::show::moment;

/// Returns one line for each incident, newest first.
pub(super) fn lines(incidents: &[Incident]) -> String {
    let width =
        incidents.iter().map(|incident| incident.name.len()).max().unwrap_or(0).clamp(4, 64);
    let mut text = format!("{:<13}  {:<19}  {:<width$}  missed  file\n", "incident", "at", "name");
    for Incident { id, at_ns, name, missed, file, .. } in incidents {
        let (at, file) = (moment(*at_ns), file.as_deref().unwrap_or(""));
        let _ = writeln!(text, "{id:<13}  {at:<19}  {name:<width$}  {missed:>6}  {file}");
    }
    text
}
