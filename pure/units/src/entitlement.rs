//! Ground on which a vCPU receives CPU time: reserved time or slack.

/// Ground on which a vCPU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entitlement {
    /// Time that is reserved in the current period. It has precedence over all other work on the
    /// CPU.
    Due,
    /// Reserved time that an earlier period failed to deliver. It has precedence over slack, but
    /// not over time reserved in the current period.
    Arrears,
    /// Slack. On a host that also runs other programs, their threads compete for it.
    Spare,
}
