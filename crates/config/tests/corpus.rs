//! The corpus: malformed and invalid configurations with their diagnostics, and valid
//! configurations.
//!
//! After an intended change, write the new diagnostics with
//! `cargo test -p galatea-config --test corpus -- --ignored` and review the diff.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which the lint does not know as such")]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use galatea_config::{ConfigErrors, ModelSpec, SupportedFeatures};
use galatea_pbtxt::parse_config_draft;

/// The model's directory name in every case.
const DIRECTORY: &str = "example";

const COLLECTIONS: [&str; 6] = [
    "syntax.cases",
    "semantic.cases",
    "sequence.cases",
    "ragged.cases",
    "instances.cases",
    "ensemble.cases",
];

struct Case {
    name: String,
    text: String,
    diagnostics: String,
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join("corpus")
}

fn cases(collection: &str) -> Vec<Case> {
    let whole = fs::read_to_string(corpus().join(collection)).unwrap();
    let parts = whole.split("==== ").skip(1);
    parts
        .map(|part| {
            let (name, rest) = part.split_once('\n').unwrap();
            let (text, diagnostics) = rest.split_once("\n----\n").unwrap();
            Case {
                name: name.to_owned(),
                text: text.to_owned(),
                diagnostics: diagnostics.trim_end().to_owned(),
            }
        })
        .collect()
}

fn load(text: &str) -> Result<ModelSpec, ConfigErrors> {
    let mut draft = parse_config_draft("config.pbtxt", text)?;
    draft.resolve_name_and_backend(DIRECTORY, &[])?;
    draft.into_validated_spec(&SupportedFeatures::default())
}

/// The long form of the diagnostics, or the remarks if the configuration is accepted.
fn diagnose(case: &Case) -> String {
    match load(&case.text) {
        Ok(spec) => {
            let remarks: Vec<String> = spec
                .ignored_setting_warnings()
                .iter()
                .map(|remark| format!("warning: {remark}"))
                .collect();
            assert!(!remarks.is_empty(), "{} is accepted", case.name);
            remarks.join("\n")
        }
        Err(errors) => {
            assert_eq!(errors.to_string().lines().count(), errors.diagnostics.len());
            format!("{errors:#}")
        }
    }
}

#[test]
// row: CFG-01 CFG-03 CFG-04 CFG-05 CFG-07 CFG-09 CFG-27 CFG-28 CFG-30 DYN-06 DYN-08 CBS-04 SEQ-14 IMP-06 IMP-09
fn every_case_has_its_diagnostics() {
    let mut wrong = String::new();
    for collection in COLLECTIONS {
        for case in cases(collection) {
            let actual = diagnose(&case);
            if actual != case.diagnostics {
                let name = &case.name;
                let expected = &case.diagnostics;
                write!(wrong, "== {name}\nexpected:\n{expected}\nactual:\n{actual}\n\n").unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
#[ignore = "writes the diagnostics into the corpus"]
fn write_diagnostics() {
    for collection in COLLECTIONS {
        let mut whole = String::new();
        for case in cases(collection) {
            let diagnostics = diagnose(&case);
            write!(whole, "==== {}\n{}\n----\n{diagnostics}\n\n", case.name, case.text).unwrap();
        }
        fs::write(corpus().join(collection), whole).unwrap();
    }
}

#[test]
// row: CFG-01
fn valid_files_are_accepted() {
    let mut count = 0;
    for entry in fs::read_dir(corpus().join("valid")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        if let Err(errors) = parse_config_draft(&path.to_string_lossy(), &text) {
            panic!("{errors:#}");
        }
        count += 1;
    }
    assert!(count > 10, "only {count} files");
}

/// Valid files with a removed or replaced character cause no panic, and every refusal has a
/// diagnostic.
#[test]
fn damaged_files_are_accepted_or_diagnosed() {
    for entry in fs::read_dir(corpus().join("valid")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        // Test every third position only: testing all takes seconds without optimization.
        for (at, character) in text.char_indices().step_by(3) {
            let rest = &text[at + character.len_utf8()..];
            let replacement = ["", "}", "\"", "0", "["][at % 5];
            let damaged = format!("{}{replacement}{rest}", &text[..at]);
            if let Err(errors) = parse_config_draft("damaged", &damaged) {
                assert!(!errors.diagnostics.is_empty());
            }
        }
    }
}
