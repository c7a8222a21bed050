//! Daemon with many reservations at the same time, and with many reservations that are made and
//! released one after another.

use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use slackline_control::client::{Answered, Client, ClientError};
use slackline_control::{Change, Kind, Length, RequestedMechanism, ReservationParameters};
use slackline_units::Span;

use super::daemon::{
    Daemon, End, Processes, ServiceSetting, allowed, cpu_time, descriptors, resident, samples,
    wanted,
};
use super::within;
use crate::report::Row;

/// Number of reservations that exist at the same time.
const MANY: usize = 500;

/// Number of measured requests of each kind.
const TIMES: usize = 200;

/// Pause between two requests, which keeps their rate below the daemon's limit.
const REST: Duration = Duration::from_millis(35);
/// Pause after which the daemon allows another burst of requests.
const LULL: Duration = Duration::from_secs(5);

/// Numbers of requests and of changes that are allowed in a burst.
const BURST: (usize, usize) = (90, 55);

/// Measures the daemon while it holds many reservations for sleeping processes.
pub(super) fn held(setting: &ServiceSetting) -> Result<Vec<Row>> {
    let mut daemon = setting.daemon(&[setting.last_cpu()], &[])?;
    let mut client = daemon.client()?;
    let sleepers = Processes::that_sleep(MANY)?;
    let mut rows = verbs(&mut client, &sleepers)?;
    rows.extend(needs(&daemon)?);
    drop(client);
    for (what, end, promised, (ready, lapse)) in [
        ("ended and started again", End::Asked, "1 s; 1.5 s", (1.0, 1.5)),
        ("killed (kill -9) and started again", End::Killed, "2 s; 2.5 s", (2.0, 2.5)),
    ] {
        let took = daemon.again(end)?.as_secs_f64();
        let mut client = daemon.client()?;
        let lapses = samples(&mut client, "slackline_vcpu_lapsed_seconds_total")?;
        let lapsed = lapses.iter().filter(|(_, lapse)| *lapse > 0.0).count();
        let longest = lapses.iter().map(|(_, lapse)| *lapse).fold(0.0, f64::max);
        let host = allowed(|| client.host())?;
        rows.push(Row {
            what: format!(
                "daemon with {MANY} reservations, {what}: time until it answers; longest time \
                 without enforcement"
            ),
            got: format!(
                "{took:.2} s until it answers; at most {longest:.2} s without enforcement, for \
                 {lapsed} vCPUs; {} reservations, {} of them waiting",
                host.reservations, host.waiting
            ),
            promised,
            holds: Some(
                took <= ready
                    && longest <= lapse
                    && lapsed == MANY
                    && (host.reservations, host.waiting) == (MANY as u64, 0),
            ),
        });
    }
    Ok(rows)
}

/// Measures the latency of each kind of request.
fn verbs(client: &mut Client, sleepers: &Processes) -> Result<Vec<Row>> {
    let (slice, period) = (Span::from_us(500), Span::from_secs(1));
    let mut reserve = Vec::with_capacity(MANY);
    for (nth, pid) in sleepers.pids().enumerate() {
        let (name, terms) = (format!("m{nth}"), wanted(pid, slice, period));
        reserve.push(timed(|| client.reserve(&name, &terms))?);
    }
    let mut list = Vec::with_capacity(TIMES);
    let mut room = Vec::with_capacity(TIMES);
    for _ in 0..TIMES {
        list.push(timed(|| client.list(None))?);
        sleep(REST);
        room.push(timed(|| client.room(Length(Span::from_ms(10))))?);
        sleep(REST);
    }
    let on = |what: &str| format!("time of {what} with {MANY} reservations");
    let mut rows = vec![
        within(
            "time of `reserve` until the answer after the commit, with up to 500 reservations"
                .into(),
            &reserve,
            "none",
            f64::MAX,
        ),
        within(on("`list`"), &list, "none", f64::MAX),
        within(on("`room`"), &room, "p99 2 ms", 2.0),
    ];
    for row in &mut rows[..2] {
        row.holds = None;
    }
    sleep(LULL);
    let gets = rate(BURST.0, |_| client.host().map(drop))?;
    sleep(LULL);
    let changes = rate(BURST.1, |nth| {
        let slice = Span::from_us(400 + 100 * (nth as u64 % 2));
        let change = Change { slice: Some(Length(slice)), ..Change::default() };
        client.change("m0", &change, None).map(drop)
    })?;
    for (what, count, reached, promised, least) in [
        ("reads", BURST.0, gets, "5,000", 5_000.0),
        ("committed changes", BURST.1, changes, "500", 500.0),
    ] {
        rows.push(Row {
            what: format!("{what} per second on one connection, in a burst of {count}"),
            got: format!("{reached:.0}"),
            promised,
            holds: Some(reached >= least),
        });
    }
    Ok(rows)
}

/// Returns the milliseconds from a request to its answer. A request that the rate limit refuses is
/// repeated.
fn timed<T>(mut ask: impl FnMut() -> Answered<T>) -> Result<f64> {
    loop {
        let began = Instant::now();
        match ask() {
            Ok(_) => return Ok(began.elapsed().as_secs_f64() * 1e3),
            Err(ClientError::Refused(problem)) if problem.kind == Kind::TooMany => sleep(REST),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends a burst of `count` requests. Returns the number of answers per second.
fn rate(count: usize, mut ask: impl FnMut(usize) -> Result<(), ClientError>) -> Result<f64> {
    let began = Instant::now();
    for nth in 0..count {
        ask(nth)?;
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

/// Measures memory and CPU time of the daemon's three processes while all processes with a
/// reservation sleep.
fn needs(daemon: &Daemon<'_>) -> Result<Vec<Row>> {
    let processes = daemon.processes()?;
    let mut mib = [0.0; 3];
    for (mib, pid) in mib.iter_mut().zip(processes) {
        *mib = resident(pid)? / 1024.0;
    }
    Ok(vec![
        Row {
            what: format!(
                "resident memory of the daemon's processes core, front and keeper with {MANY} \
                 reservations"
            ),
            got: format!("{:.1}, {:.1}, {:.1} MiB", mib[0], mib[1], mib[2]),
            promised: "48, 24, 16 MiB",
            holds: Some(mib[0] <= 48.0 && mib[1] <= 24.0 && mib[2] <= 16.0),
        },
        cpu_use(daemon, &format!("{MANY} sleeping VMs"), ("0.5 %", 0.5))?,
    ])
}

/// Measures the CPU time of the daemon's three processes. The target is at most `most` percent of a
/// CPU, and `promised` is the same target in words.
fn cpu_use(daemon: &Daemon<'_>, vms: &str, (promised, most): (&'static str, f64)) -> Result<Row> {
    let processes = daemon.processes()?;
    let used = || processes.iter().map(|&pid| cpu_time(pid)).sum::<Result<Duration>>();
    let (before, began) = (used()?, Instant::now());
    sleep(Duration::from_secs(20));
    let percent = (used()? - before).as_secs_f64() / began.elapsed().as_secs_f64() * 1e2;
    Ok(Row {
        what: format!("CPU time of the daemon's processes with {vms}"),
        got: format!("{percent:.2} % of a CPU"),
        promised,
        holds: Some(percent <= most),
    })
}

/// Measures the daemon while the kernel enforces many reservations by `SCHED_DEADLINE` for sleeping
/// processes.
pub(super) fn deadline(setting: &ServiceSetting) -> Result<Vec<Row>> {
    let daemon = setting.daemon(&[setting.last_cpu()], &[])?;
    let mut client = daemon.client()?;
    let sleepers = Processes::that_sleep(MANY)?;
    let (slice, period) = (Span::from_us(50), Span::from_ms(100));
    for (nth, pid) in sleepers.pids().enumerate() {
        let enforce = Some(RequestedMechanism::Deadline);
        let terms = ReservationParameters { enforce, ..wanted(pid, slice, period) };
        timed(|| client.reserve(&format!("m{nth}"), &terms))?;
    }
    sleep(LULL);
    Ok(vec![cpu_use(&daemon, &format!("{MANY} sleeping VMs under `deadline`"), ("1 %", 1.0))?])
}

/// Number of clients that make and release reservations at the same time. The rate limit applies to
/// each client, so several clients together can send more requests. One client uses the Unix
/// socket, and the others use TLS.
const PEOPLE: usize = 4;

/// Number of reservations that each client makes and releases before the first, second and third
/// measurement.
const PAIRS: [usize; 3] = [250, 1_125, 1_125];

/// Time after which the daemon has dropped all ended reservations. The daemon keeps an ended
/// reservation for a minute because late records can arrive. It drops such reservations once a
/// minute.
const REMEMBERED: Duration = Duration::from_secs(125);

/// Measures memory and open file descriptors of the daemon while reservations are made and
/// released. Memory and the number of descriptors must not grow.
pub(super) fn come_and_go(setting: &ServiceSetting) -> Result<Vec<Row>> {
    let tls = super::change::Tls::new(setting)?;
    let daemon = setting.daemon(&[setting.last_cpu()], &tls.words)?;
    let mut here = daemon.client()?;
    let sleepers = Processes::that_sleep(PEOPLE)?;
    let mut people = Vec::new();
    for (nth, pid) in sleepers.pids().enumerate().skip(1) {
        people.push((tls.client(&mut here, setting, &format!("p{nth}"))?, nth, pid));
    }
    let first = sleepers.pids().next().context("a process")?;
    people.push((here, 0, first));
    let mut pairs = |count: usize| -> Result<()> {
        let each = |(client, nth, pid): &mut (Client, usize, u32)| -> Result<()> {
            let name = format!("pair{nth}");
            let terms = wanted(*pid, Span::from_us(500), Span::from_ms(10));
            for _ in 0..count {
                allowed(|| client.reserve(&name, &terms))?;
                allowed(|| client.release(&name, None))?;
            }
            Ok(())
        };
        scope(|scope| {
            let all: Vec<_> = people.iter_mut().map(|one| scope.spawn(|| each(one))).collect();
            let join = |one: std::thread::ScopedJoinHandle<'_, Result<()>>| {
                one.join().map_err(|_| anyhow::anyhow!("a client panicked"))?
            };
            all.into_iter().try_for_each(join)
        })
    };
    let needs = || -> Result<Vec<(f64, usize)>> {
        let of = |pid| Ok((resident(pid)?, descriptors(pid)?));
        daemon.processes()?.into_iter().map(of).collect()
    };
    let mut needed = Vec::new();
    for count in PAIRS {
        pairs(count)?;
        sleep(REMEMBERED);
        needed.push(needs()?);
    }
    let growth = |was: &[(f64, usize)], is: &[(f64, usize)]| -> Vec<(f64, i64)> {
        let of =
            |(was, is): (&(f64, usize), &(f64, usize))| (is.0 - was.0, is.1 as i64 - was.1 as i64);
        was.iter().zip(is).map(of).collect()
    };
    let (first, second) = (growth(&needed[0], &needed[1]), growth(&needed[1], &needed[2]));
    let shown = |growth: &[(f64, i64)]| {
        let of = |(kib, fds): &(f64, i64)| format!("{kib:+.0} KiB {fds:+}");
        growth.iter().map(of).collect::<Vec<_>>().join(", ")
    };
    let done = |parts: usize| PEOPLE * PAIRS[..parts].iter().sum::<usize>();
    let row = |from: usize, to: usize, growth: &[(f64, i64)]| Row {
        what: format!(
            "pairs of `reserve` and `release` by {PEOPLE} clients, from pair {} to pair {}: growth \
             of the daemon's processes core, front and keeper (resident memory, file descriptors), \
             after ended reservations are dropped",
            done(from),
            done(to)
        ),
        got: shown(growth),
        promised: "none (64 KiB allowed for requests in flight)",
        holds: Some(growth.iter().all(|&(kib, fds)| kib <= 64.0 && fds <= 0)),
    };
    Ok(vec![row(1, 2, &first), row(2, 3, &second)])
}
