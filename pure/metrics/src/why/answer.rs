//! Answers to the question why a VM waited: the causes of waiting for each of its vCPUs.

use slackline_trace::Note;
use slackline_units::{CpuId, Span, Time, VcpuId};

use super::culprit::Culprit;

/// Interval in which events of a CPU were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// CPU whose events were lost, by its number on the recorded host.
    pub cpu: CpuId,
    /// Start of the gap.
    pub from: Time,
    /// End of the gap.
    pub to: Time,
    /// Number of events that were lost, as a lower bound.
    pub events: u64,
}

/// Causes for which one vCPU waited, its "culprits".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blame {
    /// The vCPU that waited.
    pub vcpu: VcpuId,
    /// Name of the vCPU.
    pub name: String,
    /// Length of the time in which the waits of the vCPU are known: from its join or the start of
    /// the recording, until it left or the recording ended.
    pub recorded: Span,
    /// Time that the vCPU ran on CPUs, without stolen time.
    pub ran: Span,
    /// Time in which the vCPU was runnable or kept from running, and did not run. This time is the
    /// sum of the times of all culprits.
    pub waited: Span,
    /// Each cause of waiting with its time. The cause with the longest time comes first.
    pub culprits: Vec<(Culprit, Span)>,
    /// Parts of all waits, each with its cause, in no order. Filled only if the waits of all VMs
    /// are explained. Stolen time has no parts.
    pub parts: Vec<(Time, Time, Culprit)>,
    /// CPU time and CPU ready, by the kernel and from the recording. `None` if the recording has no
    /// kernel accounting of the vCPU.
    pub check: Option<Check>,
}

/// CPU time and CPU ready (time on run queues) of a vCPU in one interval, by the kernel and from
/// the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// CPU time as the kernel counted it.
    pub kernel_used: Span,
    /// CPU ready as the kernel counted it: time on run queues, without time in stops and pauses.
    pub kernel_ready: Span,
    /// CPU time from the recording.
    pub used: Span,
    /// CPU ready from the recording: time on run queues, in waits that have ended.
    pub ready: Span,
}

/// Causes of waiting for each vCPU of a VM, with the gaps of the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Length of the recording.
    pub length: Span,
    /// Causes of waiting for each vCPU of the VM.
    pub vcpus: Vec<Blame>,
    /// Intervals in which events were lost.
    pub gaps: Vec<Gap>,
    /// Remarks about the recording as a whole.
    pub notes: Vec<Note>,
    /// Names of all VMs in the recording.
    pub vms: Vec<String>,
}

impl Blame {
    pub(super) fn add(&mut self, other: Blame) {
        self.ran += other.ran;
        self.waited += other.waited;
        self.parts.extend(other.parts);
        for (culprit, span) in other.culprits {
            match self.culprits.iter_mut().find(|(known, _)| *known == culprit) {
                Some((_, sum)) => *sum += span,
                None => self.culprits.push((culprit, span)),
            }
        }
        self.check = match (self.check, other.check) {
            (Some(one), Some(more)) => Some(Check {
                kernel_used: one.kernel_used + more.kernel_used,
                kernel_ready: one.kernel_ready + more.kernel_ready,
                used: one.used + more.used,
                ready: one.ready + more.ready,
            }),
            (one, other) => one.or(other),
        };
    }

    pub(super) fn sort(&mut self) {
        self.culprits.sort_by(|(a, of_a), (b, of_b)| of_b.cmp(of_a).then(a.cmp(b)));
    }

    /// Returns the total time of the causes that `is_it` selects.
    #[must_use]
    pub fn of(&self, is_it: impl Fn(&Culprit) -> bool) -> Span {
        self.culprits.iter().filter(|(culprit, _)| is_it(culprit)).map(|&(_, span)| span).sum()
    }

    /// Returns the causes of waiting in the form that a tenant is allowed to see. Names of VMs,
    /// host processes and kernel threads are removed, and so are the parts of waits. VMs for which
    /// `owns` returns true keep their names.
    #[must_use]
    pub fn for_tenant(&self, owns: impl Fn(&str) -> bool) -> Blame {
        let hidden = self.culprits.iter().map(|(it, span)| (it.for_tenant(&owns), *span));
        let mut blame = Blame { culprits: Vec::new(), parts: Vec::new(), ..self.clone() };
        for (culprit, span) in hidden {
            match blame.culprits.iter_mut().find(|(known, _)| *known == culprit) {
                Some((_, sum)) => *sum += span,
                None => blame.culprits.push((culprit, span)),
            }
        }
        blame.sort();
        blame
    }
}
