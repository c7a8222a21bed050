//! Host of a scenario: number of CPUs, topology, and costs of the hardware.

use slackline_policy::{Groups, Level, Topology, TopologyError};
use slackline_units::{CpuId, CpuSet, Span};

use crate::error::ErrorKind;
use crate::table::{Item, Mistake, Table};
use crate::{Balancing, Draw, FairSlack, HostSpec, MigrationCost, WarmCache, balancing, terms};

/// Text of the help page about the host, with every key.
pub const PAGE: &str = include_str!("host.md");

const KEYS: &[&str] = &[
    "cpus",
    THREADS_PER_CORE,
    NUMBERING,
    CORES_PER_SOCKET,
    "cores",
    "caches",
    "nodes",
    "sockets",
    "switch",
    "migrate",
    "warm",
    "ipi",
    SMT,
    "bus",
    "timer_resolution",
    "timer_lateness",
    "timer_slop",
    "tick",
    "tick_cost",
    "ticks",
    TICK_PHASE,
    "balancing",
    "fair",
    "timer_pass",
    "wake_pass",
    "refuse",
];
const THREADS_PER_CORE: &str = "threads_per_core";
const CORES_PER_SOCKET: &str = "cores_per_socket";
const TICK_PHASE: &str = "tick_phase";
const SMT: &str = "smt";
const NUMBERING: &str = "numbering";
const TICKS: &[&str] = &["aligned", "staggered"];
const MIGRATE: &[&str] = &["core", "cache", "node", "host"];
const FAIR: &[&str] = &["slice", "tick", "phase"];
const WARM: &[&str] = &["core", "cache"];
const NUMBERINGS: &[&str] = &["neighbours", "spread"];

/// Reads the `[host]` table of a scenario.
pub(crate) fn read(table: Option<Table<'_>>) -> Result<HostSpec, Mistake> {
    let mut host = HostSpec {
        cpus: 1,
        topology: Topology::flat(1),
        switch: Span::ZERO,
        migrate: MigrationCost::default(),
        warm: WarmCache::default(),
        ipi: Span::ZERO,
        smt: None,
        bus: None,
        timer_resolution: Span::ZERO,
        timer_lateness: Draw::Fixed(Span::ZERO),
        timer_slop: Span::ZERO,
        tick: Span::from_ms(10),
        ticks_are_staggered: false,
        tick_phases: Vec::new(),
        tick_cost: Span::ZERO,
        balancing: Balancing::default(),
        fair: None,
        timer_pass: Draw::Fixed(Span::ZERO),
        wake_pass: Draw::Fixed(Span::ZERO),
        refuse: 0,
    };
    let Some(table) = table else { return Ok(host) };
    for item in table.allow(KEYS)?.items() {
        match item.key {
            "cpus" => host.cpus = item.count(1..=CpuId::LIMIT)?,
            "switch" => host.switch = item.span()?,
            "migrate" => host.migrate = migrate(&item)?,
            "warm" => host.warm = warm(&item)?,
            "ipi" => host.ipi = item.span()?,
            SMT => host.smt = Some(speed(&item)?),
            "bus" => host.bus = Some(speed(&item)?),
            "timer_resolution" => host.timer_resolution = item.span()?,
            "timer_lateness" => host.timer_lateness = item.draw()?,
            "timer_slop" => host.timer_slop = item.span()?,
            "tick" => host.tick = item.some_span()?,
            "ticks" => host.ticks_are_staggered = TICKS[item.word(TICKS)?] == "staggered",
            "tick_cost" => host.tick_cost = item.span()?,
            "balancing" => host.balancing = balancing::read(&item)?,
            "fair" => host.fair = Some(fair(&item)?),
            "timer_pass" => host.timer_pass = item.draw()?,
            "wake_pass" => host.wake_pass = item.draw()?,
            "refuse" => host.refuse = item.percentage()?,
            _ => {} // Groups and phases of CPUs are read when the number of CPUs is known.
        }
    }
    host.tick_phases = tick_phases(&table, &host)?;
    host.topology = topology(&table, host.cpus)?;
    let has_threads = host.topology.groups(Level::Core).any(|core| core.len() > 1);
    if let (Some(item), false) = (table.get(SMT), has_threads) {
        return Err(Mistake::new(item.key_at, ErrorKind::NoThreads));
    }
    Ok(host)
}

/// Reads `tick_phase`: the delay of the ticks of all CPUs, or a list with one delay for each CPU.
/// Each delay is less than a tick, so that no tick is left out.
fn tick_phases(table: &Table<'_>, host: &HostSpec) -> Result<Vec<Span>, Mistake> {
    let Some(item) = table.get(TICK_PHASE) else { return Ok(Vec::new()) };
    let phase = |item: &Item<'_>| match item.span()? {
        phase if phase < host.tick => Ok(phase),
        _ => Err(item.fault(ErrorKind::NotBelow { written: item.written(), limit: host.tick })),
    };
    if !item.is_list() {
        return Ok(vec![phase(&item)?; host.cpus]);
    }
    let of_cpus = item.elements("a list of durations, one for each CPU")?;
    only_one_of(table, TICK_PHASE, "ticks")?;
    if of_cpus.len() != host.cpus {
        let (listed, cpus) = (of_cpus.len(), host.cpus);
        return Err(item.fault(ErrorKind::OneForEachCpu { listed, cpus }));
    }
    of_cpus.iter().map(phase).collect()
}

/// Reads the cost of a migration: one cost for all migrations, or one cost for each kind of group
/// that two CPUs can share. A group without a cost takes the cost of the next wider group. If no
/// wider group has a cost, the group takes the cost of the next narrower group.
fn migrate(item: &Item<'_>) -> Result<MigrationCost, Mistake> {
    if !item.is_table() {
        let cost = item.span()?;
        return Ok(MigrationCost { core: cost, cache: cost, node: cost, host: cost });
    }
    let table = item.table("`migrate`")?.allow(MIGRATE)?;
    let mut costs = [None; 4];
    for (cost, key) in costs.iter_mut().zip(MIGRATE) {
        *cost = table.maybe(key, |item| item.span())?;
    }
    let said = |level: usize| {
        let wider = costs[level..].iter().find_map(|cost| *cost);
        wider.or_else(|| costs[..level].iter().rev().find_map(|cost| *cost)).unwrap_or_default()
    };
    Ok(MigrationCost { core: said(0), cache: said(1), node: said(2), host: said(3) })
}

/// Reads the key `fair`: slice, tick and phase of the kernel's ordinary scheduling.
fn fair(item: &Item<'_>) -> Result<FairSlack, Mistake> {
    let table = item.table("`fair`")?.allow(FAIR)?;
    let slice = table.need("slice", "slice = \"2.8ms\"")?.some_span()?;
    let tick = table.need("tick", "tick = \"4ms\"")?.some_span()?;
    let phase = table.maybe("phase", |item| item.span())?.unwrap_or_default();
    Ok(FairSlack { slice, tick, phase })
}

fn warm(item: &Item<'_>) -> Result<WarmCache, Mistake> {
    let table = item.table("`warm`")?.allow(WARM)?;
    let part = |key| table.maybe(key, |item| item.percentage());
    let cache = part("cache")?.unwrap_or(0);
    // By default, a migration within a core keeps as much of the cache as a migration between
    // cores. The reason is that the threads of a core share all caches.
    Ok(WarmCache { core: part("core")?.unwrap_or(cache), cache })
}

/// Reads the speed of a CPU while other CPUs are busy, in millionths of full speed.
fn speed(item: &Item<'_>) -> Result<u32, Mistake> {
    match item.percentage()? {
        0 => Err(item.fault(ErrorKind::Standstill { written: item.written() })),
        ppm => Ok(ppm),
    }
}

/// Groups of one level of the topology, as listed in the file.
struct GroupList<'a> {
    item: Item<'a>,
    /// Groups of CPUs, each with its value in the file.
    groups: Vec<(CpuSet, Item<'a>)>,
}

impl<'a> GroupList<'a> {
    /// Reads a list of groups, such as `[[0, 4], [1, 5]]`.
    fn read(table: &Table<'a>, key: &str, cpus: usize) -> Result<Option<GroupList<'a>>, Mistake> {
        table.maybe(key, |item| {
            let elements = item.elements("an array of groups, as in [[0, 1], [2, 3]]")?;
            let group = |element: Item<'a>| Ok((terms::cpus(&element, cpus)?, element));
            let groups = elements.into_iter().map(group).collect::<Result<_, Mistake>>()?;
            Ok(GroupList { item, groups })
        })
    }

    fn sets(&self) -> Vec<CpuSet> {
        self.groups.iter().map(|&(set, _)| set).collect()
    }

    /// Returns the position in the file of the last group that contains the CPU `cpu`. If no group
    /// contains the CPU, returns the position of the whole list.
    fn at(&self, cpu: CpuId) -> usize {
        let group = self.groups.iter().rfind(|(set, _)| set.contains(cpu));
        group.map_or(self.item.at(), |(_, element)| element.at())
    }
}

fn topology(table: &Table<'_>, cpus: usize) -> Result<Topology, Mistake> {
    let [cores, caches, nodes, sockets] =
        ["cores", "caches", "nodes", "sockets"].map(|key| GroupList::read(table, key, cpus));
    let listed = [cores?, caches?, nodes?, sockets?];
    only_one_of(table, "cores", THREADS_PER_CORE)?;
    only_one_of(table, "cores", NUMBERING)?;
    only_one_of(table, "sockets", CORES_PER_SOCKET)?;
    let [cores, caches, nodes, sockets] = listed.each_ref().map(|listed| {
        let listed = listed.as_ref();
        listed.map(GroupList::sets)
    });
    let cores = cores.map_or_else(|| numbered_cores(table, cpus), Ok)?;
    let sockets = sockets.map_or_else(|| neighbouring_cores(table, &cores), Ok)?;
    let nodes = nodes.unwrap_or_else(|| sockets.clone());
    let caches = caches.unwrap_or_else(|| nodes.clone());
    let groups = Groups { cores, caches, nodes, sockets };
    Topology::new(cpus, &groups).map_err(|error| {
        Mistake::new(place(&error, &listed).unwrap_or(table.at), ErrorKind::Topology { error })
    })
}

/// Returns the cores of a host whose cores are not listed. All cores have the same number of
/// threads, and `numbering` decides which CPUs form a core.
fn numbered_cores(table: &Table<'_>, cpus: usize) -> Result<Vec<CpuSet>, Mistake> {
    let threads = table.maybe(THREADS_PER_CORE, |item| divisor(&item, cpus))?.unwrap_or(1);
    let numbering = table.maybe(NUMBERING, |item| item.word(NUMBERINGS))?.unwrap_or(0);
    let cores = cpus / threads;
    let cpu = |core, thread| match NUMBERINGS[numbering] {
        "spread" => CpuId::new(core + thread * cores),
        _ => CpuId::new(core * threads + thread),
    };
    let core = |core| (0..threads).map(|thread| cpu(core, thread)).collect();
    Ok((0..cores).map(core).collect())
}

/// Returns the sockets of a host whose sockets are not listed. All sockets have the same number of
/// cores, and the cores of a socket are neighbours in `cores`.
fn neighbouring_cores(table: &Table<'_>, cores: &[CpuSet]) -> Result<Vec<CpuSet>, Mistake> {
    let of_socket = table.maybe(CORES_PER_SOCKET, |item| divisor(&item, cores.len()))?;
    let sockets = cores.chunks(of_socket.unwrap_or(cores.len()).max(1));
    Ok(sockets.map(|cores| cores.iter().flat_map(CpuSet::iter).collect()).collect())
}

fn only_one_of(table: &Table<'_>, one: &'static str, other: &'static str) -> Result<(), Mistake> {
    match (table.get(one), table.get(other)) {
        (Some(_), Some(item)) => {
            Err(Mistake::new(item.key_at, ErrorKind::SaidTwice { one, other }))
        }
        _ => Ok(()),
    }
}

/// Returns the position in the file of the wrong group. If two groups conflict, this is the
/// narrower group if the file lists it, and the wider group otherwise.
fn place(error: &TopologyError, listed: &[Option<GroupList<'_>>]) -> Option<usize> {
    let of = |level: Level| listed[level as usize].as_ref();
    match *error {
        TopologyError::Empty(level) => of(level).map(|listed| listed.item.at()),
        TopologyError::Beyond(level, cpu)
        | TopologyError::Twice(level, cpu)
        | TopologyError::Missing(level, cpu) => of(level).map(|listed| listed.at(cpu)),
        TopologyError::Torn { level, cpus: (cpu, _), wider } => {
            of(level).or_else(|| of(wider)).map(|listed| listed.at(cpu))
        }
    }
}

/// Reads the number of members of a group. The number must divide `all`, so that all groups have
/// the same size.
fn divisor(item: &Item<'_>, all: usize) -> Result<usize, Mistake> {
    let size = item.count(1..=all)?;
    if !all.is_multiple_of(size) {
        return Err(item.fault(ErrorKind::Uneven { written: item.written(), all }));
    }
    Ok(size)
}
