//! Limits of what a caller of the daemon may see in a prediction: a tenant sees the numbers of its
//! own VMs only.

use std::path::Path;

use serde_json::{Value, json};
use slackline_daemon::worker::{PredictionFields, WorkerQuestion};
use slackline_scenario::DeclinedVcpu;
use slackline_sim::RunError;
use slackline_whatif::{
    Cause, Edit, Forecast, ForecastError, Gate, LastChange, LeftOutVm, ModelError,
};

use super::{NAME_OF_LAST, no_model, problem, refused};
use crate::problem::Problem;

/// Statement about a change of a VM that the caller may not see, in place of its time, name and
/// reason.
const HIDDEN_CHANGE: &str = "what happens after admission refuses a change of another VM";

/// Client that asks a question about a recording.
pub(super) struct Caller<'a> {
    /// Names of the VMs that the caller may see: its own VMs, and those that the question adds.
    /// `None` if the caller may see all VMs.
    own: Option<Vec<&'a str>>,
}

/// Reason why no prediction from a recording is possible. The error names only VMs that a caller
/// may see.
pub(super) enum RefusedRecording {
    /// The VMs of the recording. A prediction is possible for none of them.
    LeftOut(Vec<LeftOutVm>),
    /// In the simulation of the unchanged recording, admission refuses this vCPU.
    Declined(DeclinedVcpu),
}

impl RefusedRecording {
    /// Returns the error for the caller of a question. A VM that the question adds does not count
    /// as a VM of the caller, because another user's VM in the recording can have the same name.
    pub(super) fn problem(&self, question: &WorkerQuestion) -> Problem {
        let own = question.own.as_ref().map(|own| own.iter().map(String::as_str).collect());
        let caller = Caller { own };
        match self {
            RefusedRecording::LeftOut(vms) => {
                no_model(&ModelError::AllLeftOut(caller.visible(vms.clone())))
            }
            RefusedRecording::Declined(declined) if caller.may_see(&declined.vcpu) => {
                problem(Path::new(NAME_OF_LAST), RunError::Declined(declined.clone()).into())
            }
            RefusedRecording::Declined(DeclinedVcpu { policy, .. }) => Problem::NoForecast {
                message: format!(
                    "cannot simulate {NAME_OF_LAST}: {policy} cannot admit a VM that is not yours"
                ),
                hint: None,
            },
        }
    }
}

impl<'a> Caller<'a> {
    pub(super) fn of(question: &'a WorkerQuestion) -> Caller<'a> {
        let added = question.asked.add.iter().map(|added| &added.name);
        let all = question.own.as_ref().map(|own| own.iter().chain(added));
        Caller { own: all.map(|all| all.map(String::as_str).collect()) }
    }

    /// Returns true if the caller may see the VM or vCPU of this name.
    fn may_see(&self, name: &str) -> bool {
        let Some(own) = &self.own else { return true };
        // The name of a VM may have a dot too.
        let vcpu = name.rsplit_once('.').filter(|(_, number)| number.parse::<u16>().is_ok());
        own.contains(&name) || vcpu.is_some_and(|(vm, _)| own.contains(&vm))
    }

    /// Returns those of the VMs without a prediction that the caller may see.
    pub(super) fn visible(&self, mut left_out: Vec<LeftOutVm>) -> Vec<LeftOutVm> {
        left_out.retain(|vm| self.may_see(&vm.name));
        left_out
    }

    /// Checks that the edits name only VMs that the caller may see. A copy of another VM would show
    /// the numbers of that VM.
    ///
    /// # Errors
    /// If an edit names another VM.
    pub(super) fn check(&self, edits: &[Edit]) -> Result<(), Problem> {
        let named = edits.iter().filter_map(|edit| match edit {
            Edit::Add { like: name, .. }
            | Edit::Remove(name)
            | Edit::Set { name, .. }
            | Edit::Move { name, .. } => Some(name),
            Edit::Policy(_) | Edit::Cpus(_) => None,
        });
        match named.into_iter().find(|name| !self.may_see(name)) {
            Some(name) => Err(Problem::BadOption {
                message: format!("cannot find `{name}` among your VMs"),
                hint: Some("name one of your own VMs".into()),
            }),
            None => Ok(()),
        }
    }

    /// Returns the result of the gate, without names, shares and parameters of VMs that the caller
    /// may not see.
    pub(super) fn gate(&self, gate: &Gate) -> Gate {
        let mut gate = gate.clone();
        if let Some(Cause::HalvesDiffer(halves)) = &gate.cause
            && !self.may_see(&halves.name)
        {
            gate.cause = Some(Cause::HalvesOfAnotherDiffer);
        }
        let is_visible = |vm: &String| self.may_see(vm);
        let hidden = gate.change.as_ref().filter(|it| !it.vm.as_ref().is_some_and(is_visible));
        if let Some(hidden) = hidden.map(LastChange::hidden) {
            gate.change = Some(hidden);
        }
        gate
    }

    /// Returns the error for a model that cannot be simulated, without the numbers of another VM.
    pub(super) fn refused(&self, file: &Path, error: ForecastError) -> Problem {
        match &error {
            ForecastError::Run(RunError::Declined(declined)) if !self.may_see(&declined.vcpu) => {
                let policy = declined.policy;
                Problem::NotAdmitted {
                    message: format!(
                        "admission would refuse the changed reservations: {policy} cannot admit a \
                         VM that is not yours"
                    ),
                    hint: None,
                }
            }
            ForecastError::Share { name, policy, .. } if !self.may_see(name) => {
                let message =
                    format!("cannot set parameters of {policy} for a VM that is not yours");
                Problem::BadOption { message, hint: None }
            }
            _ => refused(file, error),
        }
    }

    /// Removes the refused changes of other VMs from a prediction. Returns a statement about the
    /// removed changes. `None` if no change was removed.
    pub(super) fn hide_changes(&self, forecast: &mut Forecast) -> Option<&'static str> {
        let all = forecast.declined.len();
        forecast.declined.retain(|(_, name, _)| self.may_see(name));
        (forecast.declined.len() < all).then_some(HIDDEN_CHANGE)
    }

    /// Removes the numbers of other VMs from an answer.
    pub(super) fn answer(&self, answer: Value) -> PredictionFields {
        let Value::Object(answer) = answer else { return PredictionFields::new() };
        let mut answer: PredictionFields = answer.into_iter().collect();
        let is_own = |row: &Value| self.may_see(row["name"].as_str().unwrap_or_default());
        let keep_own = |rows: &mut Value| {
            if let Value::Array(rows) = rows {
                rows.retain(is_own);
            }
        };
        if let Some(rows) = answer.get_mut("vcpus") {
            keep_own(rows);
        }
        if let Some(periods) = answer.get_mut("periods") {
            keep_own(&mut periods["vms"]);
        }
        if let Some(Value::Array(forms)) = answer.get_mut("gate").map(|gate| &mut gate["forms"]) {
            forms.iter_mut().for_each(|form| keep_own(&mut form["vcpus"]));
        }
        if let Some(Value::Array(losses)) = answer.get_mut("losses") {
            for loss in losses.iter_mut().filter(|loss| !is_own(loss)) {
                let says = "less CPU time, more deadline misses, a longer wait or response";
                *loss = json!({
                    "name": loss["name"], "share_ppm": 0, "misses": 0, "wait_p99": null,
                    "response_p99": null, "says": says
                });
            }
        }
        answer
    }
}
