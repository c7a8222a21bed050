//! Tests of other programs of the host, which are simulated from the records of their threads.

use slackline_scenario::Scenario;
use slackline_sim::trace_header;
use slackline_trace::{Entry, HostThread, HostThreadId, HostThreadKind, OffCpu, RanEnd, Record};
use slackline_units::{CpuId, Enforcement, Span, VcpuId};
use slackline_whatif::{
    Edit, Form, Gate, LeftOutReason, LeftOutVm, Model, Recording, forecast, gate,
};

use crate::record::{entries, recording, repeated};

/// Scenario of two VMs and a program that computes for half of the time. One VM uses slack.
const BESIDE: &str = r#"
title = "beside a program"
length = "10s"
policy = { name = "edf", quantum = "3ms" }
[[interference]]
cpu = 0
file = "irq.csv"
[[domain]]
name = "web"
share.edf = { slice = "3ms", period = "10ms" }
work = { kind = "interactive", compute = "exponential 2ms", sleep = "exponential 6ms" }
[[domain]]
name = "batch"
share.edf = { slice = "2ms", period = "10ms" }
work = { kind = "spin" }
[[domain]]
name = "program"
share.edf = { slice = "1ns", period = "1s" }
work = { kind = "interactive", compute = "exponential 20ms", sleep = "exponential 20ms" }
"#;

fn thread(number: u32, kind: HostThreadKind) -> Entry {
    let name = String::from("program");
    Entry::HostThread(Box::new(HostThread {
        at: slackline_units::Time::START,
        id: HostThreadId::new(number),
        kind,
        vcpu: None,
        tid: number,
        process: number,
        user: 0,
        name: name.clone(),
        command: name,
        vm: String::new(),
        group: String::new(),
    }))
}

/// Converts records of the vCPU `program` to records of a host thread, and interference to
/// interference by a kernel thread. `None` if the entry is left out.
fn as_host(entry: &Entry, program: VcpuId) -> Option<Entry> {
    let on_cpu = |number: u32, cpu: CpuId, (from, to), end| {
        let thread = HostThreadId::new(number);
        Some(Entry::Record(Record::OnCpu { thread, cpu, from, to, end }))
    };
    match entry {
        Entry::Record(Record::Ran { vcpu, cpu, from, to, used, end, .. }) if *vcpu == program => {
            // The kernel would record each interval between the interferences separately.
            let from = &from.after(to.since(*from) - *used);
            let end = if *end == RanEnd::Blocked { OffCpu::Blocked } else { OffCpu::Ready };
            on_cpu(1, *cpu, (*from, *to), end)
        }
        Entry::Record(Record::Woke { at, vcpu }) if *vcpu == program => {
            let mark = slackline_trace::WakeMark::Waking;
            let (thread, cpu) = (HostThreadId::new(1), CpuId::new(0));
            Some(Entry::Record(Record::Awoken { at: *at, thread, cpu, mark }))
        }
        Entry::Record(Record::Spent { cpu, vcpu: None, from, to, .. }) => {
            on_cpu(2, *cpu, (*from, *to), OffCpu::Blocked)
        }
        Entry::Record(
            Record::Joined { vcpu, .. }
            | Record::Promised { vcpu, .. }
            | Record::Blocked { vcpu, .. }
            | Record::Left { vcpu, .. },
        ) if *vcpu == program => None,
        Entry::Named(named) if named.vcpu == program => None,
        entry => Some(entry.clone()),
    }
}

/// Returns a recording of two VMs on a host on which a program and a kernel thread also use the
/// CPU. The trace has records of their threads only if `has_threads` is true.
fn beside(has_threads: bool) -> Recording {
    let jobs: String = (1..1_000).map(|n: u64| format!("{},400000\n", n * 9_700_000)).collect();
    let jobs = format!("ready_ns,work_ns\n{jobs}");
    let scenario = Scenario::with_files(BESIDE, &|_| Ok(jobs.clone()));
    let scenario = scenario.unwrap_or_else(|error| panic!("{error}"));
    let program = scenario.domains[2].vcpus[0];
    let entries = entries(&scenario);
    let entries = entries.iter().filter_map(|entry| as_host(entry, program));
    let threads = [thread(1, HostThreadKind::Process), thread(2, HostThreadKind::Kernel)];
    let threads: Vec<Entry> = threads.into_iter().filter(|_| has_threads).collect();
    let entries: Vec<Entry> = threads.into_iter().chain(entries).collect();
    recording(&trace_header(&scenario), &entries, scenario.length)
}

fn gated(recording: &Recording) -> (Model, Gate) {
    let model = Model::new(recording).expect("the recording has a model");
    let gate = gate(recording, &model).expect("its own reservations are admitted");
    (model, gate)
}

/// Returns the names of the vCPUs with simulated results in the open form.
fn simulated_names(recording: &Recording) -> Vec<String> {
    let [open, _] = repeated(recording);
    open.into_iter().map(|it| it.name).collect()
}

#[test]
fn whatif_simulates_other_programs_and_kernel_threads_of_the_host() {
    let recording = beside(true);
    let others = &recording.demand.others;
    assert_eq!((others.competitors.len(), others.interference.len()), (1, 1));
    let taken: Span = others.interference[0].1.iter().map(|job| job.work).sum();
    assert_eq!(taken, Span::from_us(400 * 999));
    let (_, gate) = gated(&recording);
    let row = |row: &slackline_whatif::GateRow| {
        let of = |it: &slackline_whatif::Measures| (it.share_ppm, it.wait_p99);
        (of(&row.recorded), row.simulated.as_ref().map(of))
    };
    let rows: Vec<_> = gate.forms[0].rows.iter().map(row).collect();
    assert!(gate.forms[0].passes(), "{rows:?}");
    assert_eq!(simulated_names(&recording), ["web", "batch"], "programs have no results");
    let (_, without) = gated(&beside(false));
    assert!(!without.passes(), "{:#?}", without.forms);
}

#[test]
fn whatif_removes_or_renumbers_programs_together_with_their_cpu() {
    let recording = Recording { cpus: vec![CpuId::new(3)], ..beside(true) };
    let written = |cpus: &[usize]| {
        let (mut model, _) = gated(&recording);
        model.edit(&[Edit::Cpus(cpus.to_vec())]).expect("the VMs may run on all CPUs");
        let written = model.written(&recording.demand, Form::Open, "it");
        written.expect("it can be written").text
    };
    // CPU 3 of the host is the second CPU now.
    let text = written(&[2, 3]);
    assert!(text.contains("[[interference]]\ncpu = 1\n"), "{text}");
    let (_, program) = text.split_once("name = \"OTHERS-0\"").expect("the program");
    assert!(program.contains("cpus = [1]"), "{text}");
    let text = written(&[2]);
    assert!(!text.contains("OTHERS-0") && !text.contains("[[interference]]"), "{text}");
}

#[test]
fn whatif_predicts_reserved_share_if_vm_gets_a_hard_limit() {
    let recording = beside(true);
    let (mut model, gate) = gated(&recording);
    let set = Edit::Set { name: "batch".into(), field: "exact".into(), value: "true".into() };
    model.edit(&[set]).expect("`edf` has hard limits");
    let forecast = forecast(&recording, &gate, &model).expect("it is admitted");
    let batch = forecast.rows.iter().find(|row| row.name == "batch").expect("its row");
    let (least, most) = batch.interval(|it| Some(it.share_ppm)).expect("a share");
    assert!(least >= 195_000 && most <= 201_000, "{least} {most}");
}

/// In a simulation a program has the smallest possible reservation, although it has none on a real
/// host. Under `sedf` the smallest possible slice would be too short.
#[test]
fn whatif_admits_vms_that_fill_the_cpu_beside_programs() {
    let recording = beside(true);
    let (model, gate) = gated(&recording);
    let predict = |edits: &[Edit]| {
        let mut model = model.clone();
        model.edit(edits).expect("the edits are valid");
        forecast(&recording, &gate, &model)
    };
    let filled = |slice: &str| {
        let (name, field, value) = ("batch".into(), "slice".into(), slice.into());
        [Edit::Policy("edf:reserve=0.1cpu".into()), Edit::Set { name, field, value }]
    };
    // The VM `web` reserves 0.3 of the 0.9 CPUs.
    predict(&filled("6ms")).expect("the slices fill the CPU");
    let refused = predict(&filled("6001us")).expect_err("the slices need more than the CPU");
    assert!(refused.to_string().contains("cannot admit `batch`"), "{refused}");
    predict(&[Edit::Policy("sedf".into())]).expect("the slices are long enough");
}

/// Returns a recording in which `program` is a VM under `deadline`.
fn beside_deadline() -> (Recording, Span) {
    let interference = "[[interference]]\ncpu = 0\nfile = \"irq.csv\"\n";
    let scenario = crate::record::scenario(&BESIDE.replace(interference, ""));
    let program = scenario.domains[2].vcpus[0];
    let mut of_vcpu = thread(1, HostThreadKind::Vcpu);
    if let Entry::HostThread(thread) = &mut of_vcpu {
        thread.vcpu = Some(program);
    }
    let mut used = Span::ZERO;
    let mut all = vec![of_vcpu];
    for mut entry in entries(&scenario) {
        let is_kept = match &mut entry {
            Entry::Record(Record::Promised { vcpu, by, .. }) if *vcpu == program => {
                *by = Enforcement::Deadline;
                true
            }
            Entry::Record(Record::Joined { vcpu, .. }) => *vcpu == program,
            Entry::Named(named) => named.vcpu == program,
            Entry::Record(Record::Ran { vcpu, used: ran, .. }) if *vcpu == program => {
                used += *ran;
                false
            }
            _ => false,
        };
        all.extend(if is_kept { Some(entry) } else { as_host(&entry, program) });
    }
    (recording(&trace_header(&scenario), &all, scenario.length), used)
}

#[test]
fn whatif_simulates_cpu_time_of_deadline_vm_as_interference() {
    let (recording, used) = beside_deadline();
    let others = &recording.demand.others;
    assert_eq!((others.competitors.len(), others.interference.len()), (0, 1));
    let taken: Span = others.interference[0].1.iter().map(|job| job.work).sum();
    assert_eq!(taken, used);
    let (model, gate) = gated(&recording);
    let why = LeftOutReason::OfKernel(Enforcement::Deadline);
    assert_eq!(model.left_out(), [LeftOutVm { name: "program".into(), why }]);
    assert!(gate.passes(), "{:#?}", gate.forms);
    assert_eq!(simulated_names(&recording), ["web", "batch"]);
    assert_eq!(model.reservations().flatten().count(), 2, "no plan changes the mechanism");
}
