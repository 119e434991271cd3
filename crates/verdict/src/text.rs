//! Explanations as text. Both forms are printable ASCII, so they can be used as headers.

use std::fmt::{self, Write as _};

use galatea_explain::{DetailLevel, LatencyExplanationText, RequestFacts, WaitReason};

use crate::LatencyVerdict;

/// The maximum text length in bytes, unless a single name is longer. gRPC clients accept up to 8
/// KiB of metadata.
const TEXT_BYTES_MAX: usize = 4096;

/// The explanation of a request, in both forms.
#[must_use]
pub fn text(facts: &RequestFacts, detail: DetailLevel) -> LatencyExplanationText {
    LatencyExplanationText {
        json: json(facts, detail),
        server_timing: server_timing(facts, detail),
    }
}

/// The explanation as a JSON object. Steps are left out if the text would be too long.
pub(crate) fn json(facts: &RequestFacts, detail: DetailLevel) -> String {
    let mut steps = facts.steps.len();
    loop {
        let mut text = String::with_capacity(512);
        // Writing to a string can't fail.
        let _ = write_facts(&mut text, facts, detail, steps);
        if text.len() <= TEXT_BYTES_MAX || steps == 0 {
            return text;
        }
        steps /= 2;
    }
}

/// The explanation as a `Server-Timing` value: an entry for each stage with its duration in
/// milliseconds, the total, and the cause.
pub(crate) fn server_timing(facts: &RequestFacts, detail: DetailLevel) -> String {
    let mut text = String::with_capacity(256);
    let _ = write_timing(&mut text, facts, detail);
    text
}

fn write_timing(text: &mut String, facts: &RequestFacts, detail: DetailLevel) -> fmt::Result {
    for (stage, ns) in facts.stage_durations() {
        write!(text, "{};dur={}, ", stage.name(), Milliseconds(ns))?;
    }
    let verdict = LatencyVerdict::for_request(facts, detail);
    write!(
        text,
        "total;dur={}, cause;dur={};desc=\"{}\"",
        Milliseconds(facts.total()),
        Milliseconds(verdict.ns),
        verdict.cause.name(),
    )
}

fn write_facts(
    text: &mut String,
    facts: &RequestFacts,
    detail: DetailLevel,
    steps: usize,
) -> fmt::Result {
    write!(text, "{{\"model\":{},\"version\":\"{}\"", Quoted(&facts.model), facts.version)?;
    write!(text, ",\"total_us\":{}", facts.total() / 1_000)?;
    let verdict = LatencyVerdict::for_request(facts, detail);
    write!(
        text,
        ",\"cause\":{{\"name\":\"{}\",\"us\":{}",
        verdict.cause.name(),
        verdict.ns / 1_000
    )?;
    if let Some(step) = verdict.step {
        write!(text, ",\"step\":{}", Quoted(step))?;
    }
    write!(text, ",\"words\":{}}}", Quoted(verdict.cause.description()))?;
    text.push_str(",\"stages_us\":{");
    for (number, (stage, ns)) in facts.stage_durations().into_iter().enumerate() {
        let comma = if number == 0 { "" } else { "," };
        write!(text, "{comma}\"{}\":{}", stage.name(), ns / 1_000)?;
    }
    text.push('}');
    if facts.is_cached {
        text.push_str(",\"cached\":true");
    }
    if detail == DetailLevel::Schedule {
        write_schedule(text, facts)?;
    }
    write_steps(text, facts, detail, steps)?;
    text.push('}');
    Ok(())
}

fn write_schedule(text: &mut String, facts: &RequestFacts) -> fmt::Result {
    if facts.waits.sum() > 0 {
        text.push_str(",\"waits_us\":{");
        let mut comma = "";
        for wait in WaitReason::ALL {
            let ns = facts.waits.time_of(wait);
            if ns > 0 {
                write!(text, "{comma}\"{}\":{}", wait.name(), ns / 1_000)?;
                comma = ",";
            }
        }
        text.push('}');
    }
    if let Some(found) = &facts.queued {
        write!(
            text,
            ",\"ahead\":{{\"requests\":{},\"instances\":{},\"busy\":{},\"running_us\":{}}}",
            found.requests_ahead,
            found.instances,
            found.busy,
            found.running_ns / 1_000,
        )?;
    }
    if let Some(batch) = &facts.batch {
        write!(
            text,
            ",\"batch\":{{\"requests\":{},\"rows\":{},\"closed\":\"{}\"",
            batch.requests, batch.rows, batch.closed,
        )?;
        if batch.padding_rows > 0 {
            write!(text, ",\"padding_rows\":{}", batch.padding_rows)?;
        }
        text.push_str(if batch.is_first { ",\"first\":true}" } else { "}" });
    }
    Ok(())
}

fn write_steps(
    text: &mut String,
    facts: &RequestFacts,
    detail: DetailLevel,
    shown: usize,
) -> fmt::Result {
    if facts.steps.is_empty() && facts.steps_omitted == 0 {
        return Ok(());
    }
    text.push_str(",\"steps\":[");
    for (number, step) in facts.steps.iter().take(shown).enumerate() {
        text.push_str(if number == 0 { "" } else { "," });
        write_facts(text, step, detail, shown)?;
    }
    text.push(']');
    let hidden = u64::try_from(facts.steps.len().saturating_sub(shown)).unwrap_or(u64::MAX);
    let omitted = facts.steps_omitted.saturating_add(hidden);
    if omitted > 0 {
        write!(text, ",\"steps_omitted\":{omitted}")?;
    }
    Ok(())
}

/// Nanoseconds, shown as milliseconds with three decimal places.
struct Milliseconds(u64);

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0 / 1_000;
        write!(f, "{}.{:03}", micros / 1_000, micros % 1_000)
    }
}

/// A JSON string in printable ASCII.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for character in self.0.chars() {
            match character {
                '"' | '\\' => write!(f, "\\{character}")?,
                ' '..='~' => f.write_char(character)?,
                other => {
                    for unit in other.encode_utf16(&mut [0; 2]) {
                        write!(f, "\\u{unit:04x}")?;
                    }
                }
            }
        }
        f.write_char('"')
    }
}
