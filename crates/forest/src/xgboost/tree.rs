//! Reads one tree of a document.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::{LearnerHeader, count, field, index, missing};
use crate::ReadError;
use crate::source::{SourceKind, SourceNode, SourceTree, Test};
use crate::value::Value;

/// A tree's arrays, with an entry for each node.
struct Arrays<'a> {
    left: &'a [f64],
    right: &'a [f64],
    features: &'a [f64],
    conditions: &'a [f64],
    default_left: &'a [f64],
    covers: &'a [f64],
    kinds: &'a [f64],
    /// The number of values in each leaf, and their location.
    width: usize,
    vectors: Vectors,
}

/// The index of a leaf's values.
#[derive(Clone, Copy)]
enum Vectors {
    /// The node's number.
    ByNode,
    /// The number in place of the right child.
    ByLeaf,
}

/// Reads a tree. `group` determines the output that it contributes to.
pub(super) fn read(
    tree: &Value,
    header: &LearnerHeader,
    group: f64,
    weight: Option<f64>,
) -> Result<SourceTree, ReadError> {
    let arrays = Arrays::read(tree)?;
    let mut source = SourceTree::default();
    if arrays.width > 1 {
        source.values = arrays.vector_values(tree)?.to_vec();
        (source.target, source.class) =
            if header.classes > 1 { (Some(0), None) } else { (None, Some(0)) };
    } else {
        let group = index(group).ok_or_else(|| missing("tree_info"))?;
        let (target, class) = header.output(group);
        (source.target, source.class) = (Some(target), Some(class));
    }
    let categories = Categories::read(tree, &mut source)?;
    source.nodes.reserve_exact(arrays.left.len());
    for number in 0..arrays.left.len() {
        let node = arrays.node(number, &categories)?;
        source.nodes.push(node);
    }
    if let Some(weight) = weight {
        weigh(&mut source, weight);
    }
    Ok(source)
}

impl<'a> Arrays<'a> {
    fn read(tree: &'a Value) -> Result<Self, ReadError> {
        let left = array(tree, "left_children", None)?;
        let nodes = left.len();
        let width = tree.get("tree_param").map_or(Ok(1), |parameters| {
            count(parameters, "size_leaf_vector", Some(1)).map(|width| width.max(1) as usize)
        })?;
        let vectors = match tree.get("leaf_weights").and_then(Value::numbers) {
            Some(weights) if !weights.is_empty() => Vectors::ByLeaf,
            _ => Vectors::ByNode,
        };
        Ok(Self {
            left,
            right: array(tree, "right_children", Some(nodes))?,
            features: array(tree, "split_indices", Some(nodes))?,
            conditions: array(tree, "split_conditions", Some(nodes))?,
            default_left: array(tree, "default_left", Some(nodes))?,
            covers: optional(tree, "sum_hessian", nodes)?,
            kinds: optional(tree, "split_type", nodes)?,
            width,
            vectors,
        })
    }

    fn vector_values(&self, tree: &'a Value) -> Result<&'a [f64], ReadError> {
        match self.vectors {
            Vectors::ByLeaf => array(tree, "leaf_weights", None),
            Vectors::ByNode => array(tree, "base_weights", None),
        }
    }

    fn node(&self, number: usize, categories: &Categories<'_>) -> Result<SourceNode, ReadError> {
        let cover = self.covers.get(number).copied();
        let kind = if at(self.left, number)? < 0.0 {
            self.leaf(number)?
        } else {
            let child = |children: &[f64], key: &str| {
                let child = index(at(children, number)?).ok_or_else(|| missing(key))?;
                Ok(child as usize)
            };
            SourceKind::Split {
                feature: index(at(self.features, number)?)
                    .ok_or_else(|| missing("split_indices"))?,
                test: match self.kinds.get(number) {
                    Some(kind) if *kind != 0.0 => categories.test(number)?,
                    _ => Test::Less(single(at(self.conditions, number)?)),
                },
                missing_left: at(self.default_left, number)? != 0.0,
                left: child(self.left, "left_children")?,
                right: child(self.right, "right_children")?,
            }
        };
        Ok(SourceNode { kind: swapped_if_categorical(kind), cover })
    }

    fn leaf(&self, number: usize) -> Result<SourceKind, ReadError> {
        if self.width == 1 {
            return Ok(SourceKind::Leaf(at(self.conditions, number)?));
        }
        let place = match self.vectors {
            Vectors::ByNode => number,
            Vectors::ByLeaf => {
                index(at(self.right, number)?).ok_or_else(|| missing("right_children"))? as usize
            }
        };
        Ok(SourceKind::Vector { first: place.saturating_mul(self.width), count: self.width })
    }
}

/// Swaps the children: XGBoost lists the right child's categories, but [`Test::OneOf`] lists the
/// left child's.
fn swapped_if_categorical(kind: SourceKind) -> SourceKind {
    match kind {
        SourceKind::Split {
            feature,
            test: test @ Test::OneOf { .. },
            missing_left,
            left,
            right,
        } => SourceKind::Split {
            feature,
            test,
            missing_left: !missing_left,
            left: right,
            right: left,
        },
        kind => kind,
    }
}

/// A tree's category lists, indexed by node.
struct Categories<'a> {
    nodes: &'a [f64],
    firsts: &'a [f64],
    counts: &'a [f64],
}

impl<'a> Categories<'a> {
    fn read(tree: &'a Value, source: &mut SourceTree) -> Result<Self, ReadError> {
        let nodes = optional_array(tree, "categories_nodes")?;
        if !nodes.is_empty() {
            for category in array(tree, "categories", None)? {
                source.categories.push(index(*category).ok_or_else(|| missing("categories"))?);
            }
        }
        Ok(Self {
            nodes,
            firsts: optional(tree, "categories_segments", nodes.len())?,
            counts: optional(tree, "categories_sizes", nodes.len())?,
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "numbers of nodes are exact")]
    fn test(&self, node: usize) -> Result<Test, ReadError> {
        // The nodes are in ascending order.
        let place = self.nodes.binary_search_by(|other| other.total_cmp(&(node as f64)));
        let entry = |values: &[f64]| {
            let value = place.ok().and_then(|place| values.get(place).copied());
            value.and_then(index).map(|value| value as usize)
        };
        match (entry(self.firsts), entry(self.counts)) {
            (Some(first), Some(count)) => Ok(Test::OneOf { first, count }),
            _ => Err(ReadError::malformed(format!("node {node} of a tree has no categories"))),
        }
    }
}

/// A decimal number in XGBoost's precision: the nearest 32-bit float, which a row's value may
/// equal.
#[expect(clippy::cast_possible_truncation, reason = "XGBoost keeps 32 bits")]
fn single(number: f64) -> f64 {
    f64::from(number as f32)
}

/// Multiplies all leaves by a DART weight, in XGBoost's precision.
#[expect(clippy::cast_possible_truncation, reason = "XGBoost keeps 32 bits")]
pub(super) fn weigh(tree: &mut SourceTree, weight: f64) {
    let weighed = |value: f64| f64::from(value as f32 * weight as f32);
    for node in &mut tree.nodes {
        if let SourceKind::Leaf(value) = &mut node.kind {
            *value = weighed(*value);
        }
    }
    tree.values.iter_mut().for_each(|value| *value = weighed(*value));
}

fn at(values: &[f64], number: usize) -> Result<f64, ReadError> {
    let value = values.get(number).copied();
    value.ok_or_else(|| ReadError::malformed("an array of a tree is too short"))
}

fn array<'a>(tree: &'a Value, key: &str, length: Option<usize>) -> Result<&'a [f64], ReadError> {
    let numbers = field(tree, key)?.numbers().ok_or_else(|| missing(key))?;
    match length {
        Some(length) if numbers.len() != length => Err(ReadError::malformed(format!(
            "\"{key}\" of a tree has {} numbers, expected {length}",
            numbers.len()
        ))),
        _ => Ok(numbers),
    }
}

fn optional_array<'a>(tree: &'a Value, key: &str) -> Result<&'a [f64], ReadError> {
    match tree.get(key) {
        Some(_) => array(tree, key, None),
        None => Ok(&[]),
    }
}

/// Reads an array that is either empty or has an entry for each node.
fn optional<'a>(tree: &'a Value, key: &str, length: usize) -> Result<&'a [f64], ReadError> {
    match optional_array(tree, key)? {
        [] => Ok(&[]),
        _ => array(tree, key, Some(length)),
    }
}
