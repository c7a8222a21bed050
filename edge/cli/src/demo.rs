//! `slackline demo`: a daemon with a web page, and four guests with the load of a simulated day,
//! which lasts two minutes.
//!
//! The daemon has a folder, a socket and an address of its own. When this process ends, even if it
//! is killed, the daemon and the guests end too, and the folder is removed.

use std::fmt::Write as _;
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use slackline_control::client::Client;
use slackline_control::{Length, ReservationParameters};
use slackline_linux::sys::{die_with_us, online_cpus};
use slackline_units::Span;

use crate::problem::Problem;
use crate::signals::stop_signal;
use crate::terminal;

/// Real time that an hour of the guests' simulated day takes.
const HOUR: Span = Span::from_secs(5);

/// Number of days for which the guests have work. Then the demo ends.
const DAYS: u64 = 7;

/// Time limit for the start of the daemon, and for its end.
const WITHIN: Duration = Duration::from_secs(20);

/// Folder in which the demo creates its own folder.
const FOLDERS: &str = "/run";

/// Run a demo: a daemon with four guests and a web page. Needs root.
///
/// The guests are processes. Their load changes as in the course of a day, but a day lasts two
/// minutes. The demo prints the address of the page and what to look at. Ctrl-C ends everything
/// that the demo has started.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// CPU to schedule [default: the last CPU].
    #[arg(long, value_name = "N")]
    pub(crate) cpu: Option<usize>,
    /// Address of the web page; port 0 stands for a free port.
    #[arg(long, value_name = "LOOPBACK:PORT", default_value = "127.0.0.1:0")]
    pub(crate) page: std::net::SocketAddr,
}

/// A guest: its reservation, and the CPU time that it needs in each period by hour of the day.
struct Guest {
    name: &'static str,
    slice: Span,
    period: Span,
    is_exact: bool,
    /// CPU time needed in each period, in percent of the period, by hour of the day.
    needs: fn(u64) -> u64,
}

const GUESTS: [Guest; 4] = [
    Guest {
        name: "game",
        slice: Span::from_ms(2),
        period: Span::from_ms(10),
        is_exact: true,
        needs: |hour| if (18..23).contains(&hour) { 26 } else { 8 },
    },
    Guest {
        name: "shop",
        slice: Span::from_ms(5),
        period: Span::from_ms(25),
        is_exact: true,
        needs: |hour| match hour {
            9..=11 => 16,
            12 | 13 => 19,
            14..=19 => 14,
            _ => 3,
        },
    },
    Guest {
        name: "mail",
        slice: Span::from_ms(2),
        period: Span::from_ms(40),
        is_exact: true,
        needs: |hour| if hour == 8 { 4 } else { 1 },
    },
    Guest {
        name: "backup",
        slice: Span::from_ms(20),
        period: Span::from_ms(100),
        is_exact: false,
        needs: |hour| if hour < 6 { 60 } else { 0 },
    },
];

/// Hours of the day at which the demo prints a sentence about what to look at.
const SCENES: [(u64, &str); 5] = [
    (0, "backup runs. Its reservation is 20 %, and it also uses slack"),
    (8, "mail is busy: its CPU time rises, and it waits for at most two periods"),
    (12, "shop is busy at noon, and uses nearly all of its 20 %"),
    (18, "game needs 26 % and has 20 %: drag the share of game until it misses no deadline"),
    (23, "the day ends. `Undo` brings back the former reservation"),
];

pub(crate) fn demo(args: &Demo) -> Result<(), Problem> {
    if !geteuid().is_root() {
        let message = "cannot schedule processes: the demo needs root".to_owned();
        return Err(Problem::HostCannot { message, hint: Some("run it with sudo".into()) });
    }
    let (stop, _raised) = stop_signal()?;
    let folder = DemoFolder::make()?;
    let cpu = match args.cpu {
        Some(cpu) => cpu,
        None => last_cpu()?,
    };
    let mut daemon = DemoDaemon::start(&folder, cpu, args.page)?;
    let mut client = daemon.connect(&folder)?;
    let mut guests = Vec::new();
    for guest in &GUESTS {
        guests.push(guest.start(&folder, &mut client)?);
    }
    let code = client.page_code()?.0;
    let address = code.address.unwrap_or_default();
    let (code, socket) = (code.code, folder.socket());
    terminal::say(&format!(
        "page:  {address}#{code}\n       open it in a browser within a minute\n       \
         to get a new address: slackline page --socket {}\nend:   Ctrl-C\n\n",
        socket.display()
    ))?;
    let began = Instant::now();
    for day in 0..DAYS {
        for (hour, says) in SCENES {
            let at = HOUR * (day * 24 + hour);
            if wait(stop.as_fd(), began + Duration::from_nanos(at.ns())) {
                return Ok(());
            }
            daemon.check()?;
            terminal::say(&format!("{hour:02}:00  {says}\n"))?;
        }
    }
    wait(stop.as_fd(), began + Duration::from_nanos((HOUR * (DAYS * 24)).ns()));
    Ok(())
}

/// Waits until a time. Returns true if a signal asks to stop before that time.
fn wait(stop: std::os::fd::BorrowedFd<'_>, until: Instant) -> bool {
    loop {
        let left = until.saturating_duration_since(Instant::now()).as_nanos();
        let (seconds, rest) = (left / 1_000_000_000, left % 1_000_000_000);
        let timeout = Timespec {
            tv_sec: i64::try_from(seconds).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(rest).unwrap_or(0),
        };
        match poll(&mut [PollFd::from_borrowed_fd(stop, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return false,
            Ok(_) => return true,
            // After an interruption, the next round waits again.
            Err(_) => {}
        }
    }
}

fn last_cpu() -> Result<usize, Problem> {
    let cannot = |source| Problem::Unreadable { file: "the list of CPUs".into(), source };
    let cpus = online_cpus().map_err(cannot)?;
    Ok(cpus.iter().last().map_or(0, slackline_units::CpuId::index))
}

/// Returns a command that runs this program. The kernel kills the new process when this one ends.
fn ourselves() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    die_with_us(&mut command);
    command
}

fn cannot_start(what: &str) -> impl Fn(std::io::Error) -> Problem {
    move |source| Problem::HostCannot {
        message: format!("cannot start {what}: {source}"),
        hint: None,
    }
}

/// Folder of the demo. A helper process removes it when this process has ended for any reason.
struct DemoFolder {
    path: PathBuf,
    remover: Child,
}

impl DemoFolder {
    fn make() -> Result<DemoFolder, Problem> {
        let unwritable = |source| Problem::Unwritable { file: FOLDERS.into(), source };
        let folder = tempfile::Builder::new().prefix("slackline-demo-").tempdir_in(FOLDERS);
        let path = folder.map_err(unwritable)?.keep();
        // The shell waits for the end of its input, which comes when this process ends. The daemon
        // has then ended, or ends within the second that the shell sleeps.
        let script = "trap '' INT TERM HUP; cat >/dev/null; sleep 1; rm -rf -- \"$0\"";
        let mut remover = Command::new("sh");
        remover.args(["-c", script]).arg(&path).stdin(Stdio::piped());
        let remover = remover.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(DemoFolder { remover: remover.map_err(cannot_start("sh"))?, path })
    }

    fn socket(&self) -> PathBuf {
        self.path.join("socket")
    }
}

impl Drop for DemoFolder {
    fn drop(&mut self) {
        drop(self.remover.stdin.take());
        let _ = self.remover.wait();
    }
}

/// The daemon process of the demo.
struct DemoDaemon {
    child: Child,
    errors: PathBuf,
}

impl DemoDaemon {
    fn start(
        folder: &DemoFolder,
        cpu: usize,
        page: std::net::SocketAddr,
    ) -> Result<DemoDaemon, Problem> {
        let prices = folder.path.join("prices.toml");
        let errors = folder.path.join("errors");
        let unwritable = |source| Problem::Unwritable { file: folder.path.clone(), source };
        fs::write(&prices, "currency = \"EUR\"\ncpu-hour = \"0.04\"\n").map_err(unwritable)?;
        let mut serve = ourselves();
        serve.args(["serve", "--cpus", &cpu.to_string(), "--page", &page.to_string()]);
        serve.arg("--state").arg(folder.path.join("state"));
        serve.arg("--socket").arg(folder.socket()).arg("--prices").arg(&prices);
        serve.stderr(fs::File::create(&errors).map_err(unwritable)?);
        let child = serve.spawn().map_err(cannot_start("the daemon"))?;
        Ok(DemoDaemon { child, errors })
    }

    /// Returns an error with the daemon's own message if the daemon has ended.
    fn check(&mut self) -> Result<(), Problem> {
        if !matches!(self.child.try_wait(), Ok(None)) {
            let said = fs::read_to_string(&self.errors).unwrap_or_default();
            let says = said.lines().rev().find_map(|line| line.strip_prefix("error: "));
            let message = says.map_or("the daemon of the demo has ended".into(), str::to_owned);
            let hint = "stop `slackline serve`, or use another CPU with `slackline demo --cpu N`";
            return Err(Problem::HostCannot { message, hint: Some(hint.into()) });
        }
        Ok(())
    }

    fn connect(&mut self, folder: &DemoFolder) -> Result<Client, Problem> {
        let began = Instant::now();
        loop {
            self.check()?;
            match Client::connect(&folder.socket()) {
                Ok(client) => return Ok(client),
                Err(error) if began.elapsed() > WITHIN => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }
}

impl Drop for DemoDaemon {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
        let began = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && began.elapsed() < WITHIN {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Process of a guest, which ends when this value is dropped.
struct GuestProcess(Child);

impl Drop for GuestProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Guest {
    /// Returns the times for which the guest runs and blocks, as CSV for `slackline load replay`.
    fn times(&self, days: u64) -> String {
        let mut text = "run_ns,block_ns\n".to_owned();
        let in_hour = HOUR / self.period;
        for hour in 0..days * 24 {
            let run = self.period.ns() * (self.needs)(hour % 24) / 100;
            for _ in 0..in_hour {
                // A guest without work still computes a little, like an idle system with a timer.
                let run = run.max(20_000);
                let _ = writeln!(text, "{run},{}", self.period.ns() - run);
            }
        }
        text
    }

    fn start(&self, folder: &DemoFolder, client: &mut Client) -> Result<GuestProcess, Problem> {
        let file: PathBuf = folder.path.join(self.name);
        let unwritable = |source| Problem::Unwritable { file: file.clone(), source };
        fs::write(&file, self.times(DAYS)).map_err(unwritable)?;
        let child = start_load(&file).map_err(cannot_start(self.name))?;
        let guest = GuestProcess(child);
        let wanted = ReservationParameters {
            slice: Some(Length(self.slice)),
            period: Some(Length(self.period)),
            exact: self.is_exact,
            binding: Some(format!("pid:{}", guest.0.id())),
            ..ReservationParameters::default()
        };
        client.reserve(self.name, &wanted)?;
        Ok(guest)
    }
}

fn start_load(file: &Path) -> std::io::Result<Child> {
    let mut load = ourselves();
    load.args(["load", "replay", "--file"]).arg(file).stderr(Stdio::null()).spawn()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_guests_fit_on_one_cpu_and_run_24_hours() {
        let shares: u64 = GUESTS.iter().map(|it| it.slice.ns() * 100 / it.period.ns()).sum();
        assert!(shares <= 80, "{shares} % are reserved");
        for guest in &GUESTS {
            let text = guest.times(1);
            let sum: u64 = text
                .lines()
                .skip(1)
                .flat_map(|line| line.split(','))
                .map(|part| part.parse::<u64>().unwrap())
                .sum();
            assert_eq!(Span::from_ns(sum), HOUR * 24, "{}", guest.name);
        }
        assert!(SCENES.is_sorted_by_key(|(hour, _)| *hour));
        let game = &GUESTS[0];
        let needs = (game.needs)(18) * game.period.ns() / 100;
        assert!(needs > game.slice.ns(), "game needs more than its slice at 18:00");
    }
}
