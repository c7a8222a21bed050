//! The messages of a Perfetto trace that are written here, with the field numbers of Perfetto's own
//! definitions. A field that its reader must find even when it is zero is marked `required`.

/// A whole file. Two of these, one after the other, are again one: a file can be written in parts.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Trace {
    /// What it consists of.
    #[prost(message, repeated, tag = "1")]
    pub packet: Vec<TracePacket>,
}

/// One part of a trace. Only one of the messages in it is set.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TracePacket {
    /// What a CPU's kernel would have said.
    #[prost(message, optional, tag = "1")]
    pub ftrace_events: Option<FtraceEventBundle>,
    /// Who there is.
    #[prost(message, optional, tag = "2")]
    pub process_tree: Option<ProcessTree>,
    /// When, in nanoseconds; not for bundles, whose events say it themselves.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// Who writes: numbers of one writer share their meaning.
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    /// Something that happened on a track.
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    /// Whether what this writer said before still holds.
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    /// A track that events will be put on.
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
}

/// Of [`TracePacket::sequence_flags`]: nothing that this writer said before is needed.
pub const SEQ_INCREMENTAL_STATE_CLEARED: u32 = 1;

/// Events of one CPU, in order of time.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FtraceEventBundle {
    /// Which CPU.
    #[prost(uint32, required, tag = "1")]
    pub cpu: u32,
    /// Its events.
    #[prost(message, repeated, tag = "2")]
    pub event: Vec<FtraceEvent>,
}

/// One thing that a CPU's kernel would have said. Only one of the messages in it is set.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FtraceEvent {
    /// When, in nanoseconds.
    #[prost(uint64, required, tag = "1")]
    pub timestamp: u64,
    /// The thread that was running then.
    #[prost(uint32, required, tag = "2")]
    pub pid: u32,
    /// A CPU changed from one thread to another.
    #[prost(message, optional, tag = "4")]
    pub sched_switch: Option<SchedSwitchFtraceEvent>,
    /// A thread was woken.
    #[prost(message, optional, tag = "20")]
    pub sched_waking: Option<SchedWakingFtraceEvent>,
}

/// A CPU changed from one thread to another.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SchedSwitchFtraceEvent {
    /// The name of the thread before.
    #[prost(string, required, tag = "1")]
    pub prev_comm: String,
    /// Its number.
    #[prost(int32, required, tag = "2")]
    pub prev_pid: i32,
    /// Its priority, as the kernel counts: lower is more urgent.
    #[prost(int32, required, tag = "3")]
    pub prev_prio: i32,
    /// [`RUNNABLE`] or [`ASLEEP`].
    #[prost(int64, required, tag = "4")]
    pub prev_state: i64,
    /// The name of the thread after.
    #[prost(string, required, tag = "5")]
    pub next_comm: String,
    /// Its number.
    #[prost(int32, required, tag = "6")]
    pub next_pid: i32,
    /// Its priority.
    #[prost(int32, required, tag = "7")]
    pub next_prio: i32,
}

/// The state of a thread that still wants to run.
pub const RUNNABLE: i64 = 0;
/// The state of a thread that waits for something.
pub const ASLEEP: i64 = 1;

/// A thread was woken.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SchedWakingFtraceEvent {
    /// Its name.
    #[prost(string, required, tag = "1")]
    pub comm: String,
    /// Its number.
    #[prost(int32, required, tag = "2")]
    pub pid: i32,
    /// Its priority.
    #[prost(int32, required, tag = "3")]
    pub prio: i32,
    /// Where it is expected to run.
    #[prost(int32, required, tag = "5")]
    pub target_cpu: i32,
}

/// Who there is.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ProcessTree {
    /// The processes: here, domains.
    #[prost(message, repeated, tag = "1")]
    pub processes: Vec<Process>,
    /// The threads: here, vCPUs.
    #[prost(message, repeated, tag = "2")]
    pub threads: Vec<Thread>,
}

/// A process.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Process {
    /// Its number, which is that of its first thread.
    #[prost(int32, required, tag = "1")]
    pub pid: i32,
    /// The number of the process that started it.
    #[prost(int32, required, tag = "2")]
    pub ppid: i32,
    /// Its name.
    #[prost(string, repeated, tag = "3")]
    pub cmdline: Vec<String>,
}

/// A thread.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Thread {
    /// Its number.
    #[prost(int32, required, tag = "1")]
    pub tid: i32,
    /// Its name.
    #[prost(string, required, tag = "2")]
    pub name: String,
    /// The number of its process.
    #[prost(int32, required, tag = "3")]
    pub tgid: i32,
}

/// A line in the viewer that events are put on.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TrackDescriptor {
    /// Its number.
    #[prost(uint64, required, tag = "1")]
    pub uuid: u64,
    /// Its name, where it is not that of a thread.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// The thread it belongs to.
    #[prost(message, optional, tag = "4")]
    pub thread: Option<ThreadDescriptor>,
    /// What it counts.
    #[prost(message, optional, tag = "8")]
    pub counter: Option<CounterDescriptor>,
}

/// Which thread a track belongs to.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ThreadDescriptor {
    /// The number of its process.
    #[prost(int32, required, tag = "1")]
    pub pid: i32,
    /// Its own number.
    #[prost(int64, required, tag = "2")]
    pub tid: i64,
    /// Its name.
    #[prost(string, required, tag = "5")]
    pub thread_name: String,
}

/// What a track counts.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CounterDescriptor {
    /// In what: see [`UNIT_TIME_NS`].
    #[prost(int32, required, tag = "3")]
    pub unit: i32,
}

/// Of [`CounterDescriptor::unit`]: nanoseconds.
pub const UNIT_TIME_NS: i32 = 1;

/// Something that happened on a track.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TrackEvent {
    /// More about it.
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    /// [`TYPE_INSTANT`] or [`TYPE_COUNTER`].
    #[prost(int32, required, tag = "9")]
    pub r#type: i32,
    /// On which track.
    #[prost(uint64, required, tag = "11")]
    pub track_uuid: u64,
    /// The kind of event, to switch kinds on and off by.
    #[prost(string, repeated, tag = "22")]
    pub categories: Vec<String>,
    /// What happened.
    #[prost(string, optional, tag = "23")]
    pub name: Option<String>,
    /// What a counter stands at from now on.
    #[prost(int64, optional, tag = "30")]
    pub counter_value: Option<i64>,
}

/// Of [`TrackEvent`]: it has no length.
pub const TYPE_INSTANT: i32 = 3;
/// Of [`TrackEvent`]: a counter has a new value.
pub const TYPE_COUNTER: i32 = 4;

/// A name and a value.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DebugAnnotation {
    /// The value, as people read it.
    #[prost(string, required, tag = "6")]
    pub string_value: String,
    /// The name.
    #[prost(string, required, tag = "10")]
    pub name: String,
}
