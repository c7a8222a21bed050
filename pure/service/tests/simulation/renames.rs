//! Tests of libvirt domains that are renamed while they are off.

use slackline_service::{Binding, EventKind, Input, State};
use slackline_units::Span;

use crate::kernel::DAEMON;
use crate::requests::{self, ROOT};
use crate::run::Run;

fn binding(text: &str) -> Binding {
    text.parse().expect("a binding")
}

fn uuid(last: u8) -> Binding {
    binding(&format!("uuid:0f9c27aa-0000-4000-8000-0000000000{last:02}"))
}

/// Makes a reservation for a libvirt domain, bound to its name.
fn reserve(run: &mut Run, name: &str) {
    let request = requests::reserve(name, &format!("libvirt:{name}"), 2, None);
    run.ask(ROOT, request, None).expect("no check fails");
    pass(run);
}

fn pass(run: &mut Run) {
    run.pass(Span::from_ms(100)).expect("no check fails");
}

/// Returns a run with a reservation for the libvirt domain `web` with UUID 1. The domain was
/// scheduled and then shut down.
fn off() -> Run {
    let mut run = Run::new(1, None, false);
    run.model.kernel.start_domain("web", DAEMON, &uuid(1));
    reserve(&mut run, "web");
    run.model.kernel.end("web");
    run.tell().expect("no check fails");
    pass(&mut run);
    assert_eq!(bound(&run), [("libvirt:web".to_owned(), State::Waiting)]);
    run
}

fn renamed(run: &mut Run) {
    let (from, to) = (binding("libvirt:web"), binding("libvirt:shop"));
    run.step(Input::Renamed { from, to }).expect("no check fails");
    pass(run);
}

fn bound(run: &Run) -> Vec<(String, State)> {
    let all = run.service.listed().map(|(_, one)| (one.row.binding.to_string(), one.state));
    all.collect()
}

#[test]
fn reservation_follows_a_renamed_libvirt_domain_with_an_equal_uuid() {
    for dies in [false, true] {
        let mut run = off();
        if dies {
            run.die().expect("no check fails");
        }
        run.model.kernel.start_domain("shop", DAEMON, &uuid(1));
        renamed(&mut run);
        assert_eq!(bound(&run), [("libvirt:shop".to_owned(), State::Active)]);
        let what: Vec<String> =
            run.model.disk.events.iter().map(|event| event.what.to_string()).collect();
        let last = ["renamed: libvirt:web is now libvirt:shop", "appeared"];
        assert_eq!(what[what.len() - 2..], last);
        // After a restart, the reservation is still bound to the new name.
        run.die().expect("no check fails");
        assert_eq!(bound(&run), [("libvirt:shop".to_owned(), State::Active)]);
        run.finish().expect("no check fails");
    }
}

#[test]
fn reservation_does_not_follow_domain_with_another_uuid_or_user() {
    for (user, last) in [(DAEMON, 2), (7, 1)] {
        let mut run = off();
        run.model.kernel.start_domain("shop", user, &uuid(last));
        renamed(&mut run);
        assert_eq!(bound(&run), [("libvirt:web".to_owned(), State::Waiting)], "{user} {last}");
    }
}

#[test]
fn reservation_bound_to_new_domain_name_has_precedence_over_rename() {
    let mut run = off();
    reserve(&mut run, "shop");
    run.model.kernel.start_domain("shop", DAEMON, &uuid(1));
    renamed(&mut run);
    run.tell().expect("no check fails");
    let web = ("libvirt:web".to_owned(), State::Waiting);
    assert_eq!(bound(&run), [("libvirt:shop".to_owned(), State::Active), web]);
    let events = run.model.disk.events.iter();
    assert!(!events.clone().any(|event| matches!(event.what, EventKind::Renamed(_))));
}
