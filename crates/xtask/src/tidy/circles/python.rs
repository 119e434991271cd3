//! The imports in a Python source, and the modules that they lead to.
//!
//! An import inside a function counts: it delays the circle but does not remove it. An import under
//! `if TYPE_CHECKING:` doesn't count, because no running code needs it.

use std::collections::{BTreeMap, BTreeSet};

use super::graph::Graph;

/// The names from a package's outermost folder to a module.
type Module = Vec<String>;

/// The modules that find each other by absolute names: the modules in a folder that is not a
/// package, and in the packages within it.
#[derive(Debug, Default)]
pub(super) struct PythonModules(BTreeMap<Module, Vec<Import>>);

/// An import's path, starting at the folder.
type Import = Vec<String>;

/// The source folders, each with its modules. `paths` contains all Python sources.
pub(super) fn roots<'a>(
    sources: impl Iterator<Item = (&'a str, &'a str)> + Clone,
) -> BTreeMap<String, PythonModules> {
    let paths: BTreeSet<&str> = sources.clone().map(|(path, _)| path).collect();
    let mut roots: BTreeMap<String, PythonModules> = BTreeMap::new();
    for (path, code) in sources {
        let root = root(path, &paths);
        let inner = path.get(root.len()..).unwrap_or_default().trim_start_matches('/');
        roots.entry(root.to_owned()).or_default().add(inner, code);
    }
    roots
}

/// The folder of a source, or of its outermost package.
fn root<'a>(path: &'a str, paths: &BTreeSet<&str>) -> &'a str {
    let mut folder = parent(path);
    while paths.contains(format!("{folder}/__init__.py").as_str()) {
        folder = parent(folder);
    }
    folder
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

impl PythonModules {
    /// Adds a source by its path within the folder.
    fn add(&mut self, path: &str, code: &str) {
        let stem = path.strip_suffix(".py").unwrap_or(path);
        let mut module: Module = stem.split('/').map(String::from).collect();
        let mut package = module.clone();
        package.pop();
        if module.last().is_some_and(|last| last == "__init__") {
            module.pop();
        }
        self.0.insert(module, imports(code, &package));
    }

    /// The arrows between different modules. As in Rust, an arrow from a module to its own package
    /// is left out: the package's file collects the definitions of the other files.
    pub(super) fn graph(&self) -> Graph {
        let mut graph = Graph::default();
        for (from, imports) in &self.0 {
            for to in imports.iter().filter_map(|import| self.module(import)) {
                if !from.starts_with(to) {
                    graph.add(from.join("."), to.join("."));
                }
            }
        }
        graph
    }

    /// The module that a path leads to. The path's last name may be one that the module defines.
    fn module<'a>(&self, import: &'a [String]) -> Option<&'a [String]> {
        let lengths = (1..=import.len()).rev();
        let mut prefixes = lengths.filter_map(|length| import.get(..length));
        prefixes.find(|prefix| self.0.contains_key(*prefix))
    }
}

/// The paths of all imports in a source from which comments and literals were removed.
fn imports(code: &str, package: &[String]) -> Vec<Import> {
    let mut found = Vec::new();
    // The indentation of a block that never runs.
    let mut skipped: Option<usize> = None;
    for line in statements(code) {
        let indentation = line.len().saturating_sub(line.trim_start().len());
        if skipped.is_some_and(|outer| indentation > outer) {
            continue;
        }
        let statement = line.trim();
        skipped = statement.starts_with("if TYPE_CHECKING").then_some(indentation);
        for part in statement.split(';') {
            let (keyword, rest) = part.trim().split_once(' ').unwrap_or_default();
            match keyword {
                "import" => found.extend(rest.split(',').map(path)),
                "from" => from_import(rest, package, &mut found),
                _ => {}
            }
        }
    }
    found
}

/// `.a.b import c, d as e`
fn from_import(text: &str, package: &[String], found: &mut Vec<Import>) {
    let Some((module, names)) = text.split_once(" import") else { return };
    let dots = module.chars().take_while(|one| *one == '.').count();
    // One dot is the package itself.
    let base = match dots.checked_sub(1) {
        None => Vec::new(),
        Some(up) => package.get(..package.len().saturating_sub(up)).unwrap_or_default().to_vec(),
    };
    let module = module.trim_start_matches('.').trim();
    let base = if module.is_empty() { base } else { [base, path(module)].concat() };
    let names = names.split(['(', ')', ',']).map(str::trim).filter(|name| !name.is_empty());
    found.extend(names.map(|name| [base.clone(), path(name)].concat()));
}

/// `a.b as c`
fn path(name: &str) -> Vec<String> {
    let name = name.split_whitespace().next().unwrap_or_default();
    name.split('.').map(String::from).collect()
}

/// The lines of a source; lines continued by parentheses or a backslash are joined.
fn statements(code: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut depth: usize = 0;
    let mut is_continued = false;
    for line in code.lines().filter(|line| !line.trim().is_empty()) {
        let text = line.trim_end().trim_end_matches('\\');
        match found.last_mut().filter(|_| is_continued) {
            Some(last) => {
                last.push(' ');
                last.push_str(text.trim());
            }
            None => found.push(text.to_owned()),
        }
        for character in line.chars() {
            match character {
                '(' | '[' | '{' => depth = depth.saturating_add(1),
                ')' | ']' | '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        is_continued = depth > 0 || line.trim_end().ends_with('\\');
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_are_read() {
        let code = "import a.b as c, d\nfrom . import e\nfrom ..f import (g,\n    h as i)\n\
                    def j():\n    from .k import l; import m\nif TYPE_CHECKING:\n    import n\n\
                    from o import p, \\\n    q\nimported = 1\n";
        let package = [String::from("x"), String::from("y")];
        let found: Vec<String> = imports(code, &package).iter().map(|one| one.join(".")).collect();
        assert_eq!(found, ["a.b", "d", "x.y.e", "x.f.g", "x.f.h", "x.y.k.l", "m", "o.p", "o.q"]);
    }
}
