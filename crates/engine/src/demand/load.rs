//! A load on demand, and the measurement of its cost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use galatea_control::{LoadParameters, ResidencyChangeKind};
use galatea_infer::Status;
use galatea_policy::{LoadMeasurement, MemoryByPool, MemoryPoolId, ModelId, ResidencyEvent};

use super::orders::brought_bytes;
use super::sizes::Uses;
use super::{Demand, memory, threads};

/// The assumed duration of a first load without its files.
const LOAD_BASE: Duration = Duration::from_millis(100);
/// The assumed rate at which a first load reads files, in bytes per second.
const LOAD_BYTES_PER_SECOND: u64 = 200_000_000;

/// The duration of a load that hasn't been measured yet.
pub(super) fn estimated_ns(bytes: u64) -> u64 {
    let reading = u128::from(bytes) * 1_000_000_000 / u128::from(LOAD_BYTES_PER_SECOND);
    let total = LOAD_BASE.as_nanos() + reading;
    u64::try_from(total).unwrap_or(u64::MAX)
}

impl Demand {
    /// Loads a model on a thread of its own.
    pub(super) fn begin_load(
        self: &Arc<Self>,
        model: ModelId,
        parameters: LoadParameters,
        is_alone: bool,
    ) {
        let (demand, name) = (self.clone(), model.clone());
        let run = move || demand.load(&name, parameters, is_alone);
        if let Err(status) = threads::spawn("galatea-load", run) {
            self.end_load(&model, Err(status));
        }
    }

    fn load(self: &Arc<Self>, model: &ModelId, parameters: LoadParameters, is_alone: bool) {
        let brought = brought_bytes(&parameters);
        // Free memory that the allocator keeps would hide a part of the growth.
        let before = is_alone.then(|| self.options.measure()).flatten();
        let start = Instant::now();
        let loaded = self.manager.load_evictable(model, parameters);
        let took = start.elapsed();
        let loaded = loaded.and_then(|()| {
            // An unload by a client may have overtaken the load.
            self.registry.snapshot().find(model, None).map(drop)
        });
        if let Err(status) = loaded {
            // A failed model would otherwise count against the server's readiness.
            let _ = self.manager.unload_evicted(model);
            return self.end_load(model, Err(status));
        }
        let reading = before.and_then(|before| {
            let after = self.options.measure()?;
            let growth = memory::growth(&before, &after);
            Some(LoadReading {
                growth,
                total: after.of(MemoryPoolId::HOST),
                uses: self.request_uses(),
            })
        });
        let files = brought.unwrap_or_else(|| self.estimate(model));
        let measured = MeasuredLoad { files, reading, took };
        self.end_load(model, Ok(measured));
    }

    fn end_load(self: &Arc<Self>, model: &ModelId, result: Result<MeasuredLoad, Status>) {
        let mut state = self.state.lock("end a load");
        let was_alone = state.end_load(model);
        let event = match result {
            Ok(measured) => {
                state.errors.remove(model);
                let growth = measured.reading.filter(|_| was_alone).map(|reading| {
                    state.sizes.begin(reading.total, reading.uses);
                    reading.growth
                });
                let bytes = state.sizes.loaded(model, measured.files, growth);
                let host = bytes.of(MemoryPoolId::HOST);
                state.journal.add(self.now(), model, ResidencyChangeKind::Loaded, host, "");
                let load_ns = u64::try_from(measured.took.as_nanos()).unwrap_or(u64::MAX);
                ResidencyEvent::Loaded(model.clone(), LoadMeasurement { bytes, load_ns })
            }
            Err(status) => {
                state.counts.failed_loads += 1;
                let (kind, reason) = (ResidencyChangeKind::LoadFailed, status.message());
                state.journal.add(self.now(), model, kind, 0, reason);
                state.errors.insert(model.clone(), status);
                ResidencyEvent::LoadFailed(model.clone())
            }
        };
        let effects = self.step_locked(&mut state, event);
        drop(state);
        self.perform(effects);
    }
}

/// The cost of a load.
struct MeasuredLoad {
    /// The memory estimated from the sizes of the model's files.
    files: MemoryByPool,
    /// `None` if the memory wasn't measured.
    reading: Option<LoadReading>,
    took: Duration,
}

/// The memory at the end of a load.
struct LoadReading {
    /// The growth during the load.
    growth: MemoryByPool,
    /// The memory of the server and its worker processes, in bytes.
    total: u64,
    uses: Uses,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_grows_with_the_files() {
        assert_eq!(estimated_ns(0), 100_000_000);
        assert_eq!(estimated_ns(LOAD_BYTES_PER_SECOND), 1_100_000_000);
        assert_eq!(estimated_ns(u64::MAX), u64::MAX);
    }
}
