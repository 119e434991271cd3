//! The worth of keeping a model in memory.
//!
//! A model's worth is the load time that its memory saves: the frequency of its uses, times the
//! duration of its load, divided by its share of the budget. The frequency is a count in which
//! earlier uses lose weight. No half-life suits all traffic: a short one follows bursts, and a long
//! one tells a scan from frequent use. Therefore several *experts* with different half-lives judge
//! the same requests, and another one keeps what came first, which suits loops over more models
//! than fit. Each expert has a *shadow*: the set of models that would be resident if it decided
//! alone. The expert whose shadow has caused the least load time lately decides.

use super::pools::{MemoryBudget, MemoryByPool};

/// The half-lives of uses, as multiples of the number of known models.
const HALF_LIVES: [f64; 4] = [0.2, 2.0, 10.0, 100.0];
/// The number of experts. The last one keeps what came first.
pub(crate) const EXPERTS: usize = HALF_LIVES.len() + 1;
const KEEPS_FIRST: usize = HALF_LIVES.len();
/// The half-life of the load time that a shadow has caused, as a multiple of the number of known
/// models.
const MEMORY: f64 = 10.0;
/// The factor by which the load time of another expert must be smaller.
const MUCH_BETTER: f64 = 0.98;

/// The knowledge about the uses of a model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Worth {
    /// The number of the latest use of this model among the uses of all models.
    latest: u64,
    /// The counts of uses, by expert.
    counts: [f64; HALF_LIVES.len()],
    /// The logarithm of the load time per share of the budget.
    density: f64,
    load_ns: f64,
    /// The bytes with which the shadows count the model.
    bytes: MemoryByPool,
    is_in_shadow: [bool; EXPERTS],
}

impl Worth {
    pub(crate) fn is_in_shadow(&self, expert: usize) -> bool {
        self.is_in_shadow[expert]
    }

    /// Returns true if a shadow contains the model and has bytes of it in the pools.
    pub(crate) fn frees(&self, expert: usize, pools: &MemoryByPool) -> bool {
        self.is_in_shadow[expert] && self.bytes.overlaps(pools)
    }
}

/// The experts and their shadows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Experts {
    uses: u64,
    /// The number of known models.
    models: f64,
    /// The recent load time that each shadow has caused.
    load_ns: [f64; EXPERTS],
    used: [MemoryByPool; EXPERTS],
    chosen: usize,
}

impl Experts {
    /// Applies a changed number of known models.
    pub(crate) fn set_models(&mut self, models: usize) {
        #[expect(clippy::cast_precision_loss, reason = "there are few models")]
        let models = models.max(1) as f64;
        self.models = models;
    }

    /// Applies the bytes and the load time of a model.
    pub(crate) fn set_cost(
        &mut self,
        worth: &mut Worth,
        bytes: &MemoryByPool,
        load_ns: u64,
        budget: &MemoryBudget,
    ) {
        #[expect(clippy::cast_precision_loss, reason = "a worth needs no exact time")]
        let load_ns = load_ns.max(1) as f64;
        worth.load_ns = load_ns;
        worth.density = (load_ns / budget.share(bytes).max(1e-9)).log2();
        for (used, is_in) in self.used.iter_mut().zip(worth.is_in_shadow) {
            if is_in {
                used.subtract(&worth.bytes);
                used.add(bytes);
            }
        }
        worth.bytes.clone_from(bytes);
    }

    /// Removes a model from the shadows.
    pub(crate) fn forget(&mut self, worth: &mut Worth) {
        for (used, is_in) in self.used.iter_mut().zip(&mut worth.is_in_shadow) {
            if std::mem::take(is_in) {
                used.subtract(&worth.bytes);
            }
        }
    }

    /// Counts uses. Returns true if the model isn't in all shadows.
    pub(crate) fn count_uses(&mut self, worth: &mut Worth, uses: u64) -> bool {
        self.uses = self.uses.saturating_add(uses);
        #[expect(clippy::cast_precision_loss, reason = "a frequency needs no exact count")]
        let uses = uses as f64;
        let age = self.age(worth);
        for (count, half_life) in worth.counts.iter_mut().zip(HALF_LIVES) {
            *count = *count * (-age / (half_life * self.models)).exp2() + uses;
        }
        worth.latest = self.uses;
        let kept = (-uses / (MEMORY * self.models)).exp2();
        for (load_ns, is_in) in self.load_ns.iter_mut().zip(worth.is_in_shadow) {
            *load_ns = *load_ns * kept + if is_in { 0.0 } else { worth.load_ns };
        }
        worth.is_in_shadow.contains(&false)
    }

    /// Adds a model to a shadow and returns the pools that are then short of memory.
    pub(crate) fn add_to_shadow(
        &mut self,
        expert: usize,
        worth: &mut Worth,
        budget: &MemoryBudget,
    ) -> MemoryByPool {
        worth.is_in_shadow[expert] = true;
        self.used[expert].add(&worth.bytes);
        budget.excess(&self.used[expert])
    }

    /// Removes a model from a shadow and returns the pools that are still short of memory.
    pub(crate) fn remove_from_shadow(
        &mut self,
        expert: usize,
        worth: &mut Worth,
        budget: &MemoryBudget,
    ) -> MemoryByPool {
        worth.is_in_shadow[expert] = false;
        self.used[expert].subtract(&worth.bytes);
        budget.excess(&self.used[expert])
    }

    /// Lets the expert decide whose shadow has caused the least load time.
    pub(crate) fn choose(&mut self) {
        let by_load = |one: &usize, two: &usize| self.load_ns[*one].total_cmp(&self.load_ns[*two]);
        let best = (0..EXPERTS).min_by(by_load).unwrap_or_default();
        if self.load_ns[best] < self.load_ns[self.chosen] * MUCH_BETTER {
            self.chosen = best;
        }
    }

    /// Returns the worth of a model by the expert that decides.
    pub(crate) fn worth(&self, worth: &Worth) -> f64 {
        self.worth_by(self.chosen, worth)
    }

    /// Returns the worth of a model, as a logarithm.
    pub(crate) fn worth_by(&self, expert: usize, worth: &Worth) -> f64 {
        let age = self.age(worth);
        if expert == KEEPS_FIRST {
            return age;
        }
        let half_life = HALF_LIVES[expert] * self.models;
        worth.counts[expert].max(f64::MIN_POSITIVE).log2() - age / half_life + worth.density
    }

    fn age(&self, worth: &Worth) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "an age needs no exact count")]
        let age = (self.uses - worth.latest) as f64;
        age
    }
}
