//! What keeps the code readable and no compiler checks: words, names, links, circles.

mod circles;
mod files;
mod known;
mod links;
mod mask;
mod names;
mod words;

use files::File;

/// Something to mend.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Violation {
    /// The crate or folder.
    area: String,
    /// Where and what.
    text: String,
}

/// One kind of check.
struct Check {
    name: &'static str,
    /// What it finds, for people.
    about: &'static str,
    run: fn(&[File]) -> Vec<Violation>,
}

const CHECKS: [Check; 4] = [
    Check { name: "words", about: "words that the glossary replaces", run: check_words },
    Check { name: "names", about: "names of types in too many crates", run: names::check },
    Check { name: "links", about: "links that lead nowhere", run: links::check },
    Check { name: "circles", about: "circles of modules", run: circles::check },
];

fn check_words(files: &[File]) -> Vec<Violation> {
    files.iter().flat_map(words::check).collect()
}

/// The task: lists all violations, in one crate or folder or in all.
pub(crate) fn run(options: &[&str]) -> Result<(), String> {
    let only = match options {
        [] => None,
        ["--crate", name] => Some(*name),
        _ => return Err(String::from("usage: cargo xtask tidy [--crate NAME]")),
    };
    let files = files::all()?;
    let mut total: usize = 0;
    let mut summary = Vec::new();
    for check in &CHECKS {
        let mut found = (check.run)(&files);
        found.retain(|violation| only.is_none_or(|only| violation.area == only));
        for violation in &found {
            println!("{}", violation.text);
        }
        total = total.saturating_add(found.len());
        summary.push(format!("{:5} {}", found.len(), check.about));
    }
    println!("\n{}", summary.join("\n"));
    if total == 0 { Ok(()) } else { Err(format!("{total} places are to be mended")) }
}

/// The step of `cargo xtask test`: fails for violations that the list of known ones lacks.
pub(crate) fn check() -> Result<(), String> {
    let files = files::all()?;
    let differences: Vec<String> = CHECKS
        .iter()
        .flat_map(|check| known::differences(check.name, &(check.run)(&files)))
        .collect();
    if differences.is_empty() {
        return Ok(());
    }
    Err(format!("{} places are to be mended:\n  {}", differences.len(), differences.join("\n  ")))
}
