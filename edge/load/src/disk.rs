//! Temporary file that represents a disk. Reads bypass the page cache (`O_DIRECT`) if the file
//! system supports that.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Advice, OFlags, fadvise, fcntl_getfl, fcntl_setfl};

use crate::LoadError;

/// Size of the file in bytes. A reader that reaches the end of the file continues at its start.
const SIZE: u64 = 16 << 20;
/// Maximum number of bytes in a single read.
const CHUNK: u64 = 1 << 20;
/// Alignment in bytes of reads that bypass the page cache. It is at least the block size of any
/// disk.
const ALIGNED: u64 = 4096;

/// Temporary file for reads. It has no name, so it disappears when this process ends, for whatever
/// reason.
#[derive(Debug)]
pub(crate) struct Disk {
    file: File,
    /// True if reads bypass the page cache.
    pub(crate) is_direct: bool,
}

impl Disk {
    pub(crate) fn new(folder: &Path) -> Result<Disk, LoadError> {
        let cannot = |source| LoadError::NoFile { folder: folder.to_owned(), size: SIZE, source };
        let mut file = tempfile::tempfile_in(folder).map_err(cannot)?;
        let chunk = vec![0x5a; usize::try_from(CHUNK).expect("a chunk is a mebibyte")];
        for _ in 0..SIZE / CHUNK {
            file.write_all(&chunk).map_err(cannot)?;
        }
        file.sync_data().map_err(cannot)?;
        let direct = fcntl_getfl(&file).and_then(|it| fcntl_setfl(&file, it | OFlags::DIRECT));
        let mut disk = Disk { file, is_direct: direct.is_ok() };
        // Some file systems accept the flag but then refuse to read.
        if disk.is_direct && disk.read(&mut ReaderPosition::new(0), 1).is_err() {
            let indirect = |it| fcntl_setfl(&disk.file, it - OFlags::DIRECT);
            fcntl_getfl(&disk.file).and_then(indirect).map_err(|error| cannot(error.into()))?;
            disk.is_direct = false;
        }
        Ok(disk)
    }

    /// Reads `bytes` bytes from the reader's position, and advances the position.
    pub(crate) fn read(&self, place: &mut ReaderPosition, bytes: u64) -> Result<(), LoadError> {
        let mut left = bytes;
        while left > 0 {
            let length = left.min(CHUNK).min(SIZE - place.offset);
            let aligned = length.next_multiple_of(ALIGNED);
            let range = place.first..place.first + usize::try_from(aligned).expect("a mebibyte");
            let buffer = &mut place.buffer[range];
            if !self.is_direct {
                // If the page cache cannot be bypassed, the range is removed from it before the
                // read.
                let _ = fadvise(&self.file, place.offset, None, Advice::DontNeed);
            }
            let read = self.file.read_exact_at(buffer, place.offset);
            read.map_err(|source| LoadError::Disk { source })?;
            place.offset = (place.offset + aligned) % SIZE;
            left -= length;
        }
        Ok(())
    }
}

/// Position of one reader in the file, and its buffer.
#[derive(Debug)]
pub(crate) struct ReaderPosition {
    offset: u64,
    buffer: Vec<u8>,
    /// Offset in the buffer at which its aligned part begins.
    first: usize,
}

impl ReaderPosition {
    /// Creates the position of reader number `reader`. Different readers start at different
    /// positions.
    pub(crate) fn new(reader: u64) -> ReaderPosition {
        let size = usize::try_from(CHUNK + ALIGNED).expect("a mebibyte");
        let buffer = vec![0; size];
        let first = buffer.as_ptr().align_offset(usize::try_from(ALIGNED).expect("a page"));
        ReaderPosition { offset: reader * CHUNK % SIZE, buffer, first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_load_wraps_to_file_start_and_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::new(folder.path()).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let mut place = ReaderPosition::new(3);
        for bytes in [1, 4096, 5000, CHUNK, SIZE + 1, 3 * SIZE] {
            disk.read(&mut place, bytes).unwrap();
            assert!(place.offset < SIZE && place.offset.is_multiple_of(ALIGNED));
        }
    }

    #[test]
    fn error_about_missing_disk_load_folder_names_the_folder() {
        let error = Disk::new(Path::new("no such folder")).unwrap_err();
        assert!(error.to_string().contains("in no such folder: "), "{error}");
    }
}
