//! By what right CPU time is had.

/// By what right a vCPU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entitlement {
    /// The policy owes it this time: it comes before everything else on the CPU.
    Due,
    /// The policy owed it this time earlier, when it was not given: it comes before all others that
    /// are owed nothing now.
    Arrears,
    /// Nobody is owed this time: on a machine that is not ours alone, it is shared with the rest.
    Spare,
}
