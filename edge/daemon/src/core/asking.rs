//! Handling of requests that need a VM to be looked up before they can be executed.

use slackline_service::{ClientRequest, Input, Verb, World};

use super::Core;
use super::lookups::EndedLookup;

impl Core {
    /// Executes a request, or starts the look-up of its VM. A request that would be refused in any
    /// case is refused without a look-up.
    pub(super) fn hear_asked(&mut self, asked: ClientRequest) {
        // The request is moved below, and `sought` borrows from it.
        let (request, now) = (asked.request.clone(), self.host.now());
        let user = self.service.sought_user(&asked);
        if self.service.sought(&request).is_none() {
            return self.do_asked(request.verb(), Input::Asked(asked));
        }
        if let Err(refusal) = self.service.count(now, &asked) {
            return World::reply(&mut self.host, asked.ticket, &Err(refusal));
        }
        if let Some(sought) = self.service.sought(&request) {
            self.host.seek(asked, sought, user);
        }
    }

    fn do_asked(&mut self, verb: Verb, input: Input) {
        let began = self.host.now();
        self.step(input);
        if let Some((asked, listing)) = self.host.fresh_listing.take() {
            self.host.answer_find((&asked, &listing), &self.service);
        }
        self.note_effect(verb, began);
    }

    pub(super) fn hear_lookups(&mut self) {
        let now = self.host.now();
        for done in self.host.lookups.done(now) {
            match done {
                EndedLookup::Listed(asked, listing) => {
                    self.host.answer_find((&asked, &listing), &self.service);
                }
                EndedLookup::Looked(done) => {
                    let (asked, looked) = *done;
                    self.host.sought(looked);
                    self.do_asked(asked.request.verb(), Input::Sought(asked));
                    self.host.forget_looked();
                }
            }
        }
    }
}
