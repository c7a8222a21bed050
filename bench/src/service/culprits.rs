//! The culprits that `why` names. While a known program takes the CPU from a VM, `why` charges
//! waiting time to that program. The benchmark compares this time with the CPU time that the
//! program used. If signals stop the VM, it compares the charged time with the length of the stops.
//!
//! Most programs are compared with the scheduler's count of their CPU time. This count includes the
//! switch to the program. If another CPU wakes the program, the count begins at the wake, before
//! the CPU of the VM is interrupted. `why` counts the VM as running until the switch begins. So a
//! program that other CPUs wake is compared with a clock of the kernel's perf events, which runs
//! while the program has the CPU. This clock does not depend on the records of the daemon.
//!
//! The VM never blocks, so it waits whenever another thread runs on its CPU.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Signal;
use slackline_control::client::Client;
use slackline_control::{CulpritTime, ReservationParameters};
use slackline_linux::sys::{TaskClock, signal_process};
use slackline_units::Span;

use super::daemon::{Processes, ServiceSetting, allowed, cpu_time, tid, wanted};
use crate::report::Row;

/// Slice and period of each reservation. A VM also uses CPU time beyond its slice.
const SLICE: Span = Span::from_ms(30);
const PERIOD: Span = Span::from_ms(100);

/// Length of each measurement.
const LENGTH: Duration = Duration::from_secs(10);

/// Time for which the VM is stopped, and for which it then continues.
const STOPPED: Duration = Duration::from_millis(300);
const CONTINUED: Duration = Duration::from_millis(700);

/// Maximum difference between the charged and the used time, in percent of the used time.
const TOLERANCE: f64 = 5.0;

/// Measures six kinds of culprits one after another.
pub(super) fn rows(setting: &ServiceSetting) -> Result<Vec<Row>> {
    let daemon = setting.daemon(&[setting.last_cpu()], &[])?;
    let mut client = daemon.client()?;
    let victim = Processes::that_spin(1)?;
    let web = victim.pids().next().context("a process")?;
    allowed(|| client.reserve("web", &at_least(web)))?;
    sleep(Duration::from_secs(2));
    let mut charges = Vec::new();
    charges.push(beside_load(
        setting,
        &mut client,
        ("SCHED_FIFO process", "rt-hog"),
        (&["chrt", "-f", "50"], &["load", "clock", "--period", "40ms", "--compute", "10ms"]),
    )?);
    charges.push(beside_load(
        setting,
        &mut client,
        ("ordinary process", "cfs-hog"),
        (&[], &["load", "spin"]),
    )?);
    charges.push(beside_load(
        setting,
        &mut client,
        ("program that runs for 15 us, 4,000 times a second", "brief"),
        (&[], &["load", "clock", "--period", "250us", "--compute", "15us"]),
    )?);
    charges.extend(beside_writer(setting, &mut client)?);
    charges.extend(beside_neighbour(&mut client)?);
    charges.push(stopped(&mut client, web)?);
    Ok(charges.iter().map(Charge::row).collect())
}

/// Time that was charged to a culprit, and the time for which the culprit had the CPU.
struct Charge {
    culprit: String,
    charged: Duration,
    used: Duration,
    has_target: bool,
}

impl Charge {
    fn row(&self) -> Row {
        let percent = self.charged.as_secs_f64() / self.used.as_secs_f64() * 100.0;
        let holds = self.has_target.then_some((percent - 100.0).abs() <= TOLERANCE);
        Row {
            what: format!("waiting time that `why` charges to: {}", self.culprit),
            got: format!("{percent:.2} % of {:.0} ms", self.used.as_secs_f64() * 1e3),
            promised: if self.has_target { "95 to 105 %" } else { "(no target)" },
            holds,
        }
    }
}

/// Returns the parameters of a reservation without a hard limit.
fn at_least(pid: u32) -> ReservationParameters {
    ReservationParameters { exact: false, ..wanted(pid, SLICE, PERIOD) }
}

/// Returns the waiting time of the VM `web` in the last minute that is charged to culprits that
/// `is_it` selects.
fn charged(client: &mut Client, is_it: impl Fn(&CulpritTime) -> bool) -> Result<Duration> {
    let answer = allowed(|| client.why("web"))?;
    let culprits = answer.vcpus.iter().flat_map(|vcpu| &vcpu.culprits);
    let those = culprits.filter(|culprit| is_it(culprit)).map(|culprit| culprit.waited_ns);
    Ok(Duration::from_nanos(those.sum()))
}

/// Returns the charge for a program that runs on the CPU of the VM under the name `command`, for
/// each of `clocks`, which measure the CPU time of the program.
fn charges_of<const N: usize>(
    client: &mut Client,
    (what, command): (&str, &str),
    clocks: [&dyn Fn() -> Result<Duration>; N],
) -> Result<[Charge; N]> {
    let is_it = |culprit: &CulpritTime| culprit.command.as_deref() == Some(command);
    let read = || clocks.iter().map(|clock| clock()).collect::<Result<Vec<Duration>>>();
    let (began, before) = (read()?, charged(client, is_it)?);
    sleep(LENGTH);
    let (ended, after) = (read()?, charged(client, is_it)?);
    let (culprit, charged) = (what.to_owned(), after.saturating_sub(before));
    Ok(std::array::from_fn(|clock| {
        let used = ended[clock] - began[clock];
        Charge { culprit: culprit.clone(), charged, used, has_target: true }
    }))
}

/// Starts a program on the CPU of the VM. `class` are the words of a command that sets the
/// scheduling class and then executes the program.
fn on_the_cpu(
    setting: &ServiceSetting,
    class: &[&str],
    program: &Path,
    words: &[&str],
) -> Result<Processes> {
    let (cpu, program) = (setting.last_cpu().to_string(), program.display().to_string());
    let all = [&["-c", &cpu], class, &[&program], words].concat();
    let processes = Processes::of(1, Path::new("taskset"), &all)?;
    // Until the program is executed, the process has the name `taskset`.
    sleep(Duration::from_secs(1));
    Ok(processes)
}

/// Measures one load of `slackline load` with the words `load`, under the name `command`.
fn beside_load(
    setting: &ServiceSetting,
    client: &mut Client,
    (what, command): (&str, &str),
    (class, load): (&[&str], &[&str]),
) -> Result<Charge> {
    let program = setting.path(command);
    symlink(setting.slackline(), &program)?;
    let hog = on_the_cpu(setting, class, &program, load)?;
    let pid = hog.pids().next().context("a process")?;
    let [charge] = charges_of(client, (what, command), [&|| cpu_time(pid)])?;
    Ok(charge)
}

/// Measures a program that waits for the disk after each block that it writes: in comparison with
/// the time for which the program had the CPU, and with the scheduler's count of its CPU time.
fn beside_writer(setting: &ServiceSetting, client: &mut Client) -> Result<[Charge; 2]> {
    let out = format!("of={}", setting.path("written").display());
    let words = ["if=/dev/zero", &out, "bs=4k", "oflag=dsync", "status=none"];
    let writer = on_the_cpu(setting, &[], Path::new("dd"), &words)?;
    let pid = writer.pids().next().context("a process")?;
    let clock = TaskClock::open(tid(pid)?)?;
    let had_cpu = || Ok(Duration::from_nanos(clock.read()?.ns()));
    let what = "program that writes to the disk and waits";
    let clocks: [&dyn Fn() -> Result<Duration>; 2] = [&had_cpu, &|| cpu_time(pid)];
    let [of_clock, of_scheduler] = charges_of(client, (what, "dd"), clocks)?;
    let culprit = format!("{what}, of the CPU time that the scheduler counts");
    Ok([of_clock, Charge { culprit, has_target: false, ..of_scheduler }])
}

/// Measures a neighbour that uses more than its reservation: all its CPU time, and the part that is
/// within its reservation.
fn beside_neighbour(client: &mut Client) -> Result<[Charge; 2]> {
    let neighbour = Processes::that_spin(1)?;
    let pid = neighbour.pids().next().context("a process")?;
    allowed(|| client.reserve("db", &at_least(pid)))?;
    sleep(Duration::from_secs(1));
    let is_db = |culprit: &CulpritTime| culprit.vm.as_deref() == Some("db");
    let is_reserved = |culprit: &CulpritTime| is_db(culprit) && culprit.kind == "vm-reserved";
    let (used, began) = (cpu_time(pid)?, Instant::now());
    let before = (charged(client, is_db)?, charged(client, is_reserved)?);
    sleep(LENGTH);
    let (used, length) = (cpu_time(pid)? - used, began.elapsed());
    let after = (charged(client, is_db)?, charged(client, is_reserved)?);
    allowed(|| client.release("db", None))?;
    let share = SLICE.ns() as f64 / PERIOD.ns() as f64;
    Ok([
        Charge {
            culprit: "another VM that exceeds its reservation".into(),
            charged: after.0 - before.0,
            used,
            has_target: true,
        },
        Charge {
            culprit: "the reservation of that VM (30 % of the time)".into(),
            charged: after.1 - before.1,
            used: length.mul_f64(share),
            has_target: true,
        },
    ])
}

/// Stops the VM by a signal again and again.
fn stopped(client: &mut Client, web: u32) -> Result<Charge> {
    let is_it = |culprit: &CulpritTime| culprit.kind == "paused";
    let before = charged(client, is_it)?;
    let (began, mut used) = (Instant::now(), Duration::ZERO);
    while began.elapsed() < LENGTH {
        let stop = Instant::now();
        signal_process(tid(web)?, Signal::STOP)?;
        sleep(STOPPED);
        signal_process(tid(web)?, Signal::CONT)?;
        used += stop.elapsed();
        sleep(CONTINUED);
    }
    let charged = charged(client, is_it)?.saturating_sub(before);
    Ok(Charge { culprit: "a stop of the VM by a signal".into(), charged, used, has_target: true })
}
