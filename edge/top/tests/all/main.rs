//! Tests of the screen as text, and of the keys that change it.

use std::fmt::Write as _;
use std::path::Path;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use slackline_top::{CpuLine, Key, Snapshot, SortKey, View, VmRow, draw};
use slackline_units::Span;

/// Returns a row for a VM that reserves `reserved` percent of a CPU and uses `used` percent.
fn row(name: &str, reserved: u64, used: u64, missed: u64) -> VmRow {
    VmRow {
        name: name.into(),
        state: "active".into(),
        slice: Some(Span::from_us(reserved * 100)),
        period: Some(Span::from_ms(10)),
        is_exact: missed > 0,
        reserved_ppm: Some(reserved * 10_000),
        used_ppm: Some(used * 10_000),
        ready_ppm: Some(missed * 1_000),
        missed: Some(missed),
        deadlines: Some(1_000),
        culprit: (missed > 0).then(|| "process hog".to_owned()),
        ..VmRow::default()
    }
}

fn snapshot() -> Snapshot {
    let cpu = CpuLine {
        cpu: 1,
        used_ppm: None,
        reserved_ppm: Some(600_000),
        capacity_ppm: Some(900_000),
        overhead_ppm: Some(12_000),
    };
    let mut waiting = row("batch", 10, 0, 0);
    waiting.state = "waiting".into();
    Snapshot {
        title: "host h1, policy edf, 3 VMs".into(),
        time: "last 10s".into(),
        cpus: vec![cpu],
        rows: vec![waiting, row("db", 30, 29, 0), row("web", 20, 11, 60)],
        details: vec!["waited 1.2s in 1min, because of:".into(), " 97.0 %  process hog".into()],
        problem: None,
    }
}

/// Draws a screen and returns it as text. Spaces at the ends of lines are removed.
fn screen(width: u16, snapshot: &Snapshot, view: &View) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, 14)).unwrap();
    terminal.draw(|frame| draw(frame, snapshot, view)).unwrap();
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for line in buffer.content.chunks(width.into()) {
        let line: String = line.iter().map(ratatui::buffer::Cell::symbol).collect();
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Asserts that a screen equals the saved file called `name`. With `UPDATE=1`, writes the file.
#[track_caller]
fn is_as_saved(name: &str, screen: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/all/screens/{name}.txt"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, screen).unwrap();
    }
    assert_eq!(screen, std::fs::read_to_string(&file).unwrap(), "{}", file.display());
}

#[test]
fn top_screen_omits_the_least_important_columns_on_narrow_terminals() {
    let view = View::default();
    for width in [40, 80, 200] {
        is_as_saved(&format!("{width}-columns"), &screen(width, &snapshot(), &view));
    }
}

#[test]
fn top_screen_shows_causes_of_waiting_of_selected_vm() {
    let (snapshot, mut view) = (snapshot(), View::default());
    for key in [Key::Down, Key::Enter] {
        assert!(view.press(key, &snapshot));
    }
    assert_eq!(view.selected.as_deref(), Some("web"));
    is_as_saved("details", &screen(80, &snapshot, &view));
    assert!(view.press(Key::Escape, &snapshot));
    assert!(!screen(80, &snapshot, &view).contains("because of"));
}

#[test]
fn keys_pressed_in_top_screen_sort_and_filter_its_rows() {
    let (snapshot, mut view) = (snapshot(), View::default());
    let names = |view: &View| -> Vec<String> {
        view.rows(&snapshot).into_iter().map(|row| row.name).collect()
    };
    assert_eq!(names(&view), ["web", "batch", "db"]);
    view.press(Key::Char('s'), &snapshot);
    assert_eq!(
        (view.sort, &*names(&view)),
        (SortKey::Name, &["batch", "db", "web"].map(String::from)[..])
    );
    view.press(Key::Char('s'), &snapshot);
    assert_eq!(names(&view), ["db", "web", "batch"]);
    for key in [Key::Char('/'), Key::Char('q'), Key::Backspace, Key::Char('b'), Key::Enter] {
        view.press(key, &snapshot);
    }
    assert_eq!(names(&view), ["db", "web", "batch"]);
    view.press(Key::Char('/'), &snapshot);
    view.press(Key::Char('a'), &snapshot);
    view.press(Key::Enter, &snapshot);
    assert_eq!((view.is_over, names(&view)), (false, vec!["batch".to_owned()]));
    view.press(Key::Escape, &snapshot);
    assert_eq!(names(&view).len(), 3);
    view.press(Key::Char('q'), &snapshot);
    assert!(view.is_over);
}

#[test]
fn top_screen_shows_the_sort_column_even_if_blank() {
    let mut snapshot = snapshot();
    snapshot.rows.iter_mut().for_each(|row| row.ready_ppm = None);
    let mut view = View::default();
    assert!(!screen(80, &snapshot, &view).contains("ready"));
    view.sort = SortKey::Ready;
    for width in [40, 80] {
        let text = screen(width, &snapshot, &view);
        let head = text.lines().find(|line| line.starts_with("name")).unwrap();
        assert!(head.contains("ready"), "{width}: {text}");
    }
}

#[test]
fn top_screen_keeps_the_selected_vm_when_rows_change_places() {
    let (mut snapshot, mut view) = (snapshot(), View::default());
    view.press(Key::Down, &snapshot);
    assert_eq!(view.selected.as_deref(), Some("web"));
    snapshot.rows[2].missed = Some(0);
    assert_eq!(view.rows(&snapshot)[2].name, "web");
    assert_eq!(view.selected.as_deref(), Some("web"));
}

/// If the daemon does not answer, the screen keeps the last numbers.
#[test]
fn top_screen_shows_an_error_above_the_last_numbers_received() {
    let mut snapshot = snapshot();
    snapshot.problem = Some("no daemon answers at /run/slackline/socket".into());
    let text = screen(80, &snapshot, &View::default());
    assert!(text.starts_with("! no daemon answers"), "{text}");
    assert!(text.contains("web"), "{text}");
}

#[test]
fn top_screen_shows_sum_of_many_cpus_on_one_line() {
    let mut snapshot = snapshot();
    snapshot.cpus = vec![snapshot.cpus[0].clone(); 64];
    let text = screen(80, &snapshot, &View::default());
    assert!(text.contains("64 CPUs   reserved 3840.0 % of 5760.0 %"), "{text}");
}
