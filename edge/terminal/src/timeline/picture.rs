//! Drawing of a timeline as lines of text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use slackline_units::{Span, Time, VcpuId};

use super::{Glyphs, OccupantShare, Row, Timeline, TimelineCell, ruler};
use crate::paint::Paint;

/// Meaning of a character, which determines its colour.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hue {
    Text,
    Faint,
    Due,
    Spare,
    Short,
}

impl Hue {
    /// Returns the escape code of the colour: blue, orange or vermilion, which colour-blind people
    /// can distinguish, or grey for guide lines.
    fn code(self) -> &'static str {
        match self {
            Hue::Text => "0",
            Hue::Faint => "38;5;244",
            Hue::Due => "38;5;32",
            Hue::Spare => "38;5;214",
            Hue::Short => "1;38;5;202",
        }
    }
}

/// Characters with which a timeline is drawn. Several characters show how much of a column is
/// filled.
struct Alphabet {
    due: &'static [char],
    spare: &'static [char],
    waiting: &'static [char],
    idle: char,
    period: char,
    short: char,
    ruler: char,
    tick: char,
}

const BLOCKS: Alphabet = Alphabet {
    due: &['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
    spare: &['░', '▒'],
    waiting: &['╌', '─'],
    idle: '·',
    period: '╵',
    short: '✗',
    ruler: '─',
    tick: '┬',
};

const ASCII: Alphabet = Alphabet {
    due: &['+', '#'],
    spare: &['-', '='],
    waiting: &['.'],
    idle: '.',
    period: '|',
    short: '!',
    ruler: '-',
    tick: '+',
};

/// Characters of a line, to the right of the margin.
type Line = Vec<(char, Hue)>;

const INDENT: usize = 2;
/// Width of a vCPU's letter and the blank after it.
const LETTER: usize = 2;
const GAP: usize = 2;

/// Returns the number of characters before the first column. `longest_text` is the length of the
/// longest name before that column.
pub(crate) fn margin(longest_text: usize) -> usize {
    INDENT + LETTER + longest_text.max("10ms/100ms".len()) + GAP
}

/// Draws the whole timeline.
pub(crate) fn draw(timeline: &Timeline, glyphs: Glyphs, paint: Paint) -> String {
    let longest = timeline.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
    let alphabet = match glyphs {
        Glyphs::Blocks => &BLOCKS,
        Glyphs::Ascii => &ASCII,
    };
    let window = &timeline.window;
    let mut canvas = Canvas { text: String::new(), margin: margin(longest), paint };
    canvas.text.push_str(&timeline.about);
    canvas.text.push_str("\n\n");
    scale(timeline, alphabet, &mut canvas);
    for (index, row) in timeline.rows.iter().enumerate() {
        let cells = row.cells.iter().enumerate();
        let line = cells.map(|(column, cell)| alphabet.cell(cell, window.length(column)));
        canvas.line(&format!("{} {}", letter(index), row.name), Hue::Text, line.collect());
        if let Some(promise) = row.promise {
            let line = periods(timeline, row, alphabet);
            canvas.line(&format!("  {promise}"), Hue::Faint, line);
        }
    }
    canvas.text.push('\n');
    for (cpu, lane) in timeline.lanes.iter().enumerate() {
        let ended = timeline.ended.unwrap_or(Time::NEVER);
        let cells = lane.iter().zip(0..).take_while(|&(_, column)| window.edge(column) < ended);
        let line = cells.map(|(held, column)| {
            let holder = holder(timeline, held, window.length(column));
            holder.unwrap_or((alphabet.idle, Hue::Faint))
        });
        canvas.line(&format!("  cpu{cpu}"), Hue::Text, line.collect());
    }
    canvas.text.push('\n');
    legend(timeline, alphabet, &mut canvas);
    canvas.text
}

/// Draws the time scale.
fn scale(timeline: &Timeline, alphabet: &Alphabet, canvas: &mut Canvas) {
    let columns = timeline.window.columns();
    let mut times = vec![' '; columns];
    let mut marks = vec![alphabet.ruler; columns];
    for (column, text) in ruler::ticks(&timeline.window) {
        marks[column] = alphabet.tick;
        if column + text.len() <= columns {
            for (place, character) in times[column..].iter_mut().zip(text.chars()) {
                *place = character;
            }
        }
    }
    let faint = |characters: Vec<char>| characters.into_iter().map(|c| (c, Hue::Faint)).collect();
    canvas.line("", Hue::Text, faint(times));
    canvas.line("", Hue::Text, faint(marks));
}

impl Alphabet {
    /// Returns the character and colour for a vCPU's activity in a column of length `length`.
    /// Running has precedence over waiting.
    fn cell(&self, cell: &TimelineCell, length: Span) -> (char, Hue) {
        let ran = cell.due + cell.spare;
        if ran.is_zero() {
            let is_asleep = cell.awake.is_zero();
            let waiting = if is_asleep { ' ' } else { step(self.waiting, cell.awake, length) };
            return (waiting, Hue::Faint);
        }
        if cell.due >= cell.spare {
            (step(self.due, ran, length), Hue::Due)
        } else {
            (step(self.spare, ran, length), Hue::Spare)
        }
    }
}

/// Returns the character that shows how much of a column is filled. The character is never the one
/// for an empty column, because `part` is not zero.
fn step(steps: &[char], part: Span, whole: Span) -> char {
    let count = steps.len() as u128;
    let (part, whole) = (u128::from(part.ns()), u128::from(whole.ns()));
    let nearest = (2 * part * count + whole) / (2 * whole);
    let index = usize::try_from(nearest.clamp(1, count)).expect("there are few steps") - 1;
    steps[index]
}

/// Returns the line that marks the ends of a vCPU's periods. It also marks each period in which the
/// vCPU received less than its slice.
fn periods(timeline: &Timeline, row: &Row, alphabet: &Alphabet) -> Line {
    let window = &timeline.window;
    let mut line = vec![(' ', Hue::Faint); window.columns()];
    for period in &row.periods {
        for at in [period.from, period.end] {
            if let Some(column) = window.column_of(at) {
                line[column] = (alphabet.period, Hue::Faint);
            }
        }
    }
    let is_over = |end| timeline.ended.is_none_or(|ended| end <= ended) && end <= window.end();
    for period in row.periods.iter().filter(|period| is_over(period.end) && period.is_short()) {
        // The mark is in the column in which the next period begins. If the period ends with the
        // window, the mark is in the last column.
        let column = window.column_of(period.end).unwrap_or(window.columns() - 1);
        line[column] = (alphabet.short, Hue::Short);
    }
    line
}

/// Returns the letter of the vCPU that used most of a CPU's time in one column. The letter is a
/// capital if the vCPU used mostly reserved time. `None` if the CPU was mostly idle.
fn holder(
    timeline: &Timeline,
    held: &BTreeMap<VcpuId, OccupantShare>,
    length: Span,
) -> Option<(char, Hue)> {
    let total = |held: &OccupantShare| held.due + held.spare;
    let used: Span = held.values().map(total).sum();
    // Among equals, the vCPU with the smaller id is shown.
    let (vcpu, most) =
        held.iter().min_by_key(|(vcpu, held)| (std::cmp::Reverse(total(held)), **vcpu))?;
    if length.left_after(used) > total(most) {
        return None;
    }
    let letter = timeline.index(*vcpu).map_or('?', letter);
    if most.due >= most.spare {
        Some((letter.to_ascii_uppercase(), Hue::Due))
    } else {
        Some((letter, Hue::Spare))
    }
}

/// Returns the letter that stands for a vCPU. After `z`, all further vCPUs share `*`.
fn letter(index: usize) -> char {
    ('a'..='z').nth(index).unwrap_or('*')
}

/// Adds explanations of the characters that the timeline can have.
fn legend(timeline: &Timeline, alphabet: &Alphabet, canvas: &mut Canvas) {
    // Returns the characters for the emptiest and for a full column.
    let ends = |steps: &[char]| match steps {
        [first, .., last] => format!("{first}{last}"),
        _ => steps.iter().collect(),
    };
    let mut entries = vec![
        (ends(alphabet.due), Hue::Due, "ran as entitled, part to all of a column (CPU: A)"),
        (ends(alphabet.spare), Hue::Spare, "ran in slack (CPU: a)"),
    ];
    if timeline.knows.sleep {
        entries.push((ends(alphabet.waiting), Hue::Faint, "waiting (blank: blocked)"));
    }
    entries.push((alphabet.idle.to_string(), Hue::Faint, "CPU mostly without vCPU"));
    if timeline.rows.len() > 26 {
        entries.push(("*".into(), Hue::Text, "a vCPU without a letter"));
    }
    if timeline.rows.iter().any(|row| !row.periods.is_empty()) {
        entries.push((alphabet.period.to_string(), Hue::Faint, "a period begins"));
        if timeline.knows.sleep {
            entries.push((
                alphabet.short.to_string(),
                Hue::Short,
                "received less than its slice in the previous period",
            ));
        }
    }
    let mut line = Line::new();
    let width = timeline.window.columns() + canvas.margin - INDENT;
    for (glyphs, hue, text) in entries {
        let hanging = glyphs.chars().count();
        let needed = hanging + 1 + text.chars().count();
        if !line.is_empty() && line.len() + 3 + needed > width {
            canvas.indented(std::mem::take(&mut line));
        }
        let gap = if line.is_empty() { "" } else { "   " };
        line.extend(gap.chars().map(|c| (c, Hue::Text)));
        line.extend(glyphs.chars().map(|glyph| (glyph, hue)));
        canvas.words(&mut line, text, hanging, width);
    }
    canvas.indented(line);
    for remark in remarks(timeline) {
        let mut line = Line::new();
        canvas.words(&mut line, &remark, 0, width);
        canvas.indented(line);
    }
}

/// Returns remarks about what the timeline cannot show.
fn remarks(timeline: &Timeline) -> Vec<String> {
    let mut remarks = Vec::new();
    if !timeline.knows.sleep {
        remarks.push(
            "In blank intervals the vCPU was blocked or waited: this host does not see which."
                .into(),
        );
    }
    if !timeline.knows.stretches {
        remarks.push(
            "CPU time was read only from time to time, and is drawn evenly in between.".into(),
        );
    }
    if let Some(ended) = timeline.ended.filter(|&ended| ended < timeline.window.end()) {
        remarks.push(format!("The run ended at {ended}: later columns are blank."));
    }
    remarks
}

/// Text of a timeline while it is drawn.
struct Canvas {
    text: String,
    margin: usize,
    paint: Paint,
}

impl Canvas {
    /// Adds a line with a text in the left margin. Blanks at the end of the line are dropped.
    fn line(&mut self, left: &str, hue: Hue, mut line: Line) {
        let width = self.margin - INDENT;
        let mut whole: Line = format!("{left:<width$}").chars().map(|c| (c, hue)).collect();
        whole.append(&mut line);
        self.indented(whole);
    }

    /// Adds words to a line. Words that do not fit continue on further lines that are indented by
    /// `hanging`.
    fn words(&mut self, line: &mut Line, text: &str, hanging: usize, width: usize) {
        for word in text.split(' ') {
            if !line.is_empty() && line.len() + 1 + word.chars().count() > width {
                let below = " ".repeat(hanging).chars().map(|c| (c, Hue::Text)).collect();
                self.indented(std::mem::replace(line, below));
            }
            let gap = if line.is_empty() { "" } else { " " };
            line.extend(gap.chars().chain(word.chars()).map(|c| (c, Hue::Text)));
        }
    }

    fn indented(&mut self, mut whole: Line) {
        while whole.pop_if(|(character, _)| *character == ' ').is_some() {}
        if !whole.is_empty() {
            self.text.push_str(&" ".repeat(INDENT));
        }
        let mut last = Hue::Text;
        for (character, hue) in whole {
            if self.paint == Paint::Colour && hue != last && character != ' ' {
                write!(self.text, "\x1b[{}m", hue.code()).expect("a string has room");
                last = hue;
            }
            self.text.push(character);
        }
        if last != Hue::Text {
            self.text.push_str("\x1b[0m");
        }
        self.text.push('\n');
    }
}
