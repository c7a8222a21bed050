//! The steps of tasks that need devices.

use slackline_scenario::io::DeviceStep;

use super::flow::{A_TASK, packets};
use super::packet::Says;
use super::{Context, Io};
use crate::guest::{TaskOf, Then};

impl Io<'_> {
    /// Begins a step of a task that needs a device.
    pub(super) fn take_step(
        &mut self,
        of: TaskOf,
        step: DeviceStep,
        context: &mut Context<'_, '_>,
    ) -> Then {
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
                    return Then::Wait;
                }
                Then::GoOn
            }
            DeviceStep::Answer { bytes } => {
                if let Some(request) = frontend.taken[usize::from(task)].take() {
                    self.answer(of, (request, bytes), context);
                }
                Then::GoOn
            }
            DeviceStep::Read { bytes } => {
                frontend.asking.push_back((task, bytes));
                Then::Wait
            }
            DeviceStep::Ask { bytes, wait } => {
                let wait = context.systems.draw(of, &wait);
                let packet = self.flows.open(A_TASK, id, context.now);
                let flow = self.flows.of(packet);
                (flow.task, flow.expected, flow.wait) = (task, packets(bytes), wait);
                self.send(id, packet.saying(Says::Ask), context);
                Then::Wait
            }
            DeviceStep::Send { bytes } => self.put_in_stream(of, bytes, context),
        }
    }

    /// Adds data to the stream of a task. The task waits if there is no room for more.
    fn put_in_stream(&mut self, of: TaskOf, bytes: u64, context: &mut Context<'_, '_>) -> Then {
        let Some(client) = self.stream_out_of(of.system) else { return Then::Wait };
        self.clients[client].stream.unsent += bytes;
        self.send_stream(of.system, client, context);
        let stream = &mut self.clients[client].stream;
        if stream.has_room() {
            return Then::GoOn;
        }
        stream.waiting = Some(of.task);
        Then::Wait
    }
}
