//! Limit by Slackline's dispatcher: a reservation under `edf` with a hard limit. Overrun is
//! deducted from later slices, so the share is exact over time. The limit applies to all threads of
//! the process together.

use slackline_host::policy::{FieldError, RawValue, Spec, Values, find};
use slackline_trace::Entry;
use slackline_units::{CpuId, CpuShare, Reservation, Span};

use super::LimitError;
use slackline_fence::KeeperCommand;
use slackline_linux::sys::Tid;
use slackline_linux::thread::ThreadError;
use slackline_live::session::{JoinId, JoinTarget, Options, Request, RequestedId, Session};

/// Share of the CPU that is never reserved, if the requested limit leaves that much of the CPU.
/// Otherwise the unreserved share is one CPU less the limit.
const RESERVE: CpuShare = CpuShare::from_ppm(50_000);

/// A limit that Slackline's own dispatcher enforces.
#[derive(Debug)]
pub(super) struct OwnLimit {
    session: Session,
    process: Tid,
    id: JoinId,
    /// Records of the session. They are not used, but the vector is kept so that its memory is used
    /// again.
    records: Vec<Entry>,
}

pub(super) fn apply(
    cpu: CpuId,
    process: Tid,
    target: Reservation,
    keeper: KeeperCommand,
) -> Result<OwnLimit, LimitError> {
    let policy = find("edf").expect("the policy `edf` exists");
    let reserve = RESERVE.min(CpuShare::ONE.less(target.share())).to_string();
    let values =
        Values::read(policy.policy_fields, [("reserve", RawValue::Text(&reserve))].into_iter());
    let values = values.expect("the parameters are valid for `edf`");
    let share = share(policy, target).expect("every reservation is a valid share");
    // Nothing else is admitted, and the CPU time of the dispatcher is part of the measurement.
    let dispatch = Some(Span::ZERO);
    let cpus = vec![cpu];
    let (origin, wall_clock) = (None, None);
    let owned = None;
    let options = Options { cpus, owned, policy, values, keeper, dispatch, origin, wall_clock };
    let mut session = Session::open(&options)?;
    let (who, name) = (JoinTarget::Process(process), format!("pid {process}"));
    let request = Request {
        who,
        domain: name.clone(),
        name,
        called: RequestedId::Anything,
        share,
        cpus: None,
    };
    let joined = session.join(vec![request]).map_err(|error| LimitError::NotJoined(error.error))?;
    Ok(OwnLimit { session, process, id: joined[0], records: Vec::new() })
}

fn share(policy: &'static Spec, target: Reservation) -> Result<Values, FieldError> {
    let (slice, period) = (target.slice().to_string(), target.period().to_string());
    let given = [
        ("slice", RawValue::Text(&slice)),
        ("period", RawValue::Text(&period)),
        ("exact", RawValue::Flag(true)),
        ("overrun", RawValue::Text("repay")),
    ];
    Values::read(policy.share_fields, given.into_iter())
}

impl OwnLimit {
    /// Checks that the limit is still enforced.
    ///
    /// # Errors
    ///
    /// If the process or the dispatcher has ended.
    pub(super) fn check(&mut self) -> Result<(), LimitError> {
        let seen = self.session.poll(&mut self.records)?;
        if seen.ended.contains(&self.id) {
            return Err(ThreadError::Gone { pid: self.process, tid: self.process }.into());
        }
        Ok(())
    }

    /// Removes the limit.
    ///
    /// # Errors
    /// If the dispatcher had ended before, or a change could not be undone.
    pub(super) fn end(mut self) -> Result<(), LimitError> {
        Ok(self.session.close(&mut self.records)?)
    }
}
