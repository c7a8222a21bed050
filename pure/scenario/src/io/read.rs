//! Reading of devices, the driver domain and clients from TOML.

use slackline_policy::nearest;
use slackline_units::{CpuId, Span, TaskId, Time};

use super::quantity::{bytes, mean_between, rate};
use super::{Client, ClientKind, Costs, Direction, Disk, Driver, Io, Nic, PingEnds};
use crate::error::ErrorKind;
use crate::limits::{MOST_SYSTEMS, MOST_WAITING, RING};
use crate::names::Names;
use crate::table::{Item, Mistake, Table, shown};
use crate::{Domain, Draw, System};

const DRIVER_KEYS: &[&str] =
    &["domain", "interrupt", "event", "receive", "send", "request", "idle", "noise", "batch"];
const NIC_KEYS: &[&str] = &["rate", "ring", "coalesce", "interrupt", "cpu"];
const DISK_KEYS: &[&str] = &["rate", "seek", "interrupt", "cpu"];
const CLIENTS: &[&str] = &["httperf", "ab", "ping", "ttcp", "iperf"];
const HTTPERF_KEYS: &[&str] =
    &["kind", "to", "task", "delay", "from", "until", "rate", "timeout", "retry"];
const AB_KEYS: &[&str] = &["kind", "to", "task", "delay", "from", "until", "at_once", "think"];
const PING_KEYS: &[&str] =
    &["kind", "to", "task", "delay", "from", "until", "every", "rate", "ends"];
const WAYS: &[&str] = &["in", "out"];
const PING_ENDS: &[&str] = &["answered", "received"];

const SECOND: Span = Span::from_secs(1);

pub(crate) fn cost(costs: &mut Costs, item: &Item<'_>) -> Result<(), Mistake> {
    match item.key {
        "interrupt" => costs.interrupt = item.span()?,
        "event" => costs.event = item.span()?,
        "receive" => costs.receive = item.span()?,
        "send" => costs.send = item.span()?,
        "request" => costs.request = item.span()?,
        "idle" => costs.idle = item.span()?,
        _ => costs.noise_ppm = item.percentage()?,
    }
    Ok(())
}

/// Reads the devices, the driver domain and the clients. `None` if the scenario has no driver
/// domain.
pub(crate) fn read(
    root: &Table<'_>,
    domains: &[Domain],
    names: &Names,
    cpus: usize,
) -> Result<Option<Io>, Mistake> {
    let systems = domains.iter().filter(|domain| domain.system.is_some()).count();
    if systems > MOST_SYSTEMS {
        return Err(Mistake::new(root.at, ErrorKind::TooManySystems { systems }));
    }
    let clients = root.each("client", "a client")?;
    let Some(item) = root.get("driver") else {
        for key in ["nic", "disk", "client"] {
            if let Some(item) = root.get(key) {
                return Err(missing_driver(item.key_at));
            }
        }
        return Ok(None);
    };
    let driver = driver(item.table("`driver`")?, domains, names)?;
    let nic = nic(root.maybe("nic", |item| item.table("`nic`"))?, cpus)?;
    let disk = disk(root.maybe("disk", |item| item.table("`disk`"))?, cpus)?;
    let clients = clients.iter().map(|table| client(table, domains, names));
    Ok(Some(Io { driver, nic, disk, clients: clients.collect::<Result<_, Mistake>>()? }))
}

fn missing_driver(at: usize) -> Mistake {
    let example = "[driver] with domain = \"dom0\"";
    Mistake::new(at, ErrorKind::MissingKey { key: "driver", example })
}

fn driver(table: Table<'_>, domains: &[Domain], names: &Names) -> Result<Driver, Mistake> {
    let whose = table.need("domain", "domain = \"dom0\"")?;
    let domain = names.domain(&whose, domains)?;
    let mut driver = Driver { domain, costs: Costs::default(), batch: 64 };
    for item in table.allow(DRIVER_KEYS)?.items() {
        match item.key {
            "domain" => {}
            "batch" => driver.batch = item.count(1..=MOST_WAITING)?,
            _ => cost(&mut driver.costs, &item)?,
        }
    }
    Ok(driver)
}

/// Reads a CPU number of a host with `cpus` CPUs.
fn cpu(item: &Item<'_>, cpus: usize) -> Result<Option<CpuId>, Mistake> {
    Ok(Some(CpuId::new(item.count(0..=cpus - 1)?)))
}

fn nic(table: Option<Table<'_>>, cpus: usize) -> Result<Nic, Mistake> {
    let (coalesce, interrupt) = (Span::ZERO, Span::ZERO);
    let rate_said = 1_000_000_000;
    let mut nic = Nic { bits_per_second: rate_said, ring: RING, coalesce, interrupt, cpu: None };
    let Some(table) = table else { return Ok(nic) };
    for item in table.allow(NIC_KEYS)?.items() {
        match item.key {
            "rate" => nic.bits_per_second = rate(&item)?,
            "ring" => nic.ring = item.count(1..=MOST_WAITING)?,
            "coalesce" => nic.coalesce = item.span()?,
            "cpu" => nic.cpu = cpu(&item, cpus)?,
            _ => nic.interrupt = item.span()?,
        }
    }
    Ok(nic)
}

fn disk(table: Option<Table<'_>>, cpus: usize) -> Result<Disk, Mistake> {
    let seek = Draw::Fixed(Span::ZERO);
    let interrupt = Span::ZERO;
    let mut disk = Disk { bytes_per_second: 50_000_000, seek, interrupt, cpu: None };
    let Some(table) = table else { return Ok(disk) };
    for item in table.allow(DISK_KEYS)?.items() {
        match item.key {
            "rate" => disk.bytes_per_second = rate(&item)?.div_ceil(8),
            "seek" => disk.seek = item.draw()?,
            "cpu" => disk.cpu = cpu(&item, cpus)?,
            _ => disk.interrupt = item.span()?,
        }
    }
    Ok(disk)
}

fn client(table: &Table<'_>, domains: &[Domain], names: &Names) -> Result<Client, Mistake> {
    let item = table.need("kind", "kind = \"httperf\"")?;
    let whose = table.need("to", "to = \"dom1\"")?;
    let to = names.domain(&whose, domains)?;
    let Some(system) = &domains[to].system else {
        let domain = domains[to].name.clone();
        return Err(whose.fault(ErrorKind::NoSystem { domain }));
    };
    let task = table.maybe("task", |item| task(&item, (&domains[to].name, system)))?;
    let delay = table.maybe("delay", |item| item.draw())?;
    let delay = delay.unwrap_or(Draw::Fixed(Span::from_us(100)));
    let time = |item: Item<'_>| item.span().map(|span| Time::START + span);
    let from = table.maybe("from", time)?.unwrap_or(Time::START);
    let until = table.maybe("until", time)?;
    let kind = match CLIENTS[item.word(CLIENTS)?] {
        "httperf" => {
            table.allow(HTTPERF_KEYS)?;
            let mean = mean_between(&table.need("rate", "rate = 900")?)?;
            let every = Draw::Exponential { mean };
            let timeout = table.maybe("timeout", |item| item.some_span())?.unwrap_or(SECOND * 5);
            let retry = table.maybe("retry", |item| item.some_span())?.unwrap_or(SECOND * 3);
            ClientKind::Open { every, timeout, retry }
        }
        "ab" => {
            table.allow(AB_KEYS)?;
            let at_once = table.need("at_once", "at_once = 100")?.number(1..=10_000)?;
            let think = table.maybe("think", |item| item.draw())?;
            ClientKind::Closed {
                at_once: u32::try_from(at_once).expect("the range was checked"),
                think: think.unwrap_or(Draw::Fixed(Span::ZERO)),
            }
        }
        "ping" => {
            table.allow(PING_KEYS)?;
            if table.get("rate").is_some() {
                let mean = mean_between(&table.either("rate", "every")?)?;
                let ends = match table.maybe("ends", |item| item.word(PING_ENDS))? {
                    Some(1) => PingEnds::Received,
                    _ => PingEnds::Answered,
                };
                ClientKind::Pings { every: Draw::Exponential { mean }, ends }
            } else {
                if let Some(item) = table.get("ends") {
                    let example = "rate = 100";
                    let kind = ErrorKind::MissingKey { key: "rate", example };
                    return Err(Mistake::new(item.key_at, kind));
                }
                let every = table.maybe("every", |item| item.span())?.unwrap_or(Span::ZERO);
                ClientKind::Ping { every }
            }
        }
        _ => {
            table.allow(&["kind", "to", "delay", "from", "until", "way", "window", "gap"])?;
            let way = table.maybe("way", |item| item.word(WAYS))?;
            let way = if way == Some(1) { Direction::Out } else { Direction::In };
            let window = bytes(&table.need("window", "window = \"64KiB\"")?)?;
            let gap = table.maybe("gap", |item| item.span())?.unwrap_or(Span::ZERO);
            ClientKind::Stream { way, window, gap }
        }
    };
    Ok(Client { to, delay, from, until, task, kind })
}

/// Returns the id of the task that an item of the file names. Jobs of the task are counted under
/// this id.
fn task(item: &Item<'_>, (domain, system): (&str, &System)) -> Result<TaskId, Mistake> {
    let name = item.text()?;
    let named = system.names.iter().find(|task| task.name == name);
    named.map(|task| task.id).ok_or_else(|| {
        let names = system.names.iter().map(|task| task.name.as_str());
        let meant = nearest(name, names).map(str::to_owned);
        let (name, domain) = (shown(name), domain.to_owned());
        item.fault(ErrorKind::UnknownTask { name, domain, meant })
    })
}
