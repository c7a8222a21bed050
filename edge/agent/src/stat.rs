//! State of a task, parsed from `/proc/PID/task/TID/stat`.

use slackline_units::Urgency;

/// State and scheduling parameters of a task in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) name: String,
    pub(crate) state: State,
    /// Number of the CPU on which the task ran last.
    pub(crate) cpu: u16,
    pub(crate) urgency: Urgency,
    pub(crate) nice: i8,
    pub(crate) is_real_time: bool,
    /// True if the task is a kernel thread.
    pub(crate) is_kernels: bool,
}

/// Run state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The task is runnable or running.
    Wants,
    /// The task is blocked.
    Waits,
    /// The task is neither runnable nor blocked: it is stopped or has exited.
    Neither,
}

/// Flag `PF_KTHREAD`, which marks the kernel's own threads.
const KERNELS: u64 = 0x0020_0000;

impl Stat {
    /// Parses the text of a `stat` file. Returns `None` if the text does not have the format of
    /// proc(5).
    pub(crate) fn parse(text: &str) -> Option<Stat> {
        // The name can contain any character, even the parenthesis that ends it. So search from the
        // end.
        let (before, after) = text.rsplit_once(')')?;
        let name = before.split_once('(')?.1.to_owned();
        let words: Vec<&str> = after.split_whitespace().collect();
        // The first of these words is the third field in proc(5).
        let number = |place: usize| words.get(place - 3)?.parse::<i64>().ok();
        let state = match *words.first()? {
            "R" => State::Wants,
            "S" | "D" | "I" => State::Waits,
            _ => State::Neither,
        };
        let nice = i8::try_from(number(19)?).ok()?;
        let (real_time, policy) = (u8::try_from(number(40)?).ok()?, number(41)?);
        let is_real_time = matches!(policy, 1 | 2 | 6);
        let urgency = match policy {
            1 | 2 => Urgency::of_linux_real_time(real_time)?,
            // SCHED_DEADLINE has precedence over all other classes.
            6 => Urgency(0),
            5 => Urgency::of_linux_idle(),
            _ => Urgency::of_linux_nice(nice)?,
        };
        let is_kernels = u64::try_from(number(9)?).ok()? & KERNELS != 0;
        let cpu = u16::try_from(number(39)?).ok()?;
        Some(Stat { name, state, cpu, urgency, nice, is_real_time, is_kernels })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(policy: u8, real_time: u8, nice: i8, flags: u32) -> String {
        let middle = "0 ".repeat(39 - 20);
        let before = format!("77 (a ) b) S 1 77 77 0 -1 {flags} 0 0 0 0 0 0 0 0 20 {nice} ");
        format!("{before}{middle}3 {real_time} {policy} 0 0 0 0 0 0 0 0 0 0 0\n")
    }

    #[test]
    fn task_urgency_follows_scheduling_class_priority_and_nice_value() {
        let urgency = |policy, real_time, nice| {
            let stat = Stat::parse(&stat(policy, real_time, nice, 0)).expect("a task");
            (stat.urgency.0, stat.is_real_time)
        };
        assert_eq!(urgency(0, 0, -5), (115, false));
        assert_eq!(urgency(3, 0, 19), (139, false));
        assert_eq!(urgency(5, 0, 0), (140, false));
        assert_eq!(urgency(1, 50, 0), (49, true));
        assert_eq!(urgency(6, 0, 0), (0, true));
        let task = Stat::parse(&stat(0, 0, 0, 0)).expect("a task");
        assert_eq!((task.name.as_str(), task.state, task.cpu), ("a ) b", State::Waits, 3));
        assert!(!task.is_kernels && Stat::parse(&stat(0, 0, 0, 0x0020_8040)).unwrap().is_kernels);
        for bad in ["", "1 (a) R", "1 a R 0", &stat(0, 0, 40, 0)] {
            assert_eq!(Stat::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn proc_stat_of_running_thread_is_parsed_as_runnable_task() {
        let text = std::fs::read_to_string("/proc/thread-self/stat").expect("procfs");
        let task = Stat::parse(&text).expect("a task");
        assert_eq!((task.state, task.is_kernels), (State::Wants, false));
    }
}
