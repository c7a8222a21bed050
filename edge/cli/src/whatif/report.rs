//! Predictions of `slackline whatif` as an HTML page.

use slackline_html::{Axis, Cell, Figure, FigureOrigin, Layer, Page, Plot, Table};
use slackline_units::Span;
use slackline_whatif::{Measures, Row};

use crate::counted::counted;

use super::shown::ShownForecast;
use super::table;

/// Formats the page of a prediction.
pub(super) fn page(forecast: &ShownForecast) -> String {
    let recording = &forecast.recording;
    let made = FigureOrigin::by("slackline whatif")
        .with(&format!("Slackline {}", env!("CARGO_PKG_VERSION")));
    let recorded = format!(
        "Recorded: {policy}, {hardware}, {length}, {cpus}.",
        policy = recording.policy,
        hardware = recording.machine,
        length = recording.length,
        cpus = counted(recording.cpus, "CPU")
    );
    let then = format!("Then: {}, {}.", forecast.policy, counted(forecast.cpus, "CPU"));
    let mut rows = Table::new(table::HEADINGS)
        .caption("Recorded values, and values predicted by all simulations");
    for cells in table::cells(&forecast.rows, recording) {
        let cell = |(column, text): (usize, String)| match (column, text.as_str()) {
            (_, "-") => Cell::Dash,
            (0 | 1, _) => Cell::Text(text),
            _ => Cell::Number(text),
        };
        rows = rows.row(cells.into_iter().enumerate().map(cell));
    }
    let losses: Vec<String> = match &forecast.losses[..] {
        [] => vec![table::no_loss(recording).into()],
        some => some.iter().map(|(name, loss)| format!("{name} loses: {loss}.")).collect(),
    };
    Page::new(&format!("What if: {}", recording.title), made)
        .text(&recorded)
        .text(&then)
        .figure(figure(&forecast.rows, ("CPU time received", "share", "% of a CPU"), &|it| {
            Some(it.share_ppm.min(1 << 40) as f64 / 10_000.0)
        }))
        .figure(figure(&forecast.rows, ("Longest waits (p99)", "wait", "ms"), &|it| {
            it.wait_p99.map(ms)
        }))
        .section("Numbers")
        .table(rows)
        .section("Losses")
        .list(losses)
        .section("Not known")
        .list(forecast.limits.clone())
        .html()
}

fn ms(span: Span) -> f64 {
    span.ns() as f64 / 1e6
}

/// Draws bars with the recorded and the predicted value of each vCPU.
fn figure(
    rows: &[Row],
    (title, what, unit): (&str, &str, &str),
    of: &dyn Fn(&Measures) -> Option<f64>,
) -> Figure {
    let places = || (0_u32..).map(f64::from).zip(rows);
    let now = places().filter_map(|(x, row)| Some((x, of(row.now.as_ref()?)?)));
    let then = places().filter_map(|(x, row)| {
        let (least, most) = interval(row, of)?;
        Some((x, least, (least + most) / 2.0, most))
    });
    let names = rows.iter().map(|row| row.name.clone());
    let plot = Plot::new(Axis::names("vCPU", names), Axis::linear(what, unit).including(0.0));
    let plot = plot.with(Layer::bars("now", now)).with(Layer::bars_with_range("then", then));
    Figure::new(title, plot)
        .caption("The range of a predicted bar spans the values of all simulations.")
}

fn interval(row: &Row, of: &dyn Fn(&Measures) -> Option<f64>) -> Option<(f64, f64)> {
    let values: Vec<f64> = row.simulated().filter_map(of).collect();
    let least = values.iter().copied().reduce(f64::min)?;
    Some((least, values.iter().copied().reduce(f64::max)?))
}
