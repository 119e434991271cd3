//! The model information that the classification extension needs: the output labels.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::{Arc, OnceLock};

/// The names of an output's classes, one per line of a label file.
///
/// All names are C strings in one allocation: the C API hands out pointers to them, and a hundred
/// thousand labels must not need a hundred thousand allocations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassLabels {
    text: Box<[u8]>,
    starts: Box<[u32]>,
}

impl ClassLabels {
    /// The maximum size of a label file. No real label list comes close, and every position fits an
    /// offset.
    pub const BYTES_MAX: u64 = 1 << 26;

    /// Parses the contents of a label file: the first line names class 0.
    ///
    /// As in Triton, only a line feed ends a line, so a carriage return is part of the label. A
    /// label ends at its first NUL, because labels pass through C. Returns `None` if the text is
    /// longer than [`ClassLabels::BYTES_MAX`].
    #[must_use]
    pub fn from_lines(mut text: Vec<u8>) -> Option<Self> {
        if u64::try_from(text.len()).ok()? > Self::BYTES_MAX {
            return None;
        }
        if text.last().is_some_and(|&last| last != b'\n') {
            text.push(b'\n');
        }
        let mut starts = Vec::new();
        let mut start = 0;
        for (index, byte) in text.iter_mut().enumerate() {
            if *byte == b'\n' {
                *byte = 0;
                starts.push(u32::try_from(start).ok()?);
                start = index + 1;
            }
        }
        Some(Self { text: text.into(), starts: starts.into() })
    }

    /// The name of a class; `None` if its line is missing or empty.
    #[must_use]
    pub fn get(&self, class: usize) -> Option<&CStr> {
        let start = usize::try_from(*self.starts.get(class)?).ok()?;
        let label = CStr::from_bytes_until_nul(self.text.get(start..)?).ok()?;
        (!label.is_empty()).then_some(label)
    }

    /// The number of lines in the label file.
    #[must_use]
    pub fn count(&self) -> usize {
        self.starts.len()
    }
}

/// The information needed to turn a model's outputs into classes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassificationInfo {
    batches: bool,
    /// The labels by output; outputs without labels are absent.
    labels: BTreeMap<String, Arc<ClassLabels>>,
}

impl ClassificationInfo {
    /// Describes a model whose outputs have these labels. If `batches` is true, the first dimension
    /// of each output is the batch dimension.
    #[must_use]
    pub const fn new(batches: bool, labels: BTreeMap<String, Arc<ClassLabels>>) -> Self {
        Self { batches, labels }
    }

    /// Returns true if the first dimension of outputs is the batch dimension.
    #[must_use]
    pub const fn has_batch_dimension(&self) -> bool {
        self.batches
    }

    /// The labels of an output, if any.
    #[must_use]
    pub fn labels(&self, output: &str) -> Option<&Arc<ClassLabels>> {
        self.labels.get(output)
    }
}

/// A cell that gives a door the information needed to turn a request's outputs into classes.
///
/// The door puts one copy into the request and keeps the other. The version that admits the request
/// sets the cell, so a response never gets the labels of a version that was loaded later.
#[derive(Clone, Debug, Default)]
pub struct ClassificationInfoOnce(Arc<OnceLock<Arc<ClassificationInfo>>>);

impl ClassificationInfoOnce {
    /// Sets the classification information; later calls have no effect.
    pub fn set_once(&self, classes: &Arc<ClassificationInfo>) {
        self.0.get_or_init(|| classes.clone());
    }

    /// The classification information; `None` if no version has admitted the request yet.
    #[must_use]
    pub fn get(&self) -> Option<&Arc<ClassificationInfo>> {
        self.0.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &[u8], expected: &[Option<&str>]) {
        let labels = ClassLabels::from_lines(text.to_vec()).unwrap();
        let found: Vec<Option<String>> = (0..labels.count())
            .map(|class| labels.get(class).map(|label| label.to_str().unwrap().to_owned()))
            .collect();
        let found: Vec<Option<&str>> = found.iter().map(Option::as_deref).collect();
        assert_eq!(found, expected, "{text:?}");
        assert_eq!(labels.get(labels.count()), None);
        assert_eq!(labels.get(usize::MAX), None);
    }

    #[test]
    fn each_line_is_a_label() {
        check(b"", &[]);
        check(b"cat", &[Some("cat")]);
        check(b"cat\ndog\n", &[Some("cat"), Some("dog")]);
        check(b"\ncat\n\n\ndog", &[None, Some("cat"), None, None, Some("dog")]);
        check(b"\n", &[None]);
        check(b"cat\r\n\r\n", &[Some("cat\r"), Some("\r")]);
        check(b"a\0b\nc\n", &[Some("a"), Some("c")]);
        check("gr\u{f6}\u{df}e\n".as_bytes(), &[Some("gr\u{f6}\u{df}e")]);
    }

    #[test]
    fn labels_are_any_bytes() {
        let labels = ClassLabels::from_lines(b"\xff\xfe\nb".to_vec()).unwrap();
        assert_eq!(labels.get(0).unwrap().to_bytes(), b"\xff\xfe");
    }

    #[test]
    fn a_cell_keeps_the_first_value() {
        let cell = ClassificationInfoOnce::default();
        let copy = cell.clone();
        assert!(copy.get().is_none());
        cell.set_once(&Arc::new(ClassificationInfo::new(true, BTreeMap::new())));
        cell.set_once(&Arc::new(ClassificationInfo::new(false, BTreeMap::new())));
        assert!(copy.get().unwrap().has_batch_dimension());
    }
}
