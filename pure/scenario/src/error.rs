//! Errors of scenarios, with their place in the file. Each may have a hint.

use slackline_policy::{FieldError, Spec, TopologyError};
use slackline_units::{CpuId, ParseSpanError, ReservationError, Span, Time};
use thiserror::Error;

use crate::limits::{MOST_SYSTEMS, MOST_TASKS};
use crate::{MOST_STEPS, MOST_VCPUS, ParseDrawError};

/// A fault of a scenario with its place. The message is without the name of the file, which is not
/// known here.
#[derive(Clone, Debug, Error)]
#[error("{kind}")]
pub struct ScenarioError {
    /// Line, counted from 1. 0 if the fault is not in the file but in a name from a caller.
    pub line: usize,
    /// Column in characters, counted from 1. 0 if `line` is.
    pub column: usize,
    /// Kind of the fault.
    pub kind: Box<ErrorKind>,
}

/// Kind of a fault of a scenario. Texts from the file are quoted as they are.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The text is not TOML.
    #[error("this is not TOML: {message}")]
    Syntax {
        /// Message of the TOML parser.
        message: String,
        /// Value that probably needs quotes. `None` if there is none.
        unquoted: Option<String>,
    },
    /// A table has an unknown key.
    #[error("{place} has no key `{key}`")]
    UnknownKey {
        /// Key as it is in the file.
        key: String,
        /// Name of the table.
        place: &'static str,
        /// Keys that the table may have.
        keys: Vec<&'static str>,
    },
    /// A table lacks a required key.
    #[error("`{key}` is missing")]
    MissingKey {
        /// Name of the missing key.
        key: &'static str,
        /// The key with a value, as users write it.
        example: &'static str,
    },
    /// A value has the wrong type.
    #[error("`{written}` is not {wants}")]
    WrongType {
        /// Text as it is in the file.
        written: String,
        /// Description of the type that it needs.
        wants: &'static str,
    },
    /// A value is not one of the words that are allowed.
    #[error("`{written}` is not one of {}", .words.join(", "))]
    NotAWord {
        /// Text as it is in the file.
        written: String,
        /// The word without key and quotes.
        word: String,
        /// Words that are allowed.
        words: &'static [&'static str],
    },
    /// A value is not a duration.
    #[error("`{written}` {why}")]
    NotASpan {
        /// Text as it is in the file.
        written: String,
        /// Reason of the parser.
        why: ParseSpanError,
    },
    /// A value is not a random duration.
    #[error("`{written}`: {why}")]
    NotADraw {
        /// Text as it is in the file.
        written: String,
        /// Reason of the parser.
        why: ParseDrawError,
    },
    /// A duration that must not be zero is zero.
    #[error("`{written}`: duration must be greater than zero")]
    Zero {
        /// Text as it is in the file.
        written: String,
    },
    /// A duration is longer than [`LONGEST`](crate::LONGEST).
    #[error("`{written}` is longer than a year")]
    TooLong {
        /// Text as it is in the file.
        written: String,
    },
    /// A number is out of its range.
    #[error("`{written}` must be from {least} to {most}")]
    OutOfRange {
        /// Text as it is in the file.
        written: String,
        /// Lowest number that is allowed.
        least: u64,
        /// Highest number that is allowed.
        most: u64,
    },
    /// A duration is not less than another one.
    #[error("`{written}` is not less than {limit}")]
    NotBelow {
        /// Value as in the file.
        written: String,
        /// Duration that it must not reach.
        limit: Span,
    },
    /// A list does not have one value for each CPU.
    #[error("the list has {listed} values, but the host has {cpus} CPUs")]
    OneForEachCpu {
        /// Number of values in the list.
        listed: usize,
        /// Number of CPUs of the host.
        cpus: usize,
    },
    /// The size of a group does not divide the number of its members.
    #[error("`{written}` must divide {all}, the number of CPUs or cores")]
    Uneven {
        /// Text as it is in the file.
        written: String,
        /// Number of members of all groups.
        all: usize,
    },
    /// `smt` is set on a host whose cores have one thread each.
    #[error("`smt` needs more than one thread per core; this host has one")]
    NoThreads,
    /// The speed of a CPU is zero.
    #[error("`{written}`: speed must be greater than zero")]
    Standstill {
        /// Text as it is in the file.
        written: String,
    },
    /// Two keys set the same thing.
    #[error("`{one}` and `{other}` cannot be combined")]
    SaidTwice {
        /// Key that may stay.
        one: &'static str,
        /// Key that must be removed.
        other: &'static str,
    },
    /// The groups of CPUs are inconsistent.
    #[error("{error}")]
    Topology {
        /// Reason of the topology.
        error: TopologyError,
    },
    /// A set of CPUs contains a CPU twice.
    #[error("{cpu} is listed twice")]
    CpuTwice {
        /// CPU that is there twice.
        cpu: CpuId,
    },
    /// A vCPU starts on a CPU that its affinity does not allow.
    #[error("{cpu} is not one of the CPUs in `cpus`")]
    NotAmong {
        /// CPU on which it should start.
        cpu: CpuId,
    },
    /// A domain has two tables for one vCPU.
    #[error("vCPU {number} is listed twice")]
    VcpuTwice {
        /// Number of the vCPU in the domain.
        number: u16,
    },
    /// A value is not a percentage up to 100%.
    #[error("`{written}` is not a percentage up to 100%")]
    NotAPercentage {
        /// Text as it is in the file.
        written: String,
    },
    /// A value is not a number of events per second, or is out of range.
    #[error("`{written}` must be from 0.001 to 1000000 a second, with at most four decimal places")]
    NotAFrequency {
        /// The value as it is in the scenario.
        written: String,
    },
    /// A fault inside one domain.
    #[error("domain `{domain}`: {error}")]
    OfDomain {
        /// Name of the domain.
        domain: String,
        /// Kind of the fault.
        error: Box<ErrorKind>,
    },

    /// No policy has this name.
    #[error("no policy is called `{name}`")]
    UnknownPolicy {
        /// Name as it is in the file.
        name: String,
    },
    /// A policy, or its share, has no parameter of this name.
    #[error("{} has no parameter `{name}`", what(.spec, *.part))]
    UnknownField {
        /// Name as it is in the file.
        name: String,
        /// Policy with the parameters.
        spec: &'static Spec,
        /// Part of the policy's parameters in which it should be.
        part: Part,
    },
    /// A setting of a policy on a command line has no `=`.
    #[error("`{written}` sets no parameter of `{}`", .spec.name)]
    SetsNothing {
        /// Text as it is in the file.
        written: String,
        /// Policy with the parameters.
        spec: &'static Spec,
    },
    /// A parameter of a policy or of a share is wrong.
    #[error("{0}")]
    Field(FieldError),
    /// A slice and its period make no reservation.
    #[error("{0}")]
    Reservation(ReservationError),
    /// The vCPUs of a domain cannot use that much CPU.
    #[error("`{written}` is more than {vcpus} {} can use", vcpus_word(*.vcpus))]
    MoreThanVcpus {
        /// Text as it is in the file.
        written: String,
        /// Number of vCPUs of the domain.
        vcpus: usize,
    },
    /// The CPU for all vCPUs of a domain leaves nothing for each.
    #[error("`{written}` is less than 1ns for each of {vcpus} {} in {period}",
        vcpus_word(*.vcpus))]
    NothingEach {
        /// Text as it is in the file.
        written: String,
        /// Number of vCPUs of the domain.
        vcpus: usize,
        /// Period of the reservation.
        period: Span,
    },
    /// `cpu`, which is for all vCPUs of a domain, is set for one of them.
    #[error("`cpu` must be the share of a whole domain; this is one of {vcpus} vCPUs")]
    CpuOfOne {
        /// Number of vCPUs of the domain.
        vcpus: usize,
    },
    /// A domain has no share for a policy that needs one.
    #[error("domain `{domain}` has no share for `{}`", .spec.name)]
    NoShare {
        /// Name of the domain.
        domain: String,
        /// Policy that needs a share.
        spec: &'static Spec,
    },
    /// The policy of the scenario has parameters in two places.
    #[error("`{}` is the policy of this scenario: set its parameters in `policy`", .spec.name)]
    PolicyTwice {
        /// Policy of the scenario.
        spec: &'static Spec,
    },

    /// The scenario has no domain.
    #[error("a scenario needs a domain")]
    NoDomain,
    /// A name is not valid for a domain or a task.
    #[error("`{name}` is not a valid name")]
    BadName {
        /// Name as it is in the file.
        name: String,
    },
    /// Two domains have one name.
    #[error("`{name}` is used already on line {line}")]
    DuplicateName {
        /// Name of both domains.
        name: String,
        /// Line of the first domain.
        line: usize,
    },
    /// No domain has this name.
    #[error("no domain is called `{name}`")]
    UnknownDomain {
        /// Name as it is in the file.
        name: String,
        /// Domain with a similar name. `None` if there is none.
        meant: Option<String>,
    },
    /// A domain has no task of this name.
    #[error("no task of domain `{domain}` is called `{name}`")]
    UnknownTask {
        /// Name as it is in the file.
        name: String,
        /// Name of the domain.
        domain: String,
        /// Task with a similar name. `None` if there is none.
        meant: Option<String>,
    },
    /// A name stands for several domains where one is needed.
    #[error("`{name}` must be one domain; it has {copies} copies")]
    NameOfCopies {
        /// Name as it is in the file.
        name: String,
        /// Number of domains with that name.
        copies: usize,
    },
    /// A domain has no vCPU of this number.
    #[error("domain `{domain}` has no vCPU `{name}`")]
    UnknownVcpu {
        /// Name as it is in the file.
        name: String,
        /// Name of the domain.
        domain: String,
        /// Number of vCPUs of the domain.
        vcpus: usize,
    },
    /// A value needs devices, and no domain drives them.
    #[error("`{written}` needs a driver domain; this scenario has none")]
    NoDriver {
        /// Text as it is in the file.
        written: String,
    },
    /// Two tasks of a domain have one name.
    #[error("another task of the domain is called `{name}`")]
    DuplicateTask {
        /// Name of both tasks.
        name: String,
    },
    /// The name of a task is a number, which names a vCPU.
    #[error("`{name}` cannot name a task: numbers name vCPUs")]
    NumberAsName {
        /// Name of the task.
        name: String,
    },
    /// A domain without tasks should report them.
    #[error("`tells` needs tasks or a `kernel`")]
    NothingToTell,
    /// A node of a parallel program is combined with other tasks.
    #[error("work of kind `bsp` cannot be combined with tasks or a `kernel`")]
    NodeInSystem,
    /// A spin lock is combined with other tasks.
    #[error("work of kind `spinlock` cannot be combined with tasks or a `kernel`")]
    LockInSystem,
    /// A program that ends at an instant is combined with other tasks.
    #[error("work with `until` cannot be combined with tasks or a `kernel`")]
    UntilInSystem,
    /// A spin lock is taken by one vCPU only.
    #[error("work of kind `spinlock` needs at least 2 vCPUs; this domain has 1")]
    LockOfOne,
    /// A parallel program has one node only.
    #[error("program `{program}` needs at least 2 nodes; it has 1")]
    SingleNode {
        /// Name of the program.
        program: String,
    },
    /// `wakes` is set for a domain with a system.
    #[error("`wakes` cannot be combined with tasks or a `kernel`")]
    SystemAsleep,
    /// A client talks to a domain that cannot answer.
    #[error("domain `{domain}` has no network")]
    NoSystem {
        /// Name of the domain.
        domain: String,
    },
    /// A domain has more tasks than the maximum.
    #[error("{tasks} tasks are more than the maximum of {MOST_TASKS}")]
    TooManyTasks {
        /// Number of its tasks.
        tasks: usize,
    },
    /// More domains have systems than the maximum.
    #[error(
        "{systems} domains with tasks or a `kernel` are more than the maximum of {MOST_SYSTEMS}"
    )]
    TooManySystems {
        /// Number of these domains.
        systems: usize,
    },
    /// There are more vCPUs than [`MOST_VCPUS`].
    #[error("cannot add this domain: {vcpus} vCPUs exceed the maximum of {MOST_VCPUS}")]
    TooManyVcpus {
        /// Number of vCPUs up to this domain.
        vcpus: usize,
    },
    /// A target that exists once should be several domains.
    #[error("{target} cannot belong to several domains")]
    CopiesOfTarget {
        /// Kind and name of the target.
        target: String,
    },
    /// `threads = "vcpus"` is set for a cgroup or unit.
    #[error("cannot tell the vCPUs of a cgroup or unit apart")]
    ThreadsOfGroup,
    /// A process as a whole has several vCPUs.
    #[error("a whole process must be one vCPU; this domain has {vcpus}")]
    VcpusOfProcess {
        /// Number of vCPUs of the domain.
        vcpus: usize,
    },
    /// A table needs exactly one of two keys.
    #[error("{place} needs either `{one}` or `{other}`")]
    OneOfTwo {
        /// Name of the table.
        place: &'static str,
        /// First of the two keys.
        one: &'static str,
        /// Second of the two keys.
        other: &'static str,
    },
    /// A table needs exactly one of several keys.
    #[error("{place} needs exactly one of {keys}")]
    OneOfSeveral {
        /// Name of the table.
        place: &'static str,
        /// List of the keys.
        keys: &'static str,
    },
    /// A recording cannot be read.
    #[error("cannot read `{path}`: {reason}")]
    NoFile {
        /// Path as it is in the file.
        path: String,
        /// The reason why it cannot be read.
        reason: String,
    },
    /// The title line of a recording is wrong.
    #[error("`{path}`, line {line}: the header must be `run_ns,block_ns`, not `{written}`")]
    BadTitle {
        /// Path of the recording.
        path: String,
        /// Line in the recording, counted from 1.
        line: usize,
        /// Title as in the recording.
        written: String,
    },
    /// A line of a recording is not valid.
    #[error("`{path}`, line {line}: `{written}` is not two durations in nanoseconds")]
    BadRecording {
        /// Path of the recording.
        path: String,
        /// Line in the recording, counted from 1.
        line: usize,
        /// Text as it is in the file.
        written: String,
    },
    /// The first line of a file of jobs is not a title.
    #[error(
        "`{path}`, line {line}: the title must be `ready_ns,work_ns` or `think_ns,work_ns`, not \
         `{written}`"
    )]
    BadJobsTitle {
        /// Path of the file.
        path: String,
        /// Line in that file, counted from 1.
        line: usize,
        /// Title as it is in the file.
        written: String,
    },
    /// A line of a file of jobs is not a job.
    #[error("`{path}`, line {line}: `{written}` is not a time and a work in nanoseconds")]
    BadJob {
        /// Path of the file.
        path: String,
        /// Line in that file, counted from 1.
        line: usize,
        /// Line as it is in the file.
        written: String,
    },
    /// Work of a single vCPU needs its whole domain.
    #[error("cannot give this work to one vCPU: it needs the whole domain")]
    WorkOfVcpu,
    /// A list of jobs has more or fewer times than works.
    #[error("the lists of jobs differ in length: {times} times, but {jobs} values in `work`")]
    UnevenJobs {
        /// Number of times in the list.
        times: usize,
        /// Number of works in the list.
        jobs: usize,
    },
    /// A job is ready before the one that precedes it.
    #[error("jobs are out of order: job {job} is ready at {time}, the job before it at {last}")]
    UnorderedJobs {
        /// Job, counted from 1.
        job: usize,
        /// Time at which it is ready.
        time: Span,
        /// Time at which the job before is ready.
        last: Span,
    },
    /// A job that never ends has others behind it.
    #[error("no job can follow job {job}, because its work is `forever`")]
    EndlessJob {
        /// Job, counted from 1.
        job: usize,
    },
    /// A recording contains no time.
    #[error("cannot replay this recording: its runs and blocks take no time")]
    NoTime,
    /// The programs of all domains have more steps than [`MOST_STEPS`].
    #[error("cannot add this program: {steps} steps exceed the maximum of {MOST_STEPS}")]
    TooManySteps {
        /// Number of steps up to this domain.
        steps: usize,
    },

    /// The warm-up is not shorter than the run.
    #[error("a warm-up of {warmup} must be shorter than the run of {length}")]
    WarmupTooLong {
        /// Length of the warm-up.
        warmup: Span,
        /// Length of the run.
        length: Span,
    },
    /// A time is not before the end of the run.
    #[error("`{written}` must be before the end of the run at {length}")]
    AfterTheEnd {
        /// Text as it is in the file.
        written: String,
        /// Length of the run.
        length: Span,
    },
    /// A time is not after the domain joins.
    #[error("`{written}` must be after the domain joins at {}", at(*.joins))]
    BeforeJoining {
        /// Text as it is in the file.
        written: String,
        /// Time at which the domain joins.
        joins: Time,
    },
    /// A time is not before the domain leaves.
    #[error("`{written}` must be before the domain leaves at {}", at(*.leaves))]
    AfterLeaving {
        /// Text as it is in the file.
        written: String,
        /// Time at which the domain leaves.
        leaves: Time,
    },
    /// A change has no effect.
    #[error("this change sets neither a share nor CPUs nor a pause")]
    EmptyChange,

    /// A claim has no metric.
    #[error("`{written}` is not a metric")]
    NoMetric {
        /// Text as it is in the file.
        written: String,
    },
    /// A value is not a test of a metric.
    #[error("`{written}` is not a test")]
    NotATest {
        /// Text as it is in the file.
        written: String,
    },
    /// A test compares with a text that is not an amount.
    #[error("`{written}`: `{amount}` is not an amount")]
    NotAnAmount {
        /// Text as it is in the file.
        written: String,
        /// Text in place of the amount.
        amount: String,
    },
    /// Percentage points are set for an amount that is not a percentage.
    #[error("`{written}`: `points` need a percentage")]
    PointsOfNoPercentage {
        /// Text as it is in the file.
        written: String,
    },
}

/// Part of the parameters of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Parameters of the policy itself.
    Policy,
    /// Parameters of each share.
    Share,
}

fn what(spec: &Spec, part: Part) -> String {
    match part {
        Part::Policy => format!("`{}`", spec.name),
        Part::Share => format!("`share.{}`", spec.name),
    }
}

fn vcpus_word(vcpus: usize) -> &'static str {
    if vcpus == 1 { "vCPU" } else { "vCPUs" }
}

/// Returns a time as a scenario writes it.
fn at(time: Time) -> Span {
    time - Time::START
}
