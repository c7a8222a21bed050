//! Look-ups of VMs that requests need. The look-ups of different callers take turns.
//!
//! A look-up reads all of procfs or waits for a virtual machine monitor, so threads that are not
//! real-time do it. A caller may have one running look-up and a few waiting look-ups, so that no
//! caller delays the others. One of the threads serves only administrators, with a preferred nice
//! value. A look-up is dropped when its caller has disconnected or its time limit has passed.
//!
//! A list of all VMs serves all callers that request a list while it is made, or within a second
//! afterwards. An answer with a list can have 3 MiB, so such answers are given one at a time.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use slackline_service::{ClientRequest, Principal, Role, Ticket};
use slackline_units::{Span, Time};

use super::scout::{
    Listing, LookupResult, Order, PREFERRED, Scout, ScoutFinding, VmQuery, VmUsers,
};

/// Number of threads that look up VMs. The first of them serves only administrators.
const THREADS: usize = 6;

/// Maximum number of waiting look-ups of one caller.
pub(super) const MOST_WAITING: usize = 4;

/// Maximum number of look-ups of one administrator that may run at the same time.
const MOST_OF_ADMINISTRATOR: usize = 3;

/// Time limit of a look-up. When the limit has passed, the request that waits for the look-up
/// fails.
const LOOK_UP_WITHIN: Span = Span::from_secs(5);

/// Maximum age of a list of VMs that is used again for the answer to another request.
const LIST_IS_FRESH: Span = Span::from_secs(1);

/// Look-ups that wait and look-ups that are running.
pub(super) struct Lookups {
    threads: Vec<Thread>,
    waiting: BTreeMap<Principal, VecDeque<Lookup>>,
    /// Caller whose look-up was started last. The next turn goes to the caller that follows in
    /// order. `None` before the first look-up.
    last: Option<Principal>,
    /// Requests to list VMs that wait until the next list is complete.
    listing: Vec<ClientRequest>,
    is_listing: bool,
    list: Option<(Time, Listing)>,
    /// Requests that can be answered, in order, each with the list of VMs for its answer.
    listed: VecDeque<(ClientRequest, Listing)>,
}

/// A look-up thread, with its running look-up, if any.
struct Thread {
    scout: Scout,
    job: Option<Job>,
}

enum Job {
    List,
    /// A look-up for a request of this caller. The request is `None` if its caller has
    /// disconnected.
    Look(Principal, Option<Box<ClientRequest>>),
}

/// A waiting look-up, with the request that needs its result.
struct Lookup {
    asked: ClientRequest,
    wanted: VmQuery,
    users: VmUsers,
    until: Time,
}

/// Error: the caller already has the maximum number of waiting look-ups.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMany;

impl Lookups {
    /// Starts the threads that look up VMs.
    pub(super) fn start() -> io::Result<Lookups> {
        let nice = |thread| if thread == 0 { PREFERRED } else { 0 };
        let start = |thread| Ok(Thread { scout: Scout::start(nice(thread))?, job: None });
        let threads = (0..THREADS).map(start);
        let threads = threads.collect::<io::Result<_>>()?;
        let (waiting, last, listing) = (BTreeMap::new(), None, Vec::new());
        let (is_listing, list, listed) = (false, None, VecDeque::new());
        Ok(Lookups { threads, waiting, last, listing, is_listing, list, listed })
    }

    /// Returns descriptors that are readable when a look-up thread has a result.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.threads.iter().map(|thread| thread.scout.as_fd())
    }

    /// Queues a look-up of a VM for a request, and starts it when the caller has its turn.
    ///
    /// # Errors
    /// If the caller already has the maximum number of waiting look-ups.
    pub(super) fn look(
        &mut self,
        now: Time,
        asked: ClientRequest,
        (wanted, users): (VmQuery, VmUsers),
    ) -> Result<(), TooMany> {
        let waiting = self.waiting.entry(asked.principal).or_default();
        if waiting.len() >= MOST_WAITING {
            return Err(TooMany);
        }
        let until = now + LOOK_UP_WITHIN;
        waiting.push_back(Lookup { asked, wanted, users, until });
        self.begin(now);
        Ok(())
    }

    /// Requests the list of VMs for the answer to `asked`. A list that was made within the last
    /// second is used again. [`next_list`](Lookups::next_list) returns the request with its list.
    ///
    /// # Errors
    /// If the caller already has the maximum number of requests that wait for a list.
    pub(super) fn list(&mut self, now: Time, asked: &ClientRequest) -> Result<(), TooMany> {
        let waiting = self.listing.iter().chain(self.listed.iter().map(|(asked, _)| asked));
        if waiting.filter(|one| one.principal == asked.principal).count() >= MOST_WAITING {
            return Err(TooMany);
        }
        let fresh = self.list.as_ref().filter(|(at, _)| is_fresh(*at, now));
        if let Some((_, list)) = fresh {
            self.listed.push_back((asked.clone(), list.clone()));
        } else {
            self.listing.push(asked.clone());
            self.begin(now);
        }
        Ok(())
    }

    /// Returns a request to list VMs that can be answered now, and the list for its answer.
    /// Requests of administrators come first. `None` if no request can be answered.
    pub(super) fn next_list(&mut self) -> Option<(ClientRequest, Listing)> {
        let is_admin = |asked: &ClientRequest| asked.role == Some(Role::Administrator);
        let first = self.listed.iter().position(|(asked, _)| is_admin(asked));
        self.listed.remove(first.unwrap_or(0))
    }

    /// Drops a request whose caller has disconnected. If its look-up has not started, drops the
    /// look-up too.
    pub(super) fn cancel(&mut self, ticket: Ticket) {
        self.listing.retain(|asked| asked.ticket != ticket);
        self.listed.retain(|(asked, _)| asked.ticket != ticket);
        for waiting in self.waiting.values_mut() {
            waiting.retain(|lookup| lookup.asked.ticket != ticket);
        }
        for thread in &mut self.threads {
            if let Some(Job::Look(_, asked)) = &mut thread.job {
                asked.take_if(|asked| asked.ticket == ticket);
            }
        }
        self.waiting.retain(|_, waiting| !waiting.is_empty());
    }

    /// Drops the requests for which `is_meant` returns true, as [`cancel`](Lookups::cancel) does.
    /// Returns their tickets.
    pub(super) fn drop_if(&mut self, is_meant: impl Fn(&ClientRequest) -> bool) -> Vec<Ticket> {
        let waiting = self.waiting.values().flatten().map(|lookup| &lookup.asked);
        let running = self.threads.iter().filter_map(|thread| match &thread.job {
            Some(Job::Look(_, asked)) => asked.as_deref(),
            _ => None,
        });
        let listed = self.listed.iter().map(|(asked, _)| asked);
        let all = self.listing.iter().chain(listed).chain(waiting).chain(running);
        let meant = all.filter(|asked| is_meant(asked)).map(|asked| asked.ticket);
        let meant: Vec<Ticket> = meant.collect();
        meant.iter().for_each(|ticket| self.cancel(*ticket));
        meant
    }

    /// Returns the requests whose look-ups have ended since the last call, with the results. The
    /// caller can execute these requests now. Never blocks.
    pub(super) fn done(&mut self, now: Time) -> Vec<(ClientRequest, LookupResult)> {
        let mut done = Vec::new();
        for thread in &mut self.threads {
            for seen in thread.scout.seen() {
                match (seen, thread.job.take()) {
                    (ScoutFinding::Looked(looked), Some(Job::Look(_, Some(asked)))) => {
                        done.push((*asked, looked));
                    }
                    (ScoutFinding::Machines(listing), _) => {
                        self.is_listing = false;
                        self.list = Some((now, listing));
                    }
                    _ => {}
                }
            }
        }
        if let Some((_, list)) = self.list.as_ref().filter(|(at, _)| is_fresh(*at, now)) {
            self.listed.extend(self.listing.drain(..).map(|asked| (asked, list.clone())));
        }
        self.begin(now);
        done
    }

    /// Drops waiting look-ups whose time limit has passed. Starts waiting look-ups on idle threads,
    /// in the order of the callers' turns.
    fn begin(&mut self, now: Time) {
        for waiting in self.waiting.values_mut() {
            waiting.retain(|lookup| lookup.until > now);
        }
        self.waiting.retain(|_, waiting| !waiting.is_empty());
        let is_for_admin = self.listing.iter().any(|asked| asked.role == Some(Role::Administrator));
        if !self.listing.is_empty()
            && !self.is_listing
            && let Some(thread) = self.idle(is_for_admin)
        {
            self.is_listing = true;
            self.threads[thread].give(Order::Find, Job::List);
        }
        while let Some((principal, thread)) = self.next() {
            let Some(waiting) = self.waiting.get_mut(&principal) else { return };
            let Some(Lookup { asked, wanted, users, .. }) = waiting.pop_front() else { return };
            if waiting.is_empty() {
                self.waiting.remove(&principal);
            }
            self.last = Some(principal);
            let job = Job::Look(principal, Some(Box::new(asked)));
            self.threads[thread].give(Order::Look(wanted, users), job);
        }
    }

    /// Returns the caller whose turn it is, and an idle thread for the caller's look-up.
    /// Administrators come first. `None` if no caller has a turn, or no thread for the caller is
    /// idle.
    fn next(&self) -> Option<(Principal, usize)> {
        let is_admin = |lookup: &Lookup| lookup.asked.role == Some(Role::Administrator);
        let callers = self.waiting.iter().filter_map(|(principal, waiting)| {
            let is_admin = is_admin(waiting.front()?);
            let most = if is_admin { MOST_OF_ADMINISTRATOR } else { 1 };
            (self.under_way(*principal) < most).then_some((*principal, is_admin))
        });
        // Callers after the last one have the next turn, then the order starts again.
        let turn = |&(principal, is_admin): &(Principal, bool)| {
            (!is_admin, self.last.is_some_and(|last| principal <= last), principal)
        };
        let (principal, is_admin) = callers.min_by_key(turn)?;
        Some((principal, self.idle(is_admin)?))
    }

    fn under_way(&self, principal: Principal) -> usize {
        let is_its = |job: &Job| matches!(job, Job::Look(of, _) if *of == principal);
        self.threads.iter().filter(|thread| thread.job.as_ref().is_some_and(is_its)).count()
    }

    /// Returns an idle thread that may serve an administrator (if `is_admin` is true) or another
    /// caller. `None` if all such threads are busy.
    fn idle(&self, is_admin: bool) -> Option<usize> {
        let first = usize::from(!is_admin);
        (first..self.threads.len()).find(|&thread| self.threads[thread].job.is_none())
    }
}

/// Returns true if a list of VMs made at the time `made` may still be used to answer requests.
fn is_fresh(made: Time, now: Time) -> bool {
    now.since(made) <= LIST_IS_FRESH
}

impl Thread {
    fn give(&mut self, order: Order, job: Job) {
        self.scout.order(order);
        self.job = Some(job);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use slackline_service::{Binding, BindingKind, Request};

    use super::*;

    fn asked(uid: u32, ticket: u64, role: Role) -> ClientRequest {
        ClientRequest {
            ticket: Ticket(ticket),
            principal: Principal::User(uid),
            role: Some(role),
            users: Vec::new(),
            key: None,
            request: Request::Find { text: None },
        }
    }

    /// Returns a query for a process that does not exist, and the users of the query.
    fn wanted() -> (VmQuery, VmUsers) {
        let users = VmUsers { meant: 0, may_ask: None, hides_others: false };
        (VmQuery::Bound(Binding::new(BindingKind::Pid, "4194304").unwrap()), users)
    }

    fn now(ms: u64) -> Time {
        Time::START.after(Span::from_ms(ms))
    }

    /// Waits until `count` requests can be executed or answered, and returns their tickets.
    fn done(lookups: &mut Lookups, at: Time, count: usize) -> Vec<Ticket> {
        let (mut all, began) = (Vec::new(), Instant::now());
        while all.len() < count && began.elapsed() < Duration::from_secs(60) {
            all.extend(lookups.done(at).into_iter().map(|(asked, _)| asked.ticket));
            all.extend(std::iter::from_fn(|| lookups.next_list()).map(|(asked, _)| asked.ticket));
            std::thread::yield_now();
        }
        all
    }

    fn under_way(lookups: &Lookups) -> Vec<Principal> {
        let jobs = lookups.threads.iter().filter_map(|thread| thread.job.as_ref());
        let mut all: Vec<Principal> = jobs
            .filter_map(|job| match job {
                Job::Look(principal, _) => Some(*principal),
                Job::List => None,
            })
            .collect();
        all.sort();
        all
    }

    #[test]
    fn user_may_have_one_vm_lookup_running_and_four_queued() {
        let mut lookups = Lookups::start().unwrap();
        let mut refused = 0;
        for ticket in 0..9 {
            let asked = asked(1000, ticket, Role::Operator);
            refused += usize::from(lookups.look(now(0), asked, wanted()) == Err(TooMany));
        }
        assert_eq!(refused, 4);
        assert_eq!(under_way(&lookups), [Principal::User(1000)]);
        // Another caller's look-up starts at once, although the first caller has some waiting.
        lookups.look(now(0), asked(1001, 10, Role::Operator), wanted()).unwrap();
        assert_eq!(under_way(&lookups), [Principal::User(1000), Principal::User(1001)]);
        assert_eq!(done(&mut lookups, now(1), 6).len(), 6);
        assert!(lookups.waiting.is_empty() && under_way(&lookups).is_empty());
    }

    #[test]
    fn one_vm_lookup_thread_is_reserved_for_administrators() {
        let mut lookups = Lookups::start().unwrap();
        for uid in 0..8 {
            lookups.look(now(0), asked(1000 + uid, uid.into(), Role::Operator), wanted()).unwrap();
        }
        assert_eq!(under_way(&lookups).len(), THREADS - 1);
        lookups.look(now(0), asked(0, 20, Role::Administrator), wanted()).unwrap();
        assert!(under_way(&lookups).contains(&Principal::User(0)));
        // Callers that waited have the next turns, in order.
        assert_eq!(done(&mut lookups, now(1), 9).len(), 9);
    }

    #[test]
    fn administrator_can_list_vms_while_others_use_all_ordinary_threads() {
        let mut lookups = Lookups::start().unwrap();
        for uid in 0..8 {
            lookups.look(now(0), asked(1000 + uid, uid.into(), Role::Operator), wanted()).unwrap();
        }
        lookups.list(now(0), &asked(1000, 20, Role::Operator)).unwrap();
        assert!(!lookups.is_listing, "the last thread is for administrators");
        lookups.list(now(0), &asked(0, 21, Role::Administrator)).unwrap();
        assert!(lookups.is_listing);
        assert_eq!(done(&mut lookups, now(1), 10).len(), 10);
    }

    #[test]
    fn vm_lookup_is_dropped_if_caller_disconnects_or_lookup_expires() {
        let mut lookups = Lookups::start().unwrap();
        for ticket in 0..3 {
            lookups.look(now(0), asked(1000, ticket, Role::Operator), wanted()).unwrap();
        }
        // The running look-up completes, but its result is dropped.
        lookups.cancel(Ticket(0));
        lookups.cancel(Ticket(1));
        assert_eq!(done(&mut lookups, now(1), 1), [Ticket(2)]);
        for ticket in 3..6 {
            lookups.look(now(0), asked(1000, ticket, Role::Operator), wanted()).unwrap();
        }
        let late = done(&mut lookups, now(5_001), 1);
        assert_eq!((late.len(), lookups.waiting.len()), (1, 0));
    }

    /// Each caller has one running look-up and one waiting look-up.
    #[test]
    fn lookups_of_caller_with_changed_access_are_dropped() {
        let mut lookups = Lookups::start().unwrap();
        for (ticket, uid) in [(0, 1000), (1, 1001), (2, 1000), (3, 1001)] {
            lookups.look(now(0), asked(uid, ticket, Role::Operator), wanted()).unwrap();
        }
        lookups.list(now(0), &asked(1000, 4, Role::Operator)).unwrap();
        let mut dropped = lookups.drop_if(|asked| asked.principal == Principal::User(1000));
        dropped.sort_unstable();
        assert_eq!(dropped, [0, 2, 4].map(Ticket));
        assert_eq!(done(&mut lookups, now(1), 2), [1, 3].map(Ticket));
    }

    #[test]
    fn callers_listing_vms_within_one_second_share_one_host_scan() {
        let mut lookups = Lookups::start().unwrap();
        for uid in 0..8 {
            lookups.list(now(0), &asked(1000 + uid, uid.into(), Role::Viewer)).unwrap();
        }
        let lists = |thread: &&Thread| matches!(thread.job, Some(Job::List));
        assert_eq!(lookups.threads.iter().filter(lists).count(), 1);
        assert_eq!(done(&mut lookups, now(500), 8).len(), 8);
        lookups.list(now(1_400), &asked(1, 9, Role::Viewer)).unwrap();
        assert!(lookups.next_list().is_some(), "the list is less than a second old");
        lookups.list(now(1_501), &asked(1, 10, Role::Viewer)).unwrap();
        assert!(lookups.next_list().is_none() && lookups.is_listing);
    }

    /// Look-ups occupy all threads that serve callers other than administrators, so the scan for a
    /// new list must wait. Meanwhile the request does not get the old list of five seconds ago.
    #[test]
    fn vm_list_request_waits_for_free_thread_if_list_is_stale() {
        let mut lookups = Lookups::start().unwrap();
        lookups.list(now(0), &asked(1000, 0, Role::Viewer)).unwrap();
        assert_eq!(done(&mut lookups, now(0), 1), [Ticket(0)]);
        for uid in 1..=5 {
            let lookup = asked(uid, uid.into(), Role::Operator);
            lookups.look(now(4_000), lookup, wanted()).unwrap();
        }
        assert_eq!(under_way(&lookups).len(), THREADS - 1);
        lookups.list(now(5_000), &asked(1000, 10, Role::Viewer)).unwrap();
        assert!(!lookups.is_listing, "the last thread is for administrators");
        let ended = lookups.done(now(5_000)).len();
        assert!(lookups.next_list().is_none(), "the list is five seconds old");
        assert_eq!(done(&mut lookups, now(5_000), THREADS - ended).len(), THREADS - ended);
    }

    /// The list of VMs is fresh, so all requests for it can be answered now.
    #[test]
    fn vm_list_requests_are_answered_singly_with_administrators_first() {
        let mut lookups = Lookups::start().unwrap();
        lookups.list(now(0), &asked(1000, 0, Role::Viewer)).unwrap();
        assert_eq!(done(&mut lookups, now(0), 1), [Ticket(0)]);
        for ticket in 1..=4 {
            lookups.list(now(1), &asked(1000, ticket, Role::Viewer)).unwrap();
        }
        let one_more = lookups.list(now(1), &asked(1000, 5, Role::Viewer));
        assert_eq!(one_more, Err(TooMany), "unanswered requests count for their caller");
        lookups.list(now(1), &asked(0, 6, Role::Administrator)).unwrap();
        lookups.cancel(Ticket(2));
        assert_eq!(done(&mut lookups, now(1), 4), [6, 1, 3, 4].map(Ticket));
    }
}
