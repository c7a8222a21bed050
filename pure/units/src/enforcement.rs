//! Names of the mechanisms that enforce a reservation on a live host.

use core::fmt;
use core::str::FromStr;

/// Mechanism that enforces a reservation or a limit on a live host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Enforcement {
    /// Slackline's own dispatcher: guarantees any share, with or without a hard limit, on any
    /// kernel.
    #[default]
    Dispatcher,
    /// `SCHED_DEADLINE` of the kernel: guarantees and limits the share of a single thread.
    Deadline,
    /// CFS quota of the kernel: a limit for a cgroup, without a guarantee.
    Quota,
    /// Weight of a cgroup: divides CPU time among sibling cgroups in proportion to their weights.
    Weight,
}

impl Enforcement {
    /// All mechanisms, in the order in which users see them.
    pub const ALL: [Enforcement; 4] =
        [Enforcement::Dispatcher, Enforcement::Deadline, Enforcement::Quota, Enforcement::Weight];

    /// Returns the name that users type.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Enforcement::Dispatcher => "dispatcher",
            Enforcement::Deadline => "deadline",
            Enforcement::Quota => "quota",
            Enforcement::Weight => "weight",
        }
    }

    /// Returns true if the kernel alone enforces the share, without a running Slackline process.
    #[must_use]
    pub const fn is_of_kernel(self) -> bool {
        !matches!(self, Enforcement::Dispatcher)
    }
}

impl fmt::Display for Enforcement {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// Error: the text is not the name of a mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseEnforcementError;

impl fmt::Display for ParseEnforcementError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("is not a mechanism: use dispatcher, deadline, quota or weight")
    }
}

impl core::error::Error for ParseEnforcementError {}

impl FromStr for Enforcement {
    type Err = ParseEnforcementError;

    fn from_str(text: &str) -> Result<Enforcement, ParseEnforcementError> {
        let found = Enforcement::ALL.into_iter().find(|one| one.name() == text);
        found.ok_or(ParseEnforcementError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enforcement_mechanism_is_parsed_only_from_its_exact_name() {
        for one in Enforcement::ALL {
            assert_eq!(one.name().parse(), Ok(one));
        }
        for wrong in ["", "auto", "Deadline", "quota-v1"] {
            assert_eq!(wrong.parse::<Enforcement>(), Err(ParseEnforcementError), "{wrong}");
        }
        assert!(!Enforcement::Dispatcher.is_of_kernel() && Enforcement::Weight.is_of_kernel());
    }
}
