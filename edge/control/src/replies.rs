//! Bodies of successful HTTP answers.

use serde::{Deserialize, Serialize};
use slackline_service::Terms;
use slackline_units::Span;

use crate::requests::Mechanism;
use crate::times::{Length, Moment};

/// State of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The VM is absent. The capacity of its reservation stays reserved.
    Waiting,
    /// The VM receives the reserved CPU time.
    Active,
    /// The vCPUs are stopped until the reservation is resumed. Their capacity stays reserved.
    Paused,
    /// At least one vCPU of the VM is not scheduled.
    Partial,
    /// Another program has changed threads of the VM. The reservation is not enforced until that
    /// change is undone, or the reservation is resumed.
    Contested,
    /// The VM's monitor has suspended the guest. The capacity stays reserved.
    Suspended,
    /// Capacity is reserved for a gang member whose first period has not begun. A gang is a set of
    /// VMs on several hosts that start together.
    Held,
    /// The reservation has ended.
    Ended,
}

impl State {
    /// All states of a reservation, with the meaning of each.
    pub const ALL: [(State, &str); 8] = [
        (State::Waiting, "the VM is not running; the capacity stays reserved"),
        (State::Active, "the VM receives the reserved CPU time"),
        (State::Paused, "the VM's vCPUs are stopped until `resume`; the capacity stays reserved"),
        (State::Partial, "some vCPUs of the VM are not scheduled"),
        (
            State::Contested,
            "another program changed the VM's threads; the reservation is not enforced until that \
             change is undone, or until `resume`",
        ),
        (State::Suspended, "the VM monitor has suspended the guest; the capacity stays reserved"),
        (State::Held, "the capacity is reserved for a gang that has not begun"),
        (State::Ended, "the reservation has ended"),
    ];

    /// Returns the word that stands for the state in JSON and tables.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            State::Waiting => "waiting",
            State::Active => "active",
            State::Paused => "paused",
            State::Partial => "partial",
            State::Contested => "contested",
            State::Suspended => "suspended",
            State::Held => "held",
            State::Ended => "ended",
        }
    }
}

/// CPU time that was reserved and used in an interval, for all vCPUs of a reservation together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Delivered))]
pub struct Delivery {
    /// Length of the interval, in nanoseconds.
    pub over_ns: u64,
    /// Sum of the slices of all periods in the interval, in nanoseconds. Includes periods in which
    /// the VM was blocked.
    pub promised_ns: u64,
    /// Part of `promised_ns` to which the VM was entitled. It is less than `promised_ns` if the VM
    /// blocked.
    pub due_ns: u64,
    /// CPU time that the VM used in the interval, in nanoseconds.
    pub used_ns: u64,
    /// Number of periods at whose end the VM was entitled to CPU time, as the sum over its vCPUs.
    pub deadlines: u64,
    /// Number of the periods counted in `deadlines` in which a vCPU received less than its
    /// entitlement.
    pub missed: u64,
}

/// A reservation with its current state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reservation {
    /// Name of the reservation.
    pub name: String,
    /// Owner of the reservation, in the form `uid N`.
    pub owner: String,
    /// Binding by which the service finds the VM of the reservation.
    #[serde(rename = "for")]
    pub binding: String,
    /// Uid of the user who must own the VM.
    pub user: u32,
    /// CPU time reserved for each vCPU in every period.
    pub slice: Length,
    /// The slice in nanoseconds.
    pub slice_ns: u64,
    /// Period of each vCPU.
    pub period: Length,
    /// The period in nanoseconds.
    pub period_ns: u64,
    /// True if the reservation is a hard limit: the VM gets no CPU time beyond the reservation.
    pub exact: bool,
    /// True if vCPUs of the VM may use reserved CPU time that other vCPUs of the VM leave unused.
    #[serde(default)]
    pub by_use: bool,
    /// Offset of the periods: each period starts this length of time after a multiple of the period
    /// on the wall clock. Absent if periods are not aligned with the wall clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Length>,
    /// The phase in nanoseconds. Absent if periods are not aligned with the wall clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase_ns: Option<u64>,
    /// Time at which the service ends the reservation. Absent if the reservation has no end time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Moment>,
    /// The end time in nanoseconds since 1970. Absent if the reservation has no end time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ns: Option<u64>,
    /// Mechanism that enforces the reservation. Absent if the mechanism is Slackline's dispatcher.
    #[serde(default, skip_serializing_if = "Mechanism::is_dispatcher")]
    pub enforce: Mechanism,
    /// Reason why `auto` chose the mechanism. Absent if a request named the mechanism, or if the
    /// daemon has restarted since the choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<String>,
    /// Name of the gang to which the reservation belongs, if any. A gang is a set of VMs on several
    /// hosts that start together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<String>,
    /// Number of vCPUs for which CPU time is reserved.
    pub vcpus: u16,
    /// Number of vCPUs of the VM that the daemon schedules now.
    pub served: u16,
    /// State of the reservation.
    pub state: State,
    /// Reason for the state. Absent if the state needs no explanation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Warning about the last request for this reservation. Absent if there is no warning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// Revision of the reservation, for the header `If-Match`: number of the event that last
    /// changed the reservation.
    pub revision: u64,
    /// CPU time that the VM received in the last 5 s. If the reservation changed within the last 5
    /// s, the CPU time since that change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recent: Option<Delivery>,
    /// CPU time that the VM received since the daemon started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<Delivery>,
    /// Cost of the reservation. Absent if the daemon has no prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

impl Reservation {
    /// Returns true if the caller may not see the name of this reservation. The caller cannot
    /// change such a reservation.
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        self.name == crate::ANOTHER_VM
    }

    /// Returns the terms of this reservation as the service's type. With these terms a caller can
    /// compute the shorter periods in which the daemon enforces a long period. `None` if the values
    /// are not valid in this version of the program.
    #[must_use]
    pub fn terms(&self) -> Option<Terms> {
        let (slice, period) = (Span::from_ns(self.slice_ns), Span::from_ns(self.period_ns));
        let each = slackline_units::Reservation::new(slice, period).ok()?;
        let terms = Terms::new(each, self.exact, self.vcpus).ok()?;
        terms.with_phase(self.phase.map(|phase| phase.0)).ok()
    }
}

/// Change that an applied list makes to one reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AppliedChange {
    /// Name of the reservation.
    pub name: String,
    /// Kind of the change: `create`, `change`, `release` or `keep`.
    pub action: String,
    /// Parameters and binding before the change, as text. Absent if the reservation is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// Parameters and binding after the change, as text. Absent if the reservation is released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Revision of the reservation after the change, for the header `If-Match`. Absent if nothing
    /// was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
}

/// Cost of the reserved CPU time. Reserved time that the VM leaves unused costs the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Cost {
    /// Currency of the prices, e.g. `EUR`.
    pub currency: String,
    /// Cost of one hour of the reservation with its present parameters.
    pub hour: String,
    /// The cost of one hour in millionths of the currency.
    pub hour_millionths: u64,
    /// Cost since the reservation was made. If the daemon started after that, the cost since the
    /// daemon's start.
    pub total: String,
    /// The total cost in millionths of the currency.
    pub total_millionths: u64,
}

/// Formats millionths of a currency unit as a decimal number, such as `0.02` or `0.000125`.
#[must_use]
pub fn money(millionths: u64) -> String {
    let part = format!("{:06}", millionths % 1_000_000);
    let kept = part.trim_end_matches('0').len().max(2);
    format!("{}.{}", millionths / 1_000_000, &part[..kept])
}

/// Value of [`Machine::kind`] for an entry that stands for VMs that are not listed. The entry
/// states the number of these VMs.
pub const OMITTED: &str = "omitted";

/// A VM that can have a reservation: a guest, container, unit, cgroup or process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Machine {
    /// Name that the owner gave the VM, without control characters. Empty if the VM has no name.
    pub name: String,
    /// Kind of the VM: `libvirt`, `qemu`, `firecracker`, `cloud-hypervisor`, `crosvm`, `kvmtool`,
    /// `container`, `unit`, `cgroup` or `process`. An entry of the kind `omitted` is not a VM. Its
    /// field `why` states how many VMs of the owner `uid` are not listed.
    pub kind: String,
    /// Binding by which a reservation refers to this VM.
    pub binding: String,
    /// Uid of the user who owns the VM.
    pub uid: u32,
    /// Process id of the VM. 0 if the VM is not a single process.
    pub pid: i32,
    /// CPU that the VM uses now, in millionths of a CPU. The value exceeds a million if the VM uses
    /// more than one CPU. Absent if the VM is not a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ppm: Option<u32>,
    /// Threads of the vCPUs. Empty if the VM is scheduled as a single vCPU.
    pub vcpus: Vec<Thread>,
    /// Name of the VM's reservation. Absent if the VM has no reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<String>,
    /// Reason why no reservation can be made for the VM. Absent if a reservation can be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Host thread in which one vCPU of a VM runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Thread {
    /// Number of the vCPU in its VM. The numbers of a VM can have gaps.
    pub vcpu: u16,
    /// Id of the thread.
    pub tid: i32,
}

/// Description of the host on which the daemon runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Host {
    /// Name of the host.
    pub name: String,
    /// Version of the daemon.
    pub version: String,
    /// Scheduling policy of the daemon.
    pub policy: String,
    /// CPUs that the daemon schedules.
    pub cpus: Vec<Cpu>,
    /// Part of each CPU that is never reserved, in millionths.
    pub reserve_ppm: u32,
    /// Revision of the host: the number of the event that last changed a reservation.
    #[serde(default)]
    pub revision: u64,
    /// Number of all reservations that the daemon has.
    pub reservations: u64,
    /// Number of reservations whose VM is absent from the host.
    pub waiting: u64,
    /// Wall clock of the host.
    pub clock: Clock,
}

/// Wall clock of the host. Phases of reservations are aligned with this clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Clock {
    /// Identity of the clock. All daemons on one host report the same identity.
    pub id: String,
    /// Time that the clock showed when the daemon made the answer, in nanoseconds since 1970.
    pub shows_ns: u64,
    /// Maximum error of the wall clock as the kernel reports it, in nanoseconds. Absent if the
    /// kernel reports no error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_ns: Option<u64>,
}

/// A CPU that the daemon schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Cpu {
    /// Number of the CPU.
    pub cpu: u32,
    /// Reserved share of the CPU, including dispatch overhead, in millionths of the CPU.
    pub promised_ppm: u32,
    /// Largest total share of the CPU that can be reserved, in millionths of the CPU.
    pub capacity_ppm: u32,
    /// Sum of all reservations on the CPU without dispatch overhead, in millionths of the CPU.
    #[serde(default)]
    pub reserved_ppm: u32,
    /// Dispatch overhead measured over the last 10 s, in millionths of the CPU. Absent until the
    /// daemon has measured for 10 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead_ppm: Option<u32>,
    /// Measurement that shows that the CPU is overloaded. Absent if the CPU can deliver its
    /// reservations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overload: Option<Overload>,
}

/// Last measurement of an overloaded CPU, which cannot deliver its reservations: `reserved_ppm +
/// overhead_ppm > limit_ppm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Overload {
    /// Sum of the reservations on the CPU without dispatch overhead, in millionths of the CPU.
    pub reserved_ppm: u32,
    /// Dispatch overhead measured over 10 s, in millionths of the CPU.
    pub overhead_ppm: u32,
    /// Largest part of the CPU time that the kernel gives to real-time threads, in millionths of
    /// the CPU.
    pub limit_ppm: u32,
}

/// Available capacity of each CPU: the largest slice that the CPU would admit now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Room {
    /// Period for which the largest slices are computed.
    pub period: Length,
    /// The period in nanoseconds.
    pub period_ns: u64,
    /// Largest slice that each CPU would admit.
    pub cpus: Vec<RoomOn>,
}

/// Available capacity of one CPU: the largest slice that the CPU would admit now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoomOn {
    /// Number of the CPU.
    pub cpu: u32,
    /// Largest slice that the CPU would admit. `0s` if no slice fits.
    pub slice: Length,
    /// The slice in nanoseconds.
    pub slice_ns: u64,
}

/// Entry of the log: a request that was carried out, or another event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// Number of the event in the ledger.
    pub seq: u64,
    /// Time of the event, in nanoseconds since 1970.
    pub at_ns: u64,
    /// Principal that caused the event: `uid N`, `@NAME` for a remote client, or `service`.
    pub principal: String,
    /// Kind of the request or event, as one word.
    pub verb: String,
    /// Name of the reservation. Empty if the event concerns no reservation.
    pub name: String,
    /// Parameters of the reservation before the event. Absent if the reservation did not exist
    /// before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// Parameters of the reservation after the event. Absent if the reservation has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Description of the event, with the numbers that belong to it.
    pub outcome: String,
    /// True if the event was written to the ledger late, because an earlier attempt to write it
    /// failed.
    pub was_late: bool,
}

/// Maximum number of history entries (hours or days) in one answer.
pub const MOST_ACCOUNTS: usize = 1_000;

/// CPU time of all vCPUs of a reservation together, in one hour or day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Account {
    /// Start of the hour or day, in nanoseconds since 1970. Days begin at midnight UTC.
    pub from_ns: u64,
    /// Length of the entry in nanoseconds: one hour or one day. The service merges the oldest hours
    /// into days.
    pub length_ns: u64,
    /// Part of the hour or day in which the reservation existed, in nanoseconds.
    pub existed_ns: u64,
    /// Part of `existed_ns`, in nanoseconds, for which nothing was measured, because no daemon ran
    /// or the host was suspended. Of the other fields, only `length_ns` and `existed_ns` include
    /// this time.
    pub unknown_ns: u64,
    /// Time in which the reservation was not enforced, because another program had changed threads
    /// of the VM, in nanoseconds.
    pub contested_ns: u64,
    /// Sum of the slices of all periods in the hour or day, in nanoseconds. Includes periods in
    /// which the VM was blocked or absent.
    pub reserved_ns: u64,
    /// Part of `reserved_ns` to which the VM was entitled. It is less than `reserved_ns` if the VM
    /// blocked or was absent.
    pub due_ns: u64,
    /// CPU time that the VM used in the hour or day, in nanoseconds.
    pub delivered_ns: u64,
    /// Sum of the tardiness of all deadlines missed in the hour or day, in nanoseconds.
    pub late_ns: u64,
    /// Number of periods at whose end the VM was entitled to CPU time, as the sum over its vCPUs.
    pub deadlines: u64,
    /// Number of the periods counted in `deadlines` in which a vCPU received less than its
    /// entitlement.
    pub missed: u64,
}

/// Health of the daemon, with one sentence for each problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Health {
    /// True if the daemon has no problem.
    pub good: bool,
    /// Problems of the daemon, one sentence each. Empty if there is no problem.
    pub troubles: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_shown_with_at_least_two_decimals() {
        let texts = [0, 1, 20_000, 125, 1_500_000, 12_345_678].map(money);
        assert_eq!(texts, ["0.00", "0.000001", "0.02", "0.000125", "1.50", "12.345678"]);
    }
}
