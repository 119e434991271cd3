//! Writes the pages of the documentation that are made from the server's flags.

use std::fs;

use crate::process::{cargo, output};
use crate::workspace;

/// The pages, and the form of the help that each one is.
const PAGES: [(&str, &str); 2] = [("docs/flags.md", "markdown"), ("docs/galatea.1", "man")];

/// The task.
pub(crate) fn run() -> Result<(), String> {
    for (page, form) in PAGES {
        let path = workspace::root().join(page);
        let help =
            output(cargo().args(["run", "-q", "-p", "galatea", "--", &format!("--help={form}")]))?;
        fs::write(&path, help).map_err(|error| format!("can't write '{page}': {error}"))?;
        println!("{page}");
    }
    Ok(())
}
