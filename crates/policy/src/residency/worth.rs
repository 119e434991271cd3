//! The value of keeping a model in memory.
//!
//! GreedyDual-Size-Frequency: a model's worth is the time that its memory saves, which is the
//! number of its uses, times the duration of its load, divided by its share of the budget. The
//! inflation is added, which is the worth of the latest evicted model. Therefore a model that was
//! worth much and isn't used any more is evicted in the end.

/// The value of a model.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Worth {
    uses: f64,
    pub(crate) value: f64,
}

/// The state that all models share.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct WorthClock {
    inflation: f64,
}

impl WorthClock {
    /// Counts a use of a model.
    pub(crate) fn used(&self, worth: &mut Worth, load_ns: u64, share: f64) {
        worth.uses += 1.0;
        #[expect(clippy::cast_precision_loss, reason = "a value needs no exact time")]
        let load_ns = load_ns as f64;
        worth.value = self.inflation + worth.uses * load_ns / share.max(1e-9);
    }

    /// Counts the eviction of a model.
    pub(crate) fn evicted(&mut self, worth: &mut Worth) {
        self.inflation = self.inflation.max(worth.value);
        worth.uses = 0.0;
    }
}
