//! Reads one tree. Splits are numbered upward from 0, leaves downward from -1.

use super::Section;
use crate::ReadError;
use crate::source::{SourceKind, SourceNode, SourceTree, Test};

/// The bits of a split's decision type.
const CATEGORICAL: u8 = 1;
const DEFAULT_LEFT: u8 = 2;

/// The values that a split treats as missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// No value; NaN counts as zero.
    None,
    /// Zero and NaN.
    Zero,
    /// NaN.
    Nan,
}

impl Missing {
    fn of(kind: u8) -> Self {
        match kind >> 2 & 3 {
            1 => Self::Zero,
            2 => Self::Nan,
            _ => Self::None,
        }
    }
}

/// A tree's lists, indexed by split or leaf.
struct Lists {
    splits: usize,
    features: Vec<u32>,
    thresholds: Vec<f64>,
    kinds: Vec<u8>,
    left: Vec<i64>,
    right: Vec<i64>,
    split_counts: Vec<f64>,
    leaves: Vec<f64>,
    leaf_counts: Vec<f64>,
    /// The index of each category list's first word, followed by the end of the last list.
    boundaries: Vec<usize>,
    words: Vec<u32>,
}

/// Reads a tree, without the class that it belongs to.
pub(super) fn read(section: &Section<'_>) -> Result<SourceTree, ReadError> {
    if section.get("is_linear").is_some_and(|value| value.trim() != "0") {
        return Err(ReadError::unsupported(
            "LightGBM models with linear trees (linear_tree=True) are not supported",
        ));
    }
    let lists = Lists::read(section)?;
    let mut tree = SourceTree::default();
    tree.nodes.reserve_exact(lists.splits.saturating_add(lists.leaves.len()));
    for split in 0..lists.splits {
        let node = lists.split(split, &mut tree)?;
        tree.nodes.push(node);
    }
    for (index, value) in lists.leaves.iter().enumerate() {
        let cover = lists.leaf_counts.get(index).copied();
        tree.nodes.push(SourceNode { kind: SourceKind::Leaf(*value), cover });
    }
    Ok(tree)
}

impl Lists {
    fn read(section: &Section<'_>) -> Result<Self, ReadError> {
        let leaves: usize = section.number("num_leaves")?;
        let splits = leaves.checked_sub(1);
        let splits = splits.ok_or_else(|| ReadError::malformed("a tree has no leaf"))?;
        let categorical: usize = match section.get("num_cat") {
            Some(_) => section.number("num_cat")?,
            None => 0,
        };
        let mut lists = Self {
            splits,
            features: Vec::new(),
            thresholds: Vec::new(),
            kinds: Vec::new(),
            left: Vec::new(),
            right: Vec::new(),
            split_counts: Vec::new(),
            leaves: section.list("leaf_value", leaves)?,
            leaf_counts: section.optional_list("leaf_count", leaves)?,
            boundaries: Vec::new(),
            words: Vec::new(),
        };
        if splits > 0 {
            lists.features = section.list("split_feature", splits)?;
            lists.thresholds = section.list("threshold", splits)?;
            lists.kinds = section.optional_list("decision_type", splits)?;
            lists.left = section.list("left_child", splits)?;
            lists.right = section.list("right_child", splits)?;
            lists.split_counts = section.optional_list("internal_count", splits)?;
        }
        if categorical > 0 {
            lists.boundaries = section.list("cat_boundaries", categorical.saturating_add(1))?;
            let words = lists.boundaries.last().copied().unwrap_or(0);
            lists.words = section.list("cat_threshold", words)?;
        }
        Ok(lists)
    }

    /// Reads a split. If `read` has checked a list's length, the list has an entry for each split.
    fn split(&self, number: usize, tree: &mut SourceTree) -> Result<SourceNode, ReadError> {
        let short = || ReadError::malformed("a list of a tree is too short");
        let kind = self.kinds.get(number).copied().unwrap_or(0);
        let threshold = *self.thresholds.get(number).ok_or_else(short)?;
        let (test, missing_left) = if kind & CATEGORICAL != 0 {
            // Missing categories go to the right.
            (self.categories(threshold, tree)?, false)
        } else {
            let default_left = kind & DEFAULT_LEFT != 0;
            match Missing::of(kind) {
                Missing::None => (Test::LessOrEqual(threshold), 0.0 <= threshold),
                Missing::Nan => (Test::LessOrEqual(threshold), default_left),
                Missing::Zero => (Test::LessOrEqualUnlessZero(threshold), default_left),
            }
        };
        let child = |children: &[i64]| {
            let child = *children.get(number).ok_or_else(short)?;
            Ok(self.node(child))
        };
        let kind = SourceKind::Split {
            feature: *self.features.get(number).ok_or_else(short)?,
            test,
            missing_left,
            left: child(&self.left)?,
            right: child(&self.right)?,
        };
        Ok(SourceNode { kind, cover: self.split_counts.get(number).copied() })
    }

    /// Converts a child's number to a node index. Leaves follow the splits.
    fn node(&self, child: i64) -> usize {
        let index = if child < 0 { !child } else { child };
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        if child < 0 { self.splits.saturating_add(index) } else { index }
    }

    /// Reads the categories of a split. The split's threshold is the number of a bit set.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "negative numbers become 0, as in LightGBM, and great ones have no set"
    )]
    fn categories(&self, threshold: f64, tree: &mut SourceTree) -> Result<Test, ReadError> {
        let set = threshold as usize;
        let place = |set: usize| self.boundaries.get(set).copied();
        let words = match (place(set), set.checked_add(1).and_then(place)) {
            (Some(first), Some(end)) => self.words.get(first..end),
            _ => None,
        };
        let words = words.ok_or_else(|| ReadError::malformed("a split has no categories"))?;
        let first = tree.categories.len();
        for (category, word) in (0_u32..).step_by(32).zip(words) {
            let bits = (0..32).filter(|bit| word >> bit & 1 == 1);
            tree.categories.extend(bits.map(|bit: u32| category | bit));
        }
        Ok(Test::OneOf { first, count: tree.categories.len().saturating_sub(first) })
    }
}
