//! Model of the reservations as a client knows them. An acknowledged change is in force. A change
//! without an answer is in force either completely or not at all.

use std::time::{Duration, Instant};

use serde_json::Value;
use slackline_units::Span;

use super::machine::{Machine, Shape};

/// Properties of a reservation that the soak test changes and checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub slice: Span,
    pub exact: bool,
    pub paused: bool,
}

impl Row {
    /// Returns true if an entry of `list` agrees with this row. While the VM is absent, `list` does
    /// not show that the reservation is paused.
    pub fn fits(&self, listed: &Value) -> bool {
        let (slice, exact) = (listed["slice_ns"].as_u64(), listed["exact"].as_bool());
        let is_paused = listed["state"] == "paused";
        let waits = listed["state"] == "waiting";
        (slice, exact) == (Some(self.slice.ns()), Some(self.exact))
            && (waits || is_paused == self.paused)
    }
}

/// A VM that starts and stops, with its reservation if it has a reservation.
pub struct Slot {
    /// Name of the reservation.
    pub name: String,
    /// Name of the VM, which can differ from the name of the reservation.
    pub called: String,
    pub shape: Shape,
    pub machine: Option<Machine>,
    /// Possible states of the reservation. There are several while the outcome of a request without
    /// an answer is unknown. The last state is the most likely.
    pub may_be: Vec<Option<Row>>,
    /// Other states that are possible if the daemon dies, because later changes are perhaps not on
    /// the disk yet.
    pub was: Vec<Option<Row>>,
    /// Number of times that the reservation was created under a new name.
    pub names: u64,
    /// Time at which a VM that was bound by its process id last ended. `None` if no such VM has
    /// ended.
    went: Option<Instant>,
}

/// Maximum time until the daemon notices that a process has ended. Until then the process's
/// reservation still uses its name.
const NOTICED: Duration = Duration::from_secs(5);

impl Slot {
    pub fn new(number: usize, shape: Shape) -> Slot {
        let called = format!("soak{}-{number}", std::process::id());
        let (name, may_be) = (format!("r{number}"), vec![None]);
        let (was, names, went) = (Vec::new(), 0, None);
        Slot { name, called, shape, machine: None, may_be, was, names, went }
    }

    /// Returns true if the state of the reservation is certain: only one is possible.
    pub fn is_known(&self) -> bool {
        self.may_be.len() == 1
    }

    /// Returns the most likely state of the reservation.
    pub fn row(&self) -> Option<Row> {
        self.may_be.last().copied().flatten()
    }

    /// Notes that the daemon has acknowledged a state of the reservation, which is now certain.
    pub fn is_now(&mut self, row: Option<Row>, is_durable: bool) {
        if is_durable {
            self.was.clear();
        } else {
            self.was.append(&mut self.may_be);
        }
        self.may_be = vec![row];
    }

    /// Notes another possible state of the reservation.
    pub fn may_be_now(&mut self, row: Option<Row>) {
        self.may_be.push(row);
    }

    /// Notes that the daemon died, so that changes that were not written may be lost.
    pub fn forgot(&mut self) {
        let mut before = std::mem::take(&mut self.was);
        before.append(&mut self.may_be);
        self.may_be = before;
    }

    /// Returns the binding of the VM.
    pub fn binding(&self) -> String {
        match &self.machine {
            Some(machine) if self.shape.vcpus == 0 => format!("pid:{}", machine.pid()),
            _ => format!("qemu:{}", self.called),
        }
    }

    /// Ends the VM. If the reservation is bound to the VM's process id, the reservation ends too.
    pub fn end_machine(&mut self) {
        self.machine = None;
        if self.shape.vcpus == 0 {
            self.was.clear();
            self.may_be = vec![None];
            self.went = Some(Instant::now());
        }
    }

    /// Returns true if a VM that is bound by its process id has ended so recently that the daemon
    /// has perhaps not noticed it.
    pub fn may_be_unnoticed(&self) -> bool {
        self.went.is_some_and(|went| went.elapsed() < NOTICED)
    }
}
