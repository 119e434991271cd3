//! Compares grouped rows, single rows and threads with a walk of one row through one tree at a
//! time.

use crate::shape::Shape;
use crate::source::{SourceKind, SourceNode, SourceTree, Test};
use crate::{Forest, ForestTask, LengthError, Postprocessor, Precision};

/// A pseudorandom number generator.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn number(&mut self) -> f64 {
        self.below(1001) as f64 / 100.0 - 5.0
    }
}

fn random_test(draw: &mut Draw) -> Test {
    match draw.below(8) {
        0 => Test::LessOrEqual(draw.number()),
        1 => Test::Greater(draw.number()),
        2 => Test::GreaterOrEqual(draw.number()),
        3 => Test::Equal(draw.number().floor()),
        4 => Test::LessOrEqualUnlessZero(draw.number()),
        5 => Test::OneOf { first: draw.below(3) as usize, count: 3 },
        _ => Test::Less(draw.number()),
    }
}

fn random_tree(draw: &mut Draw, splits: usize, count: usize) -> SourceTree {
    let leaf = |draw: &mut Draw, values: &mut Vec<f64>| {
        let first = values.len();
        values.extend((0..count).map(|_| draw.number()));
        SourceNode { kind: SourceKind::Vector { first, count }, cover: None }
    };
    let mut tree = SourceTree { categories: vec![0, 1, 2, 4, 100_000], ..SourceTree::default() };
    let node = leaf(draw, &mut tree.values);
    tree.nodes.push(node);
    let mut leaves = vec![0];
    for _ in 0..splits {
        let at = leaves.swap_remove(draw.below(leaves.len() as u64) as usize);
        let left = tree.nodes.len();
        for _ in 0..2 {
            leaves.push(tree.nodes.len());
            let node = leaf(draw, &mut tree.values);
            tree.nodes.push(node);
        }
        tree.nodes[at].kind = SourceKind::Split {
            feature: draw.below(5) as u32,
            test: random_test(draw),
            missing_left: draw.below(2) == 0,
            left,
            right: left + 1,
        };
    }
    tree
}

/// Walks one row through one tree in its source form.
fn walk<'a>(tree: &'a SourceTree, row: &[f32]) -> &'a [f64] {
    let mut at = 0;
    loop {
        match &tree.nodes[at].kind {
            SourceKind::Leaf(_) => unreachable!("these trees have vectors"),
            SourceKind::Vector { first, count } => return &tree.values[*first..first + count],
            SourceKind::Split { feature, test, missing_left, left, right } => {
                let value = f64::from(row[*feature as usize]);
                let is_left = match test {
                    _ if value.is_nan() => *missing_left,
                    Test::Less(than) => value < *than,
                    Test::LessOrEqual(than) => value <= *than,
                    Test::Greater(than) => value > *than,
                    Test::GreaterOrEqual(than) => value >= *than,
                    Test::Equal(to) => value == *to,
                    Test::LessOrEqualUnlessZero(_) if value == 0.0 => *missing_left,
                    Test::LessOrEqualUnlessZero(than) => value <= *than,
                    Test::OneOf { first, count } => {
                        let list = &tree.categories[*first..first + count];
                        value >= 0.0 && list.contains(&(value as u32))
                    }
                };
                at = if is_left { *left } else { *right };
            }
        }
    }
}

fn random_rows(draw: &mut Draw, count: usize, with_nan: bool) -> Vec<f32> {
    let mut value = || match draw.below(8) {
        0 if with_nan => f32::NAN,
        1 => 0.0,
        2 => draw.number().floor() as f32,
        _ => draw.number() as f32,
    };
    (0..count * 5).map(|_| value()).collect()
}

fn shape(precision: Precision, classes: u32, targets: usize, is_average: bool) -> Shape {
    Shape {
        task: ForestTask::Regressor,
        precision,
        features: 5,
        classes: vec![classes; targets],
        is_average,
        postprocessor: Postprocessor::Identity,
        base_scores: vec![0.5],
    }
}

#[test]
fn groups_agree_with_single_walks() {
    let mut draw = Draw(1);
    for round in 0..60_usize {
        let splits = [0, 1, 7, 40][round % 4];
        let (classes, targets) = [(1, 1), (3, 1), (1, 2)][round % 3];
        let outputs = classes as usize * targets;
        let is_average = round % 5 == 0;
        let precision = if round % 2 == 0 { Precision::Single } else { Precision::Double };
        let count = if round % 7 < 3 { outputs } else { 1 };
        let mut trees: Vec<_> = (0..37).map(|_| random_tree(&mut draw, splits, count)).collect();
        for (index, tree) in trees.iter_mut().enumerate() {
            if count == 1 {
                tree.target = Some((index % targets) as u32);
                tree.class = Some(index as u32 % classes);
            }
        }
        let shape = shape(precision, classes, targets, is_average);
        let forest = Forest::new(shape, trees.iter().cloned().map(Ok)).unwrap();
        for rows in [1, 3, 15, 16, 25, 150, 600] {
            let values = random_rows(&mut draw, rows, round % 3 != 0);
            let mut output = vec![0.0; rows * outputs];
            forest.predict(&values, rows, &mut output, 2).unwrap();
            for (row, output) in values.chunks(5).zip(output.chunks(outputs)) {
                check_row(&trees, row, output, count, is_average);
            }
        }
    }
}

fn check_row(trees: &[SourceTree], row: &[f32], output: &[f32], count: usize, is_average: bool) {
    for (index, actual) in output.iter().enumerate() {
        let of_output = |tree: &SourceTree| {
            count > 1 || output.len() == 1 || {
                (tree.target.unwrap() as usize).max(tree.class.unwrap() as usize) == index
            }
        };
        let adding: Vec<_> = trees.iter().filter(|tree| of_output(tree)).collect();
        let element = if count > 1 { index } else { 0 };
        let sum: f64 = adding.iter().map(|tree| walk(tree, row)[element]).sum();
        let divisor = if is_average { adding.len() as f64 } else { 1.0 };
        let expected = sum / divisor + 0.5;
        assert!((f64::from(*actual) - expected).abs() < 1e-3, "{actual} is not {expected}");
    }
}

#[test]
fn infinity_stays_in_its_leaf() {
    let leaf = |value| SourceNode { kind: SourceKind::Leaf(value), cover: None };
    let kind = SourceKind::Split {
        feature: 0,
        test: Test::LessOrEqual(f64::INFINITY),
        missing_left: false,
        left: 1,
        right: 2,
    };
    let nodes = vec![SourceNode { kind, cover: None }, leaf(1.0), leaf(2.0)];
    let tree = SourceTree { nodes, target: Some(0), class: Some(0), ..SourceTree::default() };
    let deep = random_tree(&mut Draw(3), 30, 1);
    let deep = SourceTree { target: Some(0), class: Some(0), ..deep };
    let shape = shape(Precision::Single, 1, 1, false);
    let forest = Forest::new(shape, [Ok(tree), Ok(deep.clone())]).unwrap();
    for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        let row = [value; 5];
        let mut output = [0.0];
        forest.predict(&row, 1, &mut output, 1).unwrap();
        let first = if value.is_nan() { 2.0 } else { 1.0 };
        assert_eq!(output[0], first + walk(&deep, &row)[0] as f32 + 0.5);
    }
}

#[test]
fn lengths_must_fit() {
    let forest = Forest::new(shape(Precision::Single, 2, 1, false), []).unwrap();
    let mut output = [0.0; 4];
    let error = |what, expected, actual| Err(LengthError { what, expected, actual });
    assert_eq!(forest.predict(&[0.0; 9], 2, &mut output, 1), error("the input", 10, 9));
    assert_eq!(forest.predict(&[0.0; 15], 3, &mut output, 1), error("the output", 6, 4));
    forest.predict(&[0.0; 10], 2, &mut output, 1).unwrap();
    assert_eq!(output, [0.5; 4]);
}
