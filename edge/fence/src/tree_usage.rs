//! CPU time of a whole process tree.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use slackline_units::Span;

/// Counter of the CPU time that a whole process tree has used, in microseconds. The counter
/// includes the CPU time of threads that have ended.
#[derive(Debug)]
pub struct TreeUsage(pub(super) File);

impl TreeUsage {
    /// Reads the CPU time. The kernel counts each thread's CPU time up to the last context switch
    /// of the thread.
    ///
    /// # Errors
    /// If the cgroup no longer exists, or the file cannot be read.
    pub fn read(&self) -> io::Result<Span> {
        // The first three lines have a number of at most 20 digits each.
        let mut text = [0; 128];
        let length = self.0.read_at(&mut text, 0)?;
        let text = std::str::from_utf8(&text[..length]).ok();
        let used = text.and_then(|text| text.lines().next()?.strip_prefix("usage_usec "));
        let used = used.and_then(|number| number.parse().ok());
        used.map(Span::from_us).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}
