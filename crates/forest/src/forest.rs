//! The forest: all trees in one array of nodes, breadth first, siblings beside each other.

mod build;

use crate::shape::Shape;
use crate::source::SourceTree;
use crate::special::Specials;
use crate::{ForestTask, Postprocessor, Precision, ReadError};

pub(crate) use build::ForestBuilder;

/// The bit of a node's feature that sends a missing value to the right.
pub(crate) const MISSING_RIGHT: u32 = 1 << 31;
/// The bit of a node's feature that marks a special test, whose number is in place of the threshold.
pub(crate) const SPECIAL: u32 = 1 << 30;
const FEATURE_BITS: u32 = SPECIAL - 1;

/// A node. The right child follows the left one. A leaf is its own left child, and its threshold
/// is one that no value reaches, so that a walk that has arrived stays where it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node {
    pub(crate) threshold: f32,
    feature: u32,
    pub(crate) left: u32,
    /// A leaf's value, or its place among those of its precision.
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

    /// 1 if a missing value goes to the right.
    #[inline]
    pub(crate) fn missing_right(self) -> u32 {
        self.feature >> 31
    }

    #[inline]
    pub(crate) fn is_leaf(self, place: u32) -> bool {
        self.left == place
    }
}

/// A tree's place among the nodes, and the outputs to which its leaves add.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tree {
    pub(crate) root: u32,
    pub(crate) depth: u32,
    pub(crate) has_specials: bool,
    /// The first output, the distance to the next and how many there are.
    pub(crate) first: usize,
    pub(crate) stride: usize,
    pub(crate) count: usize,
}

/// A tree ensemble, ready to predict.
#[derive(Debug, Clone)]
pub struct Forest {
    pub(crate) shape: Shape,
    pub(crate) trees: Vec<Tree>,
    pub(crate) nodes: Vec<Node>,
    /// The weight of the training rows that came to each node; NaN where the file has none.
    pub(crate) covers: Vec<f32>,
    pub(crate) singles: Vec<f32>,
    pub(crate) doubles: Vec<f64>,
    pub(crate) specials: Specials,
    /// The number of trees that add to each output.
    pub(crate) contributions: Vec<u32>,
}

impl Forest {
    /// Builds a forest of trees that a reader has found.
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

    /// The precision of leaves and sums.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.shape.precision
    }

    /// The number of values of a row.
    #[must_use]
    pub fn features(&self) -> usize {
        self.shape.features as usize
    }

    /// The number of trees.
    #[must_use]
    pub fn trees(&self) -> usize {
        self.trees.len()
    }

    /// The number of targets: more than 1 only for models that predict several numbers at once.
    #[must_use]
    pub fn targets(&self) -> usize {
        self.shape.classes.len()
    }

    /// The number of columns of each target: its classes, 1 for regression and for two classes.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.shape.columns()
    }

    /// The number of predicted values of a row: the columns of all targets.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.shape.outputs()
    }

    /// The transformation of sums.
    #[must_use]
    pub fn postprocessor(&self) -> Postprocessor {
        self.shape.postprocessor
    }

    /// Replaces the transformation of sums.
    pub fn set_postprocessor(&mut self, postprocessor: Postprocessor) {
        self.shape.postprocessor = postprocessor;
    }

    /// Tells whether leaves have a value for each class.
    #[must_use]
    pub fn has_leaf_vectors(&self) -> bool {
        self.trees.iter().any(|tree| tree.count > 1)
    }
}
