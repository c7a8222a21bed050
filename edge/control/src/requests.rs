//! Bodies of HTTP requests.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use slackline_service::{Name, WantedMechanism};
use slackline_units::Enforcement;

use crate::plans::Canary;
use crate::times::{End, Length, Moment, Phase, Share};

/// Hint that states which names a reservation may have.
pub const NAME: &str = "use a to z, 0 to 9, `.`, `_` and `-`; up to 63, first a letter or digit";

/// Returns the hint for a text that is not a valid reservation name. If the text is the VM's own
/// name, the reservation must get another name and a binding.
#[must_use]
pub fn name_hint(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    if lower == text || lower.parse::<Name>().is_err() {
        return NAME.to_owned();
    }
    format!(
        "name the reservation `{lower}`, and its VM by `--for`, e.g. `reserve {lower} --for \
         libvirt:{text}`"
    )
}

/// Parameters of a new reservation: `slice` per `period` for each vCPU, or `cpu` for all vCPUs.
///
/// With `cpu`, each vCPU is guaranteed an equal share. A vCPU may also use reserved CPU time that
/// the other vCPUs leave unused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Wanted))]
#[serde(deny_unknown_fields)]
pub struct ReservationParameters {
    /// CPU time reserved for each vCPU in every period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<Length>,
    /// Period of each vCPU. Default: 10 ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<Length>,
    /// Total CPU for all vCPUs, in place of `slice`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Share>,
    /// True if the reservation is a hard limit: the VM gets no CPU time beyond the reservation.
    #[serde(default, skip_serializing_if = "is_false")]
    pub exact: bool,
    /// Offset of the periods, less than a period: each period starts this long after a multiple of
    /// the period on the wall clock. Reservations with equal period and phase start their periods
    /// together, on all hosts. Default: periods are not aligned with the wall clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Length>,
    /// Number of vCPUs. Default: the number of vCPUs that the VM has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u16>,
    /// Binding of the VM: `libvirt:NAME`, `qemu:NAME`, `uuid:UUID`, `firecracker:ID`,
    /// `cloud-hypervisor:ID`, `unit:NAME.service`, `cgroup:/PATH` or `pid:N`. Default: the VM with
    /// the name of the reservation.
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// Uid of the user who must own the VM. Default: the owner of the VM, or the caller if the VM
    /// is not found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// Time at which the service ends the reservation. Default: the reservation does not end by
    /// itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Moment>,
    /// Mechanism that enforces the reservation: `dispatcher`, `auto`, or `deadline`, which needs a
    /// slice and a hard limit (`exact`). Default: the default of the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforce: Option<RequestedMechanism>,
}

/// Mechanism that a request asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", try_from = "String")]
pub enum RequestedMechanism {
    /// The mechanism that was better in the last trial on this host (`slackline doctor --trial`).
    /// If that mechanism cannot enforce the reservation, the dispatcher is used.
    Auto,
    /// Slackline's own dispatcher, on each CPU.
    #[default]
    Dispatcher,
    /// `SCHED_DEADLINE` of the kernel.
    Deadline,
}

impl FromStr for RequestedMechanism {
    type Err = String;

    fn from_str(text: &str) -> Result<RequestedMechanism, String> {
        match text.parse::<Enforcement>() {
            Ok(Enforcement::Dispatcher) => Ok(RequestedMechanism::Dispatcher),
            Ok(Enforcement::Deadline) => Ok(RequestedMechanism::Deadline),
            Ok(by @ (Enforcement::Quota | Enforcement::Weight)) => Err(format!(
                "`{by}` guarantees no share of its own; use auto, dispatcher or deadline, or \
                 limit a VM by `slackline hold --at-most`"
            )),
            Err(_) if text == "auto" => Ok(RequestedMechanism::Auto),
            Err(_) => Err(format!("`{text}` is not a mechanism; use auto, dispatcher or deadline")),
        }
    }
}

impl TryFrom<String> for RequestedMechanism {
    type Error = String;

    fn try_from(text: String) -> Result<RequestedMechanism, String> {
        text.parse()
    }
}

impl From<Mechanism> for RequestedMechanism {
    fn from(mechanism: Mechanism) -> RequestedMechanism {
        match mechanism {
            Mechanism::Dispatcher => RequestedMechanism::Dispatcher,
            Mechanism::Deadline => RequestedMechanism::Deadline,
        }
    }
}

impl From<RequestedMechanism> for WantedMechanism {
    fn from(requested: RequestedMechanism) -> WantedMechanism {
        match requested {
            RequestedMechanism::Auto => WantedMechanism::AUTO,
            RequestedMechanism::Dispatcher => WantedMechanism::only(Enforcement::Dispatcher),
            RequestedMechanism::Deadline => WantedMechanism::only(Enforcement::Deadline),
        }
    }
}

/// Mechanism that enforces a reservation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// Slackline's own dispatcher, on each CPU.
    #[default]
    Dispatcher,
    /// `SCHED_DEADLINE` of the kernel.
    Deadline,
}

impl Mechanism {
    /// Returns true if the mechanism is the dispatcher, which is the default.
    #[must_use]
    pub const fn is_dispatcher(&self) -> bool {
        matches!(self, Mechanism::Dispatcher)
    }

    /// Returns the name of the mechanism as users type it.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Mechanism::Dispatcher => Enforcement::Dispatcher.name(),
            Mechanism::Deadline => Enforcement::Deadline.name(),
        }
    }
}

impl From<Mechanism> for Enforcement {
    fn from(mechanism: Mechanism) -> Enforcement {
        match mechanism {
            Mechanism::Dispatcher => Enforcement::Dispatcher,
            Mechanism::Deadline => Enforcement::Deadline,
        }
    }
}

impl From<Enforcement> for Mechanism {
    /// Converts the mechanism of a reservation to the wire format. Reservations use only the
    /// dispatcher and `SCHED_DEADLINE`.
    fn from(enforcement: Enforcement) -> Mechanism {
        match enforcement {
            Enforcement::Deadline => Mechanism::Deadline,
            _ => Mechanism::Dispatcher,
        }
    }
}

/// List of wanted reservations. All of them are admitted together, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// Parameters of each reservation, by name. At most 1,000 reservations. A new reservation needs
    /// `for` and `vcpus`. The binding of an existing reservation cannot be changed by a list.
    pub reservations: BTreeMap<String, ReservationParameters>,
    /// True if reservations that are not in the list are released. Only administrators can release
    /// reservations of other owners.
    #[serde(default, skip_serializing_if = "is_false")]
    pub prune: bool,
    /// True if the changes are only returned and not made. Capacity is then not checked.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
    /// Revision of the host for which the list was made. If the host has another revision, only a
    /// list that changes nothing is accepted. Default: any revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// Changes one VM first, and watches it. Cannot be combined with `dry_run`. Default: all
    /// changes are made at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
}

/// Changes to a reservation. A field that is absent leaves its parameter unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// New CPU time for each vCPU in every period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<Length>,
    /// New period of each vCPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<Length>,
    /// New total CPU for all vCPUs, in place of `slice`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Share>,
    /// True if the reservation becomes a hard limit, false if it allows slack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact: Option<bool>,
    /// New offset of the periods: each period starts this long after a multiple of the period on
    /// the wall clock. `none` removes the alignment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// New number of vCPUs of the reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u16>,
    /// New time at which the service ends the reservation. `none` removes the end time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<End>,
    /// New mechanism that enforces the reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforce: Option<RequestedMechanism>,
    /// New binding, which can refer to another VM or to the present VM. A request with this field
    /// must not have any other field.
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// Reason for the change, for the log: 1 to 256 bytes without control characters. The request
    /// must also have a field that changes a parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Command to a host about its member of a gang.
///
/// A gang is a set of VMs on several hosts that start their first periods together, all or none.
/// Each host knows only its own member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum GangWord {
    /// Reserves capacity for a member without scheduling its VM. The reservation ends after 10 s
    /// unless the command `begin` arrives.
    Hold {
        /// Name of the gang, which is equal on all hosts.
        gang: String,
        /// Name of the member's reservation.
        name: String,
        /// Parameters of the reservation.
        wanted: ReservationParameters,
    },
    /// Starts a held member at a given time. From then on it is an ordinary reservation.
    Begin {
        /// Name of the gang.
        gang: String,
        /// Name of the member's reservation.
        name: String,
        /// Start time in nanoseconds since 1970 on the host's wall clock. It must be within the
        /// next minute.
        at_ns: u64,
        /// True if this member ends as soon as another member of the gang is lost.
        #[serde(default, skip_serializing_if = "is_false")]
        strict: bool,
    },
    /// Reports that another member is lost. The member on this host ends if it has not started or
    /// if its gang is strict. Otherwise it leaves the gang and stays reserved.
    Break {
        /// Name of the gang.
        gang: String,
        /// Name of the member's reservation.
        name: String,
        /// Name of the lost member and the reason, for the log. At most 256 bytes.
        lost: String,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apply_request_with_1000_reservations_of_maximum_length_fits_limit() {
        let text = format!(
            r#"{{"slice":"604799.999949999s","period":"604799.999999999s","exact":true,
            "phase":"604799.999999998s","vcpus":512,"for":"cloud-hypervisor:{}","user":4294967295,
            "until":"2126-12-01T18:00:00Z","enforce":"dispatcher"}}"#,
            "n".repeat(255)
        );
        let wanted: ReservationParameters = serde_json::from_str(&text).unwrap();
        let name = |number: usize| format!("{}{number:03}", "n".repeat(60));
        let reservations = (0..1_000).map(|number| (name(number), wanted.clone())).collect();
        let list = Apply { reservations, prune: true, dry_run: true, revision: None, canary: None };
        let length = serde_json::to_string(&list).unwrap().len();
        assert!(length <= crate::LONGEST_LIST, "{length} bytes");
        assert!(length > crate::LONGEST_LIST * 3 / 4, "{length} bytes");
    }

    #[test]
    fn refusal_of_unknown_json_key_in_request_names_the_key() {
        let wanted = |text: &str| {
            serde_json::from_str::<ReservationParameters>(text).map_err(|e| e.to_string())
        };
        let error = wanted(r#"{"slice":"2ms","perod":"10ms"}"#).unwrap_err();
        assert!(error.starts_with("unknown field `perod`, expected one of `slice`, `period`"));
        assert!(wanted(r#"{"slice":"2ms","slice":"3ms"}"#).unwrap_err().contains("duplicate"));
        let good = wanted(r#"{"slice":"2ms","for":"libvirt:web"}"#).unwrap();
        assert_eq!(good.binding.as_deref(), Some("libvirt:web"));
        let text = serde_json::to_string(&good).unwrap();
        assert_eq!(text, r#"{"slice":"2ms","for":"libvirt:web"}"#);
    }
}
