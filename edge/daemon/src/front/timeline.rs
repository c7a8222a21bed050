//! Event stream of the web page: columns of the timeline, metrics of all VMs, and events of the
//! log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use serde_json::{Value, json};
use slackline_control::link::{Answer, Request};
use slackline_control::{Event, Reservation, Timeline};
use slackline_service::{Role, Verb};
use tokio::sync::{broadcast, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Front;
use super::body::Reply;
use super::caller::Caller;
use super::events::{End, UNWRITTEN, all_reservations, check_session, part, send, slot, streamed};

/// Interval at which the stream sends columns of the timeline.
const TICK: Duration = Duration::from_millis(250);

/// Number of [`TICK`] intervals between two messages with the metrics of all VMs.
const SECOND: u32 = 4;

/// Number of [`TICK`] intervals between two descriptions of the host.
const HOST: u32 = 20;

/// Time limit for an answer of the core process.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Number of samples of waiting time that are kept for each VM, one per second. From the first to
/// the last sample there are 5 s, the time over which CPU ready is computed.
const SAMPLES: usize = 6;

/// Streams the data of the web page: columns of the timeline, metrics of all VMs, and events of the
/// log. Programs may use the stream too.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/v1/timeline", responses(
    (status = 200, content_type = "text/event-stream"),
    (status = "default", body = slackline_control::Problem))))]
pub(super) async fn timeline(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
) -> Reply {
    caller.may(Verb::List)?;
    let held = slot(&front, &caller)?;
    let (to, parts) = mpsc::channel(UNWRITTEN);
    let live = front.link.events();
    let painter =
        Painter { front, caller, to, next: 0, names: Vec::new(), waited: BTreeMap::new() };
    tokio::spawn(async move {
        // An error only means that the stream has ended. No client is left to report it to.
        let _ = painter.run(live).await;
    });
    Ok(streamed(parts, held))
}

/// Sender of one stream of timeline columns, metrics and events to one client.
struct Painter {
    front: Arc<Front>,
    caller: Caller,
    to: mpsc::Sender<Bytes>,
    /// Number of the first column that the stream has not sent yet.
    next: u64,
    /// Names of vCPUs that the stream sent last. They are sent again only if they have changed.
    names: Vec<String>,
    /// For each VM, the latest samples of its waiting time. A sample contains the time at which it
    /// was taken, the sum of the waiting times of all vCPUs in nanoseconds, and the number of
    /// vCPUs.
    waited: BTreeMap<String, Vec<(Instant, u64, usize)>>,
}

impl Painter {
    async fn run(mut self, mut live: broadcast::Receiver<Arc<Event>>) -> Result<(), End> {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut count = 0_u32;
        loop {
            tokio::select! {
                event = live.recv() => {
                    let event = event.map_err(|_| End)?;
                    if self.caller.role.may(Verb::Log) {
                        self.send(part(Some(event.seq), "event", &*event)).await?;
                    }
                }
                _ = ticks.tick() => {
                    if count.is_multiple_of(SECOND) {
                        self.check_access().await?;
                        self.send_vms().await?;
                    }
                    if count.is_multiple_of(HOST) {
                        self.send_host().await?;
                    }
                    self.send_columns().await?;
                    count = count.wrapping_add(1);
                }
                () = self.to.closed() => return Err(End),
            }
        }
    }

    /// Updates the role of the caller. If the caller has no access any more, ends the stream.
    async fn check_access(&mut self) -> Result<(), End> {
        check_session(&self.front, &self.caller)?;
        match self.ask(Request::Whoami).await? {
            Answer::You(role) => self.caller.role = Role::from(role),
            _ => return Err(End),
        }
        Ok(())
    }

    async fn send_host(&self) -> Result<(), End> {
        match self.ask(Request::Host).await? {
            Answer::Host(host) => self.send(part(None, "host", &host)).await,
            _ => Err(End),
        }
    }

    /// Sends the columns that the stream has not sent yet. Without a flight recorder there are no
    /// columns.
    async fn send_columns(&mut self) -> Result<(), End> {
        let until = Instant::now() + ANSWER_WITHIN;
        let request = self.caller.asks(None, Request::Timeline { from: self.next });
        let Ok(Answer::Timeline(mut timeline)) = self.front.link.ask(request, until).await else {
            return Ok(());
        };
        self.next = timeline.first + timeline.columns.len() as u64;
        if timeline.vcpus == self.names {
            timeline.vcpus = Vec::new();
        } else {
            self.names.clone_from(&timeline.vcpus);
        }
        self.send(part(Some(self.next), "columns", &compact(&timeline))).await
    }

    async fn send_vms(&mut self) -> Result<(), End> {
        let all = all_reservations(&self.front, &self.caller, ANSWER_WITHIN).await?;
        let Answer::Numbers(numbers) = self.ask(Request::Numbers).await? else { return Err(End) };
        let now = Instant::now();
        let mut waited = BTreeMap::new();
        for vm in numbers.reservations {
            let sum = vm.vcpus.iter().map(|vcpu| vcpu.waited_ns).sum();
            let mut samples = self.waited.remove(&vm.name).unwrap_or_default();
            samples.push((now, sum, vm.vcpus.len()));
            let surplus = samples.len().saturating_sub(SAMPLES);
            samples.drain(..surplus);
            waited.insert(vm.name, samples);
        }
        self.waited = waited;
        let rows: Vec<Value> = all.iter().map(|vm| row(vm, self.ready(&vm.name))).collect();
        self.send(part(None, "vms", &rows)).await
    }

    /// Returns the CPU ready of a VM in millionths: the part of the last 5 s for which a vCPU
    /// waited for a CPU, as the mean of all vCPUs. `None` if it is unknown.
    fn ready(&self, name: &str) -> Option<u64> {
        let samples = self.waited.get(name)?;
        let ((from, before, _), (to, after, vcpus)) = (samples.first()?, samples.last()?);
        let length = to.duration_since(*from).as_nanos() * u128::try_from(*vcpus).ok()?;
        let waited = u128::from(after.saturating_sub(*before));
        u64::try_from((waited * 1_000_000).checked_div(length)?).ok()
    }

    async fn ask(&self, request: Request) -> Result<Answer, End> {
        let until = Instant::now() + ANSWER_WITHIN;
        self.front.link.ask(self.caller.asks(None, request), until).await.map_err(|_| End)
    }

    async fn send(&self, bytes: Bytes) -> Result<(), End> {
        send(&self.to, bytes).await
    }
}

/// Returns the metrics of a VM as a JSON array in a fixed order. An array needs a third of the
/// bytes of a JSON object. The script of the page knows the meaning of each element.
fn row(vm: &Reservation, ready_ppm: Option<u64>) -> Value {
    let recent = vm.recent.as_ref().filter(|recent| recent.over_ns > 0);
    let recent = recent.map(|it| {
        json!([it.over_ns, it.promised_ns, it.due_ns, it.used_ns, it.deadlines, it.missed])
    });
    let total = vm.total.map(|total| (total.deadlines, total.missed));
    let cost = vm.cost.as_ref().map(|cost| (cost.hour_millionths, &cost.currency, &cost.total));
    json!([
        vm.name,
        vm.state,
        vm.slice_ns,
        vm.period_ns,
        vm.vcpus,
        vm.served,
        vm.exact,
        vm.by_use,
        vm.revision,
        recent,
        total,
        ready_ppm,
        cost,
        vm.owner,
        vm.binding,
        vm.why
    ])
}

/// Returns each column as one flat array of numbers. Each three numbers in a row are a CPU, a vCPU,
/// and the part of the column's time for which that vCPU ran there.
fn compact(timeline: &Timeline) -> Value {
    let columns = timeline.columns.iter().map(|column| {
        let ran = column.ran.iter().flat_map(|&(cpu, vcpu, part)| [cpu, vcpu, part]);
        ran.collect::<Vec<u32>>()
    });
    let missed = timeline.columns.iter().enumerate().flat_map(|(index, column)| {
        column.missed.iter().map(move |&(vcpu, count)| (index, vcpu, count))
    });
    let names = (!timeline.vcpus.is_empty()).then_some(&timeline.vcpus);
    json!({
        "first": timeline.first, "step_ns": timeline.step_ns, "cpus": timeline.cpus,
        "vcpus": names, "columns": columns.collect::<Vec<_>>(),
        "missed": missed.collect::<Vec<_>>()
    })
}

#[cfg(test)]
mod tests {
    use slackline_control::TimelineColumn;

    use super::*;

    #[test]
    fn timeline_message_has_flat_columns_and_null_for_missing_names() {
        let ran = vec![(0, 1, 500), (1, 0, 1_000)];
        let timeline = Timeline {
            first: 7,
            step_ns: 20_000_000,
            cpus: vec![2, 3],
            vcpus: Vec::new(),
            columns: vec![TimelineColumn::default(), TimelineColumn { ran, missed: vec![(1, 2)] }],
        };
        let sent = json!({
            "first": 7, "step_ns": 20_000_000, "cpus": [2, 3], "vcpus": null,
            "columns": [[], [0, 1, 500, 1, 0, 1_000]], "missed": [[1, 1, 2]]
        });
        assert_eq!(compact(&timeline), sent);
    }
}
