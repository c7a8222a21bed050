//! Tests that run short programs on real CPUs.
//!
//! The assertions hold on any test machine, even if it is busy. A hypervisor or an interrupt can
//! add to a thread's CPU time. Where this matters, the best of several runs counts: such additions
//! do not occur in every run, but a fault in the program does.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::{env, thread};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use slackline_load::{
    Ending, Job, LoadError, Note, NoteReader, Options, Report, end_with, jobs_on, monotonic, run,
};
use slackline_scenario::{Draw, Program, Purpose, Step, Stream, next_instant};
use slackline_units::{Span, Time};

/// Maximum length of the last burst of a computing step, which is the maximum overshoot. See the
/// module `spin`.
const OVERSHOOT: Span = Span::from_us(20);
/// Upper bound for the CPU time of the run itself, which makes a few system calls.
const OWN_COST: Span = Span::from_us(50);

fn draws() -> Stream {
    Stream::new(1, 0, Purpose::Work)
}

fn run_plainly(program: &Program, options: Options) -> Report {
    run(program, draws(), options).unwrap()
}

fn periodic(period: Span, work: Span, rounds: usize) -> Program {
    let none = Draw::Fixed(Span::ZERO);
    let (deadline, offset) = (Some(period), Span::from_ms(2));
    let release = Step::Release { period, deadline, offset, gap: none, jitter: none };
    let round = [release, Step::Compute(Draw::Fixed(work)), Step::Done];
    Program::once(round.repeat(rounds))
}

fn read_all(pipe: OwnedFd) -> Vec<Job> {
    let mut bytes = Vec::new();
    std::fs::File::from(pipe).read_to_end(&mut bytes).unwrap();
    let mut reader = NoteReader::default();
    let notes = reader.take(&bytes);
    assert!(!reader.is_torn());
    let job = |note| match note {
        Note::Job(job) => job,
        other => panic!("{other:?} is no job"),
    };
    notes.into_iter().map(job).collect()
}

#[test]
fn compute_step_of_a_load_uses_the_configured_cpu_time() {
    let wanted = Span::from_ms(50);
    let runs: Vec<Report> =
        (0..5).map(|_| run_plainly(&Program::batch(wanted), Options::default())).collect();
    for report in &runs {
        assert_eq!((report.ending, report.jobs), (Ending::Finished, 0));
        assert!(report.used >= wanted, "{report:?}");
    }
    let best = runs.iter().map(|report| report.used - wanted).min().unwrap();
    println!("overshoot of the best of five: {} ns", best.ns());
    assert!(best <= OVERSHOOT + OWN_COST, "{runs:?}");
}

#[test]
fn many_short_compute_steps_use_the_requested_total_cpu_time() {
    let (each, rounds) = (Span::from_us(300), 100);
    let program = Program::once(vec![Step::Compute(Draw::Fixed(each)); rounds]);
    let wanted = each * 100;
    let best = (0..5)
        .map(|_| run_plainly(&program, Options::default()).used)
        .inspect(|used| assert!(*used >= wanted))
        .min();
    // The overshoot of each step is deducted from the next step, so only the overshoot of the last
    // step remains.
    let over = best.unwrap() - wanted;
    println!("overshoot of a hundred together: {} ns", over.ns());
    assert!(over <= OVERSHOOT + OWN_COST, "{over}");
}

#[test]
fn periodic_load_jobs_are_released_exactly_one_period_apart() {
    let (read, write) = rustix::pipe::pipe().unwrap();
    let start = monotonic() + Span::from_ms(5);
    let options = Options { start: Some(start), jobs: Some(write), ..Options::default() };
    let period = Span::from_ms(4);
    let report = run_plainly(&periodic(period, Span::from_ms(1), 10), options);
    assert_eq!((report.jobs, report.dropped), (10, 0));
    let jobs = read_all(read);
    let first = start + Span::from_ms(2);
    let grid: Vec<Time> = (0..10).map(|number| first + period * number).collect();
    assert_eq!(jobs.iter().map(|job| job.released).collect::<Vec<_>>(), grid);
    for job in &jobs {
        assert_eq!(job.deadline, Some(job.released + period));
        // A job starts at its release or later. It takes a millisecond of CPU time, less an
        // overshoot of at most 50 us.
        assert!(job.done >= job.released + Span::from_us(950), "{job:?}");
    }
    assert!(jobs.windows(2).all(|pair| pair[0].done <= pair[1].done));
}

#[test]
fn load_jobs_with_past_release_times_run_without_pause() {
    let (read, write) = rustix::pipe::pipe().unwrap();
    // With a start 100 ms ago, all twenty releases are in the past.
    let start = Time::from_ns(monotonic().ns() - 100_000_000);
    let options = Options { start: Some(start), jobs: Some(write), ..Options::default() };
    let report = run_plainly(&periodic(Span::from_ms(1), Span::from_us(100), 20), options);
    assert_eq!(report.jobs, 20);
    let jobs = read_all(read);
    assert_eq!(jobs.len(), 20);
    assert_eq!(jobs[19].released, start + Span::from_ms(21));
    assert!(jobs.iter().all(|job| job.done > job.deadline.unwrap()));
}

/// Each burst begins at an instant of the clock that comes after the end of the previous burst.
#[test]
fn clock_driven_load_bursts_begin_at_whole_periods_plus_offset() {
    let (read, write) = rustix::pipe::pipe().unwrap();
    let (period, offset, compute) = (Span::from_ms(4), Span::from_ms(1), Span::from_ms(1));
    let burst = [Step::Instant { period, offset }, Step::Compute(Draw::Fixed(compute)), Step::Done];
    let program = Program::once(burst.repeat(10));
    let began = monotonic();
    let report = run_plainly(&program, Options { jobs: Some(write), ..Options::default() });
    assert_eq!((report.ending, report.jobs), (Ending::Finished, 10));
    let mut before = began;
    for job in read_all(read) {
        // The job takes a millisecond, less an overshoot of at most 50 us.
        let least = next_instant(before, period, offset) + Span::from_us(950);
        assert!(job.done >= least, "{job:?}, not before {least:?}");
        before = job.done;
    }
}

/// The program computes until 20 ms of real time have passed since its start, even if it receives
/// only a small share of a CPU.
#[test]
fn batch_load_ends_after_the_configured_clock_time() {
    let began = monotonic();
    let report = run_plainly(&Program::until(Span::from_ms(20)), Options::default());
    assert_eq!(report.ending, Ending::Finished);
    assert!(monotonic() >= began.after(Span::from_ms(20)));
    assert!(report.used > Span::ZERO, "{report:?}");
}

/// The program continues after each yield. The CPU time of a yield does not count as computing.
#[test]
fn load_program_that_yields_continues_after_each_yield() {
    let each = Span::from_us(100);
    let program = Program::yielding(Draw::Fixed(each));
    let limit = Some(Span::from_ms(30));
    let report = run_plainly(&program, Options { limit, ..Options::default() });
    assert_eq!(report.ending, Ending::Limit);
    let steps = [Step::Compute(Draw::Fixed(each)), Step::Yield];
    let program = Program::once(steps.repeat(20));
    let report = run_plainly(&program, Options::default());
    assert!(report.ending == Ending::Finished && report.used >= each * 20, "{report:?}");
}

#[test]
fn load_program_that_only_yields_is_refused() {
    let program = Program::repeated(vec![Step::Yield]);
    let refused = run(&program, draws(), Options::default());
    assert!(matches!(refused, Err(LoadError::TakesNoTime)), "{refused:?}");
}

#[test]
fn full_pipe_for_job_records_does_not_delay_a_load() {
    let (read, write) = rustix::pipe::pipe().unwrap();
    // The smallest pipe has one page, which is enough for 128 notes.
    rustix::pipe::fcntl_setpipe_size(&write, 4096).unwrap();
    let program = Program::once(vec![Step::Done; 1000]);
    let report = run_plainly(&program, Options { jobs: Some(write), ..Options::default() });
    assert_eq!((report.ending, report.jobs), (Ending::Finished, 1000));
    let read = u64::try_from(read_all(read).len()).unwrap();
    assert!(report.dropped > 0 && read == 1000 - report.dropped, "{report:?}, {read} read");
}

#[test]
fn load_drops_job_records_if_job_pipe_has_no_reader() {
    let (read, write) = rustix::pipe::pipe().unwrap();
    drop(read);
    let program = Program::once(vec![Step::Done; 3]);
    let report = run_plainly(&program, Options { jobs: Some(write), ..Options::default() });
    assert_eq!((report.jobs, report.dropped), (3, 3));
}

#[test]
fn length_option_ends_a_load_that_computes_or_sleeps() {
    let limit = Some(Span::from_ms(20));
    let asleep = Program::repeated(vec![Step::Sleep(Draw::Fixed(Span::from_secs(600)))]);
    for program in [Program::spin(), asleep] {
        let start = monotonic();
        let report =
            run_plainly(&program, Options { start: Some(start), limit, ..Options::default() });
        assert_eq!(report.ending, Ending::Limit);
        assert!(monotonic() >= start + Span::from_ms(20));
        // If the limit were ignored, the program would run for ten minutes, or forever.
        assert!(report.elapsed < Span::from_secs(60));
    }
}

#[test]
fn load_draws_its_compute_times_from_the_given_random_stream() {
    let draw = Draw::Uniform { least: Span::from_us(100), most: Span::from_us(900) };
    let program = Program::once(vec![Step::Compute(draw); 20]);
    let mut stream = draws();
    let wanted: Span = (0..20).map(|_| stream.draw(&draw)).sum();
    let best = (0..5).map(|_| run_plainly(&program, Options::default()).used).min().unwrap();
    assert!(best >= wanted && best - wanted <= OVERSHOOT + OWN_COST, "{best} for {wanted}");
}

#[test]
fn endless_load_program_that_takes_no_time_is_refused() {
    for steps in [vec![], vec![Step::Done], vec![Step::Sleep(Draw::Fixed(Span::ZERO))]] {
        let program = Program::repeated(steps);
        let result = run(&program, draws(), Options::default());
        assert!(matches!(result, Err(LoadError::TakesNoTime)), "{program:?}");
    }
}

#[test]
fn descriptor_for_job_records_is_reopened_without_changing_the_original() {
    use std::os::fd::AsRawFd;
    let (read, write) = rustix::pipe::pipe().unwrap();
    let again = jobs_on(u32::try_from(write.as_raw_fd()).unwrap()).unwrap();
    let flags = rustix::fs::fcntl_getfl(&write).unwrap();
    assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK), "the original descriptor is unchanged");
    drop(write);
    let program = Program::once(vec![Step::Done]);
    run_plainly(&program, Options { jobs: Some(again), ..Options::default() });
    assert_eq!(read_all(read).len(), 1);
    assert!(matches!(jobs_on(4_000_000), Err(LoadError::NotWritable { fd: 4_000_000, .. })));
}

/// Environment variable that selects the role of this test binary when it starts a copy of itself.
const ROLE: &str = "SLACKLINE_TEST_ROLE";
const PARENT: &str = "SLACKLINE_TEST_PARENT";
const TIED: &str = "load::load_process_ends_when_its_parent_process_ends";

fn play(role: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", TIED, "--nocapture"]).env(ROLE, role);
    command.env(PARENT, std::process::id().to_string());
    command.stdout(Stdio::piped());
    command
}

/// Returns the number after `loading ` in the first line that has such a number.
fn announced(from: impl Read) -> i32 {
    let lines = BufReader::new(from).lines().map(Result::unwrap);
    let mut numbers = lines.filter_map(|line| line.split_once("loading ")?.1.parse().ok());
    numbers.next().expect("the process prints its id")
}

#[test]
fn load_process_ends_when_its_parent_process_ends() {
    match env::var(ROLE).as_deref() {
        Ok("load") => {
            end_with(env::var(PARENT).unwrap().parse().unwrap()).unwrap();
            // The test harness has already printed the name of the test, without a newline.
            println!("\nloading {}", std::process::id());
            let limit = Some(Span::from_secs(60));
            run_plainly(&Program::spin(), Options { limit, ..Options::default() });
        }
        Ok("starter") => {
            let mut load = play("load").spawn().unwrap();
            println!("\nloading {}", announced(load.stdout.take().unwrap()));
            load.wait().unwrap();
        }
        _ => {
            let mut starter = play("starter").spawn().unwrap();
            let load = Pid::from_raw(announced(starter.stdout.take().unwrap())).unwrap();
            let load = pidfd_open(load, PidfdFlags::empty()).unwrap();
            starter.kill().unwrap();
            starter.wait().unwrap();
            let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
            let mut ends = [PollFd::new(&load, PollFlags::IN)];
            // If the end of the parent did not end this process, it would run for a minute.
            assert_eq!(poll(&mut ends, Some(&patience)), Ok(1));
        }
    }
}

#[test]
fn load_process_fails_with_error_if_parent_has_ended() {
    // The call is made on its own thread, because the link to the parent stays with the thread.
    let result = thread::spawn(|| end_with(u32::MAX)).join().unwrap();
    assert!(matches!(result, Err(LoadError::Orphaned { parent: u32::MAX })));
}
