//! Version of the kernel. A program needs it for features that it cannot detect by trying them.

use std::fs;
use std::io;

/// Version of a kernel, as its first two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion {
    /// First number, such as 6 in `6.1.0`.
    pub major: u32,
    /// Second number, such as 1 in `6.1.0`.
    pub minor: u32,
}

impl KernelVersion {
    /// Oldest supported version. Its perf events record context switches, which the kernel can do
    /// since 4.3. Linux 4.4 was maintained for many years.
    pub const OLDEST: KernelVersion = KernelVersion { major: 4, minor: 4 };
    /// First version whose perf events show whether a thread that left its CPU is still runnable.
    pub const TELLS_READINESS: KernelVersion = KernelVersion { major: 4, minor: 17 };

    /// Parses a release such as `6.18.44-cloud-amd64` or `6.1-rc3`. `None` if it does not begin
    /// with two numbers.
    #[must_use]
    pub fn parse(release: &str) -> Option<KernelVersion> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        let mut next = || numbers.next()?.parse().ok();
        Some(KernelVersion { major: next()?, minor: next()? })
    }

    /// Returns the version of this host's kernel.
    ///
    /// # Errors
    /// If procfs cannot be read.
    pub fn of_host() -> io::Result<KernelVersion> {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        KernelVersion::parse(&release).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_are_compared_as_numbers_and_not_as_text() {
        let version = |major, minor| Some(KernelVersion { major, minor });
        assert_eq!(KernelVersion::parse("6.18.44-fc-v669"), version(6, 18));
        assert_eq!(KernelVersion::parse("6.1-rc3"), version(6, 1));
        assert_eq!(KernelVersion::parse("5.15.0-1084-aws"), version(5, 15));
        assert_eq!(KernelVersion::parse("7.2+deb14-amd64"), version(7, 2));
        assert_eq!(KernelVersion::parse("mainline"), None);
        assert!(version(4, 9) < Some(KernelVersion::TELLS_READINESS));
        assert!(version(5, 4) > Some(KernelVersion::TELLS_READINESS));
    }
}
