//! Urgency of tasks on one scale for all guests, independent of the priorities of their operating
//! systems.
//!
//! The scale and its three ranges are ours. Kim, Kim, Jeon, Seo and Lee, 2008, section 3.3, mention
//! such a translation but do not define it. All divisions round down.

/// Urgency of a task on one scale for all guests: 0 is the most urgent. Values below 100 are for
/// real-time work, values from 100 to 139 for time-sharing work, and values from 140 on for
/// idle-class work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Urgency(pub u8);

impl Urgency {
    /// Urgency of ordinary work: a Linux task at nice 0.
    pub const ORDINARY: Urgency = Urgency(120);
    /// Most urgent value of time-sharing work.
    const SHARED: u8 = 100;
    /// Most urgent value of idle-class work.
    const IDLE: u8 = 140;

    /// Converts the priority of a task in a scenario, where a higher priority is more urgent, to
    /// the common scale.
    #[must_use]
    pub fn of_priority(priority: u8) -> Urgency {
        Urgency(u8::MAX - priority)
    }

    /// Converts the `sched_priority` of a Linux task under `SCHED_FIFO` or `SCHED_RR`, 1 to 99.
    /// `None` for other values.
    #[must_use]
    pub fn of_linux_real_time(priority: u8) -> Option<Urgency> {
        (1..=99).contains(&priority).then(|| Urgency(99 - priority))
    }

    /// Converts the nice value of a Linux task under `SCHED_OTHER` or `SCHED_BATCH`, -20 to 19.
    /// `None` for other values.
    #[must_use]
    pub fn of_linux_nice(nice: i8) -> Option<Urgency> {
        let steps = (-20..20).contains(&nice).then(|| nice.abs_diff(-20))?;
        Some(Urgency(Urgency::SHARED + steps))
    }

    /// Returns the urgency of a Linux task under `SCHED_IDLE`.
    #[must_use]
    pub fn of_linux_idle() -> Urgency {
        Urgency(Urgency::IDLE)
    }

    /// Converts the priority of a thread of FreeBSD 6 to 8. Its scheduler orders interrupt, kernel,
    /// real-time, time-sharing and idle threads by this priority.
    #[must_use]
    pub fn of_freebsd(priority: u8) -> Urgency {
        let (first, count, from, to) = match priority {
            0..=63 => (0, 64, 0, 25),
            64..=127 => (64, 64, 25, 50),
            128..=159 => (128, 32, 50, Urgency::SHARED),
            160..=223 => (160, 64, Urgency::SHARED, Urgency::IDLE),
            224..=255 => (224, 32, Urgency::IDLE, Urgency::IDLE + 10),
        };
        Urgency(from + spread(priority - first, count, to - from))
    }

    /// Converts the priority of a thread of Windows XP, where a higher priority is more urgent.
    /// Real-time threads have priority 16 to 31, and variable-priority threads 1 to 15. The thread
    /// that zeroes pages has priority 0. `None` for values above 31.
    #[must_use]
    pub fn of_windows(priority: u8) -> Option<Urgency> {
        let urgency = match priority {
            0 => Urgency::IDLE,
            1..=15 => Urgency::SHARED + spread(15 - priority, 15, Urgency::IDLE - Urgency::SHARED),
            16..=31 => spread(31 - priority, 16, Urgency::SHARED),
            _ => return None,
        };
        Some(Urgency(urgency))
    }
}

/// Maps step `step` of `steps` to a range of `stretch` values: returns `step × stretch / steps`.
fn spread(step: u8, steps: u8, stretch: u8) -> u8 {
    let place = u16::from(step) * u16::from(stretch) / u16::from(steps);
    u8::try_from(place).unwrap_or(stretch) // `place` is less than `stretch`, so it fits.
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn linux_real_time_priorities_are_more_urgent_than_nice_values() {
        let real_time = |priority| Urgency::of_linux_real_time(priority).map(|Urgency(u)| u);
        assert_eq!([99, 50, 1].map(real_time), [Some(0), Some(49), Some(98)]);
        assert_eq!([0, 100, 255].map(real_time), [None; 3]);
        let nice = |nice| Urgency::of_linux_nice(nice).map(|Urgency(u)| u);
        assert_eq!([-20, 0, 19].map(nice), [Some(100), Some(120), Some(139)]);
        assert_eq!([-128, -21, 20, 127].map(nice), [None; 4]);
        assert_eq!(Urgency::of_linux_idle(), Urgency(140));
    }

    #[test]
    fn freebsd_priorities_map_to_urgencies() {
        let urgency = |priority| Urgency::of_freebsd(priority).0;
        let priorities = [0, 63, 64, 128, 159, 160, 192, 223, 224, 255];
        assert_eq!(priorities.map(urgency), [0, 24, 25, 50, 98, 100, 120, 139, 140, 149]);
    }

    #[test]
    fn windows_priorities_map_to_urgencies() {
        let urgency = |priority| Urgency::of_windows(priority).map(|Urgency(u)| u);
        let expected = [0, 43, 93, 100, 105, 118, 129, 137, 140].map(Some);
        assert_eq!([31, 24, 16, 15, 13, 8, 4, 1, 0].map(urgency), expected);
        assert_eq!([32, 255].map(urgency), [None; 2]);
    }

    /// If an operating system considers task A more urgent than task B, then A is at least as
    /// urgent as B on the common scale.
    #[test]
    fn urgencies_preserve_the_order_of_priorities_of_each_operating_system() {
        let freebsd: Vec<Urgency> = (0..=255).map(Urgency::of_freebsd).collect();
        let windows: Vec<Urgency> = (0..32).rev().filter_map(Urgency::of_windows).collect();
        let real_time = (0..=255).rev().filter_map(Urgency::of_linux_real_time);
        let nice = (-128..=127).filter_map(Urgency::of_linux_nice);
        let linux: Vec<Urgency> = real_time.chain(nice).collect();
        let ours: Vec<Urgency> = (0..=255).rev().map(Urgency::of_priority).collect();
        assert_eq!([freebsd.len(), windows.len(), linux.len(), ours.len()], [256, 32, 139, 256]);
        for urgencies in [freebsd, windows, linux, ours] {
            assert!(urgencies.is_sorted(), "{urgencies:?}");
        }
    }
}
