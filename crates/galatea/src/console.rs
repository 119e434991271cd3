//! Lines on the program's standard streams.

use std::io::Write;

/// Prints a line. A closed stream is ignored.
pub(crate) fn print_line(stream: &mut dyn Write, line: &str) {
    let _ = writeln!(stream, "{line}").and_then(|()| stream.flush());
}
