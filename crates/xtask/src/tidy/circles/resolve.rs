//! Finds the file that defines a path's target.

use std::collections::BTreeMap;

use super::uses::{self, Import, Paths};

/// The names from the crate's root to a module.
type Module = Vec<String>;

/// The maximum number of re-exports that a name may lead through.
const STEPS_MAX: u32 = 16;

/// The files of a crate.
#[derive(Debug, Default)]
pub(super) struct Modules(BTreeMap<Module, Paths>);

impl Modules {
    /// Adds a file by its path below `src`.
    pub(super) fn add(&mut self, path: &str, code: &str) {
        let stem = path.strip_suffix(".rs").unwrap_or(path);
        let mut module: Module = stem.split('/').map(String::from).collect();
        let is_folder = module.last().is_some_and(|last| last == "mod");
        let is_root = module.len() == 1
            && module.first().is_some_and(|name| matches!(name.as_str(), "lib" | "main"));
        if is_folder || is_root {
            module.pop();
        }
        // A program in the same crate as a library shares its root.
        let read = uses::read(code);
        let paths = self.0.entry(module).or_default();
        paths.imports.extend(read.imports);
        paths.inline.extend(read.inline);
    }

    /// Each pair of different files where the first refers to a name in the second.
    pub(super) fn arrows(&self) -> Vec<(Module, Module)> {
        let mut arrows = Vec::new();
        for (from, paths) in &self.0 {
            let imports = paths.imports.iter().filter(|import| !import.is_export);
            let named = imports.map(|import| &import.path).chain(&paths.inline);
            let targets = named.filter_map(|path| self.start(from, path));
            arrows.extend(targets.filter(|to| to != from).map(|to| (from.clone(), to)));
        }
        arrows.sort();
        arrows.dedup();
        arrows
    }

    /// Follows a path from the module that contains it; `None` if it leads out of the crate.
    fn start(&self, from: &Module, path: &[String]) -> Option<Module> {
        self.follow(from, path, STEPS_MAX)
    }

    fn follow(&self, from: &Module, path: &[String], steps: u32) -> Option<Module> {
        let steps = steps.checked_sub(1)?;
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => self.within(Vec::new(), rest, steps),
            "self" => self.within(from.clone(), rest, steps),
            "super" => {
                let mut parent = from.clone();
                parent.pop()?;
                let supers = rest.iter().take_while(|name| *name == "super").count();
                for _ in 0..supers {
                    parent.pop()?;
                }
                self.within(parent, rest.get(supers..)?, steps)
            }
            name => {
                let child = [from.as_slice(), std::slice::from_ref(first)].concat();
                if self.0.contains_key(&child) {
                    return self.within(child, rest, steps);
                }
                // Apart from child modules, only names imported by `use` count.
                let import = self.import(from, name)?;
                let whole = [import.path.as_slice(), rest].concat();
                self.follow(from, &whole, steps).filter(|_| import.path.first() != Some(first))
            }
        }
    }

    /// The file that defines a path, starting at a module.
    fn within(&self, module: Module, path: &[String], steps: u32) -> Option<Module> {
        let Some((first, rest)) = path.split_first() else { return Some(module) };
        let child = [module.as_slice(), std::slice::from_ref(first)].concat();
        if self.0.contains_key(&child) {
            return self.within(child, rest, steps);
        }
        match self.import(&module, first) {
            Some(import) => {
                let whole = [import.path.as_slice(), rest].concat();
                self.follow(&module, &whole, steps)
            }
            None => Some(module),
        }
    }

    fn import(&self, module: &Module, name: &str) -> Option<&Import> {
        let imports = &self.0.get(module)?.imports;
        imports.iter().find(|import| import.name == name)
    }
}
