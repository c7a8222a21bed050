//! A real daemon under test, and requests to it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::Ran;
use super::live::{self, Live, Victim, wait_until};

/// Sends a request to a daemon. Returns the status and the body. `None` if the daemon does not
/// answer.
pub fn ask(socket: &Path, method: &str, path: &str, body: Option<&Value>) -> Option<(u16, Value)> {
    let (status, text) = ask_text(socket, method, path, body)?;
    Some((status, serde_json::from_str(&text).unwrap_or(Value::Null)))
}

/// Sends a request whose answer is not JSON, and returns the text of the answer.
pub fn ask_text(
    socket: &Path,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Option<(u16, String)> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let body = body.map(Value::to_string).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

/// A real daemon in the background. Its ledger and socket are in the folder of the test.
pub struct Daemon<'a> {
    live: &'a Live,
    child: Child,
}

impl<'a> Daemon<'a> {
    /// Starts a daemon and waits until it answers.
    #[track_caller]
    pub fn start(live: &'a Live) -> Daemon<'a> {
        Daemon::start_in(live, "state")
    }

    #[track_caller]
    pub fn start_in(live: &'a Live, state: &str) -> Daemon<'a> {
        let mut daemon = Daemon { live, child: spawn(live, state, "socket") };
        wait_until("the daemon to answer", || {
            assert!(
                daemon.child.try_wait().unwrap().is_none(),
                "the daemon ended: {}",
                daemon.said()
            );
            daemon.try_ask("GET", "/v1/host", None).is_some()
        });
        daemon
    }

    /// Starts a daemon with the given command. Prints a note and returns `None` if the daemon ends
    /// before it answers.
    pub fn start_by(live: &'a Live, mut command: Command) -> Option<Daemon<'a>> {
        let err = File::create(live.place.path("err")).unwrap();
        command.stdout(Stdio::null()).stderr(err);
        let mut daemon = Daemon { live, child: command.spawn().ok()? };
        wait_until("the daemon to answer or to end", || {
            daemon.try_ask("GET", "/v1/host", None).is_some()
                || daemon.child.try_wait().unwrap().is_some()
        });
        if daemon.child.try_wait().unwrap().is_some() {
            println!("the daemon ended: {}", daemon.said());
            return None;
        }
        Some(daemon)
    }

    /// Starts a daemon that reads users' groups from the file `groups`. `None` if the file cannot
    /// be mounted over the host's own.
    pub fn start_with_groups(live: &'a Live, groups: &Path) -> Option<Daemon<'a>> {
        let serve = live.command(&["serve", "--cpus", &live.cpu(), "--state", "state"]);
        let script = "mount --bind \"$0\" /etc/group && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(groups).arg(serve.get_program());
        command.args(serve.get_args()).args(["--socket", "socket"]);
        command.envs(serve.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command.current_dir(live.place.path(""));
        let daemon = Daemon::start_by(live, command);
        if daemon.is_none() {
            println!("skipped: needs unshare and the right to mount");
        }
        daemon
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub fn said(&self) -> String {
        String::from_utf8_lossy(&self.live.place.read("err")).into_owned()
    }

    /// Sends a request to the daemon's socket once. `None` if the daemon does not answer.
    pub fn try_ask(&self, method: &str, path: &str, body: Option<&Value>) -> Option<(u16, Value)> {
        ask(&self.live.place.path("socket"), method, path, body)
    }

    /// Sends a request until the daemon answers it. Requests can fail while the daemon replaces its
    /// front process, which parses requests, or while the rate limit is exceeded.
    #[track_caller]
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let mut answer = None;
        wait_until("an answer", || {
            answer = self.try_ask(method, path, body);
            answer.as_ref().is_some_and(|(status, _)| *status != 429)
        });
        answer.unwrap()
    }

    #[track_caller]
    pub fn reserve(&self, name: &str, victim: &Victim, slice: &str) -> (u16, Value) {
        let body = json!({
            "slice": slice, "period": "10ms", "exact": true, "for": format!("pid:{}", victim.pid()),
        });
        self.ask("PUT", &format!("/v1/reservations/{name}"), Some(&body))
    }

    #[track_caller]
    pub fn one(&self, name: &str) -> Value {
        let (status, body) = self.ask("GET", &format!("/v1/reservations/{name}"), None);
        assert_eq!(status, 200, "{body}");
        body
    }

    /// Runs a command that sends a request to the daemon.
    pub fn run(&self, command: &str) -> Ran {
        let words: Vec<&str> = command.split(' ').chain(["--socket", "socket"]).collect();
        self.live.run(&words)
    }

    /// Returns the daemon's process whose command line contains this word.
    pub fn process_of(&self, word: &str) -> Option<i32> {
        self.live.processes_of(word).first().copied()
    }

    /// Ends the daemon with SIGTERM, and returns its result.
    #[track_caller]
    pub fn end(mut self) -> Ran {
        live::kill(self.pid(), Signal::TERM);
        wait_until("the daemon to end", || self.child.try_wait().unwrap().is_some());
        let code = self.child.wait().unwrap().code();
        Ran { code, out: String::new(), err: self.said() }
    }

    /// Kills the daemon with SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a daemon for the last CPU, without waiting until it answers requests.
pub fn spawn(live: &Live, state: &str, socket: &str) -> Child {
    spawn_on(&live.cpu(), live, state, socket)
}

/// Starts a daemon for the CPU `cpu`, without waiting until it answers requests.
pub fn spawn_on(cpu: &str, live: &Live, state: &str, socket: &str) -> Child {
    let mut command = live.command(&["serve", "--cpus", cpu, "--state", state, "--socket", socket]);
    let err = File::create(live.place.path("err")).unwrap();
    command.stdout(Stdio::null()).stderr(err).spawn().unwrap()
}

/// A fake VM: a process with the command line and the thread name of a VM.
pub struct Machine(pub Child);

impl Machine {
    pub fn start(name: &str) -> Machine {
        Machine::start_by(name, 0)
    }

    pub fn start_by(name: &str, user: u32) -> Machine {
        Machine::start_with(&["-name", name], user)
    }

    /// Starts a fake VM with these options.
    pub fn start_with(options: &[&str], user: u32) -> Machine {
        let script = "echo 'CPU 0/TCG' > /proc/$$/comm; while :; do :; done";
        let mut command = Command::new("sh");
        command.arg0("qemu-system-x86_64").args(["-c", script]).args(options);
        command.uid(user);
        slackline_linux::sys::die_with_us(&mut command);
        Machine(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
