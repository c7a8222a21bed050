//! Tests of `slackline top` on a pseudo-terminal.

use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{LocalModes, tcgetattr};

use crate::common::{Place, terminal};

/// The program on a pseudo-terminal with 20 lines of 100 columns.
struct Screen {
    child: std::process::Child,
    keys: std::fs::File,
    /// Local modes of the terminal, such as echo, before the program started.
    modes: LocalModes,
    bytes: Receiver<Vec<u8>>,
    /// State of the terminal, according to the bytes that were read so far.
    terminal: vt100::Parser,
}

impl Screen {
    fn start(place: &Place, arguments: &[&str]) -> Screen {
        let (outside, inside) = terminal();
        let size = rustix::termios::Winsize { ws_row: 20, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&inside, size).expect("a terminal's size");
        let modes = tcgetattr(&outside).expect("a terminal").local_modes;
        let mut command = place.command(arguments);
        command.env("TERM", "xterm").stdin(inside.try_clone().expect("a terminal"));
        command.stdout(inside.try_clone().expect("a terminal")).stderr(inside);
        let child = command.spawn().expect("the program can be started");
        drop(command);
        let (sender, bytes) = channel();
        let mut screen = outside.try_clone().expect("a terminal");
        std::thread::spawn(move || {
            let mut buffer = [0; 4_096];
            while let Ok(length @ 1..) = screen.read(&mut buffer) {
                let _ = sender.send(buffer[..length].to_vec());
            }
        });
        Screen { child, keys: outside, modes, bytes, terminal: vt100::Parser::new(20, 100, 0) }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the program reads keys");
    }

    /// Waits until the screen shows a text.
    #[track_caller]
    fn shows(&mut self, text: &str) {
        self.wait_until(text, |screen| screen.contents().contains(text));
    }

    #[track_caller]
    fn wait_until(&mut self, awaited: &str, is_so: impl Fn(&vt100::Screen) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so(self.terminal.screen()) {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(bytes) = self.bytes.recv_timeout(left) else {
                panic!("no `{awaited}` in\n{}", self.terminal.screen().contents());
            };
            self.terminal.process(&bytes);
        }
    }

    fn local_modes(&self) -> LocalModes {
        tcgetattr(&self.keys).expect("a terminal").local_modes
    }

    /// Waits for the end of the program with the exit code `code`. Asserts that it has left the
    /// alternate screen and restored the modes of the terminal.
    #[track_caller]
    fn ends_with(mut self, code: i32) {
        self.wait_until("the screen before `top`", |screen| !screen.alternate_screen());
        assert_eq!(self.child.wait().expect("the program ends").code(), Some(code));
        assert_eq!(self.local_modes(), self.modes, "echo and line mode are as before");
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const TWO: &str = r#"title = "two"
length = "3s"
policy = { name = "round-robin" }
[[domain]]
name = "web"
work = { kind = "spin" }
[[domain]]
name = "db"
work = { kind = "spin" }
"#;

#[test]
fn top_command_plays_trace_and_restores_terminal_when_quit() {
    let place = Place::new();
    place.write("it.toml", TWO.as_bytes());
    place.run(&["sim", "it.toml", "--save", "it.trace"]).ended_with(0);
    let mut screen = Screen::start(&place, &["top", "it.trace", "--interval", "200ms"]);
    screen.shows("50.0 %");
    assert!(screen.terminal.screen().alternate_screen());
    screen.press("+++++");
    screen.shows("3s of 3s");
    // Numbers of the last interval stay, and keys still work.
    screen.press("\r");
    screen.shows("-- db");
    screen.press("q");
    screen.ends_with(0);
}

#[test]
fn top_command_plays_perf_recording_and_names_causes_of_waiting() {
    let place = Place::with("");
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../import/tests/fixtures/perf.data");
    std::fs::copy(fixture, place.path("perf.data")).expect("a fixture");
    let mut screen = Screen::start(&place, &["top", "perf.data"]);
    screen.shows("perf.data recording, policy fair");
    screen.shows("web.0");
    screen.press("\r");
    screen.shows("process backup");
    screen.press("q");
    assert!(screen.child.wait().expect("the program ends").success());
}

#[test]
fn top_command_that_is_ended_by_signal_restores_the_terminal() {
    let place = Place::new();
    place.write("it.toml", TWO.as_bytes());
    place.run(&["sim", "it.toml", "--save", "it.trace"]).ended_with(0);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut screen = Screen::start(&place, &["top", "it.trace", "--sort", "name"]);
        screen.shows("sort: name");
        assert_ne!(screen.local_modes(), screen.modes, "`top` reads single keys");
        let pid = i32::try_from(screen.child.id()).expect("a process id");
        let pid = Pid::from_raw(pid).expect("a process id");
        kill_process(pid, signal).expect("the program runs");
        screen.ends_with(0);
    }
}

#[test]
fn top_command_requires_terminal_a_daemon_and_a_valid_interval() {
    let place = Place::new();
    place.run(&["top"]).ended_with(2).says("are not a terminal").says("hint:");
    place.run(&["top", "--interval", "1ms"]).ended_with(2).says("from 200ms to 60s");
    let mut screen = Screen::start(&place, &["top", "--socket", "none"]);
    screen.shows("error: ");
    assert!(!screen.terminal.screen().alternate_screen());
    assert_ne!(screen.child.wait().expect("the program ends").code(), Some(0));
}
