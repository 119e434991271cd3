//! Converts the trees of a file to the nodes of a forest.

use std::collections::VecDeque;

use super::{FEATURE_BITS, Forest, MISSING_RIGHT, Node, SPECIAL, Tree};
use crate::shape::Shape;
use crate::source::{SourceKind, SourceNode, SourceTree, Test};
use crate::special::Specials;
use crate::threshold::{AtLeast, NEVER};
use crate::{Precision, ReadError};

/// The maximum number of nodes in a forest.
const NODES_MAX: usize = 1 << 31;

/// A forest under construction.
pub(crate) struct ForestBuilder {
    forest: Forest,
}

/// A node whose position is reserved but not filled in yet: its number in the file, its position,
/// and its depth.
type QueuedNode = (usize, usize, u32);

impl ForestBuilder {
    pub(crate) fn new(shape: Shape) -> Result<Self, ReadError> {
        let shape = shape.checked()?;
        let contributions = vec![0; shape.outputs()];
        let forest = Forest {
            shape,
            trees: Vec::new(),
            nodes: Vec::new(),
            covers: Vec::new(),
            singles: Vec::new(),
            doubles: Vec::new(),
            specials: Specials::default(),
            contributions,
        };
        Ok(Self { forest })
    }

    /// Adds a tree. The nodes must form a tree: no node may be reached twice.
    pub(crate) fn add(&mut self, source: &SourceTree) -> Result<(), ReadError> {
        let mut tree = self.outputs_of(source)?;
        let root = self.forest.nodes.len();
        tree.root = place(root)?;
        self.push_empty(1)?;
        let mut is_reached = vec![false; source.nodes.len()];
        let mut waiting: VecDeque<QueuedNode> = VecDeque::from([(0, root, 0)]);
        while let Some((number, place, depth)) = waiting.pop_front() {
            let node = reach(source, &mut is_reached, number)?;
            tree.depth = tree.depth.max(depth);
            #[expect(clippy::cast_possible_truncation, reason = "statistics of 32 bits suffice")]
            let cover = node.cover.map_or(f32::NAN, |cover| cover as f32);
            self.forest.covers[place] = cover;
            match &node.kind {
                SourceKind::Leaf(value) => self.set_leaf(place, tree, &[*value])?,
                SourceKind::Vector { first, count } => {
                    let values = slice(&source.values, *first, *count)?;
                    self.set_leaf(place, tree, values)?;
                }
                SourceKind::Split { feature, test, missing_left, left, right } => {
                    let children = self.forest.nodes.len();
                    self.push_empty(2)?;
                    let is_swapped =
                        self.set_split(place, children, *feature, test, *missing_left, source)?;
                    tree.has_specials |= self.forest.nodes[place].is_special();
                    let (left, right) = if is_swapped { (*right, *left) } else { (*left, *right) };
                    waiting.push_back((left, children, depth + 1));
                    waiting.push_back((right, children + 1, depth + 1));
                }
            }
        }
        self.forest.trees.push(tree);
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Forest {
        let forest = &mut self.forest;
        forest.nodes.shrink_to_fit();
        forest.covers.shrink_to_fit();
        self.forest
    }

    /// Determines the outputs that a tree contributes to, and counts the contributions for
    /// averaging.
    fn outputs_of(&mut self, source: &SourceTree) -> Result<Tree, ReadError> {
        let targets = self.forest.target_count();
        let columns = self.forest.columns_per_target();
        let within = |value: Option<u32>, end: usize| value.is_none_or(|it| (it as usize) < end);
        if !within(source.target, targets) || !within(source.class, columns) {
            return Err(ReadError::malformed("a tree belongs to an output that does not exist"));
        }
        let target = source.target.map(|target| target as usize);
        let class = source.class.map(|class| class as usize);
        let (first, stride, count) = match (target, class) {
            (None, None) => (0, 1, targets * columns),
            (None, Some(class)) => (class, columns, targets),
            (Some(target), None) => (target * columns, 1, columns),
            (Some(target), Some(class)) => (target * columns + class, 1, 1),
        };
        for index in 0..count {
            self.forest.contributions[first + index * stride] += 1;
        }
        Ok(Tree { root: 0, depth: 0, has_specials: false, first, stride, count })
    }

    fn push_empty(&mut self, count: usize) -> Result<(), ReadError> {
        let length = self.forest.nodes.len() + count;
        if length > NODES_MAX {
            return Err(ReadError::unsupported(format!("more than {NODES_MAX} nodes")));
        }
        self.forest.nodes.resize(length, Node { threshold: NEVER, feature: 0, left: 0, leaf: 0 });
        self.forest.covers.resize(length, f32::NAN);
        Ok(())
    }

    #[expect(clippy::cast_possible_truncation, reason = "the model has this precision")]
    fn set_leaf(&mut self, at: usize, tree: Tree, values: &[f64]) -> Result<(), ReadError> {
        if values.len() != tree.count {
            return Err(ReadError::malformed(format!(
                "a leaf has {} values, expected {}",
                values.len(),
                tree.count
            )));
        }
        let forest = &mut self.forest;
        let leaf = match (forest.shape.precision, values) {
            (Precision::Single, [value]) => (*value as f32).to_bits(),
            (Precision::Single, values) => {
                let first = place(forest.singles.len())?;
                forest.singles.extend(values.iter().map(|value| *value as f32));
                first
            }
            (Precision::Double, values) => {
                let first = place(forest.doubles.len())?;
                forest.doubles.extend_from_slice(values);
                first
            }
        };
        forest.nodes[at] = Node { threshold: NEVER, feature: 0, left: place(at)?, leaf };
        Ok(())
    }

    /// Writes a split. Returns true if the children were swapped.
    fn set_split(
        &mut self,
        at: usize,
        children: usize,
        feature: u32,
        test: &Test,
        missing_left: bool,
        source: &SourceTree,
    ) -> Result<bool, ReadError> {
        let features = self.forest.shape.features;
        if feature >= features || feature > FEATURE_BITS {
            return Err(ReadError::malformed(format!(
                "a node tests feature {feature}, but the model has {features} features"
            )));
        }
        let left = place(children)?;
        let (threshold, is_swapped, special) = match AtLeast::from_test(test) {
            Some(AtLeast { threshold, is_swapped }) => (threshold, is_swapped, 0),
            None => {
                let categories = match test {
                    Test::OneOf { first, count } => slice(&source.categories, *first, *count)?,
                    _ => &[],
                };
                let number = place(self.forest.specials.add(test, categories))?;
                (f32::from_bits(number), false, SPECIAL)
            }
        };
        let missing = if missing_left == is_swapped { MISSING_RIGHT } else { 0 };
        let feature = feature | missing | special;
        self.forest.nodes[at] = Node { threshold, feature, left, leaf: 0 };
        Ok(is_swapped)
    }
}

fn place(index: usize) -> Result<u32, ReadError> {
    u32::try_from(index).map_err(|_| ReadError::unsupported("the model is too large"))
}

fn slice<T>(values: &[T], first: usize, count: usize) -> Result<&[T], ReadError> {
    first
        .checked_add(count)
        .and_then(|end| values.get(first..end))
        .ok_or_else(|| ReadError::malformed("a node points beyond the end of its tree"))
}

/// Returns a node that hasn't been reached before. Otherwise the nodes don't form a tree, and a
/// walk might never end.
fn reach<'a>(
    source: &'a SourceTree,
    is_reached: &mut [bool],
    number: usize,
) -> Result<&'a SourceNode, ReadError> {
    let (Some(node), Some(reached)) = (source.nodes.get(number), is_reached.get_mut(number)) else {
        let text = format!("a tree with {} nodes has no node {number}", source.nodes.len());
        return Err(ReadError::malformed(text));
    };
    if std::mem::replace(reached, true) {
        return Err(ReadError::malformed(format!("node {number} of a tree has two parents")));
    }
    Ok(node)
}
