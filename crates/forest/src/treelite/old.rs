//! Checkpoints of treelite 3.9, which have one target, and store nodes as structures.

use super::tree::Fields;
use super::{Cursor, postprocessor_of};
use crate::bytes::Bytes;
use crate::shape::Shape;
use crate::source::SourceTree;
use crate::{Forest, ForestTask, Precision, ReadError};

/// Version 3's task types.
const BINARY_OR_REGRESSION: u8 = 0;
const GROVE_PER_CLASS: u8 = 1;
const VECTOR_LEAVES: u8 = 2;
/// The size of the zero-padded transformation name in bytes.
const NAME_BYTES: usize = 256;
/// The bit in a feature that sends missing values to the left.
const DEFAULT_LEFT: u32 = 1 << 31;
/// The kinds of splits.
const NUMERICAL: u8 = 1;

/// Reads a checkpoint, starting after its version.
pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Forest, ReadError> {
    let precision = cursor.precision()?;
    let trees = cursor.u64()?;
    let features = cursor.features()?;
    let task = cursor.byte()?;
    let is_average = cursor.byte()? != 0;
    // A structure of 12 bytes: two flags, two bytes of padding, and two integers.
    let [_is_integer, _is_grove, _, _] = cursor.array()?;
    let classes = u32::from_le_bytes(cursor.array()?).max(1);
    let _leaf_values: [u8; 4] = cursor.array()?;
    let name: [u8; NAME_BYTES] = cursor.array()?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(name);
    let alpha = f32::from_le_bytes(cursor.array()?);
    let ratio = f32::from_le_bytes(cursor.array()?);
    let base_score = f32::from_le_bytes(cursor.array()?);
    cursor.skip_extensions()?;
    let task_of_4 = match task {
        BINARY_OR_REGRESSION if name == "sigmoid" => ForestTask::BinaryClassifier,
        BINARY_OR_REGRESSION => ForestTask::Regressor,
        GROVE_PER_CLASS | VECTOR_LEAVES => ForestTask::MultiClassifier,
        _ => {
            return Err(ReadError::unsupported(
                "Task type kMultiClfCategLeaf is no longer supported in Treelite 4.0.",
            ));
        }
    };
    let shape = Shape {
        task: task_of_4,
        precision,
        features,
        classes: vec![classes],
        is_average,
        postprocessor: postprocessor_of(&name, alpha, ratio)?,
        base_scores: vec![f64::from(base_score)],
    };
    let mut turns = (0..classes).cycle();
    let trees = (0..trees).map(|_| {
        let mut tree = read_tree(cursor, precision)?;
        tree.target = Some(0);
        let turn = turns.next();
        tree.class = match task {
            GROVE_PER_CLASS => turn,
            VECTOR_LEAVES => None,
            _ => Some(0),
        };
        Ok(tree)
    });
    Forest::new(shape, trees)
}

fn read_tree(cursor: &mut Cursor<'_>, precision: Precision) -> Result<SourceTree, ReadError> {
    let nodes = cursor.i32()?;
    let _has_categories = cursor.byte()?;
    let mut fields = read_nodes(cursor, precision)?;
    fields.vectors = cursor.reals(precision)?;
    fields.vector_firsts = cursor.list(u64::from_le_bytes)?;
    fields.vector_ends = cursor.list(u64::from_le_bytes)?;
    fields.categories = cursor.list(u32::from_le_bytes)?;
    let offsets = cursor.list(u64::from_le_bytes)?;
    fields.category_ends = offsets.get(1..).unwrap_or_default().to_vec();
    fields.category_firsts = offsets;
    cursor.skip_extensions()?;
    cursor.skip_extensions()?;
    if usize::try_from(nodes) != Ok(fields.kinds.len()) {
        return Err(cursor.error("a tree has not as many nodes as it says"));
    }
    fields.into_tree()
}

/// Reads the list of nodes. The nodes are structures of 48 or 56 bytes, in which 64-bit numbers are
/// aligned.
fn read_nodes(cursor: &mut Cursor<'_>, precision: Precision) -> Result<Fields, ReadError> {
    let width: usize = match precision {
        Precision::Single => 48,
        Precision::Double => 56,
    };
    let list = cursor.take_list(width)?;
    let mut fields = Fields::empty();
    for node in list.chunks_exact(width) {
        fields.push(Bytes::new(node, "treelite checkpoint"), precision)?;
    }
    Ok(fields)
}

impl Fields {
    fn empty() -> Self {
        Self {
            kinds: Vec::new(),
            left: Vec::new(),
            right: Vec::new(),
            features: Vec::new(),
            default_left: Vec::new(),
            leaves: Vec::new(),
            thresholds: Vec::new(),
            comparisons: Vec::new(),
            is_right_list: Vec::new(),
            vectors: Vec::new(),
            vector_firsts: Vec::new(),
            vector_ends: Vec::new(),
            categories: Vec::new(),
            category_firsts: Vec::new(),
            category_ends: Vec::new(),
            counts: Vec::new(),
            has_count: Vec::new(),
            hessians: Vec::new(),
            has_hessian: Vec::new(),
        }
    }

    fn push(&mut self, mut node: Bytes<'_>, precision: Precision) -> Result<(), ReadError> {
        let left = i32::from_le_bytes(node.array()?);
        self.left.push(left);
        self.right.push(i32::from_le_bytes(node.array()?));
        let feature = u32::from_le_bytes(node.array()?);
        self.features.push((feature & !DEFAULT_LEFT).cast_signed());
        self.default_left.push(u8::from(feature & DEFAULT_LEFT != 0));
        let value = match precision {
            Precision::Single => f64::from(f32::from_le_bytes(node.array()?)),
            Precision::Double => {
                let _padding: [u8; 4] = node.array()?;
                f64::from_le_bytes(node.array()?)
            }
        };
        self.leaves.push(value);
        self.thresholds.push(value);
        self.counts.push(u64::from_le_bytes(node.array()?));
        self.hessians.push(f64::from_le_bytes(node.array()?));
        let _gain: [u8; 8] = node.array()?;
        let [split, comparison, has_count, has_hessian, _has_gain, is_right] = node.array()?;
        self.kinds.push(match (left, split) {
            (-1, _) => 0,
            (_, NUMERICAL) => 1,
            _ => 2,
        });
        self.comparisons.push(comparison);
        self.has_count.push(has_count);
        self.has_hessian.push(has_hessian);
        self.is_right_list.push(is_right);
        Ok(())
    }
}
