//! Thirty random changes of a running host. Each change is predicted from the last ten seconds,
//! applied, and compared with what the host then delivers. The benchmark runs the commands that a
//! user would run.

mod measured;

use std::fs::{self, File};
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
use measured::{MeasuredChange, VcpuResult};

/// Seed of the drawn changes.
const SEED: u128 = 36;

/// Length of the recording for a prediction, and length of the measurement after a change.
const WINDOW: &str = "10s";

/// Time after a change until the last ten seconds contain nothing from before the change.
const FILL: Duration = Duration::from_millis(10_500);

/// Time limit for the daemon to measure the result of a change.
const PATIENCE: Duration = Duration::from_secs(30);

/// Time limit of a command. A command that takes longer is killed.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// Maximum number of changes that are drawn for each change that is to be measured. More than one
/// can be needed: if the test machine stalled, the gate of `whatif` may find that the simulation
/// does not repeat the recording, and refuse the prediction. Then another change is drawn.
const TRIES: usize = 2;

/// Maximum CPU time that is reserved in total, in thousandths of a CPU.
const MOST_RESERVED: u64 = 850;

/// A VM of the benchmark: a process with a load and a reservation.
struct Guest {
    name: String,
    load: Load,
    slice_us: u64,
    period_us: u64,
    child: Child,
}

/// Load of a guest's process.
#[derive(Clone, Copy)]
enum Load {
    /// Computes all the time.
    Spin,
    /// Computes for the time `work` in each period.
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
        Ok(Guest { name: name.to_owned(), load, slice_us, period_us, child })
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

/// The daemon with its guests, and the generator from which changes are drawn.
struct Host<'a> {
    setting: &'a ServiceSetting,
    _daemon: Daemon<'a>,
    guests: Vec<Guest>,
    draws: Pcg64,
    /// Time of the last change of the host.
    changed: Instant,
    /// Time of the newest predictions, as the daemon states it.
    newest_ns: u64,
}

/// Predicts, makes and measures all changes. A change that is refused or cannot be measured is
/// noted with the reason, and another change is drawn.
pub(super) fn rows(setting: &ServiceSetting) -> Result<Vec<Row>> {
    let mut host = Host::start(setting)?;
    let mut made: Vec<MeasuredChange> = Vec::new();
    let mut failed = Vec::new();
    while made.len() < setting.changes && made.len() + failed.len() < setting.changes * TRIES {
        let change = host.draw();
        let what = host.describe(&change);
        let measured = host.predict(&change).and_then(|prediction| {
            let vcpus = host.make(&change, &prediction)?;
            Ok(MeasuredChange { what: what.clone(), vcpus })
        });
        match measured {
            Ok(measured) => {
                let row = measured.row();
                eprintln!("| {} | {} | {} |", made.len() + 1, row.what, row.got);
                made.push(measured);
            }
            Err(error) => {
                // The path of the plan differs between machines.
                let plan = setting.path("plan").display().to_string();
                let reason = format!("{error:#}").replace(['\n', '|'], " ").replace(&plan, "PLAN");
                eprintln!("| - | {what} | {reason} |");
                failed.push((what, reason));
            }
        }
    }
    measured::rows(&made, &failed)
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
        let (changed, newest_ns) = (Instant::now(), 0);
        let host = Host { setting, _daemon: daemon, guests, draws, changed, newest_ns };
        for guest in &host.guests {
            host.reserve(guest)?;
        }
        Ok(Host { changed: Instant::now(), ..host })
    }

    fn reserve(&self, guest: &Guest) -> Result<()> {
        let (slice, period) = (micros(guest.slice_us), micros(guest.period_us));
        let pid = format!("pid:{}", guest.child.id());
        let mut words = vec!["reserve", &guest.name, "--for", &pid, "--slice", &slice];
        words.extend(["--period", &period, "--exact"]);
        self.command(&words).map(|_| ())
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

    /// Asks for the prediction of a change, which is also written as a plan.
    fn predict(&mut self, change: &Change) -> Result<Value> {
        sleep(FILL.saturating_sub(self.changed.elapsed()));
        let plan = self.setting.path("plan").display().to_string();
        let mut words = vec!["whatif", "--since", WINDOW, "--json", "--save", &plan];
        let options = self.options(change);
        words.extend(options.iter().map(String::as_str));
        let predicted = self.command(&words).context("not predicted");
        // After a refusal, the next prediction waits for a recording that does not overlap this
        // one.
        self.changed = Instant::now();
        Ok(serde_json::from_str(&predicted?)?)
    }

    /// Makes a change, applies its plan, and returns the measured results. A plan cannot reserve
    /// for a process id, so `reserve` adds a VM and `release` removes a VM before the plan is
    /// applied. The plan then changes nothing more, but the daemon compares its predictions with
    /// what happens.
    fn make(&mut self, change: &Change, prediction: &Value) -> Result<Vec<VcpuResult>> {
        match *change {
            Change::Set { .. } => {}
            Change::Add { like } => {
                let Guest { load, slice_us, period_us, .. } = self.guests[like];
                let name = self.newcomer();
                let guest = Guest::start(self.setting, (&name, load), (slice_us, period_us))?;
                self.reserve(&guest)?;
                self.guests.push(guest);
            }
            Change::Remove { guest } => {
                self.command(&["release", &self.guests[guest].name])?;
                self.guests.remove(guest);
            }
        }
        let plan = self.setting.path("plan").display().to_string();
        let applied = self.command(&["apply", &plan]).context("not applied");
        self.changed = Instant::now();
        applied?;
        if let Change::Set { guest, slice_us, period_us } = *change {
            let guest = &mut self.guests[guest];
            (guest.slice_us, guest.period_us) = (slice_us, period_us);
        }
        self.results(prediction).context("not measured")
    }

    /// Waits until the daemon has measured the predicted values, and returns the results.
    fn results(&mut self, prediction: &Value) -> Result<Vec<VcpuResult>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            sleep(Duration::from_secs(1));
            let records: Value = serde_json::from_str(&self.command(&["predictions", "--json"])?)?;
            let records = records.as_array().context("predictions are a list")?;
            let times = records.iter().filter_map(|it| it["at_ns"].as_u64());
            let newest = times.max().filter(|newest| *newest > self.newest_ns);
            let last: Vec<&Value> =
                records.iter().filter(|it| it["at_ns"].as_u64() == newest).collect();
            if let Some(newest) = newest
                && last.iter().all(|it| !it["outcome"].is_null())
            {
                self.newest_ns = newest;
                return last.into_iter().map(|it| VcpuResult::read(prediction, it)).collect();
            }
            if Instant::now() >= deadline {
                self.newest_ns = newest.unwrap_or(self.newest_ns);
                let open = last.iter().filter(|it| it["outcome"].is_null());
                let open: Vec<&Value> = open.map(|it| &it["prediction"]["vcpu"]).collect();
                bail!("the daemon has not measured these shares in time: {open:?}");
            }
        }
    }

    /// Runs a command that must succeed within [`COMMAND_LIMIT`]. Returns its output.
    fn command(&self, words: &[&str]) -> Result<String> {
        let [out, said] = ["out", "said-by-command"].map(|name| self.setting.path(name));
        let mut command = Command::new(self.setting.slackline());
        command.args(words).arg("--socket").arg(self.setting.path("socket"));
        command.stdin(Stdio::null()).stdout(File::create(&out)?).stderr(File::create(&said)?);
        die_with_us(&mut command);
        let mut child = command.spawn()?;
        let deadline = Instant::now() + COMMAND_LIMIT;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() >= deadline {
                child.kill()?;
                child.wait()?;
                bail!("the command `{}` did not end within {COMMAND_LIMIT:?}", words.join(" "));
            }
            sleep(Duration::from_millis(5));
        };
        let said = fs::read_to_string(&said)?;
        ensure!(status.success(), "{}: {}", words.join(" "), said.trim_end());
        Ok(fs::read_to_string(&out)?)
    }
}

fn micros(us: u64) -> String {
    format!("{us}us")
}
