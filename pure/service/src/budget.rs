//! Budgets: limits on the reservations of one owner.

use std::collections::BTreeMap;

use slackline_units::CpuShare;

use crate::principal::Principal;
use crate::refusal::Refusal;
use crate::row::Row;
use crate::terms::Terms;

/// Limits on the reservations of one owner. If a limit is `None`, only the general limit applies to
/// the owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Maximum share of all reservations of the owner together, in CPUs. `None` if the budget does
    /// not limit the share.
    pub cpu: Option<CpuShare>,
    /// Maximum number of reservations. If `None`, the maximum is [`RESERVATIONS_OF_ONE`].
    pub machines: Option<u16>,
}

/// Maximum number of reservations of one owner, if the owner's budget sets no other number.
pub const RESERVATIONS_OF_ONE: u16 = 1_000;

/// Maximum number of reservations of all owners together. Each reservation is a row of the ledger.
pub const MOST_RESERVATIONS: usize = 10_000;

/// Part of [`MOST_RESERVATIONS`] that is kept free for reservations of administrators.
const KEPT_RESERVATIONS: usize = 1_000;

/// Maximum number of vCPUs of all reservations of one owner together, whether their VMs run or not.
/// Requests of administrators may exceed this number.
pub const VCPUS_OF_ONE: u64 = 2_000;

/// Maximum number of vCPUs of the reservations of all owners together. The number is limited
/// because the live session keeps data for each vCPU.
pub const MOST_VCPUS: u64 = 20_000;

/// Part of [`MOST_VCPUS`] that is kept free for reservations of administrators.
const KEPT_VCPUS: u64 = 2_000;

/// Budgets by owner. An owner without an entry has the default budget.
pub type Budgets = BTreeMap<Principal, Budget>;

impl Budget {
    /// Checks that an owner's reservations stay within the budget if one of them gets the terms
    /// `terms` in place of `before`. If the owner already exceeds the budget, because the budget
    /// was lowered, the owner may reduce terms but not raise them.
    ///
    /// # Errors
    /// If the budget would be exceeded.
    pub(crate) fn allows<'a>(
        self,
        owner: Principal,
        others: impl Iterator<Item = &'a Row>,
        (before, terms): (Option<Terms>, Terms),
    ) -> Result<(), Refusal> {
        self.allows_beside(owner, others.filter(|row| row.owner == owner), (before, terms))
    }

    /// Checks that the terms `terms`, in place of `before`, stay within a principal's budget.
    /// `rows` are the reservations that count in the budget, whoever owns them.
    ///
    /// # Errors
    /// If the budget would be exceeded.
    pub(crate) fn allows_beside<'a>(
        self,
        owner: Principal,
        rows: impl Iterator<Item = &'a Row>,
        (before, terms): (Option<Terms>, Terms),
    ) -> Result<(), Refusal> {
        let (mut cpu, mut machines) = (0, 0);
        for row in rows {
            cpu += parts(row.terms);
            machines += 1_u64;
        }
        let is_more = parts(terms) > before.map_or(0, parts);
        if let Some(most) = self.cpu.filter(|_| is_more) {
            let asked = (cpu + parts(terms)).div_ceil(PARTS / 1_000_000);
            if asked > u128::from(most.ppm()) {
                let asked = CpuShare::from_ppm(u32::try_from(asked).unwrap_or(u32::MAX));
                return Err(Refusal::OverBudgetCpu { owner, asked, most });
            }
        }
        let most = self.machines.unwrap_or(RESERVATIONS_OF_ONE);
        if before.is_none() && machines >= u64::from(most) {
            return Err(Refusal::OverBudgetMachines { owner, asked: machines + 1, most });
        }
        Ok(())
    }
}

/// Checks that `new` reservations in addition to `present` reservations stay within
/// [`MOST_RESERVATIONS`]. For callers who are not administrators, the limit is lower by
/// [`KEPT_RESERVATIONS`].
///
/// # Errors
/// If there would be too many reservations.
pub(crate) fn check_count(
    is_administrator: bool,
    present: usize,
    new: usize,
) -> Result<(), Refusal> {
    let kept = if is_administrator { 0 } else { KEPT_RESERVATIONS };
    let most = MOST_RESERVATIONS - kept;
    if new > 0 && present + new > most { Err(Refusal::Full { most }) } else { Ok(()) }
}

/// Checks that the vCPUs of all reservations stay within the limits if one reservation of `owner`
/// gets the terms `terms` in place of `before`. `others` are all other reservations. Terms that do
/// not increase the number of vCPUs are always allowed.
///
/// # Errors
/// If the owner, or all owners together, would have too many vCPUs.
pub(crate) fn check_vcpus<'a>(
    (owner, is_administrator): (Principal, bool),
    others: impl Iterator<Item = &'a Row>,
    (before, terms): (Option<Terms>, Terms),
) -> Result<(), Refusal> {
    if terms.vcpus() <= before.map_or(0, Terms::vcpus) {
        return Ok(());
    }
    let (mut own, mut all) = (u64::from(terms.vcpus()), u64::from(terms.vcpus()));
    for row in others {
        let vcpus = u64::from(row.terms.vcpus());
        all += vcpus;
        own += if row.owner == owner { vcpus } else { 0 };
    }
    if own > VCPUS_OF_ONE && !is_administrator {
        let (owner, asked, most) = (Some(owner), own, VCPUS_OF_ONE);
        return Err(Refusal::TooManyVcpus { owner, asked, most });
    }
    let most = if is_administrator { MOST_VCPUS } else { MOST_VCPUS - KEPT_VCPUS };
    if all > most {
        return Err(Refusal::TooManyVcpus { owner: None, asked: all, most });
    }
    Ok(())
}

/// Number of parts into which a CPU is divided when shares are added up. With so many parts,
/// rounding the shares changes the sum by far less than a millionth of a CPU.
const PARTS: u128 = 1_000_000_000_000;

fn parts(terms: Terms) -> u128 {
    let (slice, period) = (terms.each().slice().ns(), terms.each().period().ns());
    let each = u128::from(slice) * PARTS / u128::from(period.max(1));
    each * u128::from(terms.vcpus())
}

#[cfg(test)]
mod tests {
    use slackline_units::{Reservation, Span};

    use super::*;

    const OWNER: Principal = Principal::User(1000);

    fn terms(slice: u64, period: u64, vcpus: u16) -> Terms {
        let each = Reservation::new(Span::from_ms(slice), Span::from_ms(period)).unwrap();
        Terms::new(each, true, vcpus).unwrap()
    }

    fn row(owner: Principal, terms: Terms) -> Row {
        let (name, binding) = ("web".parse().unwrap(), "qemu:web".parse().unwrap());
        Row { since: 1, revision: 1, ..Row::new(name, (owner, 1000), terms, binding) }
    }

    #[test]
    fn user_limits_count_exactly_the_reservations_of_the_user() {
        let budget = Budget { cpu: Some(CpuShare::from_ppm(1_500_000)), machines: Some(3) };
        let rows = [
            row(OWNER, terms(3, 10, 2)),
            row(OWNER, terms(1, 3, 1)),
            row(Principal::User(7), terms(9, 10, 8)),
        ];
        let allows = |new| budget.allows(OWNER, rows.iter(), (None, new));
        assert_eq!(allows(terms(5, 10, 1)), Ok(()));
        let Err(refusal) = allows(terms(6, 10, 1)) else { panic!("1.53 CPUs must be refused") };
        assert_eq!(
            refusal.to_string(),
            "cannot reserve: uid 1000 would have 1.533334cpu in total, more than the limit of \
             1.5cpu"
        );
        // The new terms replace the old terms in the sum, and are not added to them.
        let change = |new| budget.allows(OWNER, rows[1..].iter(), (Some(rows[0].terms), new));
        assert_eq!(change(terms(5, 10, 2)), Ok(()));
        assert!(change(terms(6, 10, 2)).is_err());
    }

    #[test]
    fn last_1000_reservation_slots_are_available_only_to_administrators() {
        assert_eq!(check_count(false, 8_000, 1_000), Ok(()));
        assert_eq!(check_count(false, 9_000, 1), Err(Refusal::Full { most: 9_000 }));
        assert_eq!(check_count(false, 9_500, 0), Ok(()), "a list without new reservations");
        assert_eq!(check_count(true, 9_000, 1_000), Ok(()));
        assert_eq!(check_count(true, 10_000, 1), Err(Refusal::Full { most: 10_000 }));
    }

    #[test]
    fn reserved_vcpus_are_limited_per_owner_and_over_all_owners() {
        let vcpus = |count| terms(1, 1_000, count);
        let mut rows = vec![row(OWNER, vcpus(500)); 4];
        let allows = |rows: &[Row], (owner, is_administrator), before, new| {
            check_vcpus((owner, is_administrator), rows.iter(), (before, vcpus(new)))
        };
        let (owner, root) = ((OWNER, false), (Principal::User(0), true));
        assert_eq!(allows(&rows[1..], owner, None, 500), Ok(()));
        let Err(refusal) = allows(&rows, owner, None, 1) else { panic!("2,001") };
        assert_eq!(
            refusal.to_string(),
            "cannot reserve: the reservations of uid 1000 would have 2001 vCPUs in total, more \
             than the maximum of 2000"
        );
        let before = Some(vcpus(5));
        assert_eq!(allows(&rows, owner, before, 5), Ok(()), "above the limit, but no more vCPUs");
        assert!(allows(&rows, owner, before, 6).is_err());
        assert_eq!(allows(&rows, (Principal::User(7), false), None, 500), Ok(()));
        rows.extend((0..32).map(|nth| row(Principal::User(5_000 + nth), vcpus(500))));
        let Err(refusal) = allows(&rows, (Principal::User(7), false), None, 1) else {
            panic!("18,001")
        };
        assert_eq!(
            refusal.to_string(),
            "cannot reserve: the reservations of all owners would have 18001 vCPUs in total, \
             more than the maximum of 18000"
        );
        assert_eq!(allows(&rows, root, None, 500), Ok(()));
        rows.extend(vec![row(Principal::User(0), vcpus(500)); 4]);
        assert!(allows(&rows, root, None, 1).is_err());
    }

    #[test]
    fn user_above_a_lowered_limit_can_only_reduce_reservations() {
        let budget = Budget { cpu: Some(CpuShare::from_ppm(100_000)), machines: Some(1) };
        let before = Some(terms(5, 10, 1));
        let change = |new| budget.allows(OWNER, std::iter::empty(), (before, new));
        assert_eq!(change(terms(4, 10, 1)), Ok(()));
        assert!(change(terms(6, 10, 1)).is_err());
        let many = vec![row(OWNER, terms(1, 100, 1)); usize::from(RESERVATIONS_OF_ONE)];
        let allows = |rows: &[Row]| {
            Budget::default().allows(OWNER, rows.iter(), (None, terms(1, 100, 1))).is_ok()
        };
        assert!(allows(&many[1..]) && !allows(&many), "an owner without a budget has a bound");
        let rows = [row(OWNER, terms(1, 100, 1))];
        let Err(refusal) = budget.allows(OWNER, rows.iter(), (None, terms(1, 100, 1))) else {
            panic!("a second reservation must be refused");
        };
        let says = "cannot reserve: uid 1000 would have 2 reservations, more than the limit of 1";
        assert_eq!(refusal.to_string(), says);
    }
}
