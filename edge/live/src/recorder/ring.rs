//! The last minute of a run, in a bounded number of bytes.
//!
//! The ring consists of pieces. Each piece is a trace that can be read without the others. A piece
//! begins with the names of all vCPUs, and contains the identity of each host thread that occurs in
//! the piece. When the oldest piece is dropped, its entries are applied to the stored state of the
//! run at the start of the ring. Some pieces also have a stored state of the run before the piece.
//! So a recording of the last seconds does not read all earlier pieces.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, BufWriter, Write};

use slackline_trace::{
    Entry, Exchange, Header, HostThread, HostThreadId, Note, ReadError, Reader, Record, Sink,
    VcpuName, Writer,
};
use slackline_units::{Span, Time, VcpuId};

use super::anonymise::Anonymiser;
use super::standing::Standing;

/// Number of bytes of pieces after which the ring stores the state of the run again. A state of 500
/// vCPUs takes about 200 KB.
const STATE_INTERVAL: usize = 512 << 10;

/// Ring of the latest pieces of a run.
#[derive(Debug)]
pub struct FlightRing {
    header: Header,
    pieces: VecDeque<RingPiece>,
    /// Number of bytes of all pieces together, with their stored states.
    bytes: usize,
    /// Maximum number of bytes of all pieces together. Only a single piece may be larger.
    most_bytes: usize,
    /// Time that the ring should cover at least. It covers less if `most_bytes` does not suffice.
    length: Span,
    /// Number of bytes of pieces after which the state of the run is stored again.
    state_interval: usize,
    /// Number of bytes of the pieces since the last stored state, including the piece with that
    /// state.
    since_state: usize,
    /// State of the run before the first piece.
    before: Standing,
    /// State of the run after the last piece.
    after: Standing,
    /// Identities of host threads that later entries may mention, by the thread's id in the run's
    /// trace.
    threads: BTreeMap<HostThreadId, HostThread>,
}

/// A trace of the time from `from` to `to`, in its file format.
#[derive(Debug)]
struct RingPiece {
    from: Time,
    to: Time,
    bytes: Vec<u8>,
    /// State of the run before this piece. `None` for most pieces.
    before: Option<Box<Standing>>,
}

impl FlightRing {
    /// Creates an empty ring that is limited to `most_bytes` bytes. Pieces older than `length` are
    /// dropped.
    #[must_use]
    pub fn new(header: &Header, most_bytes: usize, length: Span) -> FlightRing {
        // Each piece has this header, so long texts are left out. The full header is written when
        // the ring is written to a file.
        let header = Header { scenario: String::new(), groups: Vec::new(), ..header.clone() };
        FlightRing {
            header,
            pieces: VecDeque::new(),
            bytes: 0,
            most_bytes,
            length,
            state_interval: STATE_INTERVAL,
            since_state: 0,
            before: Standing::default(),
            after: Standing::default(),
            threads: BTreeMap::new(),
        }
    }

    /// Returns the times at which the ring begins and ends. `None` if the ring is empty.
    #[must_use]
    pub fn covers(&self) -> Option<(Time, Time)> {
        Some((self.pieces.front()?.from, self.pieces.back()?.to))
    }

    /// Returns the number of bytes of all pieces together, with their stored states.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the state of the run after the last piece.
    #[must_use]
    pub fn standing(&self) -> &Standing {
        &self.after
    }

    /// Adds the entries of the time from `from` to `to` as a piece. Afterwards drops the identities
    /// of threads for which `may_record` returns false.
    pub fn push(
        &mut self,
        entries: &[Entry],
        (from, to): (Time, Time),
        may_record: impl Fn(HostThreadId) -> bool,
    ) {
        let is_state_due = self.since_state >= self.state_interval;
        let before = is_state_due.then(|| Box::new(self.after.clone()));
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes, &self.header);
        self.after.names().for_each(|named| writer.named(named));
        let vcpus = self.after.names().map(|named| (named.vcpu.slot(), named.vcpu)).collect();
        let (threads, numbers) = (&mut self.threads, BTreeMap::new());
        let mut local = PieceWriter { writer, threads, numbers, vcpus };
        for entry in entries {
            entry.pass_to(&mut local);
            entry.pass_to(&mut self.after);
        }
        if local.writer.finish().is_err() {
            return;
        }
        bytes.shrink_to_fit();
        self.since_state = bytes.len() + if before.is_some() { 0 } else { self.since_state };
        let piece = RingPiece { from, to, bytes, before };
        self.bytes += piece.size();
        self.pieces.push_back(piece);
        self.threads.retain(|&id, _| may_record(id));
        let oldest = Time::START + to.since(Time::START + self.length);
        while self.pieces.len() > 1 && (self.bytes > self.most_bytes || self.pieces[0].to < oldest)
        {
            let Some(piece) = self.pieces.pop_front() else { return };
            self.bytes -= piece.size();
            // Reading the piece cannot fail, since this process has written it.
            let _ = piece.read(&mut self.before);
        }
    }

    /// Writes all pieces that end after `since` to a sink, as one trace. The trace begins with the
    /// state of the run at the start of the trace. Returns the time of this start. If no piece ends
    /// after `since`, writes nothing and returns `None`.
    ///
    /// # Errors
    /// If a piece is damaged.
    pub fn replay(&self, since: Time, sink: &mut dyn Sink) -> Result<Option<Time>, ReadError> {
        let Some(first) = self.pieces.iter().position(|piece| piece.to > since) else {
            return Ok(None);
        };
        let (start, standing) = (self.pieces[first].from, self.standing_before(first)?);
        standing.tell(start, sink);
        let told = standing.names().map(|named| (named.vcpu.slot(), named.clone())).collect();
        let mut whole = PieceJoiner { sink, told, threads: BTreeMap::new(), numbers: Vec::new() };
        for piece in self.pieces.range(first..) {
            whole.numbers.clear();
            piece.read(&mut whole)?;
        }
        Ok(Some(start))
    }

    /// Returns the state of the run before the piece with this index. Reads only the pieces after
    /// the last stored state.
    fn standing_before(&self, index: usize) -> Result<Standing, ReadError> {
        let stored = |nth: usize| Some((nth, self.pieces[nth].before.as_deref()?));
        let (from, before) = (0..=index).rev().find_map(stored).unwrap_or((0, &self.before));
        let mut standing = before.clone();
        for piece in self.pieces.range(from..index) {
            piece.read(&mut standing)?;
        }
        Ok(standing)
    }

    /// Writes all pieces that end after `since` as a recording with this header and these notes.
    ///
    /// # Errors
    /// If the output fails or a piece is damaged.
    pub fn write(
        &self,
        (header, notes): (&Header, &[Note]),
        since: Time,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let mut writer = Writer::recording(BufWriter::new(out), &self.headed(header, since));
        self.pass_on(notes, since, &mut writer)?;
        writer.finish()
    }

    /// Writes a recording as [`FlightRing::write`] does, as input of a demand model. The recording
    /// leaves out exchanges that do not [affect demand](Exchange::affects_demand). If `own` is
    /// given, the recording leaves out the names of all VMs that are not in `own`.
    ///
    /// # Errors
    /// If the output fails or a piece is damaged.
    pub fn write_demand(
        &self,
        (header, notes): (&Header, &[Note]),
        (since, own): (Time, Option<&BTreeSet<String>>),
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let mut writer = Writer::recording(BufWriter::new(out), &self.headed(header, since));
        let Some(own) = own else {
            self.pass_on(notes, since, &mut DemandOnly(&mut writer))?;
            return writer.finish();
        };
        let mut anonymiser = Anonymiser::new(writer).keeping(own);
        self.pass_on(notes, since, &mut DemandOnly(&mut anonymiser))?;
        anonymiser.into_sink().finish()
    }

    /// Returns the header of a recording of the pieces that end after `since`.
    fn headed(&self, header: &Header, since: Time) -> Header {
        let start = self.covers().map_or(since, |(start, _)| start.max(since));
        let warmup = start.since(Time::START);
        Header { warmup, title: "flight recorder".into(), ..header.clone() }
    }

    fn pass_on(&self, notes: &[Note], since: Time, sink: &mut dyn Sink) -> io::Result<()> {
        notes.iter().for_each(|note| sink.note(note));
        let damaged = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        self.replay(since, sink).map_err(damaged)?;
        if let Some((_, at)) = self.covers() {
            sink.record(&Record::Ended { at });
        }
        Ok(())
    }
}

impl RingPiece {
    /// Returns the number of bytes of the piece, with its stored state.
    fn size(&self) -> usize {
        self.bytes.len() + self.before.as_deref().map_or(0, Standing::size)
    }

    fn read(&self, sink: &mut dyn Sink) -> Result<(), ReadError> {
        Reader::new(&*self.bytes)?.pass_to(sink)
    }
}

/// Sink that passes on all entries except exchanges that do not affect demand.
struct DemandOnly<'a>(&'a mut dyn Sink);

impl Sink for DemandOnly<'_> {
    fn record(&mut self, record: &Record) {
        self.0.record(record);
    }

    fn named(&mut self, named: &VcpuName) {
        self.0.named(named);
    }

    fn host_thread(&mut self, thread: &HostThread) {
        self.0.host_thread(thread);
    }

    fn note(&mut self, note: &Note) {
        self.0.note(note);
    }

    fn wants_exchanges(&self) -> bool {
        true
    }

    fn exchange(&mut self, exchange: &Exchange) {
        if exchange.affects_demand() {
            self.0.exchange(exchange);
        }
    }
}

/// Writer of one piece. The writer numbers the host threads that occur in the piece.
struct PieceWriter<'a> {
    writer: Writer<&'a mut Vec<u8>>,
    threads: &'a mut BTreeMap<HostThreadId, HostThread>,
    /// Number of each host thread in the piece, by the thread's id in the run's trace. Only threads
    /// that have occurred so far are included.
    numbers: BTreeMap<HostThreadId, HostThreadId>,
    /// vCPU of each slot according to the entries so far. A thread may run on after its vCPU has
    /// left, and the slot may belong to another vCPU by then.
    vcpus: BTreeMap<usize, VcpuId>,
}

impl PieceWriter<'_> {
    /// Returns the number of a host thread in the piece. If the thread occurs for the first time,
    /// writes its identity first. `None` if the identity is not known.
    fn number(&mut self, thread: HostThreadId) -> Option<HostThreadId> {
        if let Some(number) = self.numbers.get(&thread) {
            return Some(*number);
        }
        let known = self.threads.get(&thread)?;
        let id = HostThreadId::new(u32::try_from(self.numbers.len()).ok()?);
        let vcpu = known.vcpu.filter(|vcpu| self.vcpus.get(&vcpu.slot()) == Some(vcpu));
        self.writer.host_thread(&HostThread { id, vcpu, ..known.clone() });
        self.numbers.insert(thread, id);
        Some(id)
    }
}

impl Sink for PieceWriter<'_> {
    fn record(&mut self, record: &Record) {
        let Some(thread) = thread_of(record) else { return self.writer.record(record) };
        if let Some(number) = self.number(thread) {
            self.writer.record(&with_thread(record, number));
        }
    }

    fn named(&mut self, named: &VcpuName) {
        self.vcpus.insert(named.vcpu.slot(), named.vcpu);
        self.writer.named(named);
    }

    fn host_thread(&mut self, thread: &HostThread) {
        self.threads.insert(thread.id, thread.clone());
    }

    fn exchange(&mut self, exchange: &Exchange) {
        self.writer.exchange(exchange);
    }
}

/// Identity of a thread without the thread's number. Threads with equal identities share one entry
/// in the joined trace.
type ThreadIdentity = (u32, u32, Option<VcpuId>, [String; 4]);

/// Joins pieces into one trace, in which each name and each identity appears once.
struct PieceJoiner<'a> {
    sink: &'a mut dyn Sink,
    /// Names that the joined trace has so far, by slot of the vCPU.
    told: BTreeMap<usize, VcpuName>,
    threads: BTreeMap<ThreadIdentity, HostThreadId>,
    /// Id of each host thread in the joined trace, by the thread's number in the piece.
    numbers: Vec<HostThreadId>,
}

impl Sink for PieceJoiner<'_> {
    fn record(&mut self, record: &Record) {
        let thread = thread_of(record).and_then(|it| self.numbers.get(it.number() as usize));
        match thread {
            Some(number) => self.sink.record(&with_thread(record, *number)),
            None => self.sink.record(record),
        }
    }

    fn named(&mut self, named: &VcpuName) {
        let known = self.told.get(&named.vcpu.slot());
        let is_told = |known: &VcpuName| {
            known.vcpu == named.vcpu && known.name == named.name && known.domain == named.domain
        };
        if !known.is_some_and(is_told) {
            self.told.insert(named.vcpu.slot(), named.clone());
            self.sink.named(named);
        }
    }

    fn host_thread(&mut self, thread: &HostThread) {
        let HostThread { tid, process, vcpu, name, command, vm, group, .. } = thread.clone();
        let next = HostThreadId::new(u32::try_from(self.threads.len()).unwrap_or(u32::MAX));
        let identity = (tid, process, vcpu, [name, command, vm, group]);
        let number = *self.threads.entry(identity).or_insert(next);
        self.numbers.push(number);
        if number == next {
            self.sink.host_thread(&HostThread { id: number, ..thread.clone() });
        }
    }

    fn note(&mut self, note: &Note) {
        self.sink.note(note);
    }

    fn exchange(&mut self, exchange: &Exchange) {
        self.sink.exchange(exchange);
    }
}

/// Returns the host thread to which a record refers. `None` if it refers to no host thread.
const fn thread_of(record: &Record) -> Option<HostThreadId> {
    match *record {
        Record::OnCpu { thread, .. }
        | Record::Awoken { thread, .. }
        | Record::Halted { thread, .. }
        | Record::Counted { thread, .. } => Some(thread),
        _ => None,
    }
}

fn with_thread(record: &Record, number: HostThreadId) -> Record {
    let mut record = *record;
    if let Record::OnCpu { thread, .. }
    | Record::Awoken { thread, .. }
    | Record::Halted { thread, .. }
    | Record::Counted { thread, .. } = &mut record
    {
        *thread = number;
    }
    record
}

#[cfg(test)]
mod tests {
    use slackline_trace::{Fact, HostThreadKind, Knowledge, OffCpu};
    use slackline_units::{CpuId, DomId};

    use super::*;

    const WEB: VcpuId = VcpuId::new(0, DomId::new(0), 0);

    fn at(ms: u64) -> Time {
        Time::START + Span::from_ms(ms)
    }

    fn header() -> Header {
        Header {
            title: "ring".into(),
            machine: "live".into(),
            policy: "edf".into(),
            parameters: String::new(),
            seed: 0,
            cpus: 1,
            groups: Vec::new(),
            dispatch: Span::ZERO,
            warmup: Span::ZERO,
            knows: Knowledge::ALL,
            scenario: String::new(),
        }
    }

    fn thread(number: u32) -> Entry {
        Entry::HostThread(Box::new(HostThread {
            at: at(0),
            id: HostThreadId::new(number),
            kind: HostThreadKind::Process,
            vcpu: None,
            tid: number + 100,
            process: number + 100,
            user: 0,
            name: format!("thread {number}"),
            command: "hog".into(),
            vm: String::new(),
            group: String::new(),
        }))
    }

    fn on_cpu(number: u32, from: u64) -> Entry {
        let (thread, cpu) = (HostThreadId::new(number), CpuId::new(0));
        let (from, to, end) = (at(from), at(from + 1), OffCpu::Ready);
        Entry::Record(Record::OnCpu { thread, cpu, from, to, end })
    }

    /// Returns a ring with ten pieces of 10 ms. Two threads run in each piece: one runs in all
    /// pieces, the other in this piece only.
    fn ring(most_bytes: usize, length: Span) -> FlightRing {
        let mut ring = FlightRing::new(&header(), most_bytes, length);
        for piece in 0..10_u64 {
            let own = 1 + u32::try_from(piece).expect("few pieces");
            let from = piece * 10;
            let mut entries = Vec::new();
            if piece == 0 {
                let (name, domain) = ("web.0".into(), "web".into());
                entries.push(Entry::Named(VcpuName { at: at(0), vcpu: WEB, name, domain }));
                entries.push(Entry::Record(Record::Joined { at: at(0), vcpu: WEB }));
                entries.push(thread(0));
            }
            entries.extend([thread(own), on_cpu(0, from), on_cpu(own, from + 5)]);
            entries.push(Entry::Record(Record::Woke { at: at(from + 6), vcpu: WEB }));
            ring.push(&entries, (at(from), at(from + 10)), |id| id.number() == 0);
        }
        ring
    }

    #[test]
    fn recording_replayed_from_ring_names_each_vcpu_and_thread_once() {
        let ring = ring(usize::MAX, Span::from_secs(60));
        let mut entries: Vec<Entry> = Vec::new();
        let start = ring.replay(at(35), &mut entries).expect("a whole ring");
        assert_eq!((start, ring.covers()), (Some(at(30)), Some((at(0), at(100)))));
        let count = |is_it: fn(&Entry) -> bool| entries.iter().filter(|it| is_it(it)).count();
        assert_eq!(count(|it| matches!(it, Entry::Named(_))), 1);
        assert_eq!(count(|it| matches!(it, Entry::HostThread(_))), 1 + 7);
        assert_eq!(count(|it| matches!(it, Entry::Record(Record::OnCpu { .. }))), 14);
        // The trace begins with the vCPUs that had joined and woken before its start.
        let woke = Entry::Record(Record::Woke { at: at(30), vcpu: WEB });
        assert!(entries.contains(&woke), "{entries:?}");
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, &header());
        entries.iter().for_each(|entry| entry.pass_to(&mut writer));
        writer.finish().expect("writing to memory cannot fail");
        let mut again: Vec<Entry> = Vec::new();
        let mut reader = Reader::new(&*file).expect("a trace");
        reader.pass_to(&mut again).expect("a whole trace");
        assert_eq!(again, entries);
    }

    #[test]
    fn recording_ring_drops_pieces_beyond_byte_or_time_limit() {
        assert_eq!(ring(usize::MAX, Span::from_ms(25)).covers(), Some((at(70), at(100))));
        let small = ring(400, Span::from_secs(60));
        assert!(small.bytes() <= 400, "{}", small.bytes());
        let (from, to) = small.covers().expect("the latest pieces");
        assert!(from > at(0) && to == at(100));
        assert_eq!(small.threads.len(), 1);
        assert_eq!(ring(usize::MAX, Span::from_secs(60)).replay(at(200), &mut ()).ok(), Some(None));
    }

    #[test]
    fn recording_from_ring_does_not_depend_on_stored_state_interval() {
        let ring = |state_interval: usize, most_bytes: usize| {
            let ring = FlightRing::new(&header(), most_bytes, Span::from_secs(60));
            let mut ring = FlightRing { state_interval, ..ring };
            for piece in 0..10_u64 {
                let (from, to) = (at(piece * 10), at(piece * 10 + 10));
                let (name, domain) = ("web.0".into(), "web".into());
                let first = [
                    Entry::Named(VcpuName { at: from, vcpu: WEB, name, domain }),
                    Entry::Record(Record::Joined { at: from, vcpu: WEB }),
                ];
                let next = match piece % 3 {
                    0 => Record::Woke { at: to, vcpu: WEB },
                    1 => Record::Paused { at: to, vcpu: WEB },
                    _ => Record::Blocked { at: to, vcpu: WEB },
                };
                let first = first.into_iter().filter(|_| piece == 0);
                let entries: Vec<Entry> = first.chain([Entry::Record(next)]).collect();
                ring.push(&entries, (from, to), |_| true);
            }
            ring
        };
        let replayed = |ring: &FlightRing, since| {
            let mut entries: Vec<Entry> = Vec::new();
            ring.replay(since, &mut entries).expect("a whole ring");
            entries
        };
        let none = ring(usize::MAX, usize::MAX);
        let size = none.bytes();
        for (interval, stored) in [(1, 9), (size / 3, 2), (usize::MAX, 0)] {
            let (whole, small) = (ring(interval, usize::MAX), ring(interval, size - 1));
            let count = whole.pieces.iter().filter(|piece| piece.before.is_some()).count();
            assert_eq!(count, stored, "{interval}");
            assert!(small.bytes() < size, "{interval}: states count too: {}", small.bytes());
            for ring in [whole, small] {
                let (start, _) = ring.covers().expect("the latest pieces");
                for since in (0..110).step_by(5).map(at).filter(|&since| since >= start) {
                    assert_eq!(replayed(&ring, since), replayed(&none, since), "{interval}");
                }
            }
        }
    }

    #[test]
    fn recording_for_model_omits_policy_exchanges_without_effect_on_demand() {
        let mut ring = FlightRing::new(&header(), usize::MAX, Span::from_secs(60));
        let (cpu, now, alarm) = (CpuId::new(0), at(1), Some(at(5)));
        let reported = |fact| Entry::Exchange(Exchange::Reported { now, fact });
        let limit = reported(Fact::LimitReached(cpu));
        let alarm = Entry::Exchange(Exchange::AlarmSet { cpu, alarm });
        let entries = [limit.clone(), reported(Fact::Settled), alarm];
        ring.push(&entries, (at(0), at(10)), |_| true);
        let read = |bytes: &[u8]| {
            let mut entries: Vec<Entry> = Vec::new();
            let mut reader = Reader::new(bytes).expect("a trace");
            reader.pass_to(&mut entries).expect("a whole trace");
            entries
        };
        let (mut whole, mut demand) = (Vec::new(), Vec::new());
        ring.write((&header(), &[]), at(0), &mut whole).expect("memory cannot fail");
        let window = (at(0), None);
        ring.write_demand((&header(), &[]), window, &mut demand).expect("memory cannot fail");
        let (mut whole, demand) = (read(&whole), read(&demand));
        assert!(entries.iter().all(|entry| whole.contains(entry)), "{whole:?}");
        whole.retain(|entry| !entries.contains(entry) || *entry == limit);
        assert_eq!(demand, whole);
    }

    /// A thread runs on after its vCPU has left. A later piece can contain an event of the thread,
    /// although the slot of its vCPU is free there or belongs to another vCPU.
    #[test]
    fn recording_ring_stays_readable_if_a_thread_outlives_its_vcpu() {
        for next in [None, Some(VcpuId::new(0, DomId::new(1), 0))] {
            let mut ring = FlightRing::new(&header(), usize::MAX, Span::from_secs(60));
            let named = |at, vcpu| {
                Entry::Named(VcpuName { at, vcpu, name: "web.0".into(), domain: "web".into() })
            };
            let Entry::HostThread(thread) = thread(0) else { panic!("a thread is a thread") };
            let thread = Entry::HostThread(Box::new(HostThread { vcpu: Some(WEB), ..*thread }));
            let left = Entry::Record(Record::Left { at: at(9), vcpu: WEB });
            let joined = |vcpu| Entry::Record(Record::Joined { at: at(0), vcpu });
            let mut first = vec![named(at(0), WEB), joined(WEB), thread, on_cpu(0, 1), left];
            first.extend(next.map(|next| named(at(9), next)));
            ring.push(&first, (at(0), at(10)), |_| true);
            ring.push(&[on_cpu(0, 11)], (at(10), at(20)), |_| true);
            let mut entries: Vec<Entry> = Vec::new();
            ring.replay(at(15), &mut entries).expect("a whole ring");
            let vcpus = entries.iter().filter_map(|entry| match entry {
                Entry::HostThread(thread) => Some(thread.vcpu),
                _ => None,
            });
            assert_eq!(vcpus.collect::<Vec<_>>(), [None], "{next:?}");
        }
    }
}
