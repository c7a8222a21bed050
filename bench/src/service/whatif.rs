//! Predictions of the daemon from its last ten seconds with 100 vCPUs: the time that a prediction
//! takes, and the deadline misses that predictions cause.

use std::collections::BTreeMap;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use slackline_control::client::{Client, ClientError};
use slackline_control::{FieldValue, SetParameters, WhatIf};
use slackline_units::Span;

use super::change::Tls;
use super::daemon::{Processes, ServiceSetting, allowed, wanted};
use super::within;
use crate::report::{Row, median};

/// Number of vCPUs with a reservation. All of them always compute, so each has a run interval and a
/// deadline in every period.
const VCPUS: usize = 100;

/// Slice of each reservation. With a period of 100 ms, the 100 reservations together are 40 % of
/// the CPU.
const SLICE: Span = Span::from_us(400);
const PERIOD: Span = Span::from_ms(100);

/// Number of predictions that are requested.
const TIMES: usize = 100;

/// Maximum time for all predictions together. It allows for an average of 0.5 s for each
/// prediction, with the pause after it.
const PREDICTIONS_LIMIT: Duration = Duration::from_secs(50);

/// Time limit for an answer. The daemon's own limit is 10 s, so the bench receives the daemon's
/// reason if a prediction takes longer.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// Number of users that ask for predictions at the same time, and the time for which they ask. They
/// use TLS, and the daemon accepts at most four connections from one address.
const ASKERS: usize = 4;
const TOGETHER: Duration = Duration::from_secs(30);

/// Time for which a slider moves. The daemon keeps a loaded recording for 10 s.
const DRAG: Duration = Duration::from_secs(8);

/// Length of the recording for a prediction, plus a margin.
const FILL: Duration = Duration::from_secs(12);

/// Measures predictions, each for a changed slice of one VM. Each prediction uses a new recording.
pub(super) fn rows(setting: &ServiceSetting) -> Result<Vec<Row>> {
    let tls = Tls::new(setting)?;
    let daemon = setting.daemon(&[setting.last_cpu()], &tls.words)?;
    let mut client = daemon.client()?.within(ANSWER_LIMIT);
    let spinners = Processes::that_spin(VCPUS)?;
    for (nth, pid) in spinners.pids().enumerate() {
        let terms = wanted(pid, SLICE, PERIOD);
        allowed(|| client.reserve(&name(nth), &terms))?;
    }
    sleep(FILL);
    let before = missed(&mut client)?;
    sleep(FILL);
    let quiet = missed(&mut client)?;
    let (took, refused) = predict(&mut client)?;
    let (previews, refused_previews) = drag(&mut client)?;
    let one = missed(&mut client)?;
    let (answered, refused_together) = predict_together(askers(&tls, &mut client, setting)?)?;
    let together = missed(&mut client)?;
    let quiet_part = between(before, quiet);
    Ok(vec![
        within(
            format!(
                "time of a prediction from 10 s of {VCPUS} vCPUs; {refused} of {TIMES} were refused"
            ),
            &took,
            "p99 100 ms",
            100.0,
        ),
        within(
            format!(
                "time of a prediction from a recording that is already loaded, as while a slider \
                 of the page moves; {} predictions, and {refused_previews} were refused",
                previews.len()
            ),
            &previews,
            "p99 100 ms",
            100.0,
        ),
        few_more_misses("while one user asks for predictions", quiet_part, between(quiet, one)),
        few_more_misses(
            &format!(
                "while {ASKERS} users ask for predictions without a pause ({answered} answered, \
                 {refused_together} refused)"
            ),
            quiet_part,
            between(one, together),
        ),
    ])
}

/// Returns a row about the deadlines that were missed `during` predictions. `quiet` and `busy` are
/// numbers of deadlines and of misses, without and with predictions.
fn few_more_misses(during: &str, quiet: (u64, u64), busy: (u64, u64)) -> Row {
    let percent = |(deadlines, missed): (u64, u64)| missed as f64 / deadlines.max(1) as f64 * 1e2;
    Row {
        what: format!("deadlines missed {during}"),
        got: format!(
            "{:.3} % ({} of {} deadlines) before, {:.3} % ({} of {} deadlines) with predictions",
            percent(quiet),
            quiet.1,
            quiet.0,
            percent(busy),
            busy.1,
            busy.0
        ),
        promised: "at most 0.1 points more than before",
        holds: Some(percent(busy) <= percent(quiet) + 0.1),
    }
}

/// Connects as many users as ask at the same time. Each client sends a request at once, because the
/// daemon soon closes connections that have not authenticated.
fn askers(tls: &Tls, here: &mut Client, setting: &ServiceSetting) -> Result<Vec<Client>> {
    let mut clients = Vec::new();
    for nth in 0..ASKERS {
        sleep(Duration::from_secs(1));
        let mut client = tls.client(here, setting, &format!("asker{nth}"))?.within(ANSWER_LIMIT);
        allowed(|| client.host())?;
        clients.push(client);
    }
    Ok(clients)
}

/// Lets all clients ask for predictions at the same time, for [`TOGETHER`]. Returns the numbers of
/// answered and of refused predictions.
fn predict_together(clients: Vec<Client>) -> Result<(usize, usize)> {
    let askers: Vec<JoinHandle<Result<(usize, usize)>>> = clients
        .into_iter()
        .enumerate()
        .map(|(nth, mut client)| {
            spawn(move || {
                let (mut answered, mut refused) = (0, 0);
                let begin = Instant::now();
                while begin.elapsed() < TOGETHER {
                    match client.whatif(&question(nth + answered + refused)) {
                        Ok(_) => answered += 1,
                        Err(ClientError::Refused(_)) => refused += 1,
                        Err(error) => return Err(error).context("a prediction has no answer"),
                    }
                }
                Ok((answered, refused))
            })
        })
        .collect();
    let mut sum = (0, 0);
    for asker in askers {
        let (answered, refused) = asker.join().expect("an asking thread does not panic")?;
        sum = (sum.0 + answered, sum.1 + refused);
    }
    ensure!(sum.0 > 0, "none of {} predictions was answered", sum.1);
    Ok(sum)
}

/// Requests predictions without a pause, as the page does while a user moves a slider. Like the
/// page, makes the daemon load its recording first. Returns the time in milliseconds that each
/// answered prediction took, and the number of refused predictions.
fn drag(client: &mut Client) -> Result<(Vec<f64>, usize)> {
    allowed(|| client.whatif(&WhatIf::default())).context("the daemon cannot load a recording")?;
    let begin = Instant::now();
    let (mut took, mut refused) = (Vec::new(), 0);
    while begin.elapsed() < DRAG {
        let sent = Instant::now();
        let asked = WhatIf { fresh: false, ..question(took.len() + refused) };
        match client.whatif(&asked) {
            Ok(_) => took.push(sent.elapsed().as_secs_f64() * 1e3),
            Err(ClientError::Refused(_)) => refused += 1,
            Err(error) => return Err(error).context("a prediction has no answer"),
        }
    }
    ensure!(!took.is_empty(), "all {refused} predictions from the loaded recording were refused");
    Ok((took, refused))
}

/// Requests all predictions. Returns the time in milliseconds that each answered prediction took,
/// and the number of refused predictions.
fn predict(client: &mut Client) -> Result<(Vec<f64>, usize)> {
    let begin = Instant::now();
    let mut took: Vec<f64> = Vec::with_capacity(TIMES);
    let mut reasons: Vec<String> = Vec::new();
    while took.len() + reasons.len() < TIMES {
        let (count, refused) = (took.len(), reasons.len());
        let last_reason = reasons.last().map_or("none was refused", String::as_str);
        if begin.elapsed() > PREDICTIONS_LIMIT {
            let median = if took.is_empty() { 0.0 } else { median(&took) };
            bail!(
                "only {count} of {TIMES} predictions were answered within {PREDICTIONS_LIMIT:?}, \
                 with a median of {median:.0} ms, and {refused} were refused; last reason: \
                 {last_reason}"
            );
        }
        let sent = Instant::now();
        match client.whatif(&question(count + refused)) {
            Ok(_) => took.push(sent.elapsed().as_secs_f64() * 1e3),
            Err(ClientError::Refused(problem)) => reasons.push(problem.to_string()),
            Err(error) => return Err(error).context("a prediction has no answer"),
        }
        sleep(Duration::from_millis(50));
    }
    if took.is_empty() {
        bail!("all {TIMES} predictions were refused; last reason: {}", reasons[TIMES - 1]);
    }
    Ok((took, reasons.len()))
}

fn name(nth: usize) -> String {
    format!("vm{nth}")
}

/// Returns the `nth` question to `whatif`: another slice for one of the VMs.
fn question(nth: usize) -> WhatIf {
    let slice = FieldValue::Text(format!("{}us", 200 + nth % 10 * 20));
    let fields = BTreeMap::from([("slice".to_owned(), slice)]);
    let set = vec![SetParameters { name: name(nth % VCPUS), fields }];
    WhatIf { set, fresh: true, ..WhatIf::default() }
}

/// Returns the numbers of deadlines and of deadline misses of all reservations so far.
fn missed(client: &mut Client) -> Result<(u64, u64)> {
    let mut sum = (0, 0);
    for reservation in allowed(|| client.list(None))? {
        let total = reservation.total.context("the metrics have counts so far")?;
        sum = (sum.0 + total.deadlines, sum.1 + total.missed);
    }
    Ok(sum)
}

fn between(before: (u64, u64), after: (u64, u64)) -> (u64, u64) {
    (after.0 - before.0, after.1 - before.1)
}
