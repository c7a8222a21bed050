//! Which kernel this is, for what it cannot be asked by trying.

use std::fs;
use std::io;

/// The first two numbers of a kernel's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The first number of `6.1.0`.
    pub major: u32,
    /// The second number of `6.1.0`.
    pub minor: u32,
}

impl Version {
    /// The oldest that is looked after: perf events note switches since 4.3, and 4.4 was kept up
    /// for long.
    pub const OLDEST: Version = Version { major: 4, minor: 4 };
    /// Perf events say of a thread that left its CPU whether it still wanted it.
    pub const TELLS_READINESS: Version = Version { major: 4, minor: 17 };

    /// From a release such as `6.18.44-cloud-amd64` or `6.1-rc3`.
    #[must_use]
    pub fn parse(release: &str) -> Option<Version> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        let mut next = || numbers.next()?.parse().ok();
        Some(Version { major: next()?, minor: next()? })
    }

    /// This host's.
    ///
    /// # Errors
    /// When procfs does not say.
    pub fn of_host() -> io::Result<Version> {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        Version::parse(&release).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        let version = |major, minor| Some(Version { major, minor });
        assert_eq!(Version::parse("6.18.44-fc-v669"), version(6, 18));
        assert_eq!(Version::parse("6.1-rc3"), version(6, 1));
        assert_eq!(Version::parse("5.15.0-1084-aws"), version(5, 15));
        assert_eq!(Version::parse("7.2+deb14-amd64"), version(7, 2));
        assert_eq!(Version::parse("mainline"), None);
        assert!(version(4, 9) < Some(Version::TELLS_READINESS));
        assert!(version(5, 4) > Some(Version::TELLS_READINESS));
    }
}
