//! Thread that had the CPU during a wait, or to which the kernel switched.

use slackline_trace::{HostThread, HostThreadId, HostThreadKind};
use slackline_units::{Time, VcpuId};

use super::culprit::Culprit;
use super::intervals::Intervals;
use super::target::{Target, Wait};
use super::{CulpritFinder, LEAVING_IDLE, SWITCH};

/// Kind of thread that had the CPU during a wait.
pub(super) enum Holder {
    /// A vCPU of another VM: the name of the VM and the id of the vCPU. The id is `None` if the
    /// trace does not know the vCPU.
    Vcpu(String, Option<VcpuId>),
    Other(Culprit),
}

impl CulpritFinder {
    /// Returns the kind of a thread that had the CPU, from the point of view of the waiting vCPU.
    fn named(&self, target: &Target, thread: &HostThread) -> Holder {
        let own = self.names.get(&target.vcpu).map(|(_, domain)| domain.as_str());
        match thread.kind {
            HostThreadKind::Vcpu | HostThreadKind::Monitor if Some(&*thread.vm) == own => {
                Holder::Other(Culprit::OwnVm)
            }
            HostThreadKind::Vcpu => Holder::Vcpu(thread.vm.clone(), thread.vcpu),
            HostThreadKind::Monitor => {
                Holder::Other(Culprit::OtherVm { vm: thread.vm.clone(), beyond: true })
            }
            HostThreadKind::Slackline => Holder::Other(Culprit::Dispatcher),
            HostThreadKind::Process => Holder::Other(Culprit::Process {
                command: thread.command.clone(),
                group: thread.group.clone(),
            }),
            HostThreadKind::Kernel => {
                // In `kworker/1:2-events`, only `kworker` names the thread. The text after the
                // slash changes all the time.
                let name = thread.name.split('/').next().unwrap_or_default();
                Holder::Other(Culprit::Kernel { name: name.into() })
            }
        }
    }

    /// Splits an interval of a wait in which no rule about the waiting vCPU itself applies.
    pub(super) fn by_thread(
        &self,
        target: &Target,
        (wait, late): (&Wait, &Intervals),
        (from, to): (Time, Time),
        add: &mut impl FnMut(Culprit, (Time, Time)),
    ) {
        match self.holder(target, wait.by) {
            Some(Holder::Other(culprit)) => add(culprit, (from, to)),
            Some(Holder::Vcpu(vm, Some(vcpu))) if self.of_deadline.contains(&vcpu) => {
                add(Culprit::OtherVm { vm, beyond: false }, (from, to));
            }
            Some(Holder::Vcpu(vm, vcpu)) => {
                let nothing = Intervals::default();
                let reserved = vcpu.and_then(|vcpu| self.reserved.get(&vcpu));
                let reserved = reserved.unwrap_or(&nothing);
                late.cut((from, to), |from, to, is_late| {
                    if is_late {
                        return add(Culprit::LateTimer, (from, to));
                    }
                    reserved.cut((from, to), |from, to, is_reserved| {
                        let (vm, beyond) = (vm.clone(), !is_reserved);
                        add(Culprit::OtherVm { vm, beyond }, (from, to));
                    });
                });
            }
            None => self.by_no_thread(target, (wait, late), (from, to), add),
        }
    }

    /// Splits an interval of a wait in which no thread had the CPU.
    fn by_no_thread(
        &self,
        target: &Target,
        (wait, late): (&Wait, &Intervals),
        interval: (Time, Time),
        add: &mut impl FnMut(Culprit, (Time, Time)),
    ) {
        // `SCHED_DEADLINE` may have throttled the vCPU. Then the vCPU does not wait for the thread
        // that runs next.
        let is_throttleable = self.of_deadline.contains(&target.vcpu);
        let next = wait.switch_to.filter(|_| !is_throttleable);
        let culprit = match self.holder(target, next) {
            Some(Holder::Other(culprit)) => return add(culprit, interval),
            Some(Holder::Vcpu(vm, vcpu)) => {
                let is_within = |vcpu| {
                    let reserved = self.reserved.get(&vcpu);
                    self.of_deadline.contains(&vcpu)
                        || reserved.is_some_and(|reserved| reserved.contains(wait.to))
                };
                Culprit::OtherVm { vm, beyond: !vcpu.is_some_and(is_within) }
            }
            None if wait.to - wait.from <= SWITCH => {
                Culprit::Kernel { name: "context switch".into() }
            }
            None if wait.from == wait.since && wait.to - wait.from <= LEAVING_IDLE => {
                Culprit::Kernel { name: "CPU leaving idle".into() }
            }
            None => Culprit::Unexplained,
        };
        late.cut(interval, |from, to, is_late| {
            add(if is_late { Culprit::LateTimer } else { culprit.clone() }, (from, to));
        });
    }

    fn holder(&self, target: &Target, thread: Option<HostThreadId>) -> Option<Holder> {
        Some(self.named(target, self.threads.get(&thread?)?))
    }
}
