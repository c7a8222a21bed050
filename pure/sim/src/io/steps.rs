//! The steps of tasks that need devices.

use slackline_scenario::io::DeviceStep;

use super::flow::{A_TASK, packets};
use super::packet::PacketMessage;
use super::{Context, Io};
use crate::guest::{TaskOf, TaskStep};

impl Io<'_> {
    /// Begins a step of a task that needs a device. If the step leaves work for devices, the first
    /// vCPU immediately looks for that work, whichever vCPU ran the task.
    pub(super) fn take_step(
        &mut self,
        of: TaskOf,
        step: DeviceStep,
        context: &mut Context<'_, '_>,
    ) -> TaskStep {
        let taken = self.begin_step(of, step, context);
        self.call_first(of.system, context);
        taken
    }

    fn begin_step(
        &mut self,
        of: TaskOf,
        step: DeviceStep,
        context: &mut Context<'_, '_>,
    ) -> TaskStep {
        let TaskOf { system: id, task } = of;
        let frontend = &mut self.frontends[usize::from(id)];
        match step {
            DeviceStep::Accept => {
                let request = frontend.take_request(task);
                frontend.taken[usize::from(task)] = request;
                if request.is_none() {
                    context.systems.repeat_step(of);
                    // The pending I/O may be for this task.
                    self.pending_changed(id, context);
                    return TaskStep::Wait;
                }
                TaskStep::GoOn
            }
            DeviceStep::Answer { bytes } => {
                if let Some(request) = frontend.taken[usize::from(task)].take() {
                    self.answer(of, (request, bytes), context);
                }
                TaskStep::GoOn
            }
            DeviceStep::Read { bytes } => {
                frontend.asking.push_back((task, bytes));
                TaskStep::Wait
            }
            DeviceStep::Ask { bytes, wait } => {
                let wait = context.systems.draw(of, &wait);
                let packet = self.flows.open(A_TASK, id, context.now);
                let flow = self.flows.of(packet);
                (flow.task, flow.expected, flow.wait) = (task, packets(bytes), wait);
                self.send(id, packet.saying(PacketMessage::Ask), context);
                TaskStep::Wait
            }
            DeviceStep::Send { bytes } => self.put_in_stream(of, bytes, context),
        }
    }

    /// Adds data to the outgoing stream of a guest. The task that adds the data waits if the stream
    /// has no room for more.
    fn put_in_stream(&mut self, of: TaskOf, bytes: u64, context: &mut Context<'_, '_>) -> TaskStep {
        let Some(client) = self.stream_out_of(of.system) else { return TaskStep::Wait };
        self.clients[client].stream.unsent += bytes;
        self.send_stream(of.system, client, context);
        let stream = &mut self.clients[client].stream;
        if stream.has_room() {
            return TaskStep::GoOn;
        }
        stream.waiting = Some(of.task);
        TaskStep::Wait
    }
}
