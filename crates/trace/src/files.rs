//! Triton's trace files.
//!
//! Each file is one JSON array. Files written while the server runs have a numeric suffix; the
//! remaining traces go into the file without a suffix.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::json;
use crate::queue::CollectedTrace;

/// The maximum size in bytes of the traces kept in memory for the single file of all traces. Beyond
/// this size, traces are written early. Triton keeps all traces until the end.
const TRACE_TEXT_BYTES_MAX: usize = 16 << 20;

/// Writes traces; used by a single thread.
#[derive(Debug)]
pub(crate) struct TraceFiles {
    name: PathBuf,
    next_number: u32,
    /// The file without a suffix, and the length of its text before the closing bracket.
    whole: Option<(File, u64)>,
    /// Unwritten traces, by settings number.
    unwritten: HashMap<u64, UnwrittenTraces>,
}

/// Unwritten traces under the same settings.
#[derive(Debug, Default)]
struct UnwrittenTraces {
    text: String,
    traces: u32,
    /// The number of traces per file; 0 means all in one file.
    frequency: u32,
    /// The number of traces collected, including those already written.
    collected: u64,
}

/// The file to which traces are written.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum FileNumbering {
    /// A new file with the next number.
    Numbered,
    /// The file without a suffix.
    Whole,
}

impl TraceFiles {
    pub(crate) fn new(name: PathBuf) -> Self {
        Self { name, next_number: 0, whole: None, unwritten: HashMap::new() }
    }

    /// Adds a trace, and writes any traces that are due.
    pub(crate) fn add(&mut self, trace: &CollectedTrace) -> io::Result<()> {
        let setting = &trace.setting;
        let unwritten = self.unwritten.entry(setting.number).or_default();
        unwritten.traces = unwritten.traces.saturating_add(1);
        unwritten.collected = unwritten.collected.saturating_add(1);
        let text = json::render(&trace.events);
        if !text.is_empty() {
            if !unwritten.text.is_empty() {
                unwritten.text.push(',');
            }
            unwritten.text.push_str(&text);
        }
        let frequency = setting.log_frequency;
        unwritten.frequency = frequency;
        let is_full = frequency != 0 && unwritten.traces >= frequency;
        let place = if is_full || setting.sampler.are_all_collected(unwritten.collected) {
            FileNumbering::Numbered
        } else if unwritten.text.len() > TRACE_TEXT_BYTES_MAX {
            remaining_place(frequency)
        } else {
            return Ok(());
        };
        unwritten.traces = 0;
        let text = std::mem::take(&mut unwritten.text);
        self.write(&text, place)
    }

    /// Writes the remaining traces of settings that are no longer in force.
    pub(crate) fn retire(&mut self, setting: u64) -> io::Result<()> {
        match self.unwritten.remove(&setting) {
            Some(unwritten) if unwritten.traces != 0 => {
                self.write(&unwritten.text, remaining_place(unwritten.frequency))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Writes all remaining traces.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        let mut settings: Vec<u64> = self.unwritten.keys().copied().collect();
        settings.sort_unstable();
        let results: Vec<_> = settings.into_iter().map(|setting| self.retire(setting)).collect();
        results.into_iter().collect()
    }

    fn write(&mut self, text: &str, place: FileNumbering) -> io::Result<()> {
        let named = |path: &Path, error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        };
        match place {
            FileNumbering::Numbered => {
                let mut path = self.name.clone().into_os_string();
                path.push(format!(".{}", self.next_number));
                self.next_number = self.next_number.wrapping_add(1);
                let path = PathBuf::from(path);
                std::fs::write(&path, format!("[{text}]")).map_err(|error| named(&path, error))
            }
            // The records of all traces were lost.
            FileNumbering::Whole if text.is_empty() => Ok(()),
            FileNumbering::Whole => {
                self.write_whole(text).map_err(|error| named(&self.name, error))
            }
        }
    }

    /// Appends to the file without a suffix, which is a complete array after each write.
    fn write_whole(&mut self, text: &str) -> io::Result<()> {
        let (file, end) = match &mut self.whole {
            Some((file, end)) => (file, end),
            None => {
                let (file, end) = self.whole.insert((File::create(&self.name)?, 0));
                (file, end)
            }
        };
        let separator = if *end == 0 { '[' } else { ',' };
        let addition = format!("{separator}{text}]");
        file.seek(SeekFrom::Start(*end))?;
        file.write_all(addition.as_bytes())?;
        let added = u64::try_from(addition.len()).unwrap_or(u64::MAX).saturating_sub(1);
        *end = end.saturating_add(added);
        Ok(())
    }
}

/// The file for the remaining traces. As in Triton, it follows the same numbering as the files
/// before.
const fn remaining_place(log_frequency: u32) -> FileNumbering {
    if log_frequency == 0 { FileNumbering::Whole } else { FileNumbering::Numbered }
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
