//! Protobuf messages of a Perfetto trace, with Perfetto's field numbers. Messages and fields that
//! are never written are left out. A field that must be written even if it is zero is marked
//! `required`.

/// A whole Perfetto file. The concatenation of two files is a valid file, so a file can be written
/// in parts.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Trace {
    /// Packets of the trace.
    #[prost(message, repeated, tag = "1")]
    pub packet: Vec<TracePacket>,
}

/// A packet of a trace. Only one of its messages is set.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TracePacket {
    /// Kernel events of a CPU.
    #[prost(message, optional, tag = "1")]
    pub ftrace_events: Option<FtraceEventBundle>,
    /// Processes and threads of the trace.
    #[prost(message, optional, tag = "2")]
    pub process_tree: Option<ProcessTree>,
    /// Time of the packet in nanoseconds. If `None`, the packet is a bundle of events with their
    /// own times.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// Id of the writer of the packet. Ids inside packets are unique for each writer.
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    /// An event on a track.
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    /// Flags that say whether the packet depends on earlier packets of this writer.
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    /// Description of a track for events.
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
}

/// Value of [`TracePacket::sequence_flags`]: earlier packets of this writer are not needed.
pub const SEQ_INCREMENTAL_STATE_CLEARED: u32 = 1;

/// Kernel events of one CPU, in order of time.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FtraceEventBundle {
    /// Number of the CPU.
    #[prost(uint32, required, tag = "1")]
    pub cpu: u32,
    /// Events in order of their times.
    #[prost(message, repeated, tag = "2")]
    pub event: Vec<FtraceEvent>,
}

/// A kernel event. Only one of its messages is set.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FtraceEvent {
    /// Time of the event in nanoseconds.
    #[prost(uint64, required, tag = "1")]
    pub timestamp: u64,
    /// Id of the thread that was running.
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
    /// Name of the thread that stops.
    #[prost(string, required, tag = "1")]
    pub prev_comm: String,
    /// Id of the thread that stops.
    #[prost(int32, required, tag = "2")]
    pub prev_pid: i32,
    /// Kernel priority of the thread that stops: lower is more urgent.
    #[prost(int32, required, tag = "3")]
    pub prev_prio: i32,
    /// State of the thread that stops: [`RUNNABLE`] or [`ASLEEP`].
    #[prost(int64, required, tag = "4")]
    pub prev_state: i64,
    /// Name of the thread that starts.
    #[prost(string, required, tag = "5")]
    pub next_comm: String,
    /// Id of the thread that starts.
    #[prost(int32, required, tag = "6")]
    pub next_pid: i32,
    /// Kernel priority of the thread that starts.
    #[prost(int32, required, tag = "7")]
    pub next_prio: i32,
}

/// State of a thread that is still runnable.
pub const RUNNABLE: i64 = 0;
/// State of a thread that has blocked.
pub const ASLEEP: i64 = 1;

/// A thread was woken.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SchedWakingFtraceEvent {
    /// Name of the woken thread.
    #[prost(string, required, tag = "1")]
    pub comm: String,
    /// Id of the woken thread.
    #[prost(int32, required, tag = "2")]
    pub pid: i32,
    /// Kernel priority of the woken thread.
    #[prost(int32, required, tag = "3")]
    pub prio: i32,
    /// CPU on which the thread is expected to run.
    #[prost(int32, required, tag = "5")]
    pub target_cpu: i32,
}

/// Processes and threads of the trace.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ProcessTree {
    /// Processes of the trace. Each stands for a domain.
    #[prost(message, repeated, tag = "1")]
    pub processes: Vec<Process>,
    /// Threads of the trace. Each stands for a vCPU or a host thread.
    #[prost(message, repeated, tag = "2")]
    pub threads: Vec<Thread>,
}

/// A process of the trace.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Process {
    /// Id of the process, which is the id of its first thread.
    #[prost(int32, required, tag = "1")]
    pub pid: i32,
    /// Id of the parent process.
    #[prost(int32, required, tag = "2")]
    pub ppid: i32,
    /// Name of the process.
    #[prost(string, repeated, tag = "3")]
    pub cmdline: Vec<String>,
}

/// A thread of the trace.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Thread {
    /// Id of the thread.
    #[prost(int32, required, tag = "1")]
    pub tid: i32,
    /// Name of the thread.
    #[prost(string, required, tag = "2")]
    pub name: String,
    /// Id of the thread's process.
    #[prost(int32, required, tag = "3")]
    pub tgid: i32,
}

/// Description of a track, a line of the viewer that shows events.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TrackDescriptor {
    /// Id of the track.
    #[prost(uint64, required, tag = "1")]
    pub uuid: u64,
    /// Name of the track. `None` if it has the name of its thread.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// Thread to which the track belongs. `None` if it belongs to no thread.
    #[prost(message, optional, tag = "4")]
    pub thread: Option<ThreadDescriptor>,
    /// Counter of the track. `None` if the track is not a counter.
    #[prost(message, optional, tag = "8")]
    pub counter: Option<CounterDescriptor>,
}

/// Thread to which a track belongs.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ThreadDescriptor {
    /// Id of the thread's process.
    #[prost(int32, required, tag = "1")]
    pub pid: i32,
    /// Id of the thread.
    #[prost(int64, required, tag = "2")]
    pub tid: i64,
    /// Name of the thread.
    #[prost(string, required, tag = "5")]
    pub thread_name: String,
}

/// Counter of a track.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CounterDescriptor {
    /// Unit of the counter: see [`UNIT_TIME_NS`].
    #[prost(int32, required, tag = "3")]
    pub unit: i32,
}

/// Value of [`CounterDescriptor::unit`] for nanoseconds.
pub const UNIT_TIME_NS: i32 = 1;

/// An event on a track.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TrackEvent {
    /// Additional values of the event.
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    /// Type of the event: [`TYPE_SLICE_BEGIN`], [`TYPE_SLICE_END`], [`TYPE_INSTANT`] or
    /// [`TYPE_COUNTER`].
    #[prost(int32, required, tag = "9")]
    pub r#type: i32,
    /// Id of the event's track.
    #[prost(uint64, required, tag = "11")]
    pub track_uuid: u64,
    /// Categories by which the viewer can filter events.
    #[prost(string, repeated, tag = "22")]
    pub categories: Vec<String>,
    /// Name of the event. `None` for the end of an event and for a value of a counter.
    #[prost(string, optional, tag = "23")]
    pub name: Option<String>,
    /// Value of the counter from the event's time on. `None` if the event is not a value of a
    /// counter.
    #[prost(int64, optional, tag = "30")]
    pub counter_value: Option<i64>,
}

/// Value of [`TrackEvent::type`](TrackEvent#structfield.type): the start of an event with a
/// duration, which Perfetto calls a slice.
pub const TYPE_SLICE_BEGIN: i32 = 1;
/// Value of [`TrackEvent::type`](TrackEvent#structfield.type): the end of the latest
/// event with a duration that began on the track.
pub const TYPE_SLICE_END: i32 = 2;
/// Value of [`TrackEvent::type`](TrackEvent#structfield.type): an event without a duration.
pub const TYPE_INSTANT: i32 = 3;
/// Value of [`TrackEvent::type`](TrackEvent#structfield.type): a new value of a counter.
pub const TYPE_COUNTER: i32 = 4;

/// An additional value of an event, with its name.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DebugAnnotation {
    /// Value as readable text.
    #[prost(string, required, tag = "6")]
    pub string_value: String,
    /// Name of the value.
    #[prost(string, required, tag = "10")]
    pub name: String,
}
