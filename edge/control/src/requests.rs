//! Bodies of HTTP requests.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use slackline_service::{Name, WantedMechanism};
use slackline_units::Enforcement;

use crate::plans::Canary;
use crate::times::{End, Length, Moment, Phase, Share};

/// Hint of an error message: the rule for names of reservations.
pub const NAME: &str =
    "use a to z, 0 to 9, `.`, `_` and `-`; at most 63 characters, the first a letter or digit";

/// Returns the hint for `text`, which is not a valid name of a reservation. If only upper-case
/// letters make `text` invalid, the hint proposes the name in lower case, with a binding to the VM
/// `text`.
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
    /// Period in which each vCPU receives its slice once. Default: 10 ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<Length>,
    /// Total CPU for all vCPUs of the VM together. It replaces `slice`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Share>,
    /// True if the reservation is a hard limit: the VM gets no CPU time beyond the reservation.
    #[serde(default, skip_serializing_if = "is_false")]
    pub exact: bool,
    /// Offset of the periods, less than a period: each period starts this length of time after a
    /// multiple of the period on the wall clock. Reservations with equal period and phase start
    /// their periods at the same time, on all hosts. Default: periods are not aligned with the wall
    /// clock.
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
    /// Time at which the service ends the reservation. Default: the service does not end the
    /// reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Moment>,
    /// Mechanism that enforces the reservation: `dispatcher`, `auto` or `deadline`. The mechanism
    /// `deadline` needs a slice and a hard limit (`exact`). Default: the mechanism with which the
    /// daemon was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforce: Option<RequestedMechanism>,
}

/// Mechanism that a request asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", try_from = "String")]
pub enum RequestedMechanism {
    /// The mechanism that achieved the better result in the last trial on this host (`slackline
    /// doctor --trial`). If that mechanism cannot enforce the reservation, the dispatcher enforces
    /// it.
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
    /// Converts the enforcement of a reservation to the wire format. A reservation is enforced by
    /// the dispatcher or by `SCHED_DEADLINE`, never by another mechanism.
    fn from(enforcement: Enforcement) -> Mechanism {
        match enforcement {
            Enforcement::Deadline => Mechanism::Deadline,
            _ => Mechanism::Dispatcher,
        }
    }
}

/// List of requested reservations. Either all of them are admitted, or none of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// Parameters of each reservation, by name. At most 1,000 reservations. A new reservation needs
    /// the fields `for` and `vcpus`. The binding of an existing reservation cannot be changed by a
    /// list.
    pub reservations: BTreeMap<String, ReservationParameters>,
    /// True if reservations that are not in the list are released. Only administrators can release
    /// reservations of other owners.
    #[serde(default, skip_serializing_if = "is_false")]
    pub prune: bool,
    /// True if the service only returns the changes and does not make them. The service then does
    /// not check capacity.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
    /// Revision of the host for which the list was made. If the host has another revision, only a
    /// list that changes nothing is accepted. Default: any revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// Parameters of a canary: the service changes one VM first and watches it before the other
    /// changes. Cannot be combined with `dry_run`. Default: the service makes all changes without
    /// watching a VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
}

/// Changes to the parameters of a reservation. If a field is absent, its parameter stays unchanged.
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
    /// New total CPU for all vCPUs of the VM together. It replaces `slice`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Share>,
    /// True to make the reservation a hard limit. False to let the VM use slack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact: Option<bool>,
    /// New offset of the periods: each period starts this length of time after a multiple of the
    /// period on the wall clock. `none` removes the alignment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// New number of vCPUs of the reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u16>,
    /// New time at which the service ends the reservation. `none` removes that time.
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
/// A gang is a set of VMs on several hosts that start their first periods together. Either all of
/// them start or none. Each host knows only its own member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum GangWord {
    /// Reserves capacity for a member of the gang. The VM of the member is not scheduled yet. The
    /// reservation ends after 10 s unless the command `begin` arrives before.
    Hold {
        /// Name of the gang, which is equal on all hosts.
        gang: String,
        /// Name of the member's reservation.
        name: String,
        /// Parameters of the reservation.
        wanted: ReservationParameters,
    },
    /// Starts the reservation of a member whose capacity the command `hold` has reserved. The VM is
    /// scheduled from the time `at_ns` on. From then on, the reservation is an ordinary
    /// reservation.
    Begin {
        /// Name of the gang.
        gang: String,
        /// Name of the member's reservation.
        name: String,
        /// Start time on the host's wall clock, in nanoseconds since 1970. The start time must be
        /// within the next minute.
        at_ns: u64,
        /// True if the reservation of this member ends as soon as another member of the gang is
        /// lost.
        #[serde(default, skip_serializing_if = "is_false")]
        strict: bool,
    },
    /// Reports that another member of the gang is lost. The reservation of this host's member ends
    /// if the member has not started, or if the command `begin` set `strict`. Otherwise this member
    /// leaves the gang and keeps its reservation.
    Break {
        /// Name of the gang.
        gang: String,
        /// Name of the member's reservation.
        name: String,
        /// Name of the lost member and the reason for the loss, for the log. At most 256 bytes.
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
