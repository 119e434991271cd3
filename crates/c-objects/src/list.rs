//! Lists that C accesses with a 32-bit count and index.

/// The number of items.
#[must_use]
pub fn len_u32<T>(items: &[T]) -> u32 {
    u32::try_from(items.len()).unwrap_or(u32::MAX)
}

/// The item at `index`.
#[must_use]
pub fn get_u32<T>(items: &[T], index: u32) -> Option<&T> {
    items.get(usize::try_from(index).ok()?)
}
