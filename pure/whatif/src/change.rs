//! Last change of a VM during a recording. If the [gate](crate::Gate) refuses a recording, the
//! error names this change: it is a likely reason why the simulation does not repeat the recording.

use std::fmt;

use slackline_demand::{ChangeKind, RecordedReservation, VcpuDemand};
use slackline_units::{Span, Time};

use crate::model::ARRIVED;
use crate::recording::Recording;
use crate::{other_names, stays};

/// Longest time by which a recording of the last N seconds can begin too early, before these N
/// seconds. The daemon stores its recording in pieces of this length.
const EARLIER: Span = Span::from_ms(250);

/// Last change of a VM during a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastChange {
    /// Name of the VM. `None` if the reader may not see the VM.
    pub vm: Option<String>,
    /// Kind of the change, such as `was changed from 2ms/10ms to 3ms/10ms`.
    what: String,
    /// Time from the start of the recording to the change.
    after_begin: Span,
    /// Time from the change to the end of the recording.
    before_end: Span,
}

impl LastChange {
    /// Returns the last change of a VM: new parameters, a pause or its end, an arrival or a
    /// departure. `None` if no VM changed during the recording.
    pub(crate) fn of(recording: &Recording) -> Option<LastChange> {
        let stays = recording.demand.vcpus.iter();
        let vms = stays.filter(|stay| !other_names::is_of_service(stay.vcpu, stays::named(stay)));
        let all = vms.flat_map(|stay| {
            changes(stay).into_iter().map(move |(at, what)| (at, &stay.domain, what))
        });
        // The first records of a recording describe the VMs that are there already.
        let all = all.filter(|(at, ..)| *at > recording.begin + ARRIVED);
        let (at, vm, what) = all.max_by_key(|(at, ..)| *at)?;
        let end = Time::START + recording.demand.length;
        Some(LastChange {
            vm: Some(vm.clone()),
            what,
            after_begin: at.since(recording.begin),
            before_end: end.since(at),
        })
    }

    /// Returns this change without the name of the VM and without parameters.
    #[must_use]
    pub fn hidden(&self) -> LastChange {
        let LastChange { after_begin, before_end, .. } = *self;
        LastChange { vm: None, what: "changed".into(), after_begin, before_end }
    }

    /// Returns the time to wait, in whole seconds, until a new recording of the same length does
    /// not contain this change any more.
    #[must_use]
    pub fn gone_after(&self) -> Span {
        Span::from_secs((self.after_begin + EARLIER).ns() / 1_000_000_000 + 1)
    }
}

/// Returns the changes during one stay of a vCPU, in order of time.
fn changes(stay: &VcpuDemand) -> Vec<(Time, String)> {
    let mut all = vec![(stay.joined, "came".to_owned())];
    let mut reserved = stay.reserved;
    for change in &stay.changes {
        let what = match &change.what {
            // If the parameters contain a reservation, it is the next change in the list.
            ChangeKind::Terms(_) => "got new parameters".to_owned(),
            ChangeKind::Reserved(new) => match reserved.replace(*new) {
                Some(old) if old == *new => continue,
                old => format!("was changed from {} to {}", in_words(old), in_words(Some(*new))),
            },
            ChangeKind::Paused => "was paused".to_owned(),
            ChangeKind::Resumed => "was resumed".to_owned(),
        };
        all.push((change.at, what));
    }
    all.extend(stay.left.map(|at| (at, "left".to_owned())));
    all
}

/// Formats a reservation, such as `2ms/10ms exact`.
fn in_words(reserved: Option<RecordedReservation>) -> String {
    let Some(recorded) = reserved else { return "no reservation".into() };
    let Some(reservation) = recorded.reservation else { return "no reservation".into() };
    let exact = if recorded.exact { " exact" } else { "" };
    let phase = recorded.phase.map(|phase| format!(" in phase {phase}")).unwrap_or_default();
    format!("{reservation}{exact}{phase}")
}

impl fmt::Display for LastChange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vm = self.vm.as_deref().unwrap_or("another VM");
        let tenths = Span::from_ms((self.before_end.ns() + 50_000_000) / 100_000_000 * 100);
        write!(out, "{vm} {}, {tenths} before the end of the recording", self.what)
    }
}
