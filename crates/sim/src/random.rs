//! Random numbers that are the same on every platform: xoshiro256** (Blackman, Vigna), with its
//! state derived from the seed by splitmix64.

/// A generator. The same seed produces the same numbers on all machines and in all versions.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// Creates a generator from a seed. The numbers of neighbouring seeds are independent.
    pub fn new(seed: u64) -> Self {
        let mut seed = seed;
        let mut draw = || {
            seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
            mix(seed)
        };
        Random { state: [draw(), draw(), draw(), draw()] }
    }

    /// Returns a random number.
    pub fn number(&mut self) -> u64 {
        let result = self.state[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = self.state[1] << 17;
        self.state[2] ^= self.state[0];
        self.state[3] ^= self.state[1];
        self.state[1] ^= self.state[2];
        self.state[0] ^= self.state[3];
        self.state[2] ^= shifted;
        self.state[3] = self.state[3].rotate_left(45);
        result
    }

    /// Returns a random number from `least` to `most`, inclusive.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        assert!(least <= most, "a range has at least one number");
        match (most - least).checked_add(1) {
            // The bias is below 2^-32 for the small ranges used here.
            Some(count) => least + self.number() % count,
            None => self.number(),
        }
    }

    /// Does the same as `between` for smaller numbers.
    pub fn between_u32(&mut self, least: u32, most: u32) -> u32 {
        u32::try_from(self.between(u64::from(least), u64::from(most)))
            .expect("it is at most `most`")
    }

    /// Returns a random number between 0 and 1, both exclusive.
    pub fn unit(&mut self) -> f64 {
        ((self.number() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// Returns true with this probability in percent.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.between(1, 100) <= chance
    }

    /// Returns a random choice. There must be at least one.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        let last = u64::try_from(choices.len() - 1).expect("few choices");
        choices[usize::try_from(self.between(0, last)).expect("an index")]
    }
}

/// Applies the output function of splitmix64: every bit of the result depends on every bit of the
/// number.
pub(crate) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_the_same_and_in_range() {
        // The published first outputs of splitmix64 for seed 0.
        assert_eq!(mix(0x9E37_79B9_7F4A_7C15), 0xE220_A839_7B1D_CDAF);
        let mut random = Random::new(7);
        let mut seen = [false; 6];
        for _ in 0..200 {
            let number = random.between(2, 5);
            assert!((2..=5).contains(&number));
            seen[usize::try_from(number).unwrap()] = true;
        }
        assert_eq!(seen, [false, false, true, true, true, true]);
        assert_eq!(random.between(3, 3), 3);
        assert_ne!(Random::new(1).number(), Random::new(2).number());
    }
}
