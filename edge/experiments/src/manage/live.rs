//! One round of the live manager: the decision about measured VMs, and the replay of a round from a
//! file.
//!
//! A [`SavedRound`] contains all inputs of the controller: the measured VMs, and each prediction
//! that the controller asked for. So a [`Replay`] works without a daemon, and must make the same
//! decisions as the saved rounds.

use serde::{Deserialize, Serialize};
use slackline_demand::DemandCounts;
use slackline_manager::{
    Decision, Goals, Manager, PredictedVm, Predictor, Round, RoundError, VmRound,
};
use slackline_service::NameError;
use slackline_units::{CpuShare, Span};
use thiserror::Error;

/// Inputs and decision of one round, as a file stores them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedRound {
    /// Number of the round, counted from zero.
    pub round: u64,
    /// Length of the measured time, in nanoseconds.
    pub length_ns: u64,
    /// Largest allowed sum of the shares, in millionths of a CPU.
    pub capacity_ppm: u32,
    /// Measurements of each managed VM.
    pub vms: Vec<SavedVm>,
    /// Predictions, in the order in which the controller asked for them.
    pub predictions: Vec<SavedPrediction>,
    /// Decision of the controller. `None` if the controller changed nothing.
    pub decision: Option<SavedDecision>,
}

/// A measured VM with its goals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedVm {
    /// Name of the reservation.
    pub name: String,
    /// Period of the reservation, in nanoseconds.
    pub period_ns: u64,
    /// Reserved share, in millionths of a CPU.
    pub share_ppm: u32,
    /// Floor: the manager never reserves less than this share, in millionths of a CPU.
    pub floor_ppm: u32,
    /// Ceiling: the manager never reserves more than this share, in millionths of a CPU.
    pub ceiling_ppm: u32,
    /// Priority of the VM. To raise the share of this VM, the manager can lower the shares of VMs
    /// with a lower priority.
    pub priority: u8,
    /// Goal: at most this part of the VM's periods is missed, in millionths. `None` if the VM has
    /// no such goal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misses_goal_ppm: Option<u32>,
    /// Goal: at least this share is reserved, in millionths of a CPU. `None` if the VM has no such
    /// goal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_ppm: Option<u32>,
    /// Goal: the VM uses this part of its reservation, in millionths of the reservation. `None` if
    /// the VM has no such goal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub use_ppm: Option<u32>,
    /// Histogram of the demand per period: pairs of a demand in nanoseconds and the number of
    /// periods with that demand.
    pub demand: Vec<(u64, u64)>,
    /// Number of periods that the VM missed.
    pub misses: u64,
    /// CPU time that the VM received, in nanoseconds.
    pub received_ns: u64,
}

/// A prediction that the controller asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedPrediction {
    /// Shares, one for each VM, with which the controller asked for a prediction, in millionths of
    /// a CPU.
    pub shares_ppm: Vec<u32>,
    /// Prediction for each VM. `None` if no prediction was possible.
    pub vms: Option<Vec<SavedPredictedVm>>,
}

/// Prediction for one VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedPredictedVm {
    /// Predicted number of missed periods.
    pub misses: u64,
    /// Number of periods that the prediction covers.
    pub periods: u64,
    /// Smallest and largest share that the VM is predicted to receive, in millionths of a CPU.
    pub share_ppm: (u64, u64),
    /// Length of the time that the prediction covers, in nanoseconds.
    pub length_ns: u64,
}

/// Decision of the controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedDecision {
    /// Name of the reservation.
    pub name: String,
    /// Share before the change, in millionths of a CPU.
    pub from_ppm: u32,
    /// Share after the change, in millionths of a CPU.
    pub to_ppm: u32,
    /// Reason for the change, in one sentence.
    pub says: String,
}

/// Makes the decision for a measured round. Also returns the inputs and the decision in the form in
/// which a file stores them.
pub fn decide(
    manager: &mut Manager,
    round: &Round,
    predictor: &mut dyn Predictor,
) -> (Option<Decision>, SavedRound) {
    let mut keeping = KeepingPredictor { predictor, predictions: Vec::new() };
    let decision = manager.round(round, &mut keeping);
    let saved = SavedRound {
        round: round.number,
        length_ns: round.length.ns(),
        capacity_ppm: round.capacity.ppm(),
        vms: round.vms.iter().map(SavedVm::of).collect(),
        predictions: keeping.predictions,
        decision: decision.as_ref().map(SavedDecision::of),
    };
    (decision, saved)
}

/// Predictor that passes each question to another predictor, and stores the answers.
struct KeepingPredictor<'a> {
    predictor: &'a mut dyn Predictor,
    predictions: Vec<SavedPrediction>,
}

impl Predictor for KeepingPredictor<'_> {
    fn predict(&mut self, shares: &[CpuShare]) -> Option<Vec<PredictedVm>> {
        let answer = self.predictor.predict(shares);
        self.predictions.push(SavedPrediction {
            shares_ppm: shares.iter().map(|share| share.ppm()).collect(),
            vms: answer.as_ref().map(|vms| vms.iter().map(SavedPredictedVm::of).collect()),
        });
        answer
    }
}

/// Replay of saved rounds in order.
#[derive(Debug, Default)]
pub struct Replay {
    manager: Manager,
    /// Number of the last replayed round. `None` if no round was replayed yet.
    last: Option<u64>,
}

/// Reason why a saved round cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SavedRoundError {
    /// The name of a VM is not allowed as the name of a reservation.
    #[error("the name of a VM {0}")]
    Name(#[from] NameError),
    /// A number of the saved round is beyond its limit.
    #[error("{0}")]
    Round(#[from] RoundError),
    /// The rounds are not in ascending order of their numbers.
    #[error("round {number} cannot follow round {last}: the numbers must increase")]
    Order {
        /// Number of the round.
        number: u64,
        /// Number of the previous round. It is not smaller than `number`.
        last: u64,
    },
}

/// A replayed decision that differs from the saved decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayDifference {
    /// Saved decision. If `None`, the saved round changed nothing.
    pub saved: Option<SavedDecision>,
    /// Replayed decision. If `None`, the replayed round changed nothing.
    pub again: Option<SavedDecision>,
}

impl Replay {
    /// Creates a replay for a manager with the delays and margins `pace`.
    #[must_use]
    pub fn new(pace: slackline_manager::Pace) -> Replay {
        Replay { manager: Manager::new(pace), last: None }
    }

    /// Decides about the next saved round. Returns the difference from the saved decision. `None`
    /// if the decisions are equal.
    ///
    /// # Errors
    /// If the name of a VM is not allowed as the name of a reservation, or a number exceeds its
    /// limit. Also if the number of the round is not larger than the previous number.
    pub fn round(
        &mut self,
        saved: &SavedRound,
    ) -> Result<Option<ReplayDifference>, SavedRoundError> {
        let round = saved.round()?;
        round.check()?;
        let number = round.number;
        if let Some(last) = self.last.replace(number).filter(|last| *last >= number) {
            return Err(SavedRoundError::Order { number, last });
        }
        let mut predictor = SavedPredictor(&saved.predictions);
        let again = self.manager.round(&round, &mut predictor);
        let again = again.as_ref().map(SavedDecision::of);
        let is_same = again == saved.decision;
        let difference = || ReplayDifference { saved: saved.decision.clone(), again };
        Ok((!is_same).then(difference))
    }
}

/// Predictor that answers with saved predictions. For a question that is not in the file there is
/// no prediction.
struct SavedPredictor<'a>(&'a [SavedPrediction]);

impl Predictor for SavedPredictor<'_> {
    fn predict(&mut self, shares: &[CpuShare]) -> Option<Vec<PredictedVm>> {
        let is_asked = |saved: &&SavedPrediction| {
            saved.shares_ppm.iter().copied().eq(shares.iter().map(|share| share.ppm()))
        };
        let vms = self.0.iter().find(is_asked)?.vms.as_ref()?;
        Some(vms.iter().map(SavedPredictedVm::predicted).collect())
    }
}

impl SavedRound {
    fn round(&self) -> Result<Round, NameError> {
        let vms = self.vms.iter().map(SavedVm::measured).collect::<Result<_, _>>()?;
        Ok(Round {
            number: self.round,
            length: Span::from_ns(self.length_ns),
            capacity: CpuShare::from_ppm(self.capacity_ppm),
            vms,
        })
    }
}

impl SavedVm {
    fn of(vm: &VmRound) -> SavedVm {
        SavedVm {
            name: vm.name.to_string(),
            period_ns: vm.period.ns(),
            share_ppm: vm.share.ppm(),
            floor_ppm: vm.floor.ppm(),
            ceiling_ppm: vm.ceiling.ppm(),
            priority: vm.priority,
            misses_goal_ppm: vm.goals.misses_ppm,
            least_ppm: vm.goals.at_least.map(CpuShare::ppm),
            use_ppm: vm.goals.use_ppm,
            demand: vm.demand.iter().map(|(amount, &count)| (amount.ns(), count)).collect(),
            misses: vm.misses,
            received_ns: vm.received.ns(),
        }
    }

    fn measured(&self) -> Result<VmRound, NameError> {
        let demand = self.demand.iter().map(|&(ns, count)| (Span::from_ns(ns), count));
        Ok(VmRound {
            name: self.name.parse()?,
            period: Span::from_ns(self.period_ns),
            share: CpuShare::from_ppm(self.share_ppm),
            floor: CpuShare::from_ppm(self.floor_ppm),
            ceiling: CpuShare::from_ppm(self.ceiling_ppm),
            priority: self.priority,
            goals: Goals {
                misses_ppm: self.misses_goal_ppm,
                at_least: self.least_ppm.map(CpuShare::from_ppm),
                use_ppm: self.use_ppm,
            },
            demand: demand.collect::<DemandCounts>(),
            misses: self.misses,
            received: Span::from_ns(self.received_ns),
        })
    }
}

impl SavedPredictedVm {
    fn of(vm: &PredictedVm) -> SavedPredictedVm {
        let PredictedVm { misses, periods, share_ppm, length } = *vm;
        SavedPredictedVm { misses, periods, share_ppm, length_ns: length.ns() }
    }

    fn predicted(&self) -> PredictedVm {
        let SavedPredictedVm { misses, periods, share_ppm, length_ns } = *self;
        PredictedVm { misses, periods, share_ppm, length: Span::from_ns(length_ns) }
    }
}

impl SavedDecision {
    fn of(decision: &Decision) -> SavedDecision {
        SavedDecision {
            name: decision.name.to_string(),
            from_ppm: decision.from.ppm(),
            to_ppm: decision.to.ppm(),
            says: decision.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use slackline_manager::Pace;

    use super::*;

    const SECOND: Span = Span::from_secs(1);

    /// Returns a VM with 100 periods of 10 ms. In each period, the VM demanded `demanded_ms`
    /// milliseconds.
    fn vm(name: &str, share_ppm: u32, demanded_ms: u64) -> VmRound {
        let slice_ms = u64::from(share_ppm) / 100_000;
        let is_short = demanded_ms > slice_ms;
        VmRound {
            name: name.parse().expect("a name"),
            period: Span::from_ms(10),
            share: CpuShare::from_ppm(share_ppm),
            floor: CpuShare::from_ppm(10_000),
            ceiling: CpuShare::ONE,
            priority: 0,
            goals: Goals { misses_ppm: Some(1_000), ..Goals::default() },
            demand: DemandCounts::from([(Span::from_ms(demanded_ms), 100)]),
            misses: if is_short { 90 } else { 0 },
            received: Span::from_ms(demanded_ms.min(slice_ms) * 100),
        }
    }

    fn round(number: u64, web: VmRound) -> Round {
        let vms = vec![web, vm("db", 200_000, 2)];
        Round { number, length: SECOND, capacity: CpuShare::from_ppm(900_000), vms }
    }

    /// Predictor that predicts no miss if the first VM has at least this share in millionths, and
    /// otherwise 90 misses.
    struct SufficientShare(u32);

    impl Predictor for SufficientShare {
        fn predict(&mut self, shares: &[CpuShare]) -> Option<Vec<PredictedVm>> {
            let vm = |(index, share): (usize, &CpuShare)| PredictedVm {
                misses: if index == 0 && share.ppm() < self.0 { 90 } else { 0 },
                periods: 100,
                share_ppm: (0, u64::from(share.ppm())),
                length: SECOND,
            };
            Some(shares.iter().enumerate().map(vm).collect())
        }
    }

    struct Silent;

    impl Predictor for Silent {
        fn predict(&mut self, _: &[CpuShare]) -> Option<Vec<PredictedVm>> {
            None
        }
    }

    #[test]
    fn manager_replay_of_saved_rounds_repeats_the_saved_decisions() {
        let mut manager = Manager::new(Pace::default());
        let mut rounds = Vec::new();
        let (rise, saved) =
            decide(&mut manager, &round(0, vm("web", 200_000, 3)), &mut SufficientShare(300_000));
        let rise = rise.expect("the VM missed periods");
        assert_eq!((rise.name.as_str(), rise.to.ppm()), ("web", 309_000));
        rounds.push(saved);
        let steady = round(1, vm("web", 309_000, 3));
        let (none, saved) = decide(&mut manager, &steady, &mut SufficientShare(300_000));
        assert_eq!(none, None);
        rounds.push(saved);
        let mut replay = Replay::new(Pace::default());
        for saved in &rounds {
            assert_eq!(replay.round(saved), Ok(None));
        }
        let mut changed = rounds[0].clone();
        changed.vms[0].demand = vec![(4_000_000, 100)];
        let difference = Replay::new(Pace::default()).round(&changed).expect("valid names");
        let difference = difference.expect("another demand has another target");
        assert_eq!(difference.saved, rounds[0].decision);
        // The file has no prediction for the share that is now asked for.
        assert_eq!(difference.again, None);
    }

    #[test]
    fn manager_replay_refuses_unordered_round_and_impossibly_long_round() {
        let mut manager = Manager::new(Pace::default());
        let (_, saved) = decide(&mut manager, &round(7, vm("web", 200_000, 1)), &mut Silent);
        let mut replay = Replay::new(Pace::default());
        assert_eq!(replay.round(&saved), Ok(None));
        let again = replay.round(&saved);
        assert_eq!(again, Err(SavedRoundError::Order { number: 7, last: 7 }));
        let endless = SavedRound { length_ns: u64::MAX, ..saved };
        let refused = Replay::default().round(&endless);
        assert!(matches!(refused, Err(SavedRoundError::Round(_))), "{refused:?}");
    }

    #[test]
    fn manager_round_without_a_prediction_changes_nothing_and_is_saved() {
        let mut manager = Manager::new(Pace::default());
        let (decision, saved) = decide(&mut manager, &round(0, vm("web", 200_000, 3)), &mut Silent);
        assert_eq!(decision, None);
        assert_eq!(saved.predictions.len(), 1);
        assert_eq!(saved.predictions[0].vms, None);
    }

    #[test]
    fn manager_undoes_share_increase_if_next_round_has_unpredicted_misses() {
        let mut manager = Manager::new(Pace::default());
        let first = round(0, vm("web", 200_000, 3));
        let (rise, _) = decide(&mut manager, &first, &mut SufficientShare(300_000));
        assert!(rise.is_some());
        // The VM misses more periods than before the rise, although no period demanded more than
        // the reservation.
        let worse = VmRound { misses: 99, ..vm("web", 309_000, 3) };
        let (undo, saved) = decide(&mut manager, &round(1, worse), &mut SufficientShare(300_000));
        let undo = undo.expect("the canary failed");
        assert_eq!((undo.from.ppm(), undo.to.ppm()), (309_000, 200_000));
        assert!(saved.decision.expect("it is saved").says.contains("undone"));
    }

    /// Returns a manager that has just reduced the share of `web` to 20.6 %.
    fn manager_after_a_fall() -> Manager {
        let mut manager = Manager::new(Pace::default());
        let first = round(0, vm("web", 400_000, 2));
        assert_eq!(decide(&mut manager, &first, &mut SufficientShare(100_000)).0, None);
        let second = round(1, vm("web", 400_000, 2));
        let (fall, _) = decide(&mut manager, &second, &mut SufficientShare(100_000));
        assert_eq!(fall.map(|fall| fall.to.ppm()), Some(206_000));
        manager
    }

    /// Returns the VM `web` with a share of 20.6 %. In `late` of its 100 periods, it demanded more
    /// than its slice and was late.
    fn with_late_periods(late: u64) -> VmRound {
        let demand = [(Span::from_ms(2), 100 - late), (Span::from_ms(5), late)];
        VmRound { demand: DemandCounts::from(demand), misses: late, ..vm("web", 206_000, 2) }
    }

    #[test]
    fn manager_keeps_share_reduction_after_a_single_unpredicted_miss() {
        let mut manager = manager_after_a_fall();
        let mut decided = |number, late| {
            let round = round(number, with_late_periods(late));
            let (decision, _) = decide(&mut manager, &round, &mut SufficientShare(100_000));
            decision.map(|decision| decision.to.ppm())
        };
        assert_eq!(decided(2, 1), None);
        assert_eq!((3..8).find_map(|number| decided(number, 0)), None);
        // The first late period is no longer among the six rounds that count as evidence.
        assert_eq!([decided(8, 1), decided(9, 1), decided(10, 1)], [None; 3]);
        // Four of 600 periods are more than 0.5 %, and no miss was predicted.
        assert_eq!(decided(11, 1), Some(515_000));
    }

    #[test]
    fn manager_undoes_share_reduction_after_three_unpredicted_misses() {
        let mut manager = manager_after_a_fall();
        let round = round(2, with_late_periods(3));
        let (rise, _) = decide(&mut manager, &round, &mut SufficientShare(100_000));
        let rise = rise.map(|rise| (rise.from.ppm(), rise.to.ppm()));
        assert_eq!(rise, Some((206_000, 400_000)));
    }
}
