//! What is answered.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::times::Length;

/// How a reservation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Promised; its machine is not here. Its capacity stays promised.
    Waiting,
    /// Its machine gets what is promised.
    Active,
    /// Its vCPUs do not run until resumed; the promise is kept.
    Paused,
    /// Some of its vCPUs are not served.
    Partial,
    /// Another program has changed its threads and has them until that is undone, or it is resumed.
    Contested,
    /// Its guest is suspended by its monitor.
    Suspended,
    /// Promised for a gang that has not begun.
    Held,
    /// Over.
    Ended,
}

impl State {
    /// All, with what each means.
    pub const ALL: [(State, &str); 8] = [
        (State::Waiting, "promised; its machine is not here; its capacity stays promised"),
        (State::Active, "its machine gets what is promised"),
        (State::Paused, "its vCPUs do not run until resumed; the promise is kept"),
        (State::Partial, "some of its vCPUs are not served"),
        (
            State::Contested,
            "another program has changed its threads and has them until that is undone, or it is \
             resumed",
        ),
        (State::Suspended, "its guest is suspended by its monitor"),
        (State::Held, "promised for a gang that has not begun"),
        (State::Ended, "over"),
    ];

    /// Its word.
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

/// What was promised and what was had over some time, all vCPUs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Delivered {
    /// Over how long.
    pub over_ns: u64,
    /// The slices of all periods in it, asleep or not.
    pub promised_ns: u64,
    /// What it was owed of that: less where it slept.
    pub due_ns: u64,
    /// The CPU time it used.
    pub used_ns: u64,
    /// Periods at whose end it was owed something.
    pub deadlines: u64,
    /// Those of them in which it had less.
    pub missed: u64,
}

/// A reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reservation {
    /// Its name.
    pub name: String,
    /// Whose it is: `uid N`.
    pub owner: String,
    /// How its machine is found again.
    #[serde(rename = "for")]
    pub binding: String,
    /// Whose machine that is to be, by the number of the user: nobody else's is taken for it.
    pub user: u32,
    /// CPU time for each vCPU in every period.
    pub slice: Length,
    /// The same.
    pub slice_ns: u64,
    /// The period.
    pub period: Length,
    /// The same.
    pub period_ns: u64,
    /// Whether it gets no more than that either.
    pub exact: bool,
    /// Whether a vCPU that wants more gets what the others leave of theirs.
    #[serde(default)]
    pub by_use: bool,
    /// So much later than whole periods of the wall clock its periods begin; anywhere if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Length>,
    /// The same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase_ns: Option<u64>,
    /// The gang that it is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<String>,
    /// How many vCPUs are promised this.
    pub vcpus: u16,
    /// How many vCPUs of its machine are scheduled for it now.
    pub served: u16,
    /// How it stands.
    pub state: State,
    /// Why, where that needs saying.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What is to be known besides what was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// The number of the event that changed it last: for `If-Match`.
    pub revision: u64,
    /// What was delivered lately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recent: Option<Delivered>,
    /// What was delivered since the daemon began to look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<Delivered>,
    /// What it costs, where there is a table of prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

/// What a reservation costs: what it is promised, used or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cost {
    /// In which currency.
    pub currency: String,
    /// In an hour, as it is promised now.
    pub hour: String,
    /// The same in millionths.
    pub hour_millionths: u64,
    /// Since it was made, or the daemon began to look.
    pub total: String,
    /// The same in millionths.
    pub total_millionths: u64,
}

/// Millionths of a currency as people write them: `0.02`, `0.000125`.
#[must_use]
pub fn money(millionths: u64) -> String {
    let part = format!("{:06}", millionths % 1_000_000);
    let kept = part.trim_end_matches('0').len().max(2);
    format!("{}.{}", millionths / 1_000_000, &part[..kept])
}

/// A machine that can have a reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Machine {
    /// What its own world calls it; anything but control characters.
    pub name: String,
    /// What it is, in a word: `libvirt`, `qemu`, `firecracker`, `unit`, `process`.
    pub kind: String,
    /// What to reserve it by.
    pub binding: String,
    /// Whose process it is.
    pub uid: u32,
    /// Its process.
    pub pid: i32,
    /// What it uses of a CPU now, in millionths: of several CPUs more than a million. None of what
    /// is no process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ppm: Option<u32>,
    /// Its vCPU threads; none where all its threads are one target.
    pub vcpus: Vec<Thread>,
    /// Which reservation has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<String>,
    /// Why its vCPU threads cannot be told, so that it cannot be reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A thread that is a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Thread {
    /// The vCPU's number; they may have gaps.
    pub vcpu: u16,
    /// The thread.
    pub tid: i32,
}

/// This daemon's host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Host {
    /// The host's own name.
    pub name: String,
    /// The daemon's version.
    pub version: String,
    /// The policy that decides.
    pub policy: String,
    /// The CPUs it manages.
    pub cpus: Vec<Cpu>,
    /// What of each CPU is never promised, in millionths.
    pub reserve_ppm: u32,
    /// How many reservations there are.
    pub reservations: u64,
    /// How many of them wait for their machine.
    pub waiting: u64,
    /// Its clock on the wall.
    pub clock: Clock,
}

/// The clock by which phases are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Clock {
    /// Hosts that have the same here have one clock: daemons on one machine.
    pub id: String,
    /// What it shows, in nanoseconds since 1970.
    pub shows_ns: u64,
    /// By how much it may be wrong, as whoever keeps it says; not known if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_ns: Option<u64>,
}

/// A managed CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cpu {
    /// The kernel's number.
    pub cpu: u32,
    /// What is promised on it, in millionths.
    pub promised_ppm: u32,
    /// What may be promised on it, in millionths.
    pub capacity_ppm: u32,
}

/// The largest slices that would be admitted now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Room {
    /// For this period.
    pub period: Length,
    /// The same.
    pub period_ns: u64,
    /// On each CPU.
    pub cpus: Vec<RoomOn>,
}

/// The largest slice that would be admitted now on one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RoomOn {
    /// The kernel's number.
    pub cpu: u32,
    /// The slice; `0s` is none.
    pub slice: Length,
    /// The same.
    pub slice_ns: u64,
}

/// What somebody did, or what happened: a line of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its place in the ledger.
    pub seq: u64,
    /// When, in nanoseconds since 1970.
    pub at_ns: u64,
    /// Who: `uid N`, or `service`.
    pub principal: String,
    /// What: a verb, or what happened.
    pub verb: String,
    /// Of which reservation; empty where of none.
    pub name: String,
    /// What there was before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// What there was after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// The same with its numbers.
    pub outcome: String,
    /// Whether it could not be written down when it happened.
    pub was_late: bool,
}

/// Whether all is well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Whether it is.
    pub good: bool,
    /// What is not, in sentences; empty if all is well.
    pub troubles: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_has_two_places_or_as_many_as_it_needs() {
        let texts = [0, 1, 20_000, 125, 1_500_000, 12_345_678].map(money);
        assert_eq!(texts, ["0.00", "0.000001", "0.02", "0.000125", "1.50", "12.345678"]);
    }
}
