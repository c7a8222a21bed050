//! Reading the events of CPUs.

use slackline_units::{CpuId, CpuSet};

use super::decider::Decider;
use super::view::{CpuView, PassEvents};
use super::{LiveHost, LiveHostError};

impl LiveHost {
    /// Reads the events of a CPU. If threads that are pinned to other CPUs have woken on this CPU,
    /// forwards their wake-ups to the views of those CPUs.
    pub(super) fn drain_view(&self, view: &CpuView) -> Result<PassEvents, LiveHostError> {
        self.drain_view_by(view, None)
    }

    /// Reads the events of unmanaged CPUs and adds them to `news` in order of time. Leaves out
    /// unmanaged CPUs that no process tree of the pass's CPU may use.
    ///
    /// The listener also reads these events, but often only after the timeslice. That would be too
    /// late to choose the next threads by their CPU time.
    pub(super) fn drain_beside(
        &self,
        decider: &Decider,
        news: &mut PassEvents,
    ) -> Result<(), LiveHostError> {
        let beside = news.cpu.map_or(CpuSet::NONE, |cpu| decider.cpus_beside(cpu));
        if beside.is_empty() {
            return Ok(());
        }
        let unmanaged = self.views.iter().skip(self.calls.len());
        for view in unmanaged.filter(|view| beside.contains(view.real)) {
            let more = self.drain_view_by(view, news.cpu)?;
            news.sightings.extend(more.sightings);
            news.used.extend(more.used);
        }
        news.sightings.sort_by_key(|sighting| sighting.at);
        Ok(())
    }

    /// Reads the events of a CPU, as [`LiveHost::drain_view`] does. Wake-ups of threads that are
    /// pinned to the managed CPU `by` are returned after all other events, and not forwarded. So
    /// the dispatcher of `by` can call this function without waking itself.
    fn drain_view_by(
        &self,
        view: &CpuView,
        by: Option<CpuId>,
    ) -> Result<PassEvents, LiveHostError> {
        let mut news = view.drain_events(self.clock.now())?;
        let mut concerned = CpuSet::NONE;
        for (cpu, sighting) in std::mem::take(&mut news.elsewhere) {
            if by == Some(cpu) {
                news.sightings.push(sighting);
                continue;
            }
            self.views[cpu.index()].tell(sighting);
            concerned.insert(cpu);
        }
        self.call(concerned);
        for other in self.views.iter().filter(|other| !std::ptr::eq(*other, view)) {
            news.born.iter().for_each(|thread| other.add(thread));
            news.gone.iter().for_each(|thread| other.remove_this(thread));
        }
        Ok(news)
    }
}

impl Decider {
    /// Returns the kernel's numbers of the other CPUs that vCPUs on `cpu` may use simultaneously
    /// with `cpu`. Only vCPUs that are pinned to `cpu` or to no CPU are included.
    fn cpus_beside(&self, cpu: CpuId) -> CpuSet {
        let mut cpus = CpuSet::NONE;
        for vcpu in self.wide.iter().filter_map(|&slot| self.vcpus[slot].as_ref()) {
            let Some(wide) = &vcpu.wide else { continue };
            if vcpu.home.get().is_none_or(|home| home == cpu) {
                cpus.add(wide);
            }
        }
        cpus.remove(self.pcpus.all[cpu.index()].real);
        cpus
    }
}
