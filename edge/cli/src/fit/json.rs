//! Answers of `slackline fit` as JSON.

use serde_json::{Value, json};
use slackline_experiments::fit::{FitAnswer, MissWitness, PeriodRow};
use slackline_fit::Proof;
use slackline_units::{Reservation, Time};

/// Returns an answer as JSON.
pub(super) fn answer(answer: &FitAnswer) -> Value {
    let FitAnswer { tasks, fit, .. } = answer;
    let has_trace = answer.miss.is_some();
    let witnesses = if has_trace { json!(["proof", "trace"]) } else { json!(["proof"]) };
    let tasks_and_names = tasks.set.tasks().iter().zip(&tasks.names);
    json!({
        "title": tasks.title,
        "scheduler": tasks.set.scheduler().name(),
        "tasks": tasks_and_names.map(|(task, name)| json!({
            "name": name,
            "work_ns": task.work().ns(),
            "period_ns": task.period().ns(),
            "deadline_ns": task.deadline().ns(),
        })).collect::<Vec<Value>>(),
        "utilisation_ppm": tasks.set.utilisation_ppm(),
        "reservation": reservation(fit.reservation),
        "vms_per_cpu": answer.vms,
        "tried_periods": fit.tried.map(|tried| json!({
            "count": tried.count,
            "shortest_ns": tried.shortest.ns(),
            "longest_ns": tried.longest.ns(),
            "step_ns": tried.step.ns(),
            "shortest_slice_ns": tried.shortest_slice.ns(),
            "is_most": tried.is_most,
        })),
        "witnesses": witnesses,
        "proof": proof(&fit.proof, answer),
        "simulated_jobs": answer.check.jobs,
        "trace": answer.miss.as_ref().map(miss),
        "periods": answer.periods.iter().map(period).collect::<Vec<Value>>(),
        "hint": answer.hint(),
    })
}

fn reservation(of: Reservation) -> Value {
    json!({
        "slice_ns": of.slice().ns(),
        "period_ns": of.period().ns(),
        "share_ppm": of.share().ppm(),
    })
}

fn proof(proof: &Proof, answer: &FitAnswer) -> Value {
    match proof {
        Proof::Demand { points, busy } => json!({
            "kind": "demand",
            "longest_busy_ns": busy.ns(),
            "points": points.iter().map(|point| json!({
                "interval_ns": point.until.ns(),
                "demand_ns": point.demand.ns(),
                "supplied_within_ns": point.from.ns(),
            })).collect::<Vec<Value>>(),
        }),
        Proof::Responses(responses) => json!({
            "kind": "responses",
            "tasks": responses.iter().zip(&answer.tasks.names).map(|(of, name)| json!({
                "name": name,
                "response_ns": of.response.ns(),
                "deadline_ns": of.deadline.ns(),
                "demand_ns": of.demand.ns(),
            })).collect::<Vec<Value>>(),
        }),
    }
}

fn miss(witness: &MissWitness) -> Value {
    let at = |time: Time| time.since(Time::START).ns();
    let miss = &witness.miss;
    json!({
        "reservation": reservation(witness.reservation),
        "task": miss.task,
        "released_ns": at(miss.released),
        "deadline_ns": at(miss.deadline),
        "done_ns": miss.done.map(at),
        "scenario": witness.phase.text(),
    })
}

fn period(row: &PeriodRow) -> Value {
    json!({
        "period_ns": row.period.ns(),
        "slice_ns": row.fits.map(|(of, _)| of.slice().ns()),
        "share_ppm": row.fits.map(|(of, _)| of.share().ppm()),
        "vms_per_cpu": row.fits.map_or(0, |(_, vms)| vms),
    })
}
