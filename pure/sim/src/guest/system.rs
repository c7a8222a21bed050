//! Simulated operating system of a domain. Its vCPUs do work items, each of which costs CPU time,
//! and block when there is no work.
//!
//! The first vCPU does the work items for devices, before all tasks. Any vCPU can run tasks. An
//! item takes effect when it is complete.

mod calls;

use slackline_scenario::io::DeviceStep;
use slackline_scenario::{self as scenario, Domain, Draw, ErrorKind, Purpose, Scenario, Stream};
use slackline_trace::{Record, Sink};
use slackline_units::{Span, Tasks, Time, VcpuId};

use super::SystemId;
use super::effects::Effects;
use super::scheduler::{QueueEnd, RunQueue};
use super::steps::{Job, ProgramNeed, Progress, StepLimit, Work};
use super::told::{State, TaskInfo};
use crate::queue::{Event, Queue};

/// A vCPU of a simulated operating system.
#[derive(Clone, Copy)]
pub(crate) struct Seat {
    pub(crate) system: SystemId,
    pub(crate) number: u16,
}

/// A task of a simulated operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskOf {
    pub(crate) system: SystemId,
    pub(crate) task: u16,
}

/// Kind of a work item of a vCPU. `D` is the kind of work for devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ItemKind<D> {
    Nothing,
    Devices(D),
    Task(u16),
    /// Search for work that finds no work.
    Idle,
}

/// A work item of a vCPU of a simulated operating system, and the CPU time it takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item<D> {
    doing: ItemKind<D>,
    pub(crate) cost: Span,
}

/// Result of a device step of a task: the task goes on immediately, or waits for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskStep {
    GoOn,
    Wait,
}

/// Reason why a task that waited can continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The task begins, or its sleep has ended.
    Time,
    /// The I/O of the task is complete.
    Io,
}

/// Devices that simulated operating systems use.
pub(crate) trait Devices {
    /// Kind of work that a vCPU does for devices.
    type Duty: Copy;

    /// Begins a step of a task that needs a device.
    fn step(
        &mut self,
        of: TaskOf,
        step: DeviceStep,
        at: &mut Context<'_, '_, Self::Duty>,
    ) -> TaskStep;

    /// Returns a vCPU's next work item for devices, which precedes all tasks, and the cost of that
    /// item.
    fn choose(
        &mut self,
        seat: Seat,
        context: &mut Context<'_, '_, Self::Duty>,
    ) -> Option<(Self::Duty, Span)>;

    /// Handles the completion of a work item for devices.
    fn finish(
        &mut self,
        seat: Seat,
        done: (Self::Duty, Span),
        context: &mut Context<'_, '_, Self::Duty>,
    );

    /// Returns the CPU time that devices add to a search for work that finds none.
    fn idle(&self, seat: Seat) -> Span;

    /// Notifies the devices that a vCPU is about to block.
    fn blocks(&mut self, seat: Seat, context: &mut Context<'_, '_, Self::Duty>);
}

/// State of all simulated operating systems.
pub(crate) struct Systems<'a, D> {
    systems: Vec<System<'a, D>>,
    /// Operating system of each domain. Empty if no domain has a simulated operating system.
    of_domain: Vec<Option<SystemId>>,
    /// All tasks, by their number among the tasks of all operating systems.
    tasks: Vec<TaskOf>,
    pub(crate) effects: Effects,
}

impl<'a, D: Copy> Systems<'a, D> {
    /// Removes and returns the reason why a recording could not be read to the end.
    pub(crate) fn take_failure(&mut self) -> Option<ErrorKind> {
        let tasks = self.systems.iter_mut().flat_map(|system| &mut system.tasks);
        tasks.map(|task| &mut task.work).find_map(Work::take_failure)
    }

    pub(crate) fn new(scenario: &'a Scenario) -> Systems<'a, D> {
        let mut this = Systems {
            systems: Vec::new(),
            of_domain: Vec::new(),
            tasks: Vec::new(),
            effects: Effects::default(),
        };
        if scenario.domains.iter().all(|domain| domain.system.is_none()) {
            return this;
        }
        for domain in &scenario.domains {
            let id = domain.system.as_ref().map(|system| {
                let id = SystemId::try_from(this.systems.len())
                    .expect("there are at most 10,000 systems");
                this.systems.push(System::new(system, domain, (scenario.seed, this.tasks.len())));
                let task = |task| TaskOf { system: id, task };
                this.tasks.extend((0..).map(task).take(system.tasks.len()));
                id
            });
            this.of_domain.push(id);
        }
        this
    }

    /// Returns the number of simulated operating systems.
    pub(crate) fn count(&self) -> usize {
        self.systems.len()
    }

    /// Returns the system and index of a vCPU. `None` if its domain has no simulated system.
    #[inline]
    pub(crate) fn seat(&self, vcpu: VcpuId) -> Option<Seat> {
        let system = (*self.of_domain.get(vcpu.domain().number() as usize)?)?;
        Some(Seat { system, number: vcpu.number() })
    }

    /// Returns the simulated system of a domain, by the domain's index in the scenario.
    pub(crate) fn of_domain(&self, domain: usize) -> Option<SystemId> {
        *self.of_domain.get(domain)?
    }

    /// Returns the task with this number among the tasks of all systems.
    pub(crate) fn task(&self, number: usize) -> TaskOf {
        self.tasks[number]
    }

    /// Returns the first vCPU of a system. This vCPU stands for the system in events and records.
    #[inline]
    pub(crate) fn first(&self, id: SystemId) -> VcpuId {
        self.systems[usize::from(id)].vcpus[0].id
    }

    /// Returns true if the domain of an operating system is present on the host.
    pub(crate) fn is_here(&self, id: SystemId) -> bool {
        self.systems[usize::from(id)].vcpus[0].is_here
    }

    /// Records that a vCPU leaves. A simulated operating system leaves with its first vCPU.
    pub(crate) fn leave(&mut self, seat: Seat) {
        self.vcpu(seat).is_here = false;
    }

    /// Returns a cost, varied at random by up to `ppm` millionths.
    #[inline]
    pub(crate) fn vary(&mut self, id: SystemId, cost: Span, ppm: u32) -> Span {
        self.systems[usize::from(id)].noise.vary(cost, ppm)
    }

    /// Takes the completed work item from a vCPU and returns it. The vCPU has no item afterwards.
    pub(crate) fn stop(&mut self, seat: Seat) -> Item<D> {
        let item = &mut self.vcpu(seat).item;
        Item { doing: std::mem::replace(&mut item.doing, ItemKind::Nothing), cost: item.cost }
    }

    /// Sets the work item that a vCPU does now.
    pub(crate) fn begin(&mut self, seat: Seat, item: Item<D>) {
        self.vcpu(seat).item = item;
    }

    /// Interrupts the work item of a vCPU for more urgent work. `left` is the CPU time that the
    /// item still needs. Returns true if a task went back to the run queue.
    pub(crate) fn put_aside(&mut self, seat: Seat, left: Span) -> bool {
        self.places_changed(seat.system);
        self.systems[usize::from(seat.system)].put_aside(usize::from(seat.number), left)
    }

    /// Returns true if a vCPU was alerted to look for work and has not blocked since.
    pub(crate) fn has_work(&self, seat: Seat) -> bool {
        !self.systems[usize::from(seat.system)].vcpus[usize::from(seat.number)].is_asleep
    }

    /// Makes the first vCPU of a system, which does all work for devices, look for work.
    pub(crate) fn alert(&mut self, id: SystemId) {
        let alerted = self.systems[usize::from(id)].alert(0);
        self.effects.alert(alerted);
    }

    /// Makes a task repeat the step that it took last, when it continues.
    pub(crate) fn repeat_step(&mut self, of: TaskOf) {
        self.of(of).progress.again();
    }

    /// Draws a random duration for a task.
    pub(crate) fn draw(&mut self, of: TaskOf, draw: &Draw) -> Span {
        self.of(of).work.draws.draw(draw)
    }

    fn of(&mut self, of: TaskOf) -> &mut Task<'a> {
        &mut self.systems[usize::from(of.system)].tasks[usize::from(of.task)]
    }

    /// Returns true if the operating system of a domain reports its tasks to the scheduler.
    pub(crate) fn tells(&self, id: SystemId) -> bool {
        self.systems[usize::from(id)].info.is_some()
    }

    /// Returns a vCPU whose reported tasks have changed since the last call, with the tasks that
    /// run or could run on it. `None` if no report of this operating system has changed.
    pub(crate) fn news(&mut self, id: SystemId) -> Option<(VcpuId, Tasks)> {
        let System { vcpus, info, .. } = &mut self.systems[usize::from(id)];
        let info = info.as_mut()?;
        vcpus.iter().enumerate().filter(|(_, vcpu)| vcpu.is_here).find_map(|(number, vcpu)| {
            let is_anothers = |task| {
                let has =
                    |vcpu: &Vcpu<D>| matches!(vcpu.item.doing, ItemKind::Task(of) if of == task);
                vcpus.iter().enumerate().any(|(other, vcpu)| other != number && has(vcpu))
            };
            Some((vcpu.id, info.news(number, is_anothers)?))
        })
    }

    /// Returns true if `holds` is true for any vCPU of this system that is on the host.
    pub(crate) fn any(&self, id: SystemId, holds: impl Fn(VcpuId) -> bool) -> bool {
        self.systems[usize::from(id)].vcpus.iter().any(|vcpu| vcpu.is_here && holds(vcpu.id))
    }

    /// Records that a vCPU runs another task, which changes the reports for its sibling vCPUs.
    fn places_changed(&mut self, id: SystemId) {
        let system = &self.systems[usize::from(id)];
        if system.info.is_some() && system.vcpus.len() > 1 {
            self.effects.tasks_changed(id);
        }
    }

    fn set_state(&mut self, of: TaskOf, state: State) {
        if let Some(info) = &mut self.systems[usize::from(of.system)].info {
            info.set(of.task, state);
            self.effects.tasks_changed(of.system);
        }
    }

    pub(crate) fn record(&mut self, record: Record) {
        self.effects.record(record);
    }

    /// Records the overdue jobs of the tasks of an operating system, which will never be complete.
    /// Does nothing if its domain is not present.
    pub(crate) fn record_overdue<S: Sink>(&self, id: SystemId, at: Time, sink: &mut S) {
        let system = &self.systems[usize::from(id)];
        let vcpu = &system.vcpus[0];
        let tasks = system.tasks.iter().filter(|task| !task.still_to_run().is_zero());
        for Task { spec, work, progress, .. } in tasks.filter(|_| vcpu.is_here) {
            for Job { released, deadline } in progress.overdue(work, at) {
                let (vcpu, task) = (vcpu.id, spec.id);
                sink.record(&Record::Unfinished { at, vcpu, task, released, deadline });
            }
        }
    }

    fn vcpu(&mut self, seat: Seat) -> &mut Vcpu<D> {
        &mut self.systems[usize::from(seat.system)].vcpus[usize::from(seat.number)]
    }
}

/// State of a vCPU of a simulated operating system.
#[derive(Clone, Copy, Debug)]
struct Vcpu<D> {
    id: VcpuId,
    item: Item<D>,
    is_asleep: bool,
    /// True if a ready task woke the vCPU, and the vCPU has not looked for the task yet.
    is_called: bool,
    is_here: bool,
}

/// State of a task of a simulated operating system.
struct Task<'a> {
    spec: &'a scenario::Task,
    work: Work<'a>,
    progress: Progress,
    /// CPU time that the task has received since the run began.
    ran: Span,
}

impl Task<'_> {
    /// Returns the CPU time that the task still needs before its next step.
    fn stretch(&self) -> Span {
        self.progress.left().min(self.still_to_run())
    }

    fn still_to_run(&self) -> Span {
        self.spec.total.map_or(Span::MAX, |total| total.left_after(self.ran))
    }

    /// Subtracts CPU time that the task has used from the time it still needs.
    fn used(&mut self, used: Span) {
        self.progress.compute(used);
        self.ran += used;
    }
}

/// State of a simulated operating system.
struct System<'a, D> {
    spec: &'a scenario::System,
    vcpus: Vec<Vcpu<D>>,
    noise: Stream,
    /// Number of the system's first task among the tasks of all operating systems.
    first_task: usize,
    tasks: Vec<Task<'a>>,
    ready: RunQueue,
    /// Report of the system's tasks to the scheduler. `None` if the guest reports no tasks.
    info: Option<TaskInfo>,
}

impl<'a, D: Copy> System<'a, D> {
    fn new(
        spec: &'a scenario::System,
        domain: &Domain,
        (seed, first_task): (u64, usize),
    ) -> System<'a, D> {
        let item = Item { doing: ItemKind::Nothing, cost: Span::ZERO };
        let vcpu =
            |&id: &VcpuId| Vcpu { id, item, is_asleep: false, is_called: false, is_here: false };
        let number = u64::from(domain.id.number());
        let task = |(index, spec): (usize, &'a scenario::Task)| {
            let draws = Stream::new(seed, number << 16 | index as u64, Purpose::Task);
            let work = Work::new(&spec.program, draws);
            Task { spec, work, progress: Progress::new(), ran: Span::ZERO }
        };
        System {
            spec,
            vcpus: domain.vcpus.iter().map(vcpu).collect(),
            noise: Stream::new(seed, number, Purpose::Noise),
            first_task,
            tasks: spec.tasks.iter().enumerate().map(task).collect(),
            ready: RunQueue::new(&spec.tasks, spec.scheduler),
            info: TaskInfo::new(&spec.tasks, spec.tells, domain.vcpus.len()),
        }
    }

    /// Makes a vCPU look for more urgent work, and returns the vCPU. `None` if the vCPU is not on
    /// the host, or if it neither is blocked nor runs a task: it then looks for work anyway after
    /// its current work item.
    fn alert(&mut self, number: usize) -> Option<VcpuId> {
        let vcpu = &mut self.vcpus[number];
        let must = vcpu.is_here && (vcpu.is_asleep || matches!(vcpu.item.doing, ItemKind::Task(_)));
        vcpu.is_asleep &= !must;
        must.then_some(vcpu.id)
    }

    /// Returns the work item for the next task of a vCPU. If no task is ready, returns the item for
    /// a search that finds no work. `None` if that search costs nothing, or if the vCPU has just
    /// made such a search (`has_idled`). The cost of a search is `idle` plus the system's own cost.
    /// A task is chosen only if more than `left` tasks are ready, because other vCPUs take the last
    /// `left` tasks.
    #[inline]
    fn choose(&mut self, has_idled: HasIdled, idle: Span, left: usize) -> Option<Item<D>> {
        if (left == 0 || self.ready.len() > left)
            && let Some(task) = self.ready.pop()
        {
            let cost = self.tasks[usize::from(task)].stretch().min(self.spec.quantum);
            return Some(Item { doing: ItemKind::Task(task), cost });
        }
        let idle = idle + self.spec.costs.idle;
        if idle.is_zero() || has_idled == HasIdled::Yes {
            return None;
        }
        let cost = self.noise.vary(idle, self.spec.costs.noise_ppm);
        Some(Item { doing: ItemKind::Idle, cost })
    }

    /// Puts the task of a vCPU back in the run queue. `left` is the CPU time that the task's work
    /// item still needs. Returns true if the vCPU had a task.
    fn put_aside(&mut self, number: usize, left: Span) -> bool {
        let item = &mut self.vcpus[number].item;
        let ItemKind::Task(task) = item.doing else { return false };
        item.doing = ItemKind::Nothing;
        let used = item.cost.left_after(left);
        self.tasks[usize::from(task)].used(used);
        self.push(task, QueueEnd::First);
        true
    }

    /// Inserts a task in the run queue, before or behind the other tasks of its urgency.
    fn push(&mut self, task: u16, end: QueueEnd) {
        let deadline = self.tasks[usize::from(task)].progress.deadline();
        self.ready.push(task, end, deadline);
    }
}

/// `Yes` if a vCPU has just looked for work and found none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HasIdled {
    No,
    Yes,
}

/// State of simulated operating systems and their vCPUs that event handlers read and change.
pub(crate) struct Context<'c, 'a, D> {
    pub(crate) now: Time,
    pub(crate) systems: &'c mut Systems<'a, D>,
    pub(crate) queue: &'c mut Queue,
}

impl<D: Copy> Context<'_, '_, D> {
    /// Adds a vCPU and wakes it to look for work. The first vCPU also begins all tasks.
    pub(crate) fn join(&mut self, seat: Seat, devices: &mut impl Devices<Duty = D>) {
        let vcpu = self.systems.vcpu(seat);
        vcpu.is_here = true;
        (vcpu.is_asleep, vcpu.is_called) = (false, false);
        if seat.number != 0 {
            return;
        }
        let system = seat.system;
        let tasks = self.systems.systems[usize::from(system)].tasks.len();
        for task in (0..).take(tasks) {
            let this = &mut self.systems.systems[usize::from(system)].tasks[usize::from(task)];
            this.progress.begin(&mut this.work, self.now);
            self.go_on(TaskOf { system, task }, Cause::Time, devices);
        }
    }

    /// Applies the effects of a completed work item.
    #[inline(always)]
    pub(crate) fn finish(
        &mut self,
        seat: Seat,
        Item { doing, cost }: Item<D>,
        devices: &mut impl Devices<Duty = D>,
    ) {
        match doing {
            ItemKind::Nothing | ItemKind::Idle => {}
            ItemKind::Devices(duty) => devices.finish(seat, (duty, cost), self),
            ItemKind::Task(task) => {
                self.finish_task(TaskOf { system: seat.system, task }, cost, devices);
            }
        }
    }

    /// Returns the work item that a vCPU does after `last`. `None` if there is no work, so the vCPU
    /// blocks. Leaves the last `left` ready tasks to vCPUs that were woken for them
    /// ([`Systems::called`]).
    #[inline(always)]
    pub(crate) fn next(
        &mut self,
        seat: Seat,
        (last, left): (Item<D>, usize),
        devices: &mut impl Devices<Duty = D>,
    ) -> Option<Item<D>> {
        self.systems.vcpu(seat).is_called = false;
        if let Some((duty, cost)) = devices.choose(seat, self) {
            return Some(Item { doing: ItemKind::Devices(duty), cost });
        }
        let system = &mut self.systems.systems[usize::from(seat.system)];
        let has_idled =
            if matches!(last.doing, ItemKind::Idle) { HasIdled::Yes } else { HasIdled::No };
        let chosen = system.choose(has_idled, devices.idle(seat), left);
        if chosen.is_none() {
            system.vcpus[usize::from(seat.number)].is_asleep = true;
            devices.blocks(seat, self);
        }
        self.systems.places_changed(seat.system);
        chosen
    }

    /// Continues a task that waited. `cause` is the event for which it waited.
    pub(crate) fn go_on(&mut self, of: TaskOf, cause: Cause, devices: &mut impl Devices<Duty = D>) {
        let need = self.advance(of, devices);
        self.systems.set_state(of, state(need));
        let system = &mut self.systems.systems[usize::from(of.system)];
        match need {
            ProgramNeed::Cpu | ProgramNeed::Yield => {
                if let (Some(info), Cause::Io) = (&mut system.info, cause) {
                    info.woken_by_io(of.task);
                }
                system.push(of.task, QueueEnd::Last);
                let alerted = system.place(of.task);
                self.systems.effects.alert(alerted);
            }
            ProgramNeed::Sleep(until) => self.wake_at(until, of),
            // Nodes of parallel programs and programs with locks have no system.
            ProgramNeed::Device(_)
            | ProgramNeed::Others(_)
            | ProgramNeed::Lock
            | ProgramNeed::Unlock
            | ProgramNeed::Until(_)
            | ProgramNeed::Nothing => {}
        }
    }

    /// Handles a task that has received all the CPU time of its work item.
    fn finish_task(&mut self, of: TaskOf, used: Span, devices: &mut impl Devices<Duty = D>) {
        let system = &mut self.systems.systems[usize::from(of.system)];
        let task = &mut system.tasks[usize::from(of.task)];
        task.used(used);
        if task.still_to_run().is_zero() {
            let (vcpu, task, released) = (system.vcpus[0].id, task.spec.id, task.progress.began());
            let (deadline, done) = (Time::NEVER, self.now);
            self.systems.record(Record::Job { vcpu, task, client: None, released, deadline, done });
            self.systems.set_state(of, State::Over);
            return;
        }
        if !task.progress.left().is_zero() {
            system.push(of.task, QueueEnd::Last);
            return;
        }
        let need = self.advance(of, devices);
        self.systems.set_state(of, state(need));
        match need {
            ProgramNeed::Cpu | ProgramNeed::Yield => {
                let end = if need == ProgramNeed::Cpu { QueueEnd::First } else { QueueEnd::Last };
                self.systems.systems[usize::from(of.system)].push(of.task, end);
            }
            ProgramNeed::Sleep(until) => self.wake_at(until, of),
            // Nodes of parallel programs and programs with locks have no system.
            ProgramNeed::Device(_)
            | ProgramNeed::Others(_)
            | ProgramNeed::Lock
            | ProgramNeed::Unlock
            | ProgramNeed::Until(_)
            | ProgramNeed::Nothing => {}
        }
    }

    fn wake_at(&mut self, at: Time, task: TaskOf) {
        let first = self.systems.systems[usize::from(task.system)].first_task;
        self.queue.push(at, Event::Task, first + usize::from(task.task));
    }

    /// Takes the steps of a task, up to the first step that needs time. A step with a device has
    /// begun when this function returns.
    fn advance(&mut self, of: TaskOf, devices: &mut impl Devices<Duty = D>) -> ProgramNeed {
        let mut at_once = StepLimit::new();
        loop {
            let Systems { systems, effects, .. } = &mut *self.systems;
            let system = &mut systems[usize::from(of.system)];
            let vcpu = system.vcpus[0].id;
            let Task { spec, work, progress, .. } = &mut system.tasks[usize::from(of.task)];
            let need = progress.advance(work, self.now, &mut at_once, |job| {
                let (task, done) = (spec.id, self.now);
                let (released, deadline) = (job.released, job.deadline);
                effects.record(Record::Job { vcpu, task, client: None, released, deadline, done });
            });
            let ProgramNeed::Device(step) = need else { return need };
            if devices.step(of, step, self) == TaskStep::Wait {
                return need;
            }
        }
    }
}

/// Returns the state that a guest reports for a task with the need `need`.
fn state(need: ProgramNeed) -> State {
    match need {
        ProgramNeed::Cpu
        | ProgramNeed::Until(_)
        | ProgramNeed::Yield
        | ProgramNeed::Lock
        | ProgramNeed::Unlock => State::Wants,
        ProgramNeed::Sleep(_) | ProgramNeed::Others(_) | ProgramNeed::Device(_) => State::Waits,
        ProgramNeed::Nothing => State::Over,
    }
}
