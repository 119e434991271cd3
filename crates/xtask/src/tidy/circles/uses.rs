//! The paths in a source: in `use` declarations and elsewhere.

/// A name that a `use` declaration imports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Import {
    /// The path, such as `crate`, `a`, `B`.
    pub(super) path: Vec<String>,
    /// The imported name; `*` for all names.
    pub(super) name: String,
    /// True if the name is exported: `pub use`.
    pub(super) is_export: bool,
}

/// The names in a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Paths {
    pub(super) imports: Vec<Import>,
    /// Paths outside `use` declarations.
    pub(super) inline: Vec<Vec<String>>,
}

/// Parses a source from which comments and literals were removed.
pub(super) fn read(code: &str) -> Paths {
    let tokens = tokens(code);
    let mut paths = Paths::default();
    let mut at: usize = 0;
    while let Some(token) = tokens.get(at) {
        if *token == "use" {
            let end = tokens.iter().skip(at).position(|token| *token == ";");
            let end = end.map_or(tokens.len(), |length| at.saturating_add(length));
            let tree = tokens.get(at.saturating_add(1)..end).unwrap_or_default();
            // `pub use` and `pub(crate) use`.
            let before = at.checked_sub(1).and_then(|before| tokens.get(before));
            let is_export = before.is_some_and(|before| *before == "pub" || *before == ")");
            tree_imports(tree, &mut Vec::new(), is_export, &mut paths.imports);
            at = end;
        } else if is_name(token) {
            let path = path_at(&tokens, at);
            let length = path.len();
            if length > 1 {
                paths.inline.push(path.into_iter().map(str::to_owned).collect());
            }
            at = at.saturating_add(length.saturating_mul(2).saturating_sub(1));
            continue;
        }
        at = at.saturating_add(1);
    }
    paths
}

/// `a::{b, c as d}`
fn tree_imports(tree: &[&str], prefix: &mut Vec<String>, is_export: bool, all: &mut Vec<Import>) {
    let depth = prefix.len();
    let mut rest = tree;
    let mut alias = None;
    while let Some((token, after)) = rest.split_first() {
        rest = after;
        match *token {
            "::" => {}
            "{" => {
                let inner = after.get(..after.len().saturating_sub(1)).unwrap_or_default();
                for branch in branches(inner) {
                    tree_imports(branch, prefix, is_export, all);
                }
                prefix.truncate(depth);
                return;
            }
            "as" => {
                alias = after.first().map(|name| (*name).to_owned());
                break;
            }
            name => prefix.push(name.to_owned()),
        }
    }
    if prefix.last().is_some_and(|last| last == "self") && prefix.len() > 1 {
        prefix.pop();
    }
    if let Some(last) = prefix.last().cloned() {
        let name = alias.unwrap_or(last);
        let mut path = prefix.clone();
        if name == "*" {
            path.pop();
        }
        all.push(Import { path, name, is_export });
    }
    prefix.truncate(depth);
}

/// The parts between commas outside inner braces.
fn branches<'a>(tokens: &'a [&'a str]) -> Vec<&'a [&'a str]> {
    let mut depth: usize = 0;
    let parts = tokens.split(move |token| {
        match *token {
            "{" => depth = depth.saturating_add(1),
            "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && *token == ","
    });
    parts.filter(|part| !part.is_empty()).collect()
}

/// The path `a::b::C` that starts here.
fn path_at<'a>(tokens: &[&'a str], at: usize) -> Vec<&'a str> {
    let mut path: Vec<&str> = tokens.get(at).copied().into_iter().collect();
    let mut at = at.saturating_add(1);
    while let (Some(&"::"), Some(next)) = (tokens.get(at), tokens.get(at.saturating_add(1)))
        && is_name(next)
    {
        path.push(next);
        at = at.saturating_add(2);
    }
    path
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Names, `::`, and every other non-whitespace character.
fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_part = |character: char| character.is_alphanumeric() || character == '_';
        let length = if rest.starts_with("::") {
            2
        } else if is_part(first) {
            rest.find(|character| !is_part(character)).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(length);
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn import(path: &str, name: &str, is_export: bool) -> Import {
        let path = path.split("::").map(String::from).collect();
        Import { path, name: name.to_owned(), is_export }
    }

    #[test]
    fn trees_are_read() {
        let code =
            "use a::{self, b::C, d::{e as f, g::*}};\npub(crate) use h::I; pub use j::K as L;";
        assert_eq!(
            read(code).imports,
            [
                import("a", "a", false),
                import("a::b::C", "C", false),
                import("a::d::e", "f", false),
                import("a::d::g", "*", false),
                import("h::I", "I", true),
                import("j::K", "L", true),
            ]
        );
    }

    #[test]
    fn inline_paths_are_read() {
        let code = "fn a(b: &crate::c::D<super::E>) { f::<G>(); h::i() }";
        let paths: Vec<String> = read(code).inline.iter().map(|path| path.join("::")).collect();
        assert_eq!(paths, ["crate::c::D", "super::E", "h::i"]);
    }
}
