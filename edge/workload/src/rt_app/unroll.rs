//! The work of a thread of rt-app: a kind of work that repeats, or a list of jobs.

use std::fmt::Write as _;

use slackline_units::Span;

use crate::rt_app::task::{Event, Task};

/// Maximum number of jobs of a thread.
const MOST_JOBS: usize = 1_000_000;
/// Maximum number of events of a thread that are followed, including each repetition.
const MOST_EVENTS: usize = 10_000_000;

/// Work of a thread.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Work {
    Spin,
    Periodic {
        period: Span,
        work: Span,
    },
    Interactive {
        compute: Span,
        sleep: Span,
    },
    /// Jobs, each with its ready time.
    Ready(Vec<(Span, Span)>),
    /// Jobs, each with the time to sleep before it.
    Think(Vec<(Span, Span)>),
}

impl Work {
    /// Returns the value of `work` in a scenario. A list of jobs is added to `files`.
    pub(super) fn text(&self, file: &str, files: &mut Vec<(String, String)>) -> String {
        let (title, jobs) = match self {
            Work::Spin => return "{ kind = \"spin\" }".to_owned(),
            Work::Periodic { period, work } => {
                return format!(
                    "{{ kind = \"periodic\", period = \"{period}\", work = \"{work}\" }}"
                );
            }
            Work::Interactive { compute, sleep } => {
                return format!(
                    "{{ kind = \"interactive\", compute = \"{compute}\", sleep = \"{sleep}\" }}"
                );
            }
            Work::Ready(jobs) => ("ready_ns", jobs),
            Work::Think(jobs) => ("think_ns", jobs),
        };
        let mut text = format!("{title},work_ns\n");
        for (time, work) in jobs {
            let _ = writeln!(text, "{},{}", time.ns(), work.ns());
        }
        files.push((file.to_owned(), text));
        format!("{{ kind = \"jobs\", file = \"{file}\" }}")
    }
}

/// Returns the work of a thread in a run of this length.
pub(super) fn work(task: &Task, length: Span) -> Result<Work, String> {
    if let Some(work) = repeated(task) {
        return Ok(work);
    }
    if !task.events().any(|event| matches!(event, Event::Run(span) if !span.is_zero())) {
        return Err("the thread never computes".to_owned());
    }
    let mut jobs = Jobs { is_timed: task.has_timer(), ..Jobs::default() };
    let mut followed = 0_usize;
    let mut rounds = 0_u64;
    while task.loops.is_none_or(|loops| rounds < loops) {
        rounds += 1;
        for phase in &task.phases {
            let mut repeats = 0_u64;
            while phase.loops.is_none_or(|loops| repeats < loops) {
                repeats += 1;
                for &event in &phase.events {
                    jobs.follow(event)?;
                }
                followed += phase.events.len().max(1);
                if jobs.passed() >= length {
                    return jobs.work();
                }
                if jobs.list.len() > MOST_JOBS || followed > MOST_EVENTS {
                    let most = format!("{MOST_JOBS} jobs or {MOST_EVENTS} events");
                    return Err(format!("the thread does more than {most} in {length}"));
                }
            }
        }
    }
    jobs.work()
}

/// Returns the work of a thread that repeats one phase forever. `None` if a list of jobs is needed.
fn repeated(task: &Task) -> Option<Work> {
    let [phase] = &task.phases[..] else { return None };
    if task.loops.is_some() && phase.loops.is_some() {
        return None;
    }
    let (mut work, mut sleep, mut timer) = (Span::ZERO, Span::ZERO, None);
    for (index, &event) in phase.events.iter().enumerate() {
        match event {
            Event::Run(span) if sleep.is_zero() && timer.is_none() => work += span,
            Event::Sleep(span) if timer.is_none() => sleep += span,
            Event::Timer(span) if index + 1 == phase.events.len() => timer = Some(span),
            _ => return None,
        }
    }
    match timer {
        _ if work.is_zero() => None,
        None if sleep.is_zero() => Some(Work::Spin),
        None => Some(Work::Interactive { compute: work, sleep }),
        Some(period) if sleep.is_zero() && !period.is_zero() => {
            Some(Work::Periodic { period, work })
        }
        Some(_) => None,
    }
}

/// Jobs of a thread, up to the event that was followed last.
#[derive(Debug, Default)]
struct Jobs {
    /// True if a timer wakes the thread. Then each job has its ready time.
    is_timed: bool,
    list: Vec<(Span, Span)>,
    /// Ready time of the next job if a timer wakes the thread, or else the time to sleep before it.
    next: Span,
    /// Work since the last sleep or timer.
    work: Span,
    /// Time that has passed so far if the thread never waited for a CPU.
    total: Span,
}

impl Jobs {
    fn follow(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Run(span) => {
                self.work += span;
                self.total += if self.is_timed { Span::ZERO } else { span };
            }
            Event::Sleep(span) if self.is_timed => {
                // A sleep before all jobs only delays the first job. The end of a later sleep would
                // depend on the end of a job, which a list of ready times cannot express.
                if !span.is_zero() && (!self.list.is_empty() || !self.work.is_zero()) {
                    return Err("the thread uses `sleep` after `run` and `timer`".to_owned());
                }
                self.next += span;
                self.total += span;
            }
            Event::Sleep(span) => {
                self.end_job();
                self.next += span;
                self.total += span;
            }
            Event::Timer(span) => {
                self.end_job();
                self.next += span;
                self.total += span;
            }
        }
        Ok(())
    }

    fn end_job(&mut self) {
        if self.work.is_zero() {
            return;
        }
        self.list.push((self.next, self.work));
        self.work = Span::ZERO;
        if !self.is_timed {
            self.next = Span::ZERO;
        }
    }

    /// Returns the time that has passed if the thread never waited for a CPU.
    fn passed(&self) -> Span {
        self.total
    }

    fn work(mut self) -> Result<Work, String> {
        self.end_job();
        if self.list.is_empty() {
            return Err("the thread never computes".to_owned());
        }
        Ok(if self.is_timed { Work::Ready(self.list) } else { Work::Think(self.list) })
    }
}

#[cfg(test)]
mod tests {
    use slackline_units::Span;

    use super::{Work, work};
    use crate::SourceFile;
    use crate::rt_app::json::parse;
    use crate::rt_app::task::Task;

    fn of(text: &str) -> Result<Work, String> {
        let file = SourceFile { name: "a.json", bytes: text.as_bytes() };
        let node = parse(&file).expect("the text is JSON");
        work(&Task::read("a", &node, None)?, Span::from_secs(1))
    }

    const MS: fn(u64) -> Span = Span::from_ms;

    #[test]
    fn rt_app_thread_that_repeats_one_phase_becomes_repeating_work() {
        let timer = "{ run: 3000, timer: { ref: 'unique', period: 30000 } }";
        assert_eq!(of(timer), Ok(Work::Periodic { period: MS(30), work: MS(3) }));
        let sleep = "{ run0: 3000, run1: 1000, sleep: 6000 }";
        assert_eq!(of(sleep), Ok(Work::Interactive { compute: MS(4), sleep: MS(6) }));
        assert_eq!(of("{ loop: -1, runtime: 1000 }"), Ok(Work::Spin));
    }

    #[test]
    fn rt_app_phases_with_timer_become_jobs_with_ready_times() {
        let text = "{ loop: 1, phases: {
            wait: { sleep: 5000 },
            light: { loop: 2, run: 3000, timer: { period: 30000 } },
            heavy: { loop: 1, run: 27000, timer: { period: 30000 } } } }";
        let jobs = vec![(MS(5), MS(3)), (MS(35), MS(3)), (MS(65), MS(27))];
        assert_eq!(of(text), Ok(Work::Ready(jobs)));
    }

    #[test]
    fn rt_app_phases_with_sleeps_become_jobs_with_think_times() {
        let text = "{ loop: 1, phases: {
            a: { loop: 2, run: 3000, sleep: 2000 }, b: { run: 1000, run: 1000 } } }";
        let jobs = vec![(MS(0), MS(3)), (MS(2), MS(3)), (MS(2), MS(2))];
        assert_eq!(of(text), Ok(Work::Think(jobs)));
    }

    #[test]
    fn rt_app_thread_that_loops_without_computing_is_refused() {
        let text = "{ phases: { a: { run: 0 }, b: { run: 0, sleep: 0 } } }";
        assert_eq!(of(text), Err("the thread never computes".to_owned()));
        let text =
            "{ phases: { a: { loop: 1, sleep: 0 }, b: { run: 0 }, c: { run: 1, loop: -1 } } }";
        assert_eq!(of(text).map(|work| matches!(work, Work::Think(_))), Ok(true));
    }

    #[test]
    fn rt_app_thread_that_sleeps_after_a_timer_is_refused() {
        let text = "{ run: 1000, timer: { period: 5000 }, sleep: 100 }";
        assert!(of(text).is_err_and(|why| why.contains("`sleep`")));
    }
}
