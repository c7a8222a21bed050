//! Handling of requests that cannot be executed before their VM has been looked up, and of the
//! results of discovery passes.

use slackline_service::{ClientRequest, Input, Refusal, Role, Verb, World};

use super::Core;
use super::deferred::AGAIN;
use super::scout::{LookupResult, ScoutFinding, VmUsers};

impl Core {
    /// Executes a request, or starts the look-up of the VM that the request names. A request that
    /// would be refused whatever the look-up finds is refused without a look-up.
    pub(super) fn hear_asked(&mut self, asked: ClientRequest) {
        if asked.role == Some(Role::Administrator) {
            self.host.ledger.note_administrator(asked.principal);
        }
        let now = self.host.now();
        if self.service.sought(&asked).is_none() {
            if !self.service.must_wait(&asked) {
                return self.do_asked(asked.request.verb(), Input::Asked(asked));
            }
            return match self.service.count(now, &asked) {
                Ok(()) => self.defer(asked, None),
                Err(refusal) => World::reply(&mut self.host, asked.ticket, &Err(refusal)),
            };
        }
        if let Err(refusal) = self.service.count(now, &asked) {
            return World::reply(&mut self.host, asked.ticket, &Err(refusal));
        }
        self.begin_lookup(asked);
    }

    /// Starts the look-up of the VM that a request names.
    fn begin_lookup(&mut self, asked: ClientRequest) {
        // The request is moved below, and `sought` borrows from it.
        let request = asked.clone();
        let (meant, may_ask) =
            (self.service.sought_user(&asked), self.service.users_to_ask(&asked));
        let hides_others = asked.role == Some(Role::Tenant);
        if let Some(sought) = self.service.sought(&request) {
            self.host.seek(asked, sought, VmUsers { meant, may_ask, hides_others });
        }
    }

    /// Stores a request while a list of reservations (`slackline apply`) waits for capacity.
    /// `looked` is the result of the request's look-up, if there was one.
    fn defer(&mut self, asked: ClientRequest, looked: Option<LookupResult>) {
        if let Err((ticket, refusal)) = self.deferred.keep(asked, looked) {
            World::reply(&mut self.host, ticket, &Err(refusal));
        }
    }

    /// Executes the requests that were stored while a list of reservations (`slackline apply`)
    /// waited for capacity. If the list has released the reservation that a request names, the VM
    /// of the request must perhaps be looked up first.
    pub(super) fn hear_deferred(&mut self) {
        while !self.service.has_postponed_list()
            && let Some((asked, looked)) =
                self.deferred.take(|asked| self.service.sought(asked).is_some())
        {
            match looked {
                Some(looked) => self.do_sought(asked, looked),
                None => self.begin_lookup(asked),
            }
        }
    }

    /// Refuses the waiting requests for which `is_meant` returns true. A request waits for a
    /// look-up, or for a list of reservations that waits for capacity. Must be called when the
    /// access of callers has changed. Otherwise a waiting request would be executed with the old
    /// rights of its caller.
    pub(super) fn refuse_waiting(&mut self, is_meant: impl Fn(&ClientRequest) -> bool) {
        let mut tickets = self.deferred.drop_if(&is_meant);
        tickets.extend(self.host.lookups.drop_if(&is_meant));
        for ticket in tickets {
            let why = "the access of the caller was changed".to_owned();
            let refusal = Refusal::NotNow { why, again: AGAIN };
            World::reply(&mut self.host, ticket, &Err(refusal));
        }
    }

    fn do_sought(&mut self, asked: ClientRequest, looked: LookupResult) {
        self.host.sought(looked);
        self.do_asked(asked.request.verb(), Input::Sought(asked));
        self.host.forget_looked();
    }

    fn do_asked(&mut self, verb: Verb, input: Input) {
        let began = self.host.now();
        self.step(input);
        self.note_effect(verb, began);
    }

    pub(super) fn hear_lookups(&mut self) {
        let now = self.host.now();
        for (asked, mut looked) in self.host.lookups.done(now) {
            let threads = std::mem::take(&mut looked.deadline_threads);
            self.host.scheduler.deadline_threads = threads;
            if self.service.must_wait(&asked) {
                self.defer(asked, Some(looked));
            } else {
                self.do_sought(asked, looked);
            }
        }
        // An answer with a list of VMs is long. So each such answer waits until the front process
        // has read all other answers. In between, requests of other callers are read and answered.
        while self.host.front.as_ref().is_none_or(|front| !front.is_behind())
            && let Some((asked, listing)) = self.host.lookups.next_list()
        {
            self.host.answer_find((&asked, &listing), &self.service);
        }
    }

    pub(super) fn hear_scout(&mut self) {
        for seen in self.host.scout.seen() {
            match seen {
                ScoutFinding::Here(binding, user, found) => {
                    self.host.keep_found(Some(&binding), found);
                    self.step(Input::Appeared { binding, user });
                }
                ScoutFinding::Renamed(from, found) => {
                    let to = found.machine.binding.clone();
                    self.host.keep_found(Some(&to), found);
                    self.step(Input::Renamed { from, to });
                }
                ScoutFinding::Suspended(domain, identity, what) => {
                    if self.service.suspended(domain) != what.as_deref() {
                        self.host.begin_numbers(domain);
                    }
                    self.step(Input::Suspended { domain, identity, what });
                }
                ScoutFinding::NotFound(binding, user, error) => {
                    self.step(Input::NotFound { binding, user, error });
                }
                ScoutFinding::Unclear(domain, identity, why) => {
                    self.step(Input::Unclear { domain, identity, why });
                }
                ScoutFinding::Vcpus(domain, found) => {
                    let machine = found.machine.in_service();
                    self.host.keep_found(None, found);
                    self.step(Input::Vcpus { domain, machine });
                }
                ScoutFinding::DeadlineThreads(threads) => {
                    self.host.scheduler.deadline_threads = threads;
                }
                // The other messages answer look-ups of single requests.
                ScoutFinding::Machines(_) | ScoutFinding::Looked(_) => {}
                ScoutFinding::Around => {
                    self.host.forget_around();
                    self.host.scheduler.forget_found();
                }
            }
        }
    }
}
