//! The measured memory: of the server with its worker processes, and of GPUs.

use std::collections::BTreeMap;
use std::sync::Arc;

use galatea_policy::{MemoryBudget, MemoryByPool, MemoryPoolId};

/// The options for models that are loaded on demand.
#[derive(Clone)]
pub struct DemandOptions {
    /// The maximum memory of all models together, in bytes.
    pub memory_bytes: u64,
    /// The memory of the server and of its worker processes.
    pub memory: ProcessMemory,
    /// The GPUs whose memory is limited, by number.
    pub gpus: BTreeMap<u16, GpuMemory>,
}

/// The memory of the server and of the processes that its backends started.
#[derive(Clone)]
pub struct ProcessMemory {
    /// Measures the memory, without that of requests and responses. `None` if that isn't possible.
    pub measure: Arc<dyn Fn() -> Option<u64> + Send + Sync>,
    /// Returns free memory to the system.
    pub release: Arc<dyn Fn() + Send + Sync>,
}

/// The memory of a GPU.
#[derive(Clone)]
pub struct GpuMemory {
    /// The GPU's unique identifier.
    pub uuid: String,
    /// The maximum memory of all models together on the GPU, in bytes.
    pub limit_bytes: u64,
    /// Measures the memory in use, by any process. `None` if that isn't possible.
    pub measure: Arc<dyn Fn() -> Option<u64> + Send + Sync>,
}

impl DemandOptions {
    pub(super) fn budget(&self) -> MemoryBudget {
        let host = MemoryBudget::host(self.memory_bytes);
        self.gpus.iter().fold(host, |budget, (gpu, memory)| {
            budget.with(MemoryPoolId::gpu(*gpu), memory.limit_bytes)
        })
    }

    /// Measures the memory after free memory was returned to the system. A GPU that can't be
    /// measured counts as unused.
    pub(super) fn measure(&self) -> Option<MemoryByPool> {
        (self.memory.release)();
        let host = MemoryByPool::host((self.memory.measure)()?);
        Some(self.gpus.iter().fold(host, |bytes, (gpu, memory)| {
            bytes.with(MemoryPoolId::gpu(*gpu), (memory.measure)().unwrap_or(0))
        }))
    }
}

/// The bytes by which `after` exceeds `before` in each pool.
pub(super) fn growth(before: &MemoryByPool, after: &MemoryByPool) -> MemoryByPool {
    let pools = after.iter();
    pools.fold(MemoryByPool::default(), |growth, (pool, bytes)| {
        growth.with(pool, bytes.saturating_sub(before.of(pool)))
    })
}

/// The larger number of bytes in each pool.
pub(super) fn larger(one: &MemoryByPool, other: &MemoryByPool) -> MemoryByPool {
    other.iter().fold(one.clone(), |larger, (pool, bytes)| {
        let bytes = bytes.max(larger.of(pool));
        larger.with(pool, bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_measured_separately() {
        let amounts = |host, gpu| MemoryByPool::host(host).with(MemoryPoolId::gpu(1), gpu);
        assert_eq!(growth(&amounts(10, 20), &amounts(15, 18)), amounts(5, 0));
        assert_eq!(growth(&MemoryByPool::host(9), &amounts(8, 7)), amounts(0, 7));
        assert_eq!(larger(&amounts(10, 20), &amounts(15, 18)), amounts(15, 20));
        assert_eq!(larger(&MemoryByPool::host(9), &amounts(8, 7)), amounts(9, 7));
    }

    #[test]
    fn budgets_and_measurements_have_the_pools_of_gpus() {
        let gpu = |limit_bytes, used: Option<u64>| GpuMemory {
            uuid: String::from("GPU-0"),
            limit_bytes,
            measure: Arc::new(move || used),
        };
        let memory = ProcessMemory { measure: Arc::new(|| Some(7)), release: Arc::new(|| {}) };
        let gpus = BTreeMap::from([(0, gpu(50, Some(9))), (2, gpu(60, None))]);
        let options = DemandOptions { memory_bytes: 100, memory, gpus };
        let pool = MemoryPoolId::gpu;
        let budget = MemoryBudget::host(100).with(pool(0), 50).with(pool(2), 60);
        assert_eq!(options.budget(), budget);
        assert_eq!(options.measure(), Some(MemoryByPool::host(7).with(pool(0), 9)));
    }
}
