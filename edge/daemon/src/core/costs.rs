//! Costs of reservations, for a daemon with a table of prices. Reserved time costs the same whether
//! the VM uses it or not.

use std::collections::BTreeMap;

use slackline_control::{Cost, money};
use slackline_service::{ListedReservation, Reason, Terms};
use slackline_units::{DomId, Span, Time};

/// Nanoseconds in an hour.
const HOUR: u128 = 3_600_000_000_000;

/// Table of prices for CPU time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prices {
    /// Currency of all prices, such as `EUR`.
    pub currency: String,
    /// Price of one CPU reserved for one hour, in millionths of the currency.
    pub cpu_hour: u64,
    /// Factors on the price, in increasing order of `up_to`. Periods that are longer than every
    /// `up_to` have the factor 1.
    pub factors: Vec<Factor>,
}

/// Factor on the price of reservations with short periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factor {
    /// Longest period to which this factor applies.
    pub up_to: Span,
    /// Factor in thousandths: 1500 is 1.5 times the price.
    pub thousandths: u32,
}

impl Prices {
    /// Returns the price per hour of a reservation with these terms, in millionths of the currency:
    /// slice / period × vCPUs × factor.
    fn hour(&self, terms: Terms) -> u64 {
        let each = terms.each();
        let factor = self.factors.iter().find(|factor| each.period() <= factor.up_to);
        let times = u128::from(factor.map_or(1_000, |factor| factor.thousandths));
        let slices = u128::from(each.slice().ns()) * u128::from(terms.vcpus());
        let millionths = u128::from(self.cpu_hour) * slices * times;
        let of = u128::from(each.period().ns()) * 1_000;
        u64::try_from((millionths + of / 2) / of).unwrap_or(u64::MAX)
    }
}

/// Accumulated costs of all reservations.
pub(super) struct Costs {
    prices: Prices,
    /// Time up to which costs have been counted.
    until: Time,
    /// Accumulated cost of each domain, in millionths of the currency times nanoseconds. One hour
    /// at a price of one millionth per hour adds [`HOUR`].
    of: BTreeMap<DomId, u128>,
}

impl Costs {
    pub(super) fn new(prices: Prices, now: Time) -> Costs {
        Costs { prices, until: now, of: BTreeMap::new() }
    }

    /// Returns the same accumulated costs, with `prices` as the prices from now on. The caller must
    /// have called [`count`](Costs::count) for the time up to now.
    pub(super) fn at(self, prices: Prices) -> Costs {
        Costs { prices, ..self }
    }

    /// Adds the costs since the last call to the total of each reservation. Must be called before
    /// each change of a reservation, because the present parameters are charged for the whole time
    /// since the last call.
    pub(super) fn count(
        &mut self,
        now: Time,
        all: impl Iterator<Item = (DomId, ListedReservation)>,
    ) {
        let time = u128::from(now.since(self.until).ns());
        self.until = now;
        let before = std::mem::take(&mut self.of);
        for (domain, listed) in all {
            let mut sum = before.get(&domain).copied().unwrap_or(0);
            // A reservation that does not fit reserves nothing, so it costs nothing.
            if !matches!(listed.reason, Some(Reason::NoRoom(_))) {
                sum += u128::from(self.prices.hour(listed.row.terms)) * time;
            }
            self.of.insert(domain, sum);
        }
    }

    /// Returns the price per hour of a reservation with these terms, and the accumulated cost of
    /// the reservation.
    pub(super) fn of(&self, domain: DomId, terms: Terms) -> Cost {
        let hour = self.prices.hour(terms);
        let total = self.of.get(&domain).copied().unwrap_or(0) / HOUR;
        let total = u64::try_from(total).unwrap_or(u64::MAX);
        Cost {
            currency: self.prices.currency.clone(),
            hour: money(hour),
            hour_millionths: hour,
            total: money(total),
            total_millionths: total,
        }
    }
}

#[cfg(test)]
mod tests {
    use slackline_service::{Principal, Row, State};
    use slackline_units::Reservation;

    use super::*;

    fn prices() -> Prices {
        let factor = |ms, thousandths| Factor { up_to: Span::from_ms(ms), thousandths };
        let factors = vec![factor(5, 2_000), factor(10, 1_500)];
        Prices { currency: "EUR".into(), cpu_hour: 40_000, factors }
    }

    fn terms(slice: u64, period: u64, vcpus: u16) -> Terms {
        let each = Reservation::new(Span::from_ms(slice), Span::from_ms(period)).unwrap();
        Terms::new(each, true, vcpus).unwrap()
    }

    fn listed(terms: Terms, reason: Option<Reason>) -> ListedReservation {
        let (name, binding) = ("web".parse().unwrap(), "qemu:web".parse().unwrap());
        let row = Row::new(name, (Principal::User(0), 0), terms, binding);
        ListedReservation { row, state: State::Active, reason, served: 1, chosen: None }
    }

    #[test]
    fn hourly_reservation_price_depends_on_share_and_period() {
        let hour = |slice, period, vcpus| prices().hour(terms(slice, period, vcpus));
        assert_eq!(hour(5, 100, 1), 2_000);
        assert_eq!(hour(50, 100, 4), 80_000);
        assert_eq!(hour(5, 10, 1), 30_000);
        assert_eq!(hour(1, 5, 1), 16_000);
    }

    #[test]
    fn reservation_cost_grows_with_reserved_time() {
        let (at, web) = (|seconds| Time::START.after(Span::from_secs(seconds)), DomId::new(3));
        let mut costs = Costs::new(prices(), at(0));
        let half = terms(50, 100, 1);
        costs.count(at(3600), [(web, listed(half, None))].into_iter());
        let cost = costs.of(web, half);
        assert_eq!((cost.total.as_str(), cost.hour_millionths), ("0.02", 20_000));
        // The share is halved now. In the next hour the reservation does not fit.
        let quarter = terms(25, 100, 1);
        costs.count(at(7200), [(web, listed(quarter, None))].into_iter());
        assert_eq!(costs.of(web, quarter).total_millionths, 30_000);
        let none = Some(Reason::NoRoom("full".into()));
        costs.count(at(10_800), [(web, listed(quarter, none))].into_iter());
        assert_eq!(costs.of(web, quarter).total_millionths, 30_000);
        // The costs of a removed reservation are forgotten.
        costs.count(at(10_801), std::iter::empty());
        assert_eq!(costs.of(web, quarter).total_millionths, 0);
    }
}
