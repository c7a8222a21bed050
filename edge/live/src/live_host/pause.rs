//! Requests about one vCPU other than changes of its share: pausing and resuming a vCPU, turning
//! its hard limit on or off, and restricting the vCPU to some CPUs.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use slackline_host::{Fact, VcpuTerms};
use slackline_trace::{Record, Sink};
use slackline_units::{CpuSet, Reservation, Time, VcpuId};

use super::decider::{Decider, Vcpu, broken};
use super::{LiveHost, LiveHostError, NotDone};
use crate::way::{Place, VcpuHandle};

/// Number of notifications per slice. Each time that a vCPU that counts as blocked has received
/// slice / 8 of CPU time, the kernel notifies the dispatcher. The rest of the slice is long enough
/// for the dispatcher to stop the vCPU in time. When the dispatcher makes the vCPU real-time,
/// notifications end.
const NOTICES: u64 = 8;

/// Smallest ratio of a slice to the CPU time of a dispatcher pass, on a host whose kernel sends no
/// notifications. There a dispatcher makes at least one pass per slice, which may take at most
/// 1/100 of the slice.
const MOST_LOOKING: u64 = 100;

/// Reason why a vCPU is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PauseReason {
    /// A user has requested the pause.
    Requested,
    /// The vCPU has left its CPUs or its cgroup too often.
    Escaped,
}

impl LiveHost {
    /// Makes a reservation the hard limit of a vCPU, or ends the hard limit if `hard_limit` is
    /// `None`. The host must have a means to stop the vCPU.
    pub(crate) fn set_hard_limit(
        &self,
        vcpu: VcpuId,
        hard_limit: Option<Reservation>,
    ) -> Result<(), LiveHostError> {
        let mut decider = self.decider();
        if let Some(known) = decider.get_mut(vcpu) {
            known.hard_limit = hard_limit;
            decider.touched.push(vcpu);
        }
        self.finish(decider)
    }

    /// Requests notifications about a vCPU with this hard limit. They wake the vCPU's dispatcher
    /// when the vCPU receives CPU time while it counts as blocked. If `hard_limit` is `None`, ends
    /// the notifications.
    pub(crate) fn notice_use_of(
        &self,
        vcpu: VcpuId,
        hard_limit: Option<Reservation>,
    ) -> Result<(), NotDone> {
        let handle = self.decider().get(vcpu).map(|known| Arc::clone(&known.handle));
        handle.map_or(Ok(()), |handle| self.notice_use(&handle, hard_limit))
    }

    /// Requests or ends notifications of CPU time use, as
    /// [`notice_use_of`](LiveHost::notice_use_of) does. The vCPU need not have joined yet.
    pub(super) fn notice_use(
        &self,
        handle: &VcpuHandle,
        hard_limit: Option<Reservation>,
    ) -> Result<(), NotDone> {
        let perf = self.perf();
        let Some(perf) = &*perf else { return Ok(()) };
        let slice = hard_limit.map(Reservation::slice);
        let noticed = handle.notice_use(slice.map(|slice| (slice / NOTICES, perf.rings())));
        let (Err(why), Some(slice)) = (noticed, slice) else { return Ok(()) };
        if self.dispatch * MOST_LOOKING > slice {
            return Err(NotDone::Unnoticed { slice, look: self.dispatch, why });
        }
        self.nap.fetch_min(slice.ns(), Ordering::Relaxed);
        Ok(())
    }

    /// Pauses a vCPU that the host can stop. When this function returns, the vCPU has stopped.
    /// Until the vCPU is resumed, it does not run, neither in reserved time nor in slack. The vCPU
    /// keeps its share and counts as blocked. If the vCPU is not present, does nothing. `due` is
    /// the time for which the pause was requested; it is only recorded.
    pub(crate) fn pause(
        &self,
        vcpu: VcpuId,
        reason: PauseReason,
        due: Time,
    ) -> Result<(), NotDone> {
        let mut decider = self.observe()?;
        let result = decider.pause(vcpu, reason);
        decider.note_change(vcpu, due, &result);
        self.finish(decider)?;
        result
    }

    /// Resumes a paused vCPU. If the vCPU was runnable before the pause, its threads continue when
    /// the vCPU is next chosen. `due` is the time for which the change was requested; it is only
    /// recorded.
    ///
    /// If the vCPU was blocked before the pause, its threads continue immediately. The reason is
    /// that the vCPU may have been woken during the pause, which the kernel shows only when the
    /// threads are not stopped.
    pub(crate) fn resume(&self, vcpu: VcpuId, due: Time) -> Result<(), NotDone> {
        let mut decider = self.observe()?;
        let must_look = decider.resume(vcpu)?;
        if must_look {
            decider = self.let_go(decider, vcpu)?;
            decider.ask(vcpu, self.clock.now())?;
        }
        decider.note_change(vcpu, due, &Ok(()));
        self.finish(decider)?;
        Ok(())
    }

    /// Resumes a vCPU that has no hard limit and is not paused, and cancels orders that were given
    /// earlier and not yet carried out. After this call the freezer cgroup, or other means of
    /// stopping the vCPU, may be removed.
    pub(crate) fn let_run(&self, vcpu: VcpuId) -> Result<(), LiveHostError> {
        let decider = self.let_go(self.decider(), vcpu)?;
        self.finish(decider)
    }

    /// Resumes the threads of a vCPU and restores their original scheduling. The restored
    /// scheduling stays until the decider orders another class.
    fn let_go<'a>(
        &'a self,
        mut decider: MutexGuard<'a, Decider>,
        vcpu: VcpuId,
    ) -> Result<MutexGuard<'a, Decider>, LiveHostError> {
        let mut order = Vec::new();
        decider.number += 1;
        decider.assign(vcpu, Place::Original, &mut order);
        drop(decider);
        let failed = self.enforce(&order);
        let mut decider = self.observe()?;
        decider.apply_refusals(failed)?;
        decider.touched.push(vcpu);
        Ok(decider)
    }
}

impl Decider {
    pub(super) fn get(&self, vcpu: VcpuId) -> Option<&Vcpu> {
        self.vcpus.get(vcpu.slot()).and_then(Option::as_ref).filter(|known| known.vcpu == vcpu)
    }

    pub(super) fn get_mut(&mut self, vcpu: VcpuId) -> Option<&mut Vcpu> {
        let known = self.vcpus.get_mut(vcpu.slot()).and_then(Option::as_mut);
        known.filter(|known| known.vcpu == vcpu)
    }

    /// Records the length of a stop of a vCPU, at the moment when the vCPU is resumed. A pause that
    /// a user requested is not recorded as a stop.
    pub(super) fn note_let_go(&mut self, vcpu: VcpuId) {
        let to = self.now;
        let stopped = self.get(vcpu).filter(|known| !known.is_paused || known.has_escaped);
        let Some(from) = stopped.and_then(|known| known.held_since) else { return };
        if from < to {
            self.records.record(&Record::Stopped { vcpu, from, to });
        }
    }

    fn note_change(&mut self, vcpu: VcpuId, due: Time, result: &Result<(), NotDone>) {
        if result.is_ok() && self.get(vcpu).is_some() {
            self.records.record(&Record::Changed { due, at: self.now, vcpu });
        }
    }

    /// Pauses a vCPU. The vCPU is stopped before the pause is reported to the host, so CPU time
    /// used until the stop is still charged. If a user pauses a vCPU that is already paused because
    /// it left its CPUs or its cgroup, the recorded stop ends, and the user's pause begins.
    fn pause(&mut self, vcpu: VcpuId, reason: PauseReason) -> Result<(), NotDone> {
        self.number += 1;
        let (number, now) = (self.number, self.now);
        let has_escaped = |known: &Vcpu| known.is_paused && known.has_escaped;
        if reason == PauseReason::Requested && self.get(vcpu).is_some_and(has_escaped) {
            self.note_let_go(vcpu);
            self.get_mut(vcpu).into_iter().for_each(|known| known.has_escaped = false);
        }
        if self.get(vcpu).is_none_or(|known| known.is_paused) {
            return Ok(());
        }
        let is_awake = self.host.moment().is_awake(vcpu);
        let Some(known) = self.get_mut(vcpu) else { return Ok(()) };
        known.handle.stop(number).map_err(NotDone::Refused)?;
        let before = known.held_since.replace(now);
        known.is_paused = true;
        known.has_escaped = reason == PauseReason::Escaped && is_awake;
        if let Some(from) = before {
            self.records.record(&Record::Stopped { vcpu, from, to: now });
        }
        if is_awake {
            self.step(self.now, &[], Fact::Paused(vcpu)).map_err(broken)?;
        }
        Ok(())
    }

    /// Ends the pause of a vCPU. Returns true if the vCPU's threads must continue immediately,
    /// because the kernel shows only then whether the threads are runnable.
    fn resume(&mut self, vcpu: VcpuId) -> Result<bool, LiveHostError> {
        let now = self.now;
        if self.get(vcpu).is_some_and(|known| known.is_paused) {
            self.note_let_go(vcpu);
        }
        let Some(known) = self.get_mut(vcpu).filter(|known| known.is_paused) else {
            return Ok(false);
        };
        (known.is_paused, known.has_escaped) = (false, false);
        // A pause by request is not recorded as a stop, so the recorded stop begins now.
        known.held_since = Some(now);
        let had_work = known.threads.values().any(|known| known.is_awake);
        self.touched.push(vcpu);
        if had_work {
            self.step(self.now, &[], Fact::Woke(vcpu)).map_err(broken)?;
        }
        Ok(!had_work)
    }

    /// Changes the parameters of a vCPU and its affinity. The threads migrate before the host
    /// decides which vCPUs run under the new parameters. If the host declines the change, the
    /// threads migrate back.
    pub(super) fn move_to(
        &mut self,
        vcpu: VcpuId,
        terms: VcpuTerms<'_>,
        cpus: CpuSet,
    ) -> Result<(), NotDone> {
        self.number += 1;
        let (real, number) = (self.real_cpus(cpus), self.number);
        let Some(known) = self.get(vcpu) else { return Ok(()) };
        if known.home.get().is_some_and(|home| cpus.contains(home)) {
            return Ok(self.step(self.now, &[], Fact::TermsChanged(vcpu, terms))?);
        }
        let handle = Arc::clone(&known.handle);
        let before = handle.confine(number, real).map_err(NotDone::Refused)?;
        if let Err(fault) = self.step(self.now, &[], Fact::TermsChanged(vcpu, terms)) {
            handle.put_back(&before);
            return Err(fault.into());
        }
        // The vCPU has no home CPU until a CPU chooses it. That CPU then becomes its home.
        if let Some(known) = self.get(vcpu) {
            known.home.clear();
        }
        Ok(())
    }

    /// Converts numbers of managed CPUs in the run to the kernel's numbers.
    pub(super) fn real_cpus(&self, cpus: CpuSet) -> CpuSet {
        cpus.iter().map(|cpu| self.pcpus.all[cpu.index()].real).collect()
    }
}
