//! The container image: a tree of files as in Triton's image, and the image made of it.
//!
//! The tree is `/opt/tritonserver`: the programs, the libraries and the headers, ONNX Runtime from
//! PyPI and the list of components. `deploy/image/Dockerfile` puts it onto a base image. Where no
//! registry can be reached, `--base-of-packages` makes the base of Debian's packages.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{cargo, command, output, run as run_command};
use crate::{onnxruntime, sbom, workspace};

/// The base that is made of Debian's packages.
const BASE_OF_PACKAGES: &str = "localhost/galatea-base:bookworm";

/// The programs that build images, in the order in which they are looked for. All take the same
/// arguments.
const BUILDERS: [&[&str]; 3] = [&["buildah", "build"], &["podman", "build"], &["docker", "build"]];

/// The crates with what is in the tree.
const CRATES: [&str; 3] = ["galatea", "galatea-libtritonserver", "galatea-checksum-agent"];

/// The options of the task.
struct Options {
    tag: String,
    base: Option<String>,
    only_tree: Option<PathBuf>,
    more: Vec<String>,
}

/// The task.
pub(crate) fn run(options: &[&str]) -> Result<(), String> {
    let options = Options::parse(options)?;
    if let Some(tree) = &options.only_tree {
        return lay_out(tree);
    }
    let builder = builder().ok_or("no program that builds images: buildah, podman or docker")?;
    let folder = workspace::root().join("target/image");
    let tree = folder.join("tree");
    lay_out(&tree)?;
    let base = match options.base.as_deref() {
        Some(BASE_OF_PACKAGES) => {
            make_base(builder[0], &folder)?;
            Some(BASE_OF_PACKAGES)
        }
        other => other,
    };
    let deploy = workspace::root().join("deploy/image");
    let mut build = command(builder[0]);
    build.args(&builder[1..]).arg("--file").arg(deploy.join("Dockerfile"));
    build.arg("--build-context").arg(joined("tree=", &tree));
    build.args(["--tag", &options.tag, "--label"]);
    build.arg(format!("org.opencontainers.image.version={}", env!("CARGO_PKG_VERSION")));
    if let Some(base) = base {
        build.arg("--build-arg").arg(format!("BASE={base}"));
    }
    run_command(build.args(&options.more).arg(&deploy))?;
    println!("built {}", options.tag);
    Ok(())
}

impl Options {
    fn parse(mut rest: &[&str]) -> Result<Self, String> {
        let mut options = Self {
            tag: format!("localhost/galatea:{}", env!("CARGO_PKG_VERSION")),
            base: None,
            only_tree: None,
            more: Vec::new(),
        };
        loop {
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

/// Writes the files of the image into a directory, which is made anew.
fn lay_out(tree: &Path) -> Result<(), String> {
    let mut build = cargo();
    build.args(["build", "--release"]);
    for name in CRATES {
        build.args(["--package", name]);
    }
    run_command(&mut build)?;
    let runtime = onnxruntime::fetch()?;
    let components = sbom::make()?;
    let write = || -> std::io::Result<()> {
        if tree.exists() {
            fs::remove_dir_all(tree)?;
        }
        let root = Layout::new(tree.join("opt/tritonserver"))?;
        root.add(&workspace::program("release", "galatea"), "bin/galatea", 0o755)?;
        symlink("galatea", root.path("bin/tritonserver"))?;
        let library = workspace::program("release", "libtritonserver.so");
        root.add(&library, "lib/libtritonserver.so", 0o755)?;
        let agent = workspace::program("release", "libtritonrepoagent_checksum.so");
        root.add(&agent, "repoagents/checksum/libtritonrepoagent_checksum.so", 0o755)?;
        fs::create_dir_all(root.path("caches"))?;
        root.add_headers()?;
        root.add_runtime(&runtime)?;
        root.add(&workspace::root().join("LICENSE"), "LICENSE", 0o644)?;
        root.add(&components, "sbom.cdx.json", 0o644)?;
        let top = Layout::new(tree.to_path_buf())?;
        top.add(&workspace::root().join("deploy/image/serve"), "usr/bin/serve", 0o755)
    };
    write().map_err(|error| format!("can't write '{}': {error}", tree.display()))?;
    for stripped in [
        "bin/galatea",
        "lib/libtritonserver.so",
        "repoagents/checksum/libtritonrepoagent_checksum.so",
    ] {
        run_command(command("strip").arg(tree.join("opt/tritonserver").join(stripped)))?;
    }
    Ok(())
}

/// A directory that is filled.
struct Layout(PathBuf);

impl Layout {
    fn new(root: PathBuf) -> std::io::Result<Self> {
        fs::create_dir_all(&root)?;
        Ok(Self(root))
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.0.join(inside)
    }

    /// Copies a file, with rights that don't depend on who builds.
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

    /// ONNX Runtime, where Triton's image has it, with the licences that come with it.
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

/// The first program that is there.
fn builder() -> Option<&'static [&'static str]> {
    BUILDERS.into_iter().find(|words| output(Command::new(words[0]).arg("--version")).is_ok())
}

/// Makes a base image of Debian's packages, as slim as Debian's own: without manuals and
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
        // buildah has no command for it, but a file that says the same.
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
