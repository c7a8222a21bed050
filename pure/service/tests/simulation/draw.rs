//! Random number generator. The same seed always yields the same numbers.

/// Random number generator SplitMix64 of Steele, Lea and Flood.
#[derive(Clone, Debug)]
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) const fn new(seed: u64) -> Draw {
        Draw(seed)
    }

    pub(crate) const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a random number below `most`. The numbers are slightly biased towards small ones,
    /// which does not matter here.
    pub(crate) const fn below(&mut self, most: u64) -> u64 {
        self.bits() % most
    }

    /// Returns true with a probability of `chance` percent.
    pub(crate) const fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub(crate) fn one_of<T: Clone>(&mut self, from: &[T]) -> T {
        let index =
            usize::try_from(self.below(from.len() as u64)).expect("an index below the length fits");
        from[index].clone()
    }
}
