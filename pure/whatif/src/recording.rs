//! Reads a recording from a trace.

use slackline_demand::{Collector, Demand};
use slackline_metrics::{Meter, StrayRecord, Summary, VcpuSummary};
use slackline_trace::{Exchange, Header, HostThread, Note, Record, Sink, VcpuName};
use slackline_units::{CpuId, Reservation, Span, Time};

use crate::measure::{Measures, parts};
use crate::{other_names, stays};

/// Difference that can be due to chance between the mean lateness of stops in two parts of a
/// recording. On a virtual host the means of two parts of 5 s differed by up to 14 us.
const STOP_CHANCE: Span = Span::from_us(20);

/// Sink that reads a trace and returns its recording.
#[derive(Debug)]
pub struct Recorder {
    header: Header,
    begin: Time,
    split: Time,
    /// Numbers of the CPUs on the recorded host. `None` until the trace has stated them.
    cpus: Option<Vec<CpuId>>,
    collector: Collector,
    whole: Meter,
    judged: Meter,
}

/// Demand and results of a recording.
#[derive(Debug)]
pub struct Recording {
    /// Header of the trace.
    pub header: Header,
    /// Number of each CPU on the recorded host. The index is the number of the CPU in the trace. If
    /// the trace does not state the numbers on the host, both numbers are equal.
    pub cpus: Vec<CpuId>,
    /// Time at which the recording begins.
    pub begin: Time,
    /// Time that divides the recording into two parts. Costs are fitted to the first part. The
    /// [gate](crate::Gate) compares the second part with a simulation.
    pub split: Time,
    /// Demand of all vCPUs.
    pub demand: Demand,
    /// Results of the recording without its warm-up.
    pub summary: Summary,
    /// Results of each vCPU, from the end of the warm-up to the end of the recording. VMs without a
    /// prediction ([`Model::left_out`](crate::Model::left_out)) are left out.
    pub whole: Vec<Measures>,
    /// Results of the same vCPUs after `split`. The [gate](crate::Gate) compares these results with
    /// a simulation.
    pub judged: Vec<Measures>,
}

impl Recorder {
    /// Creates a recorder for the part of a trace from `begin` to `end`. `header` is the header of
    /// the trace.
    #[must_use]
    pub fn new(header: &Header, (begin, end): (Time, Time)) -> Recorder {
        let split = begin + end.since(begin) / 2;
        let from = |time: Time| {
            let warmup = header.warmup.max(time.since(Time::START));
            Header { warmup, ..header.clone() }
        };
        let header = from(begin);
        Recorder {
            begin,
            split,
            cpus: None,
            collector: Collector::new(split),
            whole: Meter::new(&header),
            judged: Meter::new(&from(split)),
            header,
        }
    }

    /// Creates a recorder for a whole trace. `began` is the time of its first record. A recording
    /// of a live host can begin at any time, but a recording of a simulated run begins at the
    /// start.
    #[must_use]
    pub fn of_trace(header: &Header, began: Option<Time>, ended: Time) -> Recorder {
        let begin = began.filter(|_| is_live(header)).unwrap_or(Time::START).min(ended);
        Recorder::new(header, (begin, ended))
    }

    /// Returns the recording.
    ///
    /// # Errors
    /// If a record names an unknown vCPU or CPU.
    pub fn finish(self) -> Result<Recording, StrayRecord> {
        let Recorder { header, begin, split, cpus, collector, whole, judged } = self;
        let cpus = cpus.filter(|cpus| cpus.len() == header.cpus);
        let cpus = cpus.unwrap_or_else(|| (0..header.cpus).map(CpuId::new).collect());
        let demand = collector.finish();
        let summary = whole.view()?;
        let warmup = Time::START + header.warmup;
        let left_out = stays::left_out(&demand);
        let shown = |vcpu: &VcpuSummary| {
            let is_service = other_names::is_of_service(vcpu.id, (&vcpu.name, &vcpu.domain));
            let is_shown = !is_service && !left_out.contains_key(&vcpu.domain);
            is_shown.then(|| vcpu.name.clone())
        };
        let judged = Measures::all(&judged.view()?, &demand, split.max(warmup), shown);
        let whole = Measures::all(&summary, &demand, warmup, shown);
        Ok(Recording { header, cpus, begin, split, demand, summary, whole, judged })
    }
}

impl Recording {
    /// Returns true if the recorded host was a live host.
    #[must_use]
    pub(crate) fn is_live(&self) -> bool {
        is_live(&self.header)
    }

    /// Returns the length of the recording.
    #[must_use]
    pub fn length(&self) -> Span {
        (Time::START + self.demand.length).since(self.begin)
    }

    /// Returns the length of the part of the recording that the [gate](crate::Gate) compares with a
    /// simulation.
    pub(crate) fn judged_length(&self) -> Span {
        self.length().left_after(self.unjudged())
    }

    /// Returns the difference that can be due to chance between a vCPU's shares in two parts of a
    /// recording of a live host, in millionths of a CPU. The difference is the sum of two amounts:
    ///
    /// - A slice, because the judged part of the recording can begin or end within a slice.
    /// - [`STOP_CHANCE`] for each late stop of the vCPU.
    ///
    /// Zero for a simulated host, because its simulation repeats the recording exactly.
    pub(crate) fn chance_ppm(&self, recorded: &Measures) -> u64 {
        if !self.is_live() {
            return 0;
        }
        let stays = self.demand.vcpus.iter().filter(|vcpu| vcpu.name == recorded.name);
        // Stops are recorded only in the first half, which is as long as the judged half.
        let stops: u64 = stays.map(|vcpu| vcpu.overruns.count() as u64).sum();
        let slice = recorded.reserved.map_or(Span::ZERO, Reservation::slice);
        parts(slice + STOP_CHANCE * stops, self.judged_length())
    }

    /// Returns the length of the warm-up, counted from the start of the recording.
    #[must_use]
    pub fn warmup(&self) -> Span {
        self.header.warmup.left_after(self.begin.since(Time::START))
    }

    /// Returns the time from the start of the recording to `split`. If the warm-up ends later than
    /// `split`, returns the time to the end of the warm-up.
    pub(crate) fn unjudged(&self) -> Span {
        self.split.since(self.begin).max(self.warmup())
    }
}

/// Returns true if a trace was recorded on a live host.
fn is_live(header: &Header) -> bool {
    header.machine == "live"
}

impl Sink for Recorder {
    fn record(&mut self, record: &Record) {
        self.collector.record(record);
        self.whole.record(record);
        self.judged.record(record);
    }

    fn named(&mut self, named: &VcpuName) {
        self.collector.named(named);
        self.whole.named(named);
        self.judged.named(named);
    }

    fn host_thread(&mut self, thread: &HostThread) {
        self.collector.host_thread(thread);
    }

    fn note(&mut self, note: &Note) {
        self.cpus = note.cpus().or(self.cpus.take());
    }

    fn wants_exchanges(&self) -> bool {
        true
    }

    fn exchange(&mut self, exchange: &Exchange) {
        self.collector.exchange(exchange);
    }
}
