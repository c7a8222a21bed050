//! Reports of one guest's agent. This module finds the valid frames in the agent's bytes, and
//! decides how long each claim counts. A claim is a report of urgent tasks or of pending I/O. The
//! module does no I/O and reads no clock.

use slackline_units::frame::{FRAME, Frame, MAGIC, NoFrame, Says};
use slackline_units::{Span, TASKS, Time};

use crate::live_host::VcpuActivity;

/// Time for which an agent's claim (report of urgent tasks or of pending I/O) counts if the agent
/// does not repeat it. The one exception is a claim of urgent tasks whose guest waits for a CPU,
/// because the agent cannot repeat it then. Such a claim counts until the guest has run for 5 ms,
/// but for at most [`LEASE_AT_MOST`].
pub const LEASE: Span = Span::from_ms(100);
/// Maximum time for which a claim of urgent tasks counts without being repeated, even if its guest
/// never gets a CPU.
pub const LEASE_AT_MOST: Span = Span::from_secs(1);
/// Time for which a guest must run, after [`LEASE`] has passed, before a claim of urgent tasks
/// lapses. A working agent repeats the claim as soon as its guest runs.
const LITTLE: Span = Span::from_ms(5);
/// Number of dropped frames in a row after which an agent counts as silent, so that all its claims
/// end.
pub const BAD_AT_MOST: u32 = 8;
/// Maximum rate, in reports per second, at which reports of an agent are passed on to the policy.
/// The rate is an average: in a short burst, reports may follow each other faster.
pub const RATE: u64 = 1_000;
/// Average interval between two reports of an agent that sends at the maximum rate: `1 / RATE`.
const EACH: Span = Span::from_us(1_000_000 / RATE);
/// Burst allowance. An agent that has sent fewer reports than [`RATE`] allows may later send
/// reports faster for a while. The allowance is limited to the 32 reports that [`RATE`] allows in
/// 32 ms.
const SAVED: Span = Span::from_ms(32);

/// Counts of an agent's frames and losses since the agent was added to the session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of valid frames.
    pub frames: u64,
    /// Number of dropped frames: malformed, about a vCPU that does not exist, or not newer than the
    /// last frame.
    pub dropped: u64,
    /// Number of frames replaced by a later frame before they were passed on, because the agent
    /// exceeded [`RATE`].
    pub overtaken: u64,
    /// Number of claims (reports of urgent tasks or of pending I/O) that lapsed because the agent
    /// did not repeat them within [`LEASE`].
    pub lapsed: u64,
    /// Number of times that the agent became silent: each time after [`BAD_AT_MOST`] dropped frames
    /// in a row.
    pub silenced: u64,
    /// Latest frame version of the agent that the host does not support. Frames are noted here only
    /// while the agent counts as silent. `None` if no such frame has arrived since the agent last
    /// became silent.
    pub other_version: Option<u8>,
    /// Number of times that the agent closed the connection.
    pub hung_up: u64,
}

/// Report about one vCPU of a guest, to be passed on to the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct News {
    pub(super) vcpu: u16,
    pub(super) says: Says,
}

/// A report of urgent tasks or of pending I/O that counts at present. The claim lapses unless the
/// agent repeats it.
#[derive(Clone, Copy, Debug)]
struct Claim {
    vcpu: u16,
    kind: Kind,
    /// Time at which the agent last reported the claim.
    told: Time,
    /// Time of the next check. At that check the claim lapses, or gets a later check.
    due: Time,
    /// True if the vCPU of the claim was running at the last check of the claim.
    ran: bool,
}

/// Kind of a frame: a report of tasks or of pending I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tasks,
    Pending,
}

impl Kind {
    fn of(says: &Says) -> Kind {
        match says {
            Says::Classes(_) => Kind::Tasks,
            Says::Pending { .. } => Kind::Pending,
        }
    }

    /// Returns an empty report of this kind, which says that the guest claims nothing. Such a
    /// report ends a claim.
    const fn nothing(self) -> Says {
        match self {
            Kind::Tasks => Says::Classes([None; TASKS]),
            Kind::Pending => Says::Pending { items: 0, asked: 0 },
        }
    }
}

/// State of one agent's reports: bytes not parsed yet, claims and counts.
#[derive(Debug)]
pub(super) struct Hearing {
    /// Bytes that the agent has sent last and that are not a whole frame yet.
    rest: Vec<u8>,
    /// Number of vCPUs of the guest.
    vcpus: u16,
    /// Sequence number and arrival time of the last frame of each kind. The first entry is for
    /// reports of tasks, the second for reports of pending I/O. `None` if no such frame has arrived
    /// since the agent last became silent or closed the connection.
    last: [Option<(u32, Time)>; 2],
    /// Number of frames dropped in a row.
    bad: u32,
    claims: Vec<Claim>,
    /// Rate limiter. Each report that is passed on moves this time ahead by [`EACH`]. While this
    /// time is more than [`SAVED`] ahead of the present time, no more bytes of the agent are read.
    paid: Time,
    pub(super) counts: Counts,
}

impl Hearing {
    pub(super) fn new(vcpus: u16) -> Hearing {
        let (rest, claims) = (Vec::new(), Vec::new());
        let (last, bad, paid) = ([None; 2], 0, Time::START);
        Hearing { rest, vcpus, last, bad, claims, paid, counts: Counts::default() }
    }

    /// Returns the earliest time at which more bytes of this agent may be read. `None` if bytes may
    /// be read now.
    pub(super) fn not_before(&self, now: Time) -> Option<Time> {
        let ahead = self.paid.since(now);
        (ahead > SAVED).then(|| now + (ahead - SAVED))
    }

    /// Returns the time when the next claim (report of urgent tasks or of pending I/O) can lapse.
    /// `None` if there is no claim.
    pub(super) fn lapses(&self) -> Option<Time> {
        self.claims.iter().map(|claim| claim.due).min()
    }

    /// Parses bytes that the agent has sent, and appends their reports to `news`. If several of
    /// these reports are of one kind and about the same vCPU, only the last of them is appended.
    pub(super) fn take(&mut self, now: Time, bytes: &[u8], news: &mut Vec<News>) {
        let before = news.len();
        self.rest.extend_from_slice(bytes);
        let rest = std::mem::take(&mut self.rest);
        let mut left = &rest[..];
        while let Some(bytes) = left.get(..FRAME) {
            let frame = Frame::read(bytes);
            match frame.ok().filter(|frame| self.counts_now(frame, now)) {
                Some(frame) => {
                    self.hear(now, &frame);
                    self.add(News { vcpu: frame.vcpu, says: frame.says }, before, news);
                }
                None => self.drop_one(frame, before, news),
            }
            left = &left[if frame.is_ok() { FRAME } else { to_next(bytes) }..];
        }
        self.rest = left.to_vec();
        self.paid = self.paid.max(now) + EACH * (news.len() - before) as u64;
    }

    /// Returns true if the vCPU of a frame exists, and the frame is newer than the last frame of
    /// its kind. If the last frame arrived more than [`LEASE`] ago, any sequence number is accepted
    /// as newer. The agent may have been restarted with new numbers.
    fn counts_now(&self, frame: &Frame, now: Time) -> bool {
        let last = self.last[Kind::of(&frame.says) as usize];
        let last = last.filter(|&(_, at)| now.since(at) < LEASE);
        let is_next = last.is_none_or(|(last, _)| Frame::is_after(frame.sequence, last));
        frame.vcpu < self.vcpus && is_next
    }

    /// Counts a valid frame, and starts, renews or ends the claim of its vCPU and kind.
    fn hear(&mut self, now: Time, frame: &Frame) {
        let (vcpu, kind) = (frame.vcpu, Kind::of(&frame.says));
        self.counts.frames += 1;
        self.last[kind as usize] = Some((frame.sequence, now));
        self.bad = 0;
        self.claims.retain(|claim| (claim.vcpu, claim.kind) != (vcpu, kind));
        if frame.says.claims() {
            self.claims.push(Claim { vcpu, kind, told: now, due: now + LEASE, ran: false });
        }
    }

    /// Appends the report `one` to `news`. If `news` already has a report of the same vCPU and
    /// kind, at index `before` or later, replaces that report.
    fn add(&mut self, one: News, before: usize, news: &mut Vec<News>) {
        let what = |news: &News| (news.vcpu, Kind::of(&news.says));
        let is_same = |other: &&mut News| what(other) == what(&one);
        match news[before..].iter_mut().find(is_same) {
            Some(other) => {
                *other = one;
                self.counts.overtaken += 1;
            }
            None => news.push(one),
        }
    }

    /// Counts a dropped frame. After [`BAD_AT_MOST`] dropped frames in a row, the agent counts as
    /// silent, and its claims end.
    fn drop_one(&mut self, read: Result<Frame, NoFrame>, before: usize, news: &mut Vec<News>) {
        self.counts.dropped += 1;
        self.bad = self.bad.saturating_add(1);
        if self.bad == BAD_AT_MOST {
            self.counts.silenced += 1;
            self.counts.other_version = None;
            self.withdraw(before, news);
        }
        if self.bad >= BAD_AT_MOST
            && let Err(NoFrame::Version(version)) = read
        {
            self.counts.other_version = Some(version);
        }
    }

    /// Ends the claims that the agent did not repeat in time, and appends the empty reports to
    /// `news`. A claim of urgent tasks gets more time while the guest waits for a CPU.
    pub(super) fn look(
        &mut self,
        now: Time,
        at: impl Fn(u16) -> VcpuActivity,
        news: &mut Vec<News>,
    ) {
        let before = news.len();
        for mut claim in std::mem::take(&mut self.claims) {
            if claim.due > now || claim.goes_on(now, &at) {
                self.claims.push(claim);
            } else {
                self.counts.lapsed += 1;
                self.add(News { vcpu: claim.vcpu, says: claim.kind.nothing() }, before, news);
            }
        }
    }

    /// Records that the agent has closed the connection, which ends its claims.
    pub(super) fn hang_up(&mut self, news: &mut Vec<News>) {
        self.counts.hung_up += 1;
        self.rest.clear();
        self.withdraw(news.len(), news);
    }

    /// Ends all claims of the agent. The next frame of each kind may have any sequence number.
    fn withdraw(&mut self, before: usize, news: &mut Vec<News>) {
        self.last = [None; 2];
        for Claim { vcpu, kind, .. } in std::mem::take(&mut self.claims) {
            self.add(News { vcpu, says: kind.nothing() }, before, news);
        }
    }
}

impl Claim {
    /// Returns true if the claim counts for a little longer, because its vCPU had no CPU time in
    /// which the agent could have repeated it. Always returns false for a claim of pending I/O.
    fn goes_on(&mut self, now: Time, at: impl Fn(u16) -> VcpuActivity) -> bool {
        if self.kind == Kind::Pending || now.since(self.told) >= LEASE_AT_MOST {
            return false;
        }
        let ran = match at(self.vcpu) {
            VcpuActivity::Asleep => return false,
            VcpuActivity::Waits => false,
            VcpuActivity::Runs => true,
        };
        self.due = (now + LITTLE).min(self.told + LEASE_AT_MOST);
        let has_run = ran && self.ran;
        self.ran = ran;
        !has_run
    }
}

/// Returns the number of bytes to skip until a frame may begin. The caller has checked that `bytes`
/// do not start with a valid frame.
fn to_next(bytes: &[u8]) -> usize {
    let next = bytes.windows(MAGIC.len()).skip(1).position(|window| window == MAGIC);
    // The last bytes may be the beginning of a frame, so they are not skipped.
    next.map_or(bytes.len() - (MAGIC.len() - 1), |place| place + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slackline_units::Urgency;
    use slackline_units::frame::Class;

    use super::*;

    fn at(ms: u64) -> Time {
        Time::START + Span::from_ms(ms)
    }

    const NOTHING: Says = Says::Classes([None; TASKS]);

    fn urgent() -> Says {
        let class = Class { urgency: Urgency(50), runnable: 1, blocked: 0, woken: false };
        Says::Classes([Some(class), None, None, None, None])
    }

    fn bytes(sequence: u32, says: Says) -> [u8; FRAME] {
        Frame { vcpu: 0, sequence, says }.to_bytes()
    }

    fn take(hearing: &mut Hearing, now: Time, bytes: &[u8]) -> Vec<Says> {
        let mut news = Vec::new();
        hearing.take(now, bytes, &mut news);
        news.into_iter().map(|one| one.says).collect()
    }

    fn look(hearing: &mut Hearing, now: Time) -> Vec<Says> {
        look_at(hearing, now, VcpuActivity::Asleep)
    }

    fn look_at(hearing: &mut Hearing, now: Time, is: VcpuActivity) -> Vec<Says> {
        let mut news = Vec::new();
        hearing.look(now, |_| is, &mut news);
        news.into_iter().map(|one| one.says).collect()
    }

    #[test]
    fn agent_urgency_claim_expires_after_100_ms_unless_repeated() {
        let mut hearing = Hearing::new(1);
        assert_eq!(take(&mut hearing, at(5), &bytes(7, urgent())), [urgent()]);
        assert_eq!(hearing.lapses(), Some(at(105)));
        assert_eq!(look(&mut hearing, at(104)), []);
        assert_eq!(take(&mut hearing, at(104), &bytes(8, urgent())), [urgent()]);
        assert_eq!(look(&mut hearing, at(203)), []);
        assert_eq!(look(&mut hearing, at(204)), [NOTHING]);
        assert_eq!((hearing.lapses(), look(&mut hearing, at(500))), (None, vec![]));
        assert_eq!(hearing.counts.lapsed, 1);
        // A report without a claim cannot lapse.
        take(&mut hearing, at(600), &bytes(9, NOTHING));
        assert_eq!(hearing.lapses(), None);
    }

    /// A guest that waits for a CPU cannot repeat its claim, so its claim is prolonged. The claim
    /// ends after the guest has run for 5 ms without repeating it.
    #[test]
    fn urgency_claim_is_prolonged_while_guest_waits_for_cpu() {
        let mut hearing = Hearing::new(1);
        take(&mut hearing, at(0), &bytes(1, urgent()));
        assert_eq!(look_at(&mut hearing, at(100), VcpuActivity::Waits), []);
        assert_eq!(hearing.lapses(), Some(at(105)));
        assert_eq!(look_at(&mut hearing, at(150), VcpuActivity::Runs), []);
        assert_eq!(look_at(&mut hearing, at(152), VcpuActivity::Runs), []);
        assert_eq!(look_at(&mut hearing, at(155), VcpuActivity::Waits), []);
        assert_eq!(look_at(&mut hearing, at(200), VcpuActivity::Runs), []);
        assert_eq!(look_at(&mut hearing, at(205), VcpuActivity::Runs), [NOTHING]);
        take(&mut hearing, at(300), &bytes(2, urgent()));
        assert_eq!(look_at(&mut hearing, at(1_299), VcpuActivity::Waits), []);
        assert_eq!(hearing.lapses(), Some(at(1_300)));
        assert_eq!(look_at(&mut hearing, at(1_300), VcpuActivity::Waits), [NOTHING]);
        // A claim of pending I/O is not extended while the guest waits for a CPU.
        take(&mut hearing, at(2_000), &bytes(3, Says::Pending { items: 1, asked: 0 }));
        assert_eq!(look_at(&mut hearing, at(2_100), VcpuActivity::Waits).len(), 1);
    }

    /// While the guest is blocked, claims of pending I/O lapse, and so do claims of urgent tasks.
    /// The end of each claim is passed on as an empty report of the same kind.
    #[test]
    fn urgency_and_pending_io_claims_expire_on_all_guest_vcpus() {
        let mut hearing = Hearing::new(2);
        let waits = Says::Pending { items: 3, asked: 9 };
        let told = [bytes(1, urgent()), Frame { vcpu: 1, sequence: 2, says: waits }.to_bytes()];
        assert_eq!(take(&mut hearing, at(0), &told.concat()), [urgent(), waits]);
        let mut news = Vec::new();
        hearing.look(at(100), |_| VcpuActivity::Asleep, &mut news);
        let nothing_waits = Says::Pending { items: 0, asked: 0 };
        let expected = [(0, NOTHING), (1, nothing_waits)];
        assert!(news.iter().map(|one| (one.vcpu, one.says)).eq(expected), "{news:?}");
    }

    #[test]
    fn agent_frame_with_stale_number_or_unknown_vcpu_is_dropped() {
        let mut hearing = Hearing::new(1);
        take(&mut hearing, at(0), &bytes(7, NOTHING));
        assert_eq!(take(&mut hearing, at(1), &bytes(7, urgent())), []);
        assert_eq!(take(&mut hearing, at(1), &bytes(6, urgent())), []);
        let stranger = Frame { vcpu: 1, sequence: 9, says: urgent() };
        assert_eq!(take(&mut hearing, at(1), &stranger.to_bytes()), []);
        assert_eq!((hearing.counts.frames, hearing.counts.dropped), (1, 3));
        // After 100 ms another agent may be connected, whose sequence numbers start anew.
        assert_eq!(take(&mut hearing, at(101), &bytes(0, urgent())), [urgent()]);
    }

    #[test]
    fn agent_claims_end_after_eight_consecutive_invalid_frames() {
        let mut hearing = Hearing::new(1);
        take(&mut hearing, at(0), &bytes(1, urgent()));
        let bad = [b'x'; FRAME];
        assert_eq!(take(&mut hearing, at(1), &bad.repeat(7)), []);
        assert_eq!(take(&mut hearing, at(2), &bad), [NOTHING]);
        let Counts { dropped, silenced, .. } = hearing.counts;
        assert_eq!((dropped, silenced), (8, 1));
        assert_eq!(take(&mut hearing, at(3), &bytes(1, urgent())), [urgent()]);
    }

    /// A full socket accepts only the first bytes of a frame, and later another whole frame. Only
    /// the whole frame counts.
    #[test]
    fn truncated_agent_frame_is_dropped_without_losing_next_frame() {
        for cut in 1..FRAME {
            let mut hearing = Hearing::new(1);
            let stream = [&bytes(299, urgent())[..cut], &bytes(300, urgent())].concat();
            let claimed = take(&mut hearing, at(0), &stream);
            // Bytes that could be the beginning of a frame are parsed when the next bytes arrive.
            let rest = take(&mut hearing, at(1), &bytes(301, urgent()));
            assert_eq!([claimed, rest].concat(), [urgent(); 2], "cut after {cut} bytes");
            assert_eq!(hearing.counts.frames, 2);
        }
    }

    /// Frames of an agent with an older version than the host are dropped, and `other_version`
    /// states the version.
    #[test]
    fn agent_with_unsupported_frame_version_is_ignored_and_version_recorded() {
        let mut old = bytes(1, urgent());
        old[4..6].copy_from_slice(&[1, 32]);
        let mut hearing = Hearing::new(1);
        assert_eq!(take(&mut hearing, at(0), &old[..32].repeat(9)), []);
        let Counts { frames, silenced, other_version, .. } = hearing.counts;
        assert_eq!((frames, silenced, other_version), (0, 1, Some(1)));
        // Then an agent of the host's version connects, and eight of its frames are cut off.
        take(&mut hearing, at(1), &bytes(1, urgent()));
        take(&mut hearing, at(2), &bytes(2, urgent())[..FRAME - 1].repeat(9));
        let Counts { frames, silenced, other_version, .. } = hearing.counts;
        assert_eq!((frames, silenced, other_version), (1, 2, None));
        // An agent of the older version follows, whose first frames come after eight invalid ones.
        take(&mut hearing, at(3), &old[..32].repeat(2));
        assert_eq!(hearing.counts.other_version, Some(1));
    }

    #[test]
    fn flood_of_agent_frames_yields_about_one_report_per_millisecond() {
        let mut hearing = Hearing::new(1);
        let many: Vec<u8> = (0..100).flat_map(|number| bytes(number, urgent())).collect();
        assert_eq!(take(&mut hearing, at(0), &many), [urgent()]);
        assert_eq!((hearing.counts.frames, hearing.counts.overtaken), (100, 99));
        let mut told = 1;
        for number in 100..1_100 {
            // The agent sends a frame every 100 us.
            let now = Time::START + Span::from_us(100) * u64::from(number);
            if hearing.not_before(now).is_none() {
                told += take(&mut hearing, now, &bytes(number, urgent())).len();
            }
        }
        // In 110 ms, the burst allowance of 32 reports and one report per millisecond pass.
        assert!((120..=133).contains(&told), "{told}");
    }

    #[test]
    fn closing_agent_channel_ends_all_urgency_claims_of_the_agent() {
        let mut hearing = Hearing::new(1);
        let mut whole = bytes(1, urgent()).to_vec();
        whole.extend_from_slice(&bytes(2, urgent())[..20]);
        take(&mut hearing, at(0), &whole);
        let mut news = Vec::new();
        hearing.hang_up(&mut news);
        assert_eq!(news, [News { vcpu: 0, says: NOTHING }]);
        assert_eq!(take(&mut hearing, at(1), &bytes(1, urgent())), [urgent()]);
    }

    /// Generates bytes that often look like the start of a frame.
    fn rubbish() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop::sample::select(b"SLGTP\x02\x24".to_vec()), 0..50)
    }

    fn anything() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..100)
    }

    /// Generates frames about four vCPUs. The frames resemble each other, so that the start of one
    /// frame and the end of another can form a valid frame.
    fn told() -> impl Strategy<Value = Frame> {
        let class = (0..3_u8, 1..3_u8, any::<bool>());
        let classes = (prop::collection::btree_set(0..140_u8, 5), prop::array::uniform5(class));
        let classes = classes.prop_map(|(urgencies, counts)| {
            let mut classes = [None; TASKS];
            for (place, (urgency, count)) in classes.iter_mut().zip(urgencies.iter().zip(counts)) {
                let (runnable, blocked, woken) = count;
                *place = Some(Class { urgency: Urgency(*urgency), runnable, blocked, woken });
            }
            Says::Classes(classes)
        });
        let pending =
            (0..4_u32, 0..4_u32).prop_map(|(items, asked)| Says::Pending { items, asked });
        let frame =
            (0..4_u16, prop_oneof![0..1_000_u32, any::<u32>()], prop_oneof![classes, pending]);
        frame.prop_map(|(vcpu, sequence, says)| Frame { vcpu, sequence, says })
    }

    proptest! {
        /// Every claim that the host accepts was sent by the agent, even if the stream is cut and
        /// joined at any place.
        #[test]
        fn agent_stream_split_at_any_byte_yields_only_sent_claims(
            frames in prop::collection::vec(told(), 1..12),
            pieces in prop::collection::vec((any::<prop::sample::Index>(), 1..3 * FRAME), 1..30),
        ) {
            let stream: Vec<u8> = frames.iter().flat_map(Frame::to_bytes).collect();
            let mut hearing = Hearing::new(4);
            for (number, (begin, length)) in (0..).zip(pieces) {
                let piece = &stream[begin.index(stream.len())..];
                let mut news = Vec::new();
                // The pieces are so far apart in time that every sequence number is accepted.
                hearing.take(at(number * 200), &piece[..length.min(piece.len())], &mut news);
                for one in news.iter().filter(|one| one.says.claims()) {
                    let is_this = |frame: &Frame| (frame.vcpu, frame.says) == (one.vcpu, one.says);
                    prop_assert!(frames.iter().any(is_this), "{one:?}");
                }
            }
        }

        /// Every frame is found, even if the stream arrives in pieces and has other bytes between
        /// frames. The host never keeps as many unparsed bytes as a whole frame has.
        #[test]
        fn agent_frames_are_found_between_arbitrary_other_bytes(
            parts in prop::collection::vec((rubbish(), 1..70_usize), 1..20),
        ) {
            let mut hearing = Hearing::new(1);
            let mut stream = Vec::new();
            for (number, (rubbish, _)) in (0..).zip(&parts) {
                stream.extend_from_slice(rubbish);
                stream.extend_from_slice(&bytes(number, urgent()));
            }
            let mut left = &stream[..];
            for &(_, length) in parts.iter().cycle() {
                let (piece, rest) = left.split_at(length.min(left.len()));
                take(&mut hearing, at(0), piece);
                prop_assert!(hearing.rest.len() < FRAME);
                left = rest;
                if left.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(hearing.counts.frames, parts.len() as u64);
        }

        /// Arbitrary bytes cause no panic, and all claims lapse in the end.
        #[test]
        fn arbitrary_agent_bytes_cause_no_panic_and_all_claims_expire(
            pieces in prop::collection::vec((anything(), any::<bool>()), 0..20),
        ) {
            let mut hearing = Hearing::new(1);
            for (number, (piece, is_good)) in (0..).zip(&pieces) {
                let frame = bytes(number, urgent());
                let good = if *is_good { &frame[..] } else { &[] };
                take(&mut hearing, at(u64::from(number)), &[piece, good].concat());
            }
            let last = look(&mut hearing, at(1_000));
            prop_assert!(last.iter().all(|says| !says.claims()));
            prop_assert_eq!(hearing.lapses(), None);
        }
    }
}
