//! The files of a release, in one folder.
//!
//! The folder contains, for each target, a wheel, an archive with the programs, and a component
//! list; the image, if one can be built; notes from CHANGELOG.md; and the hash of each file.
//! docs/releasing.md describes what a maintainer does before and after.

mod checksums;
mod notes;
mod options;

use std::fs;
use std::path::{Path, PathBuf};

use crate::image::{self, Builder};
use crate::process::{command, output, run as run_command};
use crate::target::Target;
use crate::{sbom, wheel, workspace};
use options::{ImageDemand, Options};

/// The version to release.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Other files that contain the version, each with the text before it.
const OTHER_VERSIONS: [(&str, &str); 4] = [
    ("python/aliases/pyproject.toml", "version = \""),
    ("deploy/helm/galatea/Chart.yaml", "version: "),
    ("deploy/helm/galatea/Chart.yaml", "appVersion: \""),
    ("deploy/kserve/runtime.yaml", "image: galatea:"),
];

/// The task.
pub(crate) fn run(options: &[&str]) -> Result<(), String> {
    let options = Options::parse(options)?;
    // The checks come first, so a release fails before anything is built, not an hour later.
    let commit = Commit::of_this_tree(options.is_draft)?;
    let changes = notes::section(&read("CHANGELOG.md")?, VERSION, options.is_draft)?;
    check_versions()?;
    for target in &options.targets {
        target.check()?;
    }
    let (builder, left_out) = choose_builder(&options)?;

    let folder = options
        .folder
        .clone()
        .unwrap_or_else(|| workspace::target().join("releases").join(format!("galatea-{VERSION}")));
    let unfinished = workspace::beside(&folder, "unfinished");
    let failed = |error: std::io::Error| format!("can't write '{}': {error}", folder.display());
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished).map_err(failed)?;
    }
    fs::create_dir_all(&unfinished).map_err(failed)?;
    for target in &options.targets {
        build(target, &unfinished, &commit)?;
    }
    wheel::build_aliases(&unfinished)?;
    if let Some(builder) = &builder {
        build_image(builder, &options, &unfinished)?;
    }
    let files = checksums::of_folder(&unfinished)?;
    let notes = notes::write(VERSION, &commit.name, &changes, &files, left_out.as_deref());
    fs::write(unfinished.join("NOTES.md"), notes).map_err(failed)?;
    let files = checksums::of_folder(&unfinished)?;
    fs::write(unfinished.join(checksums::FILE), checksums::write(&files)).map_err(failed)?;
    // The folder appears complete or not at all.
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(failed)?;
    }
    fs::rename(&unfinished, &folder).map_err(failed)?;
    for file in &files {
        println!("{:>12} {}", file.bytes, file.name);
    }
    if let Some(reason) = left_out {
        println!("left out: the image: {reason}");
    }
    println!("{}", folder.display());
    Ok(())
}

/// The commit to release.
struct Commit {
    name: String,
    /// Seconds since 1970; files in packages get this time.
    time: String,
}

impl Commit {
    /// Refuses uncommitted files: the release could not be rebuilt.
    fn of_this_tree(is_draft: bool) -> Result<Self, String> {
        let git = |arguments: &[&str]| output(command("git").args(arguments));
        let changed = git(&["status", "--porcelain"])?;
        if !changed.is_empty() && !is_draft {
            return Err(format!(
                "files that are not committed can't be released (`--draft` does it to try):\n{}",
                changed.trim_end()
            ));
        }
        let shown = git(&["show", "--no-patch", "--format=%H %ct", "HEAD"])?;
        let (name, time) = shown.trim().split_once(' ').ok_or("git shows no commit")?;
        let suffix = if changed.is_empty() { "" } else { ", with changes that are not committed" };
        Ok(Self { name: format!("{name}{suffix}"), time: time.to_owned() })
    }
}

/// Chooses the program that builds the image; otherwise, returns the reason why there is none.
fn choose_builder(options: &Options) -> Result<(Option<Builder>, Option<String>), String> {
    if options.image == ImageDemand::None {
        return Ok((None, Some(String::from("it was not asked for"))));
    }
    match Builder::find(&Target::host()) {
        Ok(builder) => Ok((Some(builder), None)),
        Err(reason) if options.image == ImageDemand::IfPossible => Ok((None, Some(reason))),
        Err(reason) => Err(reason),
    }
}

/// Builds a target's wheel, archive and component list.
fn build(target: &Target, folder: &Path, commit: &Commit) -> Result<(), String> {
    let tree = tree(target);
    image::lay_out(&tree, target)?;
    let name = archive_name(target);
    let mut pack = command("tar");
    // The same files result in the same archive, regardless of when and by which user they are
    // packed.
    pack.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    pack.arg(format!("--mtime=@{}", commit.time)).arg("--use-compress-program=gzip -n -9");
    // Triton's image has ONNX Runtime there; users of the archive get it from PyPI.
    let left_out = format!("--exclude={}/backends", image::HOME);
    pack.arg(format!("--transform=flags=r;s|^{}|{name}|", image::HOME)).arg(left_out);
    pack.arg("--file").arg(folder.join(format!("{name}.tar.gz")));
    run_command(pack.arg("--directory").arg(&tree).arg(image::HOME))?;
    let components = folder.join(format!("{name}.cdx.json"));
    fs::copy(sbom::make(target)?, &components)
        .map_err(|error| format!("can't write '{}': {error}", components.display()))?;
    wheel::build(target, wheel::Profile::Optimized, folder)?;
    Ok(())
}

fn build_image(builder: &Builder, options: &Options, folder: &Path) -> Result<(), String> {
    let target = Target::host();
    let tree = tree(&target);
    if !options.targets.contains(&target) {
        image::lay_out(&tree, &target)?;
    }
    let tag = image::tag();
    builder.build(&tree, &tag, options.base.as_deref(), &[])?;
    let archive = folder.join(format!("galatea-{VERSION}-image-{}.tar", target.machine()));
    builder.save(&tag, &archive)
}

/// Collects the image's files for a target.
fn tree(target: &Target) -> PathBuf {
    workspace::target().join("releases").join(target.triple())
}

/// An archive's name without its extension; the archive's files are in a folder with that name.
fn archive_name(target: &Target) -> String {
    format!("galatea-{VERSION}-{}", target.triple())
}

/// Refuses files that contain a different version.
fn check_versions() -> Result<(), String> {
    for (file, before) in OTHER_VERSIONS {
        let text = read(file)?;
        let version = version_after(&text, before).unwrap_or("none");
        if version != VERSION {
            return Err(format!("'{file}' names version {version} in place of {VERSION}"));
        }
    }
    Ok(())
}

/// The version after a prefix at the start of a line.
fn version_after<'a>(text: &'a str, before: &str) -> Option<&'a str> {
    let mut lines = text.lines().map(str::trim_start);
    let rest = lines.find_map(|line| line.strip_prefix(before))?;
    Some(rest.split(['"', ' ']).next().unwrap_or(rest))
}

fn read(file: &str) -> Result<String, String> {
    fs::read_to_string(workspace::root().join(file))
        .map_err(|error| format!("can't read '{file}': {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_name_the_version_of_the_workspace() {
        assert_eq!(check_versions(), Ok(()));
    }

    #[test]
    fn a_version_is_found_at_the_start_of_a_line() {
        let text = "name: galatea\nversion: 1.2.3 # of the chart\n  appVersion: \"4.5.6\"\n";
        assert_eq!(version_after(text, "version: "), Some("1.2.3"));
        assert_eq!(version_after(text, "appVersion: \""), Some("4.5.6"));
        assert_eq!(version_after(text, "image: galatea:"), None);
    }

    #[test]
    fn an_archive_is_named_after_version_and_target() {
        let target = Target::named("aarch64-unknown-linux-gnu").unwrap();
        assert_eq!(archive_name(&target), format!("galatea-{VERSION}-aarch64-unknown-linux-gnu"));
    }
}
