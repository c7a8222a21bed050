//! Start of the flight recorder, and exchange of queries and replies between the recorder and the
//! daemon's main thread.

use slackline_control::{Kind, Problem};
use slackline_live::session::knowledge;
use slackline_service::{Input, Principal, Service, Ticket};
use slackline_trace::Header;

use super::flight::{Flight, FlightReply, Question};
use super::host::Host;
use super::own::OwnVms;
use super::{Core, POLICY, RESERVE, ServeOptions, tally, wire};

impl Core {
    /// Starts the flight recorder, and reserves CPU time for the front process. If the recorder
    /// cannot be started, the daemon runs without it.
    pub(super) fn begin(&mut self, options: &ServeOptions, tell: &mut dyn FnMut(&str)) {
        if options.is_recorded {
            let policy = format!("{POLICY} reserve={RESERVE}");
            let cpus = self.host.scheduler.cpus().to_vec();
            let parameters = super::policy().1.to_string();
            let header = tally::header(&policy, cpus.len(), knowledge());
            let header = Header { parameters, ..header };
            let session = &self.host.scheduler.session;
            match Flight::start(session, &cpus, header, &options.state) {
                Ok(flight) => self.host.flight = Some(flight),
                Err(error) => tell(&format!("cannot start the flight recorder: {error}")),
            }
        }
        self.promise_front(tell);
        self.say_ready(tell);
    }

    /// Sends the replies of the flight recorder to the clients.
    pub(super) fn hear_flight(&mut self, tell: &mut dyn FnMut(&str)) {
        let replies = self.host.flight.as_mut().map(Flight::replies).unwrap_or_default();
        for reply in replies {
            match reply {
                FlightReply::Answer(ticket, Ok(answer)) => {
                    self.host.say(&wire::answered(ticket, answer));
                }
                FlightReply::Answer(ticket, Err(problem)) => {
                    self.host.say(&wire::refused(ticket, problem));
                }
                FlightReply::Incident(Ok(incident)) => {
                    let (name, missed, id) = (incident.name, incident.missed, incident.id);
                    tell(&format!("{name} missed {missed} deadlines: saved as incident {id}"));
                    if let Ok(name) = name.parse() {
                        self.step(Input::Incident { name, missed, id });
                    }
                }
                FlightReply::Incident(Err(why)) => tell(&why),
            }
        }
    }
}

impl Host {
    /// Passes a client's query to the flight recorder. If the client is a tenant, `tenant` is the
    /// client's principal. Tenants may see only their own VMs.
    pub(super) fn ask_flight(
        &mut self,
        ((ticket, principal), question): ((Ticket, Principal), Question),
        tenant: Option<Principal>,
        service: &Service,
    ) {
        let rows = service.listed().map(|(_, listed)| listed.row);
        let own = tenant.map(|tenant| {
            let own = rows.filter(|row| row.owner == tenant);
            OwnVms::new(own.map(|row| (row.name.to_string(), self.ledger.begun(&row))))
        });
        if let Question::Why(name) = &question {
            let is_there = match &own {
                Some(own) => own.contains(name),
                None => service.listed().any(|(_, listed)| listed.row.name.as_str() == name),
            };
            if !is_there {
                let detail = format!("there is no reservation {name}");
                let problem = Problem::new(Kind::NoSuchReservation, detail);
                return self.say(&wire::refused(ticket, problem));
            }
            if let Err(problem) = check_mechanism(name, service) {
                return self.say(&wire::refused(ticket, problem));
            }
        }
        let asked = match &mut self.flight {
            None => Err(Problem::new(Kind::NotNow, "the flight recorder is off")
                .hinting("start the daemon without --no-recorder")),
            Some(flight) => flight.ask((ticket, principal), question, own),
        };
        if let Err(problem) = asked {
            self.say(&wire::refused(ticket, problem));
        }
    }
}

/// Checks that the flight recorder can tell when the VM `name` waits for a CPU. The recorder cannot
/// if the kernel enforces the reservation: a thread under `SCHED_DEADLINE` can run on a CPU that
/// the daemon does not record.
fn check_mechanism(name: &str, service: &Service) -> Result<(), Problem> {
    let mut rows = service.listed().map(|(_, listed)| listed.row);
    let row = rows.find(|row| row.name.as_str() == name);
    let by = row.map(|row| row.terms.enforcement()).filter(|by| by.is_of_kernel());
    let Some(by) = by else { return Ok(()) };
    let detail = format!(
        "cannot explain the waits of {name}: the kernel enforces its reservation (`{by}`), so its \
         waits are not recorded"
    );
    let hint = format!("run `slackline change {name} --enforce dispatcher`, and ask again");
    Err(Problem::new(Kind::HostCannot, detail).hinting(hint))
}
