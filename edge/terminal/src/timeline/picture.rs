//! A timeline, drawn.

use std::fmt::Write as _;

use slackline_units::{Span, Time};

use super::{Cell, Glyphs, Held, Row, Timeline, ruler};
use crate::paint::Paint;

/// What a character stands for, which decides its colour.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hue {
    Text,
    Faint,
    Due,
    Spare,
    Short,
}

impl Hue {
    /// As the terminal is told: blue, orange and vermilion, which stay apart for all kinds of
    /// sight, and grey for what is only there to guide the eye.
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

/// The characters that are drawn with. What a column is filled to is shown in steps.
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

/// Drawn to the right of the margin.
type Line = Vec<(char, Hue)>;

const INDENT: usize = 2;
/// The letter of a vCPU and a blank.
const LETTER: usize = 2;
const GAP: usize = 2;

/// Characters before the first column, when the longest text beside a line has so many.
pub(crate) fn margin(longest_text: usize) -> usize {
    INDENT + LETTER + longest_text.max("10ms/100ms".len()) + GAP
}

/// The whole picture.
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

/// Times, and where they are.
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
    /// What a vCPU did in a column of some length. Running is never hidden by waiting.
    fn cell(&self, cell: &Cell, length: Span) -> (char, Hue) {
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

/// The character nearest to how full a column is, but not an empty one: `part` is not nothing.
fn step(steps: &[char], part: Span, whole: Span) -> char {
    let count = steps.len() as u128;
    let (part, whole) = (u128::from(part.ns()), u128::from(whole.ns()));
    let nearest = (2 * part * count + whole) / (2 * whole);
    let index = usize::try_from(nearest.clamp(1, count)).expect("there are few steps") - 1;
    steps[index]
}

/// Where a vCPU's periods begin and end, and which of them fell short.
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
        // A period ends where the next begins; the last in the window has no next one there.
        let column = window.column_of(period.end).unwrap_or(window.columns() - 1);
        line[column] = (alphabet.short, Hue::Short);
    }
    line
}

/// The letter of whoever had a CPU longest, large if mostly in time it was owed; or nobody.
fn holder(timeline: &Timeline, held: &[Held], length: Span) -> Option<(char, Hue)> {
    let total = |held: &Held| held.due + held.spare;
    let used: Span = held.iter().map(total).sum();
    // Of equals the one with the smaller id is named.
    let most = held.iter().min_by_key(|held| (std::cmp::Reverse(total(held)), held.vcpu))?;
    if length.left_after(used) > total(most) {
        return None;
    }
    let index = timeline.rows.iter().position(|row| row.vcpu == most.vcpu);
    let letter = index.map_or('?', letter);
    if most.due >= most.spare {
        Some((letter.to_ascii_uppercase(), Hue::Due))
    } else {
        Some((letter, Hue::Spare))
    }
}

/// Short names of vCPUs. Beyond `z` there are none.
fn letter(index: usize) -> char {
    ('a'..='z').nth(index).unwrap_or('*')
}

/// What the characters mean, as far as the picture can have them.
fn legend(timeline: &Timeline, alphabet: &Alphabet, canvas: &mut Canvas) {
    // Of what a column is filled to: the least and the most.
    let ends = |steps: &[char]| match steps {
        [first, .., last] => format!("{first}{last}"),
        _ => steps.iter().collect(),
    };
    let mut entries = vec![
        (ends(alphabet.due), Hue::Due, "ran, owed: a bit to all of a column (A: on its CPU)"),
        (ends(alphabet.spare), Hue::Spare, "ran, unclaimed (a)"),
    ];
    if timeline.knows.sleep {
        entries.push((ends(alphabet.waiting), Hue::Faint, "waiting (blank: asleep)"));
    }
    entries.push((alphabet.idle.to_string(), Hue::Faint, "CPU: mostly nobody"));
    if timeline.rows.len() > 26 {
        entries.push(("*".into(), Hue::Text, "a vCPU beyond z"));
    }
    if timeline.rows.iter().any(|row| !row.periods.is_empty()) {
        entries.push((alphabet.period.to_string(), Hue::Faint, "a period begins"));
        if timeline.knows.sleep {
            entries.push((alphabet.short.to_string(), Hue::Short, "the one before had less"));
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

/// What the picture cannot show.
fn remarks(timeline: &Timeline) -> Vec<String> {
    let mut remarks = Vec::new();
    if !timeline.knows.sleep {
        remarks.push("Blank is asleep or waiting: this host cannot tell which.".into());
    }
    if !timeline.knows.stretches {
        remarks.push("Use was measured now and then, and is drawn evenly in between.".into());
    }
    if let Some(ended) = timeline.ended.filter(|&ended| ended < timeline.window.end()) {
        remarks.push(format!("The run ended at {ended}."));
    }
    remarks
}

/// Text in the making.
struct Canvas {
    text: String,
    margin: usize,
    paint: Paint,
}

impl Canvas {
    /// A line with something in the margin. Blanks at its end are left out.
    fn line(&mut self, left: &str, hue: Hue, mut line: Line) {
        let width = self.margin - INDENT;
        let mut whole: Line = format!("{left:<width$}").chars().map(|c| (c, hue)).collect();
        whole.append(&mut line);
        self.indented(whole);
    }

    /// Goes on with words, which go on below, so far to the right, where the line has no room left.
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
