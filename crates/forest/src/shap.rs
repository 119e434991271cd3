//! Feature contributions to a prediction: Shapley values of the untransformed sums, computed from
//! the paths of training rows (TreeSHAP).
//!
//! For each leaf, the algorithm keeps one element for each feature on the leaf's path. The element
//! contains the fraction of training rows that followed the path, whether the current row follows
//! it, and the total weight of all subsets of one size.

mod path;

use crate::forest::{Forest, Node, Tree};
use crate::{LengthError, Precision};
use path::Path;

/// The depth from which Triton considers the results inaccurate.
const DEPTH_END: u32 = 32;

/// The reason why a forest's predictions can't be explained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExplainError {
    /// The file doesn't specify how many training rows reached each node.
    #[error("Model does not have node statistics.")]
    NoStatistics,
    /// A tree is too deep for accurate results.
    #[error(
        "Tree depths above 32 not supported. Shap cannot be considered accurate at this depth."
    )]
    TooDeep,
    /// The model predicts several targets.
    #[error("Multi-target model not yet supported")]
    SeveralTargets,
}

/// Explains the predictions of a forest.
#[derive(Debug)]
pub struct Explainer<'a> {
    forest: &'a Forest,
    /// The expected sum for each output over the training rows, without base scores.
    expected: Vec<f64>,
}

impl<'a> Explainer<'a> {
    /// Checks that the forest's predictions can be explained.
    pub fn new(forest: &'a Forest) -> Result<Self, ExplainError> {
        if forest.target_count() != 1 {
            return Err(ExplainError::SeveralTargets);
        }
        let mut explainer = Self { forest, expected: vec![0.0; forest.outputs_per_row()] };
        for tree in &forest.trees {
            if tree.depth >= DEPTH_END {
                return Err(ExplainError::TooDeep);
            }
            explainer.expect(*tree, tree.root, 1.0)?;
        }
        Ok(explainer)
    }

    /// The number of values per row: for each class, one value for each feature and one for the
    /// bias.
    #[must_use]
    pub fn outputs_per_row(&self) -> usize {
        self.forest.outputs_per_row() * (self.forest.feature_count() + 1)
    }

    /// Explains `count` rows. `output` receives [`outputs`](Self::outputs_per_row) values per row. The
    /// values of a class add up to the class's sum.
    pub fn explain(
        &self,
        rows: &[f32],
        count: usize,
        output: &mut [f32],
    ) -> Result<(), LengthError> {
        let (features, width) = (self.forest.feature_count(), self.outputs_per_row());
        LengthError::check("the input", rows.len(), count, features)?;
        LengthError::check("the output", output.len(), count, width)?;
        let mut values = vec![0.0; width];
        for index in 0..count {
            let row = &rows[index * features..(index + 1) * features];
            values.fill(0.0);
            for tree in &self.forest.trees {
                self.walk(*tree, tree.root, row, Path::new(), &mut values);
            }
            self.finish(&mut values);
            for (output, value) in output[index * width..].iter_mut().zip(&values) {
                #[expect(clippy::cast_possible_truncation, reason = "outputs have 32 bits")]
                let value = *value as f32;
                *output = value;
            }
        }
        Ok(())
    }

    /// Adds the leaves below a node to the expected sums, weighted by their fractions of the
    /// training rows.
    fn expect(&mut self, tree: Tree, place: u32, share: f64) -> Result<(), ExplainError> {
        let node = self.node(place);
        if node.is_leaf(place) {
            for index in 0..tree.count {
                let value = self.leaf(tree, node, index);
                self.expected[tree.first + index * tree.stride] += share * value;
            }
            return Ok(());
        }
        for child in [node.left, node.left + 1] {
            if self.forest.covers[child as usize].is_nan()
                || self.forest.covers[place as usize].is_nan()
            {
                return Err(ExplainError::NoStatistics);
            }
            self.expect(tree, child, share * self.share(place, child))?;
        }
        Ok(())
    }

    /// Visits all leaves, including those that the row doesn't reach. The recursion depth is
    /// limited because all trees are less deep than [`DEPTH_END`].
    fn walk(&self, tree: Tree, place: u32, row: &[f32], mut path: Path, values: &mut [f64]) {
        let node = self.node(place);
        if node.is_leaf(place) {
            let stride = self.forest.feature_count() + 1;
            for (feature, factor) in path.contributions() {
                for index in 0..tree.count {
                    let first = (tree.first + index * tree.stride) * stride;
                    values[first + feature] += factor * self.leaf(tree, node, index);
                }
            }
            return;
        }
        let (zero, one) = path.take(node.feature());
        let taken = self.forest.child(node, row);
        for child in [node.left, node.left + 1] {
            let mut path = path.clone();
            let one = if child == taken { one } else { 0.0 };
            path.extend(node.feature(), zero * self.share(place, child), one);
            self.walk(tree, child, row, path, values);
        }
    }

    /// Applies averages, and sets the bias to the expected sum plus the base score.
    fn finish(&self, values: &mut [f64]) {
        let forest = self.forest;
        for (index, values) in values.chunks_mut(forest.feature_count() + 1).enumerate() {
            if let Some(bias) = values.last_mut() {
                *bias = self.expected[index];
            }
            if forest.shape.is_average {
                let count = f64::from(forest.contributions[index]);
                values.iter_mut().for_each(|value| *value /= count);
            }
            if let Some(bias) = values.last_mut() {
                *bias += forest.shape.base_scores[index];
            }
        }
    }

    fn node(&self, place: u32) -> Node {
        self.forest.nodes[place as usize]
    }

    fn leaf(&self, tree: Tree, node: Node, index: usize) -> f64 {
        match (self.forest.shape.precision, tree.count) {
            (Precision::Single, 1) => f64::from(f32::from_bits(node.leaf)),
            (Precision::Single, _) => f64::from(self.forest.singles[node.leaf as usize + index]),
            (Precision::Double, _) => self.forest.doubles[node.leaf as usize + index],
        }
    }

    /// The fraction of a node's training rows that reached a child.
    fn share(&self, place: u32, child: u32) -> f64 {
        let covers = &self.forest.covers;
        let whole = f64::from(covers[place as usize]);
        if whole == 0.0 { 0.0 } else { f64::from(covers[child as usize]) / whole }
    }
}

#[cfg(test)]
mod tests {
    use super::{ExplainError, Explainer};
    use crate::shape::Shape;
    use crate::source::{SourceKind, SourceNode, SourceTree, Test};
    use crate::{Forest, ForestTask, Postprocessor, Precision};

    fn leaf(value: f64, cover: f64) -> SourceNode {
        SourceNode { kind: SourceKind::Leaf(value), cover: Some(cover) }
    }

    fn split(feature: u32, left: usize, cover: f64) -> SourceNode {
        let test = Test::Less(0.5);
        let kind = SourceKind::Split { feature, test, missing_left: true, left, right: left + 1 };
        SourceNode { kind, cover: Some(cover) }
    }

    fn forest(trees: Vec<Vec<SourceNode>>, is_average: bool) -> Forest {
        let shape = Shape {
            task: ForestTask::Regressor,
            precision: Precision::Single,
            features: 3,
            classes: vec![1],
            is_average,
            postprocessor: Postprocessor::Identity,
            base_scores: vec![10.0],
        };
        let tree = |nodes| {
            Ok(SourceTree { nodes, target: Some(0), class: Some(0), ..SourceTree::default() })
        };
        Forest::new(shape, trees.into_iter().map(tree)).unwrap()
    }

    /// Tests both features, then the first one again.
    fn tree() -> Vec<SourceNode> {
        vec![
            split(0, 1, 10.0),
            split(1, 3, 6.0),
            leaf(8.0, 4.0),
            split(0, 5, 2.0),
            leaf(1.0, 4.0),
            leaf(2.0, 1.0),
            leaf(4.0, 1.0),
        ]
    }

    /// The expected value if only the features in the set `known` are known.
    fn conditional(nodes: &[SourceNode], at: usize, row: &[f32], known: usize) -> f64 {
        match &nodes[at].kind {
            SourceKind::Leaf(value) => *value,
            SourceKind::Split { feature, left, right, .. } if known >> feature & 1 == 1 => {
                let value = row[*feature as usize];
                let is_left = value.is_nan() || value < 0.5;
                conditional(nodes, if is_left { *left } else { *right }, row, known)
            }
            SourceKind::Split { left, right, .. } => {
                let share = |child: usize| {
                    nodes[child].cover.unwrap() / nodes[at].cover.unwrap()
                        * conditional(nodes, child, row, known)
                };
                share(*left) + share(*right)
            }
            SourceKind::Vector { .. } => unreachable!("these trees have none"),
        }
    }

    /// Computes Shapley values by definition, over all subsets of three features.
    fn by_definition(nodes: &[SourceNode], row: &[f32]) -> Vec<f64> {
        let value = |known| conditional(nodes, 0, row, known);
        let weight = |size: u32| [2.0, 1.0, 2.0][size as usize] / 6.0;
        let mut values: Vec<f64> = (0..3)
            .map(|feature: usize| {
                let others = (0..8_usize).filter(|known| known >> feature & 1 == 0);
                others
                    .map(|known| {
                        weight(known.count_ones()) * (value(known | 1 << feature) - value(known))
                    })
                    .sum()
            })
            .collect();
        values.push(value(0));
        values
    }

    #[test]
    fn values_are_those_of_the_definition() {
        let forest = forest(vec![tree()], false);
        let explainer = Explainer::new(&forest).unwrap();
        for row in [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 9.0], [f32::NAN, 1.0, 1.0]] {
            let mut output = [0.0; 4];
            explainer.explain(&row, 1, &mut output).unwrap();
            let mut expected = by_definition(&tree(), &row);
            expected[3] += 10.0;
            for (actual, expected) in output.iter().zip(&expected) {
                assert!((f64::from(*actual) - expected).abs() < 1e-5, "{output:?} {expected:?}");
            }
            let mut margin = [0.0];
            forest.margins(&row, 1, &mut margin, 1).unwrap();
            assert!((output.iter().sum::<f32>() - margin[0]).abs() < 1e-5);
        }
    }

    #[test]
    fn averages_divide_all_but_the_base_score() {
        let forest = forest(vec![tree(), vec![leaf(3.0, 1.0)]], true);
        let mut output = [0.0; 4];
        Explainer::new(&forest).unwrap().explain(&[1.0, 0.0, 0.0], 1, &mut output).unwrap();
        assert!((output.iter().sum::<f32>() - (10.0 + 11.0 / 2.0)).abs() < 1e-5, "{output:?}");
    }

    #[test]
    fn some_forests_are_not_explained() {
        let mut nodes = tree();
        nodes[4].cover = None;
        let error = Explainer::new(&forest(vec![nodes], false)).unwrap_err();
        assert_eq!(error, ExplainError::NoStatistics);
        // Each split's left child is the next split, two nodes later.
        let mut deep: Vec<_> =
            (0..32).flat_map(|depth| [split(0, 2 * depth + 2, 1.0), leaf(1.0, 0.0)]).collect();
        deep.push(leaf(1.0, 1.0));
        deep.push(leaf(1.0, 1.0));
        let error = Explainer::new(&forest(vec![deep], false)).unwrap_err();
        assert_eq!(error, ExplainError::TooDeep);
    }
}
