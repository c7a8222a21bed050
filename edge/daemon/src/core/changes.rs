//! Changes by other programs, or by a VM's own threads, to the scheduling of threads that the
//! daemon schedules. Examples are another class, priority or affinity. The session undoes or
//! accepts each change, and this module logs it.

use slackline_live::session::{ForeignChange, SessionEvents};
use slackline_service::{Input, State};

use super::Core;

/// Maximum length of the description of a change in the log, in characters.
const LONGEST_FINDING: usize = 400;

impl Core {
    /// Reports to the service each change to a thread's scheduling that the daemon did not make.
    pub(super) fn hear_of_changes(&mut self, seen: &SessionEvents) {
        for (id, finding) in &seen.meddled {
            // The front process has a share of a CPU, but no reservation in the service.
            let Some((domain, _)) = self.host.scheduler.place_of(*id) else { continue };
            self.host.meddled += 1;
            self.step(Input::Meddled { domain, what: told(finding) });
        }
        for (id, finding) in &seen.contested {
            let Some((domain, place)) = self.host.scheduler.place_of(*id) else { continue };
            self.host.count_history(domain);
            self.host.begin_numbers(domain);
            self.step(Input::Contested { domain, place, what: told(finding) });
            self.host.history.contest(domain, true);
        }
        for id in &seen.settled {
            let Some((domain, place)) = self.host.scheduler.place_of(*id) else { continue };
            self.host.count_history(domain);
            self.host.begin_numbers(domain);
            self.step(Input::Settled { domain, place });
            let mut all = self.service.listed();
            let listed = all.find(|(other, _)| *other == domain);
            let is_contested = listed.is_some_and(|(_, listed)| listed.state == State::Contested);
            drop(all);
            self.host.history.contest(domain, is_contested);
        }
    }
}

/// Returns the description of a change that the daemon did not make, cut to [`LONGEST_FINDING`]
/// characters.
fn told(finding: &ForeignChange) -> String {
    finding.to_string().chars().take(LONGEST_FINDING).collect()
}
