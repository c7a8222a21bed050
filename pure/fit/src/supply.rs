//! The least CPU time that a periodic reservation supplies.

use response_time_analysis::supply::{Periodic, SupplyBound};
use response_time_analysis::time::{Duration, Service};
use slackline_units::{Reservation, Span};

/// Supply of a reservation in the worst phase: the periodic resource model of Shin and Lee.
#[derive(Clone, Copy, Debug)]
pub struct PeriodicSupply {
    model: Periodic,
}

impl PeriodicSupply {
    /// Creates the supply of a reservation.
    #[must_use]
    pub fn of(reservation: Reservation) -> PeriodicSupply {
        let budget = Service::from(reservation.slice().ns());
        let period = Duration::from(reservation.period().ns());
        PeriodicSupply { model: Periodic::new(budget, period) }
    }

    /// Returns the least CPU time that the VM receives in any interval of length `length` in which
    /// it is always runnable.
    #[must_use]
    pub fn least_in(&self, length: Span) -> Span {
        let supplied = self.model.provided_service(Duration::from(length.ns()));
        Span::from_ns(u64::from(supplied))
    }

    /// Returns the length of the shortest interval that always supplies the CPU time `work`. Zero
    /// if `work` is zero.
    #[must_use]
    pub fn time_for(&self, work: Span) -> Span {
        let time = self.model.service_time(Service::from(work.ns()));
        Span::from_ns(u64::from(time))
    }

    /// Returns the longest time for which the VM can be without any CPU time: `2 × (period -
    /// slice)`.
    #[must_use]
    pub fn blackout(&self) -> Span {
        let (period, slice) = (u64::from(self.model.period), u64::from(self.model.budget));
        Span::from_ns(period - slice) * 2
    }

    /// Returns this supply in the form that the crate `response-time-analysis` uses.
    pub(crate) fn model(&self) -> &Periodic {
        &self.model
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_case_supply_starts_after_two_periods_minus_two_slices() {
        let ms = Span::from_ms;
        let supply = PeriodicSupply::of(Reservation::new(ms(3), ms(10)).unwrap());
        assert_eq!(supply.blackout(), ms(14));
        let least: Vec<Span> =
            [0, 14, 15, 17, 24, 25, 27, 37].into_iter().map(|at| supply.least_in(ms(at))).collect();
        assert_eq!(least, [0, 0, 1, 3, 3, 4, 6, 9].map(ms));
        assert_eq!([1, 3, 4, 9].map(|work| supply.time_for(ms(work))), [15, 17, 25, 37].map(ms));
    }
}
