//! Random task sets by UUniFast-discard, from the generator of `slackline-fit`.

use slackline_fit::TaskScheduler;
use slackline_fit::generate::{Deadlines, SetDraws, SetRecipe, task_set};
use slackline_units::{CpuShare, Span};

use crate::error::WorkloadError;
use crate::task_vms::VmTask;

/// Maximum number of tasks to draw. It is the maximum that `slackline fit` accepts.
const MOST_TASKS: u16 = 200;

/// Shortest and longest period that a user can choose.
const PERIODS: (Span, Span) = (Span::from_us(100), Span::from_secs(3600));

/// Description of a random task set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetOptions {
    /// Number of tasks to draw.
    pub tasks: u16,
    /// Sum of the utilisations of all tasks. The sum can exceed one CPU.
    pub utilisation: CpuShare,
    /// Shortest and longest period. Periods are log-uniform.
    pub periods: (Span, Span),
    /// True if deadlines are drawn too, so that a deadline can be before the end of its period.
    pub has_constrained_deadlines: bool,
}

impl Default for SetOptions {
    fn default() -> SetOptions {
        SetOptions {
            tasks: 5,
            utilisation: CpuShare::from_ppm(700_000),
            periods: (Span::from_ms(10), Span::from_secs(1)),
            has_constrained_deadlines: false,
        }
    }
}

impl SetOptions {
    /// Draws the tasks with a seed.
    pub(crate) fn draw(&self, seed: u64) -> Result<Vec<VmTask>, WorkloadError> {
        self.check()?;
        let (shortest, longest) = self.periods;
        let us = |span: Span| span.ns() / 1_000;
        let tasks = u64::from(self.tasks);
        let recipe = SetRecipe {
            tasks: tasks..=tasks,
            periods_us: (us(shortest), us(longest)),
            deadlines: match self.has_constrained_deadlines {
                true => Deadlines::Constrained,
                false => Deadlines::Implicit,
            },
            scheduler: TaskScheduler::Edf,
            ..SetRecipe::default()
        };
        let recipe = recipe.with_utilisation(self.utilisation);
        let set = task_set(&mut SetDraws::new(seed), &recipe).ok_or_else(|| {
            let why = format!(
                "cannot draw {tasks} tasks with a total utilisation of {}: in each of 1000 draws a \
                 task exceeded one CPU",
                self.utilisation
            );
            let hint = "use more tasks, or a smaller utilisation";
            WorkloadError::Options { why, hint }
        })?;
        let task = |(number, task): (usize, &slackline_fit::PeriodicTask)| {
            let name = format!("task{number}");
            VmTask::periodic(name, task.work(), task.period(), task.deadline())
        };
        Ok(set.tasks().iter().enumerate().map(task).collect())
    }

    fn check(&self) -> Result<(), WorkloadError> {
        let wrong = |why: String, hint| Err(WorkloadError::Options { why, hint });
        let SetOptions { tasks, utilisation, periods: (shortest, longest), .. } = *self;
        if !(1..=MOST_TASKS).contains(&tasks) {
            return wrong(format!("{tasks} tasks; 1 to {MOST_TASKS} are possible"), "use 5 tasks");
        }
        let most = u32::from(tasks) * CpuShare::ONE.ppm();
        if utilisation == CpuShare::NONE || utilisation.ppm() > most {
            let why = format!(
                "utilisation {utilisation} of {tasks} tasks; above 0 and up to {} are possible",
                CpuShare::from_ppm(most)
            );
            return wrong(why, "use a utilisation of 70%");
        }
        let (least, most) = PERIODS;
        if shortest < least || longest < shortest || longest > most {
            let why = format!("periods {shortest} to {longest}; {least} to {most} are possible");
            return wrong(why, "use periods of 10ms to 1s");
        }
        Ok(())
    }

    /// Returns the assumptions with which the tasks were drawn, for users.
    pub(crate) fn assumed(&self, seed: u64) -> Vec<String> {
        let (shortest, longest) = self.periods;
        let deadlines = match self.has_constrained_deadlines {
            true => "uniform between the work and the period, but at least half of the period",
            false => "at the ends of the periods",
        };
        vec![
            format!(
                "utilisations by UUniFast-discard with the sum {}, from seed {seed}",
                self.utilisation
            ),
            format!("periods are log-uniform from {shortest} to {longest}, in whole microseconds"),
            format!("deadlines are {deadlines}"),
            "work is rounded down to whole microseconds, and is at least 1us".to_owned(),
        ]
    }
}
