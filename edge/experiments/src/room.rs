//! Capacity that admission leaves on each CPU of a scenario.

use std::ops::ControlFlow;

use slackline_scenario::{NotAdmitted, Scenario, ScenarioError};
use slackline_units::{CpuShare, Span};
use thiserror::Error;
use toml::{Table, Value};

/// Largest slice that a CPU can still admit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuRoom {
    /// Index of the CPU.
    pub cpu: usize,
    /// Largest slice that fits in every period. Zero if the CPU admits nothing.
    pub slice: Span,
}

/// Reason why the available capacity is unknown.
#[derive(Debug, Error)]
pub enum RoomError {
    /// The policy reserves no CPU time.
    #[error("shares of `{policy}` reserve no CPU time")]
    NoReservations {
        /// Name of the policy.
        policy: &'static str,
    },
    /// The scenario is not admitted even without an additional VM.
    #[error(transparent)]
    NotAdmitted(#[from] NotAdmitted),
    /// The scenario with the additional VM is not valid.
    #[error(transparent)]
    Scenario(ScenarioError),
    /// The caller stopped the search.
    #[error("stopped")]
    Stopped,
}

impl RoomError {
    /// Returns advice in one line.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            RoomError::NoReservations { .. } => "use a policy with reservations, such as `edf`",
            RoomError::NotAdmitted(_) => "reserve less for the VMs of the scenario",
            RoomError::Scenario(_) => "use another period",
            RoomError::Stopped => "start it again",
        }
    }
}

/// Returns the largest slice per period that each CPU can admit for one more VM. The VM joins at
/// the start, together with all VMs of the scenario. Slices are exact to a millionth of the period.
/// `read` parses the scenario with the additional VM, and `watch` can stop the search.
///
/// # Errors
/// If the policy reserves no CPU time, if the scenario itself is not admitted, or if `watch` stops
/// the search.
pub fn room(
    scenario: &Scenario,
    period: Span,
    read: impl Fn(&str) -> Result<Scenario, ScenarioError>,
    watch: &dyn Fn() -> ControlFlow<()>,
) -> Result<Vec<CpuRoom>, RoomError> {
    scenario.admit()?;
    let policy = scenario.policy.spec.name;
    let limit = scenario.policy.spec.limit.ok_or(RoomError::NoReservations { policy })?;
    let reserves = scenario.policy.spec.share_fields.iter().any(|field| field.name == "period");
    if !reserves {
        return Err(RoomError::NoReservations { policy });
    }
    let table: Table = scenario.text.parse().expect("the scenario was parsed");
    let admits = |cpu: usize, ppm: u32| -> Result<bool, RoomError> {
        if watch().is_break() {
            return Err(RoomError::Stopped);
        }
        if slice(period, ppm).is_zero() {
            return Ok(true);
        }
        let share = limit(CpuShare::from_ppm(ppm), period);
        let text = with_vm(&table, (cpu, policy), &share);
        let mut wider = read(&text).map_err(RoomError::Scenario)?;
        wider.policy.clone_from(&scenario.policy);
        Ok(wider.admit().is_ok())
    };
    let of_cpu = |cpu: usize| {
        let (mut most, mut refused) = (0, CpuShare::ONE.ppm() + 1);
        while refused - most > 1 {
            let middle = most + (refused - most) / 2;
            if admits(cpu, middle)? {
                most = middle;
            } else {
                refused = middle;
            }
        }
        Ok(CpuRoom { cpu, slice: slice(period, most) })
    };
    (0..scenario.host.cpus).map(of_cpu).collect()
}

/// Returns the slice for a share of `ppm` millionths. The slice is rounded down, as in policies.
fn slice(period: Span, ppm: u32) -> Span {
    let ns = u128::from(period.ns()) * u128::from(ppm) / 1_000_000;
    Span::from_ns(u64::try_from(ns).expect("at most the period"))
}

/// Returns the text of the scenario with one more VM, which is confined to a CPU.
fn with_vm(table: &Table, (cpu, policy): (usize, &str), share: &[(&str, String)]) -> String {
    let mut table = table.clone();
    let domains = table.entry("domain").or_insert(Value::Array(Vec::new()));
    let Some(domains) = domains.as_array_mut() else { return table.to_string() };
    let has = |name: &str| {
        domains.iter().any(|domain| domain.get("name").and_then(Value::as_str) == Some(name))
    };
    let name = (0..).map(|number| format!("room-{number}")).find(|name| !has(name));
    let name = name.expect("there are more names than VMs");
    let terms: Vec<String> = share.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    let text = format!(
        "name = \"{name}\"\ncpus = [{cpu}]\nwork = {{ kind = \"spin\" }}\n\
         share.{policy} = {{ {} }}",
        terms.join(", ")
    );
    domains.push(Value::Table(text.parse().expect("a table in TOML")));
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "title = 't'\nlength = '2s'\npolicy = { name = 'edf', reserve = '5%' }\n\
        [host]\ncpus = 2\n\
        [[domain]]\nname = 'room-0'\ncpus = [0]\nwork = { kind = 'spin' }\n\
        share.edf = { slice = '3ms', period = '10ms' }\nshare.credit = { weight = 256 }\n";

    fn of(scenario: &Scenario, period: Span) -> Result<Vec<CpuRoom>, RoomError> {
        room(scenario, period, Scenario::read, &|| ControlFlow::Continue(()))
    }

    #[test]
    fn available_cpu_capacity_excludes_vm_reservations_and_the_reserve() {
        let scenario = Scenario::read(TEXT).unwrap();
        let rooms = of(&scenario, Span::from_ms(20)).unwrap();
        let slices: Vec<Span> = rooms.iter().map(|room| room.slice).collect();
        assert_eq!(slices, [Span::from_ms(13), Span::from_ms(19)]);
    }

    #[test]
    fn policy_without_reservations_has_no_available_capacity() {
        let scenario = Scenario::read(TEXT).unwrap().with_policy("credit").unwrap();
        let error = of(&scenario, Span::from_ms(20)).unwrap_err();
        assert!(matches!(error, RoomError::NoReservations { policy: "credit" }), "{error}");
    }

    #[test]
    fn scenario_that_is_not_admitted_has_no_available_capacity() {
        let scenario = Scenario::read(&TEXT.replace("'3ms'", "'9.9ms'")).unwrap();
        let error = of(&scenario, Span::from_ms(20)).unwrap_err();
        assert!(matches!(error, RoomError::NotAdmitted(_)), "{error}");
    }
}
