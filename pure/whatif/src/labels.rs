//! Names of domains in scenarios.
//!
//! A scenario does not allow every name that a recorded VM can have. For example, a VM can have the
//! name `total`, or the name `web.0` beside a VM `web`. In the scenario such a VM has another name.

use std::collections::BTreeSet;

use crate::model::{Model, ModelDomain};
use crate::other_names;

/// Prefix of the names of VMs whose own names a scenario does not allow.
const RENAMED: &str = "VM-";

/// Prefixes that are reserved in a scenario for names of other domains and files. A VM whose own
/// name has such a prefix gets another name in the scenario.
const TAKEN: [&str; 3] = [RENAMED, other_names::PREFIX, "interference-"];

/// Maximum length of a domain's name in a scenario, in bytes.
const LONGEST: usize = 64;

impl Model {
    /// Returns the name of each domain in the scenario, in the order of the domains. A VM has its
    /// own name if a scenario allows it, and otherwise `VM-` with the index of its domain.
    pub(crate) fn labels(&self) -> Vec<String> {
        let names: BTreeSet<&str> = self.domains.iter().map(|domain| &*domain.name).collect();
        let label = |(index, domain): (usize, &ModelDomain)| {
            let name = domain.name.as_str();
            let is_vcpu = vm_of_vcpu(name).is_some_and(|vm| names.contains(vm));
            let is_taken = !domain.is_service && TAKEN.iter().any(|taken| name.starts_with(taken));
            match is_valid(name) && !is_vcpu && !is_taken {
                true => name.to_owned(),
                false => format!("{RENAMED}{index}"),
            }
        };
        self.domains.iter().enumerate().map(label).collect()
    }
}

/// Returns true if a scenario allows the name for a domain.
fn is_valid(name: &str) -> bool {
    let is_fine = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    let is_part = |part: &str| !part.is_empty() && part.chars().all(is_fine);
    name.len() <= LONGEST && name != "total" && name.split('.').all(is_part)
}

/// Returns the VM of the vCPU with this name. `None` if no vCPU can have this name.
fn vm_of_vcpu(name: &str) -> Option<&str> {
    let (vm, number) = name.rsplit_once('.')?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then_some(vm)
}
