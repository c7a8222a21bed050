//! How urgent a task is, on one scale for all guests, whatever their systems call it.
//!
//! The scale and its three borders are ours: Kim, Kim, Jeon, Seo and Lee, 2008, section 3.3,
//! announce such a translation and do not say it. All division is that of whole numbers.

/// How urgent a task is, on one scale for all guests: less is more urgent, 0 the most. Below 100 it
/// is real-time work, from 140 on work for when nothing else wants the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Urgency(pub u8);

impl Urgency {
    /// Of work without a wish: a nice value of 0.
    pub const ORDINARY: Urgency = Urgency(120);
    /// Where time-sharing begins.
    const SHARED: u8 = 100;
    /// Where work for when nothing else wants the CPU begins.
    const IDLE: u8 = 140;

    /// Of a task of a scenario, where higher is more urgent.
    #[must_use]
    pub fn of_priority(priority: u8) -> Urgency {
        Urgency(u8::MAX - priority)
    }

    /// Of a task of Linux under `SCHED_FIFO` or `SCHED_RR`: its `sched_priority`, 1 to 99; none for
    /// others.
    #[must_use]
    pub fn of_linux_real_time(priority: u8) -> Option<Urgency> {
        (1..=99).contains(&priority).then(|| Urgency(99 - priority))
    }

    /// Of a task of Linux under `SCHED_OTHER` or `SCHED_BATCH`: its nice value, -20 to 19; none for
    /// others.
    #[must_use]
    pub fn of_linux_nice(nice: i8) -> Option<Urgency> {
        let steps = (-20..20).contains(&nice).then(|| nice.abs_diff(-20))?;
        Some(Urgency(Urgency::SHARED + steps))
    }

    /// Of a task of Linux under `SCHED_IDLE`.
    #[must_use]
    pub fn of_linux_idle() -> Urgency {
        Urgency(Urgency::IDLE)
    }

    /// Of a thread of FreeBSD 6 to 8, by the priority that its scheduler orders by: of interrupts,
    /// the kernel, real time, time-sharing and idle.
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

    /// Of a thread of Windows XP, by its priority, 0 to 31, where higher is more urgent: real-time
    /// from 16 on, variable from 1 on, and the thread that zeroes pages; none for others.
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

/// Where one of so many steps, less than all, comes to stand on a stretch of the scale.
fn spread(step: u8, steps: u8, stretch: u8) -> u8 {
    let place = u16::from(step) * u16::from(stretch) / u16::from(steps);
    u8::try_from(place).unwrap_or(stretch) // It is less than the stretch.
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn linux_orders_by_the_same_numbers() {
        let real_time = |priority| Urgency::of_linux_real_time(priority).map(|Urgency(u)| u);
        assert_eq!([99, 50, 1].map(real_time), [Some(0), Some(49), Some(98)]);
        assert_eq!([0, 100, 255].map(real_time), [None; 3]);
        let nice = |nice| Urgency::of_linux_nice(nice).map(|Urgency(u)| u);
        assert_eq!([-20, 0, 19].map(nice), [Some(100), Some(120), Some(139)]);
        assert_eq!([-128, -21, 20, 127].map(nice), [None; 4]);
        assert_eq!(Urgency::of_linux_idle(), Urgency(140));
    }

    #[test]
    fn freebsd_has_five_stretches() {
        let urgency = |priority| Urgency::of_freebsd(priority).0;
        let priorities = [0, 63, 64, 128, 159, 160, 192, 223, 224, 255];
        assert_eq!(priorities.map(urgency), [0, 24, 25, 50, 98, 100, 120, 139, 140, 149]);
    }

    #[test]
    fn windows_is_turned_round() {
        let urgency = |priority| Urgency::of_windows(priority).map(|Urgency(u)| u);
        let expected = [0, 43, 93, 100, 105, 118, 129, 137, 140].map(Some);
        assert_eq!([31, 24, 16, 15, 13, 8, 4, 1, 0].map(urgency), expected);
        assert_eq!([32, 255].map(urgency), [None; 2]);
    }

    /// What is more urgent for a system is not less so on the scale.
    #[test]
    fn no_order_is_turned_round() {
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
