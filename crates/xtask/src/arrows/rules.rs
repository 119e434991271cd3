//! The rules for the package graph.

use super::graph::Package;
use super::{ALLOWED, COMPILED_AGAIN_MAX, Graph, IMPURE_LIBRARIES, PURE, WIDELY_USED};

/// Every arrow that the rules forbid.
pub(super) fn check(graph: &Graph) -> Vec<String> {
    graph.members().iter().flat_map(|package| check_package(graph, package)).collect()
}

fn check_package(graph: &Graph, package: &Package) -> Vec<String> {
    let name = package.short_name();
    let Some((_, allowed)) = ALLOWED.iter().find(|(known, _)| *known == name) else {
        return vec![format!("{name}: a crate that the rules don't know")];
    };
    let used = graph.members().iter().filter(|member| package.uses.contains(&member.name));
    let mut found: Vec<String> = used
        .map(Package::short_name)
        .filter(|used| !allowed.contains(used) && !may_use_ground(name, used))
        .map(|used| format!("{name} must not use {used}"))
        .collect();
    if PURE.contains(&name) {
        let everything = graph.everything_used_by(package);
        let impure = IMPURE_LIBRARIES.iter().filter(|library| everything.contains(**library));
        found.extend(impure.map(|library| format!("{name} is pure and must not reach {library}")));
    }
    if name == "policy" && !package.uses.is_empty() {
        found.push(String::from("policy must use the standard library alone"));
    }
    found
}

/// Crates that recompile too many other crates when changed but are not listed as such, and crates
/// that are listed without reason.
pub(super) fn check_users(graph: &Graph) -> Vec<String> {
    graph.members().iter().filter_map(|package| misjudged(graph, package)).collect()
}

fn misjudged(graph: &Graph, package: &Package) -> Option<String> {
    let (name, users) = (package.short_name(), graph.users_of(package));
    match (users > COMPILED_AGAIN_MAX, WIDELY_USED.contains(&name)) {
        (true, false) => Some(format!(
            "{name}: a change compiles {users} other crates, more than {COMPILED_AGAIN_MAX}"
        )),
        (false, true) => Some(format!("{name}: {users} crates use it, which is few")),
        (true, true) | (false, false) => None,
    }
}

/// Every crate that has threads and locks may use `stdx`.
fn may_use_ground(name: &str, used: &str) -> bool {
    used == "stdx" && !PURE.contains(&name)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn package(name: &str, uses: &[&str]) -> Package {
        Package {
            name: name.to_owned(),
            folder: PathBuf::new(),
            uses: uses.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    fn checked(members: &[(&str, &[&str])], others: &[(&str, &[&str])], expected: &[&str]) {
        let members = members.iter().map(|(name, uses)| package(name, uses)).collect();
        let others = others.iter().map(|(name, uses)| {
            let package = package(name, uses);
            (package.name, package.uses)
        });
        assert_eq!(check(&Graph::new(members, others)), expected);
    }

    #[test]
    fn arrows_down_pass() {
        checked(
            &[
                ("galatea-stdx", &["smallvec"]),
                ("galatea-tensor", &["bytes", "galatea-stdx"]),
                ("galatea-infer", &["galatea-tensor"]),
                ("galatea-http", &["galatea-infer", "tokio", "http"]),
                ("galatea", &["galatea-http"]),
            ],
            &[("tokio", &["mio"])],
            &[],
        );
    }

    #[test]
    fn a_change_compiles_few_crates() {
        let users = ["galatea-http", "galatea-grpc", "galatea-capi", "galatea-python"];
        let mut members: Vec<(&str, &[&str])> = vec![("galatea-dashboard", &[])];
        members.extend(users.map(|user| (user, &["galatea-dashboard"] as &[&str])));
        members.push(("galatea", &["galatea-http"]));
        let members: Vec<Package> =
            members.iter().map(|(name, uses)| package(name, uses)).collect();
        let found = check_users(&Graph::new(members, []));
        assert_eq!(found, ["dashboard: a change compiles 5 other crates, more than 4"]);
    }

    #[test]
    fn arrows_up_or_aside_are_found() {
        checked(
            &[
                ("galatea-tensor", &["galatea-infer"]),
                ("galatea-infer", &[]),
                ("galatea-engine", &[]),
                ("galatea-http", &["galatea-engine"]),
                ("galatea-novelty", &[]),
            ],
            &[],
            &[
                "tensor must not use infer",
                "http must not use engine",
                "novelty: a crate that the rules don't know",
            ],
        );
    }

    #[test]
    fn a_pure_crate_stays_pure_through_its_libraries() {
        checked(
            &[("galatea-codec", &["harmless"]), ("galatea-policy", &["fine"])],
            &[("harmless", &["deep"]), ("deep", &["tokio"]), ("fine", &[])],
            &[
                "codec is pure and must not reach tokio",
                "policy must use the standard library alone",
            ],
        );
    }
}
