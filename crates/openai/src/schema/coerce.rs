//! Scalar values, including the other values that pydantic accepts as a number or a boolean.

use super::Problem;
use crate::json::JsonValue;

pub(super) fn int(
    value: &JsonValue,
    min: Option<i64>,
    max: Option<i64>,
) -> Result<JsonValue, Problem> {
    let found = match value {
        JsonValue::Int(number) => Ok(*number),
        JsonValue::Bool(value) => Ok(i64::from(*value)),
        JsonValue::BigInt(digits) => Err(is_negative(digits)),
        JsonValue::Float(number) => return whole(*number).and_then(|value| int(&value, min, max)),
        JsonValue::Text(text) => return parsed(text).and_then(|value| int(&value, min, max)),
        JsonValue::Null | JsonValue::List(_) | JsonValue::Object(_) => {
            return Err(Problem::IntType);
        }
    };
    // A number that doesn't fit into 64 bits exceeds any bound.
    let is_below = |min: i64| found.map_or_else(|is_negative| is_negative, |number| number < min);
    let is_above = |max: i64| found.map_or_else(|is_negative| !is_negative, |number| number > max);
    if let Some(max) = max.filter(|max| is_above(*max)) {
        return Err(Problem::IntTooLarge(max));
    }
    if let Some(min) = min.filter(|min| is_below(*min)) {
        return Err(Problem::IntTooSmall(min));
    }
    Ok(found.map_or_else(|_| value.clone(), JsonValue::Int))
}

fn is_negative(digits: &str) -> bool {
    digits.starts_with('-')
}

/// Returns the integer that a float represents, if it is one.
#[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
fn whole(number: f64) -> Result<JsonValue, Problem> {
    if !number.is_finite() {
        return Err(Problem::NotFinite);
    }
    if number.fract() != 0.0 {
        return Err(Problem::IntFraction);
    }
    if number.abs() < 9.2e18 { Ok(JsonValue::Int(number as i64)) } else { Err(Problem::IntSize) }
}

/// Returns the integer that a string represents: digits, optionally with underscores between them
/// and a fraction of zeros.
fn parsed(text: &str) -> Result<JsonValue, Problem> {
    let trimmed = text.trim();
    let unsigned = trimmed.strip_prefix('+').unwrap_or(trimmed);
    let whole = match unsigned.split_once('.') {
        Some((whole, zeros)) if zeros.bytes().all(|byte| byte == b'0') => whole,
        Some(_) => return Err(Problem::IntParsing),
        None => unsigned,
    };
    let (sign, digits) = match whole.strip_prefix('-') {
        Some(digits) if unsigned == trimmed => ("-", digits),
        Some(_) => return Err(Problem::IntParsing),
        None => ("", whole),
    };
    let is_separated = !digits.starts_with('_') && !digits.ends_with('_') && !digits.contains("__");
    let digits = digits.replace('_', "");
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_separated || !is_number || digits.len() > 4300 {
        return Err(Problem::IntParsing);
    }
    let digits = digits.trim_start_matches('0');
    let text = if digits.is_empty() { String::from("0") } else { format!("{sign}{digits}") };
    Ok(text.parse().map_or_else(|_| JsonValue::BigInt(text.into()), JsonValue::Int))
}

pub(super) fn float(
    value: &JsonValue,
    min: Option<f64>,
    max: Option<f64>,
) -> Result<JsonValue, Problem> {
    let number = match value {
        JsonValue::Float(number) => *number,
        JsonValue::Int(number) => int_to_float(*number),
        JsonValue::BigInt(digits) => digits.parse().map_err(|_| Problem::FloatType)?,
        JsonValue::Bool(value) => f64::from(u8::from(*value)),
        JsonValue::Text(text) => python_number(text).ok_or(Problem::FloatParsing)?,
        JsonValue::Null | JsonValue::List(_) | JsonValue::Object(_) => {
            return Err(Problem::FloatType);
        }
    };
    if let Some(max) = max.filter(|max| number > *max || number.is_nan()) {
        return Err(Problem::FloatTooLarge(max));
    }
    if let Some(min) = min.filter(|min| number < *min || number.is_nan()) {
        return Err(Problem::FloatTooSmall(min));
    }
    Ok(JsonValue::Float(number))
}

#[expect(clippy::cast_precision_loss, reason = "as Python does")]
const fn int_to_float(number: i64) -> f64 {
    number as f64
}

fn python_number(text: &str) -> Option<f64> {
    let trimmed = text.trim();
    let is_separated =
        !trimmed.starts_with('_') && !trimmed.ends_with('_') && !trimmed.contains("__");
    let digits = trimmed.replace('_', "");
    digits.parse().ok().filter(|_| is_separated)
}

pub(super) fn boolean(value: &JsonValue) -> Result<JsonValue, Problem> {
    let found = match value {
        JsonValue::Bool(value) => Some(*value),
        JsonValue::Int(0) => Some(false),
        JsonValue::Int(1) => Some(true),
        JsonValue::Int(_) => None,
        JsonValue::Float(number) if *number == 0.0 => Some(false),
        JsonValue::Float(number) if *number == 1.0 => Some(true),
        JsonValue::Float(number) if number.fract() == 0.0 => None,
        JsonValue::Text(text) => word(text),
        JsonValue::Float(_)
        | JsonValue::Null
        | JsonValue::BigInt(_)
        | JsonValue::List(_)
        | JsonValue::Object(_) => {
            return Err(Problem::BoolType);
        }
    };
    found.map(JsonValue::Bool).ok_or(Problem::BoolParsing)
}

fn word(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "0" | "off" | "f" | "false" | "n" | "no" => Some(false),
        "1" | "on" | "t" | "true" | "y" | "yes" => Some(true),
        _ => None,
    }
}

/// Validates only the beginning of a URL.
pub(super) fn url(value: &JsonValue) -> Result<JsonValue, Problem> {
    let Some(text) = value.as_str() else { return Err(Problem::UrlType) };
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(Problem::UrlParsing("input is empty"));
    }
    let scheme = trimmed.split_once(':').map(|(scheme, _)| scheme).filter(|scheme| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.chars().all(|letter| letter.is_ascii_alphanumeric() || "+-.".contains(letter))
    });
    let Some(scheme) = scheme else {
        return Err(Problem::UrlParsing("relative URL without a base"));
    };
    let rest = trimmed.get(scheme.len().saturating_add(1)..).unwrap_or_default();
    let has_host = !rest.trim_start_matches(['/', '\\']).is_empty();
    let needs_host = ["http", "https", "ws", "wss", "ftp"]
        .iter()
        .any(|special| scheme.eq_ignore_ascii_case(special));
    if needs_host && !has_host {
        return Err(Problem::UrlParsing("empty host"));
    }
    Ok(value.clone())
}
