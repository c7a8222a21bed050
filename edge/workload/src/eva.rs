//! Task sets of EVA-rt-Engine and of the test suite of HCBS. A line has the worst-case execution
//! time of a task, its deadline and its period. The first line can be a title: `Taskset NAME`.

use slackline_units::Span;

use crate::decimal::scaled;
use crate::error::WorkloadError;
use crate::names::stem;
use crate::task_vms::{LONGEST, MOST_TASKS, VmTask};
use crate::{Options, SourceFile, TimeUnit};

/// Tasks of a file, with their title.
pub(crate) struct EvaSet {
    pub(crate) title: String,
    pub(crate) tasks: Vec<VmTask>,
    /// Line of each task, counted from 1.
    pub(crate) lines: Vec<u64>,
}

const ADVICE: &str = "a line of EVA has three numbers: WCET, deadline and period";

impl EvaSet {
    /// Reads the tasks of a file.
    pub(crate) fn read(file: &SourceFile<'_>, options: &Options) -> Result<EvaSet, WorkloadError> {
        let text = std::str::from_utf8(file.bytes)
            .map_err(|_| WorkloadError::file(file.name, "the file is not UTF-8 text"))
            .map_err(|error| error.advise(ADVICE))?;
        let mut set = EvaSet { title: stem(file.name).into(), tasks: vec![], lines: vec![] };
        for (number, line) in (1..).zip(text.lines()) {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            match fields[..] {
                [] => {}
                ["Taskset", name] if set.tasks.is_empty() => set.title = name.into(),
                [work, deadline, period] => {
                    let name = format!("task{}", set.tasks.len());
                    let task = task(name, [work, deadline, period], options.unit);
                    let wrong = |why| WorkloadError::line(file.name, number, why).advise(ADVICE);
                    set.tasks.push(task.map_err(wrong)?);
                    set.lines.push(number);
                }
                _ => {
                    let why = format!("the line has {} fields; a task has 3", fields.len());
                    return Err(WorkloadError::line(file.name, number, why).advise(ADVICE));
                }
            }
            if set.tasks.len() > MOST_TASKS {
                let why = format!("more than {MOST_TASKS} tasks");
                return Err(WorkloadError::line(file.name, number, why).advise("divide the file"));
            }
        }
        if set.tasks.is_empty() {
            return Err(WorkloadError::file(file.name, "the file has no task").advise(ADVICE));
        }
        Ok(set)
    }

    /// Returns the assumptions about facts that the file does not state.
    pub(crate) fn assumed(options: &Options) -> Vec<String> {
        vec![format!("times are in {}; the file does not state the unit", options.unit.name())]
    }
}

fn task(name: String, texts: [&str; 3], unit: TimeUnit) -> Result<VmTask, String> {
    let time = |key: &str, text: &str| {
        let ns = scaled(text, unit.digits()).filter(|&ns| ns <= LONGEST * 1_000_000_000);
        ns.map(Span::from_ns).ok_or_else(|| {
            let text: String = text.chars().take(40).flat_map(char::escape_debug).collect();
            format!("{key} `{text}` is not a time in {} of at most a day", unit.name())
        })
    };
    let [work, deadline, period] = texts;
    let (work, deadline, period) =
        (time("WCET", work)?, time("deadline", deadline)?, time("period", period)?);
    let task = VmTask::periodic(name, work, period, deadline);
    let due = task.due();
    if work.is_zero() || due.is_zero() {
        let key = if work.is_zero() { "WCET" } else { "deadline or period" };
        return Err(format!("{key} 0s is not greater than zero"));
    }
    if work > due {
        let why =
            format!("WCET {work} does not fit into {due}, the shorter of deadline and period");
        return Err(why);
    }
    Ok(task)
}
