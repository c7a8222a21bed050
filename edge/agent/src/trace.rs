//! Task events from the kernel's tracing. There are two events: a task wakes (an interrupt or
//! another task wakes it), and a task leaves its CPU. Each agent has a trace instance of its own,
//! which is removed when the agent ends.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::stat::State;

/// Directories where tracing may be mounted.
const ROOTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Prefix of the name of an agent's trace instance. The agent's process id follows it.
const PREFIX: &str = "slackline-";

/// Trace instance of an agent in the kernel's tracing. The value is its directory.
#[derive(Debug)]
pub(crate) struct Trace(PathBuf);

/// An event of a task: its wake-up, or a switch of its CPU to another task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Woke { tid: u32, cpu: u16, by_interrupt: bool },
    LeftCpu { tid: u32, state: State, cpu: u16 },
}

impl Trace {
    /// Creates a trace instance that watches no task yet. Returns an error if the kernel has no
    /// tracing.
    pub(crate) fn begin() -> io::Result<Trace> {
        let mut roots = ROOTS.iter().map(Path::new);
        let root = roots.find(|root| root.join("events/sched/sched_waking").is_dir());
        let root = root.ok_or(io::ErrorKind::NotFound)?;
        let instances = root.join("instances");
        clear(&instances);
        let folder = instances.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&folder)?;
        let trace = Trace(folder);
        // Without this setting, a reader is woken only when half of the buffer is full. Older
        // kernels lack the setting and wake a reader at once.
        let _ = trace.write("buffer_percent", "0");
        trace.write("buffer_size_kb", "64")?;
        Ok(trace)
    }

    /// Opens the file of this instance from which events are read as text, one per line. A read
    /// blocks until there is an event.
    pub(crate) fn lines(&self) -> io::Result<File> {
        File::open(self.0.join("trace_pipe"))
    }

    /// Limits the trace to the events of the tasks in `tids` from now on.
    pub(crate) fn watch(&self, tids: &[u32]) -> io::Result<()> {
        let any = |field: &str| {
            let each = tids.iter().map(|tid| format!("{field} == {tid}"));
            each.collect::<Vec<_>>().join(" || ")
        };
        for (event, field) in [("sched_waking", "pid"), ("sched_switch", "prev_pid")] {
            let of = |file: &str| format!("events/sched/{event}/{file}");
            let nobody = tids.is_empty();
            self.write(&of("filter"), &if nobody { "0".into() } else { any(field) })?;
            self.write(&of("enable"), if nobody { "0" } else { "1" })?;
        }
        Ok(())
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        fs::write(self.0.join(file), text)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Removes the trace instances of agents that were killed. Otherwise the kernel would trace the
/// tasks in these instances forever, and a new agent with the process id of a killed agent could
/// not create its instance. The instances of running agents stay.
fn clear(instances: &Path) {
    for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        let is_left = |pid: u32| {
            pid == std::process::id() || !Path::new("/proc").join(pid.to_string()).exists()
        };
        if number.is_some_and(is_left) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

impl Event {
    /// Parses a line of `trace_pipe`. Returns `None` if the line is no wake-up or switch of a task.
    pub(crate) fn parse(line: &str) -> Option<Event> {
        let woke = line.split_once(": sched_waking: ");
        let (head, body) = woke.or_else(|| line.split_once(": sched_switch: "))?;
        // A line has CPU, flags and time in this form: `[001] d.h2.  12.345678`. The text before
        // them can contain any character.
        let mut words = head.split_whitespace().rev().skip(1);
        let (flags, cpu) = (words.next()?, words.next()?);
        let here = cpu.strip_prefix('[')?.strip_suffix(']')?.parse().ok()?;
        if woke.is_some() {
            let by_interrupt = flags.contains(['h', 's', 'H']);
            let (tid, cpu) = (number(body, " pid=")?, number(body, " target_cpu=")?);
            return Some(Event::Woke { tid, cpu: u16::try_from(cpu).ok()?, by_interrupt });
        }
        let (before, _) = body.split_once(" ==> ")?;
        let state = before.rsplit_once(" prev_state=")?.1;
        let state = match state.as_bytes().first()? {
            b'R' => State::Wants,
            b'S' | b'D' | b'I' => State::Waits,
            _ => State::Neither,
        };
        Some(Event::LeftCpu { tid: number(before, " prev_pid=")?, state, cpu: here })
    }
}

/// Returns the number in `text` that follows the last occurrence of `word`.
fn number(text: &str, word: &str) -> Option<u32> {
    let digits = text.rsplit_once(word)?.1;
    digits.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_removes_only_trace_instances_of_killed_agents() {
        let folder = std::env::temp_dir().join(format!("{PREFIX}trace-{}", std::process::id()));
        // No process has an id above 2^22.
        let own = format!("{PREFIX}{}", std::process::id());
        let all = ["slackline-5000000", &own, "slackline-1", "slackline-x", "5000001"];
        all.iter().for_each(|name| fs::create_dir_all(folder.join(name)).expect("a folder"));
        clear(&folder);
        let stays = all.map(|name| folder.join(name).exists());
        assert_eq!(stays, [false, false, true, true, true]);
        fs::remove_dir_all(&folder).expect("the folder is there");
    }

    #[test]
    fn kernel_trace_line_is_parsed_for_any_task_name() {
        let woke = "          <idle>-0       [001] d.h2.    12.345678: sched_waking: \
                    comm=a pid=9 pid=77 prio=120 target_cpu=003";
        let expected = Event::Woke { tid: 77, cpu: 3, by_interrupt: true };
        assert_eq!(Event::parse(woke), Some(expected));
        let by_task = "   [00] x: y-12      [000] d..2.    12.345679: sched_waking: \
                    comm=server pid=77 prio=49 target_cpu=000";
        let expected = Event::Woke { tid: 77, cpu: 0, by_interrupt: false };
        assert_eq!(Event::parse(by_task), Some(expected));
        let left = "          server-77      [002] d..2.    12.345680: sched_switch: \
                    prev_comm=server prev_pid=77 prev_prio=49 prev_state=S ==> next_comm=x \
                    next_pid=0 next_prio=120";
        let expected = Event::LeftCpu { tid: 77, state: State::Waits, cpu: 2 };
        assert_eq!(Event::parse(left), Some(expected));
        let still = left.replace("prev_state=S", "prev_state=R+");
        let expected = Event::LeftCpu { tid: 77, state: State::Wants, cpu: 2 };
        assert_eq!(Event::parse(&still), Some(expected));
        for other in ["", "CPU:0 [LOST 12 EVENTS]", "x [000] d: sched_waking: pid=1"] {
            assert_eq!(Event::parse(other), None, "{other}");
        }
    }
}
