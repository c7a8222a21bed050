//! Comparison of the results of `slackline alert` with the values published in the ALERT paper.
//! Only this module reads both the results and the published values.
//!
//! The verdicts are the same as for the experiments of all papers (`slackline paper`):
//!
//! - *reproduced*: the published value lies in the measured range over the seeds. The range is
//!   widened by the precision with which the value can be read in the paper. A finding in words is
//!   reproduced if the measured finding is the same.
//! - *same shape*: the values differ, but have the same sign or the order that the paper states.
//!   For a statement about an order, this is the best verdict.
//! - *differs*: neither reproduced nor of the same shape.
//! - *nothing to compare*: only the range of a plot's axis is published, and the measured values
//!   lie in it.

use std::path::Path;
use std::sync::LazyLock;

use slackline_experiments::OverSeeds;
use slackline_experiments::alert::{AS_PUBLISHED, CaseResult, Form, Limiter, percent};
use slackline_metrics::AllocationErrors;
use slackline_papers::{PrintedValue, PublishedValues, Value, Verdict};
use slackline_units::CpuShare;

use super::numbers::ranged;

/// File of the paper's published values. They were entered before the first run.
const FILE: &str = include_str!("../../../../papers/cherkasova-2007/published.toml");

/// A published value with the measured result and the verdict.
#[derive(Clone, Debug)]
pub(super) struct PublishedComparison {
    pub(super) published: &'static Value,
    pub(super) ours: String,
    pub(super) verdict: Verdict,
    /// Sentence that explains the verdict.
    pub(super) sentence: String,
}

/// Returns the published value with this id.
pub(super) fn published(id: &str) -> Option<&'static Value> {
    static VALUES: LazyLock<PublishedValues> = LazyLock::new(|| {
        let file = Path::new("papers/cherkasova-2007/published.toml");
        PublishedValues::from_text(file, FILE).expect("the built-in file is valid")
    });
    VALUES.value(id)
}

/// Name of a number that the paper states for each scheduler, and the function that computes it
/// from measured errors.
type Statistic = (&'static str, fn(&AllocationErrors) -> Option<f64>);

const STATISTICS: [Statistic; 4] = [
    ("below-minus-9.9", |errors| errors.below(-99_000).map(part)),
    ("above-36.3", |errors| errors.above(363_000).map(part)),
    ("largest", |errors| errors.largest().map(percent)),
    ("smallest", |errors| errors.smallest().map(percent)),
];

/// Converts millionths to percent.
fn part(ppm: u64) -> f64 {
    ppm as f64 / 1e4
}

/// Returns the mean absolute error in percent of the target share.
pub(super) fn mean_size(errors: &AllocationErrors) -> Option<f64> {
    errors.mean_size().map(part)
}

/// Compares the results of the paper's policies with the published values. Results of other
/// policies are left out.
pub(super) fn compare(form: Form, results: &[CaseResult]) -> Vec<PublishedComparison> {
    let as_published = |result: &&CaseResult| {
        AS_PUBLISHED.contains(&result.name.as_str()) && matches!(result.limiter, Limiter::Policy(_))
    };
    let results: Vec<&CaseResult> = results.iter().filter(as_published).collect();
    match form {
        Form::Smp => {
            results.iter().filter_map(|result| in_axis("figure-11.axis", result)).collect()
        }
        Form::One => {
            let mut compared: Vec<PublishedComparison> =
                results.iter().flat_map(|of| each(of)).collect();
            compared.extend(between(&results));
            compared
        }
    }
}

/// Compares the results of one case with the numbers that the paper states for its scheduler. Empty
/// if the case has no policy.
fn each(result: &CaseResult) -> Vec<PublishedComparison> {
    let Limiter::Policy(policy) = result.limiter else { return Vec::new() };
    let mut compared = Vec::new();
    for (name, statistic) in STATISTICS {
        let Some(published) = published(&format!("alert.{policy}.{name}")) else { continue };
        let Some(ours) = result.over_seeds(|_| true, statistic) else { continue };
        compared.push(number(published, ours));
    }
    if let Some(published) = published(&format!("alert.{policy}.sign")) {
        let (under, over) = result.signs();
        let ours = typical(under, over);
        let is_same = published.is == PrintedValue::Word(ours.into());
        let verdict = if is_same { Verdict::Reproduced } else { Verdict::Differs };
        let sentence = format!("{under} seconds with too little CPU time, {over} with too much");
        compared.push(PublishedComparison { published, ours: ours.into(), verdict, sentence });
    }
    compared
}

/// Returns the typical sign of the errors: `under`, `over` or `neither`. `under` and `over` are the
/// numbers of seconds with each sign. The sign is `neither` if these numbers differ by at most `2 ×
/// sqrt(under + over)`: two standard deviations, if both signs are equally likely.
fn typical(under: usize, over: usize) -> &'static str {
    let apart = under.abs_diff(over);
    if apart * apart <= 4 * (under + over) {
        "neither"
    } else if under > over {
        "under"
    } else {
        "over"
    }
}

/// Compares a published number with the measured range over the seeds.
fn number(published: &'static Value, ours: OverSeeds) -> PublishedComparison {
    let theirs = published.number().unwrap_or(f64::NAN);
    let give = published.give;
    let near = ours.lowest - give <= theirs && theirs <= ours.highest + give;
    let same_side = (theirs == 0.0 && ours.median == 0.0) || theirs * ours.median > 0.0;
    let (verdict, sentence) = if near {
        let sentence = "the published value, within its precision, lies in the measured range";
        (Verdict::Reproduced, sentence.to_string())
    } else if same_side {
        let times = ours.median / theirs;
        (Verdict::SameShape, format!("same sign, {times:.2} times the published size"))
    } else {
        (Verdict::Differs, "opposite sign, or only one of the values is zero".to_string())
    };
    // A fraction of all seconds has no sign.
    let is_part = published.id.contains(".below-") || published.id.contains(".above-");
    let ours = if is_part { ranged(ours).replace('+', "") } else { ranged(ours) };
    PublishedComparison { published, ours, verdict, sentence }
}

/// Compares the results of SEDF and Credit with two kinds of information in the paper: statements
/// about which of two means is higher, and the axis range of the plot of averages.
fn between(results: &[&CaseResult]) -> Vec<PublishedComparison> {
    let find = |case: &str| results.iter().copied().find(|result| result.name == case);
    let (Some(sedf), Some(credit)) = (find(AS_PUBLISHED[0]), find(AS_PUBLISHED[1])) else {
        return Vec::new();
    };
    let size = |of: &CaseResult, wanted: fn(CpuShare) -> bool| of.over_seeds(wanted, mean_size);
    let average = |of: &CaseResult| {
        let small = of.targets().into_iter().filter(|&target| !is_large(target));
        let sizes: Vec<f64> =
            small.filter_map(|target| of.averages(target)).map(|of| of.median.abs()).collect();
        let mean = sizes.iter().sum::<f64>() / sizes.len().max(1) as f64;
        Some(OverSeeds { lowest: mean, median: mean, highest: mean })
    };
    let mut compared: Vec<PublishedComparison> = [
        ("alert.credit-against-sedf", size(credit, |_| true), size(sedf, |_| true)),
        (
            "alert.credit-small-targets",
            size(credit, |target| !is_large(target)),
            size(credit, is_large),
        ),
        ("alert.average.small-targets", average(credit), average(sedf)),
    ]
    .into_iter()
    .filter_map(|(id, a, b)| Some(order(published(id)?, a?, b?)))
    .collect();
    compared.extend(both_in_axis(sedf, credit));
    compared
}

fn is_large(target: CpuShare) -> bool {
    target >= CpuShare::from_ppm(300_000)
}

/// Compares the measured means `a` and `b` with the paper's statement about which of these means is
/// higher.
fn order(published: &'static Value, a: OverSeeds, b: OverSeeds) -> PublishedComparison {
    let holds = (a.median > b.median) == (published.is == PrintedValue::Word("higher".into()));
    let verdict = if holds { Verdict::SameShape } else { Verdict::Differs };
    let ours = format!("{:.2} against {:.2} %", a.median, b.median);
    let sentence = "the paper states only which mean absolute error is larger".to_string();
    PublishedComparison { published, ours, verdict, sentence }
}

/// Compares the range of the measured averages of SEDF and Credit with the range of the axis of the
/// published plot.
fn both_in_axis(sedf: &CaseResult, credit: &CaseResult) -> Option<PublishedComparison> {
    let averages = |of: &CaseResult| -> Vec<OverSeeds> {
        of.targets().into_iter().filter_map(|target| of.averages(target)).collect()
    };
    let all = [averages(sedf), averages(credit)].concat();
    let least = all.iter().map(|of| of.lowest).fold(f64::INFINITY, f64::min);
    let most = all.iter().map(|of| of.highest).fold(f64::NEG_INFINITY, f64::max);
    Some(axis(published("alert.average.axis")?, (least, most)))
}

/// Compares the range of one scheduler's measured errors per second with the range of the axis of
/// the published plot.
fn in_axis(id: &str, result: &CaseResult) -> Option<PublishedComparison> {
    let errors = result.errors(None, |_| true);
    let range = (percent(errors.smallest()?), percent(errors.largest()?));
    Some(axis(published(id)?, range))
}

/// Compares a measured range with the range of the axis of a published plot.
fn axis(published: &'static Value, (least, most): (f64, f64)) -> PublishedComparison {
    let (low, high) = published.range().unwrap_or((f64::NAN, f64::NAN));
    let inside = low - published.give <= least && most <= high + published.give;
    let verdict = if inside { Verdict::NothingToCompare } else { Verdict::Differs };
    let words = if inside { "are within" } else { "exceed" };
    let sentence = format!(
        "the measured values {words} the range of the published plot's axis. Single values cannot \
         be read from that plot"
    );
    PublishedComparison { published, ours: format!("{least:+.1} to {most:+.1}"), verdict, sentence }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_experiments::alert::DomainErrors;

    fn of(name: &str, policy: &'static str, seconds: &[i64]) -> CaseResult {
        let run = |ppm| DomainErrors {
            target: CpuShare::from_ppm(ppm),
            seed: 1,
            seconds: seconds.to_vec(),
            average: seconds.iter().sum::<i64>() / 4,
        };
        let runs = vec![run(10_000), run(500_000)];
        CaseResult { name: name.into(), limiter: Limiter::Policy(policy), runs }
    }

    #[test]
    fn published_results_file_has_every_value_that_alert_command_compares() {
        for policy in ["sedf", "credit"] {
            for name in ["below-minus-9.9", "above-36.3", "largest", "sign"] {
                assert!(published(&format!("alert.{policy}.{name}")).is_some(), "{policy} {name}");
            }
        }
        for id in [
            "alert.credit.smallest",
            "alert.credit-against-sedf",
            "alert.credit-small-targets",
            "alert.average.small-targets",
            "alert.average.axis",
            "figure-11.axis",
        ] {
            assert!(published(id).is_some(), "{id}");
        }
    }

    #[test]
    fn alert_command_verdict_depends_on_measured_and_published_numbers() {
        let sedf = of(AS_PUBLISHED[0], "sedf", &[-10_000, -20_000, 0, 95_200]);
        let credit = of(AS_PUBLISHED[1], "credit", &[-500_000, 1_000_000, 2_000_000, -1_000_000]);
        let compared = compare(Form::One, &[sedf, credit]);
        let verdict = |id: &str| {
            compared.iter().find(|of| of.published.id == id).map(|of| of.verdict).expect("compared")
        };
        assert_eq!(verdict("alert.sedf.largest"), Verdict::Reproduced, "9.52 %");
        assert_eq!(
            verdict("alert.sedf.sign"),
            Verdict::Differs,
            "four seconds are too few to name a typical sign"
        );
        assert_eq!(
            verdict("alert.sedf.below-minus-9.9"),
            Verdict::Differs,
            "no such error here, some in the paper"
        );
        assert_eq!(
            verdict("alert.sedf.above-36.3"),
            Verdict::Reproduced,
            "no such error here or in the paper"
        );
        assert_eq!(
            verdict("alert.credit.largest"),
            Verdict::SameShape,
            "200 % here, 370 % in the paper"
        );
        assert_eq!(verdict("alert.credit.smallest"), Verdict::Reproduced);
        assert_eq!(
            verdict("alert.credit.sign"),
            Verdict::Differs,
            "both signs occur equally often"
        );
        assert_eq!(verdict("alert.credit-against-sedf"), Verdict::SameShape);
        assert_eq!(
            verdict("alert.credit-small-targets"),
            Verdict::Differs,
            "small and large targets have equal errors"
        );
    }

    #[test]
    fn typical_error_sign_requires_clearly_different_sign_counts() {
        assert_eq!(typical(7_802, 7_771), "neither");
        assert_eq!(typical(1_000, 800), "under");
        assert_eq!(typical(0, 9), "over");
        assert_eq!(typical(0, 0), "neither");
    }

    #[test]
    fn alert_results_of_policies_absent_from_paper_are_not_compared() {
        let other = of("credit:rules=exact", "credit", &[0, 0]);
        assert!(compare(Form::One, &[other]).is_empty());
    }
}
