//! Predictions of the daemon from its last ten seconds with 100 vCPUs: the time that a prediction
//! takes, and the deadline misses that predictions cause.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use slackline_control::client::{Client, ClientError};
use slackline_control::{FieldValue, Kind, SetParameters, WhatIf};
use slackline_units::Span;

use super::daemon::{Processes, ServiceSetting, allowed, wanted};
use super::within;
use crate::report::Row;

/// Number of vCPUs with a reservation. All of them always compute, so each has a run interval and a
/// deadline in every period.
const VCPUS: usize = 100;

/// Slice of each reservation. With a period of 100 ms, the 100 reservations together are 40 % of
/// the CPU.
const SLICE: Span = Span::from_us(400);
const PERIOD: Span = Span::from_ms(100);

/// Number of predictions that are requested.
const TIMES: usize = 100;

/// Length of the recording for a prediction, plus a margin.
const FILL: Duration = Duration::from_secs(12);

/// Measures predictions, each for a changed slice of one VM. Each prediction uses a new recording.
pub(super) fn rows(setting: &ServiceSetting) -> Result<Vec<Row>> {
    let daemon = setting.daemon(&[setting.last_cpu()], &[])?;
    let mut client = daemon.client()?;
    let spinners = Processes::that_spin(VCPUS)?;
    for (nth, pid) in spinners.pids().enumerate() {
        let terms = wanted(pid, SLICE, PERIOD);
        allowed(|| client.reserve(&name(nth), &terms))?;
    }
    sleep(FILL);
    let before = missed(&mut client)?;
    sleep(FILL);
    let quiet = missed(&mut client)?;
    let mut took = Vec::with_capacity(TIMES);
    let mut refused = 0;
    for nth in 0..TIMES {
        let began = Instant::now();
        match client.whatif(&question(nth)) {
            Ok(_) => took.push(began.elapsed().as_secs_f64() * 1e3),
            Err(ClientError::Refused(problem)) if problem.kind == Kind::TooMany => {}
            Err(ClientError::Refused(_)) => refused += 1,
            Err(error) => return Err(error.into()),
        }
        sleep(Duration::from_millis(50));
    }
    let busy = missed(&mut client)?;
    if took.is_empty() {
        bail!("no prediction was made; {refused} requests were refused");
    }
    let percent = |(deadlines, missed): (u64, u64)| missed as f64 / deadlines.max(1) as f64 * 1e2;
    let (quiet, busy) = (between(before, quiet), between(quiet, busy));
    Ok(vec![
        within(
            format!(
                "time of a prediction from 10 s of {VCPUS} vCPUs; {refused} of {TIMES} were refused"
            ),
            &took,
            "p99 100 ms",
            100.0,
        ),
        Row {
            what: "deadlines missed while one user asks for predictions without a pause".into(),
            got: format!(
                "{:.3} % ({} of {} deadlines) before, {:.3} % ({} of {} deadlines) with \
                 predictions",
                percent(quiet),
                quiet.1,
                quiet.0,
                percent(busy),
                busy.1,
                busy.0
            ),
            promised: "at most 0.1 points more than before",
            holds: Some(percent(busy) <= percent(quiet) + 0.1),
        },
    ])
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
