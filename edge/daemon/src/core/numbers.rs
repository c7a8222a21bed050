//! Metrics of the daemon and its reservations.

use std::fs;
use std::time::UNIX_EPOCH;

use slackline_control::link::Answer;
use slackline_control::{self as control, Numbers};
use slackline_linux::sys::{Tid, process_cpu_time};
use slackline_live::session::knowledge;
use slackline_service::{ListedReservation, Principal, Service, Ticket};
use slackline_units::Span;

use super::host::Host;
use super::wire;

impl Host {
    /// Answers a request for all metrics. A tenant sees the metrics of the tenant's own
    /// reservations.
    pub(super) fn answer_numbers(
        &mut self,
        (ticket, tenant): (Ticket, Option<Principal>),
        service: &Service,
    ) {
        self.count_kernel_time();
        let now = self.now();
        let mut reservations = Vec::new();
        let is_seen =
            |listed: &ListedReservation| tenant.is_none_or(|tenant| listed.row.owner == tenant);
        for (domain, listed) in service.listed().filter(|(_, listed)| is_seen(listed)) {
            let each = listed.row.terms.each();
            let lapsed = self.lapsed.get(&domain).copied().unwrap_or_default();
            let vcpus = self.tally.by_vcpu(domain, now).into_iter();
            let vcpus = vcpus.map(|(vcpu, sum)| control::VcpuNumbers {
                vcpu,
                cpu_ns: sum.delivered.used_ns,
                promised_ns: sum.delivered.promised_ns,
                due_ns: sum.delivered.due_ns,
                deadlines: sum.delivered.deadlines,
                missed: sum.delivered.missed,
                late_ns: sum.late.ns(),
                waited_ns: sum.waited.ns(),
                lapsed_ns: lapsed.ns(),
            });
            reservations.push(control::ReservationNumbers {
                name: listed.row.name.to_string(),
                slice_ns: each.slice().ns(),
                period_ns: each.period().ns(),
                state: listed.state.into(),
                vcpus: vcpus.collect(),
                cost: self.costs.as_ref().map(|costs| costs.of(domain, listed.row.terms)),
            });
        }
        let cpus = self.cpus(service).into_iter().zip(&self.tally.cpus);
        let cpus = cpus.map(|(cpu, tally)| control::CpuNumbers {
            cpu: cpu.cpu,
            promised_ppm: cpu.promised_ppm,
            capacity_ppm: cpu.capacity_ppm,
            reserved_ppm: cpu.reserved_ppm,
            overhead_ppm: cpu.overhead_ppm,
            is_overloaded: cpu.overload.is_some(),
            stolen_ns: tally.stolen.ns(),
            dispatcher_ns: tally.dispatching.ns(),
        });
        let numbers = Numbers {
            reservations,
            cpus: cpus.collect(),
            timer_late: self.tally.timer_late.clone(),
            change_effect: self.change_effect.clone(),
            commit: self.commit_took.clone(),
            meddled: self.meddled,
            keeper_restarts: self.keeper_restarts,
            restarts: self.restarts,
            front_restarts: self.front.as_ref().map_or(0, |front| front.restarts),
            ledger_errors: self.ledger_errors,
            incidents: self.flight.as_ref().map_or(0, |flight| flight.incidents),
            sight: if knowledge().sleep { "perf" } else { "polling" }.into(),
            process: self.process(),
        };
        self.say(&wire::answered(ticket, Answer::Numbers(Box::new(numbers))));
    }

    fn process(&self) -> control::ProcessNumbers {
        let pid = i32::try_from(std::process::id()).ok().and_then(Tid::new);
        let used = pid.and_then(|pid| process_cpu_time(pid).ok());
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mut lines = status.lines().filter_map(|line| line.strip_prefix("VmRSS:"));
        let kib =
            lines.next().and_then(|text| text.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        let fds = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let started = self.began.duration_since(UNIX_EPOCH).unwrap_or_default();
        control::ProcessNumbers {
            cpu_ns: used.map_or(0, Span::ns),
            resident_bytes: kib.unwrap_or(0) * 1_024,
            open_fds: u64::try_from(fds).unwrap_or(u64::MAX),
            started_ns: u64::try_from(started.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}
