//! Pausing and resuming members (vCPUs that the session schedules). A member is paused at the
//! request of a user, or stopped for a while because it has escaped too often.

use slackline_units::Time;

use super::ids::JoinId;
use super::{RequestError, Session};
use crate::live_host::PauseReason;

impl Session {
    /// Pauses a member, so that it does not run until it is resumed. The member keeps its
    /// reservation. Nothing changes if it is already paused. A contested member cannot be paused
    /// while the session does not schedule it.
    ///
    /// # Errors
    /// If the member cannot be paused. The error has the reason.
    pub fn pause(&mut self, id: JoinId, due: Time) -> Result<(), RequestError> {
        let changes = &self.row(id)?.changes;
        if let Some(found) = changes.contested().filter(|_| changes.is_left) {
            return Err(RequestError::Contested { finding: Box::new(found.clone()) });
        }
        self.pause_threads(id, PauseReason::Requested, due)?;
        self.row_mut(id)?.is_paused = true;
        Ok(())
    }

    pub(super) fn pause_threads(
        &mut self,
        id: JoinId,
        reason: PauseReason,
        due: Time,
    ) -> Result<(), RequestError> {
        let had_stop = self.row(id)?.has_stop;
        self.add_stop(id)?;
        if let Err(error) = self.host.pause(id.vcpu(), reason, due) {
            if !had_stop {
                self.drop_stop(id);
            }
            return Err(self.not_done(error));
        }
        self.poke();
        Ok(())
    }

    /// Resumes a paused member, and schedules a contested member again. A member that is neither
    /// paused nor contested is not changed.
    ///
    /// # Errors
    /// If the member cannot be resumed. The error has the reason.
    pub fn resume(&mut self, id: JoinId, due: Time) -> Result<(), RequestError> {
        self.row(id)?;
        self.take_back_if_possible(id)?;
        self.resume_threads(id, due)?;
        self.row_mut(id)?.is_paused = false;
        Ok(())
    }

    pub(super) fn resume_threads(&mut self, id: JoinId, due: Time) -> Result<(), RequestError> {
        let resumed = self.host.resume(id.vcpu(), due);
        resumed.map_err(|error| self.not_done(error))?;
        let row = self.row(id)?;
        if !row.is_exact {
            self.drop_stop(id);
        }
        self.poke();
        Ok(())
    }
}
