//! Reservations and measured dispatch overhead of each CPU.

use slackline_control as control;
use slackline_live::doctor::real_time_limit;
use slackline_service::{CpuLoad, Service};
use slackline_units::{CpuId, CpuShare};

use super::host::Host;

impl Host {
    /// Returns for each CPU the share that is reserved, and the share that dispatching takes.
    pub(super) fn cpus(&self, service: &Service) -> Vec<control::Cpu> {
        let capacity_ppm = self.scheduler.capacity().ppm();
        let measured = self.scheduler.reserved().into_iter().zip(&self.tally.cpus);
        let room = self.scheduler.free_ppm().into_iter().zip(measured);
        let cpus = self.scheduler.cpus().iter().zip(room);
        let cpus = cpus.map(|(cpu, (free, (reserved, tally)))| control::Cpu {
            cpu: u32::try_from(cpu.index()).unwrap_or(u32::MAX),
            promised_ppm: capacity_ppm.saturating_sub(free),
            capacity_ppm,
            reserved_ppm: reserved.ppm(),
            overhead_ppm: tally.overhead.overhead().map(CpuShare::ppm),
            overload: service.overloads().find(|(one, _)| one == cpu).map(|(_, load)| {
                let (reserved_ppm, overhead_ppm) = (load.reserved.ppm(), load.overhead.ppm());
                control::Overload { reserved_ppm, overhead_ppm, limit_ppm: load.limit.ppm() }
            }),
        });
        cpus.collect()
    }

    /// Returns the load of each CPU whose dispatch overhead has been measured. The key is the
    /// kernel's number of the CPU.
    pub(super) fn loads(&self) -> Vec<(CpuId, CpuLoad)> {
        let limit = real_time_limit();
        let measured = self.scheduler.reserved().into_iter().zip(&self.tally.cpus);
        let cpus = self.scheduler.cpus().iter().zip(measured);
        let loads = cpus.filter_map(|(&cpu, (reserved, tally))| {
            let overhead = tally.overhead.overhead()?;
            Some((cpu, CpuLoad { reserved, overhead, limit }))
        });
        loads.collect()
    }
}
