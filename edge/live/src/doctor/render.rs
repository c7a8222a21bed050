//! Formatting of a report of `doctor` as text.

use std::fmt::Write;

use super::{Finding, Report, State};

/// Choice between colored and plain text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// Plain text without colors.
    Plain,
    /// Text with colors, as ANSI escapes for a terminal.
    Color,
}

/// Minimum width of a formatted report, in columns. A narrower line would not have space for two
/// words.
const NARROWEST: usize = 40;
/// Minimum width, in columns, at which a finding is printed to the right of its topic. On a
/// narrower page it is printed below the topic.
const BESIDE: usize = 60;
/// Number of columns before the text of a finding: two spaces, the state, two spaces, the topic,
/// two spaces.
const INDENT: usize = 2 + STATE + 2 + TOPIC + 2;
/// Number of columns before the text of a finding that is printed below its topic.
const BELOW: usize = 4;
/// Length of the longest state in the report, `limited`.
const STATE: usize = 7;
/// Length of the longest topic names, `deadline-share` and `other-realtime`.
const TOPIC: usize = 14;

impl Report {
    /// Formats the report in lines of at most `width` columns. If `width` is below 40, lines have
    /// at most 40 columns. A single word that is longer than a line makes the line longer. Each
    /// topic has one line or more, under the heading of its section. A finding whose state is not
    /// good is followed by the reason why its topic matters, and by a hint. The findings are
    /// followed by the lines about threads that a killed run left changed. The last line says
    /// whether scenarios can run live.
    #[must_use]
    pub fn render(&self, width: usize, ink: Ink) -> String {
        let page = Page { width: width.max(NARROWEST), ink };
        let mut out = String::new();
        let mut section = None;
        for finding in &self.findings {
            if section != Some(finding.topic.section()) {
                section = Some(finding.topic.section());
                let title = finding.topic.section().title();
                let gap = if out.is_empty() { "" } else { "\n" };
                line(&mut out, &format!("{gap}{}", page.paint(BOLD, title)));
            }
            page.finding(&mut out, finding);
        }
        if !self.leftovers.is_empty() {
            line(&mut out, &format!("\n{}", page.paint(BOLD, "Threads left by killed runs")));
            for left in &self.leftovers {
                page.wrapped(&mut out, "  ", left, None);
            }
        }
        out.push('\n');
        page.verdict(&mut out, self);
        out
    }
}

const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";
const CYAN: &str = "36";

struct Page {
    width: usize,
    ink: Ink,
}

impl Page {
    fn finding(&self, out: &mut String, finding: &Finding) {
        let state = finding.state.word();
        let color = match finding.state {
            State::Good => GREEN,
            State::Limited => YELLOW,
            State::Missing => RED,
            State::Unknown => CYAN,
        };
        let head = format!(
            "  {}  {:<TOPIC$}  ",
            self.paint(color, &format!("{state:<STATE$}")),
            finding.id()
        );
        let (head, rest) = if self.width < BESIDE {
            line(out, &head);
            let below = " ".repeat(BELOW);
            (below.clone(), below)
        } else {
            (head, " ".repeat(INDENT))
        };
        self.wrapped(out, &head, &finding.found, None);
        if finding.state == State::Good {
            return;
        }
        self.wrapped(out, &rest, finding.matters(), Some(DIM));
        if let Some(hint) = &finding.hint {
            self.wrapped(out, &rest, &format!("hint: {hint}"), None);
        }
    }

    fn verdict(&self, out: &mut String, report: &Report) {
        let obstacles: Vec<&str> = report.obstacles().map(|finding| finding.topic.id()).collect();
        if obstacles.is_empty() {
            let limited = report.findings.iter().any(|finding| finding.state == State::Limited);
            let but = if limited { ", with the limits above" } else { "" };
            let text = format!("This host can run scenarios live{but}.");
            self.wrapped(out, "", &text, Some(BOLD));
        } else {
            let text =
                format!("This host cannot run scenarios live. Missing: {}.", obstacles.join(", "));
            self.wrapped(out, "", &text, Some(BOLD));
        }
    }

    /// Appends a text to `out`, wrapped at the page width. The first line begins with `head`. The
    /// other lines are indented by the width of `head`.
    fn wrapped(&self, out: &mut String, head: &str, text: &str, style: Option<&str>) {
        let indent = printed_width(head);
        let columns = self.width.saturating_sub(indent);
        let mut before = head.to_owned();
        for piece in pieces(text, columns) {
            let piece = style.map_or(piece.clone(), |style| self.paint(style, &piece));
            line(out, &format!("{before}{piece}"));
            before = " ".repeat(indent);
        }
    }

    fn paint(&self, style: &str, text: &str) -> String {
        match self.ink {
            Ink::Plain => text.to_owned(),
            Ink::Color => format!("\x1b[{style}m{text}\x1b[0m"),
        }
    }
}

fn line(out: &mut String, text: &str) {
    writeln!(out, "{}", text.trim_end()).expect("writing to a string cannot fail");
}

/// Returns the number of columns that a text takes, without ANSI escapes.
fn printed_width(text: &str) -> usize {
    let mut pieces = text.split('\x1b');
    let first = pieces.next().map_or(0, |piece| piece.chars().count());
    let rest =
        pieces.map(|piece| piece.split_once('m').map_or(0, |(_, text)| text.chars().count()));
    first + rest.sum::<usize>()
}

/// Wraps the words of a text into lines of at most `columns` columns. A longer word gets a line of
/// its own. Returns at least one line.
fn pieces(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is always a line");
        let taken = last.chars().count();
        if taken > 0 && taken + 1 + word.chars().count() > columns {
            lines.push(word.to_owned());
        } else {
            if taken > 0 {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::Topic;
    use super::*;

    fn report(state: State, found: &str) -> Report {
        let finding = |topic| Finding {
            topic,
            state: if topic == Topic::Fifo { state } else { State::Good },
            found: if topic == Topic::Fifo { found.into() } else { "fine".into() },
            hint: Some("a hint".into()),
            figures: Vec::new(),
        };
        Report { findings: Topic::ALL.map(finding).into(), leftovers: Vec::new() }
    }

    #[test]
    fn doctor_command_prints_reason_and_hint_for_bad_findings() {
        let text = report(State::Missing, "refused by the kernel, and by everybody else")
            .render(60, Ink::Plain);
        let fifo: Vec<&str> =
            text.lines().skip_while(|line| !line.contains("fifo")).take(5).collect();
        assert_eq!(
            fifo,
            [
                "  missing  fifo            refused by the kernel, and by",
                "                           everybody else",
                "                           dispatchers and the threads they",
                "                           choose run as SCHED_FIFO",
                "                           hint: a hint",
            ]
        );
        assert!(text.ends_with("\nThis host cannot run scenarios live. Missing: fifo.\n"));
        assert_eq!(text.matches("hint:").count(), 1);
    }

    #[test]
    fn doctor_report_has_equal_line_widths_with_and_without_colours() {
        let report = report(State::Limited, "one two three four five six seven eight nine ten");
        for columns in [40, 50, 70] {
            let [plain, color] = [Ink::Plain, Ink::Color].map(|ink| report.render(columns, ink));
            assert_ne!(plain, color);
            let widths = |text: &str| text.lines().map(printed_width).collect::<Vec<_>>();
            assert_eq!(widths(&plain), widths(&color));
            assert!(widths(&plain).into_iter().all(|width| width <= columns), "{plain}");
        }
    }

    #[test]
    fn doctor_command_prints_findings_below_their_topics_on_40_columns() {
        let text = report(State::Missing, "refused by the kernel, and by everybody else")
            .render(40, Ink::Plain);
        let fifo: Vec<&str> =
            text.lines().skip_while(|line| !line.contains("fifo")).take(4).collect();
        assert_eq!(
            fifo,
            [
                "  missing  fifo",
                "    refused by the kernel, and by",
                "    everybody else",
                "    dispatchers and the threads they",
            ]
        );
    }

    #[test]
    fn doctor_report_ends_with_leftover_threads_and_then_the_verdict() {
        let report =
            report(State::Good, "fine").with_leftovers(vec!["thread 42 is stopped".into()]);
        let text = report.render(80, Ink::Plain);
        let end = "\nThreads left by killed runs\n  thread 42 is stopped\n\n\
                   This host can run scenarios live.\n";
        assert!(text.ends_with(end), "{text}");
    }
}
