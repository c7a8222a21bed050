//! Overdue jobs: jobs that a load process has not done although their deadlines have passed. A load
//! process reports a job only when it is done, so overdue jobs are computed from the program.

use slackline_scenario::{Program, Purpose, Releases, Step, Stream};
use slackline_trace::Record;
use slackline_units::{Time, VcpuId};

/// Maximum number of jobs of one program that are computed. Later jobs never count as overdue.
const MOST_JOBS: usize = 1_000_000;

/// Jobs with deadlines of one load process, according to its program.
#[derive(Debug)]
pub(crate) struct JobSchedule {
    program: Program,
    seed: u64,
    vcpu: VcpuId,
    /// Time of the run at which the program begins.
    began: Time,
    /// Latest release among the jobs that are done. `None` if no job with a deadline is done.
    done: Option<Time>,
}

impl JobSchedule {
    /// Creates the schedule of a program that begins at the time `began` of the run. `None` if the
    /// program has no jobs with deadlines.
    pub(crate) fn of(
        program: &Program,
        (seed, vcpu): (u64, VcpuId),
        began: Time,
    ) -> Option<JobSchedule> {
        let has_deadline = |step: &Step| matches!(step, Step::Release { deadline: Some(_), .. });
        let is_done = |step: &Step| matches!(step, Step::Done);
        let has_jobs = program.steps.iter().any(has_deadline) && program.steps.iter().any(is_done);
        let program = has_jobs.then(|| program.clone())?;
        Some(JobSchedule { program, seed, vcpu, began, done: None })
    }

    /// Takes note of a job that the load process has reported as done. Ignores a job that was done
    /// after `until`.
    pub(crate) fn note(&mut self, record: &Record, until: Time) {
        if let Record::Job { released, deadline, done, .. } = *record
            && deadline != Time::NEVER
            && done <= until
        {
            self.done = self.done.max(Some(released));
        }
    }

    /// Returns a record for each job that is not done at the time `at` of the run, although its
    /// deadline has passed.
    pub(crate) fn overdue(&self, at: Time) -> Vec<Record> {
        let is_open = |released: Time| self.done.is_none_or(|done| released > done);
        let jobs = self.jobs().take(MOST_JOBS).take_while(|&(released, _)| released <= at);
        jobs.filter(|&(released, deadline)| is_open(released) && deadline <= at)
            .map(|(released, deadline)| {
                let vcpu = self.vcpu;
                Record::Unfinished { at, vcpu, task: None, released, deadline }
            })
            .collect()
    }

    /// Returns the release and the deadline of each job, in order. The random draws are the same as
    /// in the load process.
    fn jobs(&self) -> impl Iterator<Item = (Time, Time)> {
        let mut draws = Stream::of_vcpu(self.seed, self.vcpu, Purpose::Work);
        let (mut releases, mut current) = (Releases::of_program_from(self.began), None);
        let rounds = if self.program.repeat { usize::MAX } else { 1 };
        let steps = (0..rounds).flat_map(|_| &self.program.steps);
        steps.filter_map(move |step| match step {
            Step::Compute(draw) | Step::Sleep(draw) => {
                draws.draw(draw);
                None
            }
            Step::Release { deadline, .. } => {
                let released = releases.next(step, &draws)?;
                current = deadline.map(|span| (released, released.after(span)));
                None
            }
            Step::Done => current.take(),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use slackline_scenario::Draw;
    use slackline_units::{DomId, Span};

    use super::*;

    fn ms(ms: u64) -> Time {
        Time::START + Span::from_ms(ms)
    }

    /// Returns the schedule of a program whose jobs are released at 5 ms and then each 10 ms.
    fn schedule(repeat: bool) -> JobSchedule {
        let span = |ms| Draw::Fixed(Span::from_ms(ms));
        let release = Step::Release {
            period: Span::from_ms(10),
            offset: Span::ZERO,
            gap: Draw::Fixed(Span::ZERO),
            jitter: Draw::Fixed(Span::ZERO),
            deadline: Some(Span::from_ms(10)),
        };
        let steps = vec![release, Step::Compute(span(20)), Step::Done];
        let program = Program { steps, repeat, recording: None };
        let vcpu = VcpuId::new(0, DomId::new(0), 0);
        JobSchedule::of(&program, (1, vcpu), ms(5)).unwrap()
    }

    fn overdue(schedule: &JobSchedule, at: Time) -> Vec<(Time, Time)> {
        let job = |record: Record| match record {
            Record::Unfinished { released, deadline, .. } => (released, deadline),
            record => panic!("{record:?}"),
        };
        schedule.overdue(at).into_iter().map(job).collect()
    }

    #[test]
    fn each_unfinished_job_with_past_deadline_is_overdue() {
        let mut schedule = schedule(true);
        assert_eq!(overdue(&schedule, ms(1005)).len(), 100);
        let (vcpu, at) = (schedule.vcpu, ms(26));
        let (released, deadline) = (ms(5), ms(15));
        let (task, client) = (None, None);
        schedule.note(&Record::Job { vcpu, task, client, released, deadline, done: at }, at);
        assert_eq!(overdue(&schedule, ms(40)), [(ms(15), ms(25)), (ms(25), ms(35))]);
    }

    #[test]
    fn program_that_does_not_repeat_has_one_overdue_job() {
        assert_eq!(overdue(&schedule(false), ms(1005)), [(ms(5), ms(15))]);
        assert_eq!(overdue(&schedule(false), ms(14)), []);
    }
}
