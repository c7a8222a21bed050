//! Reading of domains: names, copies, work and targets on a live host.

use std::collections::BTreeMap;

use slackline_units::{DomId, Span, Time, VcpuId};

use crate::error::ErrorKind;
use crate::guest::Guest;
use crate::names::{Names, checked_domain_name};
use crate::parameters::ShareOwner;
use crate::run::RunContext;
use crate::table::{Item, Mistake, Table};
use crate::terms::{self, Membership, VcpuStart};
use crate::{Domain, LiveTarget, MOST_STEPS, MOST_VCPUS, Relay, Threads, keys, parameters};

const LIVE_TARGETS: [&str; 4] = ["command", "pid", "cgroup", "unit"];
const THREADS: &[&str] = &["process", "vcpus"];

/// Maximum number of vCPUs of one domain: their numbers have 16 bits.
const MOST_VCPUS_OF_ONE: usize = 1 << 16;

/// Maximum number of copies of all domains together. A copy takes about 2 KB, so this bounds the
/// memory of a short scenario file.
const MOST_COPIES: usize = 1 << 16;

/// Reads all `[[domain]]` tables.
pub(crate) fn read(
    run: &RunContext<'_>,
    tables: &[Table<'_>],
) -> Result<(Vec<Domain>, Names), Mistake> {
    if tables.is_empty() {
        return Err(Mistake::new(0, ErrorKind::NoDomain));
    }
    let (names, size, nodes) = (Names::default(), Size::default(), BTreeMap::new());
    let mut all = DomainReader { run, domains: Vec::new(), names, size, nodes };
    for table in tables {
        let table = table.taught(&keys::DOMAIN)?;
        let item = table.need("name", "name = \"web\"")?;
        let name = checked_domain_name(&item)?;
        all.add(&table, name).map_err(|fault| match *fault.kind {
            // This error already names both the domain and the line of the first domain.
            ErrorKind::DuplicateName { .. } => fault,
            _ => fault.of_domain(name),
        })?;
    }
    all.check_nodes()?;
    Ok((all.domains, all.names))
}

/// Reader of domains, with the domains read so far.
struct DomainReader<'a> {
    run: &'a RunContext<'a>,
    domains: Vec<Domain>,
    names: Names,
    size: Size,
    /// Nodes of each parallel program in the domains read so far. The key is the name of the
    /// program.
    nodes: BTreeMap<String, Nodes>,
}

/// Number of nodes of a parallel program, and the position of the first node in the file, in bytes.
struct Nodes {
    count: usize,
    at: usize,
}

/// Total numbers of vCPUs, program steps and copies of a scenario. Each has a maximum.
#[derive(Default)]
struct Size {
    vcpus: usize,
    steps: usize,
    copies: usize,
}

impl DomainReader<'_> {
    /// Adds the domain of one table, or all its copies if it has `copies`.
    fn add(&mut self, table: &Table<'_>, name: &str) -> Result<(), Mistake> {
        let vcpus = table.maybe("vcpus", |item| item.count(1..=MOST_VCPUS_OF_ONE))?.unwrap_or(1);
        let most = MOST_COPIES.saturating_sub(self.size.copies).max(1);
        let copies = table.maybe("copies", |item| item.count(1..=most))?;
        let live = table.maybe("live", |item| Live::read(&item))?.unwrap_or_default();
        live.check(table, vcpus)?;
        let Live { target: live, agent, relay } = live;
        let Guest { program, parallel, system } = Guest::read(self.run, table, name)?;
        if let (true, 1, Some(item)) = (program.locks(), vcpus, table.get("work")) {
            return Err(item.fault(ErrorKind::LockOfOne));
        }
        let cost = |key| table.maybe(key, |item| item.span());
        let (dispatch, cache) = (cost("dispatch")?, cost("cache")?);
        let draw = |key| table.maybe(key, |item| item.draw());
        let (stop_lateness, wake_pass) = (draw("stop_lateness")?, draw("wake_pass")?);
        let stay = self.stay(table)?;
        let shares = parameters::shares(table, ShareOwner::Domain(vcpus))?;
        let cpus = table.maybe("cpus", |item| terms::cpus(&item, self.run.cpus))?;
        let start = VcpuStart::read(self.run, table, (&stay, cpus))?;
        let exceptions = terms::exceptions(self.run, table, (vcpus, cpus, &stay))?;
        let own = exceptions.values().any(|own| own.program.is_some());
        if own && (system.is_some() || parallel.is_some() || program.locks()) {
            return Err(Mistake::new(table.at, ErrorKind::WorkOfVcpu));
        }
        if let (true, Some(item)) = (system.is_some(), sleeps(table)?) {
            return Err(item.fault(ErrorKind::SystemAsleep));
        }
        // Cannot overflow: the factors are at most 2^20, 2^16 and the length of a list in memory.
        let times = copies.unwrap_or(1);
        let tasks = system.iter().flat_map(|system| &system.tasks);
        let of_tasks: usize = tasks.map(|task| task.program.steps.len().max(1)).sum();
        let own = exceptions.values().filter_map(|own| own.program.as_ref());
        let of_vcpus: usize = own.map(|program| program.steps.len()).sum();
        let steps = times * (program.steps.len() + of_vcpus + of_tasks);
        let size = Size { vcpus: times * vcpus, steps, copies: copies.unwrap_or(0) };
        self.grow(table, &size)?;
        let (line, column) = self.run.source.position(table.at);
        let domain = Domain {
            name: name.to_owned(),
            id: DomId::new(0),
            vcpus: Vec::with_capacity(vcpus),
            program,
            parallel,
            system,
            dispatch: dispatch.unwrap_or(Span::ZERO),
            cache: cache.unwrap_or(Span::ZERO),
            stop_lateness,
            wake_pass,
            cpus,
            live,
            agent,
            relay,
            joins: stay.joins,
            leaves: stay.leaves,
            start,
            line,
            column,
            shares,
            exceptions,
        };
        let Some(copies) = copies else { return self.push(domain, vcpus, table) };
        self.names.families.insert(domain.name.clone(), copies);
        for copy in 0..copies {
            let name = format!("{}-{copy}", domain.name);
            self.push(Domain { name, ..domain.clone() }, vcpus, table)?;
        }
        Ok(())
    }

    /// Reads the times at which a domain joins and leaves.
    fn stay(&self, table: &Table<'_>) -> Result<Membership, Mistake> {
        let joins = table.maybe("joins", |item| self.run.time(&item))?.unwrap_or(Time::START);
        let Some(item) = table.get("leaves") else { return Ok(Membership { joins, leaves: None }) };
        let leaves = self.run.time(&item)?;
        if leaves <= joins {
            let written = item.written();
            return Err(item.fault(ErrorKind::BeforeJoining { written, joins }));
        }
        Ok(Membership { joins, leaves: Some(leaves) })
    }

    /// Checks that every parallel program has more than one node. A single node would never have to
    /// wait for another.
    fn check_nodes(&self) -> Result<(), Mistake> {
        match self.nodes.iter().find(|(_, nodes)| nodes.count == 1) {
            Some((program, nodes)) => {
                let program = program.clone();
                Err(Mistake::new(nodes.at, ErrorKind::SingleNode { program }))
            }
            None => Ok(()),
        }
    }

    /// Adds the vCPUs and program steps of one more table, and checks the limits.
    fn grow(&mut self, table: &Table<'_>, by: &Size) -> Result<(), Mistake> {
        self.size.vcpus += by.vcpus;
        self.size.steps += by.steps;
        self.size.copies += by.copies;
        let Size { vcpus, steps, .. } = self.size;
        if vcpus > MOST_VCPUS {
            return Err(Mistake::new(table.at, ErrorKind::TooManyVcpus { vcpus }));
        }
        if steps > MOST_STEPS {
            return Err(Mistake::new(table.at, ErrorKind::TooManySteps { steps }));
        }
        Ok(())
    }

    /// Returns the index of a domain whose name conflicts with the name of a new domain with
    /// `vcpus` vCPUs. Two names conflict if one of them can name a vCPU of the other domain. For
    /// example, `web.1` is the second vCPU of `web`. `None` if no name conflicts.
    fn called_so(&self, name: &str, vcpus: usize) -> Option<usize> {
        let number = |text: &str| text.parse().ok().filter(|n: &usize| n.to_string() == text);
        let of = name.rsplit_once('.').and_then(|(domain, text)| {
            let &index = self.names.domains.get(domain)?;
            let number = number(text)?;
            (number == 0 || self.domains[index].vcpus.len() > 1).then_some(index)
        });
        let begins = format!("{name}.");
        let behind = self.names.domains.range(begins.clone()..);
        let mut behind = behind.take_while(|(other, _)| other.starts_with(&begins));
        let one_of = behind.find(|(other, _)| {
            number(&other[begins.len()..]).is_some_and(|number| number == 0 || vcpus > 1)
        });
        of.or(one_of.map(|(_, &index)| index))
    }

    /// Gives a domain its ids and adds it to the domains read so far.
    fn push(&mut self, mut domain: Domain, vcpus: usize, table: &Table<'_>) -> Result<(), Mistake> {
        let index = self.domains.len();
        if let Some(&first) = self.names.domains.get(&domain.name) {
            let (name, line) = (domain.name, self.domains[first].line);
            let at = table.get("name").map_or(table.at, |item| item.at());
            return Err(Mistake::new(at, ErrorKind::DuplicateName { name, line }));
        }
        if let Some(first) = self.called_so(&domain.name, vcpus) {
            let line = self.domains[first].line;
            let at = table.get("name").map_or(table.at, |item| item.at());
            return Err(Mistake::new(at, ErrorKind::DuplicateName { name: domain.name, line }));
        }
        let last = self.domains.last().and_then(|domain| domain.vcpus.last());
        let slot = last.map_or(0, |last| last.slot() + 1);
        let small =
            |number: usize| u32::try_from(number).expect("a scenario has at most a million vCPUs");
        domain.id = DomId::new(small(index));
        let vcpu = |number: usize| {
            let in_domain = u16::try_from(number).expect("a vCPU number has 16 bits");
            VcpuId::new(small(slot + number), domain.id, in_domain)
        };
        domain.vcpus = (0..vcpus).map(vcpu).collect();
        self.names.domains.insert(domain.name.clone(), index);
        if let Some(program) = &domain.parallel {
            let at = table.get("work").map_or(table.at, |item| item.at());
            self.nodes.entry(program.clone()).or_insert(Nodes { count: 0, at }).count += vcpus;
        }
        self.domains.push(domain);
        Ok(())
    }
}

/// Returns the item `wakes` from the table of a domain or from the table of one of its vCPUs.
/// `None` if none of these tables sets `wakes`.
fn sleeps<'a>(table: &Table<'a>) -> Result<Option<Item<'a>>, Mistake> {
    let of_one = table.each("vcpu", "a vCPU")?;
    Ok(table.get("wakes").or_else(|| of_one.iter().find_map(|table| table.get("wakes"))))
}

/// Target of a domain on a live host, and the sockets for reports about its guest.
#[derive(Default)]
struct Live {
    target: Option<LiveTarget>,
    agent: Option<String>,
    relay: Option<Relay>,
}

impl Live {
    fn read(item: &Item<'_>) -> Result<Live, Mistake> {
        let table = item.table("`live`")?.taught(&keys::LIVE)?;
        let agent = table.maybe("agent", |item| socket(&item))?;
        let relay = table.maybe("relay", |item| relay(&item))?;
        Ok(Live { target: Some(target(&table)?), agent, relay })
    }

    fn check(&self, table: &Table<'_>, vcpus: usize) -> Result<(), Mistake> {
        let Some(target) = &self.target else { return Ok(()) };
        let threads = match *target {
            LiveTarget::Command { threads, .. } | LiveTarget::Pid { threads, .. } => threads,
            LiveTarget::Cgroup { .. } | LiveTarget::Unit { .. } => Threads::Process,
        };
        if let (Some(item), Threads::Process, 2..) = (table.get("vcpus"), threads, vcpus) {
            return Err(item.fault(ErrorKind::VcpusOfProcess { vcpus }));
        }
        let target = match (target, &self.agent, &self.relay) {
            (LiveTarget::Command { .. }, None, None) => return Ok(()),
            (LiveTarget::Command { .. }, Some(path), _) => format!("the agent at {path:?}"),
            (LiveTarget::Command { .. }, _, Some(relay)) => {
                format!("the guest at {:?}", relay.guest)
            }
            (LiveTarget::Pid { pid, .. }, ..) => format!("process {pid}"),
            (LiveTarget::Cgroup { path }, ..) => format!("cgroup {path:?}"),
            (LiveTarget::Unit { name }, ..) => format!("unit {name:?}"),
        };
        match table.get("copies") {
            Some(item) => Err(item.fault(ErrorKind::CopiesOfTarget { target })),
            None => Ok(()),
        }
    }
}

fn socket(item: &Item<'_>) -> Result<String, Mistake> {
    match item.text()? {
        "" => Err(item.wrong_type("the path of a socket")),
        path => Ok(path.to_owned()),
    }
}

fn relay(item: &Item<'_>) -> Result<Relay, Mistake> {
    let table = item.table("`relay`")?.taught(&keys::RELAY)?;
    let guest = socket(&table.need("guest", "guest = \"/run/web.port\"")?)?;
    let outside = socket(&table.need("outside", "outside = \"/run/web.outside\"")?)?;
    Ok(Relay { guest, outside })
}

fn target(table: &Table<'_>) -> Result<LiveTarget, Mistake> {
    let threads = table.maybe("threads", |item| item.word(THREADS))?;
    let threads = if threads == Some(1) { Threads::Vcpus } else { Threads::Process };
    let target = table.one_of(&LIVE_TARGETS, "`command`, `pid`, `cgroup` and `unit`")?;
    if matches!(target.key, "cgroup" | "unit") {
        let text = target.text()?.to_owned();
        if text.is_empty() {
            return Err(target.wrong_type("a name"));
        }
        if let Some(item) = table.get("threads").filter(|_| threads == Threads::Vcpus) {
            return Err(item.fault(ErrorKind::ThreadsOfGroup));
        }
        let is_unit = target.key == "unit";
        return Ok(if is_unit {
            LiveTarget::Unit { name: text }
        } else {
            LiveTarget::Cgroup { path: text }
        });
    }
    if target.key == "pid" {
        let most = i32::MAX.unsigned_abs();
        let pid = target.number(1..=u64::from(most))?;
        return Ok(LiveTarget::Pid {
            pid: i32::try_from(pid).expect("the range was checked"),
            threads,
        });
    }
    const WANTS: &str = "an array of strings that begins with a program";
    let argv = target.elements(WANTS)?.into_iter().map(|item| item.text().map(str::to_owned));
    let argv = argv.collect::<Result<Vec<String>, Mistake>>()?;
    if argv.first().is_none_or(String::is_empty) {
        return Err(target.wrong_type(WANTS));
    }
    Ok(LiveTarget::Command { argv, threads })
}
