//! Handmade checkpoints, each of which tests one feature.

#![allow(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::{Forest, ForestTask, ModelFormat, Postprocessor, ReadError, read_forest};

/// A checkpoint under construction, with a tree of three nodes whose root tests feature 1.
struct Checkpoint {
    version: [i32; 3],
    types: [u8; 2],
    targets: i32,
    classes: Vec<i32>,
    leaf_shape: Vec<i32>,
    owner: [i32; 2],
    postprocessor: &'static str,
    base_scores: Vec<f64>,
    extensions: bool,
    root_kind: u8,
    comparison: u8,
    is_right_list: bool,
    vectors: Vec<f32>,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self {
            version: [4, 4, 1],
            types: [2, 2],
            targets: 1,
            classes: vec![1],
            leaf_shape: vec![1, 1],
            owner: [0, 0],
            postprocessor: "identity",
            base_scores: vec![0.5],
            extensions: false,
            root_kind: 1,
            comparison: 2,
            is_right_list: false,
            vectors: Vec::new(),
        }
    }
}

impl Checkpoint {
    fn bytes(&self) -> Vec<u8> {
        let mut file = Vec::new();
        self.version.iter().for_each(|number| file.extend(number.to_le_bytes()));
        file.extend(self.types);
        file.extend(1_u64.to_le_bytes());
        file.extend(2_i32.to_le_bytes());
        file.extend([1, 0]);
        file.extend(self.targets.to_le_bytes());
        list(&mut file, &self.classes, i32::to_le_bytes);
        list(&mut file, &self.leaf_shape, i32::to_le_bytes);
        list(&mut file, &self.owner[..1], i32::to_le_bytes);
        list(&mut file, &self.owner[1..], i32::to_le_bytes);
        list(&mut file, self.postprocessor.as_bytes(), |byte| [byte]);
        file.extend(2.0_f32.to_le_bytes());
        file.extend(1.0_f32.to_le_bytes());
        list(&mut file, &self.base_scores, f64::to_le_bytes);
        list(&mut file, b"{}", |byte| [byte]);
        self.extend(&mut file);
        self.tree(&mut file);
        file
    }

    fn extend(&self, file: &mut Vec<u8>) {
        file.extend(i32::from(self.extensions).to_le_bytes());
        if self.extensions {
            list(file, b"new", |byte| [byte]);
            file.extend(4_u64.to_le_bytes());
            file.extend(2_u64.to_le_bytes());
            file.extend([9; 8]);
        }
    }

    fn tree(&self, file: &mut Vec<u8>) {
        file.extend(3_i32.to_le_bytes());
        file.push(1);
        let byte = |byte: u8| [byte];
        list(file, &[self.root_kind, 0, 0], byte);
        list(file, &[1, -1, -1], i32::to_le_bytes);
        list(file, &[2, -1, -1], i32::to_le_bytes);
        list(file, &[1, -1, -1], i32::to_le_bytes);
        list(file, &[1, 0, 0], byte);
        list(file, &[0.0, 1.0, 2.0], f32::to_le_bytes);
        list(file, &[3.0, 0.0, 0.0], f32::to_le_bytes);
        list(file, &[self.comparison, 0, 0], byte);
        list(file, &[u8::from(self.is_right_list), 0, 0], byte);
        list(file, &self.vectors, f32::to_le_bytes);
        let width = self.vectors.len() as u64 / 2;
        list(file, &[0, 0, width], u64::to_le_bytes);
        list(file, &[0, width, 2 * width], u64::to_le_bytes);
        list(file, &[3_u32, 7], u32::to_le_bytes);
        list(file, &[0, 2, 2], u64::to_le_bytes);
        list(file, &[2, 2, 2], u64::to_le_bytes);
        list(file, &[10, 6, 4], u64::to_le_bytes);
        list(file, &[1, 1, 1], byte);
        list(file, &[] as &[f64], f64::to_le_bytes);
        list(file, &[], byte);
        list(file, &[] as &[f64], f64::to_le_bytes);
        list(file, &[], byte);
        self.extend(file);
        self.extend(file);
    }

    fn read(&self) -> Result<Forest, ReadError> {
        read_forest(ModelFormat::Treelite, &self.bytes())
    }
}

fn list<T: Copy, const N: usize>(file: &mut Vec<u8>, items: &[T], convert: fn(T) -> [u8; N]) {
    file.extend((items.len() as u64).to_le_bytes());
    items.iter().for_each(|item| file.extend(convert(*item)));
}

/// Checks the predictions for the values 2, 3, 7 and NaN of feature 1.
fn check(checkpoint: &Checkpoint, expected: &[f32]) {
    let forest = checkpoint.read().unwrap();
    let mut output = vec![0.0; 4 * forest.outputs_per_row()];
    forest.predict(&[0.0, 2.0, 0.0, 3.0, 0.0, 7.0, 0.0, f32::NAN], 4, &mut output, 1).unwrap();
    assert_eq!(output, expected);
}

fn check_error(checkpoint: &Checkpoint, expected: &str) {
    assert_eq!(checkpoint.read().unwrap_err().to_string(), expected);
}

#[test]
fn each_comparison_sends_rows() {
    let compare = |comparison| Checkpoint { comparison, ..Checkpoint::default() };
    check(&compare(1), &[2.5, 1.5, 2.5, 1.5]);
    check(&compare(2), &[1.5, 2.5, 2.5, 1.5]);
    check(&compare(3), &[1.5, 1.5, 2.5, 1.5]);
    check(&compare(4), &[2.5, 2.5, 1.5, 1.5]);
    check(&compare(5), &[2.5, 1.5, 1.5, 1.5]);
    check_error(&compare(0), "Unrecognized comparison operator 0");
}

#[test]
fn lists_of_categories_belong_to_either_child() {
    let list = |is_right_list| Checkpoint { root_kind: 2, is_right_list, ..Checkpoint::default() };
    check(&list(false), &[2.5, 1.5, 1.5, 1.5]);
    check(&list(true), &[1.5, 2.5, 2.5, 1.5]);
}

#[test]
fn vectors_belong_to_classes_or_targets() {
    let vectors = vec![1.0, 10.0, 2.0, 20.0];
    let classes = Checkpoint {
        classes: vec![2],
        leaf_shape: vec![1, 2],
        owner: [0, -1],
        base_scores: vec![0.0, 0.5],
        vectors,
        ..Checkpoint::default()
    };
    let expected = [1.0, 10.5, 2.0, 20.5, 2.0, 20.5, 1.0, 10.5];
    check(&classes, &expected);
    let targets = Checkpoint {
        targets: 2,
        classes: vec![1, 1],
        leaf_shape: vec![2, 1],
        owner: [-1, 0],
        ..classes
    };
    check(&targets, &expected);
}

#[test]
fn extensions_of_newer_versions_are_skipped() {
    let newer = Checkpoint { version: [4, 99, 0], extensions: true, ..Checkpoint::default() };
    check(&newer, &[1.5, 2.5, 2.5, 1.5]);
    let older = Checkpoint { version: [3, 8, 0], ..Checkpoint::default() };
    check_error(&older, "the checkpoint is of treelite 3.8.0; versions 4 and 3.9 are read");
}

#[test]
fn the_header_is_understood() {
    let forest = Checkpoint { postprocessor: "sigmoid", ..Checkpoint::default() }.read().unwrap();
    assert_eq!(forest.postprocessor(), Postprocessor::Sigmoid { alpha: 2.0 });
    assert_eq!((forest.task(), forest.feature_count()), (ForestTask::Regressor, 2));
    let unknown = Checkpoint { postprocessor: "x", ..Checkpoint::default() };
    check_error(&unknown, "Post-processor named 'x' not found");
    let mixed = Checkpoint { types: [2, 1], ..Checkpoint::default() };
    check_error(
        &mixed,
        "the checkpoint has thresholds of type 2 and leaves of type 1, which are not both float32 \
         or both float64",
    );
}

#[test]
fn a_shortened_checkpoint_is_refused() {
    let whole = Checkpoint { extensions: true, ..Checkpoint::default() }.bytes();
    for length in 0..whole.len() {
        assert!(read_forest(ModelFormat::Treelite, &whole[..length]).is_err(), "{length}");
    }
}
