//! The workspace packages and all of their dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::Value;

use crate::process::{cargo, output};

/// A package and the packages that its build uses directly. Packages used only by tests are left
/// out, as are optional packages, which a feature for other packages' tests enables.
#[derive(Clone, Debug)]
pub(crate) struct Package {
    /// The name, such as `galatea-tensor`.
    pub(crate) name: String,
    /// The package's folder.
    pub(crate) folder: PathBuf,
    /// The names of the packages that it uses.
    pub(crate) uses: BTreeSet<String>,
}

impl Package {
    /// The name without the project's prefix, which is also the folder's name.
    pub(crate) fn short_name(&self) -> &str {
        self.name.strip_prefix("galatea-").unwrap_or(&self.name)
    }
}

/// All packages, workspace packages first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    members: Vec<Package>,
    others: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    /// Makes a graph of these packages.
    #[cfg(test)]
    pub(crate) fn new(
        members: Vec<Package>,
        others: impl IntoIterator<Item = (String, BTreeSet<String>)>,
    ) -> Self {
        Self { members, others: others.into_iter().collect() }
    }

    /// Reads the graph as cargo resolves it.
    pub(crate) fn of_workspace() -> Result<Self, String> {
        let text = output(cargo().args(["metadata", "--format-version", "1", "--locked"]))?;
        let metadata: Value = serde_json::from_str(&text)
            .map_err(|error| format!("cargo metadata can't be read: {error}"))?;
        Self::read(&metadata).ok_or_else(|| String::from("cargo metadata has an unknown form"))
    }

    fn read(metadata: &Value) -> Option<Self> {
        let packages = metadata.get("packages")?.as_array()?;
        let names: BTreeMap<&str, &str> = packages
            .iter()
            .filter_map(|package| Some((text(package, "id")?, text(package, "name")?)))
            .collect();
        let folders: BTreeMap<&str, &str> = packages
            .iter()
            .filter_map(|package| Some((text(package, "id")?, text(package, "manifest_path")?)))
            .collect();
        let members: BTreeSet<&str> = metadata
            .get("workspace_members")?
            .as_array()?
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let mut graph = Self::default();
        for node in metadata.get("resolve")?.get("nodes")?.as_array()? {
            let id = text(node, "id")?;
            let name = (*names.get(id)?).to_owned();
            let mut uses = used_packages(node, &names)?;
            if members.contains(id) {
                uses.retain(|used| !optional(metadata, id).any(|name| name == used));
                let folder = PathBuf::from(folders.get(id)?).parent()?.to_path_buf();
                graph.members.push(Package { name, folder, uses });
            } else {
                graph.others.entry(name).or_default().extend(uses);
            }
        }
        Some(graph)
    }

    /// The workspace's packages.
    pub(crate) fn members(&self) -> &[Package] {
        &self.members
    }

    /// Every package that this one uses, directly or indirectly.
    pub(crate) fn everything_used_by<'a>(&'a self, package: &'a Package) -> BTreeSet<&'a str> {
        let mut reached: BTreeSet<&str> = BTreeSet::new();
        let mut open: Vec<&str> = package.uses.iter().map(String::as_str).collect();
        while let Some(name) = open.pop() {
            if reached.insert(name) {
                let member = self.members.iter().find(|member| member.name == name);
                let uses = member.map(|member| &member.uses).or_else(|| self.others.get(name));
                open.extend(uses.into_iter().flatten().map(String::as_str));
            }
        }
        reached
    }

    /// The number of workspace packages that use this one, directly or indirectly.
    pub(crate) fn users_of(&self, package: &Package) -> usize {
        let uses = |user: &&Package| self.everything_used_by(user).contains(&*package.name);
        self.members.iter().filter(uses).count()
    }
}

fn used_packages(node: &Value, names: &BTreeMap<&str, &str>) -> Option<BTreeSet<String>> {
    let dependencies = node.get("deps")?.as_array()?;
    let in_builds = dependencies.iter().filter(|dependency| is_in_builds(dependency));
    in_builds.map(|dependency| Some((*names.get(text(dependency, "pkg")?)?).to_owned())).collect()
}

/// The packages that a package uses only with a feature.
fn optional<'a>(metadata: &'a Value, id: &'a str) -> impl Iterator<Item = &'a str> {
    let packages = metadata.get("packages").and_then(Value::as_array).into_iter().flatten();
    let own = packages.filter(move |package| text(package, "id") == Some(id));
    let dependencies = own.filter_map(|package| package.get("dependencies")?.as_array()).flatten();
    let is_optional = |one: &&Value| one.get("optional").and_then(Value::as_bool) == Some(true);
    dependencies.filter(is_optional).filter_map(|one| text(one, "name"))
}

/// Returns true for ordinary dependencies, whose kind in cargo's metadata is `null`. Dependencies
/// of build scripts and tests are not part of the program.
fn is_in_builds(dependency: &Value) -> bool {
    let kinds = dependency.get("dep_kinds").and_then(Value::as_array);
    kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind.get("kind").is_none_or(Value::is_null)))
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}
