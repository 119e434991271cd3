//! Named values in requests and responses.

/// A named value that travels with a request or a response.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The parameter's name.
    pub name: String,
    /// The parameter's value.
    pub value: ParameterValue,
}

/// The value of a [`Parameter`].
#[derive(Clone, Debug, PartialEq)]
pub enum ParameterValue {
    /// A boolean.
    Bool(bool),
    /// A signed integer.
    Int64(i64),
    /// A floating-point number.
    Double(f64),
    /// A string.
    String(String),
}
