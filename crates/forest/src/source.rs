//! Trees as a file describes them. Nodes may be in any order, and tests are in the form of their
//! library.

/// A test of one feature. If the test is true, the left child is chosen.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Test {
    Less(f64),
    LessOrEqual(f64),
    Greater(f64),
    GreaterOrEqual(f64),
    Equal(f64),
    /// LightGBM's test for features whose zeros are missing values. Zero and NaN take the default
    /// direction; other values are compared with `<=`.
    LessOrEqualUnlessZero(f64),
    /// A range in the tree's `categories`.
    OneOf {
        first: usize,
        count: usize,
    },
}

/// The content of a node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SourceKind {
    Leaf(f64),
    /// A leaf with several values: a range in the tree's `values`.
    Vector {
        first: usize,
        count: usize,
    },
    Split {
        feature: u32,
        test: Test,
        missing_left: bool,
        left: usize,
        right: usize,
    },
}

/// A node, with the number or the total weight of the training rows that reached it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SourceNode {
    pub(crate) kind: SourceKind,
    pub(crate) cover: Option<f64>,
}

/// A tree whose root is node 0. Nodes that can't be reached from the root are not added to the
/// forest.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SourceTree {
    pub(crate) nodes: Vec<SourceNode>,
    pub(crate) categories: Vec<u32>,
    pub(crate) values: Vec<f64>,
    /// The target that the tree belongs to; `None` if its leaves have a value for each target.
    pub(crate) target: Option<u32>,
    /// The class that the tree belongs to; `None` if its leaves have a value for each class.
    pub(crate) class: Option<u32>,
}
