//! The rules that keep the code readable and no compiler checks: words, names, links, circles.

mod bounds;
mod circles;
mod differences;
mod files;
mod links;
mod mask;
mod names;
mod openings;
mod source_paths;
mod words;

pub(crate) use bounds::print as print_bounds;
use files::File;

/// Something to mend.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Violation {
    /// The crate or folder.
    area: String,
    /// The place and the mistake.
    text: String,
}

/// One kind of check.
struct Check {
    /// The mistakes that it finds.
    about: &'static str,
    run: fn(&[File]) -> Vec<Violation>,
}

const CHECKS: [Check; 8] = [
    Check { about: "words that the glossary replaces", run: check_words },
    Check { about: "names of types in too many crates", run: names::check },
    Check { about: "links that lead nowhere", run: links::check },
    Check { about: "doc comments that open with a clause", run: openings::check },
    Check { about: "paths in comments that lead nowhere", run: source_paths::check },
    Check { about: "circles of modules", run: circles::check },
    Check { about: "bounds that don't say what they bound", run: bounds::check },
    Check { about: "reasons of the differences from Triton", run: differences::check },
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
