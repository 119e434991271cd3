//! The container image: a file tree laid out as in Triton's image, and the image built from it.
//!
//! The tree is `/opt/tritonserver`: the programs, the libraries and the headers, ONNX Runtime from
//! PyPI and the component list. `deploy/image/Dockerfile` adds the tree to a base image. If no
//! registry can be reached, `--base-of-packages` builds the base image from Debian packages.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{command, output, run as run_command};
use crate::target::Target;
use crate::{onnxruntime, sbom, workspace};

/// The base image that is built from Debian packages.
pub(crate) const BASE_OF_PACKAGES: &str = "localhost/galatea-base:bookworm";

/// The programs that build images, in search order. All of them accept the same arguments.
const BUILDERS: [&[&str]; 3] = [&["buildah", "build"], &["podman", "build"], &["docker", "build"]];

/// The server's location in the tree, as in Triton's image.
pub(crate) const HOME: &str = "opt/tritonserver";

/// The crates whose build results are in the tree.
const CRATES: [&str; 3] = ["galatea", "galatea-libtritonserver", "galatea-checksum-agent"];

/// The options of the task.
struct ImageOptions {
    tag: String,
    base: Option<String>,
    only_tree: Option<PathBuf>,
    target: Target,
    more: Vec<String>,
}

/// The task.
pub(crate) fn run(options: &[&str]) -> Result<(), String> {
    let options = ImageOptions::parse(options)?;
    if let Some(tree) = &options.only_tree {
        return lay_out(tree, &options.target);
    }
    let builder = Builder::find(&options.target)?;
    let tree = workspace::root().join("target/image/tree");
    lay_out(&tree, &options.target)?;
    builder.build(&tree, &options.tag, options.base.as_deref(), &options.more)?;
    println!("built {}", options.tag);
    Ok(())
}

/// The image name for this version.
pub(crate) fn tag() -> String {
    format!("localhost/galatea:{}", env!("CARGO_PKG_VERSION"))
}

/// A program that builds images.
pub(crate) struct Builder(&'static [&'static str]);

impl Builder {
    /// Finds the first installed program that works. Images for other processors aren't built,
    /// because packages are installed in them.
    pub(crate) fn find(target: &Target) -> Result<Self, String> {
        if !target.runs_here() {
            return Err(format!("an image for {} needs such a machine", target.machine()));
        }
        let works = |words: &[&str]| output(Command::new(words[0]).arg("info")).map(|_| ());
        choose(works).map(Self)
    }

    /// Builds the image from a tree.
    pub(crate) fn build(
        &self,
        tree: &Path,
        tag: &str,
        base: Option<&str>,
        more: &[String],
    ) -> Result<(), String> {
        if base == Some(BASE_OF_PACKAGES) {
            let folder = workspace::root().join("target/image");
            fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
            make_base(self.0[0], &folder)?;
        }
        let deploy = workspace::root().join("deploy/image");
        let mut build = command(self.0[0]);
        build.args(&self.0[1..]).arg("--file").arg(deploy.join("Dockerfile"));
        build.arg("--build-context").arg(joined("tree=", tree));
        build.args(["--tag", tag, "--label"]);
        build.arg(format!("org.opencontainers.image.version={}", env!("CARGO_PKG_VERSION")));
        if let Some(base) = base {
            build.arg("--build-arg").arg(format!("BASE={base}"));
        }
        run_command(build.args(more).arg(&deploy))
    }

    /// Writes an image to an archive, in the Open Container Initiative's format if the builder
    /// supports it. `podman load` and `docker load` (25 and newer) accept this format. podman 4.3
    /// refuses a compressed archive in Docker's own format.
    pub(crate) fn save(&self, tag: &str, archive: &Path) -> Result<(), String> {
        let mut save = command(self.0[0]);
        match self.0[0] {
            "buildah" => {
                let mut place = joined("oci-archive:", archive);
                place.push(format!(":{tag}"));
                save.args(["push", "--format", "oci", "--compression-format", "gzip", tag])
                    .arg(place);
            }
            "podman" => {
                save.args(["save", "--format", "oci-archive", "--output"]).arg(archive).arg(tag);
            }
            _ => {
                save.args(["save", "--output"]).arg(archive).arg(tag);
            }
        }
        run_command(&mut save)
    }
}

/// Chooses the first builder that works; otherwise, the error states what is wrong with each.
fn choose(
    works: impl Fn(&[&str]) -> Result<(), String>,
) -> Result<&'static [&'static str], String> {
    let mut reasons = Vec::new();
    for words in BUILDERS {
        match works(words) {
            Ok(()) => return Ok(words),
            Err(reason) => reasons.push(reason),
        }
    }
    let reasons = reasons.join("\n").replace('\n', "\n  ");
    Err(format!("no program that builds images works:\n  {reasons}"))
}

impl ImageOptions {
    fn parse(mut rest: &[&str]) -> Result<Self, String> {
        let mut options = Self {
            tag: tag(),
            base: None,
            only_tree: None,
            target: Target::host(),
            more: Vec::new(),
        };
        loop {
            if let Some(after) = options.target.option(rest)? {
                rest = after;
                continue;
            }
            rest = match rest {
                [] => return Ok(options),
                ["--tag", tag, rest @ ..] => {
                    (*tag).clone_into(&mut options.tag);
                    rest
                }
                ["--base", base, rest @ ..] => {
                    options.base = Some((*base).to_owned());
                    rest
                }
                ["--base-of-packages", rest @ ..] => {
                    options.base = Some(BASE_OF_PACKAGES.to_owned());
                    rest
                }
                ["--only-tree", tree, rest @ ..] => {
                    options.only_tree = Some(PathBuf::from(tree));
                    rest
                }
                ["--", more @ ..] => {
                    options.more = more.iter().map(|word| (*word).to_owned()).collect();
                    &[]
                }
                [unknown, ..] => return Err(format!("unknown option '{unknown}'")),
            }
        }
    }
}

/// Writes the image's files to a newly created directory.
pub(crate) fn lay_out(tree: &Path, target: &Target) -> Result<(), String> {
    let built = target.build(&CRATES)?;
    let runtime = onnxruntime::fetch_for(target.machine())?;
    let components = sbom::make(target)?;
    let objects = [
        ("galatea", "bin/galatea"),
        ("libtritonserver.so", "lib/libtritonserver.so"),
        ("libtritonrepoagent_checksum.so", "repoagents/checksum/libtritonrepoagent_checksum.so"),
    ];
    let write = || -> std::io::Result<()> {
        if tree.exists() {
            fs::remove_dir_all(tree)?;
        }
        let root = Layout::new(tree.join(HOME))?;
        for (name, place) in objects {
            root.add(&built.join(name), place, 0o755)?;
        }
        symlink("galatea", root.path("bin/tritonserver"))?;
        fs::create_dir_all(root.path("caches"))?;
        root.add_headers()?;
        root.add_runtime(&runtime)?;
        root.add(&workspace::root().join("LICENSE"), "LICENSE", 0o644)?;
        root.add(&workspace::root().join("docs/galatea.1"), "share/man/man1/galatea.1", 0o644)?;
        root.add(&components, "sbom.cdx.json", 0o644)?;
        let top = Layout::new(tree.to_path_buf())?;
        top.add(&workspace::root().join("deploy/image/serve"), "usr/bin/serve", 0o755)
    };
    write().map_err(|error| format!("can't write '{}': {error}", tree.display()))?;
    target.verify(&objects.map(|(_, place)| tree.join(HOME).join(place)))
}

/// A directory being filled.
struct Layout(PathBuf);

impl Layout {
    fn new(root: PathBuf) -> std::io::Result<Self> {
        fs::create_dir_all(&root)?;
        Ok(Self(root))
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.0.join(inside)
    }

    /// Copies a file, with permissions that don't depend on the user who builds.
    fn add(&self, source: &Path, inside: &str, mode: u32) -> std::io::Result<()> {
        let target = self.path(inside);
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder)?;
        }
        let named = |error: std::io::Error| {
            std::io::Error::new(error.kind(), format!("'{}': {error}", source.display()))
        };
        fs::copy(source, &target).map_err(named)?;
        fs::set_permissions(&target, fs::Permissions::from_mode(mode))
    }

    fn add_headers(&self) -> std::io::Result<()> {
        const HEADERS: &str = "include/triton/core";
        for entry in fs::read_dir(workspace::root().join(HEADERS))? {
            let entry = entry?;
            let name = entry.file_name();
            self.add(&entry.path(), &format!("{HEADERS}/{}", name.to_string_lossy()), 0o644)?;
        }
        Ok(())
    }

    /// Adds ONNX Runtime at the same place as in Triton's image, with its licences.
    fn add_runtime(&self, library: &Path) -> std::io::Result<()> {
        const FOLDER: &str = "backends/onnxruntime";
        let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.add(library, &format!("{FOLDER}/{name}"), 0o755)?;
        symlink(&name, self.path(FOLDER).join("libonnxruntime.so"))?;
        let package = library.ancestors().nth(2).unwrap_or(library);
        for notice in ["LICENSE", "ThirdPartyNotices.txt"] {
            self.add(&package.join(notice), &format!("{FOLDER}/{notice}"), 0o644)?;
        }
        Ok(())
    }
}

/// Builds a base image from Debian packages, as slim as Debian's own: without manuals and
/// translations.
fn make_base(builder: &str, folder: &Path) -> Result<(), String> {
    let archive = folder.join("base.tar");
    if !archive.exists() {
        let mut bootstrap = command("mmdebstrap");
        bootstrap.args(["--variant=minbase", "--format=tar"]);
        for left_out in ["doc", "info", "man", "locale", "lintian", "linda", "groff"] {
            bootstrap.arg(format!("--dpkgopt=path-exclude=/usr/share/{left_out}/*"));
        }
        bootstrap.arg("--dpkgopt=path-include=/usr/share/doc/*/copyright");
        bootstrap.arg("--customize-hook=rm -rf \"$1\"/var/cache/* \"$1\"/var/log/* \"$1\"/var/lib/apt/lists/*");
        let written = folder.join("base.part");
        bootstrap.arg("bookworm").arg(&written);
        run_command(&mut bootstrap)?;
        fs::rename(&written, &archive).map_err(|error| format!("can't keep the base: {error}"))?;
    }
    if builder == "buildah" {
        // buildah has no such command, but a file can do the same.
        let containerfile = folder.join("Dockerfile.base");
        fs::write(&containerfile, "FROM scratch\nADD base.tar /\nCMD [\"bash\"]\n")
            .map_err(|error| format!("can't write '{}': {error}", containerfile.display()))?;
        let mut build = command("buildah");
        build.args(["build", "--tag", BASE_OF_PACKAGES, "--file"]).arg(&containerfile);
        return run_command(build.arg(folder));
    }
    run_command(command(builder).arg("import").arg(&archive).arg(BASE_OF_PACKAGES))
}

fn joined(name: &str, path: &Path) -> OsString {
    let mut joined = OsString::from(name);
    joined.push(path);
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_builder_that_works_is_taken() {
        let works = |name: &'static str| {
            move |words: &[&str]| {
                if words[0] == name { Ok(()) } else { Err(format!("no {}", words[0])) }
            }
        };
        assert_eq!(choose(works("podman")).unwrap(), ["podman", "build"]);
        assert_eq!(
            choose(works("none")).unwrap_err(),
            "no program that builds images works:\n  no buildah\n  no podman\n  no docker"
        );
    }

    #[test]
    fn options_of_the_image() {
        let parsed = |words: &[&str]| ImageOptions::parse(words);
        let options = parsed(&["--native", "--tag", "x", "--", "--quiet"]).unwrap();
        assert_eq!((options.tag.as_str(), &*options.more), ("x", &[String::from("--quiet")][..]));
        assert_ne!(options.target, Target::host());
        assert_eq!(parsed(&["--tags"]).err().unwrap(), "unknown option '--tags'");
    }
}
