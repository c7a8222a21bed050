//! Names of domains, vCPUs and tasks in a scenario.

use std::collections::BTreeMap;

use slackline_policy::nearest;
use slackline_units::VcpuId;

use crate::Domain;
use crate::error::ErrorKind;
use crate::table::{Item, Mistake, shown};

/// Names of all domains, with their indices.
#[derive(Default)]
pub(crate) struct Names {
    /// Indices of domains, by name.
    pub(crate) domains: BTreeMap<String, usize>,
    /// Number of copies of each domain with `copies`. The key is the name that stands for all
    /// copies.
    pub(crate) families: BTreeMap<String, usize>,
}

fn is_fine(c: char) -> bool {
    c.is_alphanumeric() || c == '-' || c == '_'
}

/// Reads a name that a task or a program may have.
pub(crate) fn checked_name<'a>(item: &Item<'a>) -> Result<&'a str, Mistake> {
    let name = item.text()?;
    // `total` is not allowed, because claims use it for all domains together.
    if name.is_empty() || name.len() > 64 || name == "total" || !name.chars().all(is_fine) {
        return Err(item.fault(ErrorKind::BadName { name: shown(name) }));
    }
    Ok(name)
}

/// Reads a name that a domain may have. The name may have dots between its parts.
pub(crate) fn checked_domain_name<'a>(item: &Item<'a>) -> Result<&'a str, Mistake> {
    let name = item.text()?;
    let is_part = |part: &str| !part.is_empty() && part.chars().all(is_fine);
    if name.len() > 64 || name == "total" || !name.split('.').all(is_part) {
        return Err(item.fault(ErrorKind::BadName { name: shown(name) }));
    }
    Ok(name)
}

impl Names {
    /// Returns the index of the domain that a value of the file names.
    pub(crate) fn domain(&self, item: &Item<'_>, all: &[Domain]) -> Result<usize, Mistake> {
        match self.find(item.text()?, all, item)? {
            (index, None) => Ok(index),
            (index, Some(_)) => {
                let name = item.text()?.to_owned();
                let meant = Some(all[index].name.clone());
                Err(item.fault(ErrorKind::UnknownDomain { name, meant }))
            }
        }
    }

    /// Returns true if `name` is the name of a domain.
    pub(crate) fn is_domain(&self, name: &str) -> bool {
        self.domains.contains_key(name)
    }

    /// Returns the index of the domain with the name `name`. If a vCPU has that name, returns the
    /// index of its domain and the vCPU.
    pub(crate) fn find(
        &self,
        name: &str,
        all: &[Domain],
        item: &Item<'_>,
    ) -> Result<(usize, Option<VcpuId>), Mistake> {
        if let Some(&index) = self.domains.get(name) {
            return Ok((index, None));
        }
        let Some((domain, number)) = name.rsplit_once('.') else {
            return Err(self.unknown(name, item));
        };
        let Some(&index) = self.domains.get(domain) else {
            return Err(self.unknown(domain, item));
        };
        let domain = &all[index];
        // A number has one valid spelling only, so that no vCPU has two names.
        let vcpu = number.parse().ok().and_then(|number: usize| domain.vcpus.get(number));
        if let Some(&vcpu) = vcpu.filter(|&&vcpu| domain.vcpu_name(vcpu) == name) {
            return Ok((index, Some(vcpu)));
        }
        let (name, vcpus) = (shown(name), domain.vcpus.len());
        Err(item.fault(ErrorKind::UnknownVcpu { name, domain: domain.name.clone(), vcpus }))
    }

    fn unknown(&self, name: &str, item: &Item<'_>) -> Mistake {
        if let Some(&copies) = self.families.get(name) {
            return item.fault(ErrorKind::NameOfCopies { name: name.to_owned(), copies });
        }
        let meant = nearest(name, self.domains.keys().map(String::as_str)).map(str::to_owned);
        item.fault(ErrorKind::UnknownDomain { name: shown(name), meant })
    }
}
