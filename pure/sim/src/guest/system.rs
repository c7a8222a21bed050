//! The operating system of a domain: it does one item after the other, each for a cost, and blocks
//! when it finds nothing left to do.
//!
//! What it has to do for devices is for its first vCPU and comes before all tasks; tasks run on any
//! of its vCPUs. What an item does to the world happens when it is over.

use slackline_scenario::io::DeviceStep;
use slackline_scenario::{self as scenario, Domain, Draw, Purpose, Scenario, Stream};
use slackline_trace::{Record, Sink};
use slackline_units::{Span, Tasks, Time, VcpuId};

use super::SystemId;
use super::effects::Effects;
use super::scheduler::RunQueue;
use super::steps::{AtOnce, Job, Need, Progress, Work};
use super::told::{State, TaskInfo};
use crate::queue::{Event, Queue};

/// A vCPU of a system: which of which.
#[derive(Clone, Copy)]
pub(crate) struct Seat {
    pub(crate) system: SystemId,
    pub(crate) number: u16,
}

/// A task of a system: which of which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskOf {
    pub(crate) system: SystemId,
    pub(crate) task: u16,
}

/// What a vCPU of a system does; `D` is what devices have it do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing<D> {
    Nothing,
    Devices(D),
    Task(u16),
    /// Finds that there is nothing to do.
    Idle,
}

/// Something that a vCPU of a system does, and how long that takes, or takes until it is looked at
/// again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item<D> {
    doing: Doing<D>,
    pub(crate) cost: Span,
}

/// Whether a task that has begun something with a device goes on at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    GoOn,
    Wait,
}

/// What a task that waited goes on for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It begins, or has slept long enough.
    Time,
    /// The end of some I/O.
    Io,
}

/// The devices that systems use.
pub(crate) trait Devices {
    /// What a vCPU can have to do for them.
    type Duty: Copy;

    /// A task takes a step that needs a device.
    fn step(&mut self, of: TaskOf, step: DeviceStep, at: &mut Context<'_, '_, Self::Duty>) -> Then;

    /// What a vCPU has to do for the devices, before all tasks, and how long that takes.
    fn choose(
        &mut self,
        seat: Seat,
        context: &mut Context<'_, '_, Self::Duty>,
    ) -> Option<(Self::Duty, Span)>;

    /// It has done that.
    fn finish(
        &mut self,
        seat: Seat,
        done: (Self::Duty, Span),
        context: &mut Context<'_, '_, Self::Duty>,
    );

    /// How much longer than its system says it takes a vCPU to find that there is nothing to do.
    fn idle(&self, seat: Seat) -> Span;

    /// A vCPU is about to block.
    fn blocks(&mut self, seat: Seat, context: &mut Context<'_, '_, Self::Duty>);
}

/// All systems.
pub(crate) struct Systems<'a, D> {
    systems: Vec<System<'a, D>>,
    /// By domain; empty if there is no system at all.
    of_domain: Vec<Option<SystemId>>,
    /// Every task, by its number among those of all systems.
    tasks: Vec<TaskOf>,
    pub(crate) effects: Effects,
}

impl<'a, D: Copy> Systems<'a, D> {
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
                let id = SystemId::try_from(this.systems.len()).expect("10,000 systems at most");
                this.systems.push(System::new(system, domain, (scenario.seed, this.tasks.len())));
                let task = |task| TaskOf { system: id, task };
                this.tasks.extend((0..).map(task).take(system.tasks.len()));
                id
            });
            this.of_domain.push(id);
        }
        this
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.systems.len()
    }

    /// Which vCPU of a system this is, if it is one.
    #[inline]
    pub(crate) fn seat(&self, vcpu: VcpuId) -> Option<Seat> {
        let system = (*self.of_domain.get(vcpu.domain().number() as usize)?)?;
        Some(Seat { system, number: vcpu.number() })
    }

    /// The system of a domain, by the domain's place in the scenario.
    pub(crate) fn of_domain(&self, domain: usize) -> Option<SystemId> {
        *self.of_domain.get(domain)?
    }

    /// The task with this number among those of all systems.
    pub(crate) fn task(&self, number: usize) -> TaskOf {
        self.tasks[number]
    }

    /// Whom events and records of a system are about: its first vCPU.
    #[inline]
    pub(crate) fn first(&self, id: SystemId) -> VcpuId {
        self.systems[usize::from(id)].vcpus[0].id
    }

    /// Whether a system is there.
    pub(crate) fn is_here(&self, id: SystemId) -> bool {
        self.systems[usize::from(id)].vcpus[0].is_here
    }

    /// A vCPU leaves. With its first vCPU a system is gone.
    pub(crate) fn leave(&mut self, seat: Seat) {
        self.vcpu(seat).is_here = false;
    }

    /// A cost that differs by up to so many millionths, as it comes out this time in a system.
    #[inline]
    pub(crate) fn vary(&mut self, id: SystemId, cost: Span, ppm: u32) -> Span {
        self.systems[usize::from(id)].noise.vary(cost, ppm)
    }

    /// What a vCPU is doing, which is over: it does nothing now.
    pub(crate) fn stop(&mut self, seat: Seat) -> Item<D> {
        let item = &mut self.vcpu(seat).item;
        Item { doing: std::mem::replace(&mut item.doing, Doing::Nothing), cost: item.cost }
    }

    /// What a vCPU does from now on.
    pub(crate) fn begin(&mut self, seat: Seat, item: Item<D>) {
        self.vcpu(seat).item = item;
    }

    /// A vCPU that is at work is told to look at something more urgent; `left` is what is left of
    /// its work. Whether it has put a task aside.
    pub(crate) fn put_aside(&mut self, seat: Seat, left: Span) -> bool {
        self.places_changed(seat.system);
        self.systems[usize::from(seat.system)].put_aside(usize::from(seat.number), left)
    }

    /// Whether a vCPU is to be woken: it is said once.
    pub(crate) fn has_work(&self, seat: Seat) -> bool {
        !self.systems[usize::from(seat.system)].vcpus[usize::from(seat.number)].is_asleep
    }

    /// Tells the first vCPU of a system, where interrupts and events go, to look.
    pub(crate) fn alert(&mut self, id: SystemId) {
        let alerted = self.systems[usize::from(id)].alert(0);
        self.effects.alert(alerted);
    }

    /// A task takes the step that it took last once more, when it goes on.
    pub(crate) fn repeat_step(&mut self, of: TaskOf) {
        self.of(of).progress.again();
    }

    /// What a draw of a task comes to this time.
    pub(crate) fn draw(&mut self, of: TaskOf, draw: &Draw) -> Span {
        self.of(of).work.draws.draw(draw)
    }

    fn of(&mut self, of: TaskOf) -> &mut Task<'a> {
        &mut self.systems[usize::from(of.system)].tasks[usize::from(of.task)]
    }

    /// Whether a system tells anything.
    pub(crate) fn tells(&self, id: SystemId) -> bool {
        self.systems[usize::from(id)].info.is_some()
    }

    /// What tasks do on a vCPU of a system, or would, if that is something else than when this was
    /// asked for last; of one vCPU after the other.
    pub(crate) fn news(&mut self, id: SystemId) -> Option<(VcpuId, Tasks)> {
        let System { vcpus, info, .. } = &mut self.systems[usize::from(id)];
        let info = info.as_mut()?;
        vcpus.iter().enumerate().filter(|(_, vcpu)| vcpu.is_here).find_map(|(number, vcpu)| {
            let is_anothers = |task| {
                let has = |vcpu: &Vcpu<D>| matches!(vcpu.item.doing, Doing::Task(of) if of == task);
                vcpus.iter().enumerate().any(|(other, vcpu)| other != number && has(vcpu))
            };
            Some((vcpu.id, info.news(number, is_anothers)?))
        })
    }

    /// Whether any vCPU of a system is one of whom something holds.
    pub(crate) fn any(&self, id: SystemId, holds: impl Fn(VcpuId) -> bool) -> bool {
        self.systems[usize::from(id)].vcpus.iter().any(|vcpu| vcpu.is_here && holds(vcpu.id))
    }

    /// Another task than before is on a vCPU: that is news if others could have it.
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

    /// Records the jobs of a system's tasks that are overdue and will never be done, while it is
    /// there.
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

/// A vCPU of a system.
#[derive(Clone, Copy, Debug)]
struct Vcpu<D> {
    id: VcpuId,
    item: Item<D>,
    is_asleep: bool,
    is_here: bool,
}

/// A task.
struct Task<'a> {
    spec: &'a scenario::Task,
    work: Work<'a>,
    progress: Progress,
    /// CPU time it has had in all.
    ran: Span,
}

impl Task<'_> {
    /// How long it wants to run.
    fn stretch(&self) -> Span {
        self.progress.left().min(self.still_to_run())
    }

    fn still_to_run(&self) -> Span {
        self.spec.total.map_or(Span::MAX, |total| total.left_after(self.ran))
    }

    /// It has used so much CPU time.
    fn used(&mut self, used: Span) {
        self.progress.compute(used);
        self.ran += used;
    }
}

/// A system.
struct System<'a, D> {
    spec: &'a scenario::System,
    vcpus: Vec<Vcpu<D>>,
    noise: Stream,
    /// The number of its first task among those of all systems.
    first_task: usize,
    tasks: Vec<Task<'a>>,
    ready: RunQueue,
    /// What it tells, if it tells anything.
    info: Option<TaskInfo>,
}

impl<'a, D: Copy> System<'a, D> {
    fn new(
        spec: &'a scenario::System,
        domain: &Domain,
        (seed, first_task): (u64, usize),
    ) -> System<'a, D> {
        let item = Item { doing: Doing::Nothing, cost: Span::ZERO };
        let vcpu = |&id: &VcpuId| Vcpu { id, item, is_asleep: false, is_here: false };
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
            ready: RunQueue::new(&spec.tasks),
            info: TaskInfo::new(&spec.tasks, spec.tells, domain.vcpus.len()),
        }
    }

    /// Makes a vCPU look at something more urgent; itself, if anything has to be done about that.
    fn alert(&mut self, number: usize) -> Option<VcpuId> {
        let vcpu = &mut self.vcpus[number];
        let must = vcpu.is_here && (vcpu.is_asleep || matches!(vcpu.item.doing, Doing::Task(_)));
        vcpu.is_asleep &= !must;
        must.then_some(vcpu.id)
    }

    /// Which task a vCPU runs next; if none, it finds that out once, which takes `idle` more than
    /// the system's own.
    #[inline]
    fn choose(&mut self, has_idled: HasIdled, idle: Span) -> Option<Item<D>> {
        if let Some(task) = self.ready.pop() {
            let cost = self.tasks[usize::from(task)].stretch().min(self.spec.quantum);
            return Some(Item { doing: Doing::Task(task), cost });
        }
        let idle = idle + self.spec.costs.idle;
        if idle.is_zero() || has_idled == HasIdled::Yes {
            return None;
        }
        let cost = self.noise.vary(idle, self.spec.costs.noise_ppm);
        Some(Item { doing: Doing::Idle, cost })
    }

    /// Which vCPU should look because this task has become ready; none if whoever is free next will
    /// find it.
    fn place(&mut self, task: u16) -> Option<VcpuId> {
        let level = self.ready.level(task);
        let asleep = self.vcpus.iter().position(|vcpu| vcpu.is_here && vcpu.is_asleep);
        if let Some(number) = asleep {
            return self.alert(number);
        }
        let least = |vcpu: &Vcpu<D>| match vcpu.item.doing {
            Doing::Task(other) => self.ready.level(other),
            _ => 0,
        };
        let (number, runs) = self
            .vcpus
            .iter()
            .map(least)
            .enumerate()
            .max_by_key(|&(number, level)| (level, std::cmp::Reverse(number)))?;
        if runs > level { self.alert(number) } else { None }
    }

    /// Puts the task of a vCPU aside, with so much left of its stretch; whether there was one.
    fn put_aside(&mut self, number: usize, left: Span) -> bool {
        let item = &mut self.vcpus[number].item;
        let Doing::Task(task) = item.doing else { return false };
        item.doing = Doing::Nothing;
        let used = item.cost.left_after(left);
        self.tasks[usize::from(task)].used(used);
        self.ready.push_first(task);
        true
    }
}

/// Whether a vCPU has just found that there is nothing to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HasIdled {
    No,
    Yes,
}

/// What happens at an instant: to which systems, and what it leads to.
pub(crate) struct Context<'c, 'a, D> {
    pub(crate) now: Time,
    pub(crate) systems: &'c mut Systems<'a, D>,
    pub(crate) queue: &'c mut Queue,
}

impl<D: Copy> Context<'_, '_, D> {
    /// A vCPU of a system joins: it will be woken once, to find out what there is to do. With the
    /// first all tasks begin.
    pub(crate) fn join(&mut self, seat: Seat, devices: &mut impl Devices<Duty = D>) {
        let vcpu = self.systems.vcpu(seat);
        vcpu.is_here = true;
        vcpu.is_asleep = false;
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

    /// What a vCPU did has been done.
    #[inline(always)]
    pub(crate) fn finish(
        &mut self,
        seat: Seat,
        Item { doing, cost }: Item<D>,
        devices: &mut impl Devices<Duty = D>,
    ) {
        match doing {
            Doing::Nothing | Doing::Idle => {}
            Doing::Devices(duty) => devices.finish(seat, (duty, cost), self),
            Doing::Task(task) => {
                self.finish_task(TaskOf { system: seat.system, task }, cost, devices);
            }
        }
    }

    /// What a vCPU does next that has done something, and how long that takes; none if there is
    /// nothing: then it blocks.
    #[inline(always)]
    pub(crate) fn next(
        &mut self,
        seat: Seat,
        last: Item<D>,
        devices: &mut impl Devices<Duty = D>,
    ) -> Option<Item<D>> {
        if let Some((duty, cost)) = devices.choose(seat, self) {
            return Some(Item { doing: Doing::Devices(duty), cost });
        }
        let system = &mut self.systems.systems[usize::from(seat.system)];
        let has_idled =
            if matches!(last.doing, Doing::Idle) { HasIdled::Yes } else { HasIdled::No };
        let chosen = system.choose(has_idled, devices.idle(seat));
        if chosen.is_none() {
            system.vcpus[usize::from(seat.number)].is_asleep = true;
            devices.blocks(seat, self);
        }
        self.systems.places_changed(seat.system);
        chosen
    }

    /// A task has what it waited for.
    pub(crate) fn go_on(&mut self, of: TaskOf, cause: Cause, devices: &mut impl Devices<Duty = D>) {
        let need = self.advance(of, devices);
        self.systems.set_state(of, state(need));
        let system = &mut self.systems.systems[usize::from(of.system)];
        match need {
            Need::Cpu | Need::Yield => {
                if let (Some(info), Cause::Io) = (&mut system.info, cause) {
                    info.woken_by_io(of.task);
                }
                system.ready.push_last(of.task);
                let alerted = system.place(of.task);
                self.systems.effects.alert(alerted);
            }
            Need::Sleep(until) => self.wake_at(until, of),
            // Nodes of parallel programs and who takes locks have no system.
            Need::Device(_) | Need::Others(_) | Need::Lock | Need::Unlock | Need::Nothing => {}
        }
    }

    /// A task has run for as long as it could.
    fn finish_task(&mut self, of: TaskOf, used: Span, devices: &mut impl Devices<Duty = D>) {
        let system = &mut self.systems.systems[usize::from(of.system)];
        let task = &mut system.tasks[usize::from(of.task)];
        task.used(used);
        if task.still_to_run().is_zero() {
            let (vcpu, task, released) = (system.vcpus[0].id, task.spec.id, task.progress.began());
            let (deadline, done) = (Time::NEVER, self.now);
            self.systems.record(Record::Job { vcpu, task, released, deadline, done });
            self.systems.set_state(of, State::Over);
            return;
        }
        if !task.progress.left().is_zero() {
            system.ready.push_last(of.task);
            return;
        }
        let need = self.advance(of, devices);
        self.systems.set_state(of, state(need));
        match need {
            Need::Cpu => self.systems.systems[usize::from(of.system)].ready.push_first(of.task),
            Need::Yield => self.systems.systems[usize::from(of.system)].ready.push_last(of.task),
            Need::Sleep(until) => self.wake_at(until, of),
            // Nodes of parallel programs and who takes locks have no system.
            Need::Device(_) | Need::Others(_) | Need::Lock | Need::Unlock | Need::Nothing => {}
        }
    }

    fn wake_at(&mut self, at: Time, task: TaskOf) {
        let first = self.systems.systems[usize::from(task.system)].first_task;
        self.queue.push(at, Event::Task, first + usize::from(task.task));
    }

    /// Takes the steps of a task up to one that takes time; if that is a device's, it has begun.
    fn advance(&mut self, of: TaskOf, devices: &mut impl Devices<Duty = D>) -> Need {
        let mut at_once = AtOnce::new();
        loop {
            let Systems { systems, effects, .. } = &mut *self.systems;
            let system = &mut systems[usize::from(of.system)];
            let vcpu = system.vcpus[0].id;
            let Task { spec, work, progress, .. } = &mut system.tasks[usize::from(of.task)];
            let need = progress.advance(work, self.now, &mut at_once, |job| {
                let (task, done) = (spec.id, self.now);
                let (released, deadline) = (job.released, job.deadline);
                effects.record(Record::Job { vcpu, task, released, deadline, done });
            });
            let Need::Device(step) = need else { return need };
            if devices.step(of, step, self) == Then::Wait {
                return need;
            }
        }
    }
}

/// What a task is at that needs this.
fn state(need: Need) -> State {
    match need {
        Need::Cpu | Need::Yield | Need::Lock | Need::Unlock => State::Wants,
        Need::Sleep(_) | Need::Others(_) | Need::Device(_) => State::Waits,
        Need::Nothing => State::Over,
    }
}
