//! Answer to a request to list VMs. The answer has a limited number of VMs and bytes. Any user can
//! start any number of processes that look like VMs, and even then the VMs of other users must be
//! listed.

use std::collections::BTreeMap;

use slackline_control as control;
use slackline_service::{ClientRequest, Request, Role};

use super::wire;
use crate::find::Machine;

/// Maximum number of VMs that an answer lists.
const MOST: usize = 2_000;

/// Maximum estimated size of an answer, in bytes. The function [`size`] makes the estimate. The
/// link to the front process carries at most 4 MiB.
const MOST_BYTES: usize = 3 << 20;

/// Maximum number of owners for whom an answer states the number of omitted VMs. For all further
/// owners together, the answer states the sum.
const MOST_OWNERS: usize = 100;

/// Maximum number of VMs of one owner that a search of the host examines.
pub(super) const MOST_SEARCHED: usize = 4_000;

/// VMs of this host, with the number of VMs that the search left out.
#[derive(Debug, Default)]
pub(super) struct VmList {
    /// VMs of the list. Each has the amount of CPU that it uses, in millionths of one CPU, or
    /// `None` if that cannot be measured.
    pub(super) vms: Vec<(Machine, Option<u32>)>,
    /// Number of VMs that the search left out, by the user id of their owner.
    pub(super) omitted: BTreeMap<u32, u64>,
}

/// Returns the text that the name or binding of each listed VM must contain: empty if the request
/// contains no text. `None` if the request does not list VMs.
fn sought_text(request: &Request) -> Option<&str> {
    match request {
        Request::Find { text } => Some(text.as_deref().unwrap_or_default()),
        _ => None,
    }
}

/// A VM that matches a request to list VMs.
struct ListedVm<'a> {
    machine: &'a Machine,
    uses: Option<u32>,
    /// User id of the owner. `None` if the caller may not know the owner.
    owner: Option<u32>,
    /// True if the VM counts as the caller's own and is listed first.
    is_own: bool,
}

/// Returns the answer to a request to list VMs. The function `reserved` returns the name of a VM's
/// reservation as the caller may see it, or `None` if the VM has no reservation.
pub(super) fn answer(
    asked: &ClientRequest,
    list: &VmList,
    reserved: impl Fn(&Machine) -> Option<String>,
) -> Vec<control::Machine> {
    let text = sought_text(&asked.request).unwrap_or_default();
    let is_seen = |owner: u32| asked.role != Some(Role::Tenant) || asked.may_have(owner);
    let is_own = |owner: u32| match asked.role {
        Some(Role::Administrator) => owner == asked.principal.user(),
        _ => asked.may_have(owner),
    };
    let as_shown = |owner: u32| is_seen(owner).then_some(owner);
    let fits = |machine: &Machine| match is_seen(machine.owner) {
        true => machine.name.contains(text) || machine.binding.to_string().contains(text),
        false => wire::ANOTHER.contains(text),
    };
    let fitting = list.vms.iter().filter(|(machine, _)| text.is_empty() || fits(machine));
    let fitting = fitting.map(|(machine, uses)| ListedVm {
        machine,
        uses: *uses,
        owner: as_shown(machine.owner),
        is_own: is_own(machine.owner),
    });
    let mut omitted = BTreeMap::new();
    for (&owner, count) in &list.omitted {
        *omitted.entry(as_shown(owner)).or_default() += count;
    }
    entries(&fitting.collect::<Vec<_>>(), omitted, |candidate| {
        let machine = candidate.machine;
        let shown = wire::machine(machine, reserved(machine), candidate.uses);
        if candidate.owner.is_some() { shown } else { wire::hidden_machine(shown) }
    })
}

/// Returns the entries of an answer. VMs come first, converted by `show`. Entries with the number
/// of omitted VMs of each owner follow. `omitted` contains the numbers of VMs that the search has
/// left out.
fn entries(
    fitting: &[ListedVm<'_>],
    mut omitted: BTreeMap<Option<u32>, u64>,
    mut show: impl FnMut(&ListedVm<'_>) -> control::Machine,
) -> Vec<control::Machine> {
    let sizes: Vec<_> = fitting.iter().map(|it| (it.owner, it.is_own, size(it.machine))).collect();
    let mut list = Vec::new();
    for (candidate, is_listed) in fitting.iter().zip(listed(&sizes)) {
        if is_listed {
            list.push(show(candidate));
        } else {
            *omitted.entry(candidate.owner).or_default() += 1;
        }
    }
    let mut owners: Vec<(Option<u32>, u64)> = omitted.into_iter().collect();
    owners.sort_by_key(|&(owner, count)| (std::cmp::Reverse(count), owner));
    let others = owners.split_off(owners.len().min(MOST_OWNERS));
    list.extend(owners.into_iter().map(|(owner, count)| omission(owner, count)));
    let count = others.iter().map(|(_, count)| count).sum();
    if count > 0 {
        list.push(omission(None, count));
    }
    list
}

/// Returns a flag for each VM: true if the VM is listed. `all` contains three values for each VM:
/// its owner, a flag that is true for VMs of the caller, and the size of its entry in bytes.
///
/// VMs of the caller come first. Then the other owners take turns, with one VM of each owner in
/// each turn. Within a turn, smaller entries come first. So an owner with many VMs does not
/// displace the VMs of other owners.
fn listed(all: &[(Option<u32>, bool, usize)]) -> Vec<bool> {
    let mut turns: BTreeMap<Option<u32>, usize> = BTreeMap::new();
    let in_turn = all.iter().enumerate().map(|(index, &(owner, is_own, size))| {
        let turn = turns.entry(owner).or_default();
        *turn += 1;
        (if is_own { 0 } else { *turn }, size, index)
    });
    let mut in_turn: Vec<(usize, usize, usize)> = in_turn.collect();
    in_turn.sort_unstable();
    let (mut places, mut bytes, mut listed) = (MOST, MOST_BYTES, vec![false; all.len()]);
    for (_, size, index) in in_turn {
        if places > 0 && size <= bytes {
            (places, bytes, listed[index]) = (places - 1, bytes - size, true);
        }
    }
    listed
}

/// Returns an upper bound for the size of a VM's entry, in bytes. JSON needs at most six bytes for
/// each byte of text.
fn size(machine: &Machine) -> usize {
    let why = machine.why.as_ref().map_or(0, |why| why.len().min(control::convert::LONGEST_WHY));
    let texts = machine.name.len().min(wire::LONGEST_NAME) + why;
    let binding = machine.binding.kind().to_string().len() + machine.binding.name().len();
    let vcpus = machine.vcpus.len().min(wire::MOST_VCPUS);
    6 * (texts + binding) + 40 * vcpus + 512
}

/// Returns the entry of an answer that states the number of an owner's VMs that are not listed.
fn omission(owner: Option<u32>, count: u64) -> control::Machine {
    let of = owner.map_or("other owners".into(), |uid| format!("uid {uid}"));
    let why = format!("{count} VMs of {of} are not listed: search for a part of a VM's name");
    control::Machine {
        kind: control::OMITTED.into(),
        binding: "omitted VMs".into(),
        name: String::new(),
        uid: owner.unwrap_or(u32::MAX),
        pid: 0,
        cpu_ppm: None,
        vcpus: Vec::new(),
        reserved: None,
        why: Some(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_with_30000_vms_does_not_displace_vms_of_others() {
        let one = |owner, is_own| (Some(owner), is_own, 700);
        let mut all = vec![one(5001, false); 30_000];
        all.extend([vec![one(5002, false); 40], vec![one(0, true); 60]].concat());
        let listed = listed(&all);
        assert!(listed[30_000..].iter().all(|is_listed| *is_listed));
        assert_eq!(listed.iter().filter(|is_listed| **is_listed).count(), MOST);
    }

    #[test]
    fn list_of_vms_with_long_entries_is_limited_in_bytes() {
        let mut all: Vec<_> = (0..1_000).map(|user| (Some(user), false, 20_000)).collect();
        all.extend([(Some(5001), false, 700), (Some(0), true, 700)]);
        let listed = listed(&all);
        assert!(listed[1_000] && listed[1_001], "small entries come first");
        let bytes = all.iter().zip(&listed).filter(|(_, is_listed)| **is_listed);
        assert!(bytes.map(|((.., size), _)| size).sum::<usize>() <= MOST_BYTES);
    }

    #[test]
    fn vm_list_includes_number_of_omitted_vms_of_each_owner() {
        let omitted = (0..150).map(|uid| (Some(uid), u64::from(uid) + 1)).collect();
        let list = entries(&[], omitted, |_| unreachable!("no VM fits"));
        assert_eq!(list.len(), MOST_OWNERS + 1);
        assert_eq!((list[0].uid, list[0].kind.as_str()), (149, "omitted"));
        let why = |index: usize| list[index].why.as_deref().unwrap();
        assert!(why(0).starts_with("150 VMs of uid 149 are not listed"), "{}", why(0));
        assert!(why(MOST_OWNERS).starts_with("1275 VMs of other owners"), "{}", why(MOST_OWNERS));
        // Entries about omitted VMs leave the answer far below the limit of the link.
        assert!(serde_json::to_vec(&list).unwrap().len() < 100_000);
    }
}
