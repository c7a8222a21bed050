//! Changed VMs whose demand the recording does not show, because they had too little CPU time.

use crate::forecast::Forecast;
use crate::model::Model;
use crate::recording::Recording;

/// Smallest part of its jobs that a vCPU with a backlog did not complete within a period, as a
/// divisor of their number.
const PART_OF_JOBS: usize = 10;

/// Changed VM whose demand the recording does not show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Name of the VM.
    pub vm: String,
    /// Jobs that took longer than a period, and all jobs that ended. `None` if a vCPU of the VM
    /// never or hardly blocked, so that its demand is unknown.
    pub late_jobs: Option<(usize, usize)>,
}

impl Model {
    /// Returns the VMs whose parameters were changed and whose demand the recording does not show:
    ///
    /// - A vCPU never or hardly blocked, and is predicted to receive more CPU time. The simulation
    ///   assumes that it computes forever.
    /// - A vCPU with a hard limit completed a tenth of its jobs or more in more than one period.
    ///   Jobs that became ready meanwhile are part of the recorded job.
    #[must_use]
    pub fn backlogs(&self, recording: &Recording, forecast: &Forecast) -> Vec<Backlog> {
        let vms = self.domains.iter().filter(|it| !it.is_service && it.left_out.is_none());
        let backlogs = vms.filter_map(|domain| {
            let changed = domain.vcpus.iter().filter(|it| it.is_changed && !it.is_rotated);
            let stays = changed.flat_map(|vcpu| &vcpu.stays);
            let stays: Vec<_> = stays.map(|&stay| &recording.demand.vcpus[stay]).collect();
            let grows = |name: &str| {
                let row = forecast.rows.iter().find(|row| row.name == name)?;
                let (_, most) = row.interval(|it| Some(it.share_ppm))?;
                Some(most > row.now.as_ref()?.share_ppm + row.tolerance(self).share_ppm())
            };
            if stays.iter().any(|it| it.is_endless() && grows(&it.name) == Some(true)) {
                return Some(Backlog { vm: domain.name.clone(), late_jobs: None });
            }
            let mut late = (0, 0);
            for stay in stays.iter().filter(|it| !it.is_endless()) {
                let Some(reserved) = stay.reserved.filter(|it| it.exact) else { continue };
                let Some(period) = reserved.reservation.map(|it| it.period()) else { continue };
                let ended = stay.jobs.iter().filter(|job| job.has_ended());
                late.1 += ended.clone().count();
                late.0 += ended.filter(|job| job.blocked.since(job.ready) > period).count();
            }
            let is_behind = late.0 > 0 && late.0 >= late.1 / PART_OF_JOBS;
            is_behind.then(|| Backlog { vm: domain.name.clone(), late_jobs: Some(late) })
        });
        backlogs.collect()
    }
}
