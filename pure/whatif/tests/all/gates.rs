//! Tests of the gate. The gate accepts a recording if the simulation of the recording agrees with
//! the recording. For each refused recording, the gate names a cause.

use slackline_sim::trace_header;
use slackline_trace::{Entry, Exchange, Record, Sink, VcpuName};
use slackline_units::{DomId, Span, Time, VcpuId};
use slackline_whatif::{Cause, Form, Gate, Model, Recorder, Recording, gate};

use crate::record::{THREE, entries, recorded, recorded_live, recording, repeated, scenario};

fn gated(recording: &Recording) -> Gate {
    let model = Model::new(recording).expect("a simulated trace has a model");
    gate(recording, &model).expect("its own reservations are admitted")
}

/// Returns a scenario with three VMs in which each context switch costs `switch`.
fn costly(switch: &str) -> String {
    format!("host.switch = \"{switch}\"\n{}", THREE.trim_start())
}

#[test]
fn whatif_accepts_a_recording_with_constant_costs() {
    for switch in ["0s", "5us", "100us"] {
        let gate = gated(&recorded(&costly(switch)));
        assert!(gate.passes(), "{switch}: {:#?}", gate.forms);
        assert_eq!(gate.cause, None);
    }
}

/// Returns a trace entry with all its times shifted later by `length`. `None` if the test leaves
/// out entries of this kind.
fn behind(entry: &Entry, length: Span) -> Option<Entry> {
    let later = |at: &Time| at.after(length);
    Some(Entry::Record(match entry {
        Entry::Record(Record::Ran { from, to, vcpu, cpu, used, granted, late, end, due }) => {
            let (from, to) = (later(from), later(to));
            let (vcpu, cpu, used, granted) = (*vcpu, *cpu, *used, *granted);
            Record::Ran { vcpu, cpu, from, to, used, granted, late: *late, end: *end, due: *due }
        }
        Entry::Record(Record::Woke { at, vcpu }) => Record::Woke { at: later(at), vcpu: *vcpu },
        Entry::Record(Record::Blocked { at, vcpu }) => {
            Record::Blocked { at: later(at), vcpu: *vcpu }
        }
        Entry::Record(Record::Spent { cpu, vcpu, kind, from, to }) => {
            let (from, to) = (later(from), later(to));
            Record::Spent { cpu: *cpu, vcpu: *vcpu, kind: *kind, from, to }
        }
        Entry::Record(Record::Ended { at }) => Record::Ended { at: later(at) },
        Entry::Record(Record::Joined { at, vcpu }) => Record::Joined { at: later(at), vcpu: *vcpu },
        Entry::Record(Record::Promised { at, vcpu, reservation, exact, phase, by }) => {
            let (at, vcpu) = (later(at), *vcpu);
            let (reservation, exact, phase) = (*reservation, *exact, *phase);
            Record::Promised { at, vcpu, reservation, exact, phase, by: *by }
        }
        Entry::Named(named) => {
            return Some(Entry::Named(VcpuName { at: later(&named.at), ..named.clone() }));
        }
        _ => return None,
    }))
}

/// Returns true for the kinds of entries with which a trace begins: names, joins and reservations.
fn begins(entry: &Entry) -> bool {
    matches!(
        entry,
        Entry::Named(_) | Entry::Record(Record::Joined { .. } | Record::Promised { .. })
    )
}

#[test]
fn whatif_accepts_a_recording_that_began_in_mid_run() {
    let scenario = scenario(THREE);
    let before = Span::from_secs(1000);
    let all = entries(&scenario);
    let moved: Vec<Entry> = all.iter().filter_map(|entry| behind(entry, before)).collect();
    let begin = Time::START + before;
    let mut recorder = Recorder::new(&trace_header(&scenario), (begin, begin + scenario.length));
    moved.iter().for_each(|entry| entry.pass_to(&mut recorder));
    let recording = recorder.finish().expect("all vCPUs are named");
    assert!(recording.demand.vcpus.iter().all(|vcpu| vcpu.terms.is_none()));
    assert_eq!(recording.length(), scenario.length);
    assert_eq!(repeated(&recording), [recording.whole.clone(), recording.whole]);
}

/// Changes the id of a vCPU in an entry.
fn renumber(entry: &mut Entry, from: VcpuId, to: VcpuId) {
    let vcpu = match entry {
        Entry::Named(named) => &mut named.vcpu,
        Entry::Record(
            Record::Ran { vcpu, .. }
            | Record::Woke { vcpu, .. }
            | Record::Blocked { vcpu, .. }
            | Record::Joined { vcpu, .. }
            | Record::Promised { vcpu, .. }
            | Record::Spent { vcpu: Some(vcpu), .. },
        ) => vcpu,
        _ => return,
    };
    if *vcpu == from {
        *vcpu = to;
    }
}

/// The service runs its own front process under a reservation. A new front process replaces one
/// that has ended.
#[test]
fn whatif_omits_the_front_end_process_of_the_daemon() {
    let scenario = scenario(THREE);
    let db = scenario.domains[1].vcpus[0];
    let front = VcpuId::new(u32::try_from(db.slot()).expect("three"), DomId::OF_SERVICE, 0);
    let all = entries(&scenario);
    let mut all: Vec<Entry> = all.iter().filter_map(|entry| behind(entry, Span::ZERO)).collect();
    all.iter_mut().for_each(|entry| renumber(entry, db, front));
    let whole = recording(&trace_header(&scenario), &all, scenario.length);
    let model = Model::new(&whole).expect("the recording has a model");
    let gate = gated(&whole);
    assert!(gate.passes(), "{:#?}", gate.forms);
    let rows = gate.forms[0].rows.iter().map(|row| row.recorded.name.as_str());
    assert_eq!(rows.collect::<Vec<_>>(), ["web", "batch"]);
    let [simulated, _] = repeated(&whole);
    let simulated = simulated.iter().map(|it| it.name.as_str());
    assert_eq!(simulated.collect::<Vec<_>>(), ["web", "batch"]);
    let planned = model.reservations().flatten().map(|it| it.name);
    assert_eq!(planned.collect::<Vec<_>>(), ["web", "batch"]);
    let is_end = |entry: &Entry| match entry {
        Entry::Record(Record::Blocked { at, vcpu }) => {
            (*vcpu == front && *at > Time::START + Span::from_secs(5)).then_some(*at)
        }
        _ => None,
    };
    let place = all.iter().position(|entry| is_end(entry).is_some()).expect("a block");
    let at = is_end(&all[place]).expect("a block");
    let begin = all.iter().filter_map(|entry| match entry {
        Entry::Named(named) if named.vcpu == front => {
            Some(Entry::Named(VcpuName { at, ..named.clone() }))
        }
        Entry::Record(Record::Joined { vcpu, .. }) if *vcpu == front => {
            Some(Entry::Record(Record::Joined { at, vcpu: front }))
        }
        Entry::Record(Record::Promised { vcpu, reservation, exact, phase, by, .. })
            if *vcpu == front =>
        {
            let (vcpu, reservation, exact, phase) = (*vcpu, *reservation, *exact, *phase);
            Some(Entry::Record(Record::Promised { at, vcpu, reservation, exact, phase, by: *by }))
        }
        _ => None,
    });
    let left = Entry::Record(Record::Left { at, vcpu: front });
    let again: Vec<Entry> = std::iter::once(left).chain(begin).collect();
    drop(all.splice(place + 1..place + 1, again));
    let replaced = recording(&trace_header(&scenario), &all, scenario.length);
    assert_eq!(replaced.demand.vcpus.len(), 4, "the front process joined twice");
    let model = Model::new(&replaced).expect("the VMs joined once");
    let planned = model.reservations().flatten().map(|it| it.name);
    assert_eq!(planned.collect::<Vec<_>>(), ["web", "batch"]);
}

#[test]
fn whatif_accepts_recordings_with_late_timers_and_models_the_lateness() {
    for lateness in ["30us", "uniform 0s 80us", "exponential 40us"] {
        let costs = format!("host.timer_lateness = \"{lateness}\"\n{}", THREE.trim_start());
        let gate = gated(&recorded(&costs));
        assert!(gate.passes(), "{lateness}: {:#?}", gate.forms);
    }
}

#[test]
fn whatif_refuses_a_recording_with_costs_that_change_half_way() {
    let [cheap, dear] = ["5us", "400us"].map(|switch| scenario(&costly(switch)));
    let mut spliced = entries(&cheap);
    spliced.retain(|entry| !matches!(entry, Entry::Record(Record::Ended { .. })));
    let later = |entry| behind(entry, cheap.length);
    let ends = spliced.len();
    spliced.extend(entries(&dear).iter().filter(|it| !begins(it)).filter_map(later));
    assert!(spliced.len() > ends + 1000);
    let recording = recording(&trace_header(&cheap), &spliced, cheap.length * 2);
    let gate = gated(&recording);
    assert!(!gate.passes(), "{:#?}", gate.forms);
    let Some(Cause::CostsChanged(ppm)) = gate.cause else { panic!("{:?}", gate.cause) };
    assert!(ppm > 50_000, "{ppm}");
}

/// Sink that halves the CPU time of the CPU-bound VM from `split` on, as if another program had
/// used the rest.
struct Hog<'a, S> {
    split: Time,
    sink: &'a mut S,
}

impl<S: Sink> Sink for Hog<'_, S> {
    fn record(&mut self, record: &Record) {
        let mut record = *record;
        if let Record::Ran { vcpu, from, used, .. } = &mut record
            && vcpu.slot() == 2
            && *from > self.split
        {
            *used = *used / 2;
        }
        self.sink.record(&record);
    }

    fn named(&mut self, named: &VcpuName) {
        self.sink.named(named);
    }

    fn wants_exchanges(&self) -> bool {
        true
    }

    fn exchange(&mut self, exchange: &Exchange) {
        self.sink.exchange(exchange);
    }
}

/// Returns the gate's result for a recording in which the CPU-bound VM lacks CPU time from `split`
/// on.
fn lacking_from(split: Span, text: &str) -> Gate {
    let scenario = scenario(text);
    let mut changed: Vec<Entry> = Vec::new();
    let mut hog = Hog { split: Time::START + split, sink: &mut changed };
    entries(&scenario).iter().for_each(|entry| entry.pass_to(&mut hog));
    gated(&recording(&trace_header(&scenario), &changed, scenario.length))
}

#[test]
fn refusal_states_no_cause_if_vm_always_lacks_cpu_time() {
    let gate = lacking_from(Span::ZERO, THREE);
    assert!(!gate.passes());
    assert_eq!(gate.cause, Some(Cause::Unexplained));
}

#[test]
fn refusal_of_recording_names_the_last_change_of_a_vm() {
    let change = |at: &str, domain: &str, slice: &str| {
        format!(
            "[[change]]\nat = \"{at}\"\ndomain = \"{domain}\"\nshare.sedf = {{ slice = \
             \"{slice}\", period = \"10ms\" }}\n"
        )
    };
    let changed =
        format!("{THREE}{}{}", change("4s", "web", "2ms"), change("5900ms", "batch", "1ms"));
    let gate = lacking_from(Span::ZERO, &changed);
    assert!(!gate.passes());
    let last = gate.change.expect("two changes");
    assert_eq!((last.vm.as_deref(), last.gone_after()), (Some("batch"), Span::from_secs(7)));
    let says = "batch was changed from 2ms/10ms to 1ms/10ms, 4.1s before the end of the recording";
    assert_eq!(last.to_string(), says);
    let hidden = last.hidden();
    assert_eq!(hidden.to_string(), "another VM changed, 4.1s before the end of the recording");
    assert_eq!(lacking_from(Span::ZERO, THREE).change, None, "no VM changed");
}

#[test]
fn whatif_refuses_a_recording_with_different_shares_in_its_halves() {
    let limited =
        THREE.replace(r#""2ms", period = "10ms""#, r#""2ms", period = "10ms", extra = false"#);
    let gate = lacking_from(scenario(THREE).length / 2, &limited);
    assert!(!gate.passes());
    let Some(Cause::HalvesDiffer(halves)) = &gate.cause else { panic!("{:?}", gate.cause) };
    let half = halves.first_ppm / 2;
    assert!(halves.second_ppm.abs_diff(half) < half / 5, "{halves:?}");
    let text = gate.cause.as_ref().map(ToString::to_string).unwrap_or_default();
    assert!(text.starts_with(&halves.name) && text.contains("in the first half"), "{text}");
}

/// A vCPU without a hard limit receives different shares in the two halves of the recording. The
/// gate refuses the recording, but names another cause.
#[test]
fn unequal_recording_halves_explain_refusal_only_under_hard_limit() {
    let gate = lacking_from(scenario(THREE).length / 2, THREE);
    assert!(!gate.passes());
    assert!(!matches!(gate.cause, None | Some(Cause::HalvesDiffer(_))), "{:?}", gate.cause);
}

/// A VM with a hard limit, which is stopped 100 us late in each period.
const LATE: &str = "title = \"late\"\nlength = \"2s\"\npolicy = { name = \"edf\" }\n\
    [[domain]]\nname = \"web\"\nwork = { kind = \"spin\" }\nstop_lateness = \"100us\"\n\
    share.edf = { slice = \"2ms\", period = \"10ms\", exact = true }\n";

#[test]
fn scenario_written_from_live_recording_contains_vm_stop_lateness() {
    let recording = recorded_live(LATE);
    let model = Model::new(&recording).expect("the trace has a model");
    let written = model.written(&recording.demand, Form::Open, "it").expect("valid parameters");
    let late = "stop_lateness = \"quantiles 100us 100us 100us 100us 100us 100us 100us\"";
    assert!(written.text.contains(late), "{}", written.text);
}

#[test]
fn share_tolerance_on_live_host_includes_slice_and_late_stops() {
    let chance = |recording: &Recording| {
        let model = Model::new(recording).expect("the trace has a model");
        let gate = gate(recording, &model).expect("its own reservation is admitted");
        gate.forms[0].rows[0].chance_ppm
    };
    // In a second, 2 ms for a slice, and 20 us for each of about 100 stops.
    let live = chance(&recorded_live(LATE));
    assert!((3_900..=4_000).contains(&live), "{live} millionths");
    assert_eq!(chance(&recorded(LATE)), 0, "a simulated host repeats itself");
}
