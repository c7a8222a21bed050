//! A page with every kind of figure and table cell, for a check by eye: `cargo run -p
//! slackline-html --example gallery > gallery.html`.

use slackline_html::{Axis, Cell, Figure, FigureOrigin, Layer, Page, Plot, Table};

/// Returns pseudo-random numbers that depend only on the seed.
fn noise(seed: u32) -> impl Iterator<Item = f64> {
    let next = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    std::iter::successors(Some(seed), next)
        .skip(1)
        .map(|state| f64::from(state >> 8) / 16_777_216.0)
}

fn points() -> Figure {
    let targets = ["1", "2", "3", "5", "10", "30", "90"];
    let cloud = |seed, wide: f64| {
        let at = move |(nth, value): (usize, f64)| {
            let target = (nth % 7) as f64;
            (target, ((value - 0.5) * wide / (target + 1.0) / 5.0).round() * 5.0)
        };
        noise(seed).take(7 * 180).enumerate().map(at)
    };
    let plot = Plot::new(
        Axis::names("target, % of one CPU", targets),
        Axis::linear("error of a second, % of the target", ""),
    );
    let plot = plot.with(Layer::region_y("the paper's range", (-40.0, 100.0)));
    let plot = plot.with(Layer::points("sedf", cloud(1, 60.0)));
    let plot = plot.with(Layer::points("credit", cloud(2, 400.0)));
    Figure::new("Points by target", plot).caption("Equal points are drawn once, larger.")
}

fn lines() -> Figure {
    let periods = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0];
    let line = |name: &str, k: f64| {
        let y = move |x: f64| k * 900.0 * x / (x + 1.0) + 40.0;
        let band = periods.map(|x| (x, y(x) * 0.93, y(x) * 1.05));
        Layer::line(name, periods.map(|x| (x, y(x)))).band(band)
    };
    let plot = |title: &str, k: f64| {
        Plot::new(Axis::log("period", "ms"), Axis::linear("throughput", "req/s"))
            .titled(title)
            .with(line("bvt", k))
            .with(line("sedf", k * 0.8))
            .with(line("credit", k * 0.6))
            .with(Layer::points("the paper", [(1.0, 510.0), (10.0, 817.0)]).published())
            .with(Layer::rule_at_y("saturated", 934.0))
    };
    Figure::of_panels("Lines with bands", [plot("one CPU", 1.0), plot("two CPUs", 1.2)])
        .caption("The line is the median of ten seeds, the band their range.")
}

fn distributions() -> Figure {
    let plot = Plot::new(
        Axis::log("wake to run", "us"),
        Axis::linear("wake-ups that run by then", "%").range((0.0, 100.0)),
    );
    let sample =
        |seed, mean: f64| noise(seed).take(2000).map(move |value| -(1.0 - value).ln() * mean);
    let plot = plot.with(Layer::cdf("edf", sample(3, 20.0)));
    let plot = plot.with(Layer::cdf("credit", sample(4, 400.0)));
    let plot = plot.with(Layer::rule_at_x("1 ms", 1000.0));
    Figure::new("Distributions", plot).height(260)
}

fn bars() -> Figure {
    let names = ["0.25", "0.5", "1", "2", "4"];
    let plot =
        Plot::new(Axis::names("weight of Dom0", names), Axis::linear("requests a second", ""));
    let bars = |base: f64| {
        (0..5).map(move |nth| {
            let (x, y) = (f64::from(nth), base + f64::from(nth * nth) * 20.0);
            (x, y * 0.95, y, y * 1.08)
        })
    };
    let plot = plot.with(Layer::bars_with_range("bvt", bars(400.0)));
    let plot = plot.with(Layer::bars_with_range("sedf", bars(300.0)));
    let plot = plot.with(
        Layer::points("bvt, published", [(0.0, 420.0), (2.0, 470.0)]).published().over("bvt"),
    );
    let ranges = Plot::new(Axis::names("target, %", ["1", "5", "20"]), Axis::linear("error", "%"));
    let ranges = ranges.with(Layer::ranges(
        "bvt",
        [(0.0, -40.0, 2.0, 60.0), (1.0, -9.0, 0.0, 8.0), (2.0, -1.0, 0.0, 1.0)],
    ));
    let ranges = ranges.with(Layer::ranges(
        "sedf",
        [(0.0, -10.0, -2.0, 3.0), (1.0, -4.0, 0.0, 2.0), (2.0, -1.0, 0.0, 1.0)],
    ));
    Figure::of_panels("Bars and ranges", [plot, ranges])
}

fn shares() -> Figure {
    let share = |seed, base: f64| {
        noise(seed).take(60).enumerate().map(move |(nth, value)| (nth as f64, base + value * 8.0))
    };
    let plot = Plot::new(
        Axis::linear("time", "s"),
        Axis::linear("share of the CPU", "%").range((0.0, 100.0)),
    );
    let plot = plot.with(Layer::stack("dom0", share(5, 5.0)));
    let plot = plot.with(Layer::stack("web", share(6, 40.0)));
    let plot = plot.with(Layer::stack("batch", share(7, 30.0)));
    let plot = plot.with(Layer::rule_at_x("the change", 31.0));
    Figure::new("Shares over time", plot).height(240)
}

fn main() {
    let text = |text: &str| Cell::Text(text.into());
    let number = |text: &str| Cell::Number(text.into());
    let table = Table::new(["number", "published", "here", "verdict"])
        .caption("Cells of all kinds")
        .row([
            text("largest error"),
            number("370 %"),
            number("412 %"),
            Cell::Good("reproduced".into()),
        ])
        .row([text("smallest `error`"), Cell::Dash, number("0 %"), Cell::Fair("same shape".into())])
        .row([text("average"), number("0.1 %"), number("9.1 %"), Cell::Bad("differs".into())])
        .note("A note with `code` in it.");
    let made =
        FigureOrigin::by("cargo run --example gallery").seeds("1 to 10").commit(Some("0123abc"));
    let page = Page::new("What a report can hold", made)
        .text("A paragraph with `code`, a < b & c.")
        .figure(points())
        .figure(lines())
        .figure(distributions())
        .figure(bars())
        .figure(shares())
        .section("Tables")
        .table(table)
        .list(["one thing", "another"])
        .code("slackline alert --policy edf\nslackline help edf");
    print!("{}", page.html());
}
