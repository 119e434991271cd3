//! The readability rules that no compiler checks: words, names, links, circles and sleeps.

mod bounds;
mod circles;
mod differences;
mod files;
mod links;
mod mask;
mod names;
mod openings;
mod sleeps;
mod source_paths;
mod words;

use std::thread;

pub(crate) use bounds::print as print_bounds;
use files::File;

/// A mistake to fix.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Violation {
    /// The crate or folder.
    area: String,
    /// The place and the mistake.
    text: String,
}

/// One kind of check.
struct Check {
    /// A description of the mistakes that it finds.
    about: &'static str,
    run: fn(&[File]) -> Vec<Violation>,
}

const CHECKS: [Check; 9] = [
    Check { about: "words that the glossary replaces", run: words::check },
    Check { about: "names of types in too many crates", run: names::check },
    Check { about: "links that lead nowhere", run: links::check },
    Check { about: "doc comments that open with a clause", run: openings::check },
    Check { about: "paths in comments that lead nowhere", run: source_paths::check },
    Check { about: "circles of modules", run: circles::check },
    Check { about: "bounds that don't say what they bound", run: bounds::check },
    Check { about: "sleeps in tests without a reason", run: sleeps::check },
    Check { about: "reasons of the differences from Triton", run: differences::check },
];

/// The task: lists all violations, in one crate or folder or in all of them.
pub(crate) fn run(options: &[&str]) -> Result<(), String> {
    let only = match options {
        [] => None,
        ["--crate", name] => Some(*name),
        _ => return Err(String::from("usage: cargo xtask tidy [--crate NAME]")),
    };
    let files = files::all()?;
    let mut total: usize = 0;
    let mut summary = Vec::new();
    for (check, mut found) in CHECKS.iter().zip(check_all(&files)?) {
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

/// The violations that each check finds. The checks run in parallel.
fn check_all(files: &[File]) -> Result<Vec<Vec<Violation>>, String> {
    thread::scope(|scope| {
        let running: Vec<_> =
            CHECKS.iter().map(|check| scope.spawn(|| (check.run)(files))).collect();
        let lost = |_| String::from("the thread of a check panicked");
        running.into_iter().map(|one| one.join().map_err(lost)).collect()
    })
}
