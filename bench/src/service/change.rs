//! Latency of a change of a reservation's parameters: the time until the change takes effect, and
//! the time until the client has the reply.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use slackline_control::client::{Client, Remote};
use slackline_control::{Change, Grant, Length, Role};
use slackline_live::Punctual;
use slackline_units::Span;

use super::daemon::{Processes, ServiceSetting, allowed, samples, wanted};
use super::peers::{Disk, Quota};
use super::{milliseconds, peer, within};
use crate::report::{Row, quantile};

/// Number of changes of each kind.
const CHANGES: usize = 300;

/// Time between two changes. It is long enough for the daemon's rate limit, and is no multiple of a
/// period.
const REST: Duration = Duration::from_millis(47);

const PERIOD: Span = Span::from_ms(10);

/// Slices between which the reservation alternates, so that each request changes something.
const TERMS: [Span; 2] = [Span::from_us(900), Span::from_ms(1)];

/// Measures changes of a reservation on a host with one managed CPU and no other load.
pub(super) fn idle(setting: &ServiceSetting) -> Result<Vec<Row>> {
    rows(
        setting,
        &ChangeCase {
            what: "idle",
            cpus: vec![setting.last_cpu()],
            is_full: false,
            in_force: ("p99 2 ms", 2.0),
            answered: ("p99 5 ms", 5.0),
            by_tls: ("p99 5 ms", 5.0),
        },
    )
}

/// Measures changes of a reservation while each CPU is reserved up to its limit and has a process
/// that always computes.
pub(super) fn full(setting: &ServiceSetting) -> Result<Vec<Row>> {
    rows(
        setting,
        &ChangeCase {
            what: "all CPUs reserved to the limit, each with a hog",
            cpus: setting.cpus.clone(),
            is_full: true,
            in_force: ("p99 5 ms", 5.0),
            answered: ("p99 100 ms", 100.0),
            by_tls: ("p99 8 ms", 8.0),
        },
    )
}

/// Conditions of one measurement of changes, and its targets in milliseconds.
struct ChangeCase {
    what: &'static str,
    cpus: Vec<usize>,
    is_full: bool,
    in_force: (&'static str, f64),
    answered: (&'static str, f64),
    by_tls: (&'static str, f64),
}

/// Measured durations of changes, in milliseconds.
#[derive(Default)]
struct ChangeDurations {
    /// Time at which each change was sent over the Unix socket. The key is the number of the event
    /// that the change caused.
    sent: BTreeMap<u64, SystemTime>,
    answered: Vec<f64>,
    /// Time at which each change was sent over TLS. The key is the number of the event that the
    /// change caused.
    sent_by_tls: BTreeMap<u64, SystemTime>,
    answered_by_tls: Vec<f64>,
    read: Vec<f64>,
    quota: Vec<f64>,
    synced: Vec<f64>,
}

fn rows(setting: &ServiceSetting, case: &ChangeCase) -> Result<Vec<Row>> {
    let tls = Tls::new(setting)?;
    let daemon = setting.daemon(&case.cpus, &tls.words)?;
    let mut here = daemon.client()?;
    let mut there = tls.client(&mut here, setting, "bench")?;
    let subjects = Processes::that_spin(2)?;
    for (name, pid) in ["near", "far"].into_iter().zip(subjects.pids()) {
        allowed(|| here.reserve(name, &wanted(pid, TERMS[1], PERIOD)))?;
    }
    let mut fillers = Vec::new();
    if case.is_full {
        // Each filler reserves all capacity of the CPU with the most available capacity.
        for nth in 0..case.cpus.len() {
            let filler = Processes::that_spin(1)?;
            let pid = filler.pids().next().context("one process")?;
            let room = allowed(|| here.room(Length(PERIOD)))?;
            let most = room.cpus.iter().map(|cpu| cpu.slice.0).max().context("a CPU")?;
            allowed(|| here.reserve(&format!("filler{nth}"), &wanted(pid, most, PERIOD)))?;
            fillers.push(filler);
        }
    }
    let _hogs = Processes::that_spin(if case.is_full { case.cpus.len() } else { 0 })?;
    let promised = allowed(|| here.host())?.cpus;
    sleep(Duration::from_secs(2));
    let effect_before = effect(&mut here)?;
    let took = measure(setting, &mut here, &mut there)?;
    let effect = effect(&mut here)?.since(&effect_before);
    let promised: Vec<String> =
        promised.iter().map(|cpu| format!("{:.1} %", f64::from(cpu.promised_ppm) / 1e4)).collect();
    let what = format!("{}; promised: {}", case.what, promised.join(", "));
    judged(case, &what, &took, &effect, &mut here)
}

fn measure(
    setting: &ServiceSetting,
    here: &mut Client,
    there: &mut Client,
) -> Result<ChangeDurations> {
    let mut took = ChangeDurations::default();
    let (mut quota, mut disk) = (Quota::new()?, Disk::new(setting)?);
    for nth in 0..CHANGES {
        let slice = TERMS[nth % 2];
        let change = Change { slice: Some(Length(slice)), ..Change::default() };
        let (sent, began) = (SystemTime::now(), Instant::now());
        let changed = allowed(|| here.change("near", &change, None))?;
        took.answered.push(ms(began));
        took.sent.insert(changed.revision, sent);
        // A remote client does not compete for a CPU of this host. So the client in this test runs
        // with real-time priority.
        let elsewhere = Punctual::begin()?;
        let (sent, began) = (SystemTime::now(), Instant::now());
        let changed = allowed(|| there.change("far", &change, None))?;
        took.answered_by_tls.push(ms(began));
        drop(elsewhere);
        took.sent_by_tls.insert(changed.revision, sent);
        let began = Instant::now();
        allowed(|| here.host())?;
        took.read.push(ms(began));
        if let Some(quota) = &mut quota {
            let began = Instant::now();
            quota.set(slice)?;
            took.quota.push(ms(began));
        }
        let began = Instant::now();
        disk.write()?;
        took.synced.push(ms(began));
        sleep(REST);
    }
    Ok(took)
}

fn judged(
    case: &ChangeCase,
    what: &str,
    took: &ChangeDurations,
    effect: &Effect,
    client: &mut Client,
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, how, sent, (promised, most)) in [
        ("near", "", &took.sent, case.in_force),
        (
            "far",
            " by TLS over the loopback, by a client with real-time priority",
            &took.sent_by_tls,
            case.by_tls,
        ),
    ] {
        let heard = until_done(client, name, sent)?;
        rows.push(Row {
            what: format!("a change{how}, from its sending until it is in force: {what}"),
            got: format!(
                "{} until the daemon's core process begins with the change; then {:.3} ms on \
                 average until the change is in force, 99 % within {} ms",
                milliseconds(&heard),
                effect.mean,
                effect.p99_within
            ),
            promised,
            holds: Some(quantile(&heard, 99) + effect.p99_within <= most),
        });
    }
    let (promised, most) = case.answered;
    rows.push(within(
        "a change, from its sending to the answer after the commit".into(),
        &took.answered,
        promised,
        most,
    ));
    let by_tls = &took.answered_by_tls;
    rows.push(within(
        "a change by TLS, from its sending to the answer after the commit".into(),
        by_tls,
        promised,
        most,
    ));
    if !took.quota.is_empty() {
        let peers = "setting a CFS quota of a process in the kernel, without a ledger";
        rows.push(peer(peers.into(), &took.quota));
    }
    rows.push(peer("appending 4 KiB to a file on the same disk, with a sync".into(), &took.synced));
    let read = "reading the state of the host, over the socket";
    rows.push(Row {
        what: read.into(),
        got: milliseconds(&took.read),
        promised: "(cost of any request)",
        holds: None,
    });
    Ok(rows)
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Returns for each change the time in milliseconds from the moment at which the change was sent
/// until it took effect. The events of the daemon show when a change took effect.
fn until_done(
    client: &mut Client,
    name: &str,
    sent: &BTreeMap<u64, SystemTime>,
) -> Result<Vec<f64>> {
    let events = allowed(|| client.log(Some(name), None, slackline_control::PAGE))?;
    let took = events.iter().filter_map(|event| {
        let sent = sent.get(&event.seq)?.duration_since(UNIX_EPOCH).ok()?;
        Some((event.at_ns as f64 - sent.as_nanos() as f64) / 1e6)
    });
    let took: Vec<f64> = took.collect();
    anyhow::ensure!(
        took.len() == sent.len(),
        "the log has only {} of {} changes",
        took.len(),
        sent.len()
    );
    Ok(took)
}

/// Histogram of the time from the arrival of a request in the daemon's core process until the
/// requested change took effect. The core schedules the VMs. The histogram is read from the
/// daemon's metrics.
struct Effect {
    sum: f64,
    /// Buckets of the histogram: the upper bound in seconds, and the number of changes up to that
    /// bound.
    upto: Vec<(f64, f64)>,
    /// Mean duration in milliseconds.
    mean: f64,
    p99_within: f64,
}

fn effect(client: &mut Client) -> Result<Effect> {
    let sum = samples(client, "slackline_change_effect_seconds_sum")?;
    let buckets = samples(client, "slackline_change_effect_seconds_bucket")?;
    let bound = |(labels, count): (String, f64)| {
        let text = labels.trim_start_matches("{le=\"").trim_end_matches("\"}");
        let bound = if text == "+Inf" { f64::INFINITY } else { text.parse().ok()? };
        Some((bound, count))
    };
    let upto: Vec<(f64, f64)> = buckets.into_iter().filter_map(bound).collect();
    Ok(Effect { sum: sum.iter().map(|(_, sum)| sum).sum(), upto, mean: 0.0, p99_within: 0.0 })
}

impl Effect {
    /// Returns the histogram of the changes since the earlier state `before`.
    fn since(&self, before: &Effect) -> Effect {
        let less = |(now, then): (&(f64, f64), &(f64, f64))| (now.0, now.1 - then.1);
        let upto: Vec<(f64, f64)> = self.upto.iter().zip(&before.upto).map(less).collect();
        let sum = self.sum - before.sum;
        let count = upto.last().map_or(0.0, |(_, count)| *count);
        let p99 = upto.iter().find(|(_, at_most)| *at_most >= count * 0.99);
        let p99_within = p99.map_or(f64::INFINITY, |(bound, _)| bound * 1e3);
        Effect { sum, upto, mean: sum / count * 1e3, p99_within }
    }
}

/// Files for TLS connections to a daemon: a certificate authority and a certificate of this host.
/// Also the port of the daemon.
pub(super) struct Tls {
    pub(super) words: Vec<String>,
    port: u16,
    ca: PathBuf,
}

impl Tls {
    pub(super) fn new(setting: &ServiceSetting) -> Result<Tls> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        let (ca, certificate) = (setting.path("ca"), setting.path("certificate"));
        fs::write(&ca, params.self_signed(&key)?.pem())?;
        let issuer = Issuer::new(params, key);
        let own = KeyPair::generate()?;
        let signed = CertificateParams::new(vec!["localhost".to_owned()])?;
        fs::write(&certificate, signed.signed_by(&own, &issuer)?.pem())?;
        let secret = private(setting.path("key"), &own.serialize_pem())?;
        // On an idle test machine, no other program takes the port before the daemon does.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let (certificate, secret) = (certificate.display(), secret.display());
        let words = format!("--listen 127.0.0.1:{port} --certificate {certificate} --key {secret}");
        Ok(Tls { words: words.split(' ').map(str::to_owned).collect(), port, ca })
    }

    /// Returns a client that connects over TLS with an administrator's token.
    pub(super) fn client(
        &self,
        here: &mut Client,
        setting: &ServiceSetting,
        name: &str,
    ) -> Result<Client> {
        let token = private(setting.path(&format!("token-{name}")), &token(here, name)?)?;
        let remote = Remote {
            url: format!("https://localhost:{}", self.port),
            ca: Some(self.ca.clone()),
            token: Some(token),
            certificate: None,
        };
        Ok(Client::connect_to(&remote)?)
    }
}

/// Creates a remote client with the role of an administrator, and returns its token.
fn token(here: &mut Client, name: &str) -> Result<String> {
    let grant = Grant {
        role: Role::Administrator,
        cpu: None,
        machines: None,
        users: Vec::new(),
        days: None,
        certificate: None,
    };
    allowed(|| here.grant(name, &grant))?.token.context("a token is shown as it is made")
}

fn private(path: PathBuf, text: &str) -> Result<PathBuf> {
    fs::write(&path, text)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(path)
}
