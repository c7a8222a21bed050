//! Task set files, which describe the tasks of a guest.

use serde::Deserialize;
use slackline_fit::{PeriodicTask, TaskScheduler, TaskSet};
use slackline_units::Span;
use toml::Spanned;

/// A task set with the names of its tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTasks {
    /// Title of the file. Without a file, another description in one line.
    pub title: String,
    /// Names of the tasks, in the order of the set.
    pub names: Vec<String>,
    /// Tasks with their scheduler.
    pub set: TaskSet,
}

/// Returns true if a text is a scenario and not a task set.
#[must_use]
pub fn is_scenario(text: &str) -> bool {
    let table = text.parse::<toml::Table>();
    table.is_ok_and(|table| !table.contains_key("task") && table.contains_key("policy"))
}

/// Error in a task set file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BadTasksFile {
    /// Position of the error in the text, in bytes.
    pub at: usize,
    /// Description of the error.
    pub message: String,
    /// Advice in one line. `None` if there is none.
    pub hint: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TasksFile {
    title: Option<String>,
    scheduler: Option<Spanned<String>>,
    #[serde(default)]
    task: Vec<Spanned<TaskTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskTable {
    name: Option<Spanned<String>>,
    work: Spanned<String>,
    period: Spanned<String>,
    deadline: Option<Spanned<String>>,
    priority: Option<Spanned<u8>>,
}

/// A task as read from a file, before the tasks are ordered by priority.
struct ReadTask {
    name: String,
    task: PeriodicTask,
    priority: Option<u8>,
    at: usize,
}

impl NamedTasks {
    /// Creates a named task set. Its tasks are called `task0`, `task1` and so on.
    #[must_use]
    pub fn numbered(title: &str, set: TaskSet) -> NamedTasks {
        let names = (0..set.tasks().len()).map(|number| format!("task{number}")).collect();
        NamedTasks { title: title.into(), names, set }
    }

    /// Reads a task set from TOML: `scheduler`, and a table `[[task]]` with `work`, `period`,
    /// `deadline` and `priority` for each task.
    ///
    /// # Errors
    /// If the text is not a valid task set.
    pub fn read(text: &str) -> Result<NamedTasks, BadTasksFile> {
        let file: TasksFile = toml::from_str(text).map_err(|error| {
            let message = error.message().lines().next().unwrap_or("not a task set").to_owned();
            let hint = Some("see the example in `slackline help tasks`".into());
            BadTasksFile { at: error.span().map_or(0, |span| span.start), message, hint }
        })?;
        let scheduler = match &file.scheduler {
            None => TaskScheduler::Edf,
            Some(name) => match name.get_ref().as_str() {
                "edf" => TaskScheduler::Edf,
                "fixed" => TaskScheduler::Fixed,
                other => {
                    let message = format!("`scheduler` is `edf` or `fixed`, not `{other}`");
                    return Err(bad(name.span().start, message, "write scheduler = \"edf\""));
                }
            },
        };
        let mut tasks = Vec::new();
        for (number, table) in file.task.iter().enumerate() {
            let task = read_task(number, table)?;
            if let Some(other) = tasks.iter().find(|other: &&ReadTask| other.name == task.name) {
                let message = format!("there is another task called `{}`", other.name);
                return Err(bad(task.at, message, "give one of them another name"));
            }
            tasks.push(task);
        }
        match scheduler {
            TaskScheduler::Fixed => order_by_priority(&mut tasks)?,
            TaskScheduler::Edf => {
                if let Some(task) = tasks.iter().find(|task| task.priority.is_some()) {
                    let message = "`priority` has no effect under `edf`".to_owned();
                    return Err(bad(task.at, message, "write scheduler = \"fixed\""));
                }
            }
        }
        let (names, tasks): (Vec<_>, Vec<_>) =
            tasks.into_iter().map(|task| (task.name, task.task)).unzip();
        let one_line = |letter: char| if letter.is_control() { '\u{fffd}' } else { letter };
        let title = file.title.unwrap_or_else(|| "task set".into());
        let title = title.chars().map(one_line).collect();
        let set = TaskSet::new(tasks, scheduler).map_err(|error| BadTasksFile {
            at: 0,
            message: error.to_string(),
            hint: Some("write a table [[task]] for each of 1 to 200 tasks".into()),
        })?;
        Ok(NamedTasks { title, names, set })
    }
}

fn bad(at: usize, message: String, hint: &str) -> BadTasksFile {
    BadTasksFile { at, message, hint: Some(hint.into()) }
}

fn read_task(number: usize, table: &Spanned<TaskTable>) -> Result<ReadTask, BadTasksFile> {
    let TaskTable { name, work, period, deadline, priority } = table.get_ref();
    let span = |text: &Spanned<String>| {
        text.get_ref().parse::<Span>().map_err(|why| {
            let message = format!("`{}` {why}", text.get_ref());
            bad(text.span().start, message, "write it as `250us`, `4ms` or `1s`")
        })
    };
    let (work_span, period_span) = (span(work)?, span(period)?);
    let due = deadline.as_ref().map(span).transpose()?.unwrap_or(period_span);
    let at = table.span().start;
    let task = PeriodicTask::new(work_span, period_span, due)
        .map_err(|error| bad(at, error.to_string(), "a task needs work <= deadline <= period"))?;
    let name = match name {
        None => format!("task{number}"),
        Some(name) => {
            let text = name.get_ref();
            let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            let begins = text.starts_with(|c: char| c.is_ascii_alphabetic());
            if !begins || !text.chars().all(is_plain) || text.len() > 64 {
                let message = format!(
                    "`{}` is not a name: names have letters, digits, `-` and `_`, and begin with \
                     a letter",
                    text.escape_debug()
                );
                return Err(bad(name.span().start, message, "write name = \"control\""));
            }
            text.clone()
        }
    };
    Ok(ReadTask { name, task, priority: priority.as_ref().map(|number| *number.get_ref()), at })
}

/// Orders tasks by priority, highest first. If no task has a priority, the task with the shortest
/// deadline comes first.
fn order_by_priority(tasks: &mut [ReadTask]) -> Result<(), BadTasksFile> {
    let given = tasks.iter().filter(|task| task.priority.is_some()).count();
    if given == 0 {
        tasks.sort_by_key(|task| (task.task.deadline(), task.task.period()));
        return Ok(());
    }
    if let Some(without) = tasks.iter().find(|task| task.priority.is_none()) {
        let message = format!("the task `{}` has no priority, but others have", without.name);
        return Err(bad(without.at, message, "give every task a priority, or none"));
    }
    tasks.sort_by_key(|task| std::cmp::Reverse(task.priority));
    let equal = tasks.windows(2).find(|two| two[0].priority == two[1].priority);
    equal.map_or(Ok(()), |two| {
        let message = format!("`{}` and `{}` have equal priorities", two[0].name, two[1].name);
        Err(bad(two[1].at, message, "give every task a priority of its own"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASKS: &str = "title = 'engine'\nscheduler = 'fixed'\n\
        [[task]]\nname = 'log'\nwork = '2ms'\nperiod = '50ms'\n\
        [[task]]\nname = 'control'\nwork = '250us'\nperiod = '5ms'\ndeadline = '3ms'\n";

    #[test]
    fn task_set_without_priorities_is_ordered_by_deadline() {
        let tasks = NamedTasks::read(TASKS).unwrap();
        assert_eq!(tasks.names, ["control", "log"]);
        assert_eq!(tasks.set.tasks()[0].deadline(), Span::from_ms(3));
        assert_eq!(tasks.set.tasks()[1].deadline(), Span::from_ms(50));
        let given = TASKS.replace("'50ms'", "'50ms'\npriority = 9");
        let given = given.replace("'3ms'", "'3ms'\npriority = 1");
        assert_eq!(NamedTasks::read(&given).unwrap().names, ["log", "control"]);
    }

    #[test]
    fn error_in_task_set_file_states_wrong_value_and_hint() {
        let cases = [
            ("'3ms'", "'6ms'", "deadline 6ms is more than the period 5ms"),
            ("'250us'", "'4ms'", "work 4ms is more than the deadline 3ms"),
            ("'250us'", "'0s'", "work must be greater than zero"),
            ("'250us'", "'250'", "`250` has no unit"),
            ("'fixed'", "'rm'", "`scheduler` is `edf` or `fixed`, not `rm`"),
            ("'control'", "'log'", "there is another task called `log`"),
            ("'control'", "'a b'", "`a b` is not a name"),
            ("work = '2ms'", "wcet = '2ms'", "unknown field `wcet`"),
            ("'3ms'", "'3ms'\npriority = 3", "the task `log` has no priority, but others have"),
        ];
        for (old, new, expected) in cases {
            let error = NamedTasks::read(&TASKS.replacen(old, new, 1)).unwrap_err();
            assert!(error.message.starts_with(expected), "{new}: {}", error.message);
            assert!(error.hint.is_some(), "{new}");
        }
        let edf = TASKS.replace("'fixed'", "'edf'").replace("'3ms'", "'3ms'\npriority = 3");
        let error = NamedTasks::read(&edf).unwrap_err();
        assert_eq!(error.message, "`priority` has no effect under `edf`");
    }
}
