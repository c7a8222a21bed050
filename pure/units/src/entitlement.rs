//! Entitlement by which a vCPU receives CPU time.

/// Entitlement by which a vCPU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entitlement {
    /// Time reserved in the current period: it precedes everything else on the CPU.
    Due,
    /// Reserved time that an earlier period failed to deliver: it precedes all vCPUs without
    /// entitlement.
    Arrears,
    /// Slack. On a host that Slackline does not own alone, it is shared with the other threads.
    Spare,
}
