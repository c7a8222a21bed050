//! Work of a domain: either one program on each vCPU, or an operating system with tasks.

mod tasks;

use slackline_units::{Span, TaskId};

use crate::Program;
use crate::error::ErrorKind;
use crate::io::{Costs, cost};
use crate::keys;
use crate::kinds::{self, KINDS};
use crate::limits::{MOST_TASKS, MOST_WAITING, RING};
use crate::names::checked_name;
use crate::run::RunContext;
use crate::table::{Item, Mistake, Table};

/// The operating system of a domain, which runs tasks on the domain's vCPUs.
///
/// Its [scheduler](GuestScheduler) chooses one of the runnable tasks. Work of the operating system
/// for devices has precedence over all tasks.
#[derive(Clone, Debug)]
pub struct System {
    /// Costs of the system's work for devices.
    pub costs: Costs,
    /// Number of packets that can wait in each ring that the system shares with the driver domain.
    pub ring: usize,
    /// Maximum number of connections at one time.
    pub connections: usize,
    /// Rule by which the system chooses the task that runs.
    pub scheduler: GuestScheduler,
    /// Longest timeslice of a task while another task with the same priority (under `edf`, with the
    /// same deadline) waits.
    pub quantum: Span,
    /// Tasks that run in the system.
    pub tasks: Vec<Task>,
    /// Names of the tasks that have a name, in the order of the file.
    pub names: Vec<TaskName>,
    /// Reports that the operating system sends to the host about its tasks. The reports of the
    /// driver domain are about pending I/O of other domains.
    pub tells: GuestReports,
}

/// Rule by which the operating system of a guest chooses the task that runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuestScheduler {
    /// The runnable task with the highest priority runs. Tasks of equal priority take turns.
    #[default]
    Fixed,
    /// The runnable task whose current job has the earliest deadline runs. Tasks with equal
    /// deadlines take turns. Tasks without a deadline run when no other task is runnable.
    Edf,
}

/// Reports of a guest's operating system to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestReports {
    /// The operating system sends no reports.
    Nothing,
    /// The operating system reports the true states of its tasks.
    Truth,
    /// The operating system reports the true states of its tasks, and also a task that does not
    /// exist.
    Lie {
        /// State that the operating system reports for an invented task, a task that does not
        /// exist.
        at: FalseTask,
        /// Priority that the operating system reports for an invented task, a task that does not
        /// exist. Tasks with a higher priority are more urgent.
        priority: u8,
    },
}

/// State that an operating system reports for an invented task, a task that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FalseTask {
    /// The task is runnable.
    Runnable,
    /// The task is blocked, and I/O woke it recently.
    Blocked,
}

/// Name that a `[[domain.task]]` table gives to its work. If the work consists of several tasks,
/// these tasks share the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskName {
    /// Id of the first task with this name. It identifies the jobs of all tasks with the name.
    pub id: TaskId,
    /// Name, which is unique in the domain.
    pub name: String,
}

/// A task of an operating system in a domain.
#[derive(Clone, Debug)]
pub struct Task {
    /// Priority, from 0 to 255. A task with a higher priority runs first.
    pub priority: u8,
    /// Program of the task. It starts when the domain joins.
    pub program: Program,
    /// CPU time after which the task has done its work and ends. `None` if the task never ends.
    pub total: Option<Span>,
    /// Id under which the task's jobs are counted. Tasks with the same name share it. `None` if the
    /// task has no name.
    pub id: Option<TaskId>,
}

const MOST_CONNECTIONS: usize = 400;
const QUANTUM: Span = Span::from_ms(100);
/// Priority of a task for which the file sets no priority.
const PRIORITY: u8 = 100;
const KERNEL_KEYS: &[&str] =
    &["event", "receive", "send", "request", "idle", "noise", "ring", "quantum", "scheduler"];
/// Names of the schedulers of a guest.
const SCHEDULERS: &[&str] = &["fixed", "edf"];
/// Keys of a `kernel` that are valid only if the scenario has devices.
const DEVICE_KEYS: &[&str] = &["event", "receive", "send", "request", "ring"];

/// Tasks of one or more pieces of work in a domain, and the maximum number of connections that the
/// work sets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    pub(crate) tasks: Vec<Task>,
    pub(crate) connections: Option<usize>,
    names: Vec<TaskName>,
}

impl Work {
    /// Creates work with tasks that have no names.
    pub(crate) fn new(tasks: Vec<Task>, connections: Option<usize>) -> Work {
        Work { tasks, connections, names: Vec::new() }
    }
}

impl Task {
    /// Creates a task of the default priority.
    pub(crate) fn new(program: Program) -> Task {
        Task { priority: PRIORITY, program, total: None, id: None }
    }
}

/// Work of a domain, as read from the scenario.
pub(crate) struct Guest {
    /// Program of each vCPU if the domain has no operating system.
    pub(crate) program: Program,
    /// Name of the parallel program to which the vCPUs belong as nodes. `None` if they belong to no
    /// parallel program.
    pub(crate) parallel: Option<String>,
    pub(crate) system: Option<System>,
}

impl Guest {
    /// Reads `work`, `kernel` and `[[domain.task]]` of a domain.
    pub(crate) fn read(
        run: &RunContext<'_>,
        table: &Table<'_>,
        name: &str,
    ) -> Result<Guest, Mistake> {
        let drives = run.driver.is_some_and(|driver| driver == name);
        let several = table.each("task", "a task")?;
        let example = "work = { kind = \"spin\" }";
        let single = match table.get("work") {
            None if drives || !several.is_empty() => None,
            // The work of a live target is not known. It is assumed to spin, which is the worst
            // case for other domains.
            None if table.get("live").is_some() => Some(Workload::Program(Program::spin())),
            _ => Some(work(run, &table.need("work", example)?)?),
        };
        let tells = table.maybe("tells", |item| tells(&item))?.unwrap_or(GuestReports::Nothing);
        let is_plain = table.get("kernel").is_none() && several.is_empty() && !drives;
        if let (true, Some(item)) = (is_plain && tells != GuestReports::Nothing, table.get("tells"))
        {
            return Err(item.fault(ErrorKind::NothingToTell));
        }
        let single = match (is_plain, single) {
            (true, Some(Workload::Program(program))) => {
                return Ok(Guest { program, parallel: None, system: None });
            }
            (true, Some(Workload::Node(program, of))) => {
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
        // Only the simulated host runs operating systems. Code that asks for the program of a vCPU
        // gets an empty one.
        let program = Program::default();
        Ok(Guest { program, parallel: None, system: Some(system) })
    }
}

enum Workload {
    Program(Program),
    /// A node of a parallel program: the program of the node, and the name of the parallel program.
    Node(Program, String),
    Work(Work),
}

impl Work {
    /// Adds the work `more` with the priority `priority`. Does nothing if `more` is `None`.
    fn add(&mut self, more: Option<Workload>, priority: u8, of: &Table<'_>) -> Result<(), Mistake> {
        let more = match more {
            None => return Ok(()),
            Some(Workload::Program(program)) if program.locks() => {
                let at = of.get("work").map_or(of.at, |item| item.at());
                return Err(Mistake::new(at, ErrorKind::LockInSystem));
            }
            Some(Workload::Program(program)) if program.has_instants() => {
                let at = of.get("work").map_or(of.at, |item| item.at());
                return Err(Mistake::new(at, ErrorKind::UntilInSystem));
            }
            Some(Workload::Program(program)) => Work::new(vec![Task::new(program)], None),
            Some(Workload::Node(..)) => {
                let at = of.get("work").map_or(of.at, |item| item.at());
                return Err(Mistake::new(at, ErrorKind::NodeInSystem));
            }
            Some(Workload::Work(work)) => work,
        };
        self.tasks.extend(more.tasks.into_iter().map(|task| Task { priority, ..task }));
        self.connections = self.connections.or(more.connections);
        Ok(())
    }

    /// Gives the name in `item` to the tasks from index `first` to the end. The name is registered
    /// even if there is no such task.
    fn call(&mut self, item: &Item<'_>, first: usize) -> Result<(), Mistake> {
        let name = checked_name(item)?;
        let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
        if is_number {
            return Err(item.fault(ErrorKind::NumberAsName { name: name.to_owned() }));
        }
        if self.names.iter().any(|other| other.name == name) {
            return Err(item.fault(ErrorKind::DuplicateTask { name: name.to_owned() }));
        }
        let id = TaskId::new(u16::try_from(first).expect("a system has at most 10,000 tasks"));
        self.names.push(TaskName { id, name: name.to_owned() });
        self.tasks[first..].iter_mut().for_each(|task| task.id = Some(id));
        Ok(())
    }
}

/// Reads the key `tells`, which sets the reports of a guest: true, false, or a table that describes
/// a task that does not exist.
fn tells(item: &Item<'_>) -> Result<GuestReports, Mistake> {
    if !item.is_table() {
        let tells = item.flag().map_err(|_| item.wrong_type("true, false or a table"))?;
        return Ok(if tells { GuestReports::Truth } else { GuestReports::Nothing });
    }
    let table = item.table("`tells`")?.taught(&keys::TELLS)?;
    let task = table.either("runnable", "blocked")?;
    let at = if task.key == "runnable" { FalseTask::Runnable } else { FalseTask::Blocked };
    let priority = task.count(0..=255)?.to_le_bytes()[0];
    Ok(GuestReports::Lie { at, priority })
}

/// Reads the work of a single vCPU: a program that needs no devices, no locks and no other nodes of
/// a parallel program.
pub(crate) fn program(run: &RunContext<'_>, item: &Item<'_>) -> Result<Program, Mistake> {
    match work(run, item)? {
        Workload::Program(program) if !program.locks() => Ok(program),
        _ => Err(item.fault(ErrorKind::WorkOfVcpu)),
    }
}

fn work(run: &RunContext<'_>, item: &Item<'_>) -> Result<Workload, Mistake> {
    let table = item.table("work")?;
    let kind = table.need("kind", "work = { kind = \"spin\" }")?;
    let name = KINDS[kind.word(KINDS)?];
    if !tasks::DEVICE_KINDS.contains(&name) {
        let program = kinds::program(run, item, name)?;
        return Ok(match kinds::parallel(&table, name)? {
            Some(of) => Workload::Node(program, of),
            None => Workload::Program(program),
        });
    }
    let work = tasks::read(name, &table)?;
    if !run.has_driver {
        return Err(kind.fault(ErrorKind::NoDriver { written: kind.written() }));
    }
    Ok(Workload::Work(work))
}

fn system(run: &RunContext<'_>, table: Option<Table<'_>>, work: Work) -> Result<System, Mistake> {
    let mut system = System {
        costs: Costs::default(),
        ring: RING,
        connections: work.connections.unwrap_or(MOST_CONNECTIONS),
        scheduler: GuestScheduler::Fixed,
        quantum: QUANTUM,
        tasks: work.tasks,
        names: work.names,
        tells: GuestReports::Nothing,
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
            "scheduler" => {
                let is_edf = SCHEDULERS[item.word(SCHEDULERS)?] == "edf";
                system.scheduler = if is_edf { GuestScheduler::Edf } else { GuestScheduler::Fixed };
            }
            _ => cost(&mut system.costs, &item)?,
        }
    }
    Ok(system)
}
