//! Writes the documentation pages that are generated from the server's flags.

use std::fs;

use crate::process::{cargo, output};
use crate::workspace;

/// The pages, and the help format of each.
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
