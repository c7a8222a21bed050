//! Names of domains that represent no VM: other programs of the recorded host, and reservations of
//! the service itself.

use slackline_units::{DomId, VcpuId};

/// Prefix of the names of domains that represent programs and not VMs. A VM whose name has this
/// prefix gets another name in scenarios.
pub(crate) const PREFIX: &str = "OTHERS-";

/// Domain name of the reservations with which the daemon keeps CPU time free for a thread under
/// `deadline`, on each CPU but the thread's own. Such a reservation has no thread, and its vCPU has
/// the name of a vCPU of the thread's VM.
const KEPT_FREE: &str = "deadline";

/// Returns true if a recorded vCPU belongs to the service and not to a VM. Such a vCPU is the
/// service's own front process, or keeps CPU time free for a thread under `deadline`. `name` and
/// `domain` are the names of the vCPU and of its domain.
pub(crate) fn is_of_service(vcpu: VcpuId, (name, domain): (&str, &str)) -> bool {
    let vm = name.rsplit_once('.').map_or(name, |(vm, _)| vm);
    vcpu.domain() == DomId::OF_SERVICE || (domain == KEPT_FREE && vm != KEPT_FREE)
}

/// Returns the name of the domain for a stay of a vCPU of the service. `index` is the index of the
/// stay in the recorded demand.
pub(crate) fn service_name(index: usize) -> String {
    format!("{PREFIX}slackline-{index}")
}
