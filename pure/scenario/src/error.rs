//! What can be wrong with a scenario, where, and what to type instead.

use slackline_policy::{FieldError, Spec, TopologyError};
use slackline_units::{CpuId, ParseSpanError, ReservationError, Span, Time};
use thiserror::Error;

use crate::limits::{MOST_SYSTEMS, MOST_TASKS};
use crate::{MOST_STEPS, MOST_VCPUS, ParseDrawError};

/// What is wrong with a scenario, and where. Shown without the name of the file, which is not known
/// here.
#[derive(Clone, Debug, Error)]
#[error("{kind}")]
pub struct ScenarioError {
    /// The line, counted from 1; 0 if it is not the file that is wrong but a name that was asked
    /// for.
    pub line: usize,
    /// The column in characters, counted from 1; 0 where the line is.
    pub column: usize,
    /// What is wrong.
    pub kind: Box<ErrorKind>,
}

/// What is wrong with a scenario. What was written is shown as it was written.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file is no TOML.
    #[error("this is not TOML: {message}")]
    Syntax {
        /// The parser's words.
        message: String,
        /// The value that should probably stand in quotes.
        unquoted: Option<String>,
    },
    /// A table has a key that means nothing there.
    #[error("{place} has no key `{key}`")]
    UnknownKey {
        /// As written.
        key: String,
        /// What has no such key.
        place: &'static str,
        /// The keys that it has.
        keys: Vec<&'static str>,
    },
    /// A table lacks a key.
    #[error("`{key}` is missing")]
    MissingKey {
        /// The key.
        key: &'static str,
        /// It with a value, as one would write it.
        example: &'static str,
    },
    /// Something has the wrong type.
    #[error("`{written}` is not {wants}")]
    WrongType {
        /// As written.
        written: String,
        /// What it must be.
        wants: &'static str,
    },
    /// Something is none of the words that can stand there.
    #[error("`{written}` is not one of {}", .words.join(", "))]
    NotAWord {
        /// As written.
        written: String,
        /// What stands in the quotes.
        word: String,
        /// The words that can.
        words: &'static [&'static str],
    },
    /// Something is no length of time.
    #[error("`{written}` {why}")]
    NotASpan {
        /// As written.
        written: String,
        /// Why it is not.
        why: ParseSpanError,
    },
    /// Something is no drawn length of time.
    #[error("`{written}`: {why}")]
    NotADraw {
        /// As written.
        written: String,
        /// Why it is not.
        why: ParseDrawError,
    },
    /// A length of time that must be some time is none.
    #[error("`{written}`: duration must be greater than zero")]
    Zero {
        /// As written.
        written: String,
    },
    /// A length of time is longer than [`LONGEST`](crate::LONGEST).
    #[error("`{written}` is longer than a year")]
    TooLong {
        /// As written.
        written: String,
    },
    /// A number is too low or too high.
    #[error("`{written}` is not from {least} to {most}")]
    OutOfRange {
        /// As written.
        written: String,
        /// The lowest.
        least: u64,
        /// The highest.
        most: u64,
    },
    /// Groups of this size would not come out even.
    #[error("`{written}` does not divide {all}")]
    Uneven {
        /// As written.
        written: String,
        /// What is grouped.
        all: usize,
    },
    /// A speed of threads, of a host whose cores have one each.
    #[error("`smt` needs more than one thread per core; this host has one")]
    NoThreads,
    /// A CPU of no speed.
    #[error("`{written}`: speed must be greater than zero")]
    Standstill {
        /// As written.
        written: String,
    },
    /// Two keys say the same thing.
    #[error("`{one}` and `{other}` cannot be combined")]
    SaidTwice {
        /// The key that stands.
        one: &'static str,
        /// The key that is too much.
        other: &'static str,
    },
    /// The CPUs of a host cannot belong together like that.
    #[error("{error}")]
    Topology {
        /// Why not.
        error: TopologyError,
    },
    /// A set of CPUs names one twice.
    #[error("{cpu} is listed twice")]
    CpuTwice {
        /// The CPU.
        cpu: CpuId,
    },
    /// A vCPU starts on a CPU on which it may not run.
    #[error("{cpu} is not one of the CPUs in `cpus`")]
    NotAmong {
        /// The CPU.
        cpu: CpuId,
    },
    /// A domain says twice what differs for one vCPU.
    #[error("vCPU {number} is listed twice")]
    VcpuTwice {
        /// Its number in the domain.
        number: u16,
    },
    /// Something is no percentage up to 100%.
    #[error("`{written}` is not a percentage up to 100%")]
    NotAPercentage {
        /// As written.
        written: String,
    },
    /// Not a number of events a second, or too low or too high.
    #[error("`{written}` is not from 0.001 to 1000000 a second, with at most four decimal places")]
    NotAFrequency {
        /// The value as it is in the scenario.
        written: String,
    },
    /// Something is wrong inside one domain.
    #[error("domain `{domain}`: {error}")]
    OfDomain {
        /// The domain.
        domain: String,
        /// What is wrong.
        error: Box<ErrorKind>,
    },

    /// There is no such policy.
    #[error("no policy is called `{name}`")]
    UnknownPolicy {
        /// As written.
        name: String,
    },
    /// A policy, or a share of it, has no such parameter.
    #[error("{} has no parameter `{name}`", what(.spec, *.part))]
    UnknownField {
        /// As written.
        name: String,
        /// The policy.
        spec: &'static Spec,
        /// Of which part of the policy's parameters it was written.
        part: Part,
    },
    /// What should set a parameter of a policy does not.
    #[error("`{written}` sets no parameter of `{}`", .spec.name)]
    SetsNothing {
        /// As written.
        written: String,
        /// The policy.
        spec: &'static Spec,
    },
    /// A parameter of a policy or of a share is wrong.
    #[error("{0}")]
    Field(FieldError),
    /// A slice and its period make no reservation.
    #[error("{0}")]
    Reservation(ReservationError),
    /// More CPU for all vCPUs of a domain than they can use.
    #[error("`{written}` is more than {vcpus} {} can use", vcpus_word(*.vcpus))]
    MoreThanVcpus {
        /// As written.
        written: String,
        /// How many vCPUs the domain has.
        vcpus: usize,
    },
    /// So little CPU for all vCPUs of a domain that nothing is left for each.
    #[error("`{written}` is less than 1ns for each of {vcpus} {} in {period}",
        vcpus_word(*.vcpus))]
    NothingEach {
        /// As written.
        written: String,
        /// How many vCPUs the domain has.
        vcpus: usize,
        /// In what time.
        period: Span,
    },
    /// What all vCPUs of a domain have together, said of one of them.
    #[error("`cpu` is for all vCPUs of a domain, and this is one of {vcpus}")]
    CpuOfOne {
        /// How many vCPUs the domain has.
        vcpus: usize,
    },
    /// A domain has no share for a policy that needs one.
    #[error("domain `{domain}` has no share for `{}`", .spec.name)]
    NoShare {
        /// The domain.
        domain: String,
        /// The policy.
        spec: &'static Spec,
    },
    /// The chosen policy has its parameters in two places.
    #[error("`{}` is the policy of this scenario: set its parameters in `policy`", .spec.name)]
    PolicyTwice {
        /// The policy.
        spec: &'static Spec,
    },

    /// There is no domain.
    #[error("a scenario needs a domain")]
    NoDomain,
    /// A name that no domain can have.
    #[error("`{name}` is not a valid name")]
    BadName {
        /// As written.
        name: String,
    },
    /// Two domains have one name.
    #[error("`{name}` is used already on line {line}")]
    DuplicateName {
        /// The name.
        name: String,
        /// Where the first one stands.
        line: usize,
    },
    /// There is no such domain.
    #[error("no domain is called `{name}`")]
    UnknownDomain {
        /// As written.
        name: String,
        /// The one that was probably meant.
        meant: Option<String>,
    },
    /// A domain has no such task.
    #[error("no task of domain `{domain}` is called `{name}`")]
    UnknownTask {
        /// As written.
        name: String,
        /// Whose it should be.
        domain: String,
        /// The one that was probably meant.
        meant: Option<String>,
    },
    /// A name stands for several domains where one must be named.
    #[error("`{name}` stands for {copies} domains")]
    NameOfCopies {
        /// As written.
        name: String,
        /// How many domains it is.
        copies: usize,
    },
    /// A domain has no such vCPU.
    #[error("domain `{domain}` has no vCPU `{name}`")]
    UnknownVcpu {
        /// As written.
        name: String,
        /// The domain.
        domain: String,
        /// How many vCPUs it has.
        vcpus: usize,
    },
    /// Something is about devices that nobody drives.
    #[error("`{written}` needs devices, and there is no driver domain")]
    NoDriver {
        /// As written.
        written: String,
    },
    /// Two tasks of a domain have one name.
    #[error("another task of the domain is called `{name}`")]
    DuplicateTask {
        /// The name.
        name: String,
    },
    /// A task is called as a vCPU is.
    #[error("`{name}` cannot name a task: numbers name vCPUs")]
    NumberAsName {
        /// The name.
        name: String,
    },
    /// A domain without tasks tells what they do.
    #[error("`tells` needs tasks or a `kernel`")]
    NothingToTell,
    /// A node of a parallel program beside other tasks.
    #[error("work of kind `bsp` cannot be combined with tasks or a `kernel`")]
    NodeInSystem,
    /// The lock of a domain beside other tasks.
    #[error("work of kind `spinlock` cannot be combined with tasks or a `kernel`")]
    LockInSystem,
    /// A lock that nobody else takes.
    #[error("work of kind `spinlock` needs at least 2 vCPUs; this domain has 1")]
    LockOfOne,
    /// A parallel program that has nobody to exchange anything with.
    #[error("program `{program}` needs at least 2 nodes; it has 1")]
    SingleNode {
        /// The program.
        program: String,
    },
    /// A domain with a system joins asleep.
    #[error("`wakes` cannot be combined with tasks or a `kernel`")]
    SystemAsleep,
    /// A client talks to a domain that cannot answer.
    #[error("domain `{domain}` has no network")]
    NoSystem {
        /// The domain.
        domain: String,
    },
    /// A domain has more tasks than that.
    #[error("{tasks} tasks are more than the maximum of {MOST_TASKS}")]
    TooManyTasks {
        /// How many it has.
        tasks: usize,
    },
    /// More domains have systems than that.
    #[error(
        "{systems} domains with tasks or a `kernel` are more than the maximum of {MOST_SYSTEMS}"
    )]
    TooManySystems {
        /// How many there are.
        systems: usize,
    },
    /// There are more vCPUs than [`MOST_VCPUS`].
    #[error("{vcpus} vCPUs up to here are more than the maximum of {MOST_VCPUS}")]
    TooManyVcpus {
        /// How many there are.
        vcpus: usize,
    },
    /// What is there once cannot be several domains.
    #[error("{target} cannot be several domains")]
    CopiesOfTarget {
        /// What it is, with its name.
        target: String,
    },
    /// The vCPU threads of a virtual machine monitor are told of its process.
    #[error("cannot tell the vCPUs of a cgroup or unit apart")]
    ThreadsOfGroup,
    /// A process that is scheduled as a whole is one vCPU.
    #[error("a process as a whole is one vCPU, and this domain has {vcpus}")]
    VcpusOfProcess {
        /// How many vCPUs the domain has.
        vcpus: usize,
    },
    /// Exactly one of two keys must be there.
    #[error("{place} needs either `{one}` or `{other}`")]
    OneOfTwo {
        /// What needs it.
        place: &'static str,
        /// The one key.
        one: &'static str,
        /// The other key.
        other: &'static str,
    },
    /// Exactly one of several keys must be there.
    #[error("{place} needs exactly one of {keys}")]
    OneOfSeveral {
        /// What needs it.
        place: &'static str,
        /// The keys.
        keys: &'static str,
    },
    /// A recording cannot be read.
    #[error("cannot read `{path}`: {reason}")]
    NoFile {
        /// As written.
        path: String,
        /// The reason why it cannot be read.
        reason: String,
    },
    /// The first line of a recording is another title than the one that it may have.
    #[error("`{path}`, line {line}: the title must be `run_ns,block_ns`, not `{written}`")]
    BadTitle {
        /// The path of the recording.
        path: String,
        /// The line in that file, counted from 1.
        line: usize,
        /// The title as it is in the file.
        written: String,
    },
    /// A line of a recording is not one.
    #[error("`{path}`, line {line}: `{written}` is not two durations in nanoseconds")]
    BadRecording {
        /// The file.
        path: String,
        /// The line in that file, counted from 1.
        line: usize,
        /// As written.
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
    #[error("cannot pair the jobs: there are {times} times and {jobs} works")]
    UnevenJobs {
        /// Number of times in the list.
        times: usize,
        /// Number of works in the list.
        jobs: usize,
    },
    /// A job is ready before the one that precedes it.
    #[error("cannot order the jobs: job {job} is ready at {time}, before the last one at {last}")]
    UnorderedJobs {
        /// Job, counted from 1.
        job: usize,
        /// Time at which it is ready.
        time: Span,
        /// Time at which the job before is ready.
        last: Span,
    },
    /// A job that never ends has others behind it.
    #[error("cannot go on after job {job}: its work is `forever`")]
    EndlessJob {
        /// Job, counted from 1.
        job: usize,
    },
    /// A recording in which no time passes.
    #[error("cannot replay this recording: its runs and blocks take no time")]
    NoTime,
    /// The programs of all domains have more steps than [`MOST_STEPS`].
    #[error("{steps} steps of programs up to here are more than the maximum of {MOST_STEPS}")]
    TooManySteps {
        /// How many they have.
        steps: usize,
    },

    /// The warm-up leaves nothing to measure.
    #[error("a warm-up of {warmup} must be shorter than the run of {length}")]
    WarmupTooLong {
        /// The warm-up.
        warmup: Span,
        /// The run.
        length: Span,
    },
    /// Something happens when the run is over.
    #[error("`{written}` must be before the end of the run at {length}")]
    AfterTheEnd {
        /// As written.
        written: String,
        /// The run.
        length: Span,
    },
    /// Something happens to a domain that is not there yet.
    #[error("`{written}` must be after the domain joins at {}", at(*.joins))]
    BeforeJoining {
        /// As written.
        written: String,
        /// When the domain joins.
        joins: Time,
    },
    /// Something happens to a domain that is gone.
    #[error("`{written}` must be before the domain leaves at {}", at(*.leaves))]
    AfterLeaving {
        /// As written.
        written: String,
        /// When the domain leaves.
        leaves: Time,
    },
    /// A change that changes nothing.
    #[error("this change changes nothing")]
    EmptyChange,

    /// A claim that names no metric.
    #[error("`{written}` names no metric")]
    NoMetric {
        /// As written.
        written: String,
    },
    /// A test that is not one.
    #[error("`{written}` is not a test")]
    NotATest {
        /// As written.
        written: String,
    },
    /// Something to compare with that is no amount.
    #[error("`{written}`: `{amount}` is not an amount")]
    NotAnAmount {
        /// As written.
        written: String,
        /// What is no amount.
        amount: String,
    },
    /// Percentage points of something that is no percentage.
    #[error("`{written}`: `points` need a percentage")]
    PointsOfNoPercentage {
        /// As written.
        written: String,
    },
}

/// A policy has two tables of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Those of the policy itself.
    Policy,
    /// Those of each share.
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

/// A time as one would write it in a scenario.
fn at(time: Time) -> Span {
    time - Time::START
}
