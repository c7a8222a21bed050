//! CPU ready of all VMs, from the waiting times that the daemon serves as metrics.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Start of a line of the metric for the seconds in which a vCPU was runnable and did not run.
const WAIT_SECONDS: &str = "slackline_vcpu_wait_seconds_total{";

/// Time over which CPU ready is measured. The web page uses the same time.
const OVER: Duration = Duration::from_secs(5);

/// Total waiting time of the vCPUs of a VM, and the number of these vCPUs, by the VM's name.
type WaitSums = BTreeMap<String, (Duration, u32)>;

/// Samples of the waiting times of all VMs, oldest first.
#[derive(Debug, Default)]
pub(super) struct WaitSamples(VecDeque<(Instant, WaitSums)>);

impl WaitSamples {
    /// Adds the waiting times in the text of the daemon's metrics at the time `now`. Drops samples
    /// that are no longer needed.
    pub(super) fn add(&mut self, now: Instant, metrics: &str) {
        self.0.push_back((now, sums(metrics)));
        while self.0.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= OVER) {
            self.0.pop_front();
        }
    }

    /// Returns the CPU ready of a VM over the last 5 s, in millionths of this time, as the mean of
    /// the VM's vCPUs. `None` until there are two samples of the VM.
    pub(super) fn ready_ppm(&self, name: &str) -> Option<u64> {
        let ((from, before), (to, after)) = (self.0.front()?, self.0.back()?);
        let ((before, _), (after, vcpus)) = (before.get(name)?, after.get(name)?);
        let waited = after.saturating_sub(*before).as_nanos() * 1_000_000;
        let length = to.duration_since(*from).as_nanos() * u128::from(*vcpus);
        u64::try_from(waited.checked_div(length)?).ok()
    }
}

/// Reads the waiting times in the text of the daemon's metrics. Lines of another form are skipped.
fn sums(metrics: &str) -> WaitSums {
    let mut sums = WaitSums::new();
    for line in metrics.lines().filter_map(|line| line.strip_prefix(WAIT_SECONDS)) {
        let waited = line.rsplit_once(' ').and_then(|(_, value)| value.parse::<f64>().ok());
        let waited = waited.and_then(|value| Duration::try_from_secs_f64(value).ok());
        // The name of a reservation has no quotes.
        let name = line.split_once("reservation=\"").and_then(|(_, rest)| rest.split_once('"'));
        if let (Some(waited), Some((name, _))) = (waited, name) {
            let (sum, vcpus) = sums.entry(name.to_owned()).or_default();
            (*sum, *vcpus) = (sum.saturating_add(waited), *vcpus + 1);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(waited: [f64; 3]) -> String {
        let [one, two, db] = waited;
        format!(
            "# TYPE slackline_vcpu_wait_seconds counter\n\
             slackline_vcpu_wait_seconds_total{{reservation=\"web\",vcpu=\"0\"}} {one}\n\
             slackline_vcpu_wait_seconds_total{{reservation=\"web\",vcpu=\"1\"}} {two}\n\
             slackline_vcpu_cpu_seconds_total{{reservation=\"web\",vcpu=\"1\"}} 99\n\
             slackline_vcpu_wait_seconds_total{{reservation=\"db\",vcpu=\"0\"}} {db}\n\
             slackline_vcpu_wait_seconds_total{{reservation=\"bad\",vcpu=\"0\"}} NaN\n"
        )
    }

    #[test]
    fn cpu_ready_of_each_vm_is_mean_over_its_vcpus() {
        let (mut samples, begun) = (WaitSamples::default(), Instant::now());
        let at = |second: u64| begun + Duration::from_secs(second);
        samples.add(at(0), &metrics([1.0, 2.0, 0.0]));
        assert_eq!(samples.ready_ppm("web"), None);
        samples.add(at(2), &metrics([1.5, 2.5, 1e-6]));
        assert_eq!(samples.ready_ppm("web"), Some(250_000));
        assert_eq!((samples.ready_ppm("db"), samples.ready_ppm("bad")), (Some(0), None));
        // Only the last 5 s count, also after a longer pause.
        samples.add(at(7), &metrics([1.5, 2.5, 1.0]));
        assert_eq!((samples.ready_ppm("web"), samples.ready_ppm("db")), (Some(0), Some(199_999)));
        // The counters start at zero again when the daemon restarts.
        samples.add(at(60), &metrics([0.0, 0.0, 0.5]));
        assert_eq!((samples.ready_ppm("web"), samples.ready_ppm("db")), (Some(0), Some(0)));
        assert_eq!(samples.0.len(), 2);
    }
}
