//! Converts scalar tokens to values of their fields' types.

use galatea_protocol::schema::{EnumDescriptor, FieldKind};

use super::literal::Number;
use galatea_config_message::BoundedText;
use galatea_config_message::bounded;
use galatea_config_message::dynamic::DynamicValue;
use galatea_config_message::{nearest_enum_value, nearest_name};

/// A scalar as written.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ScalarToken<'a> {
    Number { number: Number, negative: bool, text: &'a str },
    Name { name: &'a str, negative: bool },
    Text(Vec<u8>),
}

impl ScalarToken<'_> {
    /// A description of the scalar for diagnostics.
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

/// Shortens source text for a diagnostic: one line of limited length.
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

/// The reason why a scalar does not fit its field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ScalarError {
    pub(super) message: String,
    pub(super) expected: String,
    pub(super) suggestion: Option<BoundedText>,
}

/// Converts a scalar to a value of the field's type.
pub(super) fn value(kind: FieldKind, token: &ScalarToken<'_>) -> Result<DynamicValue, ScalarError> {
    match kind {
        FieldKind::Int32 => integer(kind, token, |i| i32::try_from(i).ok().map(DynamicValue::I32)),
        FieldKind::Int64 => integer(kind, token, |i| i64::try_from(i).ok().map(DynamicValue::I64)),
        FieldKind::Uint32 => integer(kind, token, |i| u32::try_from(i).ok().map(DynamicValue::U32)),
        FieldKind::Uint64 => integer(kind, token, |i| u64::try_from(i).ok().map(DynamicValue::U64)),
        FieldKind::Float => float(kind, token).map(|f| DynamicValue::F32(narrow(f))),
        FieldKind::Double => float(kind, token).map(DynamicValue::F64),
        FieldKind::Bool => boolean(kind, token),
        FieldKind::String => match token {
            ScalarToken::Text(bytes) => String::from_utf8(bytes.clone())
                .map(DynamicValue::String)
                .map_err(|_| ScalarError {
                    message: "the string is not UTF-8".to_owned(),
                    expected: expectation(kind),
                    suggestion: None,
                }),
            ScalarToken::Number { .. } | ScalarToken::Name { .. } => Err(wrong_type(kind, token)),
        },
        FieldKind::Enum(descriptor) => enumeration(descriptor, kind, token),
        FieldKind::Message(_) => Err(wrong_type(kind, token)),
    }
}

/// A description of a type's values.
pub(super) fn expectation(kind: FieldKind) -> String {
    match kind {
        FieldKind::Int32 => range(i32::MIN, i32::MAX),
        FieldKind::Int64 => range(i64::MIN, i64::MAX),
        FieldKind::Uint32 => range(u32::MIN, u32::MAX),
        FieldKind::Uint64 => range(u64::MIN, u64::MAX),
        FieldKind::Float | FieldKind::Double => "a number".to_owned(),
        FieldKind::Bool => "true or false".to_owned(),
        FieldKind::String => "a string in quotes".to_owned(),
        FieldKind::Enum(descriptor) => {
            format!("one of {}", descriptor.names().collect::<Vec<_>>().join(", "))
        }
        FieldKind::Message(descriptor) => format!("the fields of {} in braces", descriptor.name),
    }
}

fn range(least: impl std::fmt::Display, most: impl std::fmt::Display) -> String {
    format!("an integer from {least} to {most}")
}

fn wrong_type(kind: FieldKind, token: &ScalarToken<'_>) -> ScalarError {
    let suggestion = match (kind, token) {
        // The most common mistakes are superfluous and missing quotes.
        (FieldKind::Enum(descriptor), ScalarToken::Text(bytes)) => {
            let text = String::from_utf8_lossy(bytes);
            nearest_enum_value(&text, &values(descriptor))
        }
        (FieldKind::String, ScalarToken::Name { name, negative: false }) => {
            Some(bounded!("\"{name}\""))
        }
        (_, ScalarToken::Text(bytes)) => {
            let text = String::from_utf8_lossy(bytes);
            let scalar = !matches!(kind, FieldKind::Message(_) | FieldKind::String);
            let plain = text.parse::<f64>().is_ok() || text == "true" || text == "false";
            (scalar && plain).then(|| bounded!("{}", short(&text)))
        }
        _ => None,
    };
    ScalarError {
        message: format!("{} is of the wrong type", token.describe()),
        expected: expectation(kind),
        suggestion,
    }
}

fn integer(
    kind: FieldKind,
    token: &ScalarToken<'_>,
    fit: impl Fn(i128) -> Option<DynamicValue>,
) -> Result<DynamicValue, ScalarError> {
    let ScalarToken::Number { number: Number::Integer { magnitude, .. }, negative, .. } = token
    else {
        return Err(wrong_type(kind, token));
    };
    let signed = magnitude.map(i128::from).map(|i| if *negative { -i } else { i });
    signed.and_then(fit).ok_or_else(|| out_of_range(kind, token))
}

fn out_of_range(kind: FieldKind, token: &ScalarToken<'_>) -> ScalarError {
    ScalarError {
        message: format!("{} is out of range", token.describe()),
        expected: expectation(kind),
        suggestion: None,
    }
}

fn float(kind: FieldKind, token: &ScalarToken<'_>) -> Result<f64, ScalarError> {
    let (magnitude, negative) = match token {
        ScalarToken::Number { number: Number::Float(f), negative, .. } => (*f, *negative),
        ScalarToken::Number { number: Number::Integer { based: false, .. }, negative, text } => {
            // A sequence of digits, however long, is always a number.
            (text.parse().unwrap_or(f64::INFINITY), *negative)
        }
        ScalarToken::Name { name, negative } => {
            let magnitude = match name.to_ascii_lowercase().as_str() {
                "inf" | "infinity" => f64::INFINITY,
                "nan" => f64::NAN,
                _ => return Err(wrong_type(kind, token)),
            };
            (magnitude, *negative)
        }
        ScalarToken::Number { .. } | ScalarToken::Text(_) => return Err(wrong_type(kind, token)),
    };
    Ok(if negative { -magnitude } else { magnitude })
}

#[expect(clippy::cast_possible_truncation, reason = "the value is rounded to single precision")]
const fn narrow(number: f64) -> f32 {
    number as f32
}

fn boolean(kind: FieldKind, token: &ScalarToken<'_>) -> Result<DynamicValue, ScalarError> {
    match token {
        ScalarToken::Name { name, negative: false } => match *name {
            "true" | "True" | "t" => Ok(DynamicValue::Bool(true)),
            "false" | "False" | "f" => Ok(DynamicValue::Bool(false)),
            other => Err(ScalarError {
                message: format!("'{}' is neither true nor false", short(other)),
                expected: expectation(kind),
                suggestion: nearest_name(other, ["true", "false"].into_iter()),
            }),
        },
        ScalarToken::Number {
            number: Number::Integer { magnitude: Some(magnitude @ (0 | 1)), .. },
            negative: false,
            ..
        } => Ok(DynamicValue::Bool(*magnitude == 1)),
        ScalarToken::Number { .. } | ScalarToken::Name { .. } | ScalarToken::Text(_) => {
            Err(wrong_type(kind, token))
        }
    }
}

fn values(descriptor: &EnumDescriptor) -> Vec<String> {
    descriptor.names().map(str::to_owned).collect()
}

fn enumeration(
    descriptor: &EnumDescriptor,
    kind: FieldKind,
    token: &ScalarToken<'_>,
) -> Result<DynamicValue, ScalarError> {
    let unknown = |suggestion| ScalarError {
        message: format!("{} is not a value of {}", token.describe(), descriptor.name),
        expected: expectation(kind),
        suggestion,
    };
    match token {
        ScalarToken::Name { name, negative: false } => {
            let found = descriptor.number(name).map(DynamicValue::EnumNumber);
            found.ok_or_else(|| unknown(nearest_enum_value(name, &values(descriptor))))
        }
        ScalarToken::Number { number: Number::Integer { magnitude, .. }, negative, .. } => {
            magnitude
                .map(i128::from)
                .map(|i| if *negative { -i } else { i })
                .and_then(|i| i32::try_from(i).ok())
                .filter(|number| descriptor.name_of(*number).is_some())
                .map(DynamicValue::EnumNumber)
                .ok_or_else(|| unknown(None))
        }
        ScalarToken::Number { .. } | ScalarToken::Name { .. } | ScalarToken::Text(_) => {
            Err(wrong_type(kind, token))
        }
    }
}
