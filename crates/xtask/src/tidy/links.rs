//! Links between documents, and source paths in documents.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Violation;
use super::files::File;
use crate::workspace;

/// Every broken link in the Markdown files.
pub(super) fn check(files: &[File]) -> Vec<Violation> {
    let documents: BTreeMap<&str, BTreeSet<String>> = files
        .iter()
        .filter(|file| file.is("md"))
        .map(|file| (file.path.as_str(), anchors(&file.text)))
        .collect();
    let root = workspace::root();
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.is("md")) {
        for (line, target) in links(&file.text) {
            if let Some(reason) = broken(&root, &file.path, &target, &documents) {
                let text = format!("{}:{line}: {target}: {reason}", file.path);
                found.push(Violation { area: file.area.clone(), text });
            }
        }
        let paths = if file.is_history() { Vec::new() } else { source_paths(&file.text) };
        for (line, path) in paths {
            if !root.join(path).exists() {
                let text = format!("{}:{line}: {path}: no such file", file.path);
                found.push(Violation { area: file.area.clone(), text });
            }
        }
    }
    found
}

fn broken(
    root: &Path,
    from: &str,
    target: &str,
    documents: &BTreeMap<&str, BTreeSet<String>>,
) -> Option<String> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    let to = if path.is_empty() { from.to_owned() } else { joined(folder, path) };
    if !root.join(&to).exists() {
        return Some(format!("'{to}' doesn't exist"));
    }
    // Line anchors in sources are left to the browser.
    let anchors = documents.get(to.as_str()).filter(|_| !anchor.is_empty())?;
    (!anchors.contains(anchor)).then(|| format!("'{to}' has no heading '#{anchor}'"))
}

/// A path relative to a folder, resolved from the root.
fn joined(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// A document's relative links with their lines, `[text](target)` or `[name]: target`.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, content) in prose_lines(text) {
        let content = without_code(content);
        let mut targets: Vec<&str> = content
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
            .collect();
        if let Some((_, target)) = content.strip_prefix('[').and_then(|rest| rest.split_once("]: "))
        {
            targets.push(target);
        }
        let targets = targets.into_iter().filter_map(|target| target.split_whitespace().next());
        let relative =
            targets.filter(|target| !target.contains("://") && !target.contains("mailto:"));
        found.extend(relative.map(|target| (line, target.to_owned())));
    }
    found
}

/// The source paths in backticks. A path with a pattern or a word in capitals stands for several.
fn source_paths(text: &str) -> Vec<(usize, &str)> {
    let paths = prose_lines(text).flat_map(|(line, content)| {
        content.split('`').skip(1).step_by(2).map(move |code| (line, code))
    });
    let is_path = |code: &str| {
        let part = |part: &str| part.chars().any(|one| one.is_ascii_uppercase());
        code.starts_with("crates/")
            && !code.contains(['*', '{', ' ', '<', '…'])
            && !code.split('/').any(part)
    };
    paths
        .map(|(line, code)| (line, code.split(':').next().unwrap_or(code)))
        .filter(|(_, code)| is_path(code))
        .collect()
}

/// The anchors of a document's headings, as GitHub generates them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in prose_lines(text) {
        let heading = line.trim_start_matches('#');
        let level = line.len().saturating_sub(heading.len());
        if (1..=6).contains(&level) && heading.starts_with(' ') {
            let slug = slug(heading);
            let mut number: u32 = 0;
            let mut anchor = slug.clone();
            while !anchors.insert(anchor) {
                number = number.saturating_add(1);
                anchor = format!("{slug}-{number}");
            }
        }
        for id in line.split("id=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            anchors.insert(id.to_owned());
        }
    }
    anchors
}

fn slug(heading: &str) -> String {
    let mut text = String::new();
    // Only a link's text is part of the heading.
    for (index, part) in heading.split("](").enumerate() {
        let part =
            if index == 0 { part } else { part.split_once(')').map_or("", |(_, rest)| rest) };
        text.push_str(part);
    }
    let kept = text.trim().chars().filter(|one| one.is_alphanumeric() || " -_".contains(*one));
    kept.map(|one| if one == ' ' { '-' } else { one }).flat_map(char::to_lowercase).collect()
}

/// The lines outside code blocks, numbered from one.
fn prose_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        (!is_fence && !in_code).then_some((index + 1, line))
    })
}

/// A line without the parts in backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_links_are_found() {
        let text = "[a](b.md) and [c](../d.md#e \"f\") and [g](https://h)\n```\n[i](j)\n```\n\
                    `[k](l)` [m](#n)\n[o]: p.md\n";
        let targets: Vec<(usize, String)> = links(text);
        let expected = [(1, "b.md"), (1, "../d.md#e"), (5, "#n"), (6, "p.md")];
        assert_eq!(targets, expected.map(|(line, target)| (line, target.to_owned())));
    }

    #[test]
    fn anchors_are_those_of_github() {
        let text =
            "# What it's for\n## `a_b` and [c](d.md), e\n## Twice\n## Twice\n```\n# no\n```\n";
        let expected = ["a_b-and-c-e", "twice", "twice-1", "what-its-for"];
        assert_eq!(anchors(text).into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn links_must_lead_somewhere() {
        let file = |path: &str, text: &str| File::new(path, text);
        let files = [
            file(
                "README.md",
                "# A\n[b](docs/glossary.md#c) [d](#a) [e](#f) [g](no.md) `crates/no/x.rs`",
            ),
            file("docs/glossary.md", "# C\n[h](../README.md#a) `crates/xtask/src/main.rs`"),
        ];
        let found: Vec<String> = check(&files).into_iter().map(|found| found.text).collect();
        assert_eq!(
            found,
            [
                "README.md:2: #f: 'README.md' has no heading '#f'",
                "README.md:2: no.md: 'no.md' doesn't exist",
                "README.md:2: crates/no/x.rs: no such file",
            ]
        );
    }
}
