//! Reads LightGBM models: text with `key=value` lines, first for the model and then for each tree.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod objective;
#[cfg(test)]
mod tests;
mod tree;

use crate::shape::Shape;
use crate::{Forest, ForestTask, Precision, ReadError};

/// The line that follows the last tree.
const END: &[u8] = b"end of trees";

/// Reads a model.
pub(crate) fn read(file: &[u8]) -> Result<Forest, ReadError> {
    let mut lines = Lines { rest: file };
    let (header, mut has_tree) = lines.section();
    if header.get("version").is_none() && header.get("num_class").is_none() {
        return Err(ReadError::malformed("this is no model of LightGBM: it has no num_class"));
    }
    let groups = match header.get("num_tree_per_iteration") {
        Some(text) => number(text, "num_tree_per_iteration")?,
        None => header.number("num_class")?,
    };
    let shape = shape(&header, groups)?;
    let mut index = 0_u32;
    let trees = std::iter::from_fn(|| {
        if !has_tree {
            return None;
        }
        let (section, another) = lines.section();
        has_tree = another;
        let class = index.checked_rem(groups).unwrap_or(0);
        index = index.saturating_add(1);
        Some(tree::read(&section).map(|mut tree| {
            (tree.target, tree.class) = (Some(0), Some(class));
            tree
        }))
    });
    Forest::new(shape, trees)
}

fn shape(header: &Section<'_>, groups: u32) -> Result<Shape, ReadError> {
    let features: u32 = header.number("max_feature_idx")?;
    let classes: u32 = header.number("num_class")?;
    if groups != classes {
        return Err(ReadError::unsupported(format!(
            "{groups} trees in each iteration do not fit {classes} classes"
        )));
    }
    let objective = header.get("objective").unwrap_or("custom");
    let name = objective.split(' ').next().unwrap_or_default();
    let postprocessor = objective::postprocessor(objective)?;
    let task = match name {
        _ if classes > 1 => ForestTask::MultiClassifier,
        "binary" | "cross_entropy" | "cross_entropy_lambda" => ForestTask::BinaryClassifier,
        "lambdarank" | "rank_xendcg" => ForestTask::LearningToRank,
        _ => ForestTask::Regressor,
    };
    Ok(Shape {
        task,
        precision: Precision::Double,
        features: features.saturating_add(1),
        classes: vec![classes],
        is_average: header.get("average_output").is_some(),
        postprocessor,
        base_scores: vec![0.0],
    })
}

/// The remaining lines.
struct Lines<'a> {
    rest: &'a [u8],
}

impl<'a> Lines<'a> {
    /// Takes the lines up to the next tree. Returns true if another tree follows.
    fn section(&mut self) -> (Section<'a>, bool) {
        let mut entries = Vec::new();
        while !self.rest.is_empty() {
            let end = self.rest.iter().position(|byte| *byte == b'\n');
            let (line, rest) = match end.and_then(|end| self.rest.split_at_checked(end)) {
                Some((line, [_, rest @ ..])) => (line, rest),
                _ => (self.rest, &[][..]),
            };
            self.rest = rest;
            let line = line.trim_ascii_end();
            if line == END {
                break;
            }
            // Feature names may contain any bytes; other lines can't.
            let Ok(line) = std::str::from_utf8(line) else { continue };
            let (key, value) = line.split_once('=').unwrap_or((line, ""));
            if key == "Tree" {
                return (Section { entries }, true);
            }
            if !key.is_empty() {
                entries.push((key, value));
            }
        }
        self.rest = &[];
        (Section { entries }, false)
    }
}

/// The lines that describe the model or one tree.
struct Section<'a> {
    entries: Vec<(&'a str, &'a str)>,
}

impl<'a> Section<'a> {
    fn get(&self, key: &str) -> Option<&'a str> {
        self.entries.iter().rev().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }

    fn required(&self, key: &str) -> Result<&'a str, ReadError> {
        self.get(key)
            .ok_or_else(|| ReadError::malformed(format!("the LightGBM model has no {key}")))
    }

    fn number<T: std::str::FromStr>(&self, key: &str) -> Result<T, ReadError> {
        number(self.required(key)?, key)
    }

    /// Parses a list of `length` numbers, separated by spaces.
    fn list<T: std::str::FromStr>(&self, key: &str, length: usize) -> Result<Vec<T>, ReadError> {
        let text = self.required(key)?;
        // Each number except the last takes at least two bytes, so the file size bounds the list.
        let items = text.split_ascii_whitespace().map(|item| number(item, key));
        let list = items.collect::<Result<Vec<T>, _>>()?;
        if list.len() == length {
            return Ok(list);
        }
        Err(ReadError::malformed(format!(
            "{key} of a tree has {} numbers, expected {length}",
            list.len()
        )))
    }

    /// Parses a list that may be missing or empty.
    fn optional_list<T: std::str::FromStr>(
        &self,
        key: &str,
        length: usize,
    ) -> Result<Vec<T>, ReadError> {
        match self.get(key) {
            None | Some("") => Ok(Vec::new()),
            Some(_) => self.list(key, length),
        }
    }
}

fn number<T: std::str::FromStr>(text: &str, key: &str) -> Result<T, ReadError> {
    text.trim()
        .parse()
        .map_err(|_| ReadError::malformed(format!("{key} of the LightGBM model is no number")))
}
