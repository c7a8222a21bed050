//! Slackline's own dispatcher: an exact reservation under `edf` that repays what its stops are late
//! by, so that the share is exact over time. Acts on the whole process.

use slackline_host::policy::{FieldError, Given, Spec, Values, find};
use slackline_trace::Entry;
use slackline_units::{CpuId, CpuShare, Reservation, Span};

use super::LimitError;
use slackline_fence::KeeperCommand;
use slackline_linux::sys::Tid;
use slackline_linux::thread::ThreadError;
use slackline_live::session::{Called, JoinId, Options, Request, Session, Who};

/// What stays for everybody else, unless the target itself is so large that less is left.
const RESERVE: CpuShare = CpuShare::from_ppm(50_000);

/// The dispatcher at work.
#[derive(Debug)]
pub(super) struct Running {
    session: Session,
    process: Tid,
    id: JoinId,
    /// Nobody wants them; kept so that there is always room for them.
    records: Vec<Entry>,
}

pub(super) fn apply(
    cpu: CpuId,
    process: Tid,
    target: Reservation,
    keeper: KeeperCommand,
) -> Result<Running, LimitError> {
    let policy = find("edf").expect("a policy of ours");
    let reserve = RESERVE.min(CpuShare::ONE.less(target.share())).to_string();
    let values =
        Values::read(policy.policy_fields, [("reserve", Given::Text(&reserve))].into_iter());
    let values = values.expect("its own parameters");
    let share = share(policy, target).expect("what every reservation can be written as");
    // Nobody else is to be admitted, and what looks take of the CPU is what is being measured.
    let dispatch = Some(Span::ZERO);
    let cpus = vec![cpu];
    let (origin, wall_clock) = (None, None);
    let owned = None;
    let options = Options { cpus, owned, policy, values, keeper, dispatch, origin, wall_clock };
    let mut session = Session::open(&options)?;
    let (who, name) = (Who::Process(process), format!("pid {process}"));
    let request =
        Request { who, domain: name.clone(), name, called: Called::Anything, share, cpus: None };
    let joined = session.join(vec![request]).map_err(|error| LimitError::NotJoined(error.error))?;
    Ok(Running { session, process, id: joined[0], records: Vec::new() })
}

fn share(policy: &'static Spec, target: Reservation) -> Result<Values, FieldError> {
    let (slice, period) = (target.slice().to_string(), target.period().to_string());
    let given = [
        ("slice", Given::Text(&slice)),
        ("period", Given::Text(&period)),
        ("exact", Given::Flag(true)),
        ("overrun", Given::Text("repay")),
    ];
    Values::read(policy.share_fields, given.into_iter())
}

impl Running {
    /// # Errors
    /// Why it has ended.
    pub(super) fn check(&mut self) -> Result<(), LimitError> {
        let seen = self.session.poll(&mut self.records)?;
        if seen.ended.contains(&self.id) {
            return Err(ThreadError::Gone { pid: self.process, tid: self.process }.into());
        }
        Ok(())
    }

    /// Takes the limit off.
    ///
    /// # Errors
    /// Why it had ended, or what could not be given back.
    pub(super) fn end(mut self) -> Result<(), LimitError> {
        Ok(self.session.close(&mut self.records)?)
    }
}
