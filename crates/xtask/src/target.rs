//! The systems that a build is for, and optimized builds for them.
//!
//! A program linked with this machine's glibc needs that version or a newer one. `zig`, available
//! as a Python package, links with the specified glibc version, for other processors too.

use std::env::consts::ARCH;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::glibc::{self, Glibc};
use crate::process::{cargo, command, output, run};
use crate::{python, workspace};

/// The targets that have packages.
const TRIPLES: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// The option that omits symbol tables.
const STRIPPED: [&str; 2] = ["--config", "profile.release.strip=true"];

/// The systems that a build is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    triple: &'static str,
    /// The oldest glibc; `None` if this machine's is linked.
    glibc: Option<Glibc>,
}

impl Target {
    /// Machines with this processor and any supported glibc.
    pub(crate) fn host() -> Self {
        let triple = TRIPLES.into_iter().find(|triple| machine(triple) == ARCH);
        Self { triple: triple.unwrap_or(TRIPLES[0]), glibc: Some(glibc::OLDEST) }
    }

    /// The target with this name.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let triple = TRIPLES.into_iter().find(|triple| *triple == name).ok_or_else(|| {
            format!("there are no packages for '{name}', but for {}", TRIPLES.join(" and "))
        })?;
        Ok(Self { triple, glibc: Some(glibc::OLDEST) })
    }

    /// Parses the option that selects the target, and returns the remaining options.
    pub(crate) fn option<'a, 'b>(
        &mut self,
        options: &'a [&'b str],
    ) -> Result<Option<&'a [&'b str]>, String> {
        match options {
            ["--target", name, rest @ ..] => {
                self.triple = Self::named(name)?.triple;
                Ok(Some(rest))
            }
            ["--native", rest @ ..] => {
                self.glibc = None;
                Ok(Some(rest))
            }
            _ => Ok(None),
        }
    }

    pub(crate) fn triple(&self) -> &'static str {
        self.triple
    }

    /// The processor.
    pub(crate) fn machine(&self) -> &'static str {
        machine(self.triple)
    }

    /// Returns true if this machine can run the build's programs.
    pub(crate) fn runs_here(&self) -> bool {
        self.machine() == ARCH
    }

    /// Refuses a target that can't be compiled for.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.glibc.is_none() && !self.runs_here() {
            return Err(format!(
                "--native links with the C compiler of this machine, which makes no programs for {}",
                self.machine()
            ));
        }
        let mut ask = command("rustc");
        let folder = output(ask.args(["--print", "target-libdir", "--target", self.triple]))?;
        // Rust prints the folder's path whether or not the folder exists.
        if has_standard_library(Path::new(folder.trim())) {
            return Ok(());
        }
        Err(format!(
            "Rust's standard library for {triple} is not installed: `rustup target add {triple}`, \
             or the package of the distribution that Rust came from",
            triple = self.triple
        ))
    }

    /// Builds the optimized programs and libraries of some crates, without symbol tables. Returns
    /// the folder that contains them.
    pub(crate) fn build(&self, crates: &[&str]) -> Result<PathBuf, String> {
        self.check()?;
        let mut build = match self.glibc {
            Some(glibc) => {
                let mut build = command(tools()?.with_file_name("cargo-zigbuild"));
                self.with_zig(&mut build)?;
                build.args(["zigbuild", "--target", &format!("{}.{glibc}", self.triple)]);
                build
            }
            None => {
                let mut build = cargo();
                build.args(["build", "--target", self.triple]);
                build
            }
        };
        build.args(["--release", "--locked"]).args(STRIPPED);
        build.arg("--target-dir").arg(self.folder());
        for name in crates {
            build.args(["--package", name]);
        }
        run(&mut build)?;
        Ok(self.folder().join(self.triple).join("release"))
    }

    /// Adds the options that maturin needs.
    pub(crate) fn for_maturin(&self, maturin: &mut Command) -> Result<(), String> {
        self.check()?;
        // Its linker is one of maturin's own scripts. In a shared folder, cargo would recompile
        // everything each time, because the other linker has a different path.
        let folder = self.folder().join("wheel");
        maturin.args(["--target", self.triple, "--target-dir"]).arg(folder).args(STRIPPED);
        if let Some(glibc) = self.glibc {
            maturin.args(["--zig", "--compatibility", &glibc.manylinux()]);
            self.with_zig(maturin)?;
        }
        Ok(())
    }

    /// Refuses objects that don't start on their target systems. Prints which systems those are.
    pub(crate) fn verify(&self, objects: &[PathBuf]) -> Result<(), String> {
        let paths = || objects.iter().map(PathBuf::as_path);
        if let Some(glibc) = self.glibc {
            glibc::check(paths(), glibc)?;
        }
        let needed: Result<Vec<_>, _> = paths().map(glibc::newest_needed).collect();
        if let Some(newest) = needed?.into_iter().flatten().max() {
            println!("what was built needs glibc {newest} or newer");
        }
        Ok(())
    }

    /// The folder that cargo builds into. Cargo does not see which glibc a program was linked with,
    /// so each glibc has a separate folder.
    fn folder(&self) -> PathBuf {
        let name = self.glibc.map_or(String::from("native"), |glibc| format!("glibc-{glibc}"));
        workspace::target().join(name)
    }

    /// Lets a builder find zig, and keeps zig's compiled files with the rest of the build.
    #[allow(clippy::disallowed_methods, reason = "tasks may read the environment, as binaries do")]
    fn with_zig(&self, builder: &mut Command) -> Result<(), String> {
        let mut path = tools()?.parent().unwrap_or(Path::new("/")).as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let cache = workspace::cache().join("zig");
        builder.env("PATH", path).env("CARGO_ZIGBUILD_CACHE_DIR", cache.join("cargo-zigbuild"));
        for variable in ["ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"] {
            builder.env(variable, cache.join("zig"));
        }
        Ok(())
    }
}

/// The interpreter of the environment with the packaging tools.
pub(crate) fn tools() -> Result<PathBuf, String> {
    python::environment("venv-wheel", &workspace::root().join("tests/wheel.txt"), &[])
}

fn machine(triple: &str) -> &str {
    triple.split_once('-').map_or(triple, |(machine, _)| machine)
}

fn has_standard_library(folder: &Path) -> bool {
    let is_std = |name: &str| name.starts_with("libstd-") && name.ends_with(".rlib");
    let mut files = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    files.any(|file| is_std(&file.file_name().to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_say_what_to_build_for() {
        let mut target = Target::host();
        assert_eq!(target.machine(), ARCH);
        assert!(target.runs_here());
        assert_eq!(target.option(&["--tag", "x"]).unwrap(), None);
        let rest = target.option(&["--target", TRIPLES[1], "--tag"]).unwrap();
        assert_eq!(rest, Some(&["--tag"][..]));
        assert_eq!(target.machine(), "aarch64");
        assert_eq!(target.folder(), workspace::target().join("glibc-2.28"));
        let _ = target.option(&["--native"]).unwrap();
        assert_eq!(target.folder(), workspace::target().join("native"));
    }

    #[test]
    fn what_can_not_be_built_is_refused_by_name() {
        let refused = Target::named("wasm32-unknown-unknown").unwrap_err();
        assert!(refused.contains("'wasm32-unknown-unknown'"), "{refused}");
        assert!(refused.contains("x86_64-unknown-linux-gnu and aarch64"), "{refused}");
        assert_eq!(Target::host().check(), Ok(()));
        let other = TRIPLES.into_iter().find(|triple| machine(triple) != ARCH).unwrap();
        let native = Target { triple: other, glibc: None };
        assert!(native.check().unwrap_err().starts_with("--native links with"));
    }

    #[test]
    fn a_folder_without_the_standard_library_is_seen() {
        assert!(!has_standard_library(Path::new("/no/such/folder")));
        assert!(!has_standard_library(&workspace::root()));
    }
}
