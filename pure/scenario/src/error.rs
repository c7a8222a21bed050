//! Errors of scenarios, with their position in the file. An error may have a hint.

use slackline_policy::{FieldError, Spec, TopologyError};
use slackline_units::{CpuId, ParseSpanError, ReservationError, Span, Time};
use thiserror::Error;

use crate::limits::{MOST_SYSTEMS, MOST_TASKS};
use crate::{MOST_STEPS, MOST_VCPUS, ParseDrawError};

/// A fault of a scenario with its position. The message does not name the file, because this crate
/// gets only the text of the scenario.
#[derive(Clone, Debug, Error)]
#[error("{kind}")]
pub struct ScenarioError {
    /// Line, counted from 1. 0 if the fault is not in the file but in a name that the caller gave.
    pub line: usize,
    /// Column in characters, counted from 1. 0 if `line` is 0.
    pub column: usize,
    /// Kind of the fault.
    pub kind: Box<ErrorKind>,
}

/// Kind of a fault of a scenario. Texts from the file are quoted as written there.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The text is not TOML.
    #[error("this is not TOML: {message}")]
    Syntax {
        /// Message of the TOML parser.
        message: String,
        /// Value that probably needs quotes. `None` if no such value was found.
        unquoted: Option<String>,
    },
    /// A table has an unknown key.
    #[error("{place} has no key `{key}`")]
    UnknownKey {
        /// Key as written in the scenario file.
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
        /// Example of the key with a value, as users write it.
        example: &'static str,
    },
    /// A value has the wrong type.
    #[error("`{written}` is not {wants}")]
    WrongType {
        /// Key and value as written in the scenario file.
        written: String,
        /// Description of the type that is needed.
        wants: &'static str,
    },
    /// A value is not one of the words that are allowed.
    #[error("`{written}` is not one of {}", .words.join(", "))]
    NotAWord {
        /// Key and value as written in the scenario file.
        written: String,
        /// The word as written, without key and quotes.
        word: String,
        /// Words that are allowed.
        words: &'static [&'static str],
    },
    /// A value is not a duration.
    #[error("`{written}` {why}")]
    NotASpan {
        /// Key and value as written in the scenario file.
        written: String,
        /// Reason given by the parser.
        why: ParseSpanError,
    },
    /// A value is not a random duration.
    #[error("`{written}`: {why}")]
    NotADraw {
        /// Key and value as written in the scenario file.
        written: String,
        /// Reason given by the parser.
        why: ParseDrawError,
    },
    /// A duration that must not be zero is zero.
    #[error("`{written}`: duration must be greater than zero")]
    Zero {
        /// Key and value as written in the scenario file.
        written: String,
    },
    /// A duration is longer than [`LONGEST`](crate::LONGEST).
    #[error("`{written}` is longer than a year")]
    TooLong {
        /// Key and value as written in the scenario file.
        written: String,
    },
    /// A number is out of its range.
    #[error("`{written}` must be from {least} to {most}")]
    OutOfRange {
        /// Key and value as written in the scenario file.
        written: String,
        /// Lowest number that is allowed.
        least: u64,
        /// Highest number that is allowed.
        most: u64,
    },
    /// A duration is at or above its limit, but must be below it.
    #[error("`{written}` is not less than {limit}")]
    NotBelow {
        /// Key and value as written in the scenario file.
        written: String,
        /// Duration that the value must stay below.
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
    /// The size of a group, such as the number of threads per core, does not divide the total
    /// number of members evenly.
    #[error("`{written}` must divide {all}, the number of CPUs or cores")]
    Uneven {
        /// Key and value as written in the scenario file.
        written: String,
        /// Total number of members of all groups.
        all: usize,
    },
    /// `smt` is set on a host whose cores have one thread each.
    #[error("`smt` needs more than one thread per core; this host has one")]
    NoThreads,
    /// The speed of a CPU is set to zero.
    #[error("`{written}`: speed must be greater than zero")]
    Standstill {
        /// Key and value as written in the scenario file.
        written: String,
    },
    /// Two keys cannot be combined because both set the same property.
    #[error("`{one}` and `{other}` cannot be combined")]
    SaidTwice {
        /// Key that can stay.
        one: &'static str,
        /// Key that must be removed.
        other: &'static str,
    },
    /// The groups of CPUs do not form a topology.
    #[error("{error}")]
    Topology {
        /// Reason why the groups do not form a topology.
        error: TopologyError,
    },
    /// A set of CPUs contains a CPU twice.
    #[error("{cpu} is listed twice")]
    CpuTwice {
        /// CPU that is contained twice.
        cpu: CpuId,
    },
    /// A vCPU starts on a CPU that its affinity does not allow.
    #[error("{cpu} is not one of the CPUs in `cpus`")]
    NotAmong {
        /// CPU on which the vCPU should start.
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
        /// Key and value as written in the scenario file.
        written: String,
    },
    /// A value is not a number of events per second, or is out of range.
    #[error("`{written}` must be from 0.001 to 1000000 a second, with at most four decimal places")]
    NotAFrequency {
        /// Key and value as written in the scenario file.
        written: String,
    },
    /// A fault in the table of a domain, with the name of that domain.
    #[error("domain `{domain}`: {error}")]
    OfDomain {
        /// Name of the domain.
        domain: String,
        /// Kind of the fault in the table of the domain.
        error: Box<ErrorKind>,
    },

    /// No policy has this name.
    #[error("no policy is called `{name}`")]
    UnknownPolicy {
        /// Name as written by the user.
        name: String,
    },
    /// A policy has no parameter with this name. `part` says if a parameter of the policy or of a
    /// vCPU was set.
    #[error("{} has no parameter `{name}`", what(.spec, *.part))]
    UnknownField {
        /// Name as written by the user.
        name: String,
        /// Policy that lacks the parameter.
        spec: &'static Spec,
        /// Kind of parameters to which the name should belong.
        part: Part,
    },
    /// A setting of a policy on a command line has no `=`.
    #[error("`{written}` sets no parameter of `{}`", .spec.name)]
    SetsNothing {
        /// Setting as written on the command line.
        written: String,
        /// Policy whose parameter should be set.
        spec: &'static Spec,
    },
    /// A parameter of a policy or of a vCPU is wrong.
    #[error("{0}")]
    Field(FieldError),
    /// Slice and period do not form a valid reservation.
    #[error("{0}")]
    Reservation(ReservationError),
    /// A domain reserves more CPU time than its vCPUs can use together.
    #[error("`{written}` is more than {vcpus} {} can use", vcpus_word(*.vcpus))]
    MoreThanVcpus {
        /// Key and value as written in the scenario file.
        written: String,
        /// Number of vCPUs of the domain.
        vcpus: usize,
    },
    /// The CPU time reserved for a whole domain is less than one nanosecond per period for each
    /// vCPU.
    #[error("`{written}` is less than 1ns for each of {vcpus} {} in {period}",
        vcpus_word(*.vcpus))]
    NothingEach {
        /// Key and value as written in the scenario file.
        written: String,
        /// Number of vCPUs of the domain.
        vcpus: usize,
        /// Period of the reservation.
        period: Span,
    },
    /// `cpu`, the total for all vCPUs of a domain, is set for a single vCPU.
    #[error("`cpu` must be the share of a whole domain; this is one of {vcpus} vCPUs")]
    CpuOfOne {
        /// Number of vCPUs of the domain.
        vcpus: usize,
    },
    /// A domain has no parameters (`share`) for a policy that needs some.
    #[error("domain `{domain}` has no share for policy `{}`", .spec.name)]
    NoShare {
        /// Name of the domain.
        domain: String,
        /// Policy that needs the parameters.
        spec: &'static Spec,
    },
    /// The parameters of the policy that runs the scenario are set in two places.
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
        /// Name as written in the scenario file.
        name: String,
    },
    /// Two domains have the same name.
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
        /// Name as written in the scenario file.
        name: String,
        /// Domain with a similar name. `None` if no name is similar.
        meant: Option<String>,
    },
    /// A domain has no task of this name.
    #[error("no task of domain `{domain}` is called `{name}`")]
    UnknownTask {
        /// Name as written in the scenario file.
        name: String,
        /// Name of the domain.
        domain: String,
        /// Task with a similar name. `None` if no name is similar.
        meant: Option<String>,
    },
    /// A name stands for several copies of a domain, but the key needs a single domain.
    #[error("`{name}` must be one domain; it has {copies} copies")]
    NameOfCopies {
        /// Name as written in the scenario file.
        name: String,
        /// Number of copies for which the name stands.
        copies: usize,
    },
    /// A domain has no vCPU of this number.
    #[error("domain `{domain}` has no vCPU `{name}`")]
    UnknownVcpu {
        /// Name as written in the scenario file.
        name: String,
        /// Name of the domain.
        domain: String,
        /// Number of vCPUs of the domain.
        vcpus: usize,
    },
    /// A value needs devices, but no domain drives devices.
    #[error("`{written}` needs a driver domain; this scenario has none")]
    NoDriver {
        /// Key and value as written in the scenario file.
        written: String,
    },
    /// Two tasks of a domain have the same name.
    #[error("another task of the domain is called `{name}`")]
    DuplicateTask {
        /// Name of both tasks.
        name: String,
    },
    /// The name of a task is a number. Numbers are reserved for names of vCPUs.
    #[error("`{name}` cannot name a task: numbers name vCPUs")]
    NumberAsName {
        /// Name of the task.
        name: String,
    },
    /// `tells` is set for a domain that has neither tasks nor a `kernel`, so it has nothing to
    /// report.
    #[error("cannot use `tells`: the domain has neither tasks nor a `kernel`")]
    NothingToTell,
    /// A node of a parallel program is combined with other tasks.
    #[error("work of kind `bsp` cannot be combined with tasks or a `kernel`")]
    NodeInSystem,
    /// A spin lock is combined with other tasks.
    #[error("work of kind `spinlock` cannot be combined with tasks or a `kernel`")]
    LockInSystem,
    /// A program that computes `until` an instant is combined with other tasks.
    #[error("work with `until` cannot be combined with tasks or a `kernel`")]
    UntilInSystem,
    /// A spin lock is used in a domain with a single vCPU.
    #[error("work of kind `spinlock` needs at least 2 vCPUs; this domain has 1")]
    LockOfOne,
    /// A parallel program has only one node.
    #[error("program `{program}` needs at least 2 nodes; it has 1")]
    SingleNode {
        /// Name of the program.
        program: String,
    },
    /// `wakes` is set for a domain that has tasks or a `kernel`. Such a domain has no program whose
    /// start could be delayed.
    #[error("`wakes` cannot be combined with tasks or a `kernel`")]
    SystemAsleep,
    /// A client talks to a domain that has no network.
    #[error("domain `{domain}` has no network")]
    NoSystem {
        /// Name of the domain.
        domain: String,
    },
    /// A domain has more tasks than the maximum.
    #[error("{tasks} tasks are more than the maximum of {MOST_TASKS}")]
    TooManyTasks {
        /// Number of tasks of the domain.
        tasks: usize,
    },
    /// The number of domains with tasks or a `kernel` exceeds the maximum.
    #[error("{systems} domains have tasks or a `kernel`, but the maximum is {MOST_SYSTEMS}")]
    TooManySystems {
        /// Number of domains that have tasks or a `kernel`.
        systems: usize,
    },
    /// There are more vCPUs than [`MOST_VCPUS`].
    #[error("cannot add this domain: {vcpus} vCPUs exceed the maximum of {MOST_VCPUS}")]
    TooManyVcpus {
        /// Number of vCPUs in total, up to and including this domain.
        vcpus: usize,
    },
    /// A domain with `copies` has a target of which only one exists, such as a process.
    #[error("{target} cannot belong to several domains")]
    CopiesOfTarget {
        /// Kind and name of the target.
        target: String,
    },
    /// `threads = "vcpus"` is set for a cgroup or unit.
    #[error("cannot use `threads = \"vcpus\"` with a cgroup or unit: cannot tell its vCPUs apart")]
    ThreadsOfGroup,
    /// A whole process is given several vCPUs, but it can only be one vCPU.
    #[error("a whole process must be one vCPU; this domain has {vcpus} vCPUs")]
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
        /// Path of the recording as written in the scenario file.
        path: String,
        /// Reason why the recording cannot be read.
        reason: String,
    },
    /// The header line of a recording of run and block times is not valid.
    #[error("`{path}`, line {line}: the header must be `run_ns,block_ns`, not `{written}`")]
    BadTitle {
        /// Path of the recording.
        path: String,
        /// Line in the recording, counted from 1.
        line: usize,
        /// Header line as written in the recording.
        written: String,
    },
    /// A line of a recording is not valid.
    #[error("`{path}`, line {line}: `{written}` is not two durations in nanoseconds")]
    BadRecording {
        /// Path of the recording.
        path: String,
        /// Line in the recording, counted from 1.
        line: usize,
        /// Line as written in the recording.
        written: String,
    },
    /// The first line of a file of jobs is not a valid header.
    #[error(
        "`{path}`, line {line}: the header must be `ready_ns,work_ns` or `think_ns,work_ns`, not \
         `{written}`"
    )]
    BadJobsTitle {
        /// Path of the file of jobs.
        path: String,
        /// Line in the file of jobs, counted from 1.
        line: usize,
        /// Header line as written in the file of jobs.
        written: String,
    },
    /// A line of a file of jobs is not a job.
    #[error("`{path}`, line {line}: cannot read `{written}`: a job is two numbers of nanoseconds")]
    BadJob {
        /// Path of the file of jobs.
        path: String,
        /// Line in the file of jobs, counted from 1.
        line: usize,
        /// Line as written in the file of jobs.
        written: String,
    },
    /// Work that needs a whole domain is given to a single vCPU.
    #[error("cannot give this kind of work to a single vCPU: it needs the whole domain")]
    WorkOfVcpu,
    /// The list of times and the list of work in `jobs` have different lengths.
    #[error("the lists of jobs differ in length: {times} times, but {jobs} values in `work`")]
    UnevenJobs {
        /// Number of values in the list of times.
        times: usize,
        /// Number of values in the list of work.
        jobs: usize,
    },
    /// A job is ready earlier than the job before it.
    #[error("jobs are out of order: job {job} is ready at {time}, the previous job at {last}")]
    UnorderedJobs {
        /// Number of the job, counted from 1.
        job: usize,
        /// Time at which the job is ready.
        time: Span,
        /// Time at which the previous job is ready.
        last: Span,
    },
    /// A job that never ends is followed by another job.
    #[error("no job can follow job {job}, because its work is `forever`")]
    EndlessJob {
        /// Number of the job, counted from 1.
        job: usize,
    },
    /// A list of jobs with ready times is repeated.
    #[error("cannot repeat jobs with `ready` times: only jobs with `think` times can be repeated")]
    RepeatedReady,
    /// All runs and blocks of a recording have zero length.
    #[error("cannot replay this recording: all run and block times in it are zero")]
    NoTime,
    /// The programs of all domains have more steps than [`MOST_STEPS`].
    #[error("cannot add this program: {steps} steps exceed the maximum of {MOST_STEPS}")]
    TooManySteps {
        /// Number of steps in total, up to and including this domain.
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
    /// A time is at or after the end of the run, but must be before it.
    #[error("`{written}` must be before the end of the run at {length}")]
    AfterTheEnd {
        /// Key and value as written in the scenario file.
        written: String,
        /// Length of the run.
        length: Span,
    },
    /// A time is at or before the join of the domain, but must be after it.
    #[error("`{written}` must be after the domain joins at {}", at(*.joins))]
    BeforeJoining {
        /// Key and value as written in the scenario file.
        written: String,
        /// Time at which the domain joins.
        joins: Time,
    },
    /// A time is at or after the time at which the domain leaves, but must be before it.
    #[error("`{written}` must be before the domain leaves at {}", at(*.leaves))]
    AfterLeaving {
        /// Key and value as written in the scenario file.
        written: String,
        /// Time at which the domain leaves.
        leaves: Time,
    },
    /// A change has no effect.
    #[error("this change sets neither a share nor CPUs nor a pause")]
    EmptyChange,

    /// The text of a claim does not begin with a metric.
    #[error("`{written}` is not a metric")]
    NoMetric {
        /// Key and value as written in the scenario file.
        written: String,
    },
    /// A value is not a test of a metric.
    #[error("`{written}` is not a test")]
    NotATest {
        /// Key and value as written in the scenario file.
        written: String,
    },
    /// A test compares the metric with a text that is not an amount.
    #[error("`{written}`: `{amount}` is not an amount")]
    NotAnAmount {
        /// Key and value as written in the scenario file.
        written: String,
        /// Text that should be an amount.
        amount: String,
    },
    /// A test states percentage points for an amount that is not a percentage.
    #[error("`{written}`: `within N points of` needs a percentage such as `20%`")]
    PointsOfNoPercentage {
        /// Key and value as written in the scenario file.
        written: String,
    },
}

/// Kind of parameters of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Parameters of the policy itself.
    Policy,
    /// Parameters of a vCPU (`share`).
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
