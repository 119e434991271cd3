//! Tables in the log, such as the list of models at startup.

use std::io::{self, IsTerminal};

use crate::log::escape_controls;

/// The line width if there is no terminal.
const WIDTH_WITHOUT_TERMINAL: usize = 500;

/// A table with a header, drawn with `+`, `-` and `|`.
///
/// Cells may contain several lines; cells too wide for their column continue on the next line.
/// Other control characters are escaped.
#[derive(Clone, Debug)]
pub struct TextTable {
    line_width: usize,
    columns: usize,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table with these headings, no wider than `line_width` if possible.
    pub fn new<S: Into<String>>(line_width: usize, headings: impl IntoIterator<Item = S>) -> Self {
        let headings: Vec<String> = headings.into_iter().map(Into::into).collect();
        Self { line_width, columns: headings.len(), rows: vec![headings] }
    }

    /// A table with the width of the terminal on standard output.
    pub fn for_console<S: Into<String>>(headings: impl IntoIterator<Item = S>) -> Self {
        Self::new(console_width(), headings)
    }

    /// Adds a row; missing cells stay empty, surplus cells are left out.
    pub fn add_row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let mut row: Vec<String> = cells.into_iter().map(Into::into).collect();
        row.resize(self.columns, String::new());
        self.rows.push(row);
    }

    /// The drawn table, with a line break after each line.
    #[must_use]
    pub fn render(&self) -> String {
        let rows: Vec<Vec<Vec<String>>> = self.rows.iter().map(|row| lines_of_row(row)).collect();
        let widths = self.widths(&rows);
        let rule: String =
            widths.iter().map(|width| format!("+{}", "-".repeat(width + 2))).collect();
        let mut text = format!("{rule}+\n");
        for (index, row) in rows.iter().enumerate() {
            draw_row(&mut text, row, &widths);
            if index == 0 {
                text.push_str(&format!("{rule}+\n"));
            }
        }
        text.push_str(&format!("{rule}+\n"));
        text
    }

    /// Gives each column the width that it needs, or a fair share of the width that the narrower
    /// columns leave.
    fn widths(&self, rows: &[Vec<Vec<String>>]) -> Vec<usize> {
        let mut widths: Vec<usize> = (0..self.columns)
            .map(|column| {
                let cells = rows.iter().filter_map(|row| row.get(column)).flatten();
                cells.map(|line| line.chars().count()).max().unwrap_or(0)
            })
            .collect();
        let borders = 3 * self.columns + 1;
        let mut free = self.line_width.saturating_sub(borders);
        let mut narrow_first: Vec<usize> = (0..self.columns).collect();
        narrow_first.sort_by_key(|&column| widths.get(column).copied());
        let mut left = self.columns;
        for column in narrow_first {
            if let Some(width) = widths.get_mut(column) {
                *width = (*width).min(free / left.max(1)).max(1);
                free = free.saturating_sub(*width);
            }
            left = left.saturating_sub(1);
        }
        widths
    }
}

fn console_width() -> usize {
    let output = io::stdout();
    if !output.is_terminal() {
        return WIDTH_WITHOUT_TERMINAL;
    }
    match rustix::termios::tcgetwinsize(&output) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => WIDTH_WITHOUT_TERMINAL,
    }
}

fn lines_of_row(row: &[String]) -> Vec<Vec<String>> {
    row.iter().map(|cell| cell.lines().map(escape_controls).collect()).collect()
}

fn draw_row(text: &mut String, row: &[Vec<String>], widths: &[usize]) {
    let cells: Vec<Vec<String>> =
        row.iter().zip(widths).map(|(lines, &width)| fold(lines, width)).collect();
    let height = cells.iter().map(Vec::len).max().unwrap_or(0);
    for line in 0..height {
        for (cell, &width) in cells.iter().zip(widths) {
            let part = cell.get(line).map_or("", String::as_str);
            text.push_str(&format!("| {part:width$} "));
        }
        text.push_str("|\n");
    }
}

fn fold(lines: &[String], width: usize) -> Vec<String> {
    let mut folded = Vec::new();
    for line in lines {
        let characters: Vec<char> = line.chars().collect();
        folded.extend(characters.chunks(width.max(1)).map(|part| part.iter().collect()));
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line_width: usize, rows: &[[&str; 2]], expected: &str) {
        let mut table = TextTable::new(line_width, ["Model", "Status"]);
        rows.iter().for_each(|row| table.add_row(*row));
        assert_eq!(table.render(), expected);
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        check(
            500,
            &[["simple", "READY"], ["x", "UNAVAILABLE: no file"]],
            "\
+--------+----------------------+
| Model  | Status               |
+--------+----------------------+
| simple | READY                |
| x      | UNAVAILABLE: no file |
+--------+----------------------+
",
        );
    }

    #[test]
    fn an_empty_table_has_its_header() {
        check(
            500,
            &[],
            "+-------+--------+\n| Model | Status |\n+-------+--------+\n+-------+--------+\n",
        );
    }

    #[test]
    fn wide_cells_and_cells_with_line_breaks_continue_below() {
        check(
            24,
            &[["simple", "READY and more"], ["a\nb", "c\u{1b}"]],
            "\
+--------+-------------+
| Model  | Status      |
+--------+-------------+
| simple | READY and m |
|        | ore         |
| a      | c\\u001B     |
| b      |             |
+--------+-------------+
",
        );
    }

    #[test]
    fn a_terminal_too_narrow_for_anything_still_gets_a_table() {
        check(
            1,
            &[],
            "\
+---+---+
| M | S |
| o | t |
| d | a |
| e | t |
| l | u |
|   | s |
+---+---+
+---+---+
",
        );
    }
}
