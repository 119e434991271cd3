//! The text of a configuration file and the positions of its fields.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::diagnostic::{Diagnostic, Excerpt, Position};

/// The number of characters that an excerpt shows before and after the position in a long line.
const EXCERPT_CONTEXT: usize = 60;

/// A byte range in the file.
pub type Span = Range<usize>;

/// A file's name and text.
#[derive(Debug)]
pub struct SourceText {
    name: String,
    text: String,
    line_starts: Vec<usize>,
}

impl SourceText {
    /// Creates a file with this name and text.
    #[must_use]
    pub fn new(name: &str, text: &str) -> Self {
        let line_starts = std::iter::once(0)
            .chain(text.match_indices('\n').map(|(at, _)| at.saturating_add(1)))
            .collect();
        Self { name: name.to_owned(), text: text.to_owned(), line_starts }
    }

    /// The whole text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    fn line(&self, offset: usize) -> (usize, &str) {
        let number = self.line_starts.partition_point(|start| *start <= offset);
        let start = number.checked_sub(1).and_then(|n| self.line_starts.get(n)).copied();
        let rest = start.and_then(|start| self.text.get(start..)).unwrap_or("");
        let line = rest.split('\n').next().unwrap_or("");
        (number, line.strip_suffix('\r').unwrap_or(line))
    }

    fn column(&self, number: usize, offset: usize) -> usize {
        let start = number.checked_sub(1).and_then(|n| self.line_starts.get(n)).copied();
        let before = start.and_then(|start| self.text.get(start..offset)).unwrap_or("");
        before.chars().count().saturating_add(1)
    }

    /// The line and column of a byte offset.
    #[must_use]
    pub fn position(&self, offset: usize) -> Position {
        let (line, _) = self.line(offset);
        Position { line, column: self.column(line, offset) }
    }

    fn excerpt(&self, span: &Span) -> Excerpt {
        let (number, line) = self.line(span.start);
        let before = self.column(number, span.start).saturating_sub(1);
        let width = self.text.get(span.clone()).unwrap_or("");
        let width = width.split('\n').next().unwrap_or("").chars().count();
        let length = EXCERPT_CONTEXT.saturating_mul(2);
        let fits = line.chars().nth(length).is_none();
        let skipped = if fits { 0 } else { before.saturating_sub(EXCERPT_CONTEXT) };
        // Each character must take one column: a tab or an escape would shift the caret.
        let visible = |c: char| if c.is_control() { ' ' } else { c };
        let text: String = line.chars().skip(skipped).take(length).map(visible).collect();
        let room = length.saturating_sub(before - skipped);
        Excerpt { text, offset: before - skipped, width: width.clamp(1, room.max(1)) }
    }

    /// Sets a diagnostic's position to a part of this file.
    pub fn locate_diagnostic(&self, diagnostic: &mut Diagnostic, span: &Span) {
        diagnostic.file.clone_from(&self.name);
        diagnostic.position = Some(self.position(span.start));
        diagnostic.excerpt = Some(self.excerpt(span));
    }
}

/// The positions of values in a file, by path. The first position for a path wins.
#[derive(Debug, Default)]
pub struct FieldSpans {
    spans: BTreeMap<String, Span>,
    /// The elements of scalar lists, by list path. A number in a list takes two bytes in the file,
    /// but its path would take a hundred.
    elements: BTreeMap<String, Vec<Range<u32>>>,
}

impl FieldSpans {
    /// Adds the position of a value.
    pub fn add_if_absent(&mut self, path: &str, span: &Span) {
        if !self.spans.contains_key(path) {
            self.spans.insert(path.to_owned(), span.clone());
        }
    }

    /// Adds the next element of a list.
    pub fn add_element(&mut self, list: &str, index: usize, span: &Span) {
        let offset = |offset: usize| u32::try_from(offset).unwrap_or(u32::MAX);
        let span = offset(span.start)..offset(span.end);
        match self.elements.get_mut(list) {
            Some(elements) if elements.len() == index => elements.push(span),
            Some(_) => {}
            None => {
                self.elements.insert(list.to_owned(), vec![span]);
            }
        }
    }

    fn get(&self, path: &str) -> Option<Span> {
        self.spans.get(path).cloned().or_else(|| self.element(path))
    }

    fn element(&self, path: &str) -> Option<Span> {
        let (list, index) = path.strip_suffix(']')?.rsplit_once('[')?;
        let span = self.elements.get(list)?.get(index.parse::<usize>().ok()?)?;
        Some(usize::try_from(span.start).ok()?..usize::try_from(span.end).ok()?)
    }
}

/// The positions of a configuration's fields, by path.
#[derive(Clone, Debug, Default)]
pub struct SourceMap {
    source: Option<Arc<SourceText>>,
    spans: Arc<FieldSpans>,
}

impl SourceMap {
    /// The positions of the fields of this file.
    #[must_use]
    pub fn new(source: SourceText, spans: FieldSpans) -> Self {
        Self { source: Some(Arc::new(source)), spans: Arc::new(spans) }
    }

    /// Sets the diagnostic's position to that of its field, or of the innermost enclosing field in
    /// the file.
    pub fn locate_diagnostic(&self, diagnostic: &mut Diagnostic) {
        let Some(source) = &self.source else { return };
        diagnostic.file.clone_from(&source.name);
        let mut path: &str = &diagnostic.path;
        loop {
            if let Some(span) = self.spans.get(path) {
                return source.locate_diagnostic(diagnostic, &span);
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = path.get(..end).unwrap_or(""),
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters() {
        let source = SourceText::new("f", "ä: 1\r\nb: 2\n");
        assert_eq!(source.position(2), Position { line: 1, column: 2 });
        assert_eq!(source.position(7), Position { line: 2, column: 1 });
        assert_eq!(source.position(12), Position { line: 3, column: 1 });
        assert_eq!(source.excerpt(&(0..2)).text, "ä: 1");
    }

    #[test]
    fn long_lines_are_cut_around_the_position() {
        let text = format!("{}HERE{}", "a".repeat(500), "b".repeat(500));
        let excerpt = SourceText::new("f", &text).excerpt(&(500..504));
        assert_eq!(excerpt.text.chars().count(), 120);
        let shown: String = excerpt.text.chars().skip(excerpt.offset).take(excerpt.width).collect();
        assert_eq!(shown, "HERE");
    }

    #[test]
    fn a_missing_field_has_the_position_of_its_enclosing_field() {
        let mut spans = FieldSpans::default();
        spans.add_if_absent("input[0]", &(2..7));
        let map = SourceMap::new(SourceText::new("f", "\n\ninput { }"), spans);
        let mut diagnostic = Diagnostic::about("input[0].reshape.shape[1]", "x");
        map.locate_diagnostic(&mut diagnostic);
        assert_eq!(diagnostic.position, Some(Position { line: 3, column: 1 }));
        let mut unlocated = Diagnostic::about("name", "x");
        map.locate_diagnostic(&mut unlocated);
        assert_eq!((unlocated.file.as_str(), unlocated.position), ("f", None));
    }
}
