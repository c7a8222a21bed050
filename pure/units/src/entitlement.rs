//! Entitlement of a vCPU to the CPU time that it receives.

/// Entitlement by which a vCPU runs: reserved time or slack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entitlement {
    /// Time that is reserved in the current period. It has precedence over all other work on the
    /// CPU.
    Due,
    /// Reserved time that an earlier period failed to deliver. It has precedence over slack, but
    /// not over time reserved in the current period.
    Arrears,
    /// Slack: CPU time for which no vCPU has budget. On a host that also runs other programs, the
    /// threads of these programs compete with the vCPU for slack.
    Spare,
}
