//! How late the stops of a vCPU are, as far as it is a habit.

use slackline_units::Span;

/// A slice that lacks this is whole: a live machine, which counts CPU time and notes switches by
/// two clocks, can tell 5 us, and a stop may be late by a little less than ever before.
pub(in crate::policies::edf) const UNTOLD: Span = Span::from_us(3);

/// By how much stops were late.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::policies::edf) struct Stops {
    /// What was overrun in this period.
    pub(in crate::policies::edf) overran: Span,
    /// Whether it was awake when it had had all of its slice: then it was stopped, and did not stop
    /// by itself.
    pub(in crate::policies::edf) is_stopped: bool,
    /// Whether nothing was left of its slice from the start: then there is no stop.
    pub(in crate::policies::edf) is_paid_off: bool,
    /// The least of this block of periods, and of the one before.
    least: [Span; 2],
    /// How many periods there were: of the first block, or more and of this one.
    count: u8,
}

impl Stops {
    /// So many periods are a block, and before so many nothing is known: of stops that are late by
    /// anything between nothing and 10 us, 64 are all late by 1 us once in a thousand times.
    const BLOCK: u8 = 64;

    /// The slice of a period was used up.
    pub(in crate::policies::edf) fn learn(&mut self) {
        if self.count.is_multiple_of(Stops::BLOCK) {
            let before = if self.count == 0 { self.overran } else { self.least[0] };
            self.least = [self.overran, before];
            self.count = if self.count == 0 { 0 } else { Stops::BLOCK };
        }
        self.least[0] = self.least[0].min(self.overran);
        self.count += 1;
    }

    /// What they are late by at the least; nothing until there were enough of them to know.
    pub(in crate::policies::edf) fn habit(&self) -> Span {
        let are_known = self.count >= Stops::BLOCK;
        if are_known { self.least[0].min(self.least[1]) } else { Span::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many slices in turn were overrun by so many microseconds each.
    fn learn(stops: &mut Stops, slices: u8, overran_us: u64) {
        for _ in 0..slices {
            stops.overran = Span::from_us(overran_us);
            stops.learn();
        }
    }

    /// Of this block and the one before, and none before a block is whole.
    #[test]
    fn a_habit_is_the_least_of_two_blocks() {
        let mut stops = Stops::default();
        learn(&mut stops, 63, 7);
        assert_eq!(stops.habit(), Span::ZERO, "not known yet");
        learn(&mut stops, 1, 9);
        assert_eq!(stops.habit(), Span::from_us(7));
        learn(&mut stops, 1, 5);
        assert_eq!(stops.habit(), Span::from_us(5));
        learn(&mut stops, 63 + 64, 8);
        assert_eq!(stops.habit(), Span::from_us(5), "in the block before");
        learn(&mut stops, 1, 8);
        assert_eq!(stops.habit(), Span::from_us(8), "two blocks ago");
    }
}
