//! Pages. A page is one HTML file that refers to no other file. Only a timeline has a script.

use crate::figure::Figure;
use crate::ink::style;
use crate::made::FigureOrigin;
use crate::table::Table;
use crate::text::{escaped, prose};

/// A page. Its parts are in the order in which they were added.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    made: FigureOrigin,
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
enum Part {
    Section(String),
    Text(String),
    Code(String),
    List(Vec<String>),
    Figure(Box<Figure>),
    Table(Table),
    Fold(String, Vec<Part>),
    Timeline { data: String, script: String },
}

const STYLE: &str = "\
body{margin:0;background:var(--paper);color:var(--text);\
font:16px/1.55 Inter,system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}
main{max-width:820px;margin:0 auto;padding:40px 20px 60px}
h1{font-size:30px;line-height:1.2;margin:0 0 6px;letter-spacing:-.01em}
h2{font-size:21px;margin:44px 0 8px;padding-top:18px;border-top:1px solid var(--grid)}
p,ul{margin:10px 0;max-width:68ch}
li{margin:4px 0}
code,pre{font:13.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
code{background:var(--wash);border-radius:4px;padding:1px 4px}
pre{background:var(--wash);border-radius:8px;padding:12px 14px;overflow-x:auto}
.made{color:var(--muted);font-size:13.5px;margin:0 0 26px}
figure{margin:26px 0 30px}
figure .title{font-weight:600;margin:0 0 4px;max-width:none}
.legend{display:flex;flex-wrap:wrap;gap:2px 20px;font-size:13.5px;margin:4px 0;max-width:none}
.legend span{overflow-wrap:anywhere;min-width:0}
.legend svg{display:inline-block;vertical-align:middle;flex:none}
.panels{display:grid;gap:0 22px;\
grid-template-columns:repeat(auto-fill,minmax(min(100%,var(--least)),1fr))}
.plot{overflow-x:auto;min-width:0}
.plot svg{display:block;width:100%;height:auto;min-width:var(--least)}
.foot{color:var(--muted);font-size:11.5px;margin:4px 0;max-width:none;overflow-wrap:anywhere}
figcaption{overflow-wrap:anywhere;color:var(--muted);font-size:14px;line-height:1.5;\
margin-top:6px;max-width:74ch}
figcaption b{color:var(--text)}
.table{overflow-x:auto;margin:20px 0 26px}
table{border-collapse:collapse;font-size:14.5px;font-variant-numeric:tabular-nums;width:100%}
caption{caption-side:top;text-align:left;color:var(--muted);font-size:14px;padding-bottom:8px}
th{font-weight:600;text-align:left;border-bottom:1.5px solid var(--muted);\
padding:5px 12px 5px 0;vertical-align:bottom}
td{border-bottom:1px solid var(--grid);padding:5px 12px 5px 0;vertical-align:top}
th.number,td.number{text-align:right;white-space:nowrap}
td:first-child{min-width:11em}
.note{color:var(--muted);font-size:13.5px;margin:6px 0 0}
.verdict{white-space:nowrap;font-weight:600}
.verdict i{display:inline-block;width:1.25em;font-style:normal}
.good{color:var(--s2)}.fair{color:var(--s4)}.bad{color:var(--s1)}
details{margin:14px 0}summary{cursor:pointer;color:var(--muted)}
:root{--wash:#f3f5f7}@media(prefers-color-scheme:dark){:root{--wash:#20252b}}
@media print{:root{--wash:#f3f5f7}figure,table{break-inside:avoid}}
";

/// Calls that draw all timelines of the page, after the script has read their data.
const DRAW: &str = "
const models = timelines.map((data) => {
  const model = new Timeline();
  model.add(data);
  return model;
});
const dark = matchMedia('(prefers-color-scheme: dark)');
const draw = () => {
  const style = getComputedStyle(document.documentElement);
  for (const canvas of document.querySelectorAll('canvas[data-order]')) {
    const model = models[canvas.dataset.timeline];
    const vms = [...new Set(model.vcpus.slice(1).map(vmOf))];
    const order = canvas.dataset.order;
    const width = canvas.clientWidth;
    const height = heightOf(model, order, vms);
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const context = canvas.getContext('2d');
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint(context, model, {
      width, height, order, vms, selected: '', end: model.end, isDark: dark.matches,
      ink: style.getPropertyValue('--text'), line: style.getPropertyValue('--grid'),
    });
  }
};
draw();
addEventListener('resize', draw);
dark.addEventListener('change', draw);
";

/// Returns the canvases of the timeline with this number.
fn canvases(number: usize) -> String {
    let canvas = |order: &str, says: &str| {
        format!(
            "<canvas data-timeline=\"{number}\" data-order=\"{order}\" role=\"img\" \
             aria-label=\"{says}\" style=\"width:100%;display:block;margin:0 0 18px\"></canvas>\n"
        )
    };
    canvas("cpu", "Lanes by CPU") + &canvas("vm", "Lanes by VM")
}

/// Returns the script that draws all timelines of a page. Empty if there are none.
fn drawing(timelines: &[(&str, &str)]) -> String {
    let Some((_, script)) = timelines.first() else { return String::new() };
    // A `<` in a name could end the script.
    let data = timelines.iter().map(|(data, _)| data.replace('<', "\\u003c"));
    let data = data.collect::<Vec<String>>().join(", ");
    format!("<script type=\"module\">\n{script}\nconst timelines = [{data}];\n{DRAW}</script>\n")
}

/// The figures and timelines of a page that have been formatted so far.
#[derive(Default)]
struct PageCounts<'a> {
    /// Number of figures so far.
    figures: usize,
    /// Data and script of each timeline.
    timelines: Vec<(&'a str, &'a str)>,
}

impl Page {
    /// Creates an empty page.
    #[must_use]
    pub fn new(title: &str, made: FigureOrigin) -> Page {
        Page { title: title.into(), made, parts: Vec::new() }
    }

    /// Adds a section heading.
    #[must_use]
    pub fn section(self, title: &str) -> Page {
        self.part(Part::Section(title.into()))
    }

    /// Adds a paragraph. Text between backquotes is code.
    #[must_use]
    pub fn text(self, text: &str) -> Page {
        self.part(Part::Text(text.into()))
    }

    /// Adds preformatted lines, such as commands or files.
    #[must_use]
    pub fn code(self, text: &str) -> Page {
        self.part(Part::Code(text.into()))
    }

    /// Adds a list of bullets.
    #[must_use]
    pub fn list<T: Into<String>>(self, items: impl IntoIterator<Item = T>) -> Page {
        self.part(Part::List(items.into_iter().map(Into::into).collect()))
    }

    /// Adds a figure. Figures are numbered in the order in which they are added.
    #[must_use]
    pub fn figure(self, figure: Figure) -> Page {
        self.part(Part::Figure(Box::new(figure)))
    }

    /// Adds a table. Tables are not numbered.
    #[must_use]
    pub fn table(self, table: Table) -> Page {
        self.part(Part::Table(table))
    }

    /// Adds the contents of another page, folded behind the line `summary`. The title and the
    /// provenance of the other page are left out.
    #[must_use]
    pub fn folded(self, summary: &str, inside: Page) -> Page {
        self.part(Part::Fold(summary.into(), inside.parts))
    }

    /// Adds a timeline of two pictures that a script draws: one by CPU and one by VM. `data` is
    /// JSON, and `script` is a module with `Timeline`, `heightOf` and `paint`. All timelines of a
    /// page are drawn by the script of the page's first timeline.
    #[must_use]
    pub fn timeline(self, data: &str, script: &str) -> Page {
        let (data, script) = (data.to_owned(), script.to_owned());
        self.part(Part::Timeline { data, script })
    }

    fn part(mut self, part: Part) -> Page {
        self.parts.push(part);
        self
    }

    /// Returns the page as an HTML file.
    #[must_use]
    pub fn html(&self) -> String {
        let (title, made) = (escaped(&self.title), escaped(&self.made.line()));
        let mut text = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
             <title>{title}</title>\n<style>\n{}{STYLE}</style>\n</head>\n<body><main>\n\
             <h1>{title}</h1>\n<p class=\"made\">{made}</p>\n",
            style(),
        );
        let mut counts = PageCounts::default();
        for part in &self.parts {
            text += &self.part_html(part, &mut counts);
        }
        text + &drawing(&counts.timelines) + "</main></body>\n</html>\n"
    }

    fn part_html<'a>(&self, part: &'a Part, counts: &mut PageCounts<'a>) -> String {
        match part {
            Part::Timeline { data, script } => {
                counts.timelines.push((data, script));
                canvases(counts.timelines.len() - 1)
            }
            Part::Section(title) => format!("<h2>{}</h2>\n", escaped(title)),
            Part::Text(text) => format!("<p>{}</p>\n", prose(text)),
            Part::Code(text) => format!("<pre>{}</pre>\n", escaped(text)),
            Part::List(items) => {
                let item = |item: &String| format!("<li>{}</li>\n", prose(item));
                format!("<ul>\n{}</ul>\n", items.iter().map(item).collect::<String>())
            }
            Part::Figure(figure) => {
                counts.figures += 1;
                figure.html(&self.made, counts.figures)
            }
            Part::Table(table) => table.html(),
            Part::Fold(summary, parts) => {
                let inside: String =
                    parts.iter().map(|part| self.part_html(part, counts)).collect();
                format!("<details><summary>{}</summary>\n{inside}</details>\n", prose(summary))
            }
        }
    }
}
