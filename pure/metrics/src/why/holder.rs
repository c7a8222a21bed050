//! Thread that had the CPU during a wait.

use slackline_trace::{HostThread, HostThreadKind};
use slackline_units::VcpuId;

use super::CulpritFinder;
use super::culprit::Culprit;
use super::target::Target;

/// Kind of thread that had the CPU during a wait.
pub(super) enum Holder {
    /// A vCPU of another VM: the name of the VM and the id of the vCPU. The id is `None` if the
    /// trace does not know the vCPU.
    Vcpu(String, Option<VcpuId>),
    Other(Culprit),
}

impl CulpritFinder {
    /// Returns the kind of a thread that had the CPU, from the point of view of the waiting vCPU.
    pub(super) fn named(&self, target: &Target, thread: &HostThread) -> Holder {
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
}
