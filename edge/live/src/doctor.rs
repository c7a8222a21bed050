//! What this host can do for Slackline, found out by trying.
//!
//! Each topic has one probe, and each probe is tried on its own: what one cannot find out leaves
//! the others alone and is reported as unknown, with the reason. Probes that try something (a
//! real-time priority, deadline bandwidth, a cgroup) do so on threads and groups of their own, and
//! undo it before they return. The whole examination takes about a quarter of a second, most of it
//! to measure how late timers are.

mod cpus;
mod deadline;
mod groups;
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

/// How well a host does in one topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// As Slackline wants it.
    Good,
    /// There, but less than it could be.
    Limited,
    /// Not there.
    Missing,
    /// Could not be found out.
    Unknown,
}

impl State {
    /// One lower-case word.
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

/// A number behind a finding, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// What it is, with its unit last: `timer_p99_ns`.
    pub name: &'static str,
    /// How much.
    pub value: u64,
}

/// What was found about one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// About what.
    pub topic: Topic,
    /// How good that is.
    pub state: State,
    /// What was found, with its numbers, for people.
    pub found: String,
    /// What to do about it; none where nothing is to be done.
    pub hint: Option<String>,
    /// The numbers in `found`, for programs.
    pub figures: Vec<Figure>,
}

impl Finding {
    /// The topic's stable name, such as `rt-limit`.
    #[must_use]
    pub const fn id(&self) -> &'static str {
        self.topic.id()
    }

    /// Why the topic matters, in one line.
    #[must_use]
    pub const fn matters(&self) -> &'static str {
        self.topic.matters()
    }
}

/// What was found about a host: one finding a topic, in the order of [`Topic::ALL`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    findings: Vec<Finding>,
    leftovers: Vec<String>,
}

impl Report {
    /// All findings.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// What was found about one topic.
    ///
    /// # Panics
    /// Never: a report has all topics.
    #[must_use]
    pub fn finding(&self, topic: Topic) -> &Finding {
        self.findings.iter().find(|finding| finding.topic == topic).expect("has all topics")
    }

    /// Whether a scenario can run live here: nothing that this cannot do without is missing, or
    /// unknown.
    #[must_use]
    pub fn can_run_live(&self) -> bool {
        self.obstacles().next().is_none()
    }

    /// What keeps scenarios from running live here.
    pub fn obstacles(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| {
            finding.topic.is_required() && matches!(finding.state, State::Missing | State::Unknown)
        })
    }

    /// Adds what killed runs left behind, a line each, to be shown at the end.
    #[must_use]
    pub fn with_leftovers(mut self, lines: Vec<String>) -> Report {
        self.leftovers = lines;
        self
    }

    /// What killed runs left behind, as it was handed in.
    #[must_use]
    pub fn leftovers(&self) -> &[String] {
        &self.leftovers
    }
}

/// Examines this host.
///
/// Tries real-time priorities on threads of its own and, for some milliseconds, holds all deadline
/// bandwidth that is free, so that whoever asks for some in that instant is refused.
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

/// Leaves out the ` (os error 13)` that comes after the words of the kernel's errors: the words are
/// for people, the numbers are not.
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
        Topic::SchedExt => kernel::sched_ext,
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
    fn errors_are_said_in_words_only() {
        let text = "a: No such file (os error 2); b: Denied (os error 13)";
        assert_eq!(without_numbers_of_errors(text), "a: No such file; b: Denied");
        assert_eq!(without_numbers_of_errors("nothing wrong (at all)"), "nothing wrong (at all)");
    }
}
