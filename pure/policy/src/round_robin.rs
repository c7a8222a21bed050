//! Round robin: everybody awake takes turns of one quantum, in one queue for all CPUs.
//!
//! Who wakes goes to the end of the queue, and so does who has used up a quantum. Nobody is ever
//! made to give way early. The plainest policy there is, for comparison.
//!
//! Holds after every call: who is awake stands in the queue or is in a turn, never both.

use alloc::boxed::Box;
use alloc::string::ToString;

use slackline_units::{CpuId, CpuSet, Span, VcpuId};

use crate::queue::Queues;
use crate::{
    Account, AdmitError, Claim, Field, Moment, Pick, Policy, Roster, Spec, TurnEnd, Values,
};

const QUANTUM: Field = Field::positive_span("quantum", "10ms", "how long a turn lasts");

/// What people meet.
pub(crate) const SPEC: Spec = Spec {
    name: "round-robin",
    summary: "everybody takes turns of one quantum",
    page: "Everybody who is awake takes turns of one quantum, in one queue for all CPUs. Who wakes
goes to the end of the queue, and so does who has used up a quantum. Nobody is made
to give way early, so a vCPU that wakes waits until those before it have had their
turns: up to (awake vCPUs - 1) x quantum / CPUs. Shares cannot be set: everybody gets
the same. It promises nothing, and is here to be compared with.",
    policy_fields: &[QUANTUM],
    share_fields: &[],
    promise: |_| Ok(None),
    build: |values, _| Box::new(RoundRobin::new(values.span(&QUANTUM))),
};

/// The one queue.
const QUEUE: usize = 0;

struct RoundRobin {
    quantum: Span,
    /// By ticket: lower came earlier.
    queue: Queues<u64>,
    next_ticket: u64,
    /// How much of its turn each vCPU has used.
    used: Roster<Span>,
}

impl Policy for RoundRobin {
    fn admit(&mut self, _: &Moment, vcpu: VcpuId, _: &Values) -> Result<(), AdmitError> {
        self.used.insert(vcpu, Span::ZERO);
        Ok(())
    }

    fn adjust(&mut self, _: &Moment, _: VcpuId, _: &Values) -> Result<CpuSet, AdmitError> {
        Ok(CpuSet::NONE)
    }

    fn leave(&mut self, _: &Moment, vcpu: VcpuId) {
        self.queue.remove(vcpu);
        self.used.remove(vcpu);
    }

    fn wake(&mut self, _: &Moment, vcpu: VcpuId) -> CpuSet {
        self.join_queue(vcpu);
        CpuSet::NONE
    }

    fn start(&mut self, _: &Moment, vcpu: VcpuId) {
        self.queue.remove(vcpu);
    }

    fn charge(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) {
        if at.cpu_of(vcpu).is_some() {
            self.used[vcpu] += ran;
        }
    }

    fn turn_over(&mut self, _: &Moment, vcpu: VcpuId, _: TurnEnd) {
        self.join_queue(vcpu);
    }

    fn block(&mut self, _: &Moment, vcpu: VcpuId) {
        self.queue.remove(vcpu);
    }

    fn pick(&self, at: &Moment, cpu: CpuId) -> Pick {
        let in_turn = |&vcpu: &VcpuId| self.queue.queue_of(vcpu).is_none();
        let occupant = at.occupant(cpu).filter(|&vcpu| at.is_eligible(vcpu, cpu));
        let Some(vcpu) = occupant.filter(in_turn).or_else(|| self.next(at, cpu)) else {
            return Pick::Idle;
        };
        // A turn that ends at this very instant, or ended while a timer was late, ends at the next.
        let limit = self.quantum.left_after(self.used[vcpu]).max(Span::from_ns(1));
        Pick::Run { vcpu, limit: Some(limit), claim: Claim::Due }
    }

    fn account(&self, vcpu: VcpuId) -> Account {
        alloc::vec![("turn used", self.used[vcpu].to_string())]
    }
}

impl RoundRobin {
    fn new(quantum: Span) -> RoundRobin {
        let queue = Queues::new(1);
        RoundRobin { quantum, queue, next_ticket: 0, used: Roster::default() }
    }

    fn join_queue(&mut self, vcpu: VcpuId) {
        self.used[vcpu] = Span::ZERO;
        self.queue.remove(vcpu);
        self.queue.insert(QUEUE, self.next_ticket, vcpu);
        self.next_ticket += 1;
    }

    /// The first in the queue; the walk is for the rare case that a machine refused it.
    fn next(&self, at: &Moment, cpu: CpuId) -> Option<VcpuId> {
        let (_, first) = self.queue.first(QUEUE)?;
        if at.is_eligible(first, cpu) {
            return Some(first);
        }
        let eligible = self.queue.iter(QUEUE).filter(|&(_, vcpu)| at.is_eligible(vcpu, cpu));
        eligible.min().map(|(_, vcpu)| vcpu)
    }
}

#[cfg(test)]
mod tests {
    use crate::picture::picture;

    #[test]
    fn everybody_takes_turns() {
        picture(
            "round-robin quantum=3ms",
            "
            a     rrrrrrrrrrrrrrrrrrrrrrrr
            b     rrrrrrrrrrrrrrrrrrrrrrrr
            c     zzzzzrrrrrrrrrrrrrrrrrrr
            cpu0  aaabbbaaacccbbbaaacccbbb
        ",
        );
    }

    #[test]
    fn who_sleeps_gives_the_rest_of_the_turn_away() {
        picture(
            "round-robin quantum=4ms",
            "
            a     rrzzzzzzrrrrrrrr
            b     rrrrrrrrrrrrrrrr
            cpu0  aabbbbbbbbaaaabb
        ",
        );
    }

    #[test]
    fn two_cpus_serve_one_queue() {
        picture(
            "round-robin quantum=2ms",
            "
            a     rrrrrrrrrrrr
            b     rrrrrrrrrrrr
            c     rrrrrrrrrrrr
            cpu0  aaccbbaaccbb
            cpu1  bbaaccbbaacc
        ",
        );
    }
}
