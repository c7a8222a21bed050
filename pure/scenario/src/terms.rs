//! On what terms vCPUs are here, besides their shares: where they may run, and what differs for
//! single ones.

use std::collections::BTreeMap;

use slackline_units::{CpuId, CpuSet};

use crate::error::ErrorKind;
use crate::run::Run;
use crate::table::{Item, Mistake, Table};
use crate::{Exception, parameters};

const KEYS: &[&str] = &["number", "share", "cpus"];

/// Reads `cpus = [0, 1]` on a host with so many CPUs.
pub(crate) fn cpus(item: &Item<'_>, cpus: usize) -> Result<CpuSet, Mistake> {
    const WANTS: &str = "an array of CPU numbers, at least one";
    let mut set = CpuSet::NONE;
    for element in item.elements(WANTS)? {
        let cpu = CpuId::new(element.count(0..=cpus - 1)?);
        if set.contains(cpu) {
            return Err(element.fault(ErrorKind::CpuTwice { cpu }));
        }
        set.insert(cpu);
    }
    if set.is_empty() { Err(item.wrong_type(WANTS)) } else { Ok(set) }
}

/// Reads every `[[domain.vcpu]]` of a domain with so many vCPUs.
pub(crate) fn exceptions(
    run: &Run<'_>,
    table: &Table<'_>,
    vcpus: usize,
) -> Result<BTreeMap<u16, Exception>, Mistake> {
    let mut exceptions = BTreeMap::new();
    for table in table.each("vcpu", "a vCPU")? {
        let table = table.allow(KEYS)?;
        let item = table.need("number", "number = 0")?;
        let number = u16::try_from(item.count(0..=vcpus - 1)?).expect("16 bits hold them all");
        let cpus = table.maybe("cpus", |item| cpus(&item, run.cpus))?;
        let shares = parameters::shares(&table)?;
        if exceptions.insert(number, Exception { cpus, shares }).is_some() {
            return Err(item.fault(ErrorKind::VcpuTwice { number }));
        }
    }
    Ok(exceptions)
}
