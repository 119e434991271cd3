//! Prediction. Several walks are interleaved: eight rows through one tree, or one row through
//! sixteen trees.
//!
//! A walk has to wait for memory at each level. Independent walks overlap their waits. They take no
//! branches, so no row causes a branch misprediction.

use crate::forest::{Forest, Node, Tree};
use crate::postprocessor::Real;
use crate::{LengthError, Precision};

/// The number of rows that walk through one tree together. In measurements, eight were faster than
/// sixteen.
const ROW_LANES: usize = 8;
/// The number of trees that one row walks through together. The trees' nodes are farther apart in
/// memory than those of one tree.
const TREE_LANES: usize = 16;
/// The number of rows that pass through a tree before the next tree, so that the tree's nodes stay
/// in the cache.
const BLOCK_ROWS: usize = 128;
/// The maximum number of a block's remaining rows that are processed one by one.
const SINGLE_ROWS_MAX: usize = 5;
/// The number of levels after which a group checks if all its walks have reached a leaf.
const LEVELS: u32 = 8;
/// The minimum number of rows that justifies another thread.
const THREAD_ROWS_MIN: usize = 256;

/// The stage at which the results are returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutputStage {
    Sums,
    Predictions,
}

impl Forest {
    /// Predicts `count` rows. The rows are stored one after another, each with one value per
    /// feature; NaN marks a missing value. `output` receives [`outputs`](Self::outputs_per_row) values per
    /// row.
    ///
    /// Uses at most `threads` threads, and only one for fewer than 512 rows.
    pub fn predict(
        &self,
        rows: &[f32],
        count: usize,
        output: &mut [f32],
        threads: usize,
    ) -> Result<(), LengthError> {
        self.compute(rows, count, output, threads, OutputStage::Predictions)
    }

    /// Computes the sums of leaves and base scores, without the transformation. The arguments are
    /// the same as for [`predict`](Self::predict).
    pub fn margins(
        &self,
        rows: &[f32],
        count: usize,
        output: &mut [f32],
        threads: usize,
    ) -> Result<(), LengthError> {
        self.compute(rows, count, output, threads, OutputStage::Sums)
    }

    fn compute(
        &self,
        rows: &[f32],
        count: usize,
        output: &mut [f32],
        threads: usize,
        stage: OutputStage,
    ) -> Result<(), LengthError> {
        LengthError::check("the input", rows.len(), count, self.feature_count())?;
        LengthError::check("the output", output.len(), count, self.outputs_per_row())?;
        let threads = threads.min(count / THREAD_ROWS_MIN);
        if threads < 2 {
            self.compute_part(rows, count, output, stage);
            return Ok(());
        }
        let share = count.div_ceil(threads);
        std::thread::scope(|scope| {
            let parts = output.chunks_mut(share * self.outputs_per_row());
            for (index, part) in parts.enumerate() {
                let first = index * share;
                let count = part.len() / self.outputs_per_row();
                let rows =
                    &rows[first * self.feature_count()..(first + count) * self.feature_count()];
                scope.spawn(move || self.compute_part(rows, count, part, stage));
            }
        });
        Ok(())
    }

    fn compute_part(&self, rows: &[f32], count: usize, output: &mut [f32], stage: OutputStage) {
        match self.shape.precision {
            Precision::Single => self.run::<f32>(rows, count, output, stage),
            Precision::Double => self.run::<f64>(rows, count, output, stage),
        }
    }

    fn run<R: Leaf>(&self, rows: &[f32], count: usize, output: &mut [f32], stage: OutputStage) {
        let (features, outputs) = (self.feature_count(), self.outputs_per_row());
        let mut sums = vec![R::ZERO; count.min(BLOCK_ROWS) * outputs];
        for first in (0..count).step_by(BLOCK_ROWS) {
            let end = count.min(first + BLOCK_ROWS);
            let sums = &mut sums[..(end - first) * outputs];
            sums.fill(R::ZERO);
            self.add_block(&rows[first * features..end * features], end - first, sums);
            self.finish_rows(sums, &mut output[first * outputs..end * outputs], stage);
        }
    }

    fn add_block<R: Leaf>(&self, rows: &[f32], count: usize, sums: &mut [R]) {
        let rest = count % ROW_LANES;
        let alone = if rest <= SINGLE_ROWS_MAX { rest } else { 0 };
        let together = count - alone;
        let (features, outputs) = (self.feature_count(), self.outputs_per_row());
        let (grouped, single) = rows.split_at(together * features);
        let (grouped_sums, single_sums) = sums.split_at_mut(together * outputs);
        if rows.iter().any(|value| value.is_nan()) {
            self.add_groups::<R, true>(grouped, together, grouped_sums);
            self.add_singles::<R, true>(single, alone, single_sums);
        } else {
            self.add_groups::<R, false>(grouped, together, grouped_sums);
            self.add_singles::<R, false>(single, alone, single_sums);
        }
    }

    /// Processes rows in groups. All groups of the block pass through a tree before the next tree.
    fn add_groups<R: Leaf, const NAN: bool>(&self, rows: &[f32], count: usize, sums: &mut [R]) {
        let outputs = self.outputs_per_row();
        let columns: Vec<Columns> = columns_of(rows, self.feature_count(), count);
        for tree in &self.trees {
            for (group, sums) in columns.iter().zip(sums.chunks_mut(ROW_LANES * outputs)) {
                let arrived =
                    self.walk::<_, ROW_LANES, NAN>([tree.root; ROW_LANES], &**group, *tree);
                // The last group may have fewer rows than lanes.
                for (sums, place) in sums.chunks_mut(outputs).zip(arrived) {
                    self.add_leaf(*tree, place, sums);
                }
            }
        }
    }

    /// Processes rows one by one. Each row passes through groups of trees.
    fn add_singles<R: Leaf, const NAN: bool>(&self, rows: &[f32], count: usize, sums: &mut [R]) {
        let (features, outputs) = (self.feature_count(), self.outputs_per_row());
        for index in 0..count {
            let row = &rows[index * features..(index + 1) * features];
            let sums = &mut sums[index * outputs..(index + 1) * outputs];
            for group in self.trees.chunks(TREE_LANES) {
                let tree = |lane: usize| group[lane.min(group.len() - 1)];
                let roots = std::array::from_fn(|lane| tree(lane).root);
                let common = Tree {
                    depth: group.iter().map(|tree| tree.depth).max().unwrap_or(0),
                    has_specials: group.iter().any(|tree| tree.has_specials),
                    ..group[0]
                };
                let arrived = self.walk::<_, TREE_LANES, NAN>(roots, row, common);
                for (tree, place) in group.iter().zip(arrived) {
                    self.add_leaf(*tree, place, sums);
                }
            }
        }
    }

    #[inline]
    fn walk<V: Lanes + ?Sized, const N: usize, const NAN: bool>(
        &self,
        places: [u32; N],
        values: &V,
        tree: Tree,
    ) -> [u32; N] {
        if tree.has_specials {
            self.walk_levels::<V, N, NAN, true>(places, values, tree.depth)
        } else {
            self.walk_levels::<V, N, NAN, false>(places, values, tree.depth)
        }
    }

    #[inline]
    fn walk_levels<V: Lanes + ?Sized, const N: usize, const NAN: bool, const SPECIAL: bool>(
        &self,
        mut places: [u32; N],
        values: &V,
        depth: u32,
    ) -> [u32; N] {
        let nodes = &*self.nodes;
        let mut levels = depth;
        while levels > 0 {
            for _ in 0..levels.min(LEVELS) {
                for (lane, place) in places.iter_mut().enumerate() {
                    let node = nodes[*place as usize];
                    let value = values.value(node.feature(), lane);
                    *place = self.next::<NAN, SPECIAL>(node, value);
                }
            }
            levels = levels.saturating_sub(LEVELS);
            // Most leaves of a degenerate tree are much less deep than the tree.
            if levels > 0 && places.iter().all(|place| nodes[*place as usize].is_leaf(*place)) {
                break;
            }
        }
        places
    }

    /// The child that a value leads to. A leaf returns itself.
    #[inline]
    fn next<const NAN: bool, const SPECIAL: bool>(&self, node: Node, value: f32) -> u32 {
        if SPECIAL && node.is_special() {
            return self.next_special(node, value);
        }
        let is_right = u32::from(value >= node.threshold);
        if NAN {
            let is_missing = u32::from(value.is_nan());
            node.left.wrapping_add(is_right | (is_missing & node.missing_right()))
        } else {
            node.left.wrapping_add(is_right)
        }
    }

    fn next_special(&self, node: Node, value: f32) -> u32 {
        let number = node.threshold.to_bits() as usize;
        let is_right = match self.specials.is_true(number, value) {
            Some(is_true) => u32::from(!is_true),
            None => node.missing_right(),
        };
        node.left.wrapping_add(is_right)
    }

    /// The child that a row's value leads to, for any kind of test.
    pub(crate) fn child(&self, node: Node, row: &[f32]) -> u32 {
        self.next::<true, true>(node, row[node.feature()])
    }

    #[inline]
    fn add_leaf<R: Leaf>(&self, tree: Tree, place: u32, sums: &mut [R]) {
        let leaf = self.nodes[place as usize].leaf;
        if tree.count == 1 {
            let sum = &mut sums[tree.first];
            *sum = sum.plus(R::scalar(self, leaf));
            return;
        }
        for index in 0..tree.count {
            let sum = &mut sums[tree.first + index * tree.stride];
            *sum = sum.plus(R::element(self, leaf, index));
        }
    }

    /// Applies averages, base scores and the transformation, in treelite's order.
    fn finish_rows<R: Leaf>(&self, sums: &mut [R], output: &mut [f32], stage: OutputStage) {
        let outputs = self.outputs_per_row();
        for (sums, output) in sums.chunks_mut(outputs).zip(output.chunks_mut(outputs)) {
            if self.shape.is_average {
                for (sum, count) in sums.iter_mut().zip(&self.contributions) {
                    #[expect(clippy::cast_precision_loss, reason = "a number of trees")]
                    let count = *count as f32;
                    *sum = sum.divided_by(count);
                }
            }
            for (sum, score) in sums.iter_mut().zip(&self.shape.base_scores) {
                *sum = sum.plus_double(*score);
            }
            if stage == OutputStage::Predictions {
                let targets = sums.chunks_mut(self.columns_per_target()).zip(&self.shape.classes);
                for (sums, classes) in targets {
                    self.shape.postprocessor.apply(&mut sums[..*classes as usize]);
                }
            }
            for (output, sum) in output.iter_mut().zip(sums) {
                *output = sum.single();
            }
        }
    }
}

/// The values that the walks compare, by feature and lane.
trait Lanes {
    fn value(&self, feature: usize, lane: usize) -> f32;
}

/// A group of rows, stored by feature, so that the values of a feature are adjacent.
type Columns = Vec<[f32; ROW_LANES]>;

impl Lanes for [[f32; ROW_LANES]] {
    #[inline]
    fn value(&self, feature: usize, lane: usize) -> f32 {
        self[feature][lane]
    }
}

/// One row, which all walks share.
impl Lanes for [f32] {
    #[inline]
    fn value(&self, feature: usize, _: usize) -> f32 {
        self[feature]
    }
}

/// The groups of `count` rows. Lanes beyond the last row contain zeros.
fn columns_of(rows: &[f32], features: usize, count: usize) -> Vec<Columns> {
    let mut groups = vec![vec![[0.0; ROW_LANES]; features]; count.div_ceil(ROW_LANES)];
    if features > 0 {
        for (index, row) in rows.chunks_exact(features).enumerate() {
            for (column, value) in groups[index / ROW_LANES].iter_mut().zip(row) {
                column[index % ROW_LANES] = *value;
            }
        }
    }
    groups
}

/// Leaf values in the precision of the sums.
pub(crate) trait Leaf: Real {
    /// The value of a single-valued leaf.
    fn scalar(forest: &Forest, leaf: u32) -> Self;
    /// One value of a vector leaf.
    fn element(forest: &Forest, leaf: u32, index: usize) -> Self;
}

impl Leaf for f32 {
    #[inline]
    fn scalar(_: &Forest, leaf: u32) -> Self {
        Self::from_bits(leaf)
    }

    #[inline]
    fn element(forest: &Forest, leaf: u32, index: usize) -> Self {
        forest.singles[leaf as usize + index]
    }
}

impl Leaf for f64 {
    #[inline]
    fn scalar(forest: &Forest, leaf: u32) -> Self {
        forest.doubles[leaf as usize]
    }

    #[inline]
    fn element(forest: &Forest, leaf: u32, index: usize) -> Self {
        forest.doubles[leaf as usize + index]
    }
}
