//! Reads one tree, which has a list for each field with an entry for each node.

use super::Cursor;
use crate::source::{SourceKind, SourceNode, SourceTree, Test};
use crate::{Precision, ReadError};

/// Node and comparison kinds.
const LEAF: u8 = 0;
const CATEGORICAL: u8 = 2;

/// The fields of a tree.
pub(super) struct Fields {
    pub(super) kinds: Vec<u8>,
    pub(super) left: Vec<i32>,
    pub(super) right: Vec<i32>,
    pub(super) features: Vec<i32>,
    pub(super) default_left: Vec<u8>,
    pub(super) leaves: Vec<f64>,
    pub(super) thresholds: Vec<f64>,
    pub(super) comparisons: Vec<u8>,
    /// Nonzero if the listed categories lead to the right child.
    pub(super) is_right_list: Vec<u8>,
    pub(super) vectors: Vec<f64>,
    pub(super) vector_firsts: Vec<u64>,
    pub(super) vector_ends: Vec<u64>,
    pub(super) categories: Vec<u32>,
    pub(super) category_firsts: Vec<u64>,
    pub(super) category_ends: Vec<u64>,
    pub(super) counts: Vec<u64>,
    pub(super) has_count: Vec<u8>,
    pub(super) hessians: Vec<f64>,
    pub(super) has_hessian: Vec<u8>,
}

/// Reads a tree, without the target and the class that it belongs to.
pub(super) fn read(cursor: &mut Cursor<'_>, precision: Precision) -> Result<SourceTree, ReadError> {
    let nodes = cursor.i32()?;
    let _has_categories = cursor.byte()?;
    let fields = Fields {
        kinds: cursor.take_list(1)?.to_vec(),
        left: cursor.list(i32::from_le_bytes)?,
        right: cursor.list(i32::from_le_bytes)?,
        features: cursor.list(i32::from_le_bytes)?,
        default_left: cursor.take_list(1)?.to_vec(),
        leaves: cursor.reals(precision)?,
        thresholds: cursor.reals(precision)?,
        comparisons: cursor.take_list(1)?.to_vec(),
        is_right_list: cursor.take_list(1)?.to_vec(),
        vectors: cursor.reals(precision)?,
        vector_firsts: cursor.list(u64::from_le_bytes)?,
        vector_ends: cursor.list(u64::from_le_bytes)?,
        categories: cursor.list(u32::from_le_bytes)?,
        category_firsts: cursor.list(u64::from_le_bytes)?,
        category_ends: cursor.list(u64::from_le_bytes)?,
        counts: cursor.list(u64::from_le_bytes)?,
        has_count: cursor.take_list(1)?.to_vec(),
        hessians: cursor.list(f64::from_le_bytes)?,
        has_hessian: cursor.take_list(1)?.to_vec(),
    };
    let _gains = cursor.take_list(8)?;
    let _has_gain = cursor.take_list(1)?;
    cursor.skip_extensions()?;
    cursor.skip_extensions()?;
    if usize::try_from(nodes) != Ok(fields.kinds.len()) {
        return Err(cursor.error("a tree has not as many nodes as it says"));
    }
    fields.into_tree()
}

impl Fields {
    pub(super) fn into_tree(mut self) -> Result<SourceTree, ReadError> {
        let mut tree = SourceTree {
            values: std::mem::take(&mut self.vectors),
            categories: std::mem::take(&mut self.categories),
            ..SourceTree::default()
        };
        tree.nodes.reserve_exact(self.kinds.len());
        for number in 0..self.kinds.len() {
            tree.nodes.push(SourceNode { kind: self.kind(number)?, cover: self.cover(number) });
        }
        Ok(tree)
    }

    fn kind(&self, number: usize) -> Result<SourceKind, ReadError> {
        // A node without children is a leaf, whatever its kind.
        let left = at(&self.left, number)?;
        if at(&self.kinds, number)? == LEAF || left < 0 {
            return self.leaf(number);
        }
        let right = index(at(&self.right, number)?);
        let (left, missing_left) = (index(left), at(&self.default_left, number)? != 0);
        let test = self.test(number)?;
        let is_swapped =
            matches!(test, Test::OneOf { .. }) && at(&self.is_right_list, number)? != 0;
        Ok(SourceKind::Split {
            feature: u32::try_from(at(&self.features, number)?).unwrap_or(u32::MAX),
            test,
            missing_left: missing_left != is_swapped,
            left: if is_swapped { right } else { left },
            right: if is_swapped { left } else { right },
        })
    }

    fn leaf(&self, number: usize) -> Result<SourceKind, ReadError> {
        let range = range(&self.vector_firsts, &self.vector_ends, number);
        match range {
            Some((first, count)) if count > 0 => Ok(SourceKind::Vector { first, count }),
            _ => Ok(SourceKind::Leaf(at(&self.leaves, number)?)),
        }
    }

    fn test(&self, number: usize) -> Result<Test, ReadError> {
        if at(&self.kinds, number)? == CATEGORICAL {
            let range = range(&self.category_firsts, &self.category_ends, number);
            let (first, count) = range.ok_or_else(short)?;
            return Ok(Test::OneOf { first, count });
        }
        let threshold = at(&self.thresholds, number)?;
        Ok(match at(&self.comparisons, number)? {
            1 => Test::Equal(threshold),
            2 => Test::Less(threshold),
            3 => Test::LessOrEqual(threshold),
            4 => Test::Greater(threshold),
            5 => Test::GreaterOrEqual(threshold),
            other => {
                return Err(ReadError::malformed(format!(
                    "Unrecognized comparison operator {other}"
                )));
            }
        })
    }

    /// The weight of the rows, or their number if the weight is missing, as in Triton.
    #[expect(clippy::cast_precision_loss, reason = "statistics need no more than 53 bits")]
    fn cover(&self, number: usize) -> Option<f64> {
        if self.has_hessian.get(number).is_some_and(|has| *has != 0) {
            return self.hessians.get(number).copied();
        }
        let has_count = self.has_count.get(number).is_some_and(|has| *has != 0);
        has_count.then(|| self.counts.get(number).map(|count| *count as f64)).flatten()
    }
}

/// A node's range in a list.
fn range(firsts: &[u64], ends: &[u64], number: usize) -> Option<(usize, usize)> {
    let first = firsts.get(number).copied()?;
    let count = ends.get(number)?.checked_sub(first)?;
    Some((usize::try_from(first).ok()?, usize::try_from(count).ok()?))
}

fn index(child: i32) -> usize {
    usize::try_from(child).unwrap_or(usize::MAX)
}

fn at<T: Copy>(list: &[T], number: usize) -> Result<T, ReadError> {
    list.get(number).copied().ok_or_else(short)
}

fn short() -> ReadError {
    ReadError::malformed("a list of a tree in the treelite checkpoint is too short")
}
