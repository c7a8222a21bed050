//! Slackline's own dispatcher as a mechanism. This module does not check the capacity: admission by
//! the session does that.

use slackline_units::{Enforcement, Span};

use super::{Abilities, Demand, EnforceTarget, Mechanism, MechanismError};

/// Slackline's own mechanism: a dispatcher thread on each CPU gives vCPUs real-time priorities and
/// stops them.
#[derive(Debug)]
pub(super) struct DispatcherMechanism;

impl Mechanism for DispatcherMechanism {
    fn enforcement(&self) -> Enforcement {
        Enforcement::Dispatcher
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            guarantees: true,
            limits: true,
            least_slice: Some(Span::from_us(50)),
            periods: Some([Span::from_ms(1), Span::from_secs(7 * 24 * 3600)]),
            pins: true,
            trees: true,
            survives: "nothing: the keeper restores every thread",
            undone_by: "the keeper, or `slackline doctor --free`",
        }
    }

    fn check(&self, _: &EnforceTarget, demand: Demand) -> Result<(), MechanismError> {
        match demand {
            Demand::Time(..) => Ok(()),
            Demand::Weight(_) => {
                Err(MechanismError::NotByWeight { mechanism: Enforcement::Dispatcher })
            }
        }
    }
}
