//! The forest: all trees are stored breadth first in one array of nodes, with siblings next to each
//! other.

mod build;

use crate::shape::Shape;
use crate::source::SourceTree;
use crate::special::Specials;
use crate::{ForestTask, Postprocessor, Precision, ReadError};

pub(crate) use build::ForestBuilder;

/// The bit in a node's feature that sends missing values to the right.
pub(crate) const MISSING_RIGHT: u32 = 1 << 31;
/// The bit in a node's feature that marks a special test. The test's number is stored in place of
/// the threshold.
pub(crate) const SPECIAL: u32 = 1 << 30;
const FEATURE_BITS: u32 = SPECIAL - 1;

/// A node. The right child follows the left one. A leaf is its own left child and has a threshold
/// that no value reaches, so a walk that has arrived at a leaf stays there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node {
    pub(crate) threshold: f32,
    feature: u32,
    pub(crate) left: u32,
    /// A leaf's value, or the value's index in the list for the forest's precision.
    pub(crate) leaf: u32,
}

impl Node {
    #[inline]
    pub(crate) fn feature(self) -> usize {
        (self.feature & FEATURE_BITS) as usize
    }

    #[inline]
    pub(crate) fn is_special(self) -> bool {
        self.feature & SPECIAL != 0
    }

    /// 1 if missing values go to the right, otherwise 0.
    #[inline]
    pub(crate) fn missing_right(self) -> u32 {
        self.feature >> 31
    }

    #[inline]
    pub(crate) fn is_leaf(self, place: u32) -> bool {
        self.left == place
    }
}

/// A tree's position in the node array, and the outputs that its leaves contribute to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tree {
    pub(crate) root: u32,
    pub(crate) depth: u32,
    pub(crate) has_specials: bool,
    /// The first output, the distance between outputs, and the number of outputs.
    pub(crate) first: usize,
    pub(crate) stride: usize,
    pub(crate) count: usize,
}

/// A tree ensemble that is ready for predictions.
#[derive(Debug, Clone)]
pub struct Forest {
    pub(crate) shape: Shape,
    pub(crate) trees: Vec<Tree>,
    pub(crate) nodes: Vec<Node>,
    /// The weight of the training rows that reached each node; NaN if the file doesn't specify it.
    pub(crate) covers: Vec<f32>,
    pub(crate) singles: Vec<f32>,
    pub(crate) doubles: Vec<f64>,
    pub(crate) specials: Specials,
    /// The number of trees that contribute to each output.
    pub(crate) contributions: Vec<u32>,
}

impl Forest {
    /// Builds a forest from the trees that a reader produces.
    pub(crate) fn new(
        shape: Shape,
        trees: impl IntoIterator<Item = Result<SourceTree, ReadError>>,
    ) -> Result<Self, ReadError> {
        let mut builder = ForestBuilder::new(shape)?;
        for tree in trees {
            builder.add(&tree?)?;
        }
        Ok(builder.finish())
    }

    /// The purpose for which the model was trained.
    #[must_use]
    pub fn task(&self) -> ForestTask {
        self.shape.task
    }

    /// The precision of leaf values and sums.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.shape.precision
    }

    /// The number of features per row.
    #[must_use]
    pub fn feature_count(&self) -> usize {
        self.shape.features as usize
    }

    /// The number of trees.
    #[must_use]
    pub fn tree_count(&self) -> usize {
        self.trees.len()
    }

    /// The number of targets. It exceeds 1 only if the model predicts several numbers at once.
    #[must_use]
    pub fn target_count(&self) -> usize {
        self.shape.classes.len()
    }

    /// The number of columns per target: the number of classes, or 1 for regression and binary
    /// classification.
    #[must_use]
    pub fn columns_per_target(&self) -> usize {
        self.shape.columns()
    }

    /// The number of predicted values per row: the columns of all targets.
    #[must_use]
    pub fn outputs_per_row(&self) -> usize {
        self.shape.outputs()
    }

    /// The transformation that is applied to the sums.
    #[must_use]
    pub fn postprocessor(&self) -> Postprocessor {
        self.shape.postprocessor
    }

    /// Replaces the transformation that is applied to the sums.
    pub fn set_postprocessor(&mut self, postprocessor: Postprocessor) {
        self.shape.postprocessor = postprocessor;
    }

    /// Returns true if each leaf has a value for every class.
    #[must_use]
    pub fn has_leaf_vectors(&self) -> bool {
        self.trees.iter().any(|tree| tree.count > 1)
    }
}
