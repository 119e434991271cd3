//! Shapes whose element count does not overflow.

use std::fmt;

use smallvec::SmallVec;

use crate::DataType;

/// A tensor's dimensions: none is negative, and their product fits in a signed 64-bit number.
///
/// The only constructor, [`Shape::new`], checks this, so the product of a `Shape`'s dimensions
/// never overflows.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape {
    dims: SmallVec<[i64; 4]>,
    /// The number of elements; 1 for a scalar, as the empty product.
    element_count: u64,
}

/// The reason why a list of dimensions is not a shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// A dimension is below zero.
    #[error("shape {dims} has a negative dimension")]
    Negative {
        /// The dimensions, printed as `[1,-1]`.
        dims: String,
    },
    /// The product of the dimensions does not fit.
    #[error("shape {dims} has more elements than fit a signed 64-bit number")]
    TooLarge {
        /// The dimensions, printed as `[1,-1]`.
        dims: String,
    },
}

impl Shape {
    /// Creates a shape from `dims` after checking them.
    ///
    /// # Errors
    ///
    /// [`ShapeError`] if a dimension is negative, or if the element count or the product of the
    /// non-zero dimensions exceeds `i64::MAX`.
    pub fn new(dims: &[i64]) -> Result<Self, ShapeError> {
        let mut count: u64 = 1;
        let mut has_zero = false;
        for &dim in dims {
            let Ok(dim) = u64::try_from(dim) else {
                return Err(ShapeError::Negative { dims: format_dims(dims) });
            };
            if dim == 0 {
                has_zero = true;
                continue;
            }
            count = count
                .checked_mul(dim)
                .filter(|&c| i64::try_from(c).is_ok())
                .ok_or_else(|| ShapeError::TooLarge { dims: format_dims(dims) })?;
        }
        let element_count = if has_zero { 0 } else { count };
        Ok(Self { dims: SmallVec::from_slice(dims), element_count })
    }

    /// The dimensions, outermost first.
    #[must_use]
    pub fn dims(&self) -> &[i64] {
        &self.dims
    }

    /// The number of dimensions; 0 for a scalar.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// The number of elements: the product of the dimensions, 1 for a scalar.
    #[must_use]
    pub fn element_count(&self) -> u64 {
        self.element_count
    }

    /// The size of a tensor with this shape and `datatype`; `None` if the type has no fixed size or
    /// the product overflows.
    #[must_use]
    pub fn byte_size(&self, datatype: DataType) -> Option<u64> {
        let size = u64::try_from(datatype.byte_size()?).ok()?;
        self.element_count.checked_mul(size).filter(|&bytes| i64::try_from(bytes).is_ok())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_dims(&self.dims))
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Formats dimensions as in Triton's messages: `[1,-1,3]`.
#[must_use]
pub(crate) fn format_dims(dims: &[i64]) -> String {
    let mut text = String::from("[");
    for (index, dim) in dims.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str(&dim.to_string());
    }
    text.push(']');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scalar_has_one_element() {
        let scalar = Shape::new(&[]).unwrap();
        assert_eq!((scalar.rank(), scalar.element_count()), (0, 1));
        assert_eq!(scalar.byte_size(DataType::Fp64), Some(8));
    }

    #[test]
    fn a_zero_dimension_empties_the_tensor() {
        assert_eq!(Shape::new(&[3, 0, 5]).unwrap().element_count(), 0);
    }

    #[test]
    fn overflow_and_negative_dimensions_are_refused() {
        for dims in [&[1 << 31, 1 << 31, 4][..], &[1 << 62, 4], &[i64::MAX, 2], &[1 << 62, 4, 0]] {
            assert!(matches!(Shape::new(dims), Err(ShapeError::TooLarge { .. })), "{dims:?}");
        }
        assert!(matches!(Shape::new(&[2, -1]), Err(ShapeError::Negative { .. })));
        assert!(Shape::new(&[i64::MAX]).is_ok());
        assert_eq!(Shape::new(&[i64::MAX]).unwrap().byte_size(DataType::Fp32), None);
    }
}
