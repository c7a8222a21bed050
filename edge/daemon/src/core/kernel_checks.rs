//! Regular checks of the threads whose reservations the kernel enforces. A check reads the CPU time
//! of a thread from the kernel, and adds it to the session's records. It undoes or accepts changes
//! that other programs or the threads themselves have made.
//!
//! Requests wait during a round of checks, and the checks must cost little CPU time on a host with
//! hundreds of such threads. So a round checks only some threads, in turn.

use std::collections::BTreeSet;

use slackline_live::session::{EnforcedChange, EnforcedWatch, SessionEvents};
use slackline_trace::{Entry, Record};
use slackline_units::{Span, Time, VcpuId};

use super::host::Host;
use super::kernel::SeatedThread;
use super::scheduler::{Scheduler, ShrunkDomain};

/// Maximum number of threads that one round checks for a changed class. Suspect threads, which have
/// left their class lately, are checked in each round in addition to this number.
const CHECKED_AT_ONCE: usize = 64;

/// Time after which a round checks the cgroups of no further thread. The one exception is the
/// thread whose last check is longest ago: its cgroups are checked in any case.
const AROUND_TIME: Span = Span::from_us(100);

impl SeatedThread {
    /// Reads the CPU time of the thread. Returns a record of the CPU time since the last reading.
    /// `None` if the CPU time cannot be read, because the thread has ended.
    fn read_clock(&mut self, vcpu: VcpuId, now: Time) -> Option<Entry> {
        let all = self.clock.read().ok()?;
        let (from, used) = (self.at, all.left_after(self.used));
        (self.used, self.at) = (all, now);
        Some(Entry::Record(Record::Elsewhere { vcpu, from, to: now, used }))
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
        let checked =
            due(self.seated_threads().map(|one| (one.checked, one.watch.is_suspect(now))));
        let around = EnforcedWatch::due(self.seated_threads().map(|one| &one.watch), now);
        let hierarchies = if around.is_empty() { None } else { self.session.hierarchies() };
        let (mut index, mut time_left) = (0.., AROUND_TIME);
        let (mut shrunk, mut ended) = (Vec::new(), Vec::new());
        for (&domain, known) in &mut self.domains {
            let Some(kernel) = &mut known.kernel else { continue };
            for (number, seated) in kernel.seated.iter_mut().enumerate() {
                let Some(seated) = seated else { continue };
                let Some(index) = index.next() else { continue };
                let is_around = around.includes(index, !time_left.is_zero());
                if !is_around && !checked.contains(&index) {
                    continue;
                }
                seated.checked = now;
                if seated.thread.is_gone().unwrap_or(false) {
                    ended.push((domain, number));
                    let has_ended = false;
                    let shrunk_to = |identity| ShrunkDomain { domain, identity, has_ended };
                    shrunk.extend(known.identity.map(shrunk_to));
                    continue;
                }
                let Some(id) = known.places[number].id else { continue };
                let Some(record) = seated.read_clock(id.vcpu(), now) else { continue };
                records.push(record);
                seated.is_recorded = true;
                let began = self.session.now();
                let hierarchies = hierarchies.as_deref().filter(|_| is_around);
                for change in self.session.look_at_enforced(&mut seated.watch, hierarchies) {
                    match change {
                        EnforcedChange::Meddled(finding) => seen.meddled.push((id, finding)),
                        EnforcedChange::Contested(finding) => seen.contested.push((id, finding)),
                        EnforcedChange::Settled => seen.settled.push(id),
                    }
                }
                if is_around {
                    time_left = time_left.left_after(self.session.now().since(began));
                }
            }
        }
        for (domain, number) in ended {
            self.vacate_kernel(domain, number);
        }
        shrunk.dedup_by_key(|one: &mut ShrunkDomain| one.domain);
        shrunk
    }

    /// Returns the threads whose reservations the kernel enforces, in the order in which rounds
    /// check them.
    fn seated_threads(&self) -> impl Iterator<Item = &SeatedThread> {
        let kernels = self.domains.values().filter_map(|known| known.kernel.as_ref());
        kernels.flat_map(|kernel| kernel.seated.iter().flatten())
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
            flight.hand_over(&records, self.scheduler.threads());
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
    others.sort_unstable();
    others.truncate(CHECKED_AT_ONCE);
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
