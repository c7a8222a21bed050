//! Main loop of the screen on a terminal.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use crate::{Key, Snapshot, View, draw};

/// Maximum time until a new snapshot or a signal is noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The user's choices, which a source follows. They are shared with the thread of the source.
#[derive(Clone, Debug, Default)]
pub struct Steering(Arc<Mutex<View>>);

impl Steering {
    /// Returns the current choices of the user.
    #[must_use]
    pub fn view(&self) -> View {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, view: &View) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone_from(view);
    }
}

/// Shows the snapshots of a source until the user quits or `stop` is set. The terminal is restored
/// in the end, also after a panic.
///
/// # Errors
/// If the terminal cannot be read or written.
pub fn run(
    updates: &Receiver<Snapshot>,
    steering: &Steering,
    view: View,
    stop: &AtomicBool,
) -> io::Result<()> {
    steering.set(&view);
    let mut terminal = ratatui::try_init()?;
    let result = show(&mut terminal, updates, steering, view, stop);
    let restored = ratatui::try_restore();
    result.and(restored)
}

fn show(
    terminal: &mut DefaultTerminal,
    updates: &Receiver<Snapshot>,
    steering: &Steering,
    mut view: View,
    stop: &AtomicBool,
) -> io::Result<()> {
    let mut snapshot = Snapshot { time: "waiting for numbers".into(), ..Snapshot::default() };
    let mut is_changed = true;
    while !view.is_over && !stop.load(Ordering::Relaxed) {
        is_changed |= take_newest(updates, &mut snapshot);
        if is_changed {
            terminal.draw(|frame| draw(frame, &snapshot, &view))?;
            is_changed = false;
        }
        if !event::poll(POLL_INTERVAL)? {
            continue;
        }
        match event::read()? {
            Event::Resize(..) => is_changed = true,
            Event::Key(pressed) if pressed.kind != KeyEventKind::Release => {
                let is_control = pressed.modifiers.contains(KeyModifiers::CONTROL);
                let key = key_of(pressed.code, is_control);
                is_changed |= key.is_some_and(|key| view.press(key, &snapshot));
                steering.set(&view);
            }
            _ => {}
        }
    }
    view.is_over = true;
    steering.set(&view);
    Ok(())
}

/// Takes the newest snapshot that has arrived. Returns true if it differs from the snapshot on the
/// screen.
fn take_newest(updates: &Receiver<Snapshot>, snapshot: &mut Snapshot) -> bool {
    let newest = updates.try_iter().last();
    let Some(newest) = newest.filter(|newest| newest != snapshot) else { return false };
    *snapshot = newest;
    true
}

fn key_of(code: KeyCode, is_control: bool) -> Option<Key> {
    Some(match code {
        KeyCode::Char('c') if is_control => Key::Interrupt,
        KeyCode::Char(_) if is_control => return None,
        KeyCode::Char(character) => Key::Char(character),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}
