//! Thirty random changes of a running host. Each change is predicted from the last ten seconds,
//! applied, and compared with what the host then delivers. The benchmark runs the commands that a
//! user would run.

mod group;
mod measured;

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rand_core::Rng;
use rand_pcg::Pcg64;
use serde_json::Value;
use slackline_linux::sys::die_with_us;

use super::daemon::{Daemon, ServiceSetting};
use crate::report::Row;
use group::GuestGroup;
use measured::{MeasuredChange, VcpuResult};

/// Number of changes that are drawn.
const CHANGES: usize = 30;

/// Seed of the drawn changes.
const SEED: u128 = 36;

/// Length of the recording for a prediction, and length of the measurement after a change.
const WINDOW: &str = "10s";

/// Time after a change until the last ten seconds contain nothing from before the change.
const FILL: Duration = Duration::from_millis(10_500);

/// Time limit for the daemon to measure the result of a change.
const PATIENCE: Duration = Duration::from_secs(40);

/// Maximum number of recordings for one prediction. The gate of `whatif` checks that a simulation
/// repeats a recording, and may refuse a recording in which the test machine stalled.
const TRIES: usize = 3;

/// Maximum CPU time that is reserved in total, in thousandths of a CPU.
const MOST_RESERVED: u64 = 850;

/// A VM of the benchmark: a process with a load and a reservation.
struct Guest {
    name: String,
    load: Load,
    slice_us: u64,
    period_us: u64,
    child: Child,
    /// Cgroup of the process, for a guest that a plan added. Dropped after the process has ended.
    group: Option<GuestGroup>,
}

/// Load of a guest's process.
#[derive(Clone, Copy)]
enum Load {
    /// Computes all the time.
    Spin,
    /// Computes for a part of each period.
    Periodic { period: &'static str, work: &'static str },
}

impl Guest {
    fn start(
        setting: &ServiceSetting,
        (name, load): (&str, Load),
        (slice_us, period_us): (u64, u64),
    ) -> Result<Guest> {
        let mut command = Command::new(setting.slackline());
        command.arg("load");
        match load {
            Load::Spin => command.arg("spin"),
            Load::Periodic { period, work } => {
                command.args(["periodic", "--period", period, "--work", work])
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::null());
        die_with_us(&mut command);
        let child = command.spawn()?;
        Ok(Guest { name: name.to_owned(), load, slice_us, period_us, child, group: None })
    }

    /// Returns the reserved CPU time in thousandths of a CPU.
    fn share(&self) -> u64 {
        self.slice_us * 1000 / self.period_us
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A change of the host, in the form of an option of `whatif`.
enum Change {
    Set { guest: usize, slice_us: u64, period_us: u64 },
    Add { like: usize },
    Remove { guest: usize },
}

/// The daemon with its guests, and the drawn numbers.
struct Host<'a> {
    setting: &'a ServiceSetting,
    _daemon: Daemon<'a>,
    guests: Vec<Guest>,
    draws: Pcg64,
}

/// Predicts, makes and measures all changes.
pub(super) fn rows(setting: &ServiceSetting) -> Result<Vec<Row>> {
    let mut host = Host::start(setting)?;
    let mut made = Vec::with_capacity(CHANGES);
    let mut refused = Vec::new();
    while made.len() + refused.len() < CHANGES {
        let change = host.draw();
        let what = host.describe(&change);
        match host.predict(&change)? {
            Ok(prediction) => made.push(host.make(&change, &what, &prediction)?),
            Err(reason) => refused.push(format!("{what}: {reason}")),
        }
        if let Some(last) = made.last() {
            eprintln!("{} of {CHANGES}: {}", made.len() + refused.len(), last.what);
        }
    }
    measured::rows(&made, &refused)
}

impl<'a> Host<'a> {
    fn start(setting: &'a ServiceSetting) -> Result<Host<'a>> {
        let daemon = setting.daemon(&[setting.last_cpu()], &[])?;
        let web = Load::Periodic { period: "10ms", work: "2ms" };
        let game = Load::Periodic { period: "20ms", work: "3ms" };
        let guests = vec![
            Guest::start(setting, ("web", web), (3_000, 10_000))?,
            Guest::start(setting, ("db", Load::Spin), (2_000, 10_000))?,
            Guest::start(setting, ("batch", Load::Spin), (5_000, 50_000))?,
            Guest::start(setting, ("game", game), (4_000, 20_000))?,
        ];
        let draws = Pcg64::new(SEED, 1);
        let host = Host { setting, _daemon: daemon, guests, draws };
        for guest in &host.guests {
            let (slice, period) = (micros(guest.slice_us), micros(guest.period_us));
            let pid = format!("pid:{}", guest.child.id());
            host.command(&[
                "reserve",
                &guest.name,
                "--for",
                &pid,
                "--slice",
                &slice,
                "--period",
                &period,
                "--exact",
            ])?;
        }
        Ok(host)
    }

    /// Draws a change that has an effect and does not exceed the capacity.
    fn draw(&mut self) -> Change {
        loop {
            let guest = self.below(self.guests.len());
            let rest: u64 = self.guests.iter().map(Guest::share).sum();
            match self.below(10) {
                0 if self.guests.len() > 4 => {
                    return Change::Remove { guest: self.guests.len() - 1 };
                }
                1 | 2
                    if self.guests.len() < 6
                        && rest + self.guests[guest].share() <= MOST_RESERVED =>
                {
                    return Change::Add { like: guest };
                }
                3..10 => {
                    let period_us = [5_000, 10_000, 20_000, 50_000, 100_000][self.below(5)];
                    let share = 50 + 10 * self.below(36) as u64;
                    let others = rest - self.guests[guest].share();
                    let is_other = share.abs_diff(self.guests[guest].share()) >= 20;
                    if is_other && others + share <= MOST_RESERVED {
                        let slice_us = period_us * share / 1000;
                        return Change::Set { guest, slice_us, period_us };
                    }
                }
                _ => {}
            }
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.draws.next_u64() % limit as u64).unwrap_or(0)
    }

    fn describe(&self, change: &Change) -> String {
        match change {
            Change::Set { guest, slice_us, period_us } => {
                let Guest { name, slice_us: slice, period_us: period, .. } = &self.guests[*guest];
                let (slice, period) = (micros(*slice), micros(*period));
                format!("{name} {slice}/{period} to {}/{}", micros(*slice_us), micros(*period_us))
            }
            Change::Add { like } => format!("a VM like {} is added", self.guests[*like].name),
            Change::Remove { guest } => format!("{} leaves", self.guests[*guest].name),
        }
    }

    /// Returns the options of `whatif` that describe a change.
    fn options(&self, change: &Change) -> Vec<String> {
        match change {
            Change::Set { guest, slice_us, period_us } => {
                let name = &self.guests[*guest].name;
                let set = |field, value: &u64| format!("--set={name}.{field}={}", micros(*value));
                vec![set("slice", slice_us), set("period", period_us)]
            }
            Change::Add { like } => {
                vec![
                    format!("--add={}", self.newcomer()),
                    format!("--like={}", self.guests[*like].name),
                ]
            }
            Change::Remove { guest } => vec![format!("--remove={}", self.guests[*guest].name)],
        }
    }

    /// Returns a name that no guest has.
    fn newcomer(&self) -> String {
        let is_free = |name: &String| self.guests.iter().all(|guest| guest.name != *name);
        (1..).map(|nth| format!("more{nth}")).find(is_free).unwrap_or_default()
    }

    /// Asks for the prediction of a change, which is also written as a plan. Returns the reason if
    /// every recording is refused.
    fn predict(&self, change: &Change) -> Result<Result<Value, String>> {
        let plan = self.setting.path("plan").display().to_string();
        let mut reason = String::new();
        for _ in 0..TRIES {
            sleep(FILL);
            let mut words = vec!["whatif", "--since", WINDOW, "--json", "--save", &plan];
            let options = self.options(change);
            words.extend(options.iter().map(String::as_str));
            let output = self.output(&words)?;
            if output.status.success() {
                return Ok(Ok(serde_json::from_slice(&output.stdout)?));
            }
            let said = String::from_utf8_lossy(&output.stderr);
            reason = said.lines().next().unwrap_or("no reason").to_owned();
            eprintln!("refused: {}", said.trim_end());
        }
        Ok(Err(reason))
    }

    /// Applies the plan of a change, and waits for the measured results.
    fn make(&mut self, change: &Change, what: &str, prediction: &Value) -> Result<MeasuredChange> {
        let plan = self.setting.path("plan");
        let mut words = vec!["apply".to_owned(), plan.display().to_string()];
        match *change {
            Change::Set { guest, slice_us, period_us } => {
                let guest = &mut self.guests[guest];
                (guest.slice_us, guest.period_us) = (slice_us, period_us);
            }
            Change::Add { like } => {
                let Guest { load, slice_us, period_us, .. } = self.guests[like];
                let name = self.newcomer();
                let mut guest = Guest::start(self.setting, (&name, load), (slice_us, period_us))?;
                let group = guest.group.insert(GuestGroup::with(&name, guest.child.id())?);
                let text = fs::read_to_string(&plan)?;
                let head = format!("[{name}]\n");
                ensure!(text.contains(&head), "the plan has no table {head}");
                let bound = format!("{head}for = \"cgroup:{}\"\n", group.path().display());
                fs::write(&plan, text.replace(&head, &bound))?;
                self.guests.push(guest);
            }
            Change::Remove { .. } => words.push("--prune".to_owned()),
        }
        self.command(&words.iter().map(String::as_str).collect::<Vec<_>>())?;
        if let Change::Remove { guest } = *change {
            self.guests.remove(guest);
        }
        let vcpus = self.results(prediction)?;
        Ok(MeasuredChange { what: what.to_owned(), vcpus })
    }

    /// Waits until the daemon has measured the predicted values, and returns the results.
    fn results(&self, prediction: &Value) -> Result<Vec<VcpuResult>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            sleep(Duration::from_secs(1));
            let records: Value = serde_json::from_str(&self.command(&["predictions", "--json"])?)?;
            let records = records.as_array().context("predictions are a list")?;
            let newest = records.iter().filter_map(|it| it["at_ns"].as_u64()).max();
            let last: Vec<&Value> =
                records.iter().filter(|it| it["at_ns"].as_u64() == newest).collect();
            if !last.is_empty() && last.iter().all(|it| !it["outcome"].is_null()) {
                return last.into_iter().map(|it| VcpuResult::read(prediction, it)).collect();
            }
            ensure!(
                Instant::now() < deadline,
                "the daemon has not measured all shares in time: {last:?}"
            );
        }
    }

    fn output(&self, words: &[&str]) -> Result<std::process::Output> {
        let mut command = Command::new(self.setting.slackline());
        command.args(words).arg("--socket").arg(self.setting.path("socket"));
        Ok(command.stdin(Stdio::null()).output()?)
    }

    /// Runs a command that must succeed. Returns its output.
    fn command(&self, words: &[&str]) -> Result<String> {
        let output = self.output(words)?;
        if !output.status.success() {
            bail!("{}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim_end());
        }
        Ok(String::from_utf8(output.stdout)?)
    }
}

fn micros(us: u64) -> String {
    format!("{us}us")
}
