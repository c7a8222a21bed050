//! What somebody who asks for reservations may rely on: what was acknowledged is so, and what was
//! not is so wholly or not at all.

use std::time::{Duration, Instant};

use serde_json::Value;
use slackline_units::Span;

use super::machine::{Machine, Shape};

/// What a reservation is, as far as the soak changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub slice: Span,
    pub exact: bool,
    pub paused: bool,
}

impl Row {
    /// Whether `list` tells this of it. Of one whose machine is not here it does not tell whether
    /// it is paused.
    pub fn fits(&self, listed: &Value) -> bool {
        let (slice, exact) = (listed["slice_ns"].as_u64(), listed["exact"].as_bool());
        let is_paused = listed["state"] == "paused";
        let waits = listed["state"] == "waiting";
        (slice, exact) == (Some(self.slice.ns()), Some(self.exact))
            && (waits || is_paused == self.paused)
    }
}

/// A machine that comes and goes, and the reservation that it has at times.
pub struct Slot {
    /// What its reservation is called.
    pub name: String,
    /// What the machine itself is called.
    pub called: String,
    pub shape: Shape,
    pub machine: Option<Machine>,
    /// What its reservation may be now; several until it is known what came of a request that was
    /// not answered. The last is what is most likely.
    pub may_be: Vec<Option<Row>>,
    /// What it also is after a death of the daemon, while the disk takes nothing.
    pub was: Vec<Option<Row>>,
    /// How often it had another name.
    pub names: u64,
    /// When a machine of it that is known by its number went last.
    went: Option<Instant>,
}

/// How long it may take until it is noticed that a process has ended: until then its reservation
/// has the name.
const NOTICED: Duration = Duration::from_secs(5);

impl Slot {
    pub fn new(number: usize, shape: Shape) -> Slot {
        let called = format!("soak{}-{number}", std::process::id());
        let (name, may_be) = (format!("r{number}"), vec![None]);
        let (was, names, went) = (Vec::new(), 0, None);
        Slot { name, called, shape, machine: None, may_be, was, names, went }
    }

    /// Whether nothing is known of it but what is so.
    pub fn is_known(&self) -> bool {
        self.may_be.len() == 1
    }

    /// What it most likely is.
    pub fn row(&self) -> Option<Row> {
        self.may_be.last().copied().flatten()
    }

    /// It is this now, for all that was said.
    pub fn is_now(&mut self, row: Option<Row>, is_durable: bool) {
        if is_durable {
            self.was.clear();
        } else {
            self.was.append(&mut self.may_be);
        }
        self.may_be = vec![row];
    }

    /// It may be this now, or be as it was.
    pub fn may_be_now(&mut self, row: Option<Row>) {
        self.may_be.push(row);
    }

    /// The daemon died: what was not written down may be as it was before.
    pub fn forgot(&mut self) {
        let mut before = std::mem::take(&mut self.was);
        before.append(&mut self.may_be);
        self.may_be = before;
    }

    /// How its machine is found.
    pub fn binding(&self) -> String {
        match &self.machine {
            Some(machine) if self.shape.vcpus == 0 => format!("pid:{}", machine.pid()),
            _ => format!("qemu:{}", self.called),
        }
    }

    /// Its machine goes, and with a machine that is known by its number its reservation.
    pub fn end_machine(&mut self) {
        self.machine = None;
        if self.shape.vcpus == 0 {
            self.was.clear();
            self.may_be = vec![None];
            self.went = Some(Instant::now());
        }
    }

    /// Whether the reservation of a process that has just ended may still be there.
    pub fn may_be_unnoticed(&self) -> bool {
        self.went.is_some_and(|went| went.elapsed() < NOTICED)
    }
}
