//! Requests that wait because a list of reservations (`slackline apply`) waits for capacity.

use slackline_service::{ClientRequest, Refusal, Role, Ticket};
use slackline_units::Span;

use super::scout::LookupResult;

/// Maximum number of waiting requests of one principal. Administrators have no such limit.
const MOST_OF_ONE: usize = 16;

/// Time after which a caller whose request was refused can send it again.
pub(super) const AGAIN: Span = Span::from_ms(100);

/// Waiting requests that can change reservations, in the order in which they will be executed. Each
/// has the result of its look-up, or `None` if it needed no look-up when it arrived.
#[derive(Default)]
pub(super) struct DeferredRequests(Vec<(ClientRequest, Option<LookupResult>)>);

impl DeferredRequests {
    /// Stores a request until it is executed. Lists of reservations are executed after all other
    /// requests, because a list can wait for capacity again.
    ///
    /// # Errors
    /// If too many requests of the principal wait, or if the request is a list and another list of
    /// the principal waits. A request of an administrator is never refused.
    pub(super) fn keep(
        &mut self,
        asked: ClientRequest,
        looked: Option<LookupResult>,
    ) -> Result<(), (Ticket, Refusal)> {
        let own = self.0.iter().filter(|(other, _)| other.principal == asked.principal);
        let is_second = asked.request.is_list() && own.clone().any(|(it, _)| it.request.is_list());
        let is_limited = asked.role != Some(Role::Administrator);
        if is_limited && (is_second || own.count() >= MOST_OF_ONE) {
            let why = "a list of reservations waits for capacity".to_owned();
            return Err((asked.ticket, Refusal::NotNow { why, again: AGAIN }));
        }
        self.0.push((asked, looked));
        self.0.sort_by_key(|(asked, _)| asked.request.is_list());
        Ok(())
    }

    /// Removes and returns the next request, with the result of its look-up. Returns `None` if no
    /// request waits.
    ///
    /// The returned look-up result is `None` if the caller must start a look-up now: the request
    /// needed no look-up when it arrived, but `needs_lookup` now returns true for it.
    pub(super) fn take(
        &mut self,
        needs_lookup: impl Fn(&ClientRequest) -> bool,
    ) -> Option<(ClientRequest, Option<LookupResult>)> {
        if self.0.is_empty() {
            return None;
        }
        let (asked, looked) = self.0.remove(0);
        let is_ready = looked.is_some() || !needs_lookup(&asked);
        Some((asked, is_ready.then(|| looked.unwrap_or_default())))
    }

    /// Drops a request whose caller has disconnected.
    pub(super) fn cancel(&mut self, ticket: Ticket) {
        self.0.retain(|(asked, _)| asked.ticket != ticket);
    }

    /// Drops the requests for which `is_meant` returns true. Returns their tickets.
    pub(super) fn drop_if(&mut self, is_meant: impl Fn(&ClientRequest) -> bool) -> Vec<Ticket> {
        let dropped = self.0.extract_if(.., |(asked, _)| is_meant(asked));
        dropped.map(|(asked, _)| asked.ticket).collect()
    }
}

#[cfg(test)]
mod tests {
    use slackline_service::{Principal, Request};

    use super::*;

    fn asked(ticket: u64, user: u32, request: Request) -> ClientRequest {
        let (principal, role) = (Principal::User(user), Some(Role::Tenant));
        ClientRequest { ticket: Ticket(ticket), principal, role, users: vec![], key: None, request }
    }

    fn list() -> Request {
        Request::Apply { targets: Vec::new(), prune: true, dry_run: false, revision: None }
    }

    #[test]
    fn deferred_apply_requests_run_last_and_are_limited_per_user() {
        let mut deferred = DeferredRequests::default();
        let mut keep = |ticket, user, request| {
            let kept = deferred.keep(asked(ticket, user, request), None);
            kept.map_err(|(ticket, _)| ticket.0)
        };
        assert_eq!(keep(1, 1, list()), Ok(()));
        assert_eq!(keep(2, 1, list()), Err(2));
        assert_eq!(keep(3, 2, list()), Ok(()));
        assert_eq!(keep(4, 3, Request::Undo), Ok(()));
        for ticket in 5..20 {
            assert_eq!(keep(ticket, 1, Request::Undo), Ok(()));
        }
        assert_eq!(keep(20, 1, Request::Undo), Err(20));
        deferred.cancel(Ticket(5));
        let taken = std::iter::from_fn(|| deferred.take(|_| false));
        let order: Vec<u64> = taken.map(|(asked, _)| asked.ticket.0).collect();
        assert_eq!((order[0], &order[1..15]), (4, &(6..20).collect::<Vec<_>>()[..]));
        assert_eq!(order[15..], [1, 3]);
    }

    /// While a request waits, the list that it waits for can release the reservation that the
    /// request changes. Then the VM of the request must be looked up before the request is
    /// executed.
    #[test]
    fn deferred_request_needs_vm_lookup_if_reservation_was_released_meanwhile() {
        for (looked, needs_lookup, is_ready) in
            [(false, false, true), (false, true, false), (true, true, true)]
        {
            let mut deferred = DeferredRequests::default();
            let looked = looked.then(LookupResult::default);
            assert!(deferred.keep(asked(1, 1, Request::Undo), looked).is_ok());
            let (_, looked) = deferred.take(|_| needs_lookup).expect("one request waits");
            assert_eq!(looked.is_some(), is_ready);
        }
    }

    #[test]
    fn deferred_requests_of_caller_with_changed_access_are_dropped() {
        let mut deferred = DeferredRequests::default();
        for (ticket, user) in [(1, 1), (2, 2), (3, 1)] {
            assert!(deferred.keep(asked(ticket, user, Request::Undo), None).is_ok());
        }
        let is_meant = |asked: &ClientRequest| asked.principal == Principal::User(1);
        assert_eq!(deferred.drop_if(is_meant), [Ticket(1), Ticket(3)]);
        let next = deferred.take(|_| false);
        assert_eq!(next.map(|(asked, _)| asked.ticket), Some(Ticket(2)));
        assert!(deferred.take(|_| false).is_none());
    }
}
