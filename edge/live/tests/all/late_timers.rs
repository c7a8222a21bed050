//! Tests that reservations are delivered in each period, both on hosts with late timers and
//! expensive dispatcher passes and on hosts with exact timers and cheap passes. The tests simulate
//! a kernel with one CPU. Its vCPUs never block, and its dispatcher wakes late and takes a given
//! time for a pass.

use slackline_host::policy::{RawValue, Topology, Values, find};
use slackline_live::fed::{FedHost, OrderedClass};
use slackline_live::watch::ThreadEventKind;
use slackline_units::{CpuId, DomId, Span, Time, VcpuId};

const CPU: CpuId = CpuId::new(0);
/// Longest sleep of a dispatcher.
const NAP: Span = Span::from_ms(20);
/// Tolerance of comparisons: the accuracy with which a live host measures CPU time.
const ACCURACY: Span = Span::from_us(5);

/// A kind of simulated host: lateness of its timers, and CPU time of its dispatcher passes.
#[derive(Clone, Copy)]
struct Timers {
    /// CPU time of a dispatcher pass, in microseconds.
    look: u64,
    /// Function from the number of a timer to its lateness in microseconds.
    late: fn(u64) -> u64,
    /// Upper bound of the difference between the average and the minimum lateness, in microseconds.
    unsteady: u64,
}

/// Physical host: timers are 2 to 6 us late, and a pass takes 4 us.
const CHEAP: Timers = Timers { look: 4, late: |round| 2 + round * 7 % 5, unsteady: 2 };

/// Virtual host: timers are 15 to 30 us late and sometimes 60 us, and a pass takes 20 us.
const COSTLY: Timers = Timers {
    look: 20,
    late: |round| if round % 499 == 0 { 60 } else { 15 + round * 7919 % 16 },
    unsteady: 8,
};

/// Virtual host with measured values. Half of the timers are at least 34 us late, and one in a
/// hundred is 60 to 70 us late. A pass takes 23 us.
const MEASURED: Timers = Timers {
    look: 23,
    late: |round| match round * 7919 % 100 {
        0 => 60 + round % 11,
        common => 22 + common / 4,
    },
    unsteady: 16,
};

/// Virtual host whose physical host is busy with other guests: timers are 15 to 80 us late.
const UNSTEADY: Timers = Timers { look: 20, late: |round| 15 + round * 7919 % 66, unsteady: 34 };

const HOSTS: [(&str, Timers); 3] = [("cheap", CHEAP), ("costly", COSTLY), ("measured", MEASURED)];

/// One simulated CPU and the vCPUs on it.
struct Kernel {
    host: FedHost,
    timers: Timers,
    now: Time,
    round: u64,
    /// vCPUs in the order in which the kernel runs them: first the real-time vCPUs, highest
    /// priority first, then the vCPU with the highest ordinary priority.
    line: Vec<VcpuId>,
    /// Run intervals so far: vCPU, start and end.
    ran: Vec<(VcpuId, Time, Time)>,
}

fn us(us: u64) -> Span {
    Span::from_us(us)
}

impl Kernel {
    /// Creates vCPUs that never block, with these slices and periods in microseconds.
    fn new(timers: Timers, promises: &[(u64, u64)]) -> Result<Kernel, String> {
        Kernel::with(timers, promises, "forgive")
    }

    /// Creates vCPUs as [`Kernel::new`] does. `overrun` is the value of the policy's parameter
    /// `overrun`, which forgives or repays overruns.
    fn with(timers: Timers, promises: &[(u64, u64)], overrun: &str) -> Result<Kernel, String> {
        let edf = find("edf").unwrap();
        let values = Values::defaults(edf.policy_fields).unwrap();
        let topology = Topology::flat(1).with_dispatch(us(timers.look));
        let mut host = FedHost::new(edf, &values, &topology).unwrap();
        host.costs(CPU, us(timers.look));
        for (slot, (slice, period)) in promises.iter().enumerate() {
            let vcpu = vcpu(slot);
            let (slice, period) = (format!("{slice}us"), format!("{period}us"));
            let given = [
                ("slice", RawValue::Text(&slice)),
                ("period", RawValue::Text(&period)),
                ("exact", RawValue::Flag(true)),
                ("overrun", RawValue::Text(overrun)),
            ];
            let share = Values::read(edf.share_fields, given.into_iter()).unwrap();
            host.join(vcpu, &share, true).map_err(|error| error.to_string())?;
            host.note(CPU, Time::START, vcpu, ThreadEventKind::Woke);
        }
        Ok(Kernel { host, timers, now: Time::START, round: 0, line: Vec::new(), ran: Vec::new() })
    }

    fn run(&mut self, until: Time) {
        while self.now < until {
            self.host.at(self.now);
            let due = self.host.reschedule(CPU).unwrap().unwrap_or(Time::NEVER);
            let told = self.host.told();
            if !told.is_empty() {
                let runs = |&(_, told): &(VcpuId, OrderedClass)| {
                    matches!(told, OrderedClass::InLine | OrderedClass::First)
                };
                self.line = told.into_iter().filter(runs).map(|(vcpu, _)| vcpu).collect();
            }
            let begin = self.now + us(self.timers.look);
            self.round += 1;
            let ring = due.min(begin + NAP).max(begin) + us((self.timers.late)(self.round));
            if let Some(&vcpu) = self.line.first() {
                self.host.note(CPU, begin, vcpu, ThreadEventKind::SwitchedIn);
                self.host.note(CPU, ring, vcpu, ThreadEventKind::SwitchedOut { ready: true });
                self.host.count(vcpu, ring - begin);
                self.ran.push((vcpu, begin, ring));
            }
            self.now = ring;
        }
    }

    /// Returns the CPU time that a vCPU received in each of its periods up to `until`. The first
    /// period is left out.
    fn received(&self, slot: usize, period: Span, until: Time) -> Vec<Span> {
        let mut periods =
            vec![Span::ZERO; usize::try_from((until - Time::START) / period).unwrap()];
        for &(_, from, to) in self.ran.iter().filter(|(of, ..)| *of == vcpu(slot)) {
            for (nth, received) in periods.iter_mut().enumerate() {
                let start = Time::START + period * nth as u64;
                *received += to.min(start + period).since(from.max(start));
            }
        }
        periods.split_off(1)
    }
}

fn vcpu(slot: usize) -> VcpuId {
    let slot = u32::try_from(slot).unwrap();
    VcpuId::new(slot, DomId::new(slot), 0)
}

/// Asserts that each vCPU receives its whole slice in every period. On average over many periods it
/// may receive more by up to 0.5 % of the slice or [`Timers::unsteady`], whichever is larger.
fn are_held(name: &str, timers: Timers, promises: &[(u64, u64)]) {
    let until = Time::START + Span::from_secs(3);
    let mut kernel = Kernel::new(timers, promises).unwrap();
    kernel.run(until);
    for (slot, &(slice, period)) in promises.iter().enumerate() {
        let (slice, period) = (us(slice), us(period));
        let received = kernel.received(slot, period, until);
        let least = received.iter().min().unwrap();
        assert!(
            *least + ACCURACY >= slice,
            "{name}: {least} of {slice} in {period}, among {promises:?}"
        );
        // The first 70 periods are left out, in which the host learns the usual lateness of timers.
        let known = received.get(70..).unwrap_or(&received);
        let (all, count) = (known.iter().copied().sum::<Span>(), known.len() as u64);
        let most = (slice + us(timers.unsteady).max(slice / 200)) * count;
        assert!(all <= most, "{name}: {all} in {count} of {slice} in {period}");
    }
}

#[test]
fn vcpus_receive_whole_slices_in_each_period_despite_late_timers() {
    let promises: [&[(u64, u64)]; 7] = [
        &[(100, 10_000)],
        &[(300, 1_000)],
        &[(900, 1_000)],
        &[(904, 1_000)],
        &[(2_000, 10_000), (3_000, 10_000), (4_000, 10_000)],
        &[(420, 1_000), (420, 1_000)],
        &[(20_000, 100_000), (600, 1_000)],
    ];
    for (name, timers) in HOSTS {
        for promises in promises {
            are_held(name, timers, promises);
        }
    }
}

/// The lateness of timers varies. As long as it fits into the time that no vCPU has reserved, every
/// slice is complete.
#[test]
fn slices_are_complete_while_slack_covers_the_varying_timer_lateness() {
    let promises: [&[(u64, u64)]; 5] = [
        &[(80, 5_000)],
        &[(300, 1_000)],
        &[(860, 1_000)],
        &[(2_000, 10_000), (3_000, 10_000), (4_000, 10_000)],
        &[(20_000, 100_000), (600, 1_000)],
    ];
    for promises in promises {
        are_held("unsteady", UNSTEADY, promises);
    }
}

/// Over any number of whole periods, the CPU time of a vCPU with `overrun = "repay"` differs from
/// its share by at most two overruns. An overrun is CPU time used after the end of a slice, here at
/// most 80 us.
#[test]
fn repaid_overruns_keep_cpu_time_within_two_overruns_of_share() {
    let until = Time::START + Span::from_secs(4);
    for timers in [CHEAP, COSTLY, UNSTEADY] {
        for (slice, period) in [(100_u64, 10_000), (900, 2_000), (4_000, 10_000)] {
            let mut kernel = Kernel::with(timers, &[(slice, period)], "repay").unwrap();
            kernel.run(until);
            let received = kernel.received(0, us(period), until);
            let excess = received.iter().scan(0, |excess, period| {
                *excess += i64::try_from(period.ns()).unwrap() - 1_000 * slice.cast_signed();
                Some(*excess)
            });
            // Between any two of these times, the excess changes by at most its largest value less
            // its smallest value.
            let excess: Vec<i64> = [0].into_iter().chain(excess).collect();
            let (least, most) = (*excess.iter().min().unwrap(), *excess.iter().max().unwrap());
            let stops = 2 * 80_000;
            assert!(most - least <= stops, "{least} to {most} ns of {slice} us in {period}");
        }
    }
}

/// The longest slice that admission accepts is delivered completely. Admission refuses a slice that
/// is one microsecond longer.
#[test]
fn longest_admitted_slice_is_received_and_longer_slice_is_refused() {
    for (_, timers) in HOSTS {
        let most = 950 - 2 * timers.look;
        let refused = Kernel::new(timers, &[(most + 1, 1_000)]).err().unwrap();
        assert!(refused.contains("for 2000 dispatches a second"), "{refused}");
        let mut kernel = Kernel::new(timers, &[(most, 1_000)]).unwrap();
        let until = Time::START + Span::from_secs(1);
        kernel.run(until);
        let received = kernel.received(0, us(1_000), until);
        let least = received.iter().min().unwrap();
        assert!(*least + ACCURACY >= us(most), "{least} of {most} us");
    }
}

/// Virtual host that is sometimes halted by its hypervisor for 4 ms. The hypervisor does not report
/// these 4 ms as steal time.
const HALTED: Timers =
    Timers { look: 20, late: |round| if round % 40 == 0 { 4_000 } else { 15 }, unsteady: 100 };

/// A vCPU is sometimes stopped very late. As long as there is slack, it still receives a complete
/// slice in every period.
#[test]
fn vcpu_receives_complete_slices_despite_occasional_very_late_stops() {
    for (slice, period) in [(3_000, 10_000), (900, 10_000)] {
        let until = Time::START + Span::from_secs(20);
        let mut kernel = Kernel::new(HALTED, &[(slice, period)]).unwrap();
        kernel.run(until);
        let received = kernel.received(0, us(period), until);
        let least = received.iter().min().unwrap();
        assert!(*least + ACCURACY >= us(slice), "{least} of {slice} us in {period}");
    }
}
