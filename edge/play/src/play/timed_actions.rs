//! Actions of a scenario during its live run: domains join and leave, and vCPUs change. A join or
//! change is refused if, after it, deadline threads of other programs could make vCPUs miss
//! deadlines.

use slackline_host::policy::Values;
use slackline_live::session::{JoinId, RequestError};
use slackline_scenario::{Action, ActionKind, Domain};
use slackline_units::{CpuSet, Time, VcpuId};

use super::{LiveError, Play, of_request};

impl Play<'_> {
    /// Carries out an action. If admission refuses the action, adds the refusal to the results of
    /// the run.
    pub(super) fn act(&mut self, action: Action) -> Result<(), LiveError> {
        let Action { at, vcpu, what } = action;
        let domain = self.scenario.domain_of(vcpu);
        match what {
            // A domain joins and leaves as a whole.
            ActionKind::Join | ActionKind::Leave if vcpu.number() > 0 => return Ok(()),
            ActionKind::Join => return self.join(at, domain),
            ActionKind::Leave => {
                self.leave(&domain.vcpus)?;
                self.note_overdue(&domain.vcpus);
                self.processes.end(&domain.vcpus);
                return Ok(());
            }
            ActionKind::Change(..) | ActionKind::Pause | ActionKind::Release => {}
        }
        // A vCPU that has ended by itself is not changed any more.
        let Some(&id) = self.ids.get(&vcpu) else { return Ok(()) };
        let done = match what {
            ActionKind::Change(share, cpus) => self.change(id, (share, cpus), at),
            ActionKind::Pause => self.session.pause(id, at),
            ActionKind::Release => self.session.resume(id, at),
            ActionKind::Join | ActionKind::Leave => Ok(()),
        };
        match done {
            Err(RequestError::Declined(error)) => {
                self.outcome.declined.push((at, vcpu, error.to_string()));
            }
            // The session has ended. `close` reports the reason.
            Err(RequestError::Over) => {}
            result => result.map_err(|error| of_request(domain, error))?,
        }
        Ok(())
    }

    /// Changes the share of a vCPU, its CPUs or both. A parameter that is `None` stays as it is. If
    /// deadline threads conflict with the change, the vCPU gets its former share and CPUs back.
    fn change(
        &mut self,
        id: JoinId,
        (share, cpus): (Option<Values>, Option<CpuSet>),
        at: Time,
    ) -> Result<(), RequestError> {
        let before = self.session.members().find(|member| member.id == id);
        let before = before.map(|member| (member.share.clone(), member.cpus));
        match (share, cpus) {
            (Some(share), cpus) => self.session.change_terms(id, share, cpus, at)?,
            (None, Some(cpus)) => self.session.move_to(id, cpus, at)?,
            (None, None) => return Ok(()),
        }
        if self.is_in_conflict(id.vcpu(), at)
            && let Some((share, cpus)) = before
        {
            let cpus = cpus.unwrap_or_else(|| CpuSet::first_n(self.scenario.host.cpus));
            self.session.change_terms(id, share, Some(cpus), at)?;
        }
        Ok(())
    }

    /// Joins the vCPUs of a domain that starts during the run.
    fn join(&mut self, at: Time, domain: &Domain) -> Result<(), LiveError> {
        let Some(prepared) = self.prepare_unless_done(domain)? else { return Ok(()) };
        let mut joined = self.session.join_prepared(vec![prepared])?;
        match joined.pop().expect("the session answers for the one group") {
            Ok(ids) => {
                self.ids.extend(domain.vcpus.iter().copied().zip(ids));
                if self.is_in_conflict(domain.vcpus[0], at) {
                    self.leave(&domain.vcpus)?;
                    self.processes.end(&domain.vcpus);
                    return Ok(());
                }
                self.hear(domain)?;
                self.let_go_on(domain, at)?;
            }
            Err(error) => match error.error {
                RequestError::Declined(error) => {
                    self.outcome.declined.push((at, domain.vcpus[0], error.to_string()));
                    self.processes.end(&domain.vcpus);
                }
                error => return Err(of_request(domain, error)),
            },
        }
        Ok(())
    }

    /// Returns true if, after the join or change of `vcpu`, deadline threads of other programs
    /// could make vCPUs miss deadlines. In that case adds a refusal to the results of the run.
    fn is_in_conflict(&mut self, vcpu: VcpuId, at: Time) -> bool {
        let checked = self.session.check_deadline_threads(&self.deadline_threads);
        let refused = checked.err().map(|found| (at, vcpu, found.to_string()));
        let is_refused = refused.is_some();
        self.outcome.declined.extend(refused);
        is_refused
    }
}
