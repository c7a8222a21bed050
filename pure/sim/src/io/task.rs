//! The tasks of a system: each steps through its program.

use slackline_scenario::Step;
use slackline_scenario::io::{self, TaskStep};
use slackline_scenario::{Draw, Stream};
use slackline_trace::Record;
use slackline_units::{Span, Time};

use super::flow::{A_TASK, packets};
use super::packet::{Packet, Says};
use super::{Io, SystemId};
use crate::queue::{Event, Queue};

/// A task.
pub(super) struct Task<'a> {
    spec: &'a io::Task,
    /// Its place among the priorities of its system: zero is most urgent.
    pub(super) level: usize,
    draws: Stream,
    /// The next step.
    step: usize,
    /// CPU time it still wants before that.
    left: Span,
    /// CPU time it has had in all.
    ran: Span,
    began: Time,
    releases: u64,
    released: Time,
    deadline: Time,
    /// The request it has taken.
    request: Option<Packet>,
}

/// What a task needs to go on.
enum Need {
    Cpu,
    /// That it becomes this late.
    Time(Time),
    /// Something that wakes it.
    Other,
}

/// How many steps a task may take at one instant.
const STEPS_AT_ONCE: u32 = 10_000;

impl<'a> Task<'a> {
    pub(super) fn new(spec: &'a io::Task, level: usize, draws: Stream) -> Task<'a> {
        Task {
            spec,
            level,
            draws,
            step: 0,
            left: Span::ZERO,
            ran: Span::ZERO,
            began: Time::START,
            releases: 0,
            released: Time::START,
            deadline: Time::NEVER,
            request: None,
        }
    }

    /// How long it wants to run.
    pub(super) fn stretch(&self) -> Span {
        self.left.min(self.still_to_run())
    }

    fn still_to_run(&self) -> Span {
        self.spec.total.map_or(Span::MAX, |total| total.left_after(self.ran))
    }

    /// It has used so much CPU time.
    pub(super) fn used(&mut self, used: Span) {
        if self.left != Span::MAX {
            self.left = self.left.left_after(used);
        }
        self.ran += used;
    }

    /// The question it asks: how many packets answer it, and how long that takes.
    pub(super) fn question(&mut self) -> (u32, Span) {
        match self.spec.steps[self.step - 1] {
            TaskStep::Ask { bytes, wait } => (packets(bytes), self.draws.draw(&wait)),
            _ => (1, Span::ZERO),
        }
    }

    fn release(&mut self, (period, deadline): (Span, Option<Span>), offset: Span) -> Time {
        let released = self.began.after(offset).after(period * self.releases);
        self.releases += 1;
        self.released = released;
        self.deadline = deadline.map_or(Time::NEVER, |span| released.after(span));
        released
    }

    fn draw(&mut self, draw: &Draw) -> Span {
        self.draws.draw(draw)
    }
}

impl Io<'_> {
    /// All tasks of a system begin.
    pub(super) fn start_tasks(&mut self, id: SystemId, queue: &mut Queue) {
        let tasks = self.systems[usize::from(id)].tasks.len();
        for task in (0..).take(tasks) {
            self.systems[usize::from(id)].tasks[usize::from(task)].began = self.now;
            self.go_on_with_task(id, task, queue);
        }
    }

    /// A task has what it waited for.
    pub(super) fn go_on_with_task(&mut self, id: SystemId, task: u16, queue: &mut Queue) {
        match self.step_task(id, task, queue) {
            Need::Cpu => {
                let system = &mut self.systems[usize::from(id)];
                system.ready_last(task);
                if let Some(vcpu) = system.place(task) {
                    self.effects.alert(vcpu);
                }
            }
            Need::Time(at) => {
                let place = self.systems[usize::from(id)].first_task + usize::from(task);
                queue.push(at, Event::Task, place);
            }
            Need::Other => {}
        }
    }

    /// A task has run for as long as it could.
    pub(super) fn finish_task(
        &mut self,
        id: SystemId,
        (task, used): (u16, Span),
        queue: &mut Queue,
    ) {
        let system = &mut self.systems[usize::from(id)];
        let vcpu = system.first();
        let this = &mut system.tasks[usize::from(task)];
        this.used(used);
        if this.still_to_run().is_zero() {
            let (released, done) = (this.began, self.now);
            self.effects.record(Record::Job {
                vcpu,
                task: None,
                released,
                deadline: Time::NEVER,
                done,
            });
            return;
        }
        if !this.left.is_zero() {
            system.ready_last(task);
            return;
        }
        match self.step_task(id, task, queue) {
            Need::Cpu => self.systems[usize::from(id)].ready_first(task),
            Need::Time(at) => {
                let place = self.systems[usize::from(id)].first_task + usize::from(task);
                queue.push(at, Event::Task, place);
            }
            Need::Other => {}
        }
    }

    /// Takes the steps of a task that take no time, up to one that does.
    fn step_task(&mut self, id: SystemId, task: u16, queue: &mut Queue) -> Need {
        for _ in 0..STEPS_AT_ONCE {
            let system = &mut self.systems[usize::from(id)];
            let this = &mut system.tasks[usize::from(task)];
            let Some(step) = this.spec.steps.get(this.step) else {
                if !this.spec.repeat || this.spec.steps.is_empty() {
                    return Need::Other;
                }
                this.step = 0;
                continue;
            };
            this.step += 1;
            match *step {
                TaskStep::Plain(step) => {
                    if let Some(need) = self.plain_step(id, task, step) {
                        return need;
                    }
                }
                TaskStep::Accept => {
                    this.request = system.requests.pop_front();
                    if this.request.is_none() {
                        this.step -= 1;
                        system.acceptors.push_back(task);
                        return Need::Other;
                    }
                }
                TaskStep::Answer { bytes } => {
                    if let Some(request) = this.request.take() {
                        self.answer(id, (request, bytes), queue);
                    }
                }
                TaskStep::Read { bytes } => {
                    system.asking.push_back((task, bytes));
                    return Need::Other;
                }
                TaskStep::Ask { .. } => {
                    let packet = self.flows.open(A_TASK, id, self.now);
                    self.flows.of(packet).task = task;
                    self.send(id, packet.saying(Says::Ask), queue);
                    return Need::Other;
                }
                TaskStep::Send { bytes } => {
                    if self.put_in_stream(id, (task, bytes), queue) {
                        return Need::Other;
                    }
                }
            }
        }
        Need::Time(self.now.after(Span::from_ns(1)))
    }

    /// A step that needs no device.
    fn plain_step(&mut self, id: SystemId, task: u16, step: Step) -> Option<Need> {
        let system = &mut self.systems[usize::from(id)];
        let vcpu = system.first();
        let this = &mut system.tasks[usize::from(task)];
        match step {
            Step::Compute(draw) => {
                this.left = this.draw(&draw);
                (!this.left.is_zero()).then_some(Need::Cpu)
            }
            Step::ComputeForever => {
                this.left = Span::MAX;
                Some(Need::Cpu)
            }
            Step::Sleep(draw) => {
                let span = this.draw(&draw);
                (!span.is_zero()).then(|| Need::Time(self.now.after(span)))
            }
            Step::Release { period, deadline, offset } => {
                let released = this.release((period, deadline), offset);
                (released > self.now).then_some(Need::Time(released))
            }
            Step::Done => {
                let (released, deadline) = (this.released, this.deadline);
                let done = self.now;
                self.effects.record(Record::Job { vcpu, task: None, released, deadline, done });
                None
            }
        }
    }

    /// A task puts data in the stream to its client; whether it then has to wait for room.
    fn put_in_stream(
        &mut self,
        id: SystemId,
        (task, bytes): (u16, u64),
        queue: &mut Queue,
    ) -> bool {
        let Some(client) = self.stream_out_of(id) else { return true };
        self.clients[client].stream.unsent += bytes;
        self.send_stream(id, client, queue);
        let stream = &mut self.clients[client].stream;
        let waits = !stream.has_room();
        if waits {
            stream.waiting = Some(task);
        }
        waits
    }
}
