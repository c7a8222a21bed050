//! Probes of clocks and timers, and of the CPU time that timers and a hypervisor take.

use std::io;

use rustix::io::Errno;
use rustix::thread::{ClockId, clock_nanosleep_absolute};
use rustix::time::{Timespec, clock_getres};
use slackline_units::{Span, Time};

use super::parse::cpu_ticks;
use super::probe::{Host, ProbeError, Verdict, not_understood, on_own_thread, read, read_if_there};
use super::realtime::DISPATCHER;
use slackline_linux::sys::{monotonic, own_tid, set_scheduling};

/// Number of timers that the probe measures. With a hundred timers the 99th percentile differs from
/// the maximum.
const SLEEPS: usize = 100;
/// Length of each sleep whose timer is measured.
const SLEEP: Span = Span::from_ms(1);
/// Maximum lateness at the 99th percentile for which timers count as good. The value is a quarter
/// of 1 ms, the shortest usual period. If timers are later, slices are not accurate.
const LATE: Span = Span::from_us(250);

pub(super) fn timers(_: &Host) -> Result<Verdict, ProbeError> {
    let resolution = clock_getres(rustix::time::ClockId::Monotonic);
    if (resolution.tv_sec, resolution.tv_nsec) != (0, 1) {
        let found = format!("timers expire at kernel ticks only ({} ns)", resolution.tv_nsec);
        return Ok(Verdict::limited(found)
            .hint("boot a kernel with CONFIG_HIGH_RES_TIMERS, without `highres=off`"));
    }
    let (lateness, urgent) = on_own_thread(|| {
        let urgent = set_scheduling(own_tid(), &DISPATCHER).is_ok();
        (lateness(), urgent)
    })?;
    let mut lateness = lateness.map_err(ProbeError::tried("sleep"))?;
    lateness.sort_unstable();
    let [half, most, worst] = [SLEEPS / 2 - 1, SLEEPS * 99 / 100 - 1, SLEEPS - 1]
        .map(|rank| lateness.get(rank).copied().unwrap_or(Span::MAX));
    let how = if urgent { "at SCHED_FIFO 99" } else { "as an ordinary thread" };
    let found = format!(
        "{SLEEPS} sleeps of {SLEEP} {how} were late by {} (median), {} (p99), {} (worst)",
        rounded(half),
        rounded(most),
        rounded(worst)
    );
    let verdict = if most <= LATE {
        Verdict::good(found)
    } else {
        Verdict::limited(found).hint(
            "use longer periods, or avoid deep sleep states, a busy host and a host that is a VM",
        )
    };
    Ok(verdict
        .figure("timer_p50_ns", half.ns())
        .figure("timer_p99_ns", most.ns())
        .figure("timer_worst_ns", worst.ns()))
}

/// Rounds a duration to a microsecond. Repeated measurements differ by more than a microsecond, so
/// smaller digits mean nothing.
fn rounded(span: Span) -> Span {
    Span::from_us((span.ns() + 500) / 1_000)
}

fn lateness() -> io::Result<Vec<Span>> {
    let mut late = Vec::with_capacity(SLEEPS);
    let mut until = monotonic();
    for _ in 0..SLEEPS {
        until = monotonic().max(until) + SLEEP;
        sleep_until(until)?;
        late.push(monotonic().since(until));
    }
    Ok(late)
}

fn sleep_until(until: Time) -> io::Result<()> {
    let part = |number: u64| i64::try_from(number).map_err(|_| io::Error::from(Errno::OVERFLOW));
    let (seconds, rest) = (until.ns() / 1_000_000_000, until.ns() % 1_000_000_000);
    let until = Timespec { tv_sec: part(seconds)?, tv_nsec: part(rest)? };
    loop {
        match clock_nanosleep_absolute(ClockId::Monotonic, &until) {
            Err(Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

pub(super) fn clock(_: &Host) -> Result<Verdict, ProbeError> {
    const READINGS: u32 = 10_000;
    /// Clock sources, of different architectures, that a program can read without a system call.
    /// Such a clock source is fast.
    const FAST: [&str; 8] = [
        "tsc",
        "kvm-clock",
        "hyperv_clocksource_tsc_page",
        "arch_sys_counter",
        "riscv_clocksource",
        "timebase",
        "tod",
        "stable_counter",
    ];
    const DIRECTORY: &str = "/sys/devices/system/clocksource/clocksource0";
    let source = read(format!("{DIRECTORY}/current_clocksource"))?;
    let begun = monotonic();
    for _ in 0..READINGS {
        std::hint::black_box(monotonic());
    }
    let each = monotonic().since(begun) / u64::from(READINGS);
    let found = format!("clock source {source}, {} ns per reading", each.ns());
    let verdict = if FAST.contains(&source.as_str()) {
        Verdict::good(found)
    } else {
        let there = read_if_there(format!("{DIRECTORY}/available_clocksource"))?;
        let there = there.unwrap_or_default();
        Verdict::limited(found).hint(format!(
            "boot with `clocksource=` one of {there}: the current clock is slow to read"
        ))
    };
    Ok(verdict.figure("clock_reading_ns", each.ns()))
}

pub(super) fn tick(host: &Host) -> Result<Verdict, ProbeError> {
    let config = host.config.as_ref().map_err(Clone::clone)?;
    let text = config.value("CONFIG_HZ").unwrap_or_default();
    let hertz: u64 = text.parse().map_err(|_| not_understood("CONFIG_HZ", text))?;
    if hertz == 0 {
        return Err(not_understood("CONFIG_HZ", text));
    }
    let tick = Span::from_secs(1) / hertz;
    let is_set = |option| config.value(option).is_some();
    let idle = if is_set("CONFIG_NO_HZ_FULL") {
        "off on idle CPUs and, if set at boot, on busy ones"
    } else if is_set("CONFIG_NO_HZ_IDLE") {
        "off on idle CPUs"
    } else {
        "always on"
    };
    Ok(Verdict::good(format!("{hertz} ticks per second ({tick} apart), {idle}"))
        .figure("tick_hz", hertz))
}

pub(super) fn steal(_: &Host) -> Result<Verdict, ProbeError> {
    /// Smallest share of stolen CPU time at which the state of this host counts as limited: 10,000
    /// millionths, that is 1 %.
    const NOTICED_PPM: u64 = 10_000;
    let stat = read("/proc/stat")?;
    let ticks = cpu_ticks(&stat)
        .ok_or_else(|| not_understood("/proc/stat", stat.lines().next().unwrap_or_default()))?;
    let guest = read("/proc/cpuinfo")?
        .lines()
        .any(|line| line.starts_with("flags") && line.split(' ').any(|flag| flag == "hypervisor"));
    let ppm = u128::from(ticks.stolen) * 1_000_000 / u128::from(ticks.total.max(1));
    let ppm = u64::try_from(ppm).unwrap_or(u64::MAX);
    let percent = format!("{}.{:02} %", ppm / 10_000, ppm / 100 % 100);
    let verdict = if ppm >= NOTICED_PPM {
        Verdict::limited(format!("{percent} of all CPU time since boot was stolen")).hint(
            "reserve CPU for this host in its hypervisor: Slackline divides only the CPU time that \
             the hypervisor gives",
        )
    } else if guest {
        Verdict::good(format!("this host is a VM; {percent} of all CPU time was stolen"))
    } else {
        Verdict::good(format!(
            "no hypervisor below this host is visible; {percent} of all CPU time was stolen"
        ))
    };
    Ok(verdict.figure("stolen_ppm", ppm))
}
