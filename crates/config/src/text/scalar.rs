//! From a written value to the value that its field takes.

use galatea_protocol::schema::{EnumDescriptor, Kind};

use super::literal::Number;
use crate::dynamic::Value;
use crate::suggest::{nearest, nearest_value};

/// A scalar as it is written.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Written<'a> {
    Number { number: Number, negative: bool, text: &'a str },
    Name { name: &'a str, negative: bool },
    Text(Vec<u8>),
}

impl Written<'_> {
    /// How a diagnostic speaks of it.
    fn describe(&self) -> String {
        let sign = |negative: bool| if negative { "-" } else { "" };
        match self {
            Self::Number { negative, text, .. } => format!("{}{}", sign(*negative), short(text)),
            Self::Name { name, negative } => format!("'{}{}'", sign(*negative), short(name)),
            Self::Text(bytes) => {
                let text = String::from_utf8_lossy(bytes);
                format!("the string \"{}\"", short(&text))
            }
        }
    }
}

/// Source text fit for a diagnostic: one line, and not too long.
pub(super) fn short(text: &str) -> String {
    const MOST: usize = 40;
    let mut shown = String::new();
    for c in text.chars().take(MOST) {
        if c.is_control() { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    if text.chars().nth(MOST).is_some() {
        shown.push_str("...");
    }
    shown
}

/// Why a value is not one for its field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mismatch {
    pub(super) message: String,
    pub(super) expected: String,
    pub(super) suggestion: Option<String>,
}

/// The value, if the field's type has it.
pub(super) fn value(kind: Kind, written: &Written<'_>) -> Result<Value, Mismatch> {
    match kind {
        Kind::Int32 => integer(kind, written, |i| i32::try_from(i).ok().map(Value::I32)),
        Kind::Int64 => integer(kind, written, |i| i64::try_from(i).ok().map(Value::I64)),
        Kind::Uint32 => integer(kind, written, |i| u32::try_from(i).ok().map(Value::U32)),
        Kind::Uint64 => integer(kind, written, |i| u64::try_from(i).ok().map(Value::U64)),
        Kind::Float => float(kind, written).map(|f| Value::F32(narrow(f))),
        Kind::Double => float(kind, written).map(Value::F64),
        Kind::Bool => boolean(kind, written),
        Kind::String => match written {
            Written::Text(bytes) => {
                String::from_utf8(bytes.clone()).map(Value::String).map_err(|_| Mismatch {
                    message: "the string is not UTF-8".to_owned(),
                    expected: expectation(kind),
                    suggestion: None,
                })
            }
            Written::Number { .. } | Written::Name { .. } => Err(wrong_type(kind, written)),
        },
        Kind::Enum(descriptor) => enumeration(descriptor, kind, written),
        Kind::Message(_) => Err(wrong_type(kind, written)),
    }
}

/// What a field of this type takes.
pub(super) fn expectation(kind: Kind) -> String {
    match kind {
        Kind::Int32 => range(i32::MIN, i32::MAX),
        Kind::Int64 => range(i64::MIN, i64::MAX),
        Kind::Uint32 => range(u32::MIN, u32::MAX),
        Kind::Uint64 => range(u64::MIN, u64::MAX),
        Kind::Float | Kind::Double => "a number".to_owned(),
        Kind::Bool => "true or false".to_owned(),
        Kind::String => "a string in quotes".to_owned(),
        Kind::Enum(descriptor) => {
            format!("one of {}", descriptor.names().collect::<Vec<_>>().join(", "))
        }
        Kind::Message(descriptor) => format!("the fields of {} in braces", descriptor.name),
    }
}

fn range(least: impl std::fmt::Display, most: impl std::fmt::Display) -> String {
    format!("an integer from {least} to {most}")
}

fn wrong_type(kind: Kind, written: &Written<'_>) -> Mismatch {
    let suggestion = match (kind, written) {
        // The commonest slips: quotes too many, and quotes too few.
        (Kind::Enum(descriptor), Written::Text(bytes)) => {
            let text = String::from_utf8_lossy(bytes);
            nearest_value(&text, &values(descriptor))
        }
        (Kind::String, Written::Name { name, negative: false }) => Some(format!("\"{name}\"")),
        (_, Written::Text(bytes)) => {
            let text = String::from_utf8_lossy(bytes);
            let scalar = !matches!(kind, Kind::Message(_) | Kind::String);
            let plain = text.parse::<f64>().is_ok() || text == "true" || text == "false";
            (scalar && plain).then(|| short(&text))
        }
        _ => None,
    };
    Mismatch {
        message: format!("{} is of the wrong type", written.describe()),
        expected: expectation(kind),
        suggestion,
    }
}

fn integer(
    kind: Kind,
    written: &Written<'_>,
    fit: impl Fn(i128) -> Option<Value>,
) -> Result<Value, Mismatch> {
    let Written::Number { number: Number::Integer { magnitude, .. }, negative, .. } = written
    else {
        return Err(wrong_type(kind, written));
    };
    let signed = magnitude.map(i128::from).map(|i| if *negative { -i } else { i });
    signed.and_then(fit).ok_or_else(|| out_of_range(kind, written))
}

fn out_of_range(kind: Kind, written: &Written<'_>) -> Mismatch {
    Mismatch {
        message: format!("{} is out of range", written.describe()),
        expected: expectation(kind),
        suggestion: None,
    }
}

fn float(kind: Kind, written: &Written<'_>) -> Result<f64, Mismatch> {
    let (magnitude, negative) = match written {
        Written::Number { number: Number::Float(f), negative, .. } => (*f, *negative),
        Written::Number { number: Number::Integer { based: false, .. }, negative, text } => {
            // Digits only, of any length: always a number.
            (text.parse().unwrap_or(f64::INFINITY), *negative)
        }
        Written::Name { name, negative } => {
            let magnitude = match name.to_ascii_lowercase().as_str() {
                "inf" | "infinity" => f64::INFINITY,
                "nan" => f64::NAN,
                _ => return Err(wrong_type(kind, written)),
            };
            (magnitude, *negative)
        }
        Written::Number { .. } | Written::Text(_) => return Err(wrong_type(kind, written)),
    };
    Ok(if negative { -magnitude } else { magnitude })
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to single precision is the point")]
const fn narrow(number: f64) -> f32 {
    number as f32
}

fn boolean(kind: Kind, written: &Written<'_>) -> Result<Value, Mismatch> {
    match written {
        Written::Name { name, negative: false } => match *name {
            "true" | "True" | "t" => Ok(Value::Bool(true)),
            "false" | "False" | "f" => Ok(Value::Bool(false)),
            other => Err(Mismatch {
                message: format!("'{}' is neither true nor false", short(other)),
                expected: expectation(kind),
                suggestion: nearest(other, ["true", "false"].into_iter()),
            }),
        },
        Written::Number {
            number: Number::Integer { magnitude: Some(magnitude @ (0 | 1)), .. },
            negative: false,
            ..
        } => Ok(Value::Bool(*magnitude == 1)),
        Written::Number { .. } | Written::Name { .. } | Written::Text(_) => {
            Err(wrong_type(kind, written))
        }
    }
}

fn values(descriptor: &EnumDescriptor) -> Vec<String> {
    descriptor.names().map(str::to_owned).collect()
}

fn enumeration(
    descriptor: &EnumDescriptor,
    kind: Kind,
    written: &Written<'_>,
) -> Result<Value, Mismatch> {
    let unknown = |suggestion| Mismatch {
        message: format!("{} is not a value of {}", written.describe(), descriptor.name),
        expected: expectation(kind),
        suggestion,
    };
    match written {
        Written::Name { name, negative: false } => {
            let found = descriptor.number(name).map(Value::EnumNumber);
            found.ok_or_else(|| unknown(nearest_value(name, &values(descriptor))))
        }
        Written::Number { number: Number::Integer { magnitude, .. }, negative, .. } => magnitude
            .map(i128::from)
            .map(|i| if *negative { -i } else { i })
            .and_then(|i| i32::try_from(i).ok())
            .filter(|number| descriptor.name_of(*number).is_some())
            .map(Value::EnumNumber)
            .ok_or_else(|| unknown(None)),
        Written::Number { .. } | Written::Name { .. } | Written::Text(_) => {
            Err(wrong_type(kind, written))
        }
    }
}
