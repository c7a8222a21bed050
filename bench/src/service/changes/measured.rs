//! Predicted and measured results of each change, as rows of a table.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::report::{Row, median};

/// A change that was made, with the results of all vCPUs.
pub(super) struct MeasuredChange {
    pub(super) what: String,
    pub(super) vcpus: Vec<VcpuResult>,
}

/// Predicted and measured results of one vCPU. Shares are in millionths of a CPU, and waits in
/// nanoseconds.
pub(super) struct VcpuResult {
    name: String,
    /// Share before the change. `None` if the change added the VM.
    before: Option<f64>,
    /// Interval of the shares in all simulations of a prediction.
    simulated: Interval,
    /// Interval of the prediction: the interval of the simulations, widened by the usual error of a
    /// prediction.
    stated: Interval,
    came: f64,
    wait: Option<Wait>,
}

/// Predicted and measured 99th percentile of a vCPU's waits.
struct Wait {
    /// Wait before the change. `None` if the change added the VM, or if the VM had no waits.
    before: Option<f64>,
    simulated: Interval,
    stated: Interval,
    came: f64,
}

/// Interval between two numbers.
#[derive(Clone, Copy)]
struct Interval {
    least: f64,
    most: f64,
}

impl Interval {
    fn read(pair: &Value) -> Option<Interval> {
        Some(Interval { least: pair[0].as_f64()?, most: pair[1].as_f64()? })
    }

    /// Returns the interval of a value over all simulations of a vCPU.
    fn of(row: &Value, field: &str) -> Option<Interval> {
        let forms = row["then"].as_object()?.values();
        let simulated = forms.chain(row["other_phases"].as_array().into_iter().flatten());
        simulated
            .filter_map(|it| it[field].as_f64())
            .map(|it| Interval { least: it, most: it })
            .reduce(|a, b| Interval { least: a.least.min(b.least), most: a.most.max(b.most) })
    }

    fn contains(self, value: f64) -> bool {
        (self.least..=self.most).contains(&value)
    }

    /// Returns the distance of a value from the interval. Zero if the value is inside.
    fn distance(self, value: f64) -> f64 {
        (self.least - value).max(value - self.most).max(0.0)
    }
}

impl VcpuResult {
    /// Reads the results of a vCPU. `prediction` is the output of `whatif --json`, and `record` is
    /// a record of `predictions`.
    pub(super) fn read(prediction: &Value, record: &Value) -> Result<VcpuResult> {
        let stated = &record["prediction"];
        let name = stated["vcpu"].as_str().context("a prediction names its vCPU")?;
        let rows = prediction["vcpus"].as_array().context("whatif lists vCPUs")?;
        // A vCPU that the change added may be named after its VM.
        let vm = name.split('.').next();
        let is_it = |row: &&Value| row["name"] == name || row["name"].as_str() == vm;
        let row = rows
            .iter()
            .find(is_it)
            .with_context(|| format!("whatif predicts nothing for {name}"))?;
        let outcome = &record["outcome"];
        let wait = || {
            Some(Wait {
                before: row["now"]["wait_p99_ns"].as_f64(),
                simulated: Interval::of(row, "wait_p99_ns")?,
                stated: Interval::read(&stated["wait_p99_ns"])?,
                came: outcome["wait_p99_ns"].as_f64()?,
            })
        };
        Ok(VcpuResult {
            name: name.to_owned(),
            before: row["now"]["share_ppm"].as_f64(),
            simulated: Interval::of(row, "share_ppm").context("a simulated share")?,
            stated: Interval::read(&stated["share_ppm"]).context("a stated share")?,
            came: outcome["share_ppm"].as_f64().context("a measured share")?,
            wait: wait(),
        })
    }

    /// Returns the distance of the measured share from the simulated interval, in percentage points
    /// of a CPU.
    fn error(&self) -> f64 {
        points(self.simulated.distance(self.came))
    }

    /// Returns the difference between the shares after and before the change, in percentage points
    /// of a CPU.
    fn moved(&self) -> f64 {
        points((self.came - self.before.unwrap_or(0.0)).abs())
    }
}

impl Wait {
    /// Returns the factor between the measured wait and the nearest simulated wait.
    fn factor(&self) -> f64 {
        self.factor_from(self.simulated)
    }

    /// Returns the factor between the measured wait and the wait before the change. Infinite if
    /// there was no wait before.
    fn factor_of_unchanged(&self) -> f64 {
        let before = self.before.map(|before| Interval { least: before, most: before });
        before.map_or(f64::INFINITY, |before| self.factor_from(before))
    }

    fn factor_from(&self, Interval { least, most }: Interval) -> f64 {
        (self.came / most.max(1.0)).max(least / self.came.max(1.0)).max(1.0)
    }
}

impl MeasuredChange {
    fn worst(&self, of: impl Fn(&VcpuResult) -> f64) -> (f64, &str) {
        let values = self.vcpus.iter().map(|vcpu| (of(vcpu), vcpu.name.as_str()));
        values.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((0.0, "no vCPU"))
    }

    fn worst_factor(&self) -> (f64, &str) {
        self.worst(|vcpu| vcpu.wait.as_ref().map_or(1.0, Wait::factor))
    }

    fn is_in_interval(&self) -> bool {
        self.vcpus.iter().all(|vcpu| vcpu.stated.contains(vcpu.came))
    }

    fn worst_factor_of_unchanged(&self) -> f64 {
        self.worst(|vcpu| vcpu.wait.as_ref().map_or(1.0, Wait::factor_of_unchanged)).0
    }

    /// Returns the results of the change as a row of a table.
    pub(super) fn row(&self) -> Row {
        let (moved, who) = self.worst(VcpuResult::moved);
        let (error, worst) = self.worst(VcpuResult::error);
        let (factor, waits) = self.worst_factor();
        let got = format!(
            "share of {who} changed by {moved:.2} percentage points; largest error of a share \
             {error:.2} points ({worst}); p99 wait of {waits} differs from the prediction by a \
             factor of {factor:.2}"
        );
        Row { what: self.what.clone(), got, promised: "", holds: None }
    }
}

fn points(ppm: f64) -> f64 {
    ppm / 1e4
}

/// Returns rows about the width of the predicted intervals and the error of the predicted shares.
fn accuracy(made: &[MeasuredChange]) -> [Row; 2] {
    let vcpus = || made.iter().flat_map(|it| &it.vcpus);
    let waits = || vcpus().filter_map(|vcpu| vcpu.wait.as_ref());
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let error = mean(vcpus().map(VcpuResult::error).collect());
    let unchanged = mean(vcpus().map(VcpuResult::moved).collect());
    let width = |it: &Interval| points(it.most - it.least);
    let widths: Vec<f64> = vcpus().map(|vcpu| width(&vcpu.stated)).collect();
    let factors: Vec<f64> = waits().map(|it| it.stated.most / it.stated.least.max(1.0)).collect();
    let (width, factor) =
        (median(&widths), if factors.is_empty() { 1.0 } else { median(&factors) });
    [
        Row {
            what: "median width of a predicted interval".to_owned(),
            got: format!(
                "{width:.2} percentage points for shares; for waits, the upper limit is \
                 {factor:.2} times the lower limit"
            ),
            promised: "2 points for shares, 2 times for waits",
            holds: Some(width <= 2.0 && factor <= 2.0),
        },
        Row {
            what: "mean error of a predicted share".to_owned(),
            got: format!(
                "{error:.3} points; a forecast of unchanged shares is wrong by {unchanged:.3} \
                 points"
            ),
            promised: "less than a forecast of unchanged shares",
            holds: Some(error < unchanged),
        },
    ]
}

/// Returns rows about all changes together, and then one row for each change. `failed` has the
/// changes that were refused, not made or not measured, each with the reason.
pub(super) fn rows(made: &[MeasuredChange], failed: &[(String, String)]) -> Result<Vec<Row>> {
    ensure!(!made.is_empty(), "no change was measured: {failed:?}");
    let all = made.len();
    let count =
        |is_good: &dyn Fn(&MeasuredChange) -> bool| made.iter().filter(|it| is_good(it)).count();
    let row = |what: &str, got: usize, promised, least: usize| Row {
        what: what.to_owned(),
        got: format!(
            "{got} of {all} measured changes; {} more changes were not measured",
            failed.len()
        ),
        promised,
        holds: Some(got >= least),
    };
    let beside = |row: Row, unchanged: usize| Row {
        got: format!("{}; for the forecast that nothing changes: {unchanged} of {all}", row.got),
        ..row
    };
    let moved = |it: &MeasuredChange| it.worst(VcpuResult::moved).0 > 5.0;
    let mut rows = vec![
        row("changes that move a share by more than 5 points", count(&moved), "15 of 30", 15),
        beside(
            row(
                "changes after which each share is within 1 point of the prediction",
                count(&|it| it.worst(VcpuResult::error).0 <= 1.0),
                "28 of 30",
                28,
            ),
            count(&|it| it.worst(VcpuResult::moved).0 <= 1.0),
        ),
        beside(
            row(
                "changes after which each p99 wait is within a factor of 1.5 of the prediction",
                count(&|it| it.worst_factor().0 <= 1.5),
                "24 of 30",
                24,
            ),
            count(&|it| it.worst_factor_of_unchanged() <= 1.5),
        ),
        row(
            "changes after which each share is in its predicted interval",
            count(&MeasuredChange::is_in_interval),
            "27 of 30",
            27,
        ),
    ];
    rows.extend(accuracy(made));
    rows.extend(made.iter().map(MeasuredChange::row));
    let note = |(what, reason): &(String, String)| Row {
        what: what.clone(),
        got: reason.clone(),
        promised: "",
        holds: None,
    };
    rows.extend(failed.iter().map(note));
    Ok(rows)
}
