//! Predictions of `slackline whatif` as text in columns.

use slackline_terminal::percent;
use slackline_units::Span;
use slackline_whatif::{Measures, Row};

use crate::counted::counted;

use super::shown::{ShownForecast, ShownGate, ShownGateRow, ShownRecording, ms};

/// Headings of a table of predictions.
pub(super) const HEADINGS: [&str; 5] = ["vCPU", "", "now", "then", "change"];

/// Function that selects a time from the measures of a vCPU. `None` if the vCPU has no such time.
type TimeOf = fn(&Measures) -> Option<Span>;

/// Rows of text in columns. The first two columns are left-aligned, the others right-aligned.
#[derive(Default)]
struct Lines(Vec<Vec<String>>);

impl Lines {
    fn add<const N: usize>(&mut self, cells: [String; N]) {
        self.0.push(cells.into());
    }

    fn text(&self) -> String {
        let columns = self.0.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.0.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for line in &self.0 {
            let cells = line.iter().zip(&widths).enumerate();
            let cells = cells.map(|(column, (cell, &width))| match column {
                0 | 1 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            let line = cells.collect::<Vec<String>>().join("  ");
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

fn share(ppm: u64) -> String {
    format!("{} %", percent(ppm))
}

fn dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".into())
}

/// Formats an interval. If both ends have the same text, the text is printed once.
fn between<T: Copy>(interval: Option<(T, T)>, write: impl Fn(T) -> String) -> String {
    let Some((least, most)) = interval else { return "-".into() };
    let (least, most) = (write(least), write(most));
    if least == most {
        return least;
    }
    // If both ends have the same unit, the unit is printed only once.
    match (least.split_once(' '), most.split_once(' ')) {
        (Some((number, one)), Some((_, other))) if one == other => format!("{number} .. {most}"),
        _ => format!("{least} .. {most}"),
    }
}

/// Returns the result of the gate for all vCPUs as text. The gate is the check that decides if the
/// recording allows a prediction.
pub(super) fn gate(gate: &ShownGate) -> String {
    let mut text = head(&gate.recording);
    text += "Second half of the recording, as recorded and as simulated with the costs of the \
             first half:\n\n";
    let mut lines = Lines::default();
    let heading = ["vCPU", "form", "share", "simulated", "p99 wait", "simulated", ""];
    lines.add(heading.map(str::to_owned));
    for form in &gate.forms {
        for row in &form.rows {
            lines.add(gate_row(&form.name, row));
        }
    }
    text += &lines.text();
    text.push('\n');
    let passing = gate.forms.iter().filter(|form| form.passes);
    let passing: Vec<&str> = passing.map(|form| form.name.as_str()).collect();
    text += &match passing[..] {
        [] => "Neither the open nor the closed form repeats the recording, so there is no \
             prediction.\n"
            .to_owned(),
        [only] => {
            format!("Only the {only} form repeats the recording. Predictions use only this form.\n")
        }
        _ => "The open and the closed form both repeat the recording.\n".to_owned(),
    };
    if let Some(jobs) = gate.jobs {
        text += &format!("The recording has {jobs} jobs in {}.\n", gate.recording.length);
    }
    for (name, why) in &gate.left_out {
        text += &format!("There is no prediction for {name}: {why}.\n");
    }
    text
}

fn gate_row(form: &str, row: &ShownGateRow) -> [String; 7] {
    let (recorded, simulated) = (&row.recorded, row.simulated.as_ref());
    [
        recorded.name.clone(),
        form.to_owned(),
        share(recorded.share_ppm),
        dash(simulated.map(|it| share(it.share_ppm))),
        dash(recorded.wait_p99.map(ms)),
        dash(simulated.and_then(|it| it.wait_p99).map(ms)),
        row.verdict.clone(),
    ]
}

fn head(recording: &ShownRecording) -> String {
    let ShownRecording { title, machine, policy, length, .. } = recording;
    format!("{title}: {policy}, {machine}, {length}\n")
}

/// Returns a prediction as a table, followed by the losses of vCPUs and by the limits of the
/// prediction.
pub(super) fn forecast(forecast: &ShownForecast) -> String {
    let ShownForecast { recording, policy, cpus, rows, losses, limits } = forecast;
    let mut text = head(recording);
    if *policy != recording.policy {
        text += &format!("then: {policy}\n");
    }
    if *cpus != recording.cpus {
        text += &format!("then: {} instead of {}\n", counted(cpus, "CPU"), recording.cpus);
    }
    text.push('\n');
    text += &prediction(rows, recording.judges_waits()).text();
    text.push('\n');
    if losses.is_empty() {
        text += no_loss(recording);
        text.push('\n');
    }
    for (name, loss) in losses {
        text += &format!("{name} loses: {loss}.\n");
    }
    text += "Not known:\n";
    for line in limits {
        text += &format!("- {line}\n");
    }
    text
}

/// Returns the headings and rows of a prediction.
fn prediction(all: &[Row], judges_waits: bool) -> Lines {
    let mut lines = Lines::default();
    lines.add(HEADINGS.map(str::to_owned));
    for row in all {
        rows(&mut lines, row, judges_waits);
    }
    lines
}

/// Returns the cells of a prediction, without headings.
pub(super) fn cells(all: &[Row], recording: &ShownRecording) -> Vec<Vec<String>> {
    prediction(all, recording.judges_waits()).0.split_off(1)
}

/// Formats the prediction for one vCPU in one line.
pub(super) fn in_brief(row: &Row) -> String {
    let mut lines = Lines::default();
    rows(&mut lines, row, true);
    let told = lines.0.iter().filter(|cells| !cells[1].ends_with("p50"));
    let told = told.map(|cells| match (cells[2].as_str(), cells[3].as_str()) {
        (now, "-") => format!("{} {now}", cells[1]),
        ("-", then) => format!("{} {then}", cells[1]),
        (now, then) => format!("{} {now}, then {then}", cells[1]),
    });
    told.collect::<Vec<String>>().join("; ")
}

/// Returns the text in place of losses if there are none.
pub(super) fn no_loss(recording: &ShownRecording) -> &'static str {
    if recording.judges_waits() {
        "No vCPU loses in every simulation: none loses CPU time, misses more deadlines, or has a \
         p99 wait or response that is longer by a fifth."
    } else {
        "No vCPU loses in every simulation: none loses CPU time or misses more deadlines."
    }
}

/// Appends the rows of one vCPU. If waits are not judged, no factor is given for waits and for
/// responses, which contain waits.
fn rows(lines: &mut Lines, row: &Row, judges_waits: bool) {
    let now = row.now.as_ref();
    let shares = row.interval(|it| Some(it.share_ppm));
    let points = now.zip(shares).map(|(now, (least, most))| {
        let of = |then: u64| signed(now.share_ppm, then, percent);
        let (least, most) = (of(least), of(most));
        let change = if least == most { least } else { format!("{least} .. {most}") };
        format!("{change} points")
    });
    let is_removed = row.then.is_empty();
    let change = if is_removed { "removed".into() } else { dash(points) };
    lines.add([
        row.name.clone(),
        "share".into(),
        dash(now.map(|it| share(it.share_ppm))),
        between(shares, share),
        if now.is_none() { "added".into() } else { change },
    ]);
    let misses = row.misses();
    if misses.is_some() || now.is_some_and(|now| now.misses.is_some()) {
        let change = now.and_then(|now| now.misses).zip(misses).map(|(now, (least, most))| {
            let of = |then: u64| signed(now, then, |it| it.to_string());
            let (least, most) = (of(least), of(most));
            if least == most { least } else { format!("{least} .. {most}") }
        });
        let missed = |it: &Measures| Some(format!("{} of {}", it.misses?, it.deadlines?));
        let then = between(misses, |it| it.to_string());
        lines.add([String::new(), "missed".into(), dash(now.and_then(missed)), then, dash(change)]);
    }
    let times: [(&str, TimeOf); 4] = [
        ("wait p50", |it| it.wait_p50),
        ("wait p99", |it| it.wait_p99),
        ("response p50", |it| it.response_p50),
        ("response p99", |it| it.response_p99),
    ];
    for (what, of) in times {
        let (now, then) = (now.and_then(of), row.interval(of));
        if now.is_none() && then.is_none() {
            continue;
        }
        let change = now.zip(then).map(|(now, (least, most))| match judges_waits {
            true => factor(now, (least, most)),
            false => String::new(),
        });
        lines.add([String::new(), what.into(), dash(now.map(ms)), between(then, ms), dash(change)]);
    }
}

/// Formats the difference between two numbers with its sign.
fn signed(now: u64, then: u64, write: impl Fn(u64) -> String) -> String {
    let size = write(now.abs_diff(then));
    if now == then || size == write(0) {
        return write(0);
    }
    format!("{}{size}", if then < now { "-" } else { "+" })
}

/// Formats the factor by which a time grows, as an interval. For times below 1 us no factor is
/// given.
fn factor(now: Span, (least, most): (Span, Span)) -> String {
    if now < Span::from_us(1) {
        return String::new();
    }
    let of = |then: Span| {
        let hundredths =
            (u128::from(then.ns()) * 100 + u128::from(now.ns()) / 2) / u128::from(now.ns());
        format!("{}.{:02}", hundredths / 100, hundredths % 100)
    };
    let (least, most) = (of(least), of(most));
    if least == most { format!("x {least}") } else { format!("x {least} .. {most}") }
}
