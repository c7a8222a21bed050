//! Deadline misses of reservations while a client floods the daemon with requests.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use anyhow::{Context, Result};
use slackline_control::client::Client;
use slackline_control::{Change, Length};
use slackline_units::Span;

use super::daemon::{Daemon, Processes, ServiceSetting, allowed, wanted};
use crate::report::Row;

/// Length of each measurement. Each of three vCPUs has a deadline every 10 ms.
const LENGTH: Duration = Duration::from_secs(20);

/// Number of connections that flood the daemon. It is the maximum for clients that are not
/// administrators.
const CONNECTIONS: usize = 4;

const SUBJECTS: [&str; 3] = ["a", "b", "c"];

/// Measures deadline misses of three processes that always compute under a hard limit. The daemon's
/// front process, which parses the requests, runs on a different CPU.
pub(super) fn rows(setting: &ServiceSetting) -> Result<Vec<Row>> {
    let daemon = setting.daemon(&[setting.last_cpu()], &[])?;
    let mut client = daemon.client()?;
    let spinners = Processes::that_spin(SUBJECTS.len())?;
    for (name, pid) in SUBJECTS.into_iter().zip(spinners.pids()) {
        let terms = wanted(pid, Span::from_ms(2), Span::from_ms(10));
        allowed(|| client.reserve(name, &terms))?;
    }
    sleep(Duration::from_secs(2));
    let quiet = missed(&mut client, || {
        sleep(LENGTH);
        Ok(())
    })?;
    let asked = AtomicU64::new(0);
    let flooded = missed(&mut client, || flood(&daemon, &asked))?;
    let percent = |(deadlines, missed): (u64, u64)| missed as f64 / deadlines.max(1) as f64 * 1e2;
    let asked = asked.load(Ordering::Relaxed);
    Ok(vec![Row {
        what: format!(
            "deadlines missed on the last CPU while one user sends requests over {CONNECTIONS} \
             connections, each request as soon as the previous one is answered"
        ),
        got: format!(
            "{:.3} % ({} of {} deadlines) before, {:.3} % ({} of {} deadlines) under {asked} \
             requests in {} s",
            percent(quiet),
            quiet.1,
            quiet.0,
            percent(flooded),
            flooded.1,
            flooded.0,
            LENGTH.as_secs()
        ),
        promised: "at most 0.1 points more than before",
        holds: Some(percent(flooded) <= percent(quiet) + 0.1),
    }])
}

/// Returns the numbers of deadlines and of deadline misses while `work` runs.
fn missed(client: &mut Client, mut work: impl FnMut() -> Result<()>) -> Result<(u64, u64)> {
    let mut count = || -> Result<(u64, u64)> {
        let mut sum = (0, 0);
        for name in SUBJECTS {
            let total =
                allowed(|| client.show(name))?.total.context("the metrics have counts so far")?;
            sum = (sum.0 + total.deadlines, sum.1 + total.missed);
        }
        Ok(sum)
    };
    let before = count()?;
    work()?;
    // The daemon takes some time to count the last periods.
    sleep(Duration::from_secs(1));
    let after = count()?;
    Ok((after.0 - before.0, after.1 - before.1))
}

/// Sends requests without a pause: lists of all reservations, and changes of a reservation that
/// does not exist. Counts the requests in `asked`.
fn flood(daemon: &Daemon<'_>, asked: &AtomicU64) -> Result<()> {
    let is_over = AtomicBool::new(false);
    let ask = |mut client: Client| {
        let change = Change { slice: Some(Length(Span::from_ms(1))), ..Change::default() };
        while !is_over.load(Ordering::Relaxed) {
            // A request that was refused also counts.
            let _ = client.list(None);
            let _ = client.change("nobody", &change, None);
            asked.fetch_add(2, Ordering::Relaxed);
        }
    };
    let clients = (0..CONNECTIONS).map(|_| daemon.client()).collect::<Result<Vec<_>>>()?;
    scope(|scope| {
        for client in clients {
            scope.spawn(|| ask(client));
        }
        sleep(LENGTH);
        is_over.store(true, Ordering::Relaxed);
    });
    Ok(())
}
