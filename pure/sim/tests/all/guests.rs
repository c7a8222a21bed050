//! Guests with tasks: the task that runs on each vCPU, guests without a driver domain, and task
//! hints. All numbers are computed by hand.

use crate::listener::{Listener, Noted, listened};
use slackline_host::policy::find;
use slackline_scenario::Scenario;
use slackline_trace::Record;
use slackline_units::{Pending, Span, TaskId, Time, Urgency, VcpuHint, VcpuId};

fn scenario(length: &str, rest: &str) -> Scenario {
    let policy = "policy = { name = 'round-robin', quantum = '10ms' }";
    let text = format!("title = 't'\nlength = '{length}'\n{policy}\n{rest}");
    Scenario::read(&text).unwrap_or_else(|error| panic!("{}: {error}\n{text}", error.line))
}

fn run(scenario: &Scenario) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    slackline_sim::run(scenario, &mut records).expect("the run completes");
    records
}

fn ms(time: Time) -> u64 {
    assert!(((time - Time::START) % Span::from_ms(1)).is_zero(), "{time:?}");
    (time - Time::START) / Span::from_ms(1)
}

/// Returns task id, release and end in milliseconds of each job of a named task.
fn jobs(records: &[Record]) -> Vec<(u16, u64, u64)> {
    let job = |record: &Record| match *record {
        Record::Job { task, released, done, .. } => {
            Some((task.expect("a task with a name").number(), ms(released), ms(done)))
        }
        _ => None,
    };
    records.iter().filter_map(job).collect()
}

/// Timeline in milliseconds of three tasks on one vCPU, `urgent` with the highest priority:
///
/// ```text
/// urgent  ...uu......uu......uu......uu     released at 3, 11, 19, 27
/// a       aaa..aaaaa............a..a        from its first release on, in quanta of 5 ms with b
/// b       ..........b..bbbbb.......bbbb
/// ```
#[test]
fn guest_runs_urgent_task_first_and_alternates_equal_priority_tasks() {
    let records = run(&scenario(
        "30ms",
        "[[domain]]\nname = 'guest'\nkernel = { quantum = '5ms' }\n\
         [[domain.task]]\nname = 'urgent'\npriority = 200\n\
         work = { kind = 'periodic', period = '8ms', work = '2ms', offset = '3ms' }\n\
         [[domain.task]]\nname = 'a'\n\
         work = { kind = 'periodic', period = '1s', work = '10ms' }\n\
         [[domain.task]]\nname = 'b'\n\
         work = { kind = 'periodic', period = '1s', work = '10ms' }\n",
    ));
    let (urgent, a, b) = (0, 1, 2);
    let expected = [
        (urgent, 3, 5),
        (urgent, 11, 13),
        (urgent, 19, 21),
        (a, 0, 22),
        (b, 0, 26),
        (urgent, 27, 29),
    ];
    assert_eq!(jobs(&records), expected);
    // For the host, the tasks are one vCPU, which runs from 0 to 26 ms and from 27 to 29 ms.
    let ran = |record: &Record| match *record {
        Record::Ran { used, .. } => Some(used),
        _ => None,
    };
    assert_eq!(records.iter().filter_map(ran).sum::<Span>(), Span::from_ms(28));
}

/// Timeline in milliseconds of two tasks with periodic jobs on one vCPU:
///
/// ```text
/// short   bbb.....bbb.........bbb.bbb             due at 8, 16, 24, 32
/// long    ...aaaaa...aaaaaaaaa...a...aaa...       due at 20, 40
/// ```
#[test]
fn guest_with_edf_runs_the_job_with_earliest_deadline() {
    let tasks = |scheduler: &str| {
        jobs(&run(&scenario(
            "39ms",
            &format!(
                "[[domain]]\nname = 'guest'\nkernel = {{ scheduler = '{scheduler}' }}\n\
                 [[domain.task]]\nname = 'long'\n\
                 work = {{ kind = 'periodic', period = '20ms', work = '14ms' }}\n\
                 [[domain.task]]\nname = 'short'\npriority = 200\n\
                 work = {{ kind = 'periodic', period = '8ms', work = '3ms' }}\n\
                 [[domain.task]]\nname = 'index'\npriority = 255\nwork = {{ kind = 'spin' }}\n"
            ),
        )))
    };
    let (long, short) = (0, 1);
    let expected = [(short, 0, 3), (short, 8, 11), (long, 0, 20), (short, 16, 23), (short, 24, 27)];
    assert_eq!(tasks("edf"), expected);
    // With fixed priorities the task without a deadline precedes both.
    assert_eq!(tasks("fixed"), []);
}

#[test]
fn guest_task_starves_while_a_task_with_higher_priority_runs() {
    let tasks = |high: &str| {
        let records = run(&scenario(
            "100ms",
            &format!(
                "[[domain]]\nname = 'guest'\n\
                 [[domain.task]]\nname = 'low'\npriority = 10\n\
                 work = {{ kind = 'periodic', period = '20ms', work = '1ms' }}\n\
                 [[domain.task]]\nname = 'high'\npriority = 11\nwork = {high}\n"
            ),
        ));
        jobs(&records)
    };
    assert_eq!(tasks("{ kind = 'spin' }"), []);
    let low = 0;
    assert_eq!(
        tasks("{ kind = 'batch', total = '50ms' }"),
        [(low, 0, 51), (low, 20, 52), (low, 40, 53), (low, 60, 61), (low, 80, 81)],
    );
}

/// The two most urgent tasks run on two vCPUs. A task that wakes goes to the idle vCPU first, or
/// else to the vCPU with the less urgent task.
#[test]
fn guest_vcpus_run_most_urgent_tasks_of_one_run_queue() {
    let records = run(&scenario(
        "20ms",
        "[host]\ncpus = 2\n\
         [[domain]]\nname = 'guest'\nvcpus = 2\n\
         [[domain.task]]\nname = 'a'\npriority = 30\n\
         work = { kind = 'periodic', period = '1s', work = '10ms' }\n\
         [[domain.task]]\nname = 'b'\npriority = 20\n\
         work = { kind = 'periodic', period = '1s', work = '10ms', offset = '1ms' }\n\
         [[domain.task]]\nname = 'c'\npriority = 25\n\
         work = { kind = 'periodic', period = '1s', work = '3ms', offset = '2ms' }\n",
    ));
    // b is preempted by c from 2 to 5 ms, and continues.
    assert_eq!(jobs(&records), [(2, 2, 5), (0, 0, 10), (1, 1, 14)]);
}

/// A packet and its answer each take 0.72 us on the wire and 100 us between client and host. The
/// server computes for 100 us. Nothing else has a cost, and the driver has its own CPU. So only
/// tasks of the same or a higher priority can delay the answer.
#[test]
fn guest_task_woken_by_io_preempts_lower_priority_task() {
    let responses = |hog: u8| -> Vec<Span> {
        let records = run(&scenario(
            "200ms",
            &format!(
                "[host]\ncpus = 2\n[driver]\ndomain = 'dom0'\n[[domain]]\nname = 'dom0'\n\
                 [[domain]]\nname = 'guest'\nkernel = {{ quantum = '5ms' }}\n\
                 [[domain.task]]\nname = 'server'\npriority = 100\n\
                 work = {{ kind = 'echo', each = '100us' }}\n\
                 [[domain.task]]\nname = 'hog'\npriority = {hog}\nwork = {{ kind = 'spin' }}\n\
                 [[client]]\nkind = 'ping'\nto = 'guest'\nevery = '7ms'\ndelay = '100us'\n"
            ),
        ));
        let response = |record: &Record| match *record {
            Record::Job { task: Some(task), released, done, .. } if task == TaskId::new(0) => {
                Some(done - released)
            }
            _ => None,
        };
        records.iter().filter_map(response).collect()
    };
    let fast = Span::from_ns(2 * 100_720 + 100_000);
    let above = responses(99);
    assert!(above.len() >= 28 && above.iter().all(|&span| span == fast), "{above:?}");
    let beside = responses(100);
    let turn = Span::from_ms(5);
    assert!(beside.iter().all(|&span| fast <= span && span <= fast + turn), "{beside:?}");
    assert!(beside.iter().any(|&span| span > fast + turn / 2), "{beside:?}");
    assert_eq!(responses(101), []);
}

/// Returns the hints given in a run under round robin, and its trace.
fn hints(scenario: Scenario) -> (Vec<(Time, VcpuId, VcpuHint)>, Vec<Record>) {
    let (noted, records) = listened(scenario, |values, topology| {
        let round_robin = find("round-robin").expect("the policy exists");
        Box::new(Listener((round_robin.build)(values, topology)))
    });
    let told = |noted| match noted {
        Noted::Told(at, vcpu, told) => Some((at, vcpu, told)),
        Noted::Began { .. } => None,
    };
    (noted.into_iter().filter_map(told).collect(), records)
}

/// Returns task hints as a short text: tasks that want the vCPU, tasks that wait, tasks woken by
/// I/O.
fn short(told: &VcpuHint) -> String {
    let VcpuHint::Tasks(tasks) = told else { return format!("{told:?}") };
    let tasks_of = |tasks: &[Option<slackline_units::Task>]| -> String {
        let one = |task: &slackline_units::Task| {
            let Urgency(urgency) = task.urgency;
            format!(" {}:{urgency}", task.id.number())
        };
        tasks.iter().flatten().map(one).collect()
    };
    let woken: String =
        tasks.woken.iter().flatten().map(|task| format!(" {}", task.number())).collect();
    format!("{} |{} |{woken}", tasks_of(&tasks.runnable), tasks_of(&tasks.blocked))
}

/// `hog` has the CPU from 10 to 20 ms. The guest wakes a task at 13 ms, and reports it to the
/// policy when the guest runs again.
#[test]
fn guest_reports_woken_task_only_after_guest_runs_again() {
    let (hints, _) = hints(scenario(
        "27ms",
        "[[domain]]\nname = 'guest'\ntells = true\n\
         [[domain.task]]\npriority = 200\n\
         work = { kind = 'periodic', period = '10ms', work = '2ms', offset = '3ms' }\n\
         [[domain.task]]\npriority = 50\nwork = { kind = 'spin' }\n\
         [[domain]]\nname = 'hog'\nwork = { kind = 'spin' }\n",
    ));
    let told: Vec<(u64, String)> =
        hints.iter().map(|(at, _, told)| (ms(*at), short(told))).collect();
    let expected = [
        (0, " 1:205 | 0:55 |"),
        (3, " 0:55 1:205 | |"),
        (5, " 1:205 | 0:55 |"),
        (20, " 0:55 1:205 | |"),
        (22, " 1:205 | 0:55 |"),
        (23, " 0:55 1:205 | |"),
        (25, " 1:205 | 0:55 |"),
    ];
    let expected = expected.map(|(at, told)| (at, told.to_owned()));
    assert_eq!(told, expected);
}

/// The scenario is that of `guest_vcpus_run_most_urgent_tasks_of_one_run_queue`. A task that
/// runs on a vCPU is reported for that vCPU only. A waiting task is reported for both vCPUs. Each
/// vCPU sends the reports of both vCPUs when it runs.
#[test]
fn guest_reports_running_tasks_per_vcpu_and_waiting_tasks_globally() {
    let (hints, _) = hints(scenario(
        "20ms",
        "[host]\ncpus = 2\n\
         [[domain]]\nname = 'guest'\nvcpus = 2\ntells = true\n\
         [[domain.task]]\npriority = 30\n\
         work = { kind = 'periodic', period = '1s', work = '10ms' }\n\
         [[domain.task]]\npriority = 20\n\
         work = { kind = 'periodic', period = '1s', work = '10ms', offset = '1ms' }\n\
         [[domain.task]]\npriority = 25\n\
         work = { kind = 'periodic', period = '1s', work = '3ms', offset = '2ms' }\n",
    ));
    let told: Vec<(u64, u16, String)> =
        hints.iter().map(|(at, vcpu, told)| (ms(*at), vcpu.number(), short(told))).collect();
    let (a, b, c) = ("0:225", "1:235", "2:230");
    let expected = [
        // The first vCPU that looks for work gets a.
        (0, 0, format!(" {a} | {c} {b} |")),
        (0, 1, format!(" {a} | {c} {b} |")),
        (0, 1, format!(" | {c} {b} |")),
        (1, 0, format!(" {a} {b} | {c} |")),
        (1, 1, format!(" {b} | {c} |")),
        (1, 0, format!(" {a} | {c} |")),
        // c takes the place of b, which waits for either vCPU.
        (2, 0, format!(" {a} {c} {b} | |")),
        (2, 1, format!(" {c} {b} | |")),
        (2, 0, format!(" {a} {b} | |")),
        (5, 0, format!(" {a} {b} | {c} |")),
        (5, 1, format!(" {b} | {c} |")),
        (5, 0, format!(" {a} | {c} |")),
        (10, 0, format!(" | {a} {c} |")),
        (10, 1, format!(" {b} | {a} {c} |")),
        (14, 0, format!(" | {a} {c} {b} |")),
        (14, 1, format!(" | {a} {c} {b} |")),
    ];
    assert_eq!(told, expected);
}

/// A guest that lies reports its true tasks and one task that does not exist. That task always
/// wants the CPU, or always waits for I/O.
#[test]
fn guest_configured_to_lie_reports_a_nonexistent_task() {
    let told = |tells: &str| {
        let (hints, _) = hints(scenario(
            "12ms",
            &format!(
                "[[domain]]\nname = 'guest'\ntells = {tells}\n\
                 [[domain.task]]\npriority = 200\n\
                 work = {{ kind = 'periodic', period = '10ms', work = '2ms' }}\n"
            ),
        ));
        let told = hints.iter().map(|(at, _, told)| format!("{}{}", ms(*at), short(told)));
        told.collect::<Vec<_>>()
    };
    assert_eq!(told("true"), ["0 0:55 | |", "2 | 0:55 |", "10 0:55 | |"]);
    let runnable = ["0 65535:0 0:55 | |", "2 65535:0 | 0:55 |", "10 65535:0 0:55 | |"];
    assert_eq!(told("{ runnable = 255 }"), runnable);
    let blocked =
        ["0 0:55 | 65535:1 | 65535", "2 | 65535:1 0:55 | 65535", "10 0:55 | 65535:1 | 65535"];
    assert_eq!(told("{ blocked = 254 }"), blocked);
    assert_eq!(told("false"), [""; 0]);
}

/// The guest first runs when the driver has found no work, which takes 35 us. Then the times are
/// those of `ping_response_time_is_sum_of_transfer_and_processing_times` of `io.rs`. The packet
/// arrives at 100.72 us. The driver is dispatched (35 us), takes the packet (10 us) and blocks. The
/// guest is dispatched (30 us) and receives the packet (15 us), and its task computes for 100 us.
#[test]
fn driver_domain_reports_pending_io_and_guest_reports_woken_task() {
    let (hints, _) = hints(scenario(
        "1ms",
        "[driver]\ndomain = 'dom0'\nreceive = '10us'\nsend = '10us'\n\
         [[domain]]\nname = 'dom0'\ndispatch = '35us'\ntells = true\n\
         [[domain]]\nname = 'guest'\ndispatch = '30us'\ntells = true\n\
         kernel = { receive = '15us', send = '12us' }\nwork = { kind = 'echo', each = '100us' }\n\
         [[client]]\nkind = 'ping'\nto = 'guest'\nevery = '10ms'\ndelay = '100us'\n",
    ));
    let told: Vec<(u64, u32, String)> = hints
        .iter()
        .map(|(at, vcpu, told)| (at.ns(), vcpu.domain().number(), short(told)))
        .collect();
    let pending = |items: u32, asked: u32, task: Option<u16>| {
        let mut pending = Pending::nothing(slackline_units::DomId::new(1));
        (pending.items, pending.asked) = (items, asked);
        pending.tasks[0] = task.map(TaskId::new);
        format!("{:?}", VcpuHint::Pending(pending))
    };
    let start = 100_720;
    let taken = start + 45_000;
    let received = taken + 30_000;
    let woken = received + 15_000;
    let expected = [
        (35_000, 1, " | 0:155 |".to_owned()),
        (taken, 0, pending(1, 0, Some(0))),
        (woken, 0, pending(0, 0, None)),
        (woken, 1, " 0:155 | | 0".to_owned()),
        (woken + 100_000, 1, " | 0:155 | 0".to_owned()),
        // The guest has put its answer in the ring.
        (woken + 112_000, 0, pending(0, 1, None)),
    ];
    assert_eq!(told, expected);
}

/// Two tasks answer. Requests are for one of them or for any. The driver reports the tasks for
/// which I/O is pending. The driver and the guest run only after the timeslice of `hog`.
#[test]
fn driver_domain_reports_the_tasks_for_which_io_is_pending() {
    let (hints, records) = hints(scenario(
        "60ms",
        "[driver]\ndomain = 'dom0'\nreceive = '10us'\nsend = '10us'\n\
         [[domain]]\nname = 'dom0'\ntells = true\n\
         [[domain]]\nname = 'guest'\ntells = true\nkernel = { receive = '10us' }\n\
         [[domain.task]]\nname = 'a'\npriority = 150\nwork = { kind = 'echo', each = '1ms' }\n\
         [[domain.task]]\nname = 'b'\npriority = 120\nwork = { kind = 'echo', each = '1ms' }\n\
         [[domain]]\nname = 'hog'\nwork = { kind = 'spin' }\n\
         [[client]]\nkind = 'ping'\nto = 'guest'\ntask = 'b'\nevery = '1s'\nfrom = '20ms'\n\
         [[client]]\nkind = 'ping'\nto = 'guest'\ntask = 'b'\nevery = '1s'\nfrom = '21ms'\n\
         [[client]]\nkind = 'ping'\nto = 'guest'\nevery = '1s'\nfrom = '22ms'\n",
    ));
    let waits = hints.iter().filter_map(|(_, _, told)| match told {
        VcpuHint::Pending(Pending { items, asked, tasks, .. }) => {
            let tasks = tasks.iter().flatten().map(|task| task.number()).collect::<Vec<_>>();
            Some((*items, *asked, tasks))
        }
        VcpuHint::Tasks(_) => None,
    });
    let (a, b) = (0, 1);
    let expected = [
        // All requests arrive before the driver runs. Task a has waited the longest, so it may take
        // the request that any task may take.
        (3, 0, vec![a, b]),
        // The first request wakes b. No task waits for the second request, which is for b as well.
        // The third request wakes a.
        (2, 0, vec![a]),
        (1, 0, vec![a]),
        (0, 0, vec![]),
        (0, 1, vec![]),
        (0, 2, vec![]),
        (0, 3, vec![]),
    ];
    assert_eq!(waits.collect::<Vec<_>>(), expected);
    let answered = records.iter().filter_map(|record| match record {
        Record::Job { task, .. } => task.map(TaskId::number),
        _ => None,
    });
    assert_eq!(answered.collect::<Vec<_>>(), [a, b, b]);
}

/// `b` has an unreported hint from 3 ms on. It reports the hint at 10 ms, when the timeslice of
/// `hog` ends. Before that, at 5 ms, `a` leaves with an unreported hint.
#[test]
fn departing_guest_does_not_remove_unsent_hints_of_other_guests() {
    let task = "work = { kind = 'periodic', period = '50ms', work = '4ms', offset = '3ms' }";
    let (hints, _) = hints(scenario(
        "20ms",
        &format!(
            "[[domain]]\nname = 'hog'\nwork = {{ kind = 'spin' }}\n\
             [[domain]]\nname = 'b'\ntells = true\n\
             [[domain.task]]\nname = 't'\npriority = 100\n{task}\n\
             [[domain]]\nname = 'a'\ntells = true\nleaves = '5ms'\n\
             [[domain.task]]\nname = 't'\npriority = 100\n{task}\n"
        ),
    ));
    let told = hints.iter().map(|(at, vcpu, told)| (ms(*at), vcpu.domain().number(), short(told)));
    let expected = [(10, 1, " 0:155 | |"), (14, 1, " | 0:155 |")];
    let expected = expected.map(|(at, domain, told)| (at, domain, told.to_owned()));
    assert_eq!(told.collect::<Vec<_>>(), expected);
}

/// Task `s`, one of two tasks, sends one packet per round trip. The pending acknowledgement is
/// reported for `s`, because `s` waits for it.
#[test]
fn driver_domain_reports_a_pending_acknowledgement_for_the_sending_task() {
    let (hints, _) = hints(scenario(
        "20ms",
        "[driver]\ndomain = 'dom0'\nreceive = '10us'\nsend = '10us'\n\
         [[domain]]\nname = 'dom0'\ntells = true\n\
         [[domain]]\nname = 'guest'\ntells = true\nkernel = { receive = '10us' }\n\
         [[domain.task]]\nname = 'a'\npriority = 100\nwork = { kind = 'echo', each = '1ms' }\n\
         [[domain.task]]\nname = 's'\npriority = 120\n\
         work = { kind = 'send', each = '1us', block = '8KiB' }\n\
         [[client]]\nkind = 'ttcp'\nway = 'out'\nto = 'guest'\nwindow = '1448B'\ndelay = '1ms'\n",
    ));
    let waits: Vec<Vec<u16>> = hints
        .iter()
        .filter_map(|(_, _, told)| match told {
            VcpuHint::Pending(Pending { items: 1.., tasks, .. }) => {
                Some(tasks.iter().flatten().map(|task| task.number()).collect())
            }
            _ => None,
        })
        .collect();
    // A round trip takes a little more than 2 ms, so there are nine in 20 ms.
    assert_eq!(waits, vec![vec![1]; 9]);
}

#[test]
fn hints_leave_the_trace_unchanged_under_a_hint_ignoring_policy() {
    let guest = |tells: bool| {
        scenario(
            "500ms",
            &format!(
                "[host]\ncpus = 3\nswitch = '3us'\ntimer_lateness = 'exponential 20us'\n\
                 [driver]\ndomain = 'dom0'\nreceive = '10us'\nsend = '10us'\nrequest = '20us'\n\
                 [disk]\nseek = 'uniform 1ms 3ms'\n\
                 [[domain]]\nname = 'dom0'\ntells = {tells}\n\
                 [[domain]]\nname = 'web'\ncopies = 2\ntells = {tells}\n\
                 kernel = {{ receive = '15us', send = '12us', noise = '30%' }}\n\
                 [[domain.task]]\nname = 'server'\npriority = 150\n\
                 work = {{ kind = 'web-server', each = '200us', response = '10KiB', \
                 read = '4KiB', processes = 7 }}\n\
                 [[domain.task]]\nname = 'hog'\nwork = {{ kind = 'spin' }}\n\
                 [[client]]\nkind = 'httperf'\nto = 'web-0'\nrate = 200\n\
                 [[client]]\nkind = 'ab'\nto = 'web-1'\nat_once = 10\n"
            ),
        )
    };
    let (told, with) = hints(guest(true));
    let (nothing, without) = hints(guest(false));
    assert!(told.len() > 1_000, "{}", told.len());
    assert!(nothing.is_empty());
    assert_eq!(with, without);
    let server = with.iter().filter(
        |record| matches!(record, Record::Job { task, .. } if *task == Some(TaskId::new(0))),
    );
    assert!(server.count() > 100);
}
