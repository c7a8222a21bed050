//! Changed VMs whose demand the recording does not show, because they had too little CPU time.

use crate::forecast::Forecast;
use crate::model::Model;
use crate::recording::Recording;

/// Divisor of the number of a VM's ended jobs. The VM has a backlog if at least this part of these
/// jobs took longer than a period.
const PART_OF_JOBS: usize = 10;

/// Changed VM whose demand the recording does not show, because the VM had too little CPU time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Name of the VM.
    pub vm: String,
    /// Number of jobs that took longer than a period, and number of all jobs that ended. `None` if
    /// a vCPU of the VM never or hardly blocked, so that its demand is unknown.
    pub late_jobs: Option<(usize, usize)>,
}

impl Model {
    /// Returns the VMs whose parameters were changed and whose demand the recording does not show.
    /// A VM is returned in two cases:
    ///
    /// - A vCPU of the VM counts as CPU-bound and is predicted to receive more CPU time. The
    ///   simulation assumes that the vCPU computes forever.
    /// - At least a tenth of the jobs of the VM's vCPUs with hard limits took longer than a period.
    ///   Jobs that became ready meanwhile are recorded as parts of these jobs.
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
