//! What is made of the bytes of one agent: frames that count, and for how long what they claim
//! counts. It does no IO and is told the time.

use slackline_units::frame::{FRAME, Frame, MAGIC, NoFrame, Says};
use slackline_units::{Span, TASKS, Time};

use crate::live_host::At;

/// For how long something claimed counts that is not told again. Who waits for a CPU meanwhile
/// could not, and its tasks are what they were: it has until it has run for a little.
pub const LEASE: Span = Span::from_ms(100);
/// But no longer than this in all.
pub const LEASE_AT_MOST: Span = Span::from_secs(1);
/// That little: an agent that is there tells at once when its guest runs.
const LITTLE: Span = Span::from_ms(5);
/// After so many bytes' worth of no frames in a row an agent is as good as silent.
pub const BAD_AT_MOST: u32 = 8;
/// How many things a second are told of it on average.
pub const RATE: u64 = 1_000;
const EACH: Span = Span::from_us(1_000_000 / RATE);
/// How many may come at once, where fewer came before.
const SAVED: Span = Span::from_ms(32);

/// What came of an agent until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames that counted.
    pub frames: u64,
    /// Those that were dropped: none at all, of a vCPU that is not there, or not after the last.
    pub dropped: u64,
    /// Those that a later one took the place of before they were told, because there were too many.
    pub overtaken: u64,
    /// How often what it claimed lapsed because it told nothing for [`LEASE`].
    pub lapsed: u64,
    /// How often it was taken to be silent because of [`BAD_AT_MOST`] that were dropped in a row.
    pub silenced: u64,
    /// The version of the frames that it was last taken to be silent for, if that is not ours.
    pub other_version: Option<u8>,
    /// How often the channel was closed at the other end.
    pub hung_up: u64,
}

/// Something to be told of one vCPU of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct News {
    pub(super) vcpu: u16,
    pub(super) says: Says,
}

/// Something that counts and would lapse.
#[derive(Clone, Copy, Debug)]
struct Claim {
    vcpu: u16,
    kind: Kind,
    told: Time,
    /// When to see whether it lapses.
    due: Time,
    /// Whether the guest ran when that was last seen.
    ran: bool,
}

/// What a frame is about.
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

    const fn nothing(self) -> Says {
        match self {
            Kind::Tasks => Says::Classes([None; TASKS]),
            Kind::Pending => Says::Pending { items: 0, asked: 0 },
        }
    }
}

/// One agent, as it is heard.
#[derive(Debug)]
pub(super) struct Hearing {
    /// What came in and is no whole frame yet.
    rest: Vec<u8>,
    /// Of how many vCPUs it may tell.
    vcpus: u16,
    /// The number of the last frame of each kind, and when it came.
    last: [Option<(u32, Time)>; 2],
    bad: u32,
    claims: Vec<Claim>,
    /// Up to when frames have been paid for, at one in [`EACH`].
    paid: Time,
    pub(super) counts: Counts,
}

impl Hearing {
    pub(super) fn new(vcpus: u16) -> Hearing {
        let (rest, claims) = (Vec::new(), Vec::new());
        let (last, bad, paid) = ([None; 2], 0, Time::START);
        Hearing { rest, vcpus, last, bad, claims, paid, counts: Counts::default() }
    }

    /// When more is to be taken in; none is now.
    pub(super) fn not_before(&self, now: Time) -> Option<Time> {
        let ahead = self.paid.since(now);
        (ahead > SAVED).then(|| now + (ahead - SAVED))
    }

    /// When something that it claims may lapse if it tells nothing until then.
    pub(super) fn lapses(&self) -> Option<Time> {
        self.claims.iter().map(|claim| claim.due).min()
    }

    /// Bytes have come. What is to be told is put into `news`; of what is about the same thing, and
    /// came at once, only the last.
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

    /// Whether a frame is of a vCPU that is there, and after the last. If that was long ago it may
    /// be from another program, which begins with a number of its own.
    fn counts_now(&self, frame: &Frame, now: Time) -> bool {
        let last = self.last[Kind::of(&frame.says) as usize];
        let last = last.filter(|&(_, at)| now.since(at) < LEASE);
        let is_next = last.is_none_or(|(last, _)| Frame::is_after(frame.sequence, last));
        frame.vcpu < self.vcpus && is_next
    }

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

    fn drop_one(&mut self, read: Result<Frame, NoFrame>, before: usize, news: &mut Vec<News>) {
        self.counts.dropped += 1;
        self.bad = self.bad.saturating_add(1);
        if self.bad == BAD_AT_MOST {
            self.counts.silenced += 1;
            self.counts.other_version = match read {
                Err(NoFrame::Version(version)) => Some(version),
                _ => None,
            };
            self.withdraw(before, news);
        }
    }

    /// What it claimed has lapsed if it was not told again for so long, though the guest could.
    pub(super) fn look(&mut self, now: Time, at: impl Fn(u16) -> At, news: &mut Vec<News>) {
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

    /// The other end has gone, and what it claimed with it.
    pub(super) fn hang_up(&mut self, news: &mut Vec<News>) {
        self.counts.hung_up += 1;
        self.rest.clear();
        self.withdraw(news.len(), news);
    }

    /// All that it claims counts no more; whoever tells next begins anew.
    fn withdraw(&mut self, before: usize, news: &mut Vec<News>) {
        self.last = [None; 2];
        for Claim { vcpu, kind, .. } in std::mem::take(&mut self.claims) {
            self.add(News { vcpu, says: kind.nothing() }, before, news);
        }
    }
}

impl Claim {
    /// Whether it counts for a little longer: its guest has had no CPU to tell it again on.
    fn goes_on(&mut self, now: Time, at: impl Fn(u16) -> At) -> bool {
        if self.kind == Kind::Pending || now.since(self.told) >= LEASE_AT_MOST {
            return false;
        }
        let ran = match at(self.vcpu) {
            At::Asleep => return false,
            At::Waits => false,
            At::Runs => true,
        };
        self.due = now + LITTLE;
        let has_run = ran && self.ran;
        self.ran = ran;
        !has_run
    }
}

/// Behind so many bytes of what is no frame one may begin.
fn to_next(bytes: &[u8]) -> usize {
    let next = bytes.windows(MAGIC.len()).skip(1).position(|window| window == MAGIC);
    // The first bytes of one may be the last of these.
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
        look_at(hearing, now, At::Asleep)
    }

    fn look_at(hearing: &mut Hearing, now: Time, is: At) -> Vec<Says> {
        let mut news = Vec::new();
        hearing.look(now, |_| is, &mut news);
        news.into_iter().map(|one| one.says).collect()
    }

    #[test]
    fn a_claim_is_there_for_100_ms_unless_it_is_told_again() {
        let mut hearing = Hearing::new(1);
        assert_eq!(take(&mut hearing, at(5), &bytes(7, urgent())), [urgent()]);
        assert_eq!(hearing.lapses(), Some(at(105)));
        assert_eq!(look(&mut hearing, at(104)), []);
        assert_eq!(take(&mut hearing, at(104), &bytes(8, urgent())), [urgent()]);
        assert_eq!(look(&mut hearing, at(203)), []);
        assert_eq!(look(&mut hearing, at(204)), [NOTHING]);
        assert_eq!((hearing.lapses(), look(&mut hearing, at(500))), (None, vec![]));
        assert_eq!(hearing.counts.lapsed, 1);
        // Who claims nothing need not tell so again.
        take(&mut hearing, at(600), &bytes(9, NOTHING));
        assert_eq!(hearing.lapses(), None);
    }

    /// A guest that waits for a CPU cannot tell it again; one that has run for 5 ms could have.
    #[test]
    fn who_waits_has_until_it_has_run_for_a_little() {
        let mut hearing = Hearing::new(1);
        take(&mut hearing, at(0), &bytes(1, urgent()));
        assert_eq!(look_at(&mut hearing, at(100), At::Waits), []);
        assert_eq!(hearing.lapses(), Some(at(105)));
        assert_eq!(look_at(&mut hearing, at(150), At::Runs), []);
        assert_eq!(look_at(&mut hearing, at(152), At::Runs), []);
        assert_eq!(look_at(&mut hearing, at(155), At::Waits), []);
        assert_eq!(look_at(&mut hearing, at(200), At::Runs), []);
        assert_eq!(look_at(&mut hearing, at(205), At::Runs), [NOTHING]);
        take(&mut hearing, at(300), &bytes(2, urgent()));
        assert_eq!(look_at(&mut hearing, at(1_299), At::Waits), []);
        assert_eq!(look_at(&mut hearing, at(1_304), At::Waits), [NOTHING]);
        // What waits for it others tell, who have a CPU.
        take(&mut hearing, at(2_000), &bytes(3, Says::Pending { items: 1, asked: 0 }));
        assert_eq!(look_at(&mut hearing, at(2_100), At::Waits).len(), 1);
    }

    /// What waits lapses as well, and of both kinds each by its own word.
    #[test]
    fn all_that_is_claimed_lapses_at_once() {
        let mut hearing = Hearing::new(2);
        let waits = Says::Pending { items: 3, asked: 9 };
        let told = [bytes(1, urgent()), Frame { vcpu: 1, sequence: 2, says: waits }.to_bytes()];
        assert_eq!(take(&mut hearing, at(0), &told.concat()), [urgent(), waits]);
        let mut news = Vec::new();
        hearing.look(at(100), |_| At::Asleep, &mut news);
        let nothing_waits = Says::Pending { items: 0, asked: 0 };
        let expected = [(0, NOTHING), (1, nothing_waits)];
        assert!(news.iter().map(|one| (one.vcpu, one.says)).eq(expected), "{news:?}");
    }

    #[test]
    fn what_is_not_after_the_last_or_of_nobody_is_dropped() {
        let mut hearing = Hearing::new(1);
        take(&mut hearing, at(0), &bytes(7, NOTHING));
        assert_eq!(take(&mut hearing, at(1), &bytes(7, urgent())), []);
        assert_eq!(take(&mut hearing, at(1), &bytes(6, urgent())), []);
        let stranger = Frame { vcpu: 1, sequence: 9, says: urgent() };
        assert_eq!(take(&mut hearing, at(1), &stranger.to_bytes()), []);
        assert_eq!((hearing.counts.frames, hearing.counts.dropped), (1, 3));
        // Another program may be there by now, which begins anew.
        assert_eq!(take(&mut hearing, at(101), &bytes(0, urgent())), [urgent()]);
    }

    #[test]
    fn eight_in_a_row_that_are_none_are_silence_and_the_next_good_one_is_heard() {
        let mut hearing = Hearing::new(1);
        take(&mut hearing, at(0), &bytes(1, urgent()));
        let bad = [b'x'; FRAME];
        assert_eq!(take(&mut hearing, at(1), &bad.repeat(7)), []);
        assert_eq!(take(&mut hearing, at(2), &bad), [NOTHING]);
        let Counts { dropped, silenced, .. } = hearing.counts;
        assert_eq!((dropped, silenced), (8, 1));
        assert_eq!(take(&mut hearing, at(3), &bytes(1, urgent())), [urgent()]);
    }

    /// A full channel takes part of a frame, and then a whole one: only that is heard.
    #[test]
    fn part_of_a_frame_before_a_whole_one_claims_nothing() {
        for cut in 1..FRAME {
            let mut hearing = Hearing::new(1);
            let stream = [&bytes(299, urgent())[..cut], &bytes(300, urgent())].concat();
            let claimed = take(&mut hearing, at(0), &stream);
            // What is no more than the beginning of a frame waits for the next.
            let rest = take(&mut hearing, at(1), &bytes(301, urgent()));
            assert_eq!([claimed, rest].concat(), [urgent(); 2], "cut after {cut} bytes");
            assert_eq!(hearing.counts.frames, 2);
        }
    }

    /// Of an agent that is older than the host nothing is heard, and that is why.
    #[test]
    fn another_version_is_silence_and_said() {
        let mut old = bytes(1, urgent());
        old[4..6].copy_from_slice(&[1, 32]);
        let mut hearing = Hearing::new(1);
        assert_eq!(take(&mut hearing, at(0), &old[..32].repeat(9)), []);
        let Counts { frames, silenced, other_version, .. } = hearing.counts;
        assert_eq!((frames, silenced, other_version), (0, 1, Some(1)));
        // Then one of this version comes there, and is cut eight times.
        take(&mut hearing, at(1), &bytes(1, urgent()));
        take(&mut hearing, at(2), &bytes(2, urgent())[..FRAME - 1].repeat(9));
        let Counts { frames, silenced, other_version, .. } = hearing.counts;
        assert_eq!((frames, silenced, other_version), (1, 2, None));
    }

    #[test]
    fn of_many_at_once_the_last_counts_and_then_one_a_millisecond() {
        let mut hearing = Hearing::new(1);
        let many: Vec<u8> = (0..100).flat_map(|number| bytes(number, urgent())).collect();
        assert_eq!(take(&mut hearing, at(0), &many), [urgent()]);
        assert_eq!((hearing.counts.frames, hearing.counts.overtaken), (100, 99));
        let mut told = 1;
        for number in 100..1_100 {
            // One each 100 us.
            let now = Time::START + Span::from_us(100) * u64::from(number);
            if hearing.not_before(now).is_none() {
                told += take(&mut hearing, now, &bytes(number, urgent())).len();
            }
        }
        // In 110 ms: those that may come at once, and one a millisecond.
        assert!((120..=133).contains(&told), "{told}");
    }

    #[test]
    fn who_hangs_up_claims_nothing() {
        let mut hearing = Hearing::new(1);
        let mut whole = bytes(1, urgent()).to_vec();
        whole.extend_from_slice(&bytes(2, urgent())[..20]);
        take(&mut hearing, at(0), &whole);
        let mut news = Vec::new();
        hearing.hang_up(&mut news);
        assert_eq!(news, [News { vcpu: 0, says: NOTHING }]);
        assert_eq!(take(&mut hearing, at(1), &bytes(1, urgent())), [urgent()]);
    }

    /// Much of what frames begin with.
    fn rubbish() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop::sample::select(b"SLGTP\x02\x24".to_vec()), 0..50)
    }

    fn anything() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..100)
    }

    /// What agents tell, of four vCPUs: much alike, so that one may go on where another ends.
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
        /// Wherever what agents send is cut, and whatever is joined: what is claimed was told.
        #[test]
        fn no_claim_is_heard_that_nobody_made(
            frames in prop::collection::vec(told(), 1..12),
            pieces in prop::collection::vec((any::<prop::sample::Index>(), 1..3 * FRAME), 1..30),
        ) {
            let stream: Vec<u8> = frames.iter().flat_map(Frame::to_bytes).collect();
            let mut hearing = Hearing::new(4);
            for (number, (begin, length)) in (0..).zip(pieces) {
                let piece = &stream[begin.index(stream.len())..];
                let mut news = Vec::new();
                // So far apart that all numbers are after the last.
                hearing.take(at(number * 200), &piece[..length.min(piece.len())], &mut news);
                for one in news.iter().filter(|one| one.says.claims()) {
                    let is_this = |frame: &Frame| (frame.vcpu, frame.says) == (one.vcpu, one.says);
                    prop_assert!(frames.iter().any(is_this), "{one:?}");
                }
            }
        }

        /// However bytes come in pieces, and whatever is between frames: each frame is heard, and
        /// no more is kept of the rest than a frame.
        #[test]
        fn frames_are_found_between_whatever_there_is(
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

        /// Whatever comes, it is heard without a fault, and a lapse ends all that was claimed.
        #[test]
        fn nothing_that_comes_does_harm(
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
