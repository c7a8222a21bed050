//! Changes of the parameters and CPUs of a session's member (a vCPU that the session schedules).

use slackline_host::VcpuTerms;
use slackline_host::policy::Values;
use slackline_units::{CpuSet, Time};

use super::ids::JoinId;
use super::{RequestError, Session};
use crate::live_host::NotDone;

impl Session {
    /// Changes the share of a member. The change takes effect immediately. `due` is the time at
    /// which the change should have taken effect.
    ///
    /// # Errors
    /// If the share cannot be changed. The old share stays in force, and the error has the reason.
    pub fn change(&mut self, id: JoinId, share: Values, due: Time) -> Result<(), RequestError> {
        self.change_terms(id, share, None, due)
    }

    /// Restricts a member to these CPUs of the session. The restriction takes effect immediately
    /// and also holds while the member uses slack. `due` is the time at which the change should
    /// have taken effect.
    ///
    /// # Errors
    /// If the CPUs cannot be changed. The old CPUs stay in force, and the error has the reason.
    pub fn move_to(&mut self, id: JoinId, cpus: CpuSet, due: Time) -> Result<(), RequestError> {
        let share = self.row(id)?.share.clone();
        self.change_terms(id, share, Some(cpus), due)
    }

    /// Changes both the share and the CPUs of a member in one step. If `cpus` is `None`, only the
    /// share is changed.
    ///
    /// # Errors
    /// If share or CPUs cannot be changed. Both stay as they were, and the error has the reason.
    pub fn change_terms(
        &mut self,
        id: JoinId,
        share: Values,
        cpus: Option<CpuSet>,
        due: Time,
    ) -> Result<(), RequestError> {
        self.check_cpus(cpus)?;
        self.check_watched(&share)?;
        let [before, after] = [&self.row(id)?.share, &share].map(|share| self.hard_limit(share));
        self.host.notice_use_of(id.vcpu(), after).map_err(|error| self.not_done(error))?;
        let changed = self.change_noticed(id, share, cpus, due);
        if changed.is_err() {
            let _ = self.host.notice_use_of(id.vcpu(), before);
        }
        changed
    }

    fn change_noticed(
        &mut self,
        id: JoinId,
        share: Values,
        cpus: Option<CpuSet>,
        due: Time,
    ) -> Result<(), RequestError> {
        let row = self.row(id)?;
        let [limit_before, limit] = [&row.share, &share].map(|share| self.hard_limit(share));
        let (will_be_exact, had_stop) = (limit.is_some(), row.has_stop);
        let threads = row.threads.clone();
        let promises = [self.most_of(id), self.most(id, &share)];
        // A larger budget is granted before the share changes, a smaller budget afterwards.
        self.fence.regrant(&threads, &promises)?;
        if will_be_exact && let Err(error) = self.add_stop(id) {
            let _ = self.fence.regrant(&threads, &promises[..1]);
            return Err(error);
        }
        let changed = self.host.set_hard_limit(id.vcpu(), limit).map_err(NotDone::from);
        let terms = VcpuTerms { share: &share, cpus };
        if let Err(error) = changed.and_then(|()| self.host.change(id.vcpu(), terms, due)) {
            // If `set_hard_limit` fails, the host has ended, and the first error is the reason.
            let _ = self.host.set_hard_limit(id.vcpu(), limit_before);
            if !had_stop {
                self.drop_stop(id);
            }
            let _ = self.fence.regrant(&threads, &promises[..1]);
            return Err(self.not_done(error));
        }
        // If this fails, the budget stays too large and is reduced at the next change.
        let _ = self.fence.regrant(&threads, &promises[1..]);
        let row = self.row_mut(id)?;
        row.share = share;
        row.is_exact = will_be_exact;
        row.cpus = cpus.or(row.cpus);
        self.poke();
        Ok(())
    }
}
