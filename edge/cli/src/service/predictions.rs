//! Output of `slackline predictions`: applied predictions and their results.

use slackline_control::PredictionRecord;
use slackline_terminal::percent;

use super::show::moment;

/// Returns a table of all predictions, newest last, and the line of [`record`], which states how
/// close the results came.
pub(super) fn shown(all: &[PredictionRecord]) -> String {
    let width = all.iter().map(|it| it.prediction.vcpu.len()).max().unwrap_or(0).clamp(4, 64);
    let mut text = format!(
        "{:<19}  {:<width$}  {:>14}  {:>6}  {:>8}  {:>6}  {:>15}  {:>6}\n",
        "applied", "vCPU", "share %", "actual", "missed", "actual", "wait p99 ms", "actual"
    );
    for one in all {
        let (least, most) = one.prediction.share_ppm;
        let share = between(&percent(least), &percent(most));
        let came = one.outcome.map_or("-".into(), |it| percent(it.share_ppm));
        let missed = one.prediction.missed;
        let missed = missed
            .map_or("-".into(), |(least, most)| between(&least.to_string(), &most.to_string()));
        let came_missed = one.outcome.and_then(|it| it.missed);
        let came_missed = came_missed.map_or("-".into(), |missed| missed.to_string());
        let wait = one.prediction.wait_p99_ns;
        let wait = wait.map_or("-".into(), |(least, most)| between(&ms(least), &ms(most)));
        let came_wait = one.outcome.and_then(|it| it.wait_p99_ns).map_or("-".into(), ms);
        text += &format!(
            "{:<19}  {:<width$}  {share:>14}  {came:>6}  {missed:>8}  {came_missed:>6}  \
             {wait:>15}  {came_wait:>6}\n",
            moment(one.at_ns),
            one.prediction.vcpu,
        );
    }
    text + &record(all)
}

/// Formats nanoseconds in milliseconds.
fn ms(ns: u64) -> String {
    let us = (ns + 500) / 1_000;
    format!("{}.{:03}", us / 1_000, us % 1_000)
}

fn between(least: &str, most: &str) -> String {
    if least == most { least.to_owned() } else { format!("{least} .. {most}") }
}

/// Returns one line that states how close the results came to all predictions.
pub(crate) fn record(all: &[PredictionRecord]) -> String {
    let mut errors: Vec<u64> = all.iter().filter_map(PredictionRecord::share_error_ppm).collect();
    errors.sort_unstable();
    let Some(&worst) = errors.last() else {
        return "No prediction has been compared with its outcome yet.\n".into();
    };
    let (count, median) = (errors.len(), errors[errors.len() / 2]);
    let within = errors.iter().filter(|&&error| error == 0).count();
    let close = errors.iter().filter(|&&error| error <= 10_000).count();
    format!(
        "Predictions so far: {count}. In {within} of them the share was in the predicted interval, \
         and in {close} of them at most 1 point outside the interval. Median error of the share: \
         {} points, largest error: {} points.\n",
        percent(median),
        percent(worst),
    )
}

#[cfg(test)]
mod tests {
    use slackline_control::{Prediction, PredictionOutcome};

    use super::*;

    #[test]
    fn prediction_record_counts_outcomes_within_the_predicted_interval() {
        let one = |came: Option<u64>| PredictionRecord {
            at_ns: 0,
            prediction: Prediction {
                vcpu: "web.0".into(),
                length_ns: 1,
                share_ppm: (100_000, 120_000),
                missed: None,
                wait_p99_ns: None,
            },
            outcome: came.map(|share_ppm| PredictionOutcome {
                length_ns: 1,
                share_ppm,
                missed: None,
                wait_p99_ns: None,
            }),
        };
        let all = [one(Some(110_000)), one(Some(125_000)), one(Some(60_000)), one(None)];
        let says = "Predictions so far: 3. In 1 of them the share was in the predicted interval, \
                    and in 2 of them at most 1 point outside the interval. Median error of the \
                    share: 0.50 points, largest error: 4.00 points.\n";
        assert_eq!(record(&all), says);
        assert!(shown(&all).contains("10.00 .. 12.00"), "{}", shown(&all));
        assert!(record(&all[3..]).starts_with("No prediction"));
    }
}
