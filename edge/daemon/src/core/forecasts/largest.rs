//! Largest share that admission would accept for a VM in place of its reservation.

use std::collections::BTreeSet;

use slackline_control::{LargestShare, Length, WhatIf};
use slackline_policy::AdmitError;
use slackline_service::{ListedReservation, Terms, WorldError};
use slackline_units::{DomId, Reservation, Span};

use super::super::Core;

impl Core {
    /// Returns the largest share that admission would accept now, for each VM that a what-if
    /// question changes (`asked.set`). VMs without a reservation are left out. If `own` is given,
    /// VMs that it does not contain are left out too.
    pub(super) fn largest_of(
        &mut self,
        asked: &WhatIf,
        own: Option<&BTreeSet<String>>,
    ) -> Vec<LargestShare> {
        let mut largest: Vec<LargestShare> = Vec::new();
        for set in &asked.set {
            let is_hidden = own.is_some_and(|own| !own.contains(&set.name));
            if is_hidden || largest.iter().any(|it| it.name == set.name) {
                continue;
            }
            let mut all = self.service.listed();
            let found = all.find(|(_, listed)| listed.row.name.as_str() == set.name);
            let Some((domain, listed)) = found else { continue };
            drop(all);
            let period = set.fields.get("period").and_then(|value| value.written().parse().ok());
            largest.extend(self.largest(domain, &listed, period));
        }
        largest
    }

    /// Returns the largest share of one VM. To find it, the function asks admission for a slice
    /// that is nearly the whole period. The refusal states the largest slice that would be
    /// admitted. `None` if the kernel enforces the reservation, or if the refusal states no such
    /// slice.
    fn largest(
        &mut self,
        domain: DomId,
        listed: &ListedReservation,
        period: Option<Span>,
    ) -> Option<LargestShare> {
        let terms = listed.row.terms;
        let period = period.unwrap_or(terms.each().period());
        if terms.enforcement().is_of_kernel() {
            // Trying a change would end the kernel's enforcement for a moment.
            return None;
        }
        let too_long = period.left_after(Terms::LEAST);
        let each = Reservation::new(too_long, period).ok()?;
        let asked = Terms::new(each, terms.exact(), terms.vcpus()).ok()?;
        let (room, limit) = match self.host.scheduler.change(domain, &asked) {
            Ok(()) => {
                // Only a policy without a limit admits this slice.
                self.host.scheduler.change(domain, &terms).ok()?;
                (too_long, "the policy has no limit".to_owned())
            }
            Err(WorldError::Admission(error)) => (room(&error)?, reason(&error)),
            Err(_) => return None,
        };
        // All vCPUs get the same larger slice. vCPUs on the same CPU share its available capacity.
        let cpus = self.host.scheduler.cpus().len().max(1);
        let together = u64::from(terms.vcpus()).div_ceil(cpus as u64);
        let now = terms.each();
        let current = u128::from(now.slice().ns()) * u128::from(period.ns());
        let current = u64::try_from(current / u128::from(now.period().ns().max(1))).ok()?;
        let more = room.ns().saturating_sub(current) / together;
        let slice = if together > 1 { Span::from_ns(current + more).min(room) } else { room };
        let ppm = u128::from(slice.ns()) * u128::from(terms.vcpus()) * 1_000_000;
        Some(LargestShare {
            name: listed.row.name.to_string(),
            slice: Length(slice),
            slice_ns: slice.ns(),
            period: Length(period),
            period_ns: period.ns(),
            largest_ppm: u64::try_from(ppm / u128::from(period.ns())).unwrap_or(u64::MAX),
            limit,
        })
    }
}

fn room(error: &AdmitError) -> Option<Span> {
    match error {
        AdmitError::NoRoom { room, .. }
        | AdmitError::NoRoomInParts { room, .. }
        | AdmitError::NoRoomTogether { room, .. } => Some(*room),
        _ => None,
    }
}

fn reason(error: &AdmitError) -> String {
    match error {
        AdmitError::NoRoom { promised, capacity, cpus, .. }
        | AdmitError::NoRoomInParts { promised, capacity, cpus, .. }
        | AdmitError::NoRoomTogether { promised, capacity, cpus, .. } => {
            let place = if *cpus == 1 { "its CPU".into() } else { format!("{cpus} CPUs") };
            format!(
                "other reservations take {promised} of the {capacity} that can be reserved on \
                 {place}"
            )
        }
        error => error.to_string(),
    }
}
