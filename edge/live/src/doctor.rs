//! Examination of this host by `doctor`. For each feature that Slackline uses, a probe finds out
//! whether the host has it.
//!
//! Each topic has one probe, and each probe is tried on its own. If a probe fails, its topic is
//! reported as unknown, with the reason. The other topics are examined all the same. Probes that
//! try something (a real-time priority, deadline bandwidth, a cgroup) use threads and cgroups of
//! their own, and undo all changes before they return. The whole examination takes about a quarter
//! of a second, most of it to measure how late timers are.

mod cpus;
mod deadline;
mod groups;
mod journal;
mod kernel;
mod machines;
mod neighbours;
mod parse;
mod privilege;
mod probe;
mod realtime;
mod render;
mod timing;
mod topic;
mod watching;

pub use realtime::real_time_limit;
pub use render::Ink;
pub use topic::{Section, Topic};

use probe::{Host, Probe, Verdict};

/// State of this host in one topic of the examination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// The host has all that Slackline wants in this topic.
    Good,
    /// The feature works on this host, but with a limit.
    Limited,
    /// The feature is not available on this host.
    Missing,
    /// The state is not known, because the probe of this topic failed.
    Unknown,
}

impl State {
    /// Returns the state as one lower-case word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            State::Good => "good",
            State::Limited => "limited",
            State::Missing => "missing",
            State::Unknown => "unknown",
        }
    }
}

/// A number in a finding, for programs that read the report as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Name of the number. The unit is its last part, as in `timer_p99_ns`.
    pub name: &'static str,
    /// Value, in the unit at the end of the name.
    pub value: u64,
}

/// Result of the examination in one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Topic of the finding.
    pub topic: Topic,
    /// State of the host in this topic.
    pub state: State,
    /// Description of the host's state in this topic, for people. It contains the same numbers as
    /// `figures`.
    pub found: String,
    /// Advice for the user. `None` if the user need not do anything.
    pub hint: Option<String>,
    /// Numbers that occur in `found`, for programs.
    pub figures: Vec<Figure>,
}

impl Finding {
    /// Returns the topic's stable name, such as `rt-limit`.
    #[must_use]
    pub const fn id(&self) -> &'static str {
        self.topic.id()
    }

    /// Returns the reason why the topic matters, in one line.
    #[must_use]
    pub const fn matters(&self) -> &'static str {
        self.topic.matters()
    }
}

/// Findings of a host: one per topic, in the order of [`Topic::ALL`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    findings: Vec<Finding>,
    leftovers: Vec<String>,
}

impl Report {
    /// Returns the findings of all topics.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Returns the finding of one topic.
    ///
    /// # Panics
    /// Never: a report has all topics.
    #[must_use]
    pub fn finding(&self, topic: Topic) -> &Finding {
        self.findings
            .iter()
            .find(|finding| finding.topic == topic)
            .expect("a report has all topics")
    }

    /// Returns true if scenarios can run live on this host: no required topic is missing or
    /// unknown.
    #[must_use]
    pub fn can_run_live(&self) -> bool {
        self.obstacles().next().is_none()
    }

    /// Returns the findings of required topics that are missing or unknown. Each of these topics
    /// keeps scenarios from running live.
    pub fn obstacles(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| {
            finding.topic.is_required() && matches!(finding.state, State::Missing | State::Unknown)
        })
    }

    /// Adds one line for each thread whose scheduling is still changed because a run of Slackline
    /// was killed before it could restore the thread. The lines follow the findings in the report.
    #[must_use]
    pub fn with_leftovers(mut self, lines: Vec<String>) -> Report {
        self.leftovers = lines;
        self
    }

    /// Returns the lines that [`Report::with_leftovers`] added: one for each thread whose
    /// scheduling is still changed because a run of Slackline was killed.
    #[must_use]
    pub fn leftovers(&self) -> &[String] {
        &self.leftovers
    }
}

/// Examines this host.
///
/// The examination tries real-time priorities on its own threads. For some milliseconds it reserves
/// all free bandwidth of `SCHED_DEADLINE`. In these milliseconds the kernel refuses deadline
/// bandwidth to other programs.
#[must_use]
pub fn examine() -> Report {
    let host = Host::look();
    let findings = Topic::ALL.into_iter().map(|topic| find(topic, &host)).collect();
    Report { findings, leftovers: Vec::new() }
}

fn find(topic: Topic, host: &Host) -> Finding {
    let verdict = probe_of(topic)(host).unwrap_or_else(|error| Verdict::unknown(error.to_string()));
    Finding {
        topic,
        state: verdict.state,
        found: without_numbers_of_errors(&verdict.found),
        hint: verdict.hint,
        figures: verdict.figures,
    }
}

/// Removes error numbers such as ` (os error 13)` from the kernel's error texts, since users do not
/// need them.
fn without_numbers_of_errors(text: &str) -> String {
    let mut pieces = text.split(" (os error ");
    let mut words = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        words.push_str(piece.split_once(')').map_or(piece, |(_, rest)| rest));
    }
    words
}

const fn probe_of(topic: Topic) -> Probe {
    match topic {
        Topic::Kernel => kernel::version,
        Topic::Pidfd => kernel::pidfd,
        Topic::Privilege => privilege::privilege,
        Topic::MemoryLock => privilege::memory_lock,
        Topic::Fifo => realtime::fifo,
        Topic::RtGroup => realtime::rt_group,
        Topic::RtLimit => realtime::rt_limit,
        Topic::FairServer => realtime::fair_server,
        Topic::DeadlineShare => deadline::share,
        Topic::OtherRealtime => neighbours::real_time,
        Topic::Timers => timing::timers,
        Topic::Clock => timing::clock,
        Topic::Tick => timing::tick,
        Topic::Steal => timing::steal,
        Topic::Cpus => cpus::cpus,
        Topic::Smt => cpus::smt,
        Topic::Topology => cpus::topology,
        Topic::Governor => cpus::governor,
        Topic::Cgroup => groups::version,
        Topic::Freezer => groups::freezer,
        Topic::CgroupMoves => groups::moves,
        Topic::Journal => journal::file_system,
        Topic::SchedExt => kernel::sched_ext,
        Topic::GroupReservations => groups::reservations,
        Topic::Perf => watching::perf,
        Topic::Tracefs => watching::tracefs,
        Topic::Bpf => watching::bpf,
        Topic::Kvm => machines::kvm,
        Topic::Qemu => machines::qemu,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doctor_findings_omit_the_numbers_of_operating_system_errors() {
        let text = "a: No such file (os error 2); b: Denied (os error 13)";
        assert_eq!(without_numbers_of_errors(text), "a: No such file; b: Denied");
        assert_eq!(without_numbers_of_errors("nothing wrong (at all)"), "nothing wrong (at all)");
    }
}
