//! Measurements and predictions of a daemon, for the live manager.

use std::collections::BTreeMap;
use std::time::Duration;

use slackline_control::client::{Client, ClientError};
use slackline_control::{
    Apply, FieldValue, Kind, LargestShare, Length, MOST_CHANGES, RecordedPeriods, Reservation,
    SetParameters, State, VmPeriods, WhatIf,
};
use slackline_experiments::manage::{GoalList, slice_of};
use slackline_manager::{PredictedVm, Predictor, Round, RoundError, VmRound};
use slackline_units::{CpuShare, Span};

use crate::problem::Problem;
use crate::service;
use crate::service::args::DaemonArgs;

/// Time limit for an answer. The daemon itself limits a prediction to 10 s.
const ANSWER_TIME_LIMIT: Duration = Duration::from_secs(20);

/// Number of rounds in a recording. A prediction simulates all these rounds again. Measurements are
/// only from the last round, the second half of the recording.
const WINDOW: u64 = 2;

/// Daemon whose reservations are managed, with the goals of its VMs.
pub(super) struct ManagedHost {
    at: DaemonArgs,
    client: Option<Client>,
    goals: GoalList,
    /// Length of the recordings.
    since: Span,
}

/// Measurements of all managed VMs in a round.
pub(super) struct MeasuredRound {
    pub(super) round: Round,
    /// Reservations of the measured VMs, in the order of the VMs in `round`.
    pub(super) reservations: Vec<Reservation>,
    /// For each measured VM, the largest share that admission would accept for each of its vCPUs.
    largest: Vec<CpuShare>,
    /// Prediction for each measured VM if no reservation is changed. `None` if a VM has no
    /// prediction.
    unchanged: Option<Vec<PredictedVm>>,
    /// Reason why no prediction can be made from the recording of this round. `None` if predictions
    /// can be made.
    pub(super) refused: Option<String>,
}

impl ManagedHost {
    /// Connects to the daemon. Checks that the daemon has a VM to manage, and a reservation for
    /// each VM with goals.
    pub(super) fn open(
        at: DaemonArgs,
        goals: GoalList,
        round: Span,
    ) -> Result<ManagedHost, Problem> {
        let client = service::connect(&at)?.within(ANSWER_TIME_LIMIT);
        let mut host = ManagedHost { at, client: Some(client), goals, since: round * WINDOW };
        let all = host.reservations()?;
        if let Some(unknown) = host.goals.names().find(|name| all.iter().all(|it| it.name != *name))
        {
            let names: Vec<&str> = all.iter().map(|it| it.name.as_str()).collect();
            return Err(Problem::BadOption {
                message: format!(
                    "cannot use the goals of `{unknown}`: there is no such reservation"
                ),
                hint: Some(match names[..] {
                    [] => "make a reservation with `slackline reserve`".into(),
                    _ => format!("write one of {}", names.join(", ")),
                }),
            });
        }
        let managed = all.iter().filter(|it| host.reason_to_leave(it).is_none()).count();
        if managed == 0 {
            return Err(Problem::BadOption {
                message: "cannot manage: no running VM has a reservation and goals".into(),
                hint: Some("see `slackline list`, and `leave` in the goals".into()),
            });
        }
        if managed > MOST_CHANGES {
            return Err(Problem::BadOption {
                message: format!("cannot manage {managed} VMs: at most {MOST_CHANGES} are allowed"),
                hint: Some("write `leave = true` for some VMs in the goals".into()),
            });
        }
        Ok(host)
    }

    /// Checks that the caller may change reservations. The check is a dry run without any change,
    /// which needs the same right as a change.
    ///
    /// # Errors
    /// If the caller's role has no such right, or the daemon does not answer.
    pub(super) fn check_right_to_change(&mut self) -> Result<(), Problem> {
        let nothing = Apply { dry_run: true, ..Apply::default() };
        let asked = self.client()?.apply(&nothing).map(|_| ());
        Ok(asked.map_err(|error| match error {
            ClientError::Refused(mut refused) if refused.kind == Kind::NotAllowed => {
                refused.detail = "cannot manage in mode act: the caller's role has no right to \
                                  change reservations"
                    .into();
                refused.hint = Some("use --mode recommend, or see `slackline help service`".into());
                ClientError::Refused(refused)
            }
            error => error,
        })?)
    }

    /// Returns all reservations that the caller may see.
    ///
    /// # Errors
    /// If the daemon does not answer. Also if the kernel enforces a reservation, because the waits
    /// of its VM are then not recorded.
    pub(super) fn reservations(&mut self) -> Result<Vec<Reservation>, Problem> {
        let mut all = service::all(self.client()?)?;
        all.retain(|one| !one.is_hidden());
        service::check_mechanisms("cannot manage", &all)?;
        Ok(all)
    }

    /// Returns the reason why the manager does not manage a VM. `None` if the manager manages the
    /// VM.
    pub(super) fn reason_to_leave(&self, vm: &Reservation) -> Option<String> {
        match (self.goals.of(&vm.name), vm.state) {
            (None, _) => Some("its goals have `leave = true`".into()),
            (_, State::Active) => None,
            (_, state) => Some(format!("it is {}", state.word())),
        }
    }

    /// Returns the connection to the daemon. Connects again if there is none.
    pub(super) fn client(&mut self) -> Result<&mut Client, Problem> {
        let client = match self.client.take() {
            Some(client) => client,
            None => service::connect(&self.at)?.within(ANSWER_TIME_LIMIT),
        };
        Ok(self.client.insert(client))
    }

    /// Measures the round that ends now. `None` if no VM can be measured.
    pub(super) fn measure(&mut self, number: u64) -> Result<Option<MeasuredRound>, Problem> {
        let mut managed = self.reservations()?;
        managed.retain(|it| self.reason_to_leave(it).is_none());
        managed.truncate(MOST_CHANGES);
        if managed.is_empty() {
            return Ok(None);
        }
        let slices: Vec<(&str, Span)> =
            managed.iter().map(|it| (it.name.as_str(), it.slice.0)).collect();
        let (periods, largest) = self.ask(&slices, true)?;
        let measured = |it: &Reservation| periods.vms.iter().position(|vm| vm.name == it.name);
        managed.retain(|it| measured(it).is_some());
        let mut vms = Vec::new();
        let mut unchanged = Vec::new();
        let mut most = Vec::new();
        for it in &managed {
            let Some(of) = measured(it).map(|at| &periods.vms[at]) else { continue };
            let vm = self.vm(it, of)?;
            let largest = largest.iter().find(|largest| largest.name == it.name);
            most.push(largest.and_then(share_of_each_vcpu).unwrap_or(vm.share));
            unchanged.push(predicted(of));
            vms.push(vm);
        }
        let reserved: u32 = vms.iter().map(|vm| vm.share.ppm()).sum();
        let room = vms.iter().zip(&most).map(|(vm, most)| most.less(vm.share)).max();
        let capacity = CpuShare::from_ppm(reserved + room.unwrap_or(CpuShare::NONE).ppm());
        let round = Round { number, length: Span::from_ns(periods.length_ns), capacity, vms };
        let wrong = |error: RoundError| Problem::Service(ClientError::Garbled(error.to_string()));
        round.check().map_err(wrong)?;
        Ok(Some(MeasuredRound {
            round,
            reservations: managed,
            largest: most,
            unchanged: unchanged.into_iter().collect(),
            refused: periods.refused,
        }))
    }

    /// Returns the measurements of a VM, with its reservation and its goals.
    fn vm(&self, it: &Reservation, of: &VmPeriods) -> Result<VmRound, Problem> {
        let each = slackline_units::Reservation::new(it.slice.0, it.period.0);
        let bad = |what: String| Problem::Service(ClientError::Garbled(what));
        let goals = self.goals.of(&it.name).expect("only managed VMs are measured");
        let demand = of.demand.iter().map(|&(ns, count)| (Span::from_ns(ns), count));
        Ok(VmRound {
            name: it.name.parse().map_err(|why| bad(format!("the name `{}` {why}", it.name)))?,
            // The daemon enforces a long period as shorter periods, which the recording has.
            period: Span::from_ns(of.period_ns),
            share: each.map_err(|error| bad(error.to_string()))?.share(),
            floor: goals.floor,
            ceiling: goals.ceiling,
            priority: goals.priority,
            goals: goals.goals,
            demand: demand.collect(),
            misses: of.misses,
            received: Span::from_ns(of.received_ns),
        })
    }

    /// Asks the daemon for measurements, predictions with these slices, and the largest shares that
    /// admission accepts. The first question of a round is `fresh`, so the daemon takes a new
    /// recording. The other questions of the round use that recording too.
    fn ask(
        &mut self,
        slices: &[(&str, Span)],
        fresh: bool,
    ) -> Result<(RecordedPeriods, Vec<LargestShare>), Problem> {
        let set = slices.iter().map(|(name, slice)| SetParameters {
            name: (*name).into(),
            fields: BTreeMap::from([("slice".into(), FieldValue::Text(slice.to_string()))]),
        });
        let (since, set) = (Length(self.since), set.collect());
        let asked = WhatIf { since, set, periods: true, fresh, ..WhatIf::default() };
        let (answer, _) = self.client()?.whatif(&asked)?;
        let none = || ClientError::Garbled("the answer has no `periods`".into());
        Ok((answer.periods().ok_or_else(none)?, answer.largest))
    }
}

/// Returns the largest share of each vCPU of a VM. `None` if the answer has no period.
fn share_of_each_vcpu(largest: &LargestShare) -> Option<CpuShare> {
    let ppm = u128::from(largest.slice_ns) * 1_000_000;
    let ppm = u32::try_from(ppm.checked_div(largest.period_ns.into())?).ok()?;
    Some(CpuShare::from_ppm(ppm).min(CpuShare::ONE))
}

/// Returns the prediction for a VM. `None` if the daemon made no prediction for the VM.
fn predicted(of: &VmPeriods) -> Option<PredictedVm> {
    let it = of.predicted?;
    Some(PredictedVm {
        misses: it.misses,
        periods: it.periods,
        share_ppm: (it.share_ppm, it.share_ppm),
        length: Span::from_ns(it.length_ns),
    })
}

/// Predictor that asks the daemon.
pub(super) struct DaemonPredictor<'a> {
    pub(super) host: &'a mut ManagedHost,
    pub(super) measured: &'a MeasuredRound,
    /// Reason why the last question got no prediction.
    pub(super) why_not: Option<String>,
    /// Error that kept the daemon from answering the last question.
    pub(super) failed: Option<Problem>,
}

impl DaemonPredictor<'_> {
    fn ask(&mut self, shares: &[CpuShare]) -> Result<Vec<PredictedVm>, String> {
        let MeasuredRound { round, reservations, largest, .. } = self.measured;
        let mut slices = Vec::new();
        for (nth, (vm, &share)) in round.vms.iter().zip(shares).enumerate() {
            if share != vm.share && share > largest[nth] {
                let (asked, most) = (share.ppm() / 1_000, largest[nth].ppm() / 1_000);
                return Err(format!(
                    "admission would refuse {asked} thousandths of a CPU for {}: {most} are \
                     available",
                    vm.name
                ));
            }
            let (now, period) = (reservations[nth].slice.0, reservations[nth].period.0);
            let slice = if share == vm.share { now } else { slice_of(share, period) };
            slices.push((vm.name.as_str(), slice));
        }
        match self.host.ask(&slices, false) {
            Ok((periods, _)) => {
                let of = |vm: &VmRound| {
                    periods.vms.iter().find(|of| of.name == vm.name.as_str()).and_then(predicted)
                };
                let all: Option<Vec<PredictedVm>> = round.vms.iter().map(of).collect();
                all.ok_or(periods.refused.unwrap_or_else(|| "a managed VM has left".into()))
            }
            Err(problem) => {
                let says = problem.to_string();
                self.failed = Some(problem);
                Err(says)
            }
        }
    }
}

impl Predictor for DaemonPredictor<'_> {
    fn predict(&mut self, shares: &[CpuShare]) -> Option<Vec<PredictedVm>> {
        if self.measured.refused.is_some() || self.failed.is_some() {
            return None;
        }
        if self.measured.round.shares() == shares {
            return self.measured.unchanged.clone();
        }
        match self.ask(shares) {
            Ok(vms) => Some(vms),
            Err(why) => {
                self.why_not = Some(why);
                None
            }
        }
    }
}

/// Returns true if a change may have been made although the daemon did not confirm it.
pub(super) fn may_be_done(error: &ClientError) -> bool {
    match error {
        ClientError::Refused(refused) => refused.kind == Kind::NotAnswered,
        ClientError::Lost(_) | ClientError::Silent | ClientError::Garbled(_) => true,
        _ => false,
    }
}

/// Returns true if an error ends the manager. After any other error the manager tries again in the
/// next round. A question that the daemon refuses as bad does not end the manager: a VM may have
/// left since the reservations were listed.
pub(super) fn is_final(problem: &Problem) -> bool {
    match problem {
        Problem::Service(ClientError::Refused(refused)) => {
            matches!(refused.kind, Kind::NotAllowed | Kind::NotKnown | Kind::HostCannot | Kind::Bug)
        }
        Problem::Service(
            ClientError::NoDaemon { .. }
            | ClientError::NoHost { .. }
            | ClientError::Lost(_)
            | ClientError::Silent,
        ) => false,
        _ => true,
    }
}
