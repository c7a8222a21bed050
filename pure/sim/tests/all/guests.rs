//! Guests with tasks: which of them has the vCPU, what they need no driver domain for, and what
//! they tell. All numbers are worked out by hand.

use crate::listener::{Listener, Noted, listened};
use slackline_host::policy::find;
use slackline_scenario::Scenario;
use slackline_trace::Record;
use slackline_units::{Pending, Span, TaskId, Time, Told, Urgency, VcpuId};

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

/// Of each job of a named task: whose, when it was released and when it was done, in milliseconds.
fn jobs(records: &[Record]) -> Vec<(u16, u64, u64)> {
    let job = |record: &Record| match *record {
        Record::Job { task, released, done, .. } => {
            Some((task.expect("a task with a name").number(), ms(released), ms(done)))
        }
        _ => None,
    };
    records.iter().filter_map(job).collect()
}

/// ```text
/// urgent  ...uu......uu......uu......uu     released at 3, 11, 19, 27
/// a       aaa..aaaaa............a..a        from its first release on, in turns of 5 ms with b
/// b       ..........b..bbbbb.......bbbb
/// ```
#[test]
fn an_urgent_task_preempts_and_equals_take_turns() {
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
    // They are one vCPU for the host, which had work for 28 ms, then for one more.
    let ran = |record: &Record| match *record {
        Record::Ran { used, .. } => Some(used),
        _ => None,
    };
    assert_eq!(records.iter().filter_map(ran).sum::<Span>(), Span::from_ms(28));
}

#[test]
fn a_task_starves_while_a_more_urgent_one_runs() {
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

/// On two vCPUs the two most urgent run, and a wake finds the idle vCPU first, then the less urgent
/// of those that run.
#[test]
fn a_run_queue_is_shared_by_the_vcpus_of_a_guest() {
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
    // b gives way to c from 2 to 5, and goes on.
    assert_eq!(jobs(&records), [(2, 2, 5), (0, 0, 10), (1, 1, 14)]);
}

/// On the wire 0.72 us, 100 us to the host and as much back, and 100 us of computing: nothing else
/// costs anything, and the driver has a CPU to itself; so only tasks that are as urgent or more
/// come in between.
#[test]
fn io_wakes_a_task_above_one_that_never_sleeps() {
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

/// What is heard in a run under round robin, and its trace.
fn heard(scenario: Scenario) -> (Vec<(Time, VcpuId, Told)>, Vec<Record>) {
    let (noted, records) = listened(scenario, |values, topology| {
        let round_robin = find("round-robin").expect("it is there");
        Box::new(Listener((round_robin.build)(values, topology)))
    });
    let told = |noted| match noted {
        Noted::Told(at, vcpu, told) => Some((at, vcpu, told)),
        Noted::Began { .. } => None,
    };
    (noted.into_iter().filter_map(told).collect(), records)
}

/// Tasks as a short text: who wants the vCPU, who waits, whom I/O has woken.
fn short(told: &Told) -> String {
    let Told::Tasks(tasks) = told else { return format!("{told:?}") };
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

/// `hog` has the CPU from 10 to 20: the guest that wakes a task at 13 tells so when it runs again.
#[test]
fn a_guest_tells_what_its_tasks_do_when_it_runs() {
    let (heard, _) = heard(scenario(
        "27ms",
        "[[domain]]\nname = 'guest'\ntells = true\n\
         [[domain.task]]\npriority = 200\n\
         work = { kind = 'periodic', period = '10ms', work = '2ms', offset = '3ms' }\n\
         [[domain.task]]\npriority = 50\nwork = { kind = 'spin' }\n\
         [[domain]]\nname = 'hog'\nwork = { kind = 'spin' }\n",
    ));
    let told: Vec<(u64, String)> =
        heard.iter().map(|(at, _, told)| (ms(*at), short(told))).collect();
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

/// The run of `a_run_queue_is_shared_by_the_vcpus_of_a_guest`: what runs on one vCPU is not for the
/// other, what waits for one is for both, and whichever runs tells it of both.
#[test]
fn of_each_vcpu_is_told_what_it_runs_or_could() {
    let (heard, _) = heard(scenario(
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
        heard.iter().map(|(at, vcpu, told)| (ms(*at), vcpu.number(), short(told))).collect();
    let (a, b, c) = ("0:225", "1:235", "2:230");
    let expected = [
        // Whoever looks first has a.
        (0, 0, format!(" {a} | {c} {b} |")),
        (0, 1, format!(" {a} | {c} {b} |")),
        (0, 1, format!(" | {c} {b} |")),
        (1, 0, format!(" {a} {b} | {c} |")),
        (1, 1, format!(" {b} | {c} |")),
        (1, 0, format!(" {a} | {c} |")),
        // c takes the place of b, which waits for either.
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

/// Beside what is so: a task that wants the CPU or waits for I/O, whatever the guest does.
#[test]
fn a_guest_that_lies_tells_of_a_task_that_is_not_there() {
    let told = |tells: &str| {
        let (heard, _) = heard(scenario(
            "12ms",
            &format!(
                "[[domain]]\nname = 'guest'\ntells = {tells}\n\
                 [[domain.task]]\npriority = 200\n\
                 work = {{ kind = 'periodic', period = '10ms', work = '2ms' }}\n"
            ),
        ));
        let told = heard.iter().map(|(at, _, told)| format!("{}{}", ms(*at), short(told)));
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

/// The guest first runs when the driver has found nothing to do, which costs it 35 us. Then as
/// `one_packet_and_its_answer_take_what_every_part_takes` in `io.rs` has it: the packet comes at
/// 100.72 us, the driver is dispatched (35) and takes it (10), blocks; the guest is dispatched (30)
/// and receives it (15), and its task works for 100.
#[test]
fn a_driver_tells_what_waits_and_a_guest_whom_that_woke() {
    let (heard, _) = heard(scenario(
        "1ms",
        "[driver]\ndomain = 'dom0'\nreceive = '10us'\nsend = '10us'\n\
         [[domain]]\nname = 'dom0'\ndispatch = '35us'\ntells = true\n\
         [[domain]]\nname = 'guest'\ndispatch = '30us'\ntells = true\n\
         kernel = { receive = '15us', send = '12us' }\nwork = { kind = 'echo', each = '100us' }\n\
         [[client]]\nkind = 'ping'\nto = 'guest'\nevery = '10ms'\ndelay = '100us'\n",
    ));
    let told: Vec<(u64, u32, String)> = heard
        .iter()
        .map(|(at, vcpu, told)| (at.ns(), vcpu.domain().number(), short(told)))
        .collect();
    let pending = |items: u32, asked: u32, task: Option<u16>| {
        let mut pending = Pending::nothing(slackline_units::DomId::new(1));
        (pending.items, pending.asked) = (items, asked);
        pending.tasks[0] = task.map(TaskId::new);
        format!("{:?}", Told::Pending(pending))
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
        // It has put its answer in the ring.
        (woken + 112_000, 0, pending(0, 1, None)),
    ];
    assert_eq!(told, expected);
}

/// Two tasks answer, and requests are for one of them or for any: the driver says for whom what
/// waits is. It and the guest have the CPU only when `hog` has had its turn.
#[test]
fn a_driver_tells_for_which_tasks_that_is_what_waits() {
    let (heard, records) = heard(scenario(
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
    let waits = heard.iter().filter_map(|(_, _, told)| match told {
        Told::Pending(Pending { items, asked, tasks, .. }) => {
            let tasks = tasks.iter().flatten().map(|task| task.number()).collect::<Vec<_>>();
            Some((*items, *asked, tasks))
        }
        Told::Tasks(_) => None,
    });
    let (a, b) = (0, 1);
    let expected = [
        // All have come before the driver runs: a, which waits first, may take what is for any.
        (3, 0, vec![a, b]),
        // The first wakes b; nobody waits for the second of b's then. The third wakes a.
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

/// `b` has something to tell from 3 ms on, and tells it at 10, once `hog` has had its turn,
/// whatever becomes of `a`, which leaves in between with something untold of its own.
#[test]
fn who_leaves_takes_nobody_elses_word_along() {
    let task = "work = { kind = 'periodic', period = '50ms', work = '4ms', offset = '3ms' }";
    let (heard, _) = heard(scenario(
        "20ms",
        &format!(
            "[[domain]]\nname = 'hog'\nwork = {{ kind = 'spin' }}\n\
             [[domain]]\nname = 'b'\ntells = true\n\
             [[domain.task]]\nname = 't'\npriority = 100\n{task}\n\
             [[domain]]\nname = 'a'\ntells = true\nleaves = '5ms'\n\
             [[domain.task]]\nname = 't'\npriority = 100\n{task}\n"
        ),
    ));
    let told = heard.iter().map(|(at, vcpu, told)| (ms(*at), vcpu.domain().number(), short(told)));
    let expected = [(10, 1, " 0:155 | |"), (14, 1, " | 0:155 |")];
    let expected = expected.map(|(at, domain, told)| (at, domain, told.to_owned()));
    assert_eq!(told.collect::<Vec<_>>(), expected);
}

/// Of two tasks `s` sends, a packet in each round trip: the acknowledgement is for it, as it waits.
#[test]
fn an_acknowledgement_waits_for_the_task_that_sends() {
    let (heard, _) = heard(scenario(
        "20ms",
        "[driver]\ndomain = 'dom0'\nreceive = '10us'\nsend = '10us'\n\
         [[domain]]\nname = 'dom0'\ntells = true\n\
         [[domain]]\nname = 'guest'\ntells = true\nkernel = { receive = '10us' }\n\
         [[domain.task]]\nname = 'a'\npriority = 100\nwork = { kind = 'echo', each = '1ms' }\n\
         [[domain.task]]\nname = 's'\npriority = 120\n\
         work = { kind = 'send', each = '1us', block = '8KiB' }\n\
         [[client]]\nkind = 'ttcp'\nway = 'out'\nto = 'guest'\nwindow = '1448B'\ndelay = '1ms'\n",
    ));
    let waits: Vec<Vec<u16>> = heard
        .iter()
        .filter_map(|(_, _, told)| match told {
            Told::Pending(Pending { items: 1.., tasks, .. }) => {
                Some(tasks.iter().flatten().map(|task| task.number()).collect())
            }
            _ => None,
        })
        .collect();
    // A round trip takes a little more than two milliseconds.
    assert_eq!(waits, vec![vec![1]; 9]);
}

#[test]
fn telling_changes_nothing_for_who_does_not_listen() {
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
    let (told, with) = heard(guest(true));
    let (nothing, without) = heard(guest(false));
    assert!(told.len() > 1_000, "{}", told.len());
    assert!(nothing.is_empty());
    assert_eq!(with, without);
    let server = with.iter().filter(
        |record| matches!(record, Record::Job { task, .. } if *task == Some(TaskId::new(0))),
    );
    assert!(server.count() > 100);
}
