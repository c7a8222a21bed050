//! Random hosts: a family of scenarios. A member of the family is determined by its size and seed.
//!
//! A family is a scenario whose domains are drawn at random. The domains are guests that share the
//! CPUs by weight. Some CPUs also have a domain with a reservation, which can change during the
//! run. A member is the text of a scenario, and a [`Plan`] from which the fair shares are computed.

mod draw;
mod fair;
pub mod keys;
mod row;

use std::ops::ControlFlow;

use serde::Deserialize;
use slackline_metrics::Summary;
use slackline_scenario::{LONGEST, Scenario};
use slackline_units::{CpuId, Span, Time};
use toml::Table;

use crate::header;
use crate::numbers::Meters;
use crate::simulate::SimulateError;

pub use draw::{Plan, drawn};
pub use fair::{FairMeter, Fairness, fair_rates};
pub use row::{COLUMNS, RunResults, quantile};

/// Maximum number of guests per CPU.
const MOST_GUESTS_A_CPU: f64 = 64.0;

/// Simulates a scenario and returns the numbers for one row of a sweep. `None` if `watch` stops the
/// simulation. `plan` must be given if the host is random.
///
/// # Errors
/// As for [`simulate`](crate::simulate).
pub fn measure(
    scenario: &Scenario,
    plan: Option<&Plan>,
    mut watch: impl FnMut(Time) -> ControlFlow<()>,
) -> Result<Option<(RunResults, Summary)>, SimulateError> {
    let fair = plan.map(|plan| FairMeter::new(plan, scenario.warmup));
    let mut sinks = (Meters::new(&header::of_simulation(scenario)), fair);
    let finished = slackline_sim::run_while(scenario, &mut sinks, &mut watch)?;
    if finished.stopped.is_some() {
        return Ok(None);
    }
    let (meters, fair) = sinks;
    let fairness = fair.and_then(FairMeter::finish);
    let summary = meters.finish()?.summary;
    Ok(Some((RunResults::of(&summary, fairness, finished.events), summary)))
}

/// Properties of a family of random hosts, from the table `[family]` of a scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    /// Possible sizes of a host, in CPUs.
    pub cpus: AtLeastOne<Cpus>,
    /// Minimum and maximum number of guests per CPU.
    #[serde(default)]
    pub guests_per_cpu: GuestsPerCpu,
    /// Possible weights of a guest. One weight is drawn for each guest.
    #[serde(default)]
    pub weights: AtLeastOne<Weight>,
    /// Possible reserved parts of a CPU. One part is drawn for each CPU.
    #[serde(default)]
    pub reserved: AtLeastOne<Part>,
    /// Period of the reservations.
    #[serde(default)]
    pub period: Length,
    /// Mean time until a reserved part changes to another value. `None` if it never changes.
    pub jumps: Option<Length>,
    /// Possible reserved parts of a CPU after a change. One part is drawn for each change.
    #[serde(default)]
    pub jumps_to: AtLeastOne<Part>,
    /// Fraction of guests that are sleepers: a sleeper alternates between computing and sleeping.
    /// The other guests never sleep.
    #[serde(default)]
    pub sleepers: Portion,
    /// Range from which the mean computing time is drawn. Each sleeping guest has its own mean.
    #[serde(default)]
    pub compute: Lengths,
    /// Range from which the mean sleeping time is drawn. Each sleeping guest has its own mean.
    #[serde(default)]
    pub sleep: Lengths,
    /// Maximum deviation of a computing or sleeping time from its mean, as a fraction of the mean.
    #[serde(default)]
    pub varies: Portion,
    /// Share of a guest, for each policy. `{weight}` is replaced by the weight of the guest.
    #[serde(default)]
    pub share: Table,
    /// Share of a domain with a reservation, for each policy. `{slice}` and `{period}` are replaced
    /// by the values of the reservation, and `{part}` by slice / period.
    #[serde(default)]
    pub reservation: Table,
}

/// A list with at least one entry.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Vec<T>")]
pub struct AtLeastOne<T>(Vec<T>);

impl<T> AtLeastOne<T> {
    /// Returns all entries in order.
    #[must_use]
    pub fn all(&self) -> &[T] {
        &self.0
    }
}

impl<T> TryFrom<Vec<T>> for AtLeastOne<T> {
    type Error = &'static str;
    fn try_from(all: Vec<T>) -> Result<AtLeastOne<T>, &'static str> {
        if all.is_empty() { Err("the list needs at least one value") } else { Ok(AtLeastOne(all)) }
    }
}

/// Number of CPUs of a host, from 1 to [`CpuId::LIMIT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub struct Cpus(pub usize);

impl TryFrom<i64> for Cpus {
    type Error = String;
    fn try_from(number: i64) -> Result<Cpus, String> {
        let cpus = usize::try_from(number).ok().filter(|cpus| (1..=CpuId::LIMIT).contains(cpus));
        cpus.map(Cpus).ok_or_else(|| format!("a host has 1 to {} CPUs, not {number}", CpuId::LIMIT))
    }
}

/// Weight of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub struct Weight(u16);

impl TryFrom<i64> for Weight {
    type Error = String;
    fn try_from(number: i64) -> Result<Weight, String> {
        let weight = u16::try_from(number).ok().filter(|&weight| weight > 0);
        weight.map(Weight).ok_or_else(|| format!("a weight is 1 to 65535, not {number}"))
    }
}

impl Default for AtLeastOne<Weight> {
    fn default() -> AtLeastOne<Weight> {
        AtLeastOne(vec![Weight(1)])
    }
}

/// Reserved part of a CPU, in millionths. Zero if nothing is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Part(u32);

impl TryFrom<String> for Part {
    type Error = String;
    fn try_from(text: String) -> Result<Part, String> {
        let Portion(ppm) = text.clone().try_into()?;
        if ppm > 950_000 { Err(format!("`{text}` is more than 95%")) } else { Ok(Part(ppm)) }
    }
}

impl Default for AtLeastOne<Part> {
    fn default() -> AtLeastOne<Part> {
        AtLeastOne(vec![Part(0)])
    }
}

/// Part of a whole, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Portion(u32);

impl TryFrom<String> for Portion {
    type Error = String;
    fn try_from(text: String) -> Result<Portion, String> {
        let percent = text.strip_suffix('%').and_then(|text| text.trim().parse::<f64>().ok());
        let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
        let percent =
            percent.ok_or_else(|| format!("`{text}` is not a percentage from 0% to 100%"))?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        // The value is at most a million.
        Ok(Portion((percent * 10_000.0).round() as u32))
    }
}

/// A duration above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Length(Span);

impl TryFrom<String> for Length {
    type Error = String;
    fn try_from(text: String) -> Result<Length, String> {
        let span: Span = text.parse().map_err(|why| format!("`{text}` {why}"))?;
        let is_some = !span.is_zero() && span <= LONGEST;
        if is_some {
            Ok(Length(span))
        } else {
            Err(format!("`{text}` is not a duration from 1ns to {LONGEST}"))
        }
    }
}

impl Default for Length {
    fn default() -> Length {
        Length(Span::from_ms(20))
    }
}

/// Minimum and maximum of a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<Length>")]
pub struct Lengths(Span, Span);

impl TryFrom<Vec<Length>> for Lengths {
    type Error = &'static str;
    fn try_from(both: Vec<Length>) -> Result<Lengths, &'static str> {
        match both[..] {
            [Length(least), Length(most)] if least <= most => Ok(Lengths(least, most)),
            _ => Err("write two times, the minimum and the maximum"),
        }
    }
}

impl Default for Lengths {
    fn default() -> Lengths {
        Lengths(Span::from_ms(5), Span::from_ms(50))
    }
}

/// Minimum and maximum number of guests per CPU.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Vec<f64>")]
pub struct GuestsPerCpu(f64, f64);

impl TryFrom<Vec<f64>> for GuestsPerCpu {
    type Error = String;
    fn try_from(both: Vec<f64>) -> Result<GuestsPerCpu, String> {
        match both[..] {
            [least, most] if least <= most && least > 0.0 && most <= MOST_GUESTS_A_CPU => {
                Ok(GuestsPerCpu(least, most))
            }
            _ => Err(format!(
                "write two numbers above 0 and up to {MOST_GUESTS_A_CPU}, minimum and maximum"
            )),
        }
    }
}

impl Default for GuestsPerCpu {
    fn default() -> GuestsPerCpu {
        GuestsPerCpu(1.25, 3.0)
    }
}
