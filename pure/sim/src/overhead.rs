//! Overhead that a CPU has incurred and not yet paid.
//!
//! Overhead takes time of the CPU, as an interrupt does. The running vCPU pays the overhead. On an
//! idle CPU, the overhead passes while no vCPU runs, and a vCPU that starts before its end pays the
//! rest. The costs of a migration and of a cold cache belong to one vCPU instead. If that vCPU
//! stops before it has paid them, it pays the remainder when it runs on that CPU again. The
//! remainder of a refill is limited to the cost of filling the cache with the domain's whole
//! working set. The cost of a dispatch has no remainder: the next dispatch is paid in full.

use slackline_trace::{OverheadKind, Record};
use slackline_units::{CpuId, Span, Time, VcpuId};

/// Overhead of one CPU in the order in which it was incurred.
#[derive(Clone, Debug)]
pub(crate) struct PendingOverhead {
    queue: Vec<(OverheadKind, Span)>,
    /// Start of the first overhead in the queue.
    from: Time,
}

impl PendingOverhead {
    pub(crate) const NONE: PendingOverhead =
        PendingOverhead { queue: Vec::new(), from: Time::START };

    /// Adds overhead that is incurred now. All overhead that ended before now must have been paid
    /// already.
    pub(crate) fn add(&mut self, now: Time, kind: OverheadKind, span: Span) {
        if span.is_zero() {
            return;
        }
        if self.queue.is_empty() {
            self.from = now;
        }
        self.queue.push((kind, span));
    }

    /// Postpones unpaid overhead: none of it is paid during the next `span`.
    pub(crate) fn postpone(&mut self, span: Span) {
        self.from = self.from.after(span);
    }

    /// Pays the overhead that lies before `now`, and records it. The vCPU that ran since the last
    /// payment pays.
    #[inline]
    pub(crate) fn pay(
        &mut self,
        now: Time,
        (cpu, vcpu): (CpuId, Option<VcpuId>),
        records: &mut Vec<Record>,
    ) {
        if !self.queue.is_empty() {
            self.pay_first(now, (cpu, vcpu), records);
        }
    }

    #[inline(never)] // Most scenarios have no overhead.
    fn pay_first(
        &mut self,
        now: Time,
        (cpu, vcpu): (CpuId, Option<VcpuId>),
        records: &mut Vec<Record>,
    ) {
        while self.from < now
            && let Some((kind, span)) = self.queue.first_mut()
        {
            let (from, paid) = (self.from, (*span).min(now - self.from));
            self.from += paid;
            *span -= paid;
            records.push(Record::Spent { cpu, vcpu, kind: *kind, from, to: self.from });
            if span.is_zero() {
                self.queue.remove(0);
            }
        }
    }

    /// Returns the time at which all overhead of the CPU is paid. A vCPU that starts now begins to
    /// work then.
    #[inline]
    pub(crate) fn end(&self, now: Time) -> Time {
        self.queue.iter().fold(now, |end, &(_, span)| end.after(span))
    }

    /// Removes and returns the overhead that belongs to the vCPU that stops: its migration and its
    /// cache refill.
    #[inline]
    pub(crate) fn take_own(&mut self) -> VcpuOverhead {
        let mut own = VcpuOverhead::default();
        self.queue.retain(|&(kind, span)| match kind {
            OverheadKind::Migration => {
                own.migration += span;
                false
            }
            OverheadKind::Refill => {
                own.refill += span;
                false
            }
            _ => true,
        });
        own
    }
}

/// Overhead that belongs to one vCPU and stays unpaid while other vCPUs run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct VcpuOverhead {
    pub(crate) migration: Span,
    pub(crate) refill: Span,
}
