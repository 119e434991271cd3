//! The library's shapes, which are structures that are passed by value.

use std::slice;

use smallvec::SmallVec;

/// A shape with known sizes.
#[derive(Copy, Clone)]
#[repr(C)]
pub(super) struct OvShape {
    pub(super) rank: i64,
    pub(super) dims: *mut i64,
}

/// The bounds of a size or a rank.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct OvDimension {
    pub(super) min: i64,
    pub(super) max: i64,
}

/// A shape whose sizes may be variable.
#[derive(Copy, Clone)]
#[repr(C)]
pub(super) struct OvPartialShape {
    pub(super) rank: OvDimension,
    pub(super) dims: *mut OvDimension,
}

impl OvShape {
    /// A shape over borrowed sizes, which the library only reads.
    pub(super) fn borrowed(dims: &[i64]) -> Self {
        let rank = i64::try_from(dims.len()).unwrap_or(i64::MAX);
        Self { rank, dims: dims.as_ptr().cast_mut() }
    }

    /// # Safety
    ///
    /// The library must have stored the shape, and not freed it yet.
    pub(super) unsafe fn dims(&self) -> SmallVec<[i64; 6]> {
        let rank = usize::try_from(self.rank).unwrap_or(0);
        if self.dims.is_null() || rank == 0 {
            return SmallVec::new();
        }
        // SAFETY: the shape has this many sizes, by this function's own contract.
        SmallVec::from_slice(unsafe { slice::from_raw_parts(self.dims, rank) })
    }
}

impl OvDimension {
    /// A size; -1 means variable.
    pub(crate) const fn of(dim: i64) -> Self {
        if dim < 0 { Self { min: 0, max: -1 } } else { Self { min: dim, max: dim } }
    }

    pub(super) const fn size(self) -> i64 {
        if self.min == self.max { self.min } else { -1 }
    }
}

impl OvPartialShape {
    pub(super) const EMPTY: Self =
        Self { rank: OvDimension { min: 0, max: 0 }, dims: std::ptr::null_mut() };

    /// A shape over borrowed sizes, which the library only reads.
    pub(super) fn borrowed(dims: &[OvDimension]) -> Self {
        let rank = i64::try_from(dims.len()).unwrap_or(i64::MAX);
        Self { rank: OvDimension::of(rank), dims: dims.as_ptr().cast_mut() }
    }

    /// The bounds of the sizes; `None` if the number of dimensions is variable.
    ///
    /// # Safety
    ///
    /// The library must have stored the shape, and not freed it yet.
    pub(super) unsafe fn bounds(&self) -> Option<Vec<OvDimension>> {
        let rank = usize::try_from(self.rank.size()).ok()?;
        if self.dims.is_null() || rank == 0 {
            return Some(Vec::new());
        }
        // SAFETY: the shape has this many sizes, by this function's own contract.
        Some(unsafe { slice::from_raw_parts(self.dims, rank) }.to_vec())
    }
}
