//! Round robin: all runnable vCPUs get timeslices of one quantum in turn, in one queue for all
//! CPUs.
//!
//! A vCPU that wakes, or that has used its quantum, goes to the end of the queue. No vCPU is
//! preempted. This is the simplest policy and the baseline of comparisons.
//!
//! Holds after every call: a runnable vCPU is in the queue or in a timeslice, never in both.
//!
//! By Xen's rules each CPU has its own queue, and a vCPU that wakes goes to the front.

mod xen;

use alloc::boxed::Box;
use alloc::string::ToString;

use slackline_units::{CpuId, CpuSet, Span, VcpuId};

use crate::queues::fifo::FifoQueue;
use crate::{
    Account, AdmitError, Entitlement, Field, Moment, Pick, Policy, Roster, Spec, TimesliceEnd,
    Values,
};

const RULES: Field = Field::choice(
    "rules",
    &["plain", "xen-2.0"],
    "Slackline's rules, or those of Xen 2.0's rrobin",
);
const QUANTUM: Field = Field::positive_span("quantum", "10ms", "length of a timeslice");

/// Description of the policy `round-robin`.
pub(crate) const SPEC: Spec = Spec {
    name: "round-robin",
    summary: "runnable vCPUs take turns of one quantum",
    page: "\
All runnable vCPUs take turns of one quantum, in one queue for all CPUs.

When to use it: as the baseline of a comparison. `round-robin` has no weights
and no reservations.

  policy = { name = \"round-robin\", quantum = \"10ms\" }
  [[domain]]
  name = \"web\"
  work = { kind = \"spin\" }

{parameters}
Rules:
- A vCPU that wakes, or has used its quantum, goes to the tail of the queue.
- No vCPU is preempted before its quantum ends.
- rules = \"xen-2.0\" decides as rrobin in Xen 2.0. Each CPU has its own queue,
  and a vCPU joins the CPU with the fewest vCPUs. A vCPU that wakes goes to the
  head of its queue and runs when the current quantum ends.

Limits:
- A vCPU that may run on every CPU waits at most
  (runnable vCPUs - 1) x quantum / CPUs.
- By Xen's rules vCPUs that wake often can delay a spinning vCPU without bound.

See also: `slackline help credit` (weights), `edf` (reservations).",
    policy_fields: &[RULES, QUANTUM],
    share_fields: &[],
    conflict: |_| None,
    promise: |_| Ok(None),
    keeps: |_, _| true,
    limit: None,
    together: None,
    payer: None,
    build: |values, topology| match values.choice(&RULES) {
        "xen-2.0" => Box::new(xen::XenRoundRobin::new(values.span(&QUANTUM), topology)),
        _ => Box::new(RoundRobin::new(values.span(&QUANTUM))),
    },
};

struct RoundRobin {
    quantum: Span,
    queue: FifoQueue,
    /// CPU time that each vCPU has used of its current timeslice. A vCPU that is picked again runs
    /// for the rest of that timeslice.
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

    fn on_leave(&mut self, _: &Moment, vcpu: VcpuId) -> CpuSet {
        self.queue.remove(vcpu);
        self.used.remove(vcpu);
        CpuSet::NONE
    }

    fn on_wake(&mut self, _: &Moment, vcpu: VcpuId) -> CpuSet {
        self.join_queue(vcpu);
        CpuSet::NONE
    }

    fn on_start(&mut self, _: &Moment, vcpu: VcpuId) -> CpuSet {
        self.queue.remove(vcpu);
        CpuSet::NONE
    }

    fn charge(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) -> CpuSet {
        if at.cpu_of(vcpu).is_some() {
            self.used[vcpu] += ran;
        }
        CpuSet::NONE
    }

    fn on_timeslice_end(&mut self, _: &Moment, vcpu: VcpuId, _: TimesliceEnd) -> CpuSet {
        self.join_queue(vcpu);
        CpuSet::NONE
    }

    fn on_block(&mut self, _: &Moment, vcpu: VcpuId) -> CpuSet {
        self.queue.remove(vcpu);
        CpuSet::NONE
    }

    fn pick(&self, at: &Moment, cpu: CpuId) -> Pick {
        let in_turn = |&vcpu: &VcpuId| !self.queue.contains(vcpu);
        let occupant = at.occupant(cpu).filter(|&vcpu| at.is_eligible(vcpu, cpu));
        let Some(vcpu) = occupant.filter(in_turn).or_else(|| self.next(at, cpu)) else {
            return Pick::Idle;
        };
        let limit = self.quantum.left_after(self.used[vcpu]);
        Pick::Run { vcpu, limit: Some(limit), entitlement: Entitlement::Due }
    }

    fn account(&self, vcpu: VcpuId) -> Account {
        alloc::vec![("turn used", self.used[vcpu].to_string())]
    }
}

impl RoundRobin {
    fn new(quantum: Span) -> RoundRobin {
        RoundRobin { quantum, queue: FifoQueue::new(), used: Roster::default() }
    }

    /// Puts a vCPU at the end of the queue, with a whole timeslice.
    fn join_queue(&mut self, vcpu: VcpuId) {
        self.used[vcpu] = Span::ZERO;
        self.queue.remove(vcpu);
        self.queue.push(vcpu);
    }

    /// Returns the first vCPU of the queue that is eligible for `cpu`. Usually that is the head of
    /// the queue.
    fn next(&self, at: &Moment, cpu: CpuId) -> Option<VcpuId> {
        self.queue.iter().find(|&vcpu| at.is_eligible(vcpu, cpu))
    }
}

#[cfg(test)]
mod tests {
    use crate::picture::picture;

    #[test]
    fn round_robin_runs_each_runnable_vcpu_for_one_quantum() {
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
    fn round_robin_blocking_vcpu_forfeits_rest_of_quantum() {
        picture(
            "round-robin quantum=4ms",
            "
            a     rrzzzzzzrrrrrrrr
            b     rrrrrrrrrrrrrrrr
            cpu0  aabbbbbbbbaaaabb
        ",
        );
    }

    /// vCPU `c` waits only for the end of the current timeslice.
    #[test]
    fn round_robin_waking_vcpu_runs_next_under_xen_rules() {
        picture(
            "round-robin rules=xen-2.0 quantum=3ms",
            "
            a     rrrrrrrrrrrrrrrrrrrrrrrrrrrr
            b     rrrrrrrrrrrrrrrrrrrrrrrrrrrr
            c     zzzzrzrzrzrzrzrzzzzzrrzzzzzz
            cpu0  bbbaaacbbbcaaacbbbaaacbbbaaa
        ",
        );
    }

    #[test]
    fn xen_round_robin_runs_vcpus_woken_together_in_reverse_order() {
        picture(
            "round-robin rules=xen-2.0 quantum=2ms",
            "
            a     rrrrrrrrrrrrrrr
            b     rrrrrrrrrrrrrrr
            c     rrrrrrrrrrrrrrr
            cpu0  ccbbaaccbbaaccb
        ",
        );
    }

    #[test]
    fn round_robin_keeps_one_queue_per_cpu_under_xen_rules() {
        picture(
            "round-robin rules=xen-2.0 quantum=2ms",
            "
            a     rrrrrrrrrrrr
            b     rrrrrrrrrrrr
            c     rrrrrrrrrrrr
            cpu0  ccaaccaaccaa
            cpu1  bbbbbbbbbbbb
        ",
        );
    }

    #[test]
    fn round_robin_serves_all_cpus_from_one_queue() {
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
