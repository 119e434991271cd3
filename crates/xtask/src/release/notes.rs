//! The release notes: the text from CHANGELOG.md and the list of files.

use std::fmt::Write as _;

use super::checksums::{ChecksummedFile, FILE};

/// The name of the section for unreleased changes.
const UNRELEASED: &str = "Unreleased";

/// The text below a version's heading. The heading may have the date after the version: `## 1.2.0
/// (2027-01-31)`.
pub(crate) fn section(changelog: &str, version: &str, is_draft: bool) -> Result<String, String> {
    let found = below(changelog, version)
        .or_else(|| is_draft.then(|| below(changelog, UNRELEASED)).flatten())
        .ok_or_else(|| {
            format!(
                "CHANGELOG.md has no section '## {version}': give '## {UNRELEASED}' this name \
                 (`--draft` releases it as it is, to try)"
            )
        })?;
    let text = found.trim();
    if text.is_empty() {
        return Err(format!("CHANGELOG.md says nothing about {version}"));
    }
    Ok(text.to_owned())
}

fn below<'a>(changelog: &'a str, name: &str) -> Option<&'a str> {
    let mut start = None;
    let mut position = 0;
    for line in changelog.split_inclusive('\n') {
        let heading = line.strip_prefix("## ");
        match (heading, start) {
            (Some(_), Some(start)) => return changelog.get(start..position),
            (Some(heading), None) if heading.split_whitespace().next() == Some(name) => {
                start = Some(position + line.len());
            }
            _ => {}
        }
        position += line.len();
    }
    changelog.get(start?..)
}

/// The notes.
pub(crate) fn write(
    version: &str,
    commit: &str,
    changes: &str,
    files: &[ChecksummedFile],
    image_left_out: Option<&str>,
) -> String {
    let mut notes = format!("# Galatea {version}\n\nMade from the commit {commit}.\n\n");
    let _ = write!(notes, "{changes}\n\n## Files\n\n| file | bytes | content |\n|---|---|---|\n");
    for ChecksummedFile { name, bytes, .. } in files {
        let _ = writeln!(notes, "| `{name}` | {bytes} | {} |", content(name));
    }
    if let Some(reason) = image_left_out {
        let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
        let _ = write!(notes, "\nThere is no image: {reason}.\n");
    }
    let _ = write!(notes, "\n`sha256sum --check {FILE}` compares the files with their hashes.\n");
    notes
}

/// A description of a file's content, by its name.
fn content(name: &str) -> &'static str {
    match name {
        _ if name.starts_with("galatea_tritonserver-") => {
            "the names `tritonserver` and `tritonfrontend` for Python, to install beside the other wheel"
        }
        _ if name.ends_with(".whl") => "the server for `pip install`",
        _ if name.ends_with(".cdx.json") => "the components of the programs, in CycloneDX's format",
        _ if name.contains("-image-") => {
            "the container image, for `podman load` and `docker load` (25 and newer)"
        }
        _ if name.ends_with(".tar.gz") => "the programs, the library for C and its headers",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGELOG: &str = "\
# Changelog

## Unreleased

### Python

- New.

## 1.10.0 (2027-01-31)

- Ten.

## 1.1.0

- One.
";

    #[test]
    fn a_section_ends_at_the_next_version() {
        let section = |version| section(CHANGELOG, version, false);
        assert_eq!(section("1.10.0").unwrap(), "- Ten.");
        assert_eq!(section("1.1.0").unwrap(), "- One.");
    }

    #[test]
    fn only_a_draft_has_what_is_not_released() {
        let refused = section(CHANGELOG, "1.1", false).unwrap_err();
        assert!(refused.starts_with("CHANGELOG.md has no section '## 1.1': "), "{refused}");
        assert_eq!(section(CHANGELOG, "1.1", true).unwrap(), "### Python\n\n- New.");
        assert_eq!(section(CHANGELOG, "1.1.0", true).unwrap(), "- One.");
    }

    #[test]
    fn a_section_that_says_nothing_is_no_release() {
        let empty = section("## 1.0.0\n\n## 0.9.0\n- x\n", "1.0.0", false).unwrap_err();
        assert_eq!(empty, "CHANGELOG.md says nothing about 1.0.0");
    }

    #[test]
    fn notes_name_the_commit_the_files_and_what_is_left_out() {
        let reason = "no program that builds images works:\n  no docker";
        let notes = write("1.0.0", "abc", "- One.", &[], Some(reason));
        assert_eq!(
            notes,
            "\
# Galatea 1.0.0

Made from the commit abc.

- One.

## Files

| file | bytes | content |
|---|---|---|

There is no image: no program that builds images works: no docker.

`sha256sum --check SHA256SUMS` compares the files with their hashes.
"
        );
    }

    #[test]
    fn files_are_told_apart_by_their_names() {
        let names = [
            ("galatea-1.0.0-cp39-abi3-manylinux_2_28_x86_64.whl", "the server for `pip install`"),
            ("galatea-1.0.0-image-x86_64.tar", "the container image"),
            ("galatea-1.0.0-x86_64-unknown-linux-gnu.tar.gz", "the programs"),
            ("galatea-1.0.0-x86_64-unknown-linux-gnu.cdx.json", "the components"),
            ("galatea_tritonserver-1.0.0-py3-none-any.whl", "the names `tritonserver`"),
        ];
        for (name, beginning) in names {
            assert!(content(name).starts_with(beginning), "{name}");
        }
    }
}
