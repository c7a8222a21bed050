//! Rule of Proxmox VE for balancing load. A change is made only if it is large enough and was
//! wanted for several rounds. Changes are made one at a time. Proxmox uses the rule to move VMs.
//! Here the rule sets the share of a VM to 1.25 times the use.

use std::collections::BTreeMap;

use slackline_service::Name;
use slackline_units::CpuShare;

use super::{Changes, RuleInput, ShareRule, explained};

/// Number of consecutive rounds in which a change must be wanted.
const HOLD: u32 = 3;

/// Smallest change, in percent of the share.
const MARGIN_PERCENT: u64 = 10;

/// Wanted use of the share, in percent.
const USE_PERCENT: u64 = 80;

/// Rule with a hold time. It stores for each VM the number of consecutive rounds in which the VM
/// wanted a larger share, or a smaller share.
#[derive(Default)]
pub(crate) struct HoldRule {
    held: BTreeMap<Name, (bool, u32)>,
}

impl ShareRule for HoldRule {
    fn round(&mut self, input: RuleInput<'_>) -> Changes {
        let mut wanted = Vec::new();
        for (index, vm) in input.round.vms.iter().enumerate() {
            if vm.goals == Default::default() {
                continue;
            }
            let used = u128::from(vm.received.ns()) * 1_000_000;
            let used = used / u128::from(input.round.length.ns().max(1));
            let ppm = u64::try_from(used).unwrap_or(u64::MAX) * 100 / USE_PERCENT;
            let to = vm.within(CpuShare::from_ppm(u32::try_from(ppm).unwrap_or(u32::MAX)));
            let difference = u64::from(to.ppm().abs_diff(vm.share.ppm()));
            let is_large = difference * 100 > u64::from(vm.share.ppm()) * MARGIN_PERCENT;
            let held = self.held.entry(vm.name.clone()).or_default();
            let is_same = held.0 == (to > vm.share);
            *held =
                (to > vm.share, if is_large { 1 + if is_same { held.1 } else { 0 } } else { 0 });
            if held.1 >= HOLD {
                wanted.push((difference, index, to));
            }
        }
        let largest = wanted.into_iter().max();
        let change = largest.map(|(_, index, to)| (index, to, explained(&input, index, to)));
        change.into_iter().collect()
    }
}
