//! The culprits that `why` names. While a known program takes the CPU from a VM, `why` charges
//! waiting time to that program. The benchmark compares this time with the CPU time that the
//! program used. If signals stop the VM, it compares the charged time with the length of the stops.
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
use slackline_linux::sys::signal_process;
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

/// Measures five kinds of culprits one after another.
pub(super) fn rows(setting: &ServiceSetting) -> Result<Vec<Row>> {
    let daemon = setting.daemon(&[setting.last_cpu()], &[])?;
    let mut client = daemon.client()?;
    let victim = Processes::that_spin(1)?;
    let web = victim.pids().next().context("a process")?;
    allowed(|| client.reserve("web", &at_least(web)))?;
    sleep(Duration::from_secs(2));
    let mut measured = Vec::new();
    measured.push(beside_load(
        setting,
        &mut client,
        ("SCHED_FIFO process", "rt-hog"),
        (&["chrt", "-f", "50"], &["load", "clock", "--period", "40ms", "--compute", "10ms"]),
    )?);
    measured.push(beside_load(
        setting,
        &mut client,
        ("ordinary process", "cfs-hog"),
        (&[], &["load", "spin"]),
    )?);
    measured.push(beside_writer(setting, &mut client)?);
    measured.extend(beside_neighbour(&mut client)?);
    measured.push(stopped(&mut client, web)?);
    Ok(measured.iter().map(Charge::row).collect())
}

/// Time that was charged to a culprit, and the time for which the culprit had the CPU.
struct Charge {
    culprit: String,
    charged: Duration,
    used: Duration,
}

impl Charge {
    fn row(&self) -> Row {
        let percent = self.charged.as_secs_f64() / self.used.as_secs_f64() * 100.0;
        Row {
            what: format!("waiting time that `why` charges to: {}", self.culprit),
            got: format!("{percent:.2} % of {:.0} ms", self.used.as_secs_f64() * 1e3),
            promised: "95 to 105 %",
            holds: Some((percent - 100.0).abs() <= TOLERANCE),
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

/// Returns the charge for a program that runs on the CPU of the VM under the name `command`.
fn charge_of(client: &mut Client, pid: u32, (what, command): (&str, &str)) -> Result<Charge> {
    let is_it = |culprit: &CulpritTime| culprit.command.as_deref() == Some(command);
    let (used, before) = (cpu_time(pid)?, charged(client, is_it)?);
    sleep(LENGTH);
    let (used, after) = (cpu_time(pid)? - used, charged(client, is_it)?);
    Ok(Charge { culprit: what.to_owned(), charged: after.saturating_sub(before), used })
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
    charge_of(client, hog.pids().next().context("a process")?, (what, command))
}

/// Measures a program that waits for the disk after each block that it writes.
fn beside_writer(setting: &ServiceSetting, client: &mut Client) -> Result<Charge> {
    let out = format!("of={}", setting.path("written").display());
    let words = ["if=/dev/zero", &out, "bs=4k", "oflag=dsync", "status=none"];
    let writer = on_the_cpu(setting, &[], Path::new("dd"), &words)?;
    let pid = writer.pids().next().context("a process")?;
    charge_of(client, pid, ("program that writes to the disk and waits", "dd"))
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
        },
        Charge {
            culprit: "the reservation of that VM (30 % of the time)".into(),
            charged: after.1 - before.1,
            used: length.mul_f64(share),
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
    Ok(Charge { culprit: "a stop of the VM by a signal".into(), charged, used })
}
