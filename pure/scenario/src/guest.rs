//! What a domain runs: one program on each of its vCPUs, or an operating system with tasks.

mod tasks;

use slackline_units::{Span, TaskId};

use crate::Program;
use crate::error::ErrorKind;
use crate::io::{Costs, cost};
use crate::keys;
use crate::kinds::{self, KINDS};
use crate::limits::{MOST_TASKS, MOST_WAITING, RING};
use crate::names::checked_name;
use crate::run::Run;
use crate::table::{Item, Mistake, Table};

/// The operating system in a domain: it runs the tasks on the domain's vCPUs.
///
/// The most urgent task that has something to do runs first, and tasks of one priority run in
/// turns. What a system does for its devices comes before all tasks.
#[derive(Clone, Debug)]
pub struct System {
    /// What one of each costs it.
    pub costs: Costs,
    /// How many packets can wait in each ring that it shares with the driver.
    pub ring: usize,
    /// How many connections it can have at once.
    pub connections: usize,
    /// How long a task may run when another of its priority waits.
    pub quantum: Span,
    /// What runs in it.
    pub tasks: Vec<Task>,
    /// What people call some of its tasks, in the order of the file.
    pub names: Vec<TaskName>,
    /// Whether it tells the host what its tasks do, or, of a domain that drives devices, what waits
    /// for whom.
    pub tells: Tells,
}

/// What a system tells the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tells {
    /// Nothing.
    Nothing,
    /// What is so.
    Truth,
    /// That, and at all times of a task that is not there.
    Lie {
        /// What that task is told to be at.
        at: Lie,
        /// And how urgent: higher is more, as of other tasks.
        priority: u8,
    },
}

/// What a task that is not there is told to be at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// It wants the CPU.
    Runnable,
    /// It waits for I/O, as it did lately.
    Blocked,
}

/// What people call the tasks that one piece of work comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskName {
    /// The first of them: their jobs are told by it.
    pub id: TaskId,
    /// The name; unique in its domain.
    pub name: String,
}

/// A task of a system.
#[derive(Clone, Debug)]
pub struct Task {
    /// Higher runs first.
    pub priority: u8,
    /// What it does from the moment its domain joins.
    pub program: Program,
    /// After how much CPU time it has done its job and ends; none for never.
    pub total: Option<Span>,
    /// What its jobs are told by, which is of no other name's tasks; none if it has no name.
    pub id: Option<TaskId>,
}

const MOST_CONNECTIONS: usize = 400;
const QUANTUM: Span = Span::from_ms(100);
/// The priority of a task that says none.
const PRIORITY: u8 = 100;
const KERNEL_KEYS: &[&str] =
    &["event", "receive", "send", "request", "idle", "noise", "ring", "quantum"];
/// Those that say nothing where there are no devices.
const DEVICE_KEYS: &[&str] = &["event", "receive", "send", "request", "ring"];

/// What the work of a domain asks of its system.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    pub(crate) tasks: Vec<Task>,
    pub(crate) connections: Option<usize>,
    names: Vec<TaskName>,
}

impl Work {
    /// Tasks without names.
    pub(crate) fn new(tasks: Vec<Task>, connections: Option<usize>) -> Work {
        Work { tasks, connections, names: Vec::new() }
    }
}

impl Task {
    /// A task of a priority yet to be said.
    pub(crate) fn new(program: Program) -> Task {
        Task { priority: PRIORITY, program, total: None, id: None }
    }
}

/// What a domain runs.
pub(crate) struct Guest {
    /// On each of its vCPUs, if it has no system.
    pub(crate) program: Program,
    /// The parallel program whose nodes its vCPUs are.
    pub(crate) parallel: Option<String>,
    pub(crate) system: Option<System>,
}

impl Guest {
    /// Reads `work`, `kernel` and `[[domain.task]]` of a domain.
    pub(crate) fn read(run: &Run<'_>, table: &Table<'_>, name: &str) -> Result<Guest, Mistake> {
        let drives = run.driver.is_some_and(|driver| driver == name);
        let several = table.each("task", "a task")?;
        let example = "work = { kind = \"spin\" }";
        let single = match table.get("work") {
            None if drives || !several.is_empty() => None,
            // What runs in its stead is not known here; the worst for the others is that it spins.
            None if table.get("live").is_some() => Some(Read::Program(Program::spin())),
            _ => Some(work(run, &table.need("work", example)?)?),
        };
        let tells = table.maybe("tells", |item| tells(&item))?.unwrap_or(Tells::Nothing);
        let is_plain = table.get("kernel").is_none() && several.is_empty() && !drives;
        if let (true, Some(item)) = (is_plain && tells != Tells::Nothing, table.get("tells")) {
            return Err(item.fault(ErrorKind::NothingToTell));
        }
        let single = match (is_plain, single) {
            (true, Some(Read::Program(program))) => {
                return Ok(Guest { program, parallel: None, system: None });
            }
            (true, Some(Read::Node(program, of))) => {
                return Ok(Guest { program, parallel: Some(of), system: None });
            }
            (_, single) => single,
        };
        let mut all = Work::default();
        all.add(single, PRIORITY, table)?;
        for task in several {
            let task = task.taught(&keys::TASK)?;
            let priority = task.maybe("priority", |item| item.count(0..=255))?;
            let priority = priority.map_or(PRIORITY, |number| number.to_le_bytes()[0]);
            let first = all.tasks.len();
            all.add(Some(work(run, &task.need("work", example)?)?), priority, &task)?;
            if all.tasks.len() > MOST_TASKS {
                let tasks = all.tasks.len();
                return Err(Mistake::new(table.at, ErrorKind::TooManyTasks { tasks }));
            }
            if let Some(item) = task.get("name") {
                all.call(&item, first)?;
            }
        }
        let system = system(run, table.maybe("kernel", |item| item.table("`kernel`"))?, all)?;
        let system = System { tells, ..system };
        // Only the simulated host runs systems; whoever asks for a program alone gets an empty one.
        let program = Program { steps: Vec::new(), repeat: false };
        Ok(Guest { program, parallel: None, system: Some(system) })
    }
}

enum Read {
    Program(Program),
    /// A node of this parallel program.
    Node(Program, String),
    Work(Work),
}

impl Work {
    /// Adds the work that a table says, if it says any.
    fn add(&mut self, more: Option<Read>, priority: u8, of: &Table<'_>) -> Result<(), Mistake> {
        let more = match more {
            None => return Ok(()),
            Some(Read::Program(program)) if program.locks() => {
                let at = of.get("work").map_or(of.at, |item| item.at());
                return Err(Mistake::new(at, ErrorKind::LockInSystem));
            }
            Some(Read::Program(program)) => Work::new(vec![Task::new(program)], None),
            Some(Read::Node(..)) => {
                let at = of.get("work").map_or(of.at, |item| item.at());
                return Err(Mistake::new(at, ErrorKind::NodeInSystem));
            }
            Some(Read::Work(work)) => work,
        };
        self.tasks.extend(more.tasks.into_iter().map(|task| Task { priority, ..task }));
        self.connections = self.connections.or(more.connections);
        Ok(())
    }

    /// Gives all tasks from this one on a name. Work without any task of its own has none to give.
    fn call(&mut self, item: &Item<'_>, first: usize) -> Result<(), Mistake> {
        let name = checked_name(item)?;
        let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
        if is_number {
            return Err(item.fault(ErrorKind::NumberAsName { name: name.to_owned() }));
        }
        if self.names.iter().any(|other| other.name == name) {
            return Err(item.fault(ErrorKind::DuplicateTask { name: name.to_owned() }));
        }
        let id = TaskId::new(u16::try_from(first).expect("10,000 tasks at most"));
        self.names.push(TaskName { id, name: name.to_owned() });
        self.tasks[first..].iter_mut().for_each(|task| task.id = Some(id));
        Ok(())
    }
}

/// Whether a system tells, and if it is a table: what it tells that is not so.
fn tells(item: &Item<'_>) -> Result<Tells, Mistake> {
    if !item.is_table() {
        let tells = item.flag().map_err(|_| item.wrong_type("true, false or a table"))?;
        return Ok(if tells { Tells::Truth } else { Tells::Nothing });
    }
    let table = item.table("`tells`")?.taught(&keys::TELLS)?;
    let task = table.either("runnable", "blocked")?;
    let at = if task.key == "runnable" { Lie::Runnable } else { Lie::Blocked };
    let priority = task.count(0..=255)?.to_le_bytes()[0];
    Ok(Tells::Lie { at, priority })
}

/// Reads the work of a single vCPU: a program without devices, locks or other nodes.
pub(crate) fn program(run: &Run<'_>, item: &Item<'_>) -> Result<Program, Mistake> {
    match work(run, item)? {
        Read::Program(program) if !program.locks() => Ok(program),
        _ => Err(item.fault(ErrorKind::WorkOfVcpu)),
    }
}

fn work(run: &Run<'_>, item: &Item<'_>) -> Result<Read, Mistake> {
    let table = item.table("work")?;
    let kind = table.need("kind", "work = { kind = \"spin\" }")?;
    let name = KINDS[kind.word(KINDS)?];
    if !tasks::DEVICE_KINDS.contains(&name) {
        let program = kinds::program(run, item, name)?;
        return Ok(match kinds::parallel(&table, name)? {
            Some(of) => Read::Node(program, of),
            None => Read::Program(program),
        });
    }
    let work = tasks::read(name, &table)?;
    if !run.has_driver {
        return Err(kind.fault(ErrorKind::NoDriver { written: kind.written() }));
    }
    Ok(Read::Work(work))
}

fn system(run: &Run<'_>, table: Option<Table<'_>>, work: Work) -> Result<System, Mistake> {
    let mut system = System {
        costs: Costs::default(),
        ring: RING,
        connections: work.connections.unwrap_or(MOST_CONNECTIONS),
        quantum: QUANTUM,
        tasks: work.tasks,
        names: work.names,
        tells: Tells::Nothing,
    };
    let Some(table) = table else { return Ok(system) };
    for item in table.allow(KERNEL_KEYS)?.items() {
        if !run.has_driver && DEVICE_KEYS.contains(&item.key) {
            let written = item.written();
            return Err(Mistake::new(item.key_at, ErrorKind::NoDriver { written }));
        }
        match item.key {
            "ring" => system.ring = item.count(1..=MOST_WAITING)?,
            "quantum" => system.quantum = item.some_span()?,
            _ => cost(&mut system.costs, &item)?,
        }
    }
    Ok(system)
}
