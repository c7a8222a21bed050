//! Names of domains that represent other programs of the recorded host.

use slackline_units::{DomId, VcpuId};

/// Prefix of the names of domains that represent programs and not VMs. No recorded VM can have a
/// name with this prefix, because the service only allows lower case.
pub(crate) const PREFIX: &str = "OTHERS-";

/// Returns true if a recorded vCPU is the service's own front process, which is no VM.
pub(crate) fn is_of_service(vcpu: VcpuId) -> bool {
    vcpu.domain() == DomId::OF_SERVICE
}

/// Returns the name of the domain for a stay of the service's front process. `index` is the index
/// of the stay in the recorded demand.
pub(crate) fn service_name(index: usize) -> String {
    format!("{PREFIX}front-{index}")
}

/// Returns true if `name` is the name of a domain that represents a program and not a VM.
pub(crate) fn is_other(name: &str) -> bool {
    name.starts_with(PREFIX)
}
