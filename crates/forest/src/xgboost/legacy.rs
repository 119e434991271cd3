//! XGBoost's binary format before version 3.1: structures in their in-memory form.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::LearnerHeader;
use crate::bytes::Bytes;
use crate::source::{SourceKind, SourceNode, SourceTree, Test};
use crate::{Forest, ReadError};

/// The sizes of the reserved fields at the ends of the three structures, in bytes.
const LEARNER_RESERVED: usize = 26 * 4;
const BOOSTER_RESERVED: usize = 32 * 4;
const TREE_RESERVED: usize = 31 * 4;
/// The sizes of a node and of its statistics, in bytes.
const NODE_BYTES: usize = 20;
const STATISTICS_BYTES: usize = 16;
/// The bit in a feature that sends missing values to the left.
const DEFAULT_LEFT: u32 = 1 << 31;

/// Reads a model.
pub(crate) fn read(file: &[u8]) -> Result<Forest, ReadError> {
    if file.starts_with(b"bs64") {
        return Err(ReadError::unsupported("models of XGBoost in base64 are not read"));
    }
    if matches!(file.first(), Some(b'{')) {
        return Err(ReadError::malformed(
            "this is JSON or UBJSON, not the binary format of XGBoost before version 3.1",
        ));
    }
    let mut bytes = Bytes::new(file.strip_prefix(b"binf").unwrap_or(file), "XGBoost model");
    let (mut header, is_old) = learner(&mut bytes)?;
    header.objective = text(&mut bytes)?;
    let booster = text(&mut bytes)?;
    if booster != "gbtree" && booster != "dart" {
        return Err(ReadError::unsupported(format!(
            "the booster \"{booster}\" has no trees; \"gbtree\" and \"dart\" have"
        )));
    }
    let count = booster_trees(&mut bytes)?;
    let mut trees = Vec::new();
    for _ in 0..count {
        trees.push(tree(&mut bytes, is_old)?);
    }
    for tree in &mut trees {
        let (target, class) = header.output(u32::from_le_bytes(bytes.array()?));
        (tree.target, tree.class) = (Some(target), Some(class));
    }
    if booster == "dart" {
        weigh(&mut bytes, &mut trees)?;
    }
    Forest::new(header.shape()?, trees.into_iter().map(Ok))
}

/// Reads the learner's parameters. The second value is true if trees may have a trailing vector.
fn learner(bytes: &mut Bytes<'_>) -> Result<(LearnerHeader, bool), ReadError> {
    let base_score = f32::from_le_bytes(bytes.array()?);
    let features = u32::from_le_bytes(bytes.array()?);
    let classes = i32::from_le_bytes(bytes.array()?);
    let _attributes: [u8; 8] = bytes.array()?;
    let major = u32::from_le_bytes(bytes.array()?);
    let _minor: [u8; 4] = bytes.array()?;
    let targets = u32::from_le_bytes(bytes.array()?);
    bytes.take(LEARNER_RESERVED)?;
    let header = LearnerHeader {
        features,
        classes: u32::try_from(classes).unwrap_or(0),
        targets,
        objective: String::new(),
        base_scores: vec![f64::from(base_score)],
        // Before version 1, files contained the margin.
        is_margin: major < 1,
    };
    Ok((header, major < 2))
}

/// Reads the booster's parameters and returns the number of trees.
fn booster_trees(bytes: &mut Bytes<'_>) -> Result<u32, ReadError> {
    let trees = i32::from_le_bytes(bytes.array()?);
    let _roots_features_padding: [u8; 20] = bytes.array()?;
    let _groups_vector: [u8; 8] = bytes.array()?;
    bytes.take(BOOSTER_RESERVED)?;
    u32::try_from(trees).map_err(|_| bytes.error("a negative number of trees"))
}

fn tree(bytes: &mut Bytes<'_>, is_old: bool) -> Result<SourceTree, ReadError> {
    let roots = i32::from_le_bytes(bytes.array()?);
    let nodes = i32::from_le_bytes(bytes.array()?);
    let _deleted_depth_features: [u8; 12] = bytes.array()?;
    let vector = i32::from_le_bytes(bytes.array()?);
    bytes.take(TREE_RESERVED)?;
    if roots != 1 {
        return Err(ReadError::unsupported("a tree has several roots"));
    }
    if !is_old && vector > 1 {
        return Err(ReadError::unsupported(
            "Multi-target models are not supported with binary serialization. \
             Please save the XGBoost model using the JSON format.",
        ));
    }
    let count = usize::try_from(nodes).map_err(|_| bytes.error("a negative number of nodes"))?;
    let mut nodes = part(bytes, count, NODE_BYTES)?;
    let mut statistics = part(bytes, count, STATISTICS_BYTES)?;
    if is_old && vector != 0 {
        let count = usize::try_from(u64::from_le_bytes(bytes.array()?)).unwrap_or(usize::MAX);
        part(bytes, count, 4)?;
    }
    let mut tree = SourceTree::default();
    tree.nodes.reserve_exact(count);
    for _ in 0..count {
        tree.nodes.push(node(&mut nodes, &mut statistics)?);
    }
    Ok(tree)
}

fn node(nodes: &mut Bytes<'_>, statistics: &mut Bytes<'_>) -> Result<SourceNode, ReadError> {
    let _parent: [u8; 4] = nodes.array()?;
    let left = i32::from_le_bytes(nodes.array()?);
    let right = i32::from_le_bytes(nodes.array()?);
    let feature = u32::from_le_bytes(nodes.array()?);
    let value = f64::from(f32::from_le_bytes(nodes.array()?));
    let _gain: [u8; 4] = statistics.array()?;
    let cover = f64::from(f32::from_le_bytes(statistics.array()?));
    let _weight_and_count: [u8; 8] = statistics.array()?;
    let kind = if left == -1 {
        SourceKind::Leaf(value)
    } else {
        let child = |child: i32| usize::try_from(child).unwrap_or(usize::MAX);
        SourceKind::Split {
            feature: feature & !DEFAULT_LEFT,
            test: Test::Less(value),
            missing_left: feature & DEFAULT_LEFT != 0,
            left: child(left),
            right: child(right),
        }
    };
    Ok(SourceNode { kind, cover: Some(cover) })
}

fn weigh(bytes: &mut Bytes<'_>, trees: &mut [SourceTree]) -> Result<(), ReadError> {
    let count = u64::from_le_bytes(bytes.array()?);
    if usize::try_from(count) != Ok(trees.len()) {
        return Err(bytes.error("not as many weights as trees"));
    }
    for tree in trees {
        let weight = f32::from_le_bytes(bytes.array()?);
        super::tree::weigh(tree, f64::from(weight));
    }
    Ok(())
}

/// Takes the bytes of several structures, before memory is allocated for them.
fn part<'a>(bytes: &mut Bytes<'a>, count: usize, width: usize) -> Result<Bytes<'a>, ReadError> {
    let total = count.checked_mul(width).ok_or_else(|| bytes.error("the file ends early"))?;
    Ok(Bytes::new(bytes.take(total)?, "XGBoost model"))
}

fn text(bytes: &mut Bytes<'_>) -> Result<String, ReadError> {
    let length = usize::try_from(u64::from_le_bytes(bytes.array()?)).unwrap_or(usize::MAX);
    Ok(String::from_utf8_lossy(bytes.take(length)?).into_owned())
}
