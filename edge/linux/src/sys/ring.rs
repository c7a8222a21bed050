//! Shared memory through which the kernel delivers a perf event's records.
//!
//! The memory has one page of counters, followed by data pages, whose number is a power of two. The
//! kernel writes records at `head` and never overwrites records after `tail`. The reader reads from
//! `tail` up to `head` and then moves `tail`. Both counters only increase.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::malformed;

/// Offsets of the two counters in the kernel's `perf_event_mmap_page`, in bytes.
const HEAD: usize = 1024;
const TAIL: usize = 1032;

/// Number of words of each record that are kept. The largest record is that of the tracepoint of
/// context switches: it has the time, the size and 64 bytes of data.
const WORDS: usize = 10;

/// One record of a ring, without its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Type of the record, one of `PERF_RECORD_…`.
    pub kind: u32,
    /// Flags of the record, bits of `PERF_RECORD_MISC_…`.
    pub flags: u16,
    /// First words after the header. Words beyond the end of the record are zero.
    pub words: [u64; WORDS],
}

impl Record {
    /// Number of bytes after the header that a [`Record`] holds.
    pub const KEPT: usize = 8 * WORDS;

    /// Returns the half word at the offset `at`, in bytes after the header. `None` if `at` is not a
    /// multiple of 4, or not below [`Record::KEPT`].
    #[must_use]
    pub fn half(&self, at: usize) -> Option<u32> {
        let [a, b, c, d, e, f, g, h] = self.words.get(at / 8)?.to_ne_bytes();
        match at % 8 {
            0 => Some(u32::from_ne_bytes([a, b, c, d])),
            4 => Some(u32::from_ne_bytes([e, f, g, h])),
            _ => None,
        }
    }
}

/// The mapped ring of one perf event. The mapping outlives the event's descriptor.
#[derive(Debug)]
pub struct Ring {
    base: NonNull<u8>,
    page: usize,
    data: usize,
}

// SAFETY: the mapping belongs to this value alone and is the same for every thread of the process.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps a ring with space for `bytes` bytes of records, but at least one page, for an event.
    ///
    /// # Errors
    /// `EPERM` if an ordinary user's rings exceed `kernel.perf_event_mlock_kb`. `EINVAL` if `bytes`
    /// is more than a page and not a power of two, or the event has a ring of another size.
    pub fn map(event: BorrowedFd<'_>, bytes: usize) -> io::Result<Ring> {
        let page = page_size()?;
        let data = bytes.max(page);
        let length = data.checked_add(page).ok_or_else(malformed)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so the new mapping overlaps no existing mapping.
        let base = unsafe { mmap(ptr::null_mut(), length, access, MapFlags::SHARED, event, 0) }?;
        let base = NonNull::new(base.cast()).ok_or_else(malformed)?;
        Ok(Ring { base, page, data })
    }

    /// Returns the size of the space for records, in bytes.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.data
    }

    /// Returns true if the ring has records that were not read yet.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        self.counter(HEAD).load(Ordering::Acquire) != self.counter(TAIL).load(Ordering::Relaxed)
    }

    /// Passes all records in the ring to `each`, oldest first, and frees their space for the
    /// kernel. Returns the size of that space in bytes.
    ///
    /// # Errors
    /// `InvalidData` if the kernel's counters or sizes are inconsistent. The remaining records are
    /// then dropped.
    pub fn take(&mut self, mut each: impl FnMut(Record)) -> io::Result<usize> {
        // Acquire: the records below `head` are written before `head` is.
        let head = self.counter(HEAD).load(Ordering::Acquire);
        let mut tail = self.counter(TAIL).load(Ordering::Relaxed);
        let taken = usize::try_from(head.wrapping_sub(tail)).map_err(|_| malformed());
        let mut result = taken;
        while tail != head {
            let (size, record) = self.record(tail);
            if size < 8 || size % 8 != 0 || head.wrapping_sub(tail) < size {
                result = Err(malformed());
                tail = head;
                break;
            }
            each(record);
            tail = tail.wrapping_add(size);
        }
        // Release: the kernel may write over the records only after they were read.
        self.counter(TAIL).store(tail, Ordering::Release);
        result
    }

    /// Reads the record at `tail`. Returns the size in bytes, including the header, and the record.
    fn record(&self, tail: u64) -> (u64, Record) {
        // The header is { type: u32, misc: u16, size: u16 }.
        let header = self.word(tail).to_ne_bytes();
        let [k0, k1, k2, k3, f0, f1, s0, s1] = header;
        let size = u64::from(u16::from_ne_bytes([s0, s1]));
        let mut words = [0; WORDS];
        for (word, at) in words.iter_mut().zip((8..size).step_by(8)) {
            *word = self.word(tail.wrapping_add(at));
        }
        let kind = u32::from_ne_bytes([k0, k1, k2, k3]);
        (size, Record { kind, flags: u16::from_ne_bytes([f0, f1]), words })
    }

    /// Returns the word at position `at` in the stream of all bytes ever written. Records consist
    /// of whole words, so no word wraps around the end of the ring.
    fn word(&self, at: u64) -> u64 {
        let mask = self.data as u64 - 8;
        let offset = usize::try_from(at & mask).expect("an offset is below the size of the ring");
        // SAFETY: the mask keeps `offset` word-aligned and at least a word below the end of the
        // data pages. These pages lie behind the first page and are mapped as long as `self` lives.
        // Volatile because the kernel writes here.
        unsafe { self.base.add(self.page + offset).cast::<u64>().read_volatile() }
    }

    fn counter(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: both offsets are aligned and inside the first page, which is mapped and writable
        // as long as `self` lives. The kernel uses these words atomically too.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast().as_ptr()) }
    }
}

fn page_size() -> io::Result<usize> {
    // SAFETY: the call takes a number and returns a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).map_err(|_| io::Error::last_os_error())
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: address and length are those of the whole mapping, and nothing borrows from it
        // any more. The call cannot fail for a whole mapping, so its result is ignored.
        let _ = unsafe { munmap(self.base.cast().as_ptr(), self.page + self.data) };
    }
}
