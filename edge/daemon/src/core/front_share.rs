//! Reservation of the front process on a host where all CPUs are scheduled.
//!
//! If the daemon leaves a CPU unmanaged, the front process runs there as an ordinary process. If
//! the daemon schedules all CPUs, an ordinary front process would run only after all reservations,
//! in competition with all ordinary threads. A real-time front process would be dangerous, since
//! clients decide how much work it has. So the front process gets a reservation with a hard limit,
//! which admission counts like any other reservation.

use slackline_linux::sys::Tid;
use slackline_live::session::{JoinTarget, Request, RequestedId};
use slackline_service::{NO_RESERVATION, WorldError};
use slackline_units::Span;

use super::scheduler::{Scheduler, declined};
use super::shares::{FRONT_PERIOD, slice_in};

/// Name of the domain of the front process in recordings. No reservation can have this name,
/// because the names of reservations are in lower case.
const DOMAIN: &str = "Slackline";

/// Slice of the front process's reservation. It is about the CPU time for two requests over the
/// socket.
const SLICE: Span = Span::from_us(100);

impl Scheduler {
    /// Reserves CPU time for the front process `pid`, and drops the reservation of the previous
    /// front process.
    ///
    /// # Errors
    /// If the reservation is refused. The front process then runs as an ordinary process.
    pub(super) fn seat_front(&mut self, pid: Tid) -> Result<(), WorldError> {
        if let Some(before) = self.front.take() {
            // This fails if the session has already removed the previous front process, because
            // it has ended.
            let _ = self.session.leave(before);
        }
        let request = Request {
            who: JoinTarget::Tree(pid),
            name: "front".into(),
            domain: DOMAIN.into(),
            called: RequestedId::As(NO_RESERVATION, 0),
            share: slice_in(SLICE, FRONT_PERIOD),
            cpus: None,
        };
        let ids = self.session.join(vec![request]).map_err(declined)?;
        self.front = ids.first().copied();
        Ok(())
    }
}
