//! Python module `slackline._slackline`: scenarios, runs, and policies that are written in Python.
//!
//! The package `slackline` re-exports this module, and adds functions that are easier to write in
//! Python. Times are integers in nanoseconds. Shares are parts per million of a CPU.

mod alert;
mod columns;
mod error;
mod files;
mod fit;
mod interrupt;
mod metrics;
mod policy;
mod recording;
mod run;
mod scenario;
mod task_set;
mod value;
mod workload;

use pyo3::pymodule;

/// Scenarios, runs and policies of Slackline.
#[pymodule]
mod _slackline {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::alert::{Alert, alert};
    #[pymodule_export]
    use crate::columns::Table;
    #[pymodule_export]
    use crate::fit::{
        Fit, FitPeriod, FitProof, FitReservation, FitTrace, ProofPoint, TaskResponse, TriedPeriods,
        fit,
    };
    #[pymodule_export]
    use crate::recording::{replay, whatif};
    #[pymodule_export]
    use crate::run::{RunResults, run, run_many, run_rows, sweep_rows};
    #[pymodule_export]
    use crate::scenario::{Scenario, check};
    #[pymodule_export]
    use crate::task_set::{FitTask, TaskSet};
    #[pymodule_export]
    use crate::workload::{import_task_set, import_workload};

    /// Version of the module. Results of different versions of the module cannot be compared.
    #[allow(non_upper_case_globals)]
    #[pymodule_export]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    /// Returns the name and a one-line summary of each built-in policy.
    #[pyfunction]
    fn policies() -> Vec<(String, String)> {
        let pair = |spec: &&'static slackline_policy::Spec| (spec.name.into(), spec.summary.into());
        slackline_policy::ALL.iter().map(pair).collect()
    }
}
