//! A connection's next step.

/// One step of a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A good request.
    Good,
    /// A hostile request; the number selects one.
    Hostile(u64),
    /// A good request that is only partly sent; the size of the part is in thousandths.
    Disconnect(u64),
}

/// A seeded sequence of actions and random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Mix {
    state: u64,
    hostile_percent: u64,
    disconnect_percent: u64,
}

impl Mix {
    pub(crate) const fn new(seed: u64, hostile_percent: u64, disconnect_percent: u64) -> Self {
        Self { state: seed, hostile_percent, disconnect_percent }
    }

    /// The next action.
    pub(crate) fn action(&mut self) -> Action {
        let percent = self.number() % 100;
        if percent < self.hostile_percent {
            return Action::Hostile(self.number());
        }
        if percent < self.hostile_percent + self.disconnect_percent {
            return Action::Disconnect(self.number() % 1001);
        }
        Action::Good
    }

    /// A random number from splitmix64.
    pub(crate) const fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_have_their_shares_and_repeat_with_the_seed() {
        let actions = |seed| {
            let mut mix = Mix::new(seed, 10, 20);
            (0..10_000).map(|_| mix.action()).collect::<Vec<_>>()
        };
        let drawn = actions(7);
        assert_eq!(drawn, actions(7));
        let hostile = drawn.iter().filter(|action| matches!(action, Action::Hostile(_))).count();
        let cut = drawn.iter().filter(|action| matches!(action, Action::Disconnect(_))).count();
        assert!((900..1100).contains(&hostile), "{hostile}");
        assert!((1900..2100).contains(&cut), "{cut}");
    }
}
