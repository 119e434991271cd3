//! Bytes by memory pool, and the budgets of pools.

/// A pool of memory with a budget of its own.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MemoryPoolId(pub u16);

impl MemoryPoolId {
    /// The memory of the host.
    pub const HOST: Self = Self(0);

    /// Returns the memory pool of a GPU.
    #[must_use]
    pub const fn gpu(ordinal: u16) -> Self {
        Self(ordinal.saturating_add(1))
    }

    const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The number of bytes in each pool. A pool that isn't set has 0.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemoryByPool(Vec<u64>);

impl MemoryByPool {
    /// Creates an amount of host memory.
    #[must_use]
    pub fn host(bytes: u64) -> Self {
        Self::default().with(MemoryPoolId::HOST, bytes)
    }

    /// Returns the amounts with a different number of bytes in one pool.
    #[must_use]
    pub fn with(mut self, pool: MemoryPoolId, bytes: u64) -> Self {
        if self.0.len() <= pool.index() {
            self.0.resize(pool.index() + 1, 0);
        }
        self.0[pool.index()] = bytes;
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
        self
    }

    /// Returns the number of bytes in a pool.
    #[must_use]
    pub fn of(&self, pool: MemoryPoolId) -> u64 {
        self.0.get(pool.index()).copied().unwrap_or(0)
    }

    /// Returns the pools that have bytes.
    pub fn iter(&self) -> impl Iterator<Item = (MemoryPoolId, u64)> + '_ {
        let pools = (0..=u16::MAX).map(MemoryPoolId).zip(self.0.iter().copied());
        pools.filter(|(_, bytes)| *bytes > 0)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (bytes, more) in self.0.iter_mut().zip(&other.0) {
            *bytes = bytes.saturating_add(*more);
        }
    }

    /// Subtracts the amounts, down to 0 in each pool.
    pub(crate) fn subtract(&mut self, other: &Self) {
        for (bytes, less) in self.0.iter_mut().zip(&other.0) {
            *bytes = bytes.saturating_sub(*less);
        }
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.0.iter().all(|bytes| *bytes == 0)
    }

    /// Returns true if both have bytes in the same pool.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(one, two)| *one > 0 && *two > 0)
    }
}

/// The maximum number of bytes of resident models in each pool. A pool without a limit is
/// unlimited.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemoryBudget(Vec<Option<u64>>);

impl MemoryBudget {
    /// Creates a budget that limits host memory.
    #[must_use]
    pub fn host(bytes: u64) -> Self {
        Self::default().with(MemoryPoolId::HOST, bytes)
    }

    /// Returns the budget with a limit for a pool.
    #[must_use]
    pub fn with(mut self, pool: MemoryPoolId, bytes: u64) -> Self {
        if self.0.len() <= pool.index() {
            self.0.resize(pool.index() + 1, None);
        }
        self.0[pool.index()] = Some(bytes);
        self
    }

    /// Returns the limit of a pool, if it has one.
    #[must_use]
    pub fn limit(&self, pool: MemoryPoolId) -> Option<u64> {
        self.0.get(pool.index()).copied().flatten()
    }

    /// Returns the bytes by which the amounts exceed the budget, in each pool.
    pub(crate) fn excess(&self, amounts: &MemoryByPool) -> MemoryByPool {
        let over = |(pool, bytes): (MemoryPoolId, u64)| {
            self.limit(pool).map_or(0, |limit| bytes.saturating_sub(limit))
        };
        let mut excess = MemoryByPool(vec![0; amounts.0.len()]);
        for (pool, bytes) in amounts.iter() {
            excess.0[pool.index()] = over((pool, bytes));
        }
        excess
    }

    /// Returns the largest share of a limit that the amounts take.
    pub(crate) fn share(&self, amounts: &MemoryByPool) -> f64 {
        let share = |(pool, bytes)| {
            #[expect(clippy::cast_precision_loss, reason = "a share needs no exact bytes")]
            self.limit(pool).map_or(0.0, |limit| bytes as f64 / limit.max(1) as f64)
        };
        amounts.iter().map(share).fold(0.0, f64::max)
    }
}
