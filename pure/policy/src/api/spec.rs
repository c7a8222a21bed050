//! A policy as people and hosts meet it: what it is called and takes, what it promises, who works
//! for it.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use slackline_units::{CpuId, CpuShare, Reservation, ReservationError, Span};

use crate::{Field, FieldError, Policy, Topology, Values};

/// A policy as people meet it: its name, its parameters, its manual page.
#[derive(Debug)]
pub struct Spec {
    /// The name that people type.
    pub name: &'static str,
    /// One line for lists.
    pub summary: &'static str,
    /// Manual page: plain text of at most 80 columns. The line `{parameters}` stands for the tables
    /// of parameters.
    pub page: &'static str,
    /// Parameters of the policy itself.
    pub policy_fields: &'static [Field],
    /// Parameters of each vCPU's share.
    pub share_fields: &'static [Field],
    /// Which parameters of the policy do not go together. Whoever reads them asks; a policy that is
    /// built with them all the same leaves out what it cannot do.
    pub conflict: fn(&Values) -> Option<FieldError>,
    /// What a share promises, where it promises a slice in every period.
    pub promise: fn(&Values) -> Result<Option<Promise>, ReservationError>,
    /// Whether a policy with these parameters on such a host keeps every promise it has admitted,
    /// where the machine is exact: the slice in each period counted from the promise, for who is
    /// awake all through it. Rules copied from a real scheduler need not.
    pub keeps: fn(&Values, &Topology) -> bool,
    /// How a share is written that limits a vCPU to so much of a CPU, of every such period where
    /// the policy has periods: fields and what stands behind their `=` in a scenario. None where
    /// the policy cannot limit.
    pub limit: Option<fn(CpuShare, Span) -> ShareText>,
    /// The field of a share, and the word in it, with which slices are spread over the vCPUs of a
    /// domain by use: then people may say how much all of them are promised together. None where
    /// each has its own alone.
    pub together: Option<(&'static str, &'static str)>,
    /// The vCPU that pays for balancing under a policy with these parameters on such a host. None
    /// where the policy does not balance, or takes no time for it.
    pub payer: Option<fn(&Values, &Topology) -> Option<Payer>>,
    /// Makes the policy.
    pub build: fn(&Values, &Topology) -> Box<dyn Policy>,
}

/// Fields of a share as one would write them in a scenario: names, and what stands behind the `=`.
pub type ShareText = Vec<(&'static str, String)>;

/// What a share promises: what the metrics hold the machine to, and what a live host must see to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The slice of every period.
    pub reservation: Reservation,
    /// Whether the vCPU gets this and no more.
    pub exact: bool,
    /// Whether it has nothing of what nobody claims: it may run only where it is picked. So is also
    /// who may have more than this, but only what others of its domain leave.
    pub bounded: bool,
    /// Whether it has what the other vCPUs of its domain leave of theirs: as much as is promised to
    /// all of them, at most.
    pub by_use: bool,
    /// The phase of the grid on which its periods begin, if there is one.
    pub phase: Option<Span>,
}

/// A vCPU of a policy's own, behind which no guest stands: what it has to do is the policy's work,
/// and takes it CPU time as any other. Whoever gives it that time lets it join with this share.
#[derive(Clone, Debug, PartialEq)]
pub struct Payer {
    /// How often it has something to do: at the multiples of this that find it asleep.
    pub every: Span,
    /// Where it is.
    pub cpu: CpuId,
    /// What it is promised.
    pub share: Values,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_one_line_for_parameters_and_fits_80_columns() {
        for spec in crate::ALL {
            let lines = || spec.page.lines();
            assert_eq!(lines().filter(|line| *line == "{parameters}").count(), 1, "{}", spec.name);
            let wide = lines().find(|line| line.chars().count() > 80);
            assert_eq!(wide, None, "{}", spec.name);
        }
    }

    /// Where that is promised at all it is promised to be all that there is.
    #[test]
    fn who_is_limited_is_promised_that_and_no_more() {
        for spec in crate::ALL {
            let Some(limit) = spec.limit else { continue };
            let terms = limit(CpuShare::from_ppm(60_000), Span::from_ms(10));
            let words =
                terms.iter().map(|(name, value)| format!("{name}={}", value.trim_matches('"')));
            let words = words.collect::<Vec<_>>().join(" ");
            let share = Values::read_written(spec.share_fields, &words).unwrap();
            let Some(promise) = (spec.promise)(&share).unwrap() else { continue };
            assert!(promise.exact, "{}: {words}", spec.name);
            let had = (promise.reservation.slice(), promise.reservation.period());
            assert_eq!(had, (Span::from_us(600), Span::from_ms(10)), "{}", spec.name);
        }
    }
}
