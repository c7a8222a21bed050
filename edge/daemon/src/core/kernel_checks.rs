//! Regular checks of the threads whose reservations the kernel enforces. A check reads the CPU time
//! of a thread from the kernel, and adds it to the session's records. It undoes or accepts changes
//! that other programs or the threads themselves have made.
//!
//! Requests wait during a round of checks, and the checks must cost little CPU time on a host with
//! hundreds of such threads. So a round checks only some threads, in turn. The end of a thread is
//! noticed in the next round nevertheless, because the kernel reports it.

use std::collections::BTreeSet;

use slackline_linux::cgroup::Hierarchies;
use slackline_linux::thread::ThreadEnds;
use slackline_live::session::{DueChecks, EnforcedChange, EnforcedWatch, SessionEvents};
use slackline_trace::{Entry, Record};
use slackline_units::{DomId, Span, Time, VcpuId};

use super::host::Host;
use super::kernel::SeatedThread;
use super::scheduler::{Scheduler, ShrunkDomain};

/// Maximum number of threads that one round checks for a changed class. Suspect threads, which have
/// left their class lately, are checked in each round in addition to this number.
const CHECKED_AT_ONCE: usize = 64;

/// Time after which a round checks the cgroups of no further thread. The one exception is the
/// thread whose last check is longest ago: its cgroups are checked in any case.
const AROUND_TIME: Span = Span::from_us(50);

/// Interval between readings of the clock of a thread that used no CPU time in the last interval.
/// Clients see exact CPU times nevertheless, because a request for metrics reads all clocks.
const IDLE_READING: Span = Span::from_secs(1);

impl SeatedThread {
    /// Reads the CPU time of the thread. Returns a record of the CPU time since the last reading.
    /// `None` if the CPU time cannot be read, because the thread has ended.
    fn read_clock(&mut self, vcpu: VcpuId, now: Time) -> Option<Entry> {
        let all = self.clock.read().ok()?;
        let (from, used) = (self.at, all.left_after(self.used));
        (self.used, self.at, self.has_run) = (all, now, !used.is_zero());
        Some(Entry::Record(Record::Elsewhere { vcpu, from, to: now, used }))
    }

    /// Returns true if a round of checks must read the clock of the thread. Threads that have not
    /// run lately are read less often.
    fn is_clock_due(&self, now: Time) -> bool {
        !self.is_recorded || self.has_run || now.since(self.at) >= IDLE_READING
    }

    /// Returns true if the thread has ended and the kernel does not report that.
    fn has_ended_unreported(&self) -> bool {
        self.end.is_none() && self.thread.is_gone().unwrap_or(false)
    }
}

impl Scheduler {
    /// Checks some of the deadline threads. Adds their CPU time since the last reading to the
    /// session's records. Adds to `seen` the changes that other programs made to these threads.
    /// Removes ended threads from their places (reserved vCPUs), and returns the domains of these
    /// threads. Does nothing if the last round was less than [`EnforcedWatch::INTERVAL`] ago.
    pub(super) fn look_at_kernel(
        &mut self,
        records: &mut Vec<Entry>,
        seen: &mut SessionEvents,
    ) -> Vec<ShrunkDomain> {
        let now = self.session.now();
        if now < self.kernel_checks.next_round {
            return Vec::new();
        }
        self.kernel_checks.next_round = now + EnforcedWatch::INTERVAL;
        self.seat_lost(now);
        // The clock is read again, because threads that were seated just now are metered from a
        // time after the start of this round.
        let now = self.session.now();
        let ended = self.reported_ends();
        let mut shrunk = self.vacate_ended(ended);
        let places = self.kernel_checks.places.iter();
        let checked = due(places.clone().map(|one| (one.checked, one.is_suspect)));
        let around = DueChecks::new(places.map(|one| one.looked), now);
        let indexes: BTreeSet<usize> = checked.iter().copied().chain(around.indexes()).collect();
        let hierarchies = if around.is_empty() { None } else { self.session.hierarchies() };
        let (mut time_left, mut ended) = (AROUND_TIME, Vec::new());
        for index in indexes {
            let is_around = around.includes(index, !time_left.is_zero());
            if !is_around && !checked.contains(&index) {
                continue;
            }
            let began = self.session.now();
            let hierarchies = hierarchies.as_deref().filter(|_| is_around);
            ended.extend(self.check_place((index, now), hierarchies, (records, seen)));
            if is_around {
                time_left = time_left.left_after(self.session.now().since(began));
            }
        }
        shrunk.extend(self.vacate_ended(ended));
        shrunk
    }

    /// Returns the places (reserved vCPUs) of the threads whose exit the kernel has reported.
    fn reported_ends(&self) -> Vec<(DomId, usize)> {
        let checks = &self.kernel_checks;
        let exited = checks.ends.as_ref().map(ThreadEnds::exited).unwrap_or_default();
        if exited.is_empty() {
            return Vec::new();
        }
        let places = checks.places.iter().map(|one| one.place);
        let has_exited = |(domain, number): &(DomId, usize)| {
            let kernel = self.domains.get(domain).and_then(|known| known.kernel.as_ref());
            let seated = kernel.and_then(|kernel| kernel.seated.get(*number)?.as_ref());
            seated.is_some_and(|seated| exited.contains(&seated.thread.tid()))
        };
        places.filter(has_exited).collect()
    }

    /// Removes ended threads from their places (reserved vCPUs). Returns the domains of these
    /// threads.
    fn vacate_ended(&mut self, ended: Vec<(DomId, usize)>) -> Vec<ShrunkDomain> {
        let mut shrunk: Vec<ShrunkDomain> = Vec::new();
        for (domain, number) in ended {
            let identity = self.domains.get(&domain).and_then(|known| known.identity);
            if let Some(identity) = identity
                && shrunk.iter().all(|one| one.domain != domain)
            {
                shrunk.push(ShrunkDomain { domain, identity, has_ended: false });
            }
            self.vacate_kernel(domain, number);
        }
        shrunk
    }

    /// Checks the thread with this index among the deadline threads. If `hierarchies` is `Some`,
    /// also checks the cgroups of the thread. Returns the place of the thread if the thread has
    /// ended.
    fn check_place(
        &mut self,
        (index, now): (usize, Time),
        hierarchies: Option<&Hierarchies>,
        (records, seen): (&mut Vec<Entry>, &mut SessionEvents),
    ) -> Option<(DomId, usize)> {
        let checks = &mut self.kernel_checks.places[index];
        checks.checked = now;
        let (domain, number) = checks.place;
        let known = self.domains.get_mut(&domain)?;
        let seated = known.kernel.as_mut()?.seated.get_mut(number)?.as_mut()?;
        if seated.has_ended_unreported() {
            return Some(checks.place);
        }
        let id = known.places.get(number)?.id?;
        if seated.is_clock_due(now) {
            records.push(seated.read_clock(id.vcpu(), now)?);
            seated.is_recorded = true;
        }
        for change in self.session.look_at_enforced(&mut seated.watch, hierarchies) {
            match change {
                EnforcedChange::Meddled(finding) => seen.meddled.push((id, finding)),
                EnforcedChange::Contested(finding) => seen.contested.push((id, finding)),
                EnforcedChange::Settled => seen.settled.push(id),
            }
        }
        checks.looked = seated.watch.last_cgroup_check();
        checks.is_suspect = seated.watch.is_suspect(now);
        None
    }

    /// Reads the CPU time of all deadline threads of the daemon. Returns records of the CPU time
    /// since the last reading. Returns no record if the last call was less than
    /// [`EnforcedWatch::INTERVAL`] ago.
    fn read_kernel_clocks(&mut self) -> Vec<Entry> {
        let now = self.session.now();
        let mut records = Vec::new();
        if now < self.kernel_checks.next_reading {
            return records;
        }
        self.kernel_checks.next_reading = now + EnforcedWatch::INTERVAL;
        for known in self.domains.values_mut() {
            let Some(kernel) = &mut known.kernel else { continue };
            for (seated, place) in kernel.seated.iter_mut().zip(&known.places) {
                let (Some(seated), Some(id)) = (seated, place.id) else { continue };
                // The next round of checks empties the place of a thread that has ended.
                if seated.is_recorded && !seated.thread.is_gone().unwrap_or(true) {
                    records.extend(seated.read_clock(id.vcpu(), now));
                }
            }
        }
        records
    }
}

impl Host {
    /// Adds the CPU time that deadline threads have used until now to the metrics of their vCPUs.
    /// Must be called before metrics are computed for a client.
    pub(super) fn count_kernel_time(&mut self) {
        let mut records = self.scheduler.read_kernel_clocks();
        if records.is_empty() {
            return;
        }
        if let Some(flight) = &mut self.flight {
            flight.hand_over(&records, self.scheduler.changed_threads());
        }
        let now = self.scheduler.session.now();
        self.tally.take(&mut records, now);
    }
}

/// Returns the indexes of the threads that a round checks. These are all suspect threads, and at
/// most [`CHECKED_AT_ONCE`] other threads, those whose last check is longest ago. `threads`
/// contains, for each thread, the time of its last check and a flag. The flag is true if the thread
/// is suspect because it has left its class lately.
fn due(threads: impl Iterator<Item = (Time, bool)>) -> BTreeSet<usize> {
    let threads = threads.enumerate().map(|(index, (checked, is_it))| (is_it, checked, index));
    let (suspect, mut others): (Vec<_>, Vec<_>) = threads.partition(|(is_suspect, ..)| *is_suspect);
    if others.len() > CHECKED_AT_ONCE {
        others.select_nth_unstable(CHECKED_AT_ONCE);
        others.truncate(CHECKED_AT_ONCE);
    }
    suspect.into_iter().chain(others).map(|(.., index)| index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thread 499 is suspect, because it has left its class lately.
    #[test]
    fn check_round_includes_suspects_and_longest_unchecked_deadline_threads() {
        let mut checked = [Time::START; 500];
        for round in 1..=25 {
            let now = Time::START.after(EnforcedWatch::INTERVAL * round);
            let due = due(checked.iter().enumerate().map(|(index, at)| (*at, index == 499)));
            assert!(due.len() <= CHECKED_AT_ONCE + 1 && due.contains(&499), "{}", due.len());
            due.into_iter().for_each(|index| checked[index] = now);
            let longest = checked.iter().map(|at| now.since(*at)).max();
            assert!(longest <= Some(EnforcedWatch::INTERVAL * 8), "round {round}: {longest:?}");
        }
    }

    #[test]
    fn each_round_checks_all_deadline_threads_if_there_are_few() {
        let at = Time::START.after(Span::from_ms(50));
        let due = due((0..CHECKED_AT_ONCE).map(|_| (at, false)));
        assert!(due.into_iter().eq(0..CHECKED_AT_ONCE));
    }
}
