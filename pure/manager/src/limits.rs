//! Limits of measurements and predictions, so that the arithmetic of the controller cannot
//! overflow. [`Round::check`] refuses a round with a number above its limit. The manager ignores a
//! prediction with such a number.

use std::fmt;

use slackline_service::Name;
use slackline_units::Span;

use crate::input::{PredictedVm, Round, VmRound};

/// Longest round, and longest predicted time.
const LONGEST: Span = Span::from_secs(3600);

/// Largest number of periods of a VM in a round: one period per microsecond of the longest round.
const MOST_PERIODS: u64 = 3_600_000_000;

/// Largest round number. Rounds are numbered from 0.
const LAST_ROUND: u64 = u32::MAX as u64;

/// Reason why the manager cannot decide about a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoundError {
    /// The number of the round exceeds the largest round number.
    Number(u64),
    /// The length of the round is zero or too long.
    Length(Span),
    /// Two VMs have the same name.
    Twice(Name),
    /// The period of a VM is zero.
    NoPeriod(Name),
    /// A count of periods is too large.
    Periods {
        /// VM that has the count.
        vm: Name,
        /// Field with the count.
        field: &'static str,
        /// The count. `None` if the sum exceeds 64 bits.
        count: Option<u64>,
    },
    /// The total length of the periods of a VM, or the total CPU time that they demand, exceeds 584
    /// years.
    Sum(Name),
    /// A VM received more CPU time than the longest round lasts.
    Received(Name, Span),
}

impl fmt::Display for RoundError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RoundError::Number(number) => {
                write!(out, "the number of the round is {number}, above {LAST_ROUND}")
            }
            RoundError::Length(length) => {
                write!(out, "the round takes {length}; it must be above 0s and at most {LONGEST}")
            }
            RoundError::Twice(vm) => write!(out, "VM `{vm}` is listed twice"),
            RoundError::NoPeriod(vm) => write!(out, "the period of `{vm}` is 0s"),
            RoundError::Periods { vm, field, count: Some(count) } => {
                write!(out, "`{field}` of `{vm}` has {count} periods, above {MOST_PERIODS}")
            }
            RoundError::Periods { vm, field, count: None } => {
                write!(out, "`{field}` of `{vm}` has more than {MOST_PERIODS} periods")
            }
            RoundError::Sum(vm) => {
                write!(
                    out,
                    "the sum of the periods of `{vm}`, or of their demand, exceeds 584 years"
                )
            }
            RoundError::Received(vm, span) => {
                write!(out, "`{vm}` received {span}, above the longest round of {LONGEST}")
            }
        }
    }
}

impl std::error::Error for RoundError {}

impl Round {
    /// Checks the limits of a round that was read from a file or from another program.
    ///
    /// # Errors
    /// If a number exceeds its limit, a VM is listed twice, or a length is zero.
    pub fn check(&self) -> Result<(), RoundError> {
        if self.number > LAST_ROUND {
            return Err(RoundError::Number(self.number));
        }
        if self.length.is_zero() || self.length > LONGEST {
            return Err(RoundError::Length(self.length));
        }
        for (index, vm) in self.vms.iter().enumerate() {
            if self.vms[..index].iter().any(|other| other.name == vm.name) {
                return Err(RoundError::Twice(vm.name.clone()));
            }
            vm.check()?;
        }
        Ok(())
    }
}

impl VmRound {
    fn check(&self) -> Result<(), RoundError> {
        let vm = || self.name.clone();
        if self.period.is_zero() {
            return Err(RoundError::NoPeriod(vm()));
        }
        let add = |sum: u64, &count: &u64| sum.checked_add(count);
        let periods = self.demand.values().try_fold(0, add);
        for (field, count) in [("demand", periods), ("misses", Some(self.misses))] {
            if count.is_none_or(|count| count > MOST_PERIODS) {
                return Err(RoundError::Periods { vm: vm(), field, count });
            }
        }
        let product = |span: Span, count: u64| u128::from(span.ns()) * u128::from(count);
        let demanded: u128 =
            self.demand.iter().map(|(&amount, &count)| product(amount, count)).sum();
        let whole = product(self.period, periods.unwrap_or(0));
        if demanded.max(whole) > u128::from(u64::MAX) {
            return Err(RoundError::Sum(vm()));
        }
        if self.received > LONGEST {
            return Err(RoundError::Received(vm(), self.received));
        }
        Ok(())
    }
}

impl PredictedVm {
    /// Returns true if the numbers of the prediction are within their limits.
    pub(crate) fn is_plausible(&self) -> bool {
        self.misses <= MOST_PERIODS && self.periods <= MOST_PERIODS && self.length <= LONGEST
    }
}

#[cfg(test)]
mod tests {
    use slackline_demand::DemandCounts;
    use slackline_units::CpuShare;

    use super::*;
    use crate::{Goals, Manager, Pace, Predictor};

    fn vm() -> VmRound {
        VmRound {
            name: "web".parse().expect("a name"),
            period: Span::from_ms(10),
            share: CpuShare::from_ppm(200_000),
            floor: CpuShare::from_ppm(10_000),
            ceiling: CpuShare::ONE,
            priority: 0,
            goals: Goals { misses_ppm: Some(1_000), ..Goals::default() },
            demand: DemandCounts::from([(Span::from_ms(3), 100)]),
            misses: 90,
            received: Span::from_ms(200),
        }
    }

    fn round(vms: Vec<VmRound>) -> Round {
        let capacity = CpuShare::from_ppm(900_000);
        Round { number: 0, length: Span::from_secs(1), capacity, vms }
    }

    #[test]
    fn manager_round_with_input_beyond_limit_is_refused() {
        assert_eq!(round(vec![vm()]).check(), Ok(()));
        let (most, forever) = (u64::MAX, Span::from_ns(u64::MAX));
        let demand = |amount, count| DemandCounts::from([(amount, count)]);
        let two = DemandCounts::from([(Span::from_ms(1), most), (Span::from_ms(2), most)]);
        let bad = [
            VmRound { period: Span::ZERO, ..vm() },
            VmRound { period: forever, ..vm() },
            VmRound { demand: demand(forever, 100), ..vm() },
            VmRound { demand: demand(Span::from_ms(3), most), ..vm() },
            VmRound { demand: two, ..vm() },
            VmRound { misses: most, ..vm() },
            VmRound { received: forever, ..vm() },
        ];
        for vm in bad {
            assert!(round(vec![vm.clone()]).check().is_err(), "{vm:?}");
        }
        let twice = round(vec![vm(), vm()]).check().expect_err("the name is listed twice");
        assert_eq!(twice.to_string(), "VM `web` is listed twice");
        assert!(Round { length: Span::ZERO, ..round(vec![vm()]) }.check().is_err());
        assert!(Round { length: forever, ..round(vec![vm()]) }.check().is_err());
        assert!(Round { number: most, ..round(vec![vm()]) }.check().is_err());
    }

    /// Predictor that predicts the largest possible numbers.
    struct Gigantic;

    impl Predictor for Gigantic {
        fn predict(&mut self, shares: &[CpuShare]) -> Option<Vec<PredictedVm>> {
            let length = Span::from_ns(u64::MAX);
            let (misses, periods) = (u64::MAX, u64::MAX);
            let vm = PredictedVm { misses, periods, share_ppm: (u64::MAX, 0), length };
            Some(vec![vm; shares.len()])
        }
    }

    #[test]
    fn manager_ignores_prediction_with_numbers_above_allowed_maximum() {
        let mut manager = Manager::new(Pace::default());
        assert_eq!(manager.round(&round(vec![vm()]), &mut Gigantic), None);
    }
}
