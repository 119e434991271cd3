//! The memory of models: estimated from files, measured at loads, and measured again while they
//! serve.
//!
//! Only the memory of the whole server, with its worker processes, can be measured. A change is
//! attributed to a model if no other cause is known: a load during which no other model was loaded
//! or unloaded, or an interval in which requests used a single model. All other changes are
//! attributed to none. The memory of GPUs is measured only at loads.
//!
//! A model counts with at least the size of its files until it has served [`SERVED_MIN`] requests in
//! attributed intervals. Mapped weights, for example, occupy memory only once a request has read
//! them. From then on, the measured memory counts even if it is smaller, down to [`BYTES_MIN`].

use std::collections::{BTreeMap, BTreeSet};

use galatea_policy::{MemoryByPool, MemoryPoolId, ModelId};

use super::memory::larger;

const HOST: MemoryPoolId = MemoryPoolId::HOST;

/// The number of requests after which a measured size replaces the size of the files.
const SERVED_MIN: u64 = 16;
/// The minimum number of bytes of a model with files of at least that size.
const BYTES_MIN: u64 = 1 << 20;
/// Changes of less than this number of bytes, and of less than a [`SHARE_MIN`]th, aren't reported.
const CHANGE_BYTES_MIN: u64 = 1 << 20;
const SHARE_MIN: u64 = 64;

/// The use of a model at a reading.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct UseReading {
    /// True if requests or sequences use the model now.
    pub(super) is_busy: bool,
    /// The number of requests that have ended since the model was loaded.
    pub(super) finished: u64,
}

/// The uses of models, by model.
pub(super) type Uses = BTreeMap<ModelId, UseReading>;

/// The known memory of a model.
#[derive(Clone, Debug, Default)]
struct ModelSize {
    /// The memory estimated from the sizes of the files.
    files: MemoryByPool,
    /// The growth of the memory during the latest load that was measured.
    load_growth: Option<MemoryByPool>,
    /// The growth of host memory since the load.
    growth: u64,
    /// That growth during an earlier stay, which is expected again.
    expected_growth: u64,
    /// The number of requests in attributed intervals since the load.
    served: u64,
    /// False if some interval since the load couldn't be attributed.
    is_complete: bool,
    /// True if the measured size counts even if it is smaller than the files.
    is_settled: bool,
    /// The bytes of host memory that were reported last.
    reported: u64,
}

impl ModelSize {
    fn bytes(&self) -> MemoryByPool {
        let Some(load_growth) = &self.load_growth else { return self.files.clone() };
        let files = self.files.of(HOST);
        let growth = self.growth.max(self.expected_growth);
        let measured = load_growth.of(HOST).saturating_add(growth);
        let least = if self.is_settled { files.min(BYTES_MIN) } else { files };
        larger(&self.files, load_growth).with(HOST, measured.max(least))
    }

    /// Returns true if the size differs enough from the reported one.
    fn has_changed(&self) -> bool {
        let bytes = self.bytes().of(HOST);
        let change = bytes.abs_diff(self.reported);
        change >= CHANGE_BYTES_MIN.max(bytes / SHARE_MIN)
    }

    fn serve_alone(&mut self, requests: u64) {
        self.served = self.served.saturating_add(requests);
        if self.is_complete && self.load_growth.is_some() && self.served >= SERVED_MIN {
            self.is_settled = true;
            // This stay shows the growth itself.
            self.expected_growth = 0;
        }
    }
}

/// The sizes of models.
#[derive(Debug, Default)]
pub(super) struct ModelSizes {
    models: BTreeMap<ModelId, ModelSize>,
    /// The memory and the uses at the latest reading; `None` if the next reading only begins an
    /// interval.
    latest: Option<u64>,
    uses: Uses,
    /// Memory that was attributed to models and has been freed since, while no single model was in
    /// use. Later growth up to this number is attributed to none, because it was counted before.
    freed: u64,
}

impl ModelSizes {
    /// Applies a load, and returns the bytes to count. `growth` is the growth of the memory during
    /// the load, if it was the only load or unload.
    pub(super) fn loaded(
        &mut self,
        model: &ModelId,
        files: MemoryByPool,
        growth: Option<MemoryByPool>,
    ) -> MemoryByPool {
        let size = self.models.entry(model.clone()).or_default();
        if size.files != files {
            // The model has changed.
            *size = ModelSize { files, ..ModelSize::default() };
        }
        if size.growth > 0 {
            size.expected_growth = size.growth;
        }
        if growth.is_some() {
            size.load_growth = growth;
        }
        (size.growth, size.served, size.is_complete) = (0, 0, true);
        let bytes = size.bytes();
        size.reported = bytes.of(HOST);
        bytes
    }

    /// Returns true if the memory of a model has been measured.
    pub(super) fn is_measured(&self, model: &str) -> bool {
        self.models.get(model).is_some_and(|size| size.load_growth.is_some())
    }

    /// Notes that a load or an unload changes the memory. The uses until the next reading can't be
    /// attributed.
    pub(super) fn interrupt(&mut self) {
        self.latest = None;
    }

    /// Begins an interval at the end of a load that was measured. Earlier uses can't be attributed.
    pub(super) fn begin(&mut self, total: u64, uses: Uses) {
        let used = self.used_since(&uses);
        self.set_incomplete(&used);
        (self.latest, self.uses) = (Some(total), uses);
    }

    fn set_incomplete(&mut self, used: &BTreeMap<ModelId, u64>) {
        for model in used.keys() {
            self.models.entry(model.clone()).or_default().is_complete = false;
        }
    }

    /// Returns true if models have been used since the latest reading, so that another reading is of
    /// use.
    pub(super) fn is_due(&self, uses: &Uses) -> bool {
        !self.used_since(uses).is_empty()
    }

    /// Applies a reading of the server's memory. Returns the models whose sizes have changed, with
    /// their bytes.
    pub(super) fn read(&mut self, total: u64, uses: Uses) -> Vec<(ModelId, MemoryByPool)> {
        let used = self.used_since(&uses);
        self.uses = uses;
        let latest = self.latest.replace(total);
        let mut one = used.iter();
        match (latest, one.next(), one.next()) {
            (Some(latest), Some((model, requests)), None) => {
                self.attribute(model, latest, total, *requests);
            }
            (Some(latest), None, _) => self.free(latest.saturating_sub(total)),
            (latest, _, _) => {
                self.free(latest.map_or(0, |latest| latest.saturating_sub(total)));
                self.set_incomplete(&used);
            }
        }
        self.report(used.into_keys().collect())
    }

    /// The models that were used since the latest reading, with the numbers of their requests.
    fn used_since(&self, uses: &Uses) -> BTreeMap<ModelId, u64> {
        let mut used = BTreeMap::new();
        for (model, reading) in uses {
            let before = self.uses.get(model).copied().unwrap_or_default();
            // A model that was loaded again begins at 0.
            let finished = reading.finished.checked_sub(before.finished);
            let finished = finished.unwrap_or(reading.finished);
            if finished > 0 || reading.is_busy || before.is_busy {
                used.insert(model.clone(), finished);
            }
        }
        used
    }

    /// Attributes a change of the memory to the only model in use.
    fn attribute(&mut self, model: &ModelId, latest: u64, total: u64, requests: u64) {
        let grown = total.saturating_sub(latest);
        let known = grown.min(self.freed);
        self.freed -= known;
        let size = self.models.entry(model.clone()).or_default();
        let shrunk = latest.saturating_sub(total);
        let own = shrunk.min(size.growth);
        size.growth = size.growth.saturating_add(grown - known) - own;
        size.serve_alone(requests);
        self.free(shrunk - own);
    }

    /// Notes freed memory that is attributed to no model.
    fn free(&mut self, bytes: u64) {
        let attributed = self.models.values().map(|size| size.growth);
        let attributed = attributed.fold(0, u64::saturating_add);
        self.freed = self.freed.saturating_add(bytes).min(attributed);
    }

    fn report(&mut self, used: BTreeSet<ModelId>) -> Vec<(ModelId, MemoryByPool)> {
        let mut changed = Vec::new();
        for model in used {
            let Some(size) = self.models.get_mut(&model) else { continue };
            if size.has_changed() {
                let bytes = size.bytes();
                size.reported = bytes.of(HOST);
                changed.push((model, bytes));
            }
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn uses(counts: &[(&str, u64)]) -> Uses {
        let one = |(name, finished): &(&str, u64)| {
            (ModelId::from(*name), UseReading { is_busy: false, finished: *finished })
        };
        counts.iter().map(one).collect()
    }

    fn loaded(sizes: &mut ModelSizes, model: &str, files: u64, growth: Option<u64>) -> u64 {
        let host = |mebibytes: u64| MemoryByPool::host(mebibytes * MIB);
        sizes.loaded(&model.into(), host(files), growth.map(host)).of(HOST) / MIB
    }

    /// Applies a reading in MiB, and returns the changed sizes in MiB.
    fn read(sizes: &mut ModelSizes, total: u64, counts: &[(&str, u64)]) -> Vec<(String, u64)> {
        let changed = sizes.read(total * MIB, uses(counts)).into_iter();
        changed.map(|(model, bytes)| (model.to_string(), bytes.of(HOST) / MIB)).collect()
    }

    fn changed(model: &str, bytes: u64) -> Vec<(String, u64)> {
        vec![(String::from(model), bytes)]
    }

    #[test]
    fn a_load_counts_the_larger_of_files_and_growth() {
        let mut sizes = ModelSizes::default();
        assert_eq!(loaded(&mut sizes, "a", 60, None), 60);
        assert!(!sizes.is_measured("a"));
        assert_eq!(loaded(&mut sizes, "a", 60, Some(130)), 130);
        assert!(sizes.is_measured("a"));
        // A load beside another one isn't measured, and the earlier measurement holds.
        assert_eq!(loaded(&mut sizes, "a", 60, None), 130);
        // The first load also paid for the runtime's library.
        assert_eq!(loaded(&mut sizes, "a", 60, Some(80)), 80);
        // Other files are another model.
        assert_eq!(loaded(&mut sizes, "a", 61, None), 61);
    }

    #[test]
    fn growth_belongs_to_the_only_model_in_use() {
        let mut sizes = ModelSizes::default();
        loaded(&mut sizes, "a", 10, Some(20));
        loaded(&mut sizes, "b", 10, Some(20));
        assert_eq!(read(&mut sizes, 100, &[("a", 0), ("b", 0)]), []);
        assert_eq!(read(&mut sizes, 130, &[("a", 1), ("b", 0)]), changed("a", 50));
        assert_eq!(read(&mut sizes, 170, &[("a", 2), ("b", 1)]), []);
        assert_eq!(read(&mut sizes, 175, &[("a", 2), ("b", 2)]), changed("b", 25));
        // A model without a request in the interval, but with one in execution, is in use.
        let mut busy = uses(&[("a", 2), ("b", 3)]);
        busy.get_mut("a").unwrap().is_busy = true;
        assert_eq!(sizes.read(200 * MIB, busy), []);
        assert_eq!(read(&mut sizes, 220, &[("a", 2), ("b", 4)]), []);
        assert_eq!(read(&mut sizes, 230, &[("a", 2), ("b", 5)]), changed("b", 35));
        // Small changes aren't reported, but add up.
        loaded(&mut sizes, "c", 10, Some(1_000));
        assert_eq!(read(&mut sizes, 240, &[("c", 1)]), []);
        assert_eq!(read(&mut sizes, 250, &[("c", 2)]), changed("c", 1_020));
        // The next load of a model expects the growth of its last stay.
        assert_eq!(loaded(&mut sizes, "b", 10, Some(22)), 37);
    }

    #[test]
    fn an_interval_with_a_load_is_not_attributed() {
        let mut sizes = ModelSizes::default();
        loaded(&mut sizes, "a", 10, Some(20));
        read(&mut sizes, 100, &[("a", 0)]);
        sizes.interrupt();
        assert_eq!(read(&mut sizes, 500, &[("a", 1)]), []);
        assert_eq!(read(&mut sizes, 510, &[("a", 2)]), changed("a", 30));
        // The interval after a measured load begins with it.
        sizes.interrupt();
        sizes.begin(700 * MIB, uses(&[("a", 3), ("b", 0)]));
        loaded(&mut sizes, "b", 60, Some(5));
        assert_eq!(read(&mut sizes, 710, &[("a", 3), ("b", 16)]), changed("b", 15));
        // The first model was used before the load, and that can't be attributed.
        assert_eq!(read(&mut sizes, 710, &[("a", 100), ("b", 16)]), []);
        assert!(sizes.models["a"].growth > 0 && !sizes.models["a"].is_settled);
    }

    #[test]
    fn freed_memory_is_not_counted_again() {
        let mut sizes = ModelSizes::default();
        loaded(&mut sizes, "a", 10, Some(20));
        loaded(&mut sizes, "b", 10, Some(20));
        read(&mut sizes, 100, &[]);
        assert_eq!(read(&mut sizes, 130, &[("a", 1)]), changed("a", 50));
        // The memory that the requests of one model left behind is freed while another serves.
        assert_eq!(read(&mut sizes, 100, &[("a", 1), ("b", 1)]), []);
        assert_eq!(read(&mut sizes, 130, &[("a", 2), ("b", 1)]), []);
        assert_eq!(read(&mut sizes, 140, &[("a", 3), ("b", 1)]), changed("a", 60));
        // Its own memory is freed.
        assert_eq!(read(&mut sizes, 105, &[("a", 4), ("b", 1)]), changed("a", 25));
        // Memory that was never attributed doesn't hide growth.
        assert_eq!(read(&mut sizes, 20, &[("a", 4), ("b", 2)]), []);
        assert_eq!(read(&mut sizes, 40, &[("a", 4), ("b", 3)]), changed("b", 35));
    }

    #[test]
    fn a_model_that_takes_less_than_its_files_counts_with_what_it_takes() {
        let mut sizes = ModelSizes::default();
        sizes.begin(100 * MIB, uses(&[("a", 0)]));
        assert_eq!(loaded(&mut sizes, "a", 60, Some(5)), 60);
        // A few requests may not have read all of the weights.
        assert_eq!(read(&mut sizes, 110, &[("a", 15)]), []);
        assert_eq!(read(&mut sizes, 112, &[("a", 16)]), changed("a", 17));
        // The next load expects the same growth, until the model has served.
        sizes.begin(100 * MIB, uses(&[("a", 0)]));
        assert_eq!(loaded(&mut sizes, "a", 60, Some(5)), 17);
        assert_eq!(read(&mut sizes, 103, &[("a", 40)]), changed("a", 8));
        assert_eq!(loaded(&mut sizes, "a", 60, None), 8);
    }

    #[test]
    fn memory_of_gpus_is_measured_at_loads() {
        let mut sizes = ModelSizes::default();
        let gpu = MemoryPoolId::gpu(1);
        let amounts = |host: u64, on_gpu: u64| MemoryByPool::host(host).with(gpu, on_gpu);
        let model = ModelId::from("a");
        assert_eq!(sizes.loaded(&model, amounts(60, 120), None), amounts(60, 120));
        let measured = sizes.loaded(&model, amounts(60, 120), Some(amounts(5, 300)));
        assert_eq!(measured, amounts(60, 300));
        assert_eq!(sizes.loaded(&model, amounts(60, 120), None), amounts(60, 300));
        // The files are a lower bound, because a backend may allocate at the first request.
        let measured = sizes.loaded(&model, amounts(60, 120), Some(amounts(70, 0)));
        assert_eq!(measured, amounts(70, 120));
    }

    #[test]
    fn a_model_that_served_beside_others_counts_with_its_files() {
        let mut sizes = ModelSizes::default();
        loaded(&mut sizes, "a", 60, Some(5));
        loaded(&mut sizes, "b", 60, Some(5));
        read(&mut sizes, 100, &[("a", 0), ("b", 0)]);
        read(&mut sizes, 120, &[("a", 1), ("b", 1)]);
        assert_eq!(read(&mut sizes, 120, &[("a", 100), ("b", 1)]), []);
        // An unmeasured load can't be settled.
        assert_eq!(loaded(&mut sizes, "c", 60, None), 60);
        assert_eq!(read(&mut sizes, 120, &[("a", 100), ("b", 1), ("c", 50)]), []);
        assert!(!sizes.is_due(&uses(&[("a", 100), ("b", 1), ("c", 50)])));
        assert!(sizes.is_due(&uses(&[("a", 101), ("b", 1), ("c", 50)])));
    }
}
