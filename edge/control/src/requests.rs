//! The bodies of requests.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::times::{Length, Phase, Share};

/// Hint about names of reservations.
pub const NAME: &str = "use a to z, 0 to 9, `.`, `_` and `-`; up to 63, first a letter or digit";

/// What a new reservation is to be: `slice` in every `period` for each vCPU, or `cpu` for all
/// together, of which each is promised an even part and gets what the others leave.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// So much CPU time for each vCPU in every period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<Length>,
    /// The period; 10 ms unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<Length>,
    /// So much for all vCPUs together, instead of a slice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Share>,
    /// No more than that either, even where nobody else wants the CPU.
    #[serde(default, skip_serializing_if = "is_false")]
    pub exact: bool,
    /// Periods begin whenever the wall clock shows whole periods and this, which is less than a
    /// period: those of all that have the same, on all hosts, at once. Anywhere unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Length>,
    /// How many vCPUs; as many as the machine has unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u16>,
    /// Which machine: `libvirt:NAME`, `qemu:NAME`, `uuid:UUID`, `firecracker:ID`,
    /// `cloud-hypervisor:ID`, `unit:NAME.service`, `cgroup:/PATH`, `pid:N`; the one of the same
    /// name unless said.
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// Whose machine, by the number of the user: it waits for one of his, and takes nobody else's.
    /// Whose the machine is that is here, or else who asks, unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
}

/// What is to change of a reservation; what is not said stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// So much CPU time for each vCPU in every period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<Length>,
    /// The period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<Length>,
    /// So much for all vCPUs together, instead of a slice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Share>,
    /// Whether it gets no more than that either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact: Option<bool>,
    /// Where periods begin on the wall clock; `none` is anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// How many vCPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u16>,
}

/// A word to a host about its member of a gang: machines of several hosts that begin together or
/// not at all. Each host is told of its own member, and knows of no other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum GangWord {
    /// A member is promised, and nobody has it: for 10 s, unless it is told to begin.
    Hold {
        /// What the gang is called, the same on all hosts.
        gang: String,
        /// What the member's reservation is to be called.
        name: String,
        /// What it is to be.
        wanted: Wanted,
    },
    /// It is a reservation like any other, and its machine has it from then on.
    Begin {
        /// Its gang.
        gang: String,
        /// The member's reservation.
        name: String,
        /// When: nanoseconds since 1970 on the host's clock on the wall, within the next minute.
        at_ns: u64,
        /// Whether it ends when another member is lost.
        #[serde(default, skip_serializing_if = "is_false")]
        strict: bool,
    },
    /// Another member is lost: this one ends if it has not begun or its gang is strict, and else
    /// is in no gang any more.
    Break {
        /// Its gang.
        gang: String,
        /// The member's reservation.
        name: String,
        /// Who is lost and why, for the log; at most 256 bytes.
        lost: String,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_false(value: &bool) -> bool {
    !*value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_are_refused_by_name() {
        let wanted = |text: &str| serde_json::from_str::<Wanted>(text).map_err(|e| e.to_string());
        let error = wanted(r#"{"slice":"2ms","perod":"10ms"}"#).unwrap_err();
        assert!(error.starts_with("unknown field `perod`, expected one of `slice`, `period`"));
        assert!(wanted(r#"{"slice":"2ms","slice":"3ms"}"#).unwrap_err().contains("duplicate"));
        let good = wanted(r#"{"slice":"2ms","for":"libvirt:web"}"#).unwrap();
        assert_eq!(good.binding.as_deref(), Some("libvirt:web"));
        let text = serde_json::to_string(&good).unwrap();
        assert_eq!(text, r#"{"slice":"2ms","for":"libvirt:web"}"#);
    }
}
