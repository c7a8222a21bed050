//! Wire format of a guest's messages to the host: frames of 36 bytes, over any byte stream.
//!
//! All numbers are little-endian. A frame of tasks consists of these bytes:
//!
//! - bytes 0 to 3: `SLGT`;
//! - 4: the version, 2;
//! - 5: the length, 36;
//! - 6 and 7: the sending vCPU, by its number within the guest;
//! - 8 to 11: sequence number. It grows with each frame of the same kind and wraps to zero;
//! - 12 to 31: four bytes for each of five classes of tasks, most urgent first. They are the
//!   urgency, the number of runnable tasks, and the number of blocked tasks (255 means 255 or
//!   more). The last byte is 1 if an I/O completion has recently woken one of the tasks, else 0. A
//!   class without a task is four zeros;
//! - 32 to 35: the CRC-32 of IEEE 802.3 over all bytes before.
//!
//! A frame of pending I/O is sent by the domain that does I/O for the guest, and begins with
//! `SLGP`. Its bytes 4 to 11 and 32 to 35 have the same meaning as in a frame of tasks. Bytes 12 to
//! 15 are the number of pending items. Bytes 16 to 19 count the guest's own requests since it
//! started, and bytes 20 to 31 are zeros. The encoding is canonical: each frame has exactly one
//! valid encoding.
//!
//! If a stream is full after part of a frame, the rest of that frame is never sent. The CRC keeps
//! such a fragment and the bytes after it from being read as a frame. The CRC does not protect
//! against forgery. Version 1 had no CRC and was 32 bytes long.
//!
//! Source: the classes are those of Kim, Kim, Jeon, Seo and Lee, 2008, section 3.4. In their
//! design, guest and host share memory that lists five runnable, five blocked and five woken tasks.
//! The wire format is ours.

use crate::{DomId, Pending, TASKS, Task, TaskId, Tasks, Urgency, VcpuHint};

/// Length of a frame in bytes.
pub const FRAME: usize = 36;
/// First bytes of all frames. A reader searches for them to find the next frame after damaged
/// bytes.
pub const MAGIC: [u8; 3] = *b"SLG";
/// Version of the frames that are written and accepted.
pub const VERSION: u8 = 2;
/// Length of the encoding of one class of tasks, in bytes.
const CLASS: usize = 4;
/// Offset of the first class of tasks in a frame, in bytes.
const CLASSES_AT: usize = 12;
/// Offset of the checksum in a frame, in bytes.
const SUM_AT: usize = CLASSES_AT + TASKS * CLASS;

/// Frame of a guest's message, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Number of the sending vCPU within its guest, from 0.
    pub vcpu: u16,
    /// Sequence number of the frame, which grows with each frame of the same kind. Compare with
    /// [`Frame::is_after`].
    pub sequence: u32,
    /// Content of the frame.
    pub says: Says,
}

/// Content of a frame: the state of the guest's tasks, or I/O that is pending for the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// State of a guest's tasks in up to five classes, most urgent class first. An entry is `None`
    /// if its class has no task.
    Classes([Option<Class>; TASKS]),
    /// I/O that is pending for the guest.
    Pending {
        /// Number of pending items.
        items: u32,
        /// Number of the guest's own I/O requests since it started, such as packets sent.
        asked: u32,
    },
}

/// State of one class of tasks. The guest sorts its tasks into classes and reports one urgency for
/// each class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// Urgency of the class. A class is less urgent than the classes listed before it.
    pub urgency: Urgency,
    /// Number of runnable tasks, including the running task.
    pub runnable: u8,
    /// Number of blocked tasks.
    pub blocked: u8,
    /// True if an I/O completion has recently woken a task of the class.
    pub woken: bool,
}

/// Reason why bytes are rejected as a frame of a guest's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoFrame {
    /// The first bytes are not the magic bytes of a frame.
    Magic,
    /// The frame has a version that is not supported.
    Version(u8),
    /// The length field or the number of bytes is wrong.
    Length,
    /// A class of tasks is invalid. It has no tasks, or a `woken` byte other than 0 and 1, or it is
    /// at least as urgent as the class listed before it.
    Class,
    /// A byte that must be zero has another value.
    Rest,
    /// The checksum in the frame does not match the other bytes of the frame.
    Sum,
}

impl Frame {
    /// Encodes the frame as it is sent.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; FRAME] {
        let mut bytes = [0; FRAME];
        bytes[..3].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&[VERSION, 36]);
        bytes[6..8].copy_from_slice(&self.vcpu.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_le_bytes());
        match self.says {
            Says::Classes(classes) => {
                bytes[3] = b'T';
                let (places, _) = bytes[CLASSES_AT..SUM_AT].as_chunks_mut();
                places.iter_mut().zip(classes).for_each(|(place, class)| *place = written(class));
            }
            Says::Pending { items, asked } => {
                bytes[3] = b'P';
                bytes[12..16].copy_from_slice(&items.to_le_bytes());
                bytes[16..20].copy_from_slice(&asked.to_le_bytes());
            }
        }
        let sum = checksum(&bytes[..SUM_AT]);
        bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes a frame of a guest's message.
    ///
    /// # Errors
    /// If the bytes are not a valid frame. The error names the first check that failed.
    pub fn read(bytes: &[u8]) -> Result<Frame, NoFrame> {
        match bytes {
            [b'S', b'L', b'G', b'T' | b'P', version, ..] if *version != VERSION => {
                return Err(NoFrame::Version(*version));
            }
            [b'S', b'L', b'G', ..] => {}
            _ => return Err(NoFrame::Magic),
        }
        let bytes: &[u8; FRAME] = bytes.try_into().map_err(|_| NoFrame::Length)?;
        if usize::from(bytes[5]) != FRAME {
            return Err(NoFrame::Length);
        }
        let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        let says = match bytes[3] {
            b'T' => Says::Classes(classes(&bytes[CLASSES_AT..SUM_AT])?),
            b'P' if bytes[20..SUM_AT].iter().any(|&byte| byte != 0) => return Err(NoFrame::Rest),
            b'P' => Says::Pending { items: word(12), asked: word(16) },
            _ => return Err(NoFrame::Magic),
        };
        if word(SUM_AT) != checksum(&bytes[..SUM_AT]) {
            return Err(NoFrame::Sum);
        }
        let vcpu = u16::from_le_bytes([bytes[6], bytes[7]]);
        Ok(Frame { vcpu, sequence: word(8), says })
    }

    /// Returns true if `sequence` was assigned after `before`. Sequence numbers wrap, so a number
    /// counts as later if it is ahead by less than half of the range, and otherwise as earlier.
    #[must_use]
    pub const fn is_after(sequence: u32, before: u32) -> bool {
        let later = sequence.wrapping_sub(before);
        later > 0 && later <= u32::MAX / 2
    }
}

impl Says {
    /// Converts the content of a frame to the hint that a policy receives. `domain` is used only
    /// for pending I/O: it is the VM for which the I/O is pending.
    #[must_use]
    pub fn told(&self, domain: DomId) -> VcpuHint {
        match self {
            Says::Classes(classes) => VcpuHint::Tasks(tasks(classes)),
            &Says::Pending { items, asked } => {
                VcpuHint::Pending(Pending { items, asked, ..Pending::nothing(domain) })
            }
        }
    }

    /// Returns true if the frame claims precedence over ordinary work. The sender must repeat such
    /// a frame, or the claim expires.
    #[must_use]
    pub fn claims(&self) -> bool {
        match self {
            Says::Classes(classes) => {
                classes.iter().flatten().any(|class| class.urgency < Urgency::ORDINARY)
            }
            Says::Pending { items, .. } => *items > 0,
        }
    }
}

/// Computes the CRC-32 of IEEE 802.3. It detects every error confined to 32 consecutive bits, and
/// misses one in 2^32 of all other errors.
fn checksum(bytes: &[u8]) -> u32 {
    let next = |sum: u32, &byte: &u8| {
        let [low, ..] = sum.to_le_bytes();
        sum >> 8 ^ OF_BYTE[usize::from(low ^ byte)]
    };
    !bytes.iter().fold(u32::MAX, next)
}

/// CRC-32 remainder for each value of a byte.
const OF_BYTE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0_u32;
    while byte < 256 {
        let (mut sum, mut bit) = (byte, 0);
        while bit < 8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0xEDB8_8320 } else { sum >> 1 };
            bit += 1;
        }
        table[byte as usize] = sum;
        byte += 1;
    }
    table
};

/// Converts each class of tasks to one task, whose number is the index of the class.
fn tasks(classes: &[Option<Class>; TASKS]) -> Tasks {
    let mut tasks = Tasks::default();
    let numbered = (0..).map(TaskId::new).zip(classes);
    let there = || numbered.clone().filter_map(|(id, class)| class.map(|class| (id, class)));
    let task = |(id, class): (TaskId, Class)| Task { id, urgency: class.urgency };
    fill(&mut tasks.runnable, there().filter(|(_, class)| class.runnable > 0).map(task));
    fill(&mut tasks.blocked, there().filter(|(_, class)| class.blocked > 0).map(task));
    fill(&mut tasks.woken, there().filter(|(_, class)| class.woken).map(|(id, _)| id));
    tasks
}

/// Stores the first items of `all` in the elements of `places`, one in each element.
fn fill<T>(places: &mut [Option<T>; TASKS], all: impl Iterator<Item = T>) {
    places.iter_mut().zip(all).for_each(|(place, one)| *place = Some(one));
}

/// Encodes a class of tasks. `None` gives four zeros.
fn written(class: Option<Class>) -> [u8; CLASS] {
    class.map_or([0; CLASS], |class| {
        [class.urgency.0, class.runnable, class.blocked, u8::from(class.woken)]
    })
}

/// Decodes the classes of tasks in a frame.
fn classes(bytes: &[u8]) -> Result<[Option<Class>; TASKS], NoFrame> {
    let mut classes = [None; TASKS];
    let mut last = None;
    let (places, _) = bytes.as_chunks::<CLASS>();
    for (class, &place) in classes.iter_mut().zip(places) {
        if place == [0; CLASS] {
            continue;
        }
        let [urgency, runnable, blocked, woken] = place;
        let urgency = Urgency(urgency);
        let is_empty = runnable == 0 && blocked == 0;
        if is_empty || woken > 1 || last.is_some_and(|last| urgency <= last) {
            return Err(NoFrame::Class);
        }
        last = Some(urgency);
        *class = Some(Class { urgency, runnable, blocked, woken: woken == 1 });
    }
    Ok(classes)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn class(urgency: u8, runnable: u8, blocked: u8, woken: bool) -> Option<Class> {
        Some(Class { urgency: Urgency(urgency), runnable, blocked, woken })
    }

    const SERVER_AND_HOG: [u8; FRAME] = *b"SLGT\x02\x24\x02\x00\x04\x03\x02\x01\
        \x64\x00\x01\x01\x00\x00\x00\x00\x78\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\
        \xc9\xf4\x50\x7e";

    /// Encodes a blocked task at nice -20 that I/O has recently woken, and a running task at nice
    /// 0.
    #[test]
    fn agent_frame_of_two_urgency_classes_has_the_documented_bytes() {
        let classes = [class(100, 0, 1, true), None, class(120, 1, 0, false), None, None];
        let frame = Frame { vcpu: 2, sequence: 0x0102_0304, says: Says::Classes(classes) };
        assert_eq!(frame.to_bytes(), SERVER_AND_HOG);
        assert_eq!(Frame::read(&SERVER_AND_HOG), Ok(frame));
        let server = Task { id: TaskId::new(0), urgency: Urgency(100) };
        let hog = Task { id: TaskId::new(2), urgency: Urgency(120) };
        let expected = Tasks {
            runnable: [Some(hog), None, None, None, None],
            blocked: [Some(server), None, None, None, None],
            woken: [Some(server.id), None, None, None, None],
        };
        assert_eq!(frame.says.told(DomId::new(7)), VcpuHint::Tasks(expected));
        assert!(frame.says.claims());
        assert!(!Says::Classes([None, None, class(120, 1, 0, true), None, None]).claims());
    }

    #[test]
    fn pending_io_agent_frame_is_decoded_as_a_domain_hint() {
        let says = Says::Pending { items: 3, asked: 258 };
        let bytes = Frame { vcpu: 0, sequence: 1, says }.to_bytes();
        let mut expected = *b"SLGP\x02\x24\x00\x00\x01\x00\x00\x00\x03\x00\x00\x00\x02\x01\x00\x00\
            \x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\
            \x41\xa8\x1f\x68";
        assert_eq!(bytes, expected);
        let domain = DomId::new(7);
        let pending = Pending { domain, items: 3, asked: 258, tasks: [None; TASKS] };
        assert_eq!(says.told(domain), VcpuHint::Pending(pending));
        assert!(says.claims() && !Says::Pending { items: 0, asked: 9 }.claims());
        expected[31] = 1;
        assert_eq!(Frame::read(&expected), Err(NoFrame::Rest));
    }

    #[test]
    fn agent_frame_that_is_not_canonically_encoded_is_refused() {
        let with = |at: usize, byte: u8| {
            let mut bytes = SERVER_AND_HOG;
            bytes[at] = byte;
            Frame::read(&bytes)
        };
        for (at, byte, error) in [
            (0, b'X', NoFrame::Magic),
            (3, b'X', NoFrame::Magic),
            (4, 1, NoFrame::Version(1)),
            (4, 3, NoFrame::Version(3)),
            (5, 35, NoFrame::Length),
            (6, 3, NoFrame::Sum),
            (35, 0, NoFrame::Sum),
            (14, 0, NoFrame::Class),   // no task in the first class
            (15, 2, NoFrame::Class),   // `woken` is neither 0 nor 1
            (20, 100, NoFrame::Class), // as urgent as the first class
            (18, 1, NoFrame::Class),   // more urgent than the first class
        ] {
            assert_eq!(with(at, byte), Err(error), "byte {at} as {byte}");
        }
        assert_eq!(Frame::read(&SERVER_AND_HOG[..35]), Err(NoFrame::Length));
        assert_eq!(Frame::read(&[&SERVER_AND_HOG[..], &[0]].concat()), Err(NoFrame::Length));
        assert_eq!(Frame::read(b""), Err(NoFrame::Magic));
        assert_eq!(Frame::read(b"SLGX\x01"), Err(NoFrame::Length));
    }

    /// The checksum of `123456789` is the published check value of this CRC.
    #[test]
    fn agent_frame_checksum_equals_the_published_crc_check_value() {
        assert_eq!(checksum(b"123456789"), 0xCBF4_3926);
    }

    #[test]
    fn agent_frame_sequence_number_wraps_to_zero_after_its_maximum() {
        assert!(Frame::is_after(1, 0) && Frame::is_after(0, u32::MAX) && Frame::is_after(9, 2));
        assert!(!Frame::is_after(0, 0) && !Frame::is_after(0, 1) && !Frame::is_after(u32::MAX, 0));
    }

    proptest! {
        /// Arbitrary bytes are rejected, or are the canonical encoding of the frame read.
        #[test]
        fn arbitrary_bytes_are_read_as_agent_frame_only_if_canonical(
            rest in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..40),
                prop::collection::vec(any::<u8>(), FRAME),
            ],
            kind in prop::sample::select(b"TPX".to_vec()),
            (has_head, has_sum) in any::<(bool, bool)>(),
            small in any::<bool>(),
        ) {
            let mut bytes: Vec<u8> = rest;
            if small {
                // Otherwise hardly any class would be valid.
                bytes.iter_mut().skip(CLASSES_AT).for_each(|byte| *byte %= 2);
                bytes.iter_mut().skip(CLASSES_AT).step_by(4).enumerate().for_each(|(at, byte)| {
                    *byte = if at % 2 == 0 { 10 * u8::try_from(at).unwrap_or(0) } else { 0 };
                });
            }
            if has_head && bytes.len() > 5 {
                bytes[..3].copy_from_slice(&MAGIC);
                bytes[3..6].copy_from_slice(&[kind, VERSION, 36]);
            }
            if small && kind == b'P' && bytes.len() == FRAME {
                // Otherwise hardly any frame of pending I/O would be valid.
                bytes[20..SUM_AT].fill(0);
            }
            if has_sum && bytes.len() == FRAME {
                let sum = checksum(&bytes[..SUM_AT]);
                bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
            }
            if let Ok(frame) = Frame::read(&bytes) {
                prop_assert_eq!(&frame.to_bytes()[..], &bytes[..]);
                let _ = frame.says.told(DomId::new(0));
            }
        }

        /// An encoded frame decodes to itself.
        #[test]
        fn agent_frame_is_unchanged_if_encoded_and_decoded(
            vcpu in any::<u16>(),
            sequence in any::<u32>(),
            urgencies in prop::collection::btree_set(any::<u8>(), 5),
            counts in prop::array::uniform5((any::<bool>(), any::<u8>(), 1_u8.., any::<bool>())),
        ) {
            let mut urgencies = urgencies.into_iter();
            let classes = counts.map(|(is_there, runnable, blocked, woken)| {
                let urgency = urgencies.next().unwrap_or(0);
                class(urgency, runnable, blocked, woken).filter(|_| is_there)
            });
            let frame = Frame { vcpu, sequence, says: Says::Classes(classes) };
            prop_assert_eq!(Frame::read(&frame.to_bytes()), Ok(frame));
        }

        /// An encoded frame of pending I/O decodes to itself. It is rejected if a byte that must be
        /// zero has another value, or if the checksum is changed.
        #[test]
        fn pending_io_frame_is_unchanged_if_encoded_and_decoded(
            (vcpu, sequence, items, asked) in any::<(u16, u32, u32, u32)>(),
            (at, other) in (20..SUM_AT, 1_u8..),
        ) {
            let frame = Frame { vcpu, sequence, says: Says::Pending { items, asked } };
            let mut bytes = frame.to_bytes();
            prop_assert_eq!(Frame::read(&bytes), Ok(frame));
            bytes[at] = other;
            prop_assert_eq!(Frame::read(&bytes), Err(NoFrame::Rest));
            bytes[at] = 0;
            bytes[SUM_AT] ^= other;
            prop_assert_eq!(Frame::read(&bytes), Err(NoFrame::Sum));
        }
    }
}
