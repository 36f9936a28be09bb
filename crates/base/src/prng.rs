//! A small random number generator whose sequence a seed fixes for good.

/// SplitMix64: passes BigCrush, 8 bytes of state. Not for secrets.
#[derive(Clone, Debug, Hash)]
pub struct Prng(u64);

impl Prng {
    /// The generator that `seed` names.
    #[must_use]
    pub fn new(seed: u64) -> Prng {
        Prng(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`.
    ///
    /// # Panics
    /// If `bound` is 0: there is no such number.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no members");
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the high half of a 128-bit product fits in 64 bits")
    }

    /// True once in `one_in` on average.
    pub fn once_in(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    /// A non-zero 64-bit identity.
    pub fn id(&mut self) -> u64 {
        self.next_u64() | 1
    }
}
