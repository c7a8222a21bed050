//! Mechanism of enforcement that a request asks for. The request names a mechanism, or asks for
//! `auto`.

use std::fmt;

use slackline_units::Enforcement;

/// Mechanism of enforcement that a request asks for. It is a named mechanism, or `auto` with the
/// mechanism that the service has chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WantedMechanism {
    by: Enforcement,
    is_auto: bool,
}

impl WantedMechanism {
    /// The request asks for `auto`: the service chooses a mechanism that can enforce the
    /// reservation.
    pub const AUTO: WantedMechanism =
        WantedMechanism { by: Enforcement::Dispatcher, is_auto: true };

    /// Returns the value for a request that names the mechanism `by`.
    #[must_use]
    pub const fn only(by: Enforcement) -> WantedMechanism {
        WantedMechanism { by, is_auto: false }
    }

    /// Returns the mechanism that the request named or that the service chose.
    #[must_use]
    pub const fn by(self) -> Enforcement {
        self.by
    }

    /// Returns true if the service chooses the mechanism.
    #[must_use]
    pub const fn is_auto(self) -> bool {
        self.is_auto
    }

    /// Sets the chosen mechanism if the request asks for `auto`. A named mechanism stays unchanged.
    pub(crate) fn choose(&mut self, by: Enforcement) {
        if self.is_auto {
            self.by = by;
        }
    }
}

impl fmt::Display for WantedMechanism {
    /// Writes `auto` even if a mechanism was already chosen, so that a repeated request has the
    /// same text as the first one.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_auto { out.write_str("auto") } else { self.by.fmt(out) }
    }
}

/// Mechanism that the service tries first for a request with `auto` on this host, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MechanismChoice {
    /// Mechanism that is tried first for `auto`.
    pub by: Enforcement,
    /// Reason for the choice in words, for the log.
    pub why: String,
}
