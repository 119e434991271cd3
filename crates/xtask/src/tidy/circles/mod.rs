//! Import cycles among the modules of a crate.
//!
//! A module is a file. An arrow goes from a file to the file that defines a name it uses. A name
//! that a module only re-exports leads to its definition, and the re-export itself is not an arrow.
//! Tests are left out.
//!
//! One kind of arrow is allowed: from a file to the `mod.rs` of a folder above it. A component is a
//! folder whose `mod.rs` contains the type that its other files extend, each with its own `impl`.
//!
//! Python modules are checked in the same way; see [`python`].

mod graph;
mod python;
mod resolve;
mod uses;

use std::collections::BTreeMap;

use super::Violation;
use super::files::File;
use graph::Graph;
use resolve::Modules;

/// Every circle in every crate, and in the Python sources.
pub(super) fn check(files: &[File]) -> Vec<Violation> {
    let mut found = in_rust(files);
    found.extend(in_python(files));
    found
}

fn in_rust(files: &[File]) -> Vec<Violation> {
    let mut crates: BTreeMap<&str, Modules> = BTreeMap::new();
    let sources = files.iter().filter(|file| file.is("rs") && !file.is_test());
    for file in sources {
        let parts = file.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"));
        if let Some((name, path)) = parts
            && !path.starts_with("bin/")
        {
            crates.entry(name).or_default().add(path, &file.production_code());
        }
    }
    let mut found = Vec::new();
    for (name, modules) in crates {
        for circle in graph(&modules).circles() {
            found.push(Violation { area: name.to_owned(), text: format!("{name}: {circle}") });
        }
    }
    found
}

fn in_python(files: &[File]) -> Vec<Violation> {
    let sources = files.iter().filter(|file| file.is("py"));
    let sources = sources.map(|file| (file.path.as_str(), file.masked.code.as_str()));
    let mut found = Vec::new();
    for (root, modules) in python::roots(sources) {
        for circle in modules.graph().circles() {
            let area = root.split('/').next().unwrap_or_default().to_owned();
            found.push(Violation { area, text: format!("{root}: {circle}") });
        }
    }
    found
}

fn graph(modules: &Modules) -> Graph {
    let mut graph = Graph::default();
    for (from, to) in modules.arrows() {
        let is_component = from.starts_with(&to) && !to.is_empty();
        if !is_component {
            graph.add(name(&from), name(&to));
        }
    }
    graph
}

fn name(module: &[String]) -> String {
    if module.is_empty() { String::from("lib") } else { module.join("::") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_crate(sources: &[(&str, &str)], expected: &[&str]) {
        let files: Vec<File> = sources
            .iter()
            .map(|(path, text)| File::new(&format!("crates/a/src/{path}"), text))
            .collect();
        let found: Vec<String> = check(&files).into_iter().map(|found| found.text).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_circle_is_found_through_uses_and_inline_paths() {
        check_crate(
            &[
                ("lib.rs", "mod b; mod c; mod d;"),
                ("b.rs", "use crate::c::C; pub struct B;"),
                ("c.rs", "pub struct C(super::d::D);"),
                ("d.rs", "use super::{b::B, c};\npub struct D;"),
            ],
            &["a: c → d → c (of 3 modules: b, c, d)\n    b → c\n    c → d\n    d → b, c"],
        );
    }

    #[test]
    fn re_exports_lead_on_and_are_no_arrows() {
        check_crate(
            &[
                ("lib.rs", "mod b; mod c; pub use b::B; pub use c::C;"),
                ("b.rs", "use crate::C; pub struct B;"),
                ("c.rs", "pub struct C;"),
            ],
            &[],
        );
        check_crate(
            &[
                ("lib.rs", "mod b; mod c; pub use b::B; pub use c::C;"),
                ("b.rs", "use crate::C; pub struct B;"),
                ("c.rs", "use crate::B; pub struct C;"),
            ],
            &["a: b → c → b"],
        );
    }

    #[test]
    fn what_the_root_defines_counts() {
        check_crate(
            &[("lib.rs", "mod b; fn a() { b::c() } struct D;"), ("b.rs", "use crate::D;")],
            &["a: b → lib → b"],
        );
    }

    #[test]
    fn a_circle_in_python_is_found() {
        let sources = [
            ("workers/a/__init__.py", "from .b import B\n"),
            ("workers/a/b.py", "from . import c\nclass B(c.C): pass\n"),
            ("workers/a/c.py", "def f():\n    from .b import B\n    import a\n"),
            ("workers/d.py", "from a.b import B\n"),
        ];
        let files: Vec<File> = sources.iter().map(|(path, text)| File::new(path, text)).collect();
        let found: Vec<String> = check(&files).into_iter().map(|found| found.text).collect();
        assert_eq!(found, ["workers: a.b → a.c → a.b"]);
    }

    #[test]
    fn a_component_may_use_what_its_folder_defines() {
        check_crate(
            &[
                ("lib.rs", "mod b;"),
                ("b/mod.rs", "mod c; pub struct B; fn d() { c::e() }"),
                ("b/c.rs", "use super::B; impl B {}"),
            ],
            &[],
        );
    }

    #[test]
    fn tests_do_not_count() {
        check_crate(
            &[
                ("lib.rs", "mod b; mod c;"),
                ("b.rs", "pub struct B; #[cfg(test)] mod tests { use crate::c::C; }"),
                ("c.rs", "use crate::b::B;"),
            ],
            &[],
        );
    }
}
