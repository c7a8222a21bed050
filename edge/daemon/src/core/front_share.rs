//! What the front is promised where no CPU is left for it.
//!
//! Where a CPU is not scheduled, the front lives there, as an ordinary process. Where all are, it
//! would wait behind everybody's promises, and then among all ordinary threads for what is left. It
//! is never real-time by itself, since strangers decide how much it has to do: it holds a
//! reservation like anybody else's, which admission counts and which it cannot exceed.

use slackline_linux::sys::Tid;
use slackline_live::session::{Called, Request, Who};
use slackline_service::{NO_RESERVATION, WorldError};
use slackline_units::Span;

use super::scheduler::{Scheduler, declined, slice_in};

/// How long a request waits at most until it is looked at.
const PERIOD: Span = Span::from_ms(2);

/// About what two requests over the socket take.
const SLICE: Span = Span::from_us(100);

impl Scheduler {
    /// Promises the front its share, in place of the one before it.
    ///
    /// # Errors
    /// Why it is not promised: then it runs as any ordinary process.
    pub(super) fn seat_front(&mut self, pid: Tid) -> Result<(), WorldError> {
        if let Some(before) = self.front.take() {
            // That one may have ended, and be gone.
            let _ = self.session.leave(before);
        }
        let request = Request {
            who: Who::Tree(pid),
            name: "front".into(),
            domain: "slackline".into(),
            called: Called::As(NO_RESERVATION, 0),
            share: slice_in(SLICE, PERIOD),
            cpus: None,
        };
        let ids = self.session.join(vec![request]).map_err(declined)?;
        self.front = ids.first().copied();
        Ok(())
    }
}
