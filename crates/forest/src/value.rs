//! XGBoost documents, for both JSON and UBJSON. Arrays of numbers are stored contiguously, because
//! they make up nearly all of a model.

/// The maximum nesting depth of a document. XGBoost uses fewer than ten levels.
pub(crate) const DEPTH_MAX: usize = 64;

/// A value in a document. In arrays of numbers, booleans are stored as 0 and 1.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Number(f64),
    Text(Box<str>),
    Numbers(Vec<f64>),
    List(Vec<Value>),
    Map(Vec<(Box<str>, Value)>),
}

impl Value {
    /// The value for a key. If the key is repeated, the last value is returned.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Map(entries) => {
                entries.iter().rev().find(|(name, _)| &**name == key).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    /// A number, which XGBoost may also write as a string.
    pub(crate) fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(text) => text.trim().parse().ok(),
            Self::Bool(is_true) => Some(f64::from(u8::from(*is_true))),
            _ => None,
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// An array of numbers. An empty array is stored as a list.
    pub(crate) fn numbers(&self) -> Option<&[f64]> {
        match self {
            Self::Numbers(numbers) => Some(numbers),
            Self::List(list) if list.is_empty() => Some(&[]),
            _ => None,
        }
    }

    pub(crate) fn list(&self) -> Option<&[Self]> {
        match self {
            Self::List(list) => Some(list),
            _ => None,
        }
    }
}

/// An array under construction. It contains either numbers or other values. No array that matters
/// mixes the two, so mixed arrays are dropped. This keeps the memory for a hostile file
/// proportional to its size.
#[derive(Default)]
pub(crate) struct ArrayBuilder {
    numbers: Vec<f64>,
    list: Vec<Value>,
    is_mixed: bool,
}

impl ArrayBuilder {
    pub(crate) fn push(&mut self, value: Value) {
        match value {
            Value::Number(number) if self.list.is_empty() => self.numbers.push(number),
            Value::Bool(is_true) if self.list.is_empty() => {
                self.numbers.push(f64::from(u8::from(is_true)));
            }
            Value::Number(_) | Value::Bool(_) | Value::Null => self.drop_all(),
            value if self.numbers.is_empty() => self.list.push(value),
            _ => self.drop_all(),
        }
    }

    fn drop_all(&mut self) {
        *self = Self { is_mixed: true, ..Self::default() };
    }

    pub(crate) fn finish(mut self) -> Value {
        if self.is_mixed {
            return Value::Null;
        }
        if !self.numbers.is_empty() {
            self.numbers.shrink_to_fit();
            return Value::Numbers(self.numbers);
        }
        self.list.shrink_to_fit();
        Value::List(self.list)
    }
}
