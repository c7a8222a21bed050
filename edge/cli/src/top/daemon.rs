//! Source of the numbers on the screen of `slackline top`: the daemon.

use std::sync::mpsc::SyncSender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use slackline_control::client::{Client, ClientError};
use slackline_control::{Culprits, Host, Reservation};
use slackline_top::{CpuLine, Snapshot, Steering, VmRow};
use slackline_units::Span;

use super::ready::WaitSamples;
use crate::problem::Problem;
use crate::service::args::DaemonArgs;
use crate::service::{all, connect};

/// Interval at which the thread reads which VM the user has selected, and if the user has quit.
const STEP: Duration = Duration::from_millis(50);

/// Interval of queries for the culprits of the selected VM's waiting time. An answer covers a
/// minute, and costs the daemon more than a list of reservations.
const CULPRITS_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum number of lines of culprits.
const CULPRITS: usize = 8;

/// Queries the daemon at each interval, on a thread that ends when the user quits.
pub(super) fn ask(
    at: &DaemonArgs,
    interval: Span,
    steering: Steering,
    updates: SyncSender<Snapshot>,
) -> Result<JoinHandle<Result<(), Problem>>, Problem> {
    let mut client = connect(at)?;
    // A daemon that refuses is reported before the screen is cleared.
    let first = snapshot(&mut client)?;
    let (at, client, waits) = (at.clone(), Some(client), WaitSamples::default());
    let mut asker = Asker { at, client, selected: None, waits, shown: first };
    Ok(thread::spawn(move || {
        asker.run(Duration::from_nanos(interval.ns()), &steering, &updates);
        Ok(())
    }))
}

struct Asker {
    at: DaemonArgs,
    /// Connection to the daemon. `None` while the daemon does not answer.
    client: Option<Client>,
    /// Selected VM, the time of the last query for its culprits, and the answer.
    selected: Option<(String, Instant, Option<Culprits>)>,
    waits: WaitSamples,
    shown: Snapshot,
}

impl Asker {
    fn run(&mut self, interval: Duration, steering: &Steering, updates: &SyncSender<Snapshot>) {
        let mut next = Instant::now() + interval;
        if updates.send(self.shown.clone()).is_err() {
            return;
        }
        loop {
            thread::sleep(STEP);
            let view = steering.view();
            if view.is_over {
                return;
            }
            let is_new = view.has_details && self.is_to_ask(view.selected.as_deref());
            if is_new {
                self.ask_culprits(view.selected.as_deref());
            }
            if Instant::now() >= next && !view.is_paused {
                next = Instant::now() + interval;
                self.ask();
            } else if !is_new {
                continue;
            }
            self.add_culprits();
            if updates.send(self.shown.clone()).is_err() {
                return;
            }
        }
    }

    /// Queries all reservations. If the daemon does not answer, the last numbers stay on the
    /// screen, with the reason.
    fn ask(&mut self) {
        let client = match self.client.take() {
            Some(client) => Ok(client),
            None => connect(&self.at),
        };
        let answered = client.and_then(|mut client| {
            let snapshot = snapshot(&mut client)?;
            // Without metrics, only the selected VM has a value of CPU ready.
            if let Ok(metrics) = client.page("/metrics") {
                self.waits.add(Instant::now(), &metrics.0);
            }
            Ok((client, snapshot))
        });
        match answered {
            Ok((client, snapshot)) => {
                (self.client, self.shown) = (Some(client), snapshot);
                for row in &mut self.shown.rows {
                    row.ready_ppm = self.waits.ready_ppm(&row.name);
                }
            }
            Err(problem) => self.shown.problem = Some(problem.to_string()),
        }
    }

    fn is_to_ask(&self, name: Option<&str>) -> bool {
        match (&self.selected, name) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some((asked, at, _)), Some(name)) => {
                asked != name || at.elapsed() >= CULPRITS_INTERVAL
            }
        }
    }

    fn ask_culprits(&mut self, name: Option<&str>) {
        let (Some(name), Some(client)) = (name, &mut self.client) else { return };
        let answered = match client.why(name) {
            Ok((culprits, _)) => Some(culprits),
            // The recorder is off, or the VM is gone. The rest of the screen stays.
            Err(ClientError::Refused(_)) => None,
            Err(error) => {
                self.shown.problem = Some(Problem::from(error).to_string());
                self.client = None;
                None
            }
        };
        self.selected = Some((name.to_owned(), Instant::now(), answered));
    }

    /// Adds the culprits of the selected VM to the numbers.
    fn add_culprits(&mut self) {
        let Some((name, _, Some(culprits))) = &self.selected else { return };
        let waited: u64 = culprits.vcpus.iter().map(|vcpu| vcpu.waited_ns).sum();
        let length: u64 = culprits.vcpus.iter().map(|vcpu| culprits.recorded_ns(vcpu)).sum();
        self.shown.details = lines(culprits);
        if let Some(row) = self.shown.rows.iter_mut().find(|row| row.name == *name) {
            row.ready_ppm = row.ready_ppm.or(part(waited, length));
            row.culprit = largest(culprits);
        }
    }
}

/// Returns a part in millionths of `whole`. `None` if `whole` is zero.
fn part(part: u64, whole: u64) -> Option<u64> {
    u64::try_from((u128::from(part) * 1_000_000).checked_div(u128::from(whole))?).ok()
}

/// Returns the waiting times of all vCPUs of a VM by culprit, the largest first.
fn sums(culprits: &Culprits) -> Vec<(u64, &str)> {
    let mut sums: Vec<(u64, &str)> = Vec::new();
    for culprit in culprits.vcpus.iter().flat_map(|vcpu| &vcpu.culprits) {
        match sums.iter_mut().find(|(_, says)| *says == culprit.says) {
            Some((ns, _)) => *ns += culprit.waited_ns,
            None => sums.push((culprit.waited_ns, &culprit.says)),
        }
    }
    sums.sort_by_key(|(ns, _)| std::cmp::Reverse(*ns));
    sums
}

/// Returns the culprit with the largest waiting time. `None` if the VM never waited.
fn largest(culprits: &Culprits) -> Option<String> {
    let sums = sums(culprits);
    sums.first().filter(|(ns, _)| *ns > 0).map(|(_, says)| (*says).to_owned())
}

/// Returns a line of text for each culprit.
pub(super) fn lines(culprits: &Culprits) -> Vec<String> {
    let waited: u64 = culprits.vcpus.iter().map(|vcpu| vcpu.waited_ns).sum();
    let rounded = |ns: u64| Span::from_ms((ns + 500_000) / 1_000_000);
    let recorded = culprits.vcpus.iter().map(|vcpu| culprits.recorded_ns(vcpu));
    let length = rounded(recorded.max().unwrap_or(culprits.length_ns));
    let mut lines = vec![format!("waited {} in {length}, because of:", rounded(waited))];
    for (ns, says) in sums(culprits).into_iter().take(CULPRITS) {
        let tenths = part(ns, waited).unwrap_or(0) / 1_000;
        lines.push(format!("{:>3}.{} %  {says}", tenths / 10, tenths % 10));
    }
    lines
}

fn snapshot(client: &mut Client) -> Result<Snapshot, Problem> {
    let (host, _) = client.host()?;
    let reservations = all(client)?;
    let rows: Vec<VmRow> = reservations.iter().map(row).collect();
    let longest = reservations.iter().filter_map(|one| one.recent).map(|it| it.over_ns).max();
    let covered = longest.map_or(String::new(), |ns| {
        format!("last {}", Span::from_ms((ns + 500_000_000) / 1_000_000_000 * 1_000))
    });
    Ok(Snapshot {
        title: format!("host {}, policy {}, {} VMs", host.name, host.policy, rows.len()),
        time: covered,
        cpus: cpus(&host),
        rows,
        details: Vec::new(),
        problem: None,
    })
}

fn cpus(host: &Host) -> Vec<CpuLine> {
    let line = |cpu: &slackline_control::Cpu| CpuLine {
        cpu: cpu.cpu,
        used_ppm: None,
        reserved_ppm: Some(cpu.promised_ppm.into()),
        capacity_ppm: Some(cpu.capacity_ppm.into()),
        overhead_ppm: cpu.overhead_ppm.map(u64::from),
    };
    host.cpus.iter().map(line).collect()
}

fn row(one: &Reservation) -> VmRow {
    let recent = one.recent.filter(|recent| recent.over_ns > 0);
    let reserved = part(one.slice_ns.saturating_mul(one.vcpus.into()), one.period_ns);
    VmRow {
        name: one.name.clone(),
        state: one.state.word().into(),
        slice: Some(Span::from_ns(one.slice_ns)),
        period: Some(Span::from_ns(one.period_ns)),
        is_exact: one.exact,
        reserved_ppm: reserved,
        used_ppm: recent.and_then(|recent| part(recent.used_ns, recent.over_ns)),
        missed: recent.map(|recent| recent.missed),
        deadlines: recent.map(|recent| recent.deadlines),
        ..VmRow::default()
    }
}
