//! Traces in Triton's JSON format.
//!
//! Unlike Triton's, the output is valid JSON for any names and contents: strings are escaped, and
//! one-byte elements are written as numbers.

use std::fmt::{Display, Write};

use galatea_tensor::DataType;
use galatea_tensor::elements::BytesElements;

use crate::event::{Event, RecordedTensor, Subject};

/// The records of a request and of the requests that serve it, separated by commas. Records of one
/// trace stay together; as in Triton, the trace that began last comes first.
pub(crate) fn render(events: &[Event]) -> String {
    let mut traces: Vec<(u64, Vec<&Event>)> = Vec::new();
    for event in events {
        match traces.iter_mut().find(|(trace, _)| *trace == event.trace()) {
            Some((_, of_trace)) => of_trace.push(event),
            None => traces.push((event.trace(), vec![event])),
        }
    }
    let mut text = String::new();
    for event in traces.iter().rev().flat_map(|(_, of_trace)| of_trace) {
        if !text.is_empty() {
            text.push(',');
        }
        push_event(&mut text, event);
    }
    text
}

fn push_event(text: &mut String, event: &Event) {
    push(text, format_args!("{{\"id\":{}", event.trace()));
    match event {
        Event::Begin { subject, .. } => push_subject(text, subject),
        Event::Time { activity, ns, .. } => {
            text.push_str(",\"timestamps\":[{\"name\":\"");
            push_escaped(text, activity.name());
            push(text, format_args!("\",\"ns\":{ns}}}]"));
        }
        Event::Tensor { activity, tensor, .. } => {
            push(text, format_args!(",\"activity\":\"{activity}\",\"tensor\":{{"));
            push_tensor(text, tensor);
            text.push('}');
        }
    }
    text.push('}');
}

fn push_subject(text: &mut String, subject: &Subject) {
    text.push_str(",\"model_name\":\"");
    push_escaped(text, &subject.model_name);
    push(text, format_args!("\",\"model_version\":{}", subject.model_version));
    if !subject.request_id.is_empty() {
        text.push_str(",\"request_id\":\"");
        push_escaped(text, &subject.request_id);
        text.push('"');
    }
    if subject.parent != 0 {
        push(text, format_args!(",\"parent_id\":{}", subject.parent));
    }
}

fn push_tensor(text: &mut String, tensor: &RecordedTensor) {
    text.push_str("\"name\":\"");
    push_escaped(text, &tensor.name);
    text.push_str("\",\"data\":\"");
    push_elements(text, tensor.datatype, &tensor.data);
    text.push_str("\",\"shape\":\"");
    push_list(text, tensor.dims.iter());
    push(text, format_args!("\",\"dtype\":\"{}\"", tensor.datatype.protocol_name()));
}

fn push_elements(text: &mut String, datatype: DataType, data: &[u8]) {
    match datatype {
        DataType::Bool => push_list(text, data.iter().map(|byte| u8::from(*byte != 0))),
        DataType::Uint8 => push_list(text, data.iter()),
        DataType::Int8 => push_list(text, data.iter().map(|byte| byte.cast_signed())),
        DataType::Uint16 => push_list(text, words(data).map(u16::from_le_bytes)),
        DataType::Int16 => push_list(text, words(data).map(i16::from_le_bytes)),
        DataType::Uint32 => push_list(text, words(data).map(u32::from_le_bytes)),
        DataType::Int32 => push_list(text, words(data).map(i32::from_le_bytes)),
        DataType::Uint64 => push_list(text, words(data).map(u64::from_le_bytes)),
        DataType::Int64 => push_list(text, words(data).map(i64::from_le_bytes)),
        DataType::Fp32 => {
            push_list(text, words(data).map(f32::from_le_bytes).map(|value| general(value.into())));
        }
        DataType::Fp64 => push_list(text, words(data).map(f64::from_le_bytes).map(general)),
        // Triton omits them too.
        DataType::Fp16 | DataType::Bf16 => {}
        DataType::Bytes => push_texts(text, data),
    }
}

/// Writes BYTES elements in quotes; the quotes and contents are escaped.
fn push_texts(text: &mut String, data: &[u8]) {
    for (index, element) in BytesElements::new(data).flatten().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str("\\\"");
        push_escaped(text, &String::from_utf8_lossy(element));
        text.push_str("\\\"");
    }
}

fn words<const N: usize>(data: &[u8]) -> impl Iterator<Item = [u8; N]> {
    data.as_chunks::<N>().0.iter().copied()
}

fn push_list(text: &mut String, elements: impl Iterator<Item = impl Display>) {
    for (index, element) in elements.enumerate() {
        if index > 0 {
            text.push(',');
        }
        push(text, format_args!("{element}"));
    }
}

fn push(text: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a string can't fail.
    let _ = text.write_fmt(what);
}

/// Escapes the content of a JSON string.
pub(crate) fn push_escaped(text: &mut String, content: &str) {
    for character in content.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            control if control.is_control() => {
                push(text, format_args!("\\u{:04x}", u32::from(control)));
            }
            other => text.push(other),
        }
    }
}

/// The number of digits in C's shortest general form.
const DIGITS: i32 = 6;

/// A number in the format of `%g` and C++ streams: six digits, with an exponent if that is shorter.
fn general(value: f64) -> String {
    if value.is_nan() {
        return String::from(if value.is_sign_negative() { "-nan" } else { "nan" });
    }
    if value.is_infinite() {
        return String::from(if value.is_sign_negative() { "-inf" } else { "inf" });
    }
    let scientific = format!("{value:.5e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..DIGITS).contains(&exponent) {
        let decimals = usize::try_from(DIGITS - 1 - exponent).unwrap_or_default();
        return without_zeros(&format!("{value:.decimals$}")).to_owned();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", without_zeros(mantissa), exponent.unsigned_abs())
}

fn without_zeros(number: &str) -> &str {
    if number.contains('.') {
        return number.trim_end_matches('0').trim_end_matches('.');
    }
    number
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
