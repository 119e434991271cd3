//! Reads checkpoints of treelite 4, and those of treelite 3.9, which are converted to the same
//! form.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod old;
#[cfg(test)]
mod tests;
mod tree;

use crate::bytes::Bytes;
use crate::shape::Shape;
use crate::{Forest, ForestTask, Postprocessor, Precision, ReadError};

/// Reads a checkpoint.
pub(crate) fn read(file: &[u8]) -> Result<Forest, ReadError> {
    let mut cursor = Cursor { bytes: Bytes::new(file, "treelite checkpoint") };
    let [major, minor, patch] = [cursor.i32()?, cursor.i32()?, cursor.i32()?];
    match (major, minor) {
        (4, _) => read_current(&mut cursor),
        (3, 9) => old::read(&mut cursor),
        _ => Err(ReadError::unsupported(format!(
            "the checkpoint is of treelite {major}.{minor}.{patch}; versions 4 and 3.9 are read"
        ))),
    }
}

fn read_current(cursor: &mut Cursor<'_>) -> Result<Forest, ReadError> {
    let precision = cursor.precision()?;
    let trees = cursor.u64()?;
    let features = cursor.features()?;
    let task = cursor.byte()?;
    let is_average = cursor.byte()? != 0;
    let targets = cursor.i32()?;
    let classes = cursor.list(u32::from_le_bytes)?;
    let vector = cursor.list(i32::from_le_bytes)?;
    let tree_targets = cursor.list(i32::from_le_bytes)?;
    let tree_classes = cursor.list(i32::from_le_bytes)?;
    let postprocessor = cursor.text()?;
    let alpha = f32::from_le_bytes(cursor.array()?);
    let ratio = f32::from_le_bytes(cursor.array()?);
    let base_scores = cursor.list(f64::from_le_bytes)?;
    let _attributes = cursor.take_list(1)?;
    cursor.skip_extensions()?;
    if usize::try_from(targets) != Ok(classes.len()) || vector.len() != 2 {
        return Err(cursor.error("the numbers of targets, classes and leaf values differ"));
    }
    let shape = Shape {
        task: task_of(task).ok_or_else(|| cursor.error("unknown task"))?,
        precision,
        features,
        classes,
        is_average,
        postprocessor: postprocessor_of(&postprocessor, alpha, ratio)?,
        base_scores,
    };
    let mut owners = tree_targets.iter().zip(&tree_classes);
    let trees = (0..trees).map(|_| {
        let mut tree = tree::read(cursor, precision)?;
        let Some((target, class)) = owners.next() else {
            return Err(cursor.error("a tree belongs to no target and class"));
        };
        // -1 means all.
        (tree.target, tree.class) = (u32::try_from(*target).ok(), u32::try_from(*class).ok());
        Ok(tree)
    });
    Forest::new(shape, trees)
}

fn task_of(number: u8) -> Option<ForestTask> {
    Some(match number {
        0 => ForestTask::BinaryClassifier,
        1 => ForestTask::Regressor,
        2 => ForestTask::MultiClassifier,
        3 => ForestTask::LearningToRank,
        4 => ForestTask::IsolationForest,
        _ => return None,
    })
}

fn postprocessor_of(name: &str, alpha: f32, ratio: f32) -> Result<Postprocessor, ReadError> {
    Postprocessor::from_name(name, alpha, ratio)
        .ok_or_else(|| ReadError::unsupported(format!("Post-processor named '{name}' not found")))
}

/// The unread part of a checkpoint. Scalars have their in-memory form, and lists follow their
/// lengths.
struct Cursor<'a> {
    bytes: Bytes<'a>,
}

impl<'a> Cursor<'a> {
    fn error(&self, what: &str) -> ReadError {
        self.bytes.error(what)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ReadError> {
        self.bytes.array()
    }

    fn byte(&mut self) -> Result<u8, ReadError> {
        self.bytes.byte()
    }

    fn i32(&mut self) -> Result<i32, ReadError> {
        Ok(i32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, ReadError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn features(&mut self) -> Result<u32, ReadError> {
        let features = self.i32()?;
        u32::try_from(features).map_err(|_| self.error("a negative number of features"))
    }

    /// The type of thresholds and leaves. It is the same for both in every supported model.
    fn precision(&mut self) -> Result<Precision, ReadError> {
        match [self.byte()?, self.byte()?] {
            [2, 2] => Ok(Precision::Single),
            [3, 3] => Ok(Precision::Double),
            [threshold, leaf] => Err(ReadError::unsupported(format!(
                "the checkpoint has thresholds of type {threshold} and leaves of type {leaf}, \
                 which are not both float32 or both float64"
            ))),
        }
    }

    /// Takes the bytes of a list, before memory is allocated for the list.
    fn take_list(&mut self, width: usize) -> Result<&'a [u8], ReadError> {
        let length = usize::try_from(self.u64()?).ok().and_then(|count| count.checked_mul(width));
        self.bytes.take(length.unwrap_or(usize::MAX))
    }

    fn list<T, const N: usize>(&mut self, convert: fn([u8; N]) -> T) -> Result<Vec<T>, ReadError> {
        let (items, _) = self.take_list(N)?.as_chunks();
        Ok(items.iter().map(|item| convert(*item)).collect())
    }

    /// A list of floating-point numbers in the given precision.
    fn reals(&mut self, precision: Precision) -> Result<Vec<f64>, ReadError> {
        match precision {
            Precision::Single => self.list(|bytes| f64::from(f32::from_le_bytes(bytes))),
            Precision::Double => self.list(f64::from_le_bytes),
        }
    }

    fn text(&mut self) -> Result<String, ReadError> {
        Ok(String::from_utf8_lossy(self.take_list(1)?).into_owned())
    }

    /// Skips fields that newer versions may add: each has a name, an item width and a list.
    fn skip_extensions(&mut self) -> Result<(), ReadError> {
        for _ in 0..self.i32()? {
            self.take_list(1)?;
            let width = usize::try_from(self.u64()?).unwrap_or(usize::MAX);
            self.take_list(width)?;
        }
        Ok(())
    }
}
