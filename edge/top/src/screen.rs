//! Drawing of a snapshot: title, CPUs, table of VMs, details and keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, TableState};

use crate::columns::{Column, fitting, percent};
use crate::{CpuLine, Snapshot, View, VmRow};

/// Maximum number of lines for CPUs. If there are more CPUs, their sum is shown.
const MAX_CPU_LINES: usize = 4;

/// Maximum number of lines for details.
const MAX_DETAILS: u16 = 10;

/// Draws a snapshot on a frame, according to the user's choices in `view`.
pub fn draw(frame: &mut Frame<'_>, snapshot: &Snapshot, view: &View) {
    let cpus = cpu_lines(&snapshot.cpus);
    let details = if view.has_details { detail_lines(snapshot, view) } else { Vec::new() };
    let length = |lines: &[String], most: u16| {
        Constraint::Length(u16::try_from(lines.len()).unwrap_or(most).min(most))
    };
    let [head, middle, table, below, foot] = Layout::vertical([
        Constraint::Length(1),
        length(&cpus, 4),
        Constraint::Min(2),
        length(&details, MAX_DETAILS),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(
        Paragraph::new(head_line(snapshot, view, head.width)).style(Modifier::BOLD),
        head,
    );
    frame.render_widget(lines(cpus), middle);
    draw_table(frame, table, snapshot, view);
    frame.render_widget(lines(details), below);
    frame.render_widget(foot_line(view), foot);
}

fn lines(lines: Vec<String>) -> Paragraph<'static> {
    Paragraph::new(lines.into_iter().map(Line::from).collect::<Vec<_>>())
}

fn head_line(snapshot: &Snapshot, view: &View, width: u16) -> String {
    if let Some(problem) = &snapshot.problem {
        return format!("! {problem}");
    }
    let mut right = snapshot.time.clone();
    match view.speed {
        0 => {}
        slower @ ..0 => right += &format!("  speed 1/{}", 1u32 << slower.unsigned_abs()),
        faster => right += &format!("  speed {}", 1u32 << faster),
    }
    if view.is_paused {
        right += "  paused";
    }
    // A title that is too long is cut.
    let room = usize::from(width).saturating_sub(right.chars().count() + 2);
    let left: String = snapshot.title.chars().take(room).collect();
    let padding =
        " ".repeat(usize::from(width).saturating_sub(left.chars().count() + right.chars().count()));
    format!("{left}{padding}{right}")
}

fn cpu_lines(cpus: &[CpuLine]) -> Vec<String> {
    let line = |name: String, cpu: &CpuLine| {
        let mut text = format!("{name:<8}");
        if let Some(used) = cpu.used_ppm {
            text += &format!(" used {:>8}", percent(Some(used)));
        }
        if let Some(reserved) = cpu.reserved_ppm {
            let capacity = percent(cpu.capacity_ppm);
            text += &format!("  reserved {:>8} of {capacity}", percent(Some(reserved)));
        }
        if let Some(overhead) = cpu.overhead_ppm {
            text += &format!("  overhead {}", percent(Some(overhead)));
        }
        text
    };
    if cpus.len() <= MAX_CPU_LINES {
        return cpus.iter().map(|cpu| line(format!("CPU {}", cpu.cpu), cpu)).collect();
    }
    let sum = |number: fn(&CpuLine) -> Option<u64>| cpus.iter().map(number).sum::<Option<u64>>();
    let all = CpuLine {
        cpu: 0,
        used_ppm: sum(|cpu| cpu.used_ppm),
        reserved_ppm: sum(|cpu| cpu.reserved_ppm),
        capacity_ppm: sum(|cpu| cpu.capacity_ppm),
        overhead_ppm: sum(|cpu| cpu.overhead_ppm),
    };
    vec![line(format!("{} CPUs", cpus.len()), &all)]
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot, view: &View) {
    let rows = view.rows(snapshot);
    let columns = fitting(area.width, &rows, view.sort);
    let widths = columns.iter().map(|column| Constraint::Length(column.width));
    let head = columns.iter().map(|column| aligned(column, column.heading));
    let head = Row::new(head).style(Style::new().add_modifier(Modifier::REVERSED));
    let selected = view.selected.as_deref();
    let at = rows.iter().position(|row| Some(&*row.name) == selected);
    let table = Table::new(rows.iter().map(|row| table_row(&columns, row)), widths)
        .header(head)
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::default().with_selected(at);
    frame.render_stateful_widget(table, area, &mut state);
}

/// Returns a row of the table. A VM with missed deadlines is red. A VM that does not receive its
/// reservation is yellow.
fn table_row(columns: &[Column], row: &VmRow) -> Row<'static> {
    let cells = columns.iter().map(|column| aligned(column, &column.cell(row)));
    let colour = match &*row.state {
        _ if row.missed.is_some_and(|missed| missed > 0) => Some(Color::Red),
        "" | "active" => None,
        _ => Some(Color::Yellow),
    };
    let style = colour.map_or(Style::new(), |colour| Style::new().fg(colour));
    Row::new(cells).style(style)
}

fn aligned(column: &Column, text: &str) -> Line<'static> {
    let line = Line::from(text.to_owned());
    if column.is_text { line.left_aligned() } else { line.right_aligned() }
}

fn detail_lines(snapshot: &Snapshot, view: &View) -> Vec<String> {
    let Some(name) = &view.selected else { return Vec::new() };
    let mut lines = vec![format!("-- {name}")];
    match &snapshot.details[..] {
        [] => lines.push("   its waiting time is not known yet".into()),
        details => lines.extend(details.iter().map(|line| format!("   {line}"))),
    }
    lines
}

fn foot_line(view: &View) -> Paragraph<'static> {
    let text = if view.is_typing {
        format!("filter: {}_  (Enter keeps the filter, Escape clears it)", view.filter)
    } else {
        let filter = if view.filter.is_empty() { "filter" } else { &view.filter };
        format!(
            "q quit  s sort: {}  / {filter}  Enter details  Space pause  +- speed",
            view.sort.word()
        )
    };
    Paragraph::new(text).style(Style::new().add_modifier(Modifier::DIM))
}
