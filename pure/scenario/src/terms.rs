//! Affinity and start of vCPUs, and settings of single vCPUs that differ from their domain's
//! settings.

use std::collections::BTreeMap;

use slackline_units::{CpuId, CpuSet, Time};

use crate::error::ErrorKind;
use crate::parameters::ShareOwner;
use crate::run::RunContext;
use crate::table::{Item, Mistake, Table};
use crate::{Exception, guest, keys, parameters};

/// Reads an affinity such as `cpus = [0, 1]` on a host with `cpus` CPUs.
pub(crate) fn cpus(item: &Item<'_>, cpus: usize) -> Result<CpuSet, Mistake> {
    const WANTS: &str = "an array of at least one CPU number";
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

/// CPU and time at which a vCPU starts, as a table sets them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct VcpuStart {
    pub(crate) on: Option<CpuId>,
    pub(crate) wakes: Option<Time>,
}

impl VcpuStart {
    /// Reads `starts_on` and `wakes` of vCPUs. `cpus` is the affinity of the vCPUs, and `stay` has
    /// the times at which the domain of the vCPUs joins and leaves.
    pub(crate) fn read(
        run: &RunContext<'_>,
        table: &Table<'_>,
        (stay, cpus): (&Membership, Option<CpuSet>),
    ) -> Result<VcpuStart, Mistake> {
        let cpu = |item: Item<'_>| {
            let cpu = CpuId::new(item.count(0..=run.cpus - 1)?);
            match cpus {
                Some(cpus) if !cpus.contains(cpu) => Err(item.fault(ErrorKind::NotAmong { cpu })),
                _ => Ok(cpu),
            }
        };
        let wakes = |item: Item<'_>| {
            let (wakes, written) = (run.time(&item)?, item.written());
            match *stay {
                Membership { joins, .. } if wakes <= joins => {
                    Err(item.fault(ErrorKind::BeforeJoining { written, joins }))
                }
                Membership { leaves: Some(leaves), .. } if leaves <= wakes => {
                    Err(item.fault(ErrorKind::AfterLeaving { written, leaves }))
                }
                _ => Ok(wakes),
            }
        };
        Ok(VcpuStart { on: table.maybe("starts_on", cpu)?, wakes: table.maybe("wakes", wakes)? })
    }
}

/// Times at which a domain joins and leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Membership {
    pub(crate) joins: Time,
    pub(crate) leaves: Option<Time>,
}

/// Reads every `[[domain.vcpu]]` of a domain with `vcpus` vCPUs. `all` is the affinity of each vCPU
/// whose table sets no affinity.
pub(crate) fn exceptions(
    run: &RunContext<'_>,
    table: &Table<'_>,
    (vcpus, all, stay): (usize, Option<CpuSet>, &Membership),
) -> Result<BTreeMap<u16, Exception>, Mistake> {
    let mut exceptions = BTreeMap::new();
    for table in table.each("vcpu", "a vCPU")? {
        let table = table.taught(&keys::VCPU)?;
        let item = table.need("number", "number = 0")?;
        let number =
            u16::try_from(item.count(0..=vcpus - 1)?).expect("the numbers of vCPUs have 16 bits");
        let cpus = table.maybe("cpus", |item| cpus(&item, run.cpus))?;
        let start = VcpuStart::read(run, &table, (stay, cpus.or(all)))?;
        let shares = parameters::shares(&table, ShareOwner::Vcpu(vcpus))?;
        let program = table.maybe("work", |item| guest::program(run, &item))?;
        if exceptions.insert(number, Exception { cpus, start, shares, program }).is_some() {
            return Err(item.fault(ErrorKind::VcpuTwice { number }));
        }
    }
    Ok(exceptions)
}
