//! Tests of properties that all pages and pictures have.

use slackline_html::{Axis, Cell, Figure, FigureOrigin, Layer, Page, Plot, Table};

const NASTY: &str = "<script>alert('x')</script> & \"more\"";

fn plots() -> Vec<Plot> {
    let far = [(1.0, f64::NAN), (2.0, f64::INFINITY), (3.0, 7.0), (-4.0, -7.0)];
    let layers = || {
        [
            Layer::points(NASTY, far),
            Layer::line("line", far).band([(1.0, f64::NAN, 2.0), (2.0, 1.0, 3.0)]),
            Layer::steps("steps", far),
            Layer::cdf("cdf", [f64::NAN, 1.0]),
            Layer::bars("bars", far),
            Layer::bars_with_range("ranged", [(1.0, 0.0, f64::NAN, 2.0)]),
            Layer::ranges("ranges", [(0.0, 1.0, 2.0, 3.0)]).over("bars"),
            Layer::stack("stack", far),
            Layer::rule_at_x("rule", f64::NAN),
            Layer::rule_at_y(NASTY, 0.0),
            Layer::region_x("region", (0.0, f64::INFINITY)),
            Layer::region_y("region", (5.0, -5.0)),
            Layer::points("theirs", [(1.0, 1.0)]).published(),
        ]
    };
    let axes = [
        (Axis::linear(NASTY, "ms"), Axis::linear("y", "%")),
        (Axis::log("x", ""), Axis::log("y", "").including(100.0)),
        (Axis::names("x", [NASTY, "b"]), Axis::linear("y", "").range((3.0, 3.0))),
        (Axis::names("x", Vec::<String>::new()), Axis::linear("", "")),
    ];
    let full =
        axes.into_iter().map(|(x, y)| layers().into_iter().fold(Plot::new(x, y), Plot::with));
    full.chain([Plot::new(Axis::linear("x", ""), Axis::log("y", ""))]).collect()
}

fn page() -> Page {
    let made = FigureOrigin::by(NASTY).seeds("1").commit(Some("abc")).with(NASTY);
    let cells = [
        Cell::Text(NASTY.into()),
        Cell::Number(NASTY.into()),
        Cell::Good(NASTY.into()),
        Cell::Dash,
    ];
    let table = Table::new([NASTY, "b"]).caption(NASTY).row(cells).note(NASTY);
    Page::new(NASTY, made)
        .text(NASTY)
        .section(NASTY)
        .code(NASTY)
        .list([NASTY])
        .figure(Figure::of_panels(NASTY, plots()).caption(NASTY).columns(3))
        .figure(Figure::of_panels("no panels", []))
        .folded(NASTY, Page::new("", FigureOrigin::default()).table(table))
}

/// Asserts that every tag is closed by a matching tag in the right order.
#[track_caller]
fn assert_well_formed(text: &str) {
    let mut open = Vec::new();
    for tag in text.split('<').skip(1) {
        let tag = tag.split('>').next().expect("a split has a first part");
        let name: String = tag.chars().take_while(|letter| !letter.is_whitespace()).collect();
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop().as_deref(), Some(name), "closed in order"),
            None if tag.ends_with('/') || matches!(&*name, "!doctype" | "meta") => {}
            None => open.push(name),
        }
    }
    assert_eq!(open, Vec::<String>::new(), "left open");
}

#[test]
fn user_text_in_html_page_is_never_interpreted_as_markup() {
    let html = page().html();
    assert_well_formed(&html);
    assert!(!html.contains("<script"), "the page contains no script");
    assert!(html.contains("&lt;script&gt;"), "the page shows the text of the user");
}

#[test]
fn html_pages_and_svg_figures_load_nothing_from_the_network() {
    let svg = Figure::of_panels("it", plots()).svg(&FigureOrigin::by("it"));
    assert_well_formed(&svg);
    for text in [page().html(), svg] {
        let text = text.replace("http://www.w3.org/2000/svg", "");
        for word in ["http:", "https:", "src=", "href=", "@import", "url(//"] {
            assert!(!text.contains(word), "{word}");
        }
    }
}

/// A page with timelines has one script, which is part of the page. No name in the data of a
/// timeline can end the script.
#[test]
fn timeline_data_in_html_page_cannot_close_the_script_element() {
    let data = "{\"vcpus\":[\"</script><blink>\"]}";
    let page = page().timeline(data, "class Timeline {}").timeline(data, "class Timeline {}");
    let html = page.html();
    let scripts: Vec<&str> = html.split("<script").skip(1).collect();
    let [script] = &scripts[..] else { panic!("{} scripts", scripts.len()) };
    assert_eq!(html.matches("</script").count(), 1, "{script}");
    assert!(!html.contains("<blink>"), "{script}");
    assert_eq!(script.matches("[\"\\u003c/script>\\u003cblink>\"]").count(), 2, "{script}");
    let text = html.replace("http://www.w3.org/2000/svg", "");
    for word in ["http:", "https:", "src=", "href=", "@import", "url(//", "import(", "fetch("] {
        assert!(!text.contains(word), "{word}");
    }
}

#[test]
fn chart_values_that_are_not_finite_are_not_drawn() {
    let html = page().html();
    for word in ["NaN", "inf ", "inf\"", "Infinity"] {
        assert!(!html.contains(word), "{word}");
    }
}

#[test]
fn chart_series_has_one_colour_in_all_panels_of_figure() {
    let plot = |names: [&str; 2]| {
        let layer = |name: &str| Layer::bars(name, [(0.0, 1.0)]);
        let plot = Plot::new(Axis::names("x", ["a"]), Axis::linear("y", ""));
        names.into_iter().fold(plot, |plot, name| plot.with(layer(name)))
    };
    let figure = Figure::of_panels("it", [plot(["a", "b"]), plot(["b", "a"])]);
    let svg = figure.svg(&FigureOrigin::default());
    let bars = |name: &str| {
        let told = format!("<title>{name}: a, 1</title>");
        let bars: Vec<&str> = svg.lines().filter(|line| line.contains(&told)).collect();
        assert_eq!(bars.len(), 2);
        let ink = |line: &str| line.split("class=\"").nth(1).map(|rest| rest[..4].to_string());
        assert_eq!(ink(bars[0]), ink(bars[1]));
        ink(bars[0])
    };
    assert_ne!(bars("a"), bars("b"));
}

#[test]
fn chart_points_with_equal_coordinates_are_drawn_once() {
    let svg = |count: usize| {
        let points = (0..count).map(|nth| ((nth % 100) as f64, 1.0));
        let plot = Plot::new(Axis::linear("x", ""), Axis::linear("y", ""));
        Figure::new("it", plot.with(Layer::points("a", points))).svg(&FigureOrigin::default())
    };
    assert!(svg(100_000).len() < svg(100).len() + 100);
}

#[test]
fn figure_shows_command_seeds_and_commit_below_the_chart() {
    let plot = Plot::new(Axis::linear("x", ""), Axis::linear("y", ""));
    let made = FigureOrigin::by("slackline alert").seeds("1 to 10").commit(Some("abc"));
    let svg = Figure::new("it", plot).svg(&made);
    assert!(svg.contains(">slackline alert \u{b7} seeds 1 to 10 \u{b7} commit abc</text>"));
}

/// Returns the position and the anchor of the only text element that contains the text `says`.
fn place_of(svg: &str, says: &str) -> (f64, f64, String) {
    let line = svg.lines().find(|line| line.contains(&format!(">{says}</text>")));
    let line = line.unwrap_or_else(|| panic!("`{says}` is not in\n{svg}"));
    let of = |name: &str| {
        let rest = line.split(&format!(" {name}=\"")).nth(1);
        rest.and_then(|rest| rest.split('"').next()).unwrap_or_default().to_owned()
    };
    let number = |name| of(name).parse().unwrap_or_else(|_| panic!("{name} of {line}"));
    (number("x"), number("y"), of("text-anchor"))
}

#[test]
fn label_of_a_chart_region_does_not_overlap_lines() {
    let named = |line: &[(f64, f64)]| {
        let y = Axis::linear("y", "").range((0.0, 10.0));
        let plot = Plot::new(Axis::linear("x", "").range((0.0, 10.0)), y);
        let plot = plot
            .with(Layer::line("a", line.iter().copied()))
            .with(Layer::region_y("theirs", (0.0, 10.0)));
        place_of(&Figure::new("it", plot).svg(&FigureOrigin::default()), "theirs")
    };
    let free = named(&[(0.0, 1.0), (10.0, 1.0)]);
    assert_eq!(free.2, "end", "at the right");
    // The line goes through the upper right corner, and then along the whole upper edge.
    let rising = named(&[(0.0, 1.0), (10.0, 9.8)]);
    assert!(rising.0 < free.0 / 2.0 && (rising.1 - free.1).abs() < 0.1, "{rising:?}");
    let above = named(&[(0.0, 9.6), (10.0, 9.6)]);
    assert!(above.1 > free.1 + 50.0 && above.2 == "end", "{above:?}");
    // The line goes through all four corners, so the name must be between them.
    let frame = [(0.0, 9.6), (10.0, 9.6), (10.0, 0.3), (0.0, 0.3), (0.0, 9.6)];
    let inside = named(&frame);
    assert!(inside.1 > free.1 + 10.0 && inside.1 < above.1 - 10.0, "{inside:?}");
}

/// The label is the name of a region of x values. The test has regions that are wider than their
/// names, and regions that are narrower.
#[test]
fn label_of_a_range_of_x_does_not_overlap_lines() {
    for region in [(2.0, 8.0), (5.0, 5.2), (9.9, 10.0)] {
        let named = |line: Layer| {
            let axis = || Axis::linear("", "").range((0.0, 10.0));
            let plot = Plot::new(axis(), axis()).with(line).with(Layer::region_x("theirs", region));
            place_of(&Figure::new("it", plot).svg(&FigureOrigin::default()), "theirs")
        };
        let free = named(Layer::line("a", [(0.0, 1.0), (10.0, 1.0)]));
        assert_eq!(free.2, "", "at the left");
        // The line goes along the whole upper edge, and then through the middle.
        let below = named(Layer::line("a", [(0.0, 9.6), (10.0, 9.6)]));
        assert!(below.1 > free.1 + 50.0, "{below:?}");
        let above = named(Layer::line("a", [(0.0, 5.0), (10.0, 5.0)]));
        assert_eq!(above, free);
        let rule = named(Layer::rule_at_y("", 9.6));
        assert!(rule.1 > free.1 + 50.0, "{rule:?}");
    }
}

/// Returns the labels at the marks of the y axis in each panel of a figure.
fn labels_of_y(svg: &str) -> Vec<Vec<String>> {
    let panels = svg.split("<clipPath").collect::<Vec<_>>();
    let is_label = |line: &&str| line.starts_with("<text") && line.contains("text-anchor=\"end\"");
    fn text(line: &str) -> Option<&str> {
        line.split('>').nth(1).and_then(|text| text.split('<').next())
    }
    let labels = |panel: &&str| -> Vec<String> {
        panel.lines().filter(is_label).filter_map(text).map(str::to_owned).collect()
    };
    panels[..panels.len() - 1].iter().map(labels).collect()
}

#[test]
fn panels_of_a_figure_with_equal_axes_share_one_scale() {
    let plot = |most: f64, label: &str| {
        let plot = Plot::new(Axis::linear("x", ""), Axis::linear(label, "ms"));
        plot.with(Layer::line("a", [(0.0, 0.0), (1.0, most)]))
    };
    let figure = Figure::of_panels("it", [plot(1.0, "wait"), plot(1000.0, "wait"), plot(1.0, "y")]);
    for text in [
        figure.svg(&FigureOrigin::default()),
        Page::new("it", FigureOrigin::default()).figure(figure.clone()).html(),
    ] {
        let labels = labels_of_y(&text);
        assert_eq!(labels.len(), 3, "{labels:?}");
        assert_eq!(labels[0], labels[1]);
        assert!(labels[0].iter().any(|label| label.contains("1000") || label.contains("800")));
        assert_ne!(labels[0], labels[2], "an axis with another label has its own scale");
    }
}

#[test]
fn value_label_of_bar_is_above_marker_of_published_value() {
    let bar = |published: f64| {
        let x = Axis::names("x", ["a"]);
        let plot = Plot::new(x, Axis::linear("y", "").range((0.0, 100.0)));
        let theirs = Layer::points("theirs", [(0.0, published)]).over("b").published();
        let plot = plot.with(Layer::bars("b", [(0.0, 38.5)])).with(theirs);
        place_of(&Figure::new("it", plot).svg(&FigureOrigin::default()), "38.5").1
    };
    let far = bar(80.0);
    assert!((bar(10.0) - far).abs() < 0.1, "{far}");
    assert!(bar(40.0) < far - 3.0, "{far}");
}

/// On a screen that is 400 pixels wide, the content of a page is 360 pixels wide.
#[test]
fn panels_of_a_figure_are_stacked_on_a_narrow_screen() {
    let html = page().html();
    assert!(html.contains("grid-template-columns:repeat(auto-fill,minmax(min(100%,var(--least))"));
    let plot = || Plot::new(Axis::linear("x", ""), Axis::linear("y", ""));
    let least = |figure: Figure| {
        let html = Page::new("it", FigureOrigin::default()).figure(figure).html();
        let panels = html.matches("<div class=\"plot\" tabindex=\"0\">\n<svg").count();
        let least = html.split("--least:").find_map(|rest| rest.split_once("px\""));
        (panels, least.expect("a width").0.parse::<u32>().expect("a number"))
    };
    let (panels, two) = least(Figure::of_panels("it", [plot(), plot(), plot()]));
    assert!(panels == 3 && two <= 360 && 2 * two > 360, "{two} of 360 pixels");
    // At a width of 780 pixels, two panels fit into a row and three do not.
    assert!(2 * two + 22 <= 780 && 3 * two + 44 > 780, "{two}");
    // A single wide plot keeps its size and can be scrolled. If it shrank, its letters would be too
    // small.
    assert_eq!(least(Figure::new("it", plot())), (1, 686));
}

#[test]
fn legend_and_title_of_an_html_chart_wrap_as_text() {
    let names: Vec<String> =
        (0..9).map(|nth| format!("{nth} {}", "long name ".repeat(9))).collect();
    let plot = Plot::new(Axis::linear("x", ""), Axis::linear("y", ""));
    let plot = names.iter().fold(plot, |plot, name| plot.with(Layer::line(name, [(1.0, 1.0)])));
    let figure = Figure::new("the title", plot).caption("the caption");
    let html = Page::new("it", FigureOrigin::default()).figure(figure).html();
    assert_well_formed(&html);
    assert!(html.contains("<p class=\"title\">the title</p>"));
    // A paragraph and a caption of HTML wrap at the width of the page. No style prevents that.
    assert!(html.contains("<figcaption><b>Figure 1.</b> the caption</figcaption>"));
    let style = html.split("<style>").nth(1).and_then(|it| it.split("</style>").next());
    let style = style.expect("a style sheet");
    for rule in style.split('}').filter(|rule| rule.contains("nowrap")) {
        let is_text = ["figcaption", ".title", ".legend{"].iter().any(|of| rule.contains(of));
        assert!(!is_text, "{rule}");
    }
    assert!(html.contains(".legend{display:flex;flex-wrap:wrap"));
    let legend = html.split("<p class=\"legend\">").nth(1).and_then(|it| it.split("</p>").next());
    let legend = legend.expect("a legend");
    assert!(names.iter().all(|name| legend.contains(&format!("{name}</span>"))), "{legend}");
    let inside = html.split("<div class=\"plot\"").nth(1).expect("a plot");
    assert!(!inside.contains(&format!(">{}</text>", names[0].trim_end())));
}

#[test]
fn html_page_footer_shows_command_without_folder_names() {
    let line = |command: &str| FigureOrigin::by(command).line();
    let typed = "slackline sweep /some/ann/a.toml --csv=/srv/x/b.csv --page ~/c.html sub/d.toml";
    assert_eq!(line(typed), "slackline sweep a.toml --csv=b.csv --page c.html d.toml");
    assert_eq!(
        line("slackline alert --report '/some/ann lee/my page.html'"),
        "slackline alert --report 'my page.html'"
    );
    assert_eq!(line("slackline paper report --out ../here/"), "slackline paper report --out here");
    let shares = "slackline alert --targets 5,10 --limiter-command 5ms/10ms";
    assert_eq!(line(shares), shares);
    // Folders may be named by numbers.
    assert_eq!(
        line("slackline sim 2026/11/3.toml --csv=2026/1.csv"),
        "slackline sim 3.toml --csv=1.csv"
    );
    assert_eq!(line("slackline whatif 2026/11/3"), "slackline whatif 3");
}
