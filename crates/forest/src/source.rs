//! Trees as a file describes them: nodes in any order, each test in the words of its library.

/// A test of one feature. True leads to the left child.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Test {
    Less(f64),
    LessOrEqual(f64),
    Greater(f64),
    GreaterOrEqual(f64),
    Equal(f64),
    /// LightGBM's numbers that are missing where they are zero: zero and NaN follow the default
    /// direction, any other value is compared with `<=`.
    LessOrEqualUnlessZero(f64),
    /// A list of categories: a part of the tree's `categories`.
    OneOf {
        first: usize,
        count: usize,
    },
}

/// A node's content.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SourceKind {
    Leaf(f64),
    /// A leaf with a vector: its place in the tree's `values`.
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

/// A node with the number of training rows, or their weight, that came to it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SourceNode {
    pub(crate) kind: SourceKind,
    pub(crate) cover: Option<f64>,
}

/// A tree whose root is node 0. Nodes that the root does not reach are left out of the forest.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SourceTree {
    pub(crate) nodes: Vec<SourceNode>,
    pub(crate) categories: Vec<u32>,
    pub(crate) values: Vec<f64>,
    /// The target to which the tree belongs; none if its leaves have a value for each.
    pub(crate) target: Option<u32>,
    /// The class to which the tree belongs; none if its leaves have a value for each.
    pub(crate) class: Option<u32>,
}
