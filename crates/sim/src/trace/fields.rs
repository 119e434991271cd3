//! The fields of a trace line.

use std::str::FromStr;

/// A line's `name=value` fields.
pub(crate) struct LineFields<'line> {
    line: &'line str,
    fields: Vec<(&'line str, &'line str)>,
}

impl<'line> LineFields<'line> {
    pub(crate) fn new(line: &'line str) -> Self {
        LineFields {
            line,
            fields: line.split_whitespace().filter_map(|word| word.split_once('=')).collect(),
        }
    }

    pub(crate) fn all<T: FromStr>(&self, name: &str) -> Result<Vec<T>, String> {
        let wrong = |_| format!("{name} is not such a number in {:?}", self.line);
        self.fields
            .iter()
            .filter(|field| field.0 == name)
            .map(|field| field.1.parse().map_err(wrong))
            .collect()
    }

    pub(crate) fn optional<T: FromStr>(&self, name: &str) -> Result<Option<T>, String> {
        Ok(self.all(name)?.pop())
    }

    pub(crate) fn one<T: FromStr>(&self, name: &str) -> Result<T, String> {
        self.optional(name)?.ok_or_else(|| format!("{name} is missing in {:?}", self.line))
    }

    pub(crate) fn flag(&self, name: &str) -> Result<bool, String> {
        Ok(self.one::<u8>(name)? != 0)
    }
}
