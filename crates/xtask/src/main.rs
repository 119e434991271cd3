//! Tasks around the code, run as `cargo xtask TASK`.
//!
//! | task | what it does |
//! |---|---|
//! | `test` | everything that must pass, as the continuous integration runs it |
//! | `lint` | the checks that read the sources |
//! | `soak` | the tests that tell more the longer they run, at their full length |
//! | `steady` | hours of mixed traffic, and whether the server stays as it was |
//! | `serve` | example models and a server with them, ready to be asked |
//! | `fetch-onnxruntime` | a pinned ONNX Runtime from PyPI; prints its path |
//! | `arrows` | which crate may use what |
//! | `bounds` | a table of the constants that bound something |
//! | `flags` | the pages docs/flags.md and docs/galatea.1, from the flags of the server |
//! | `headers` | the C headers, from the crate `abi` |
//! | `image` | the container image |
//! | `release` | the files of a release, in one folder |
//! | `sbom` | the list of the components of the program |
//! | `fuzz` | the fuzz targets, each for half an hour |
//! | `mutants` | planted bugs that the simulator must find |
//! | `wheel` | the package for Python |
//! | `tidy` | words, names of types, links, circles of modules, and reasons of differences |
//!
//! Nothing here is part of the server. Tasks keep the files that they fetch or build in `.cache` at
//! the workspace's root. `main.rs` lists the tasks, and each task is a module with the task's name.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool speaks to its terminal")]

mod arrows;
mod builds;
mod changed;
mod cost;
mod count;
mod flags;
mod fuzz;
mod glibc;
mod headers;
mod image;
mod lanes;
mod left_out;
mod loom;
mod mutants;
mod onnxruntime;
mod process;
mod programs;
mod pytest;
mod python;
mod readme;
mod release;
mod repeated;
mod report;
mod result;
mod sbom;
mod seeds;
mod serve;
mod soak;
mod steady;
mod steps;
mod target;
mod test;
mod tidy;
mod wheel;
mod workspace;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask TASK

  lint                 format, arrows, headers, words, clippy
  test                 format, arrows, words, tests in Rust and Python, simulation
    --all              also clippy, more simulation, the dashboard in a browser, proxies and Helm,
                       planted bugs, fuzzing
    --changed [COMMIT] the tests that a change since then can have broken; unless it is given, since
                       the branch left main, or since the last commit of main itself
    --only STEP...     these steps alone: fmt, arrows, headers, tidy, clippy, build, python,
                       descriptors, rust, doc, readme, simulation, seeds, browser, deploy,
                       mutants, loom, fuzz, instructions
  soak                 reloads and slow answers by the hundreds, a cluster of Ray: minutes, not seconds
  steady               hours of mixed traffic under a ledger: memory, descriptors, latencies
    --output FOLDER    a new folder for what is measured
    --minutes N        120 unless it says otherwise; more options: bench/README.md
  serve                make example models and serve them on ports 8000 to 8002
    --with-minilm      also a sentence embedding model (downloads 90 MB once)
    --port-offset N    add N to the ports
    --onnxruntime-library PATH
                       this library in place of a downloaded one; as the variable
                       GALATEA_ONNXRUNTIME_LIBRARY
  fetch-onnxruntime    download a pinned ONNX Runtime and print its path
  arrows               check which crate uses what
  bounds               print the constants that bound something, with their values and meanings
  flags                write docs/flags.md and docs/galatea.1, from the flags of the server
  headers              write the C headers from the crate abi
  image                build the container image, with buildah, podman or docker
    --tag NAME         with this name in place of localhost/galatea:VERSION
    --base IMAGE       on this image in place of Debian's
    --base-of-packages on a base that is made of Debian's packages with mmdebstrap
    --only-tree DIR    only write the files of the image into this directory
    --native           link with this machine's glibc, in place of 2.28
    -- OPTIONS         hand the rest to the program that builds
  sbom                 list the components of the program in CycloneDX's format; prints the path
  loom                 try all interleavings of the threads in models of shared state
  mutants              plant each listed bug in the scheduler; the simulator must find it
    --sample N         only N bugs, for a minute or two instead of more than an hour
    --seed N           that this seed draws
    WORDS              only bugs whose name contains this text
  fuzz [TARGET...]     run the fuzz targets, each for half an hour
    --seconds N        for N seconds each; comes before the targets
  release              the files of a release into one folder: wheels, programs, image, list of
                       components, notes, hashes
    --draft            to try: with files that are not committed, and the notes of Unreleased
    --output FOLDER    this folder in place of target/releases/galatea-VERSION; it is made anew
    --target TRIPLE    for this target in place of this machine's; can be repeated
    --image            fail where no image can be built
    --without-image    build none
    --base IMAGE, --base-of-packages
                       the base of the image, as above
  wheel                build the packages for Python, into python/dist, for glibc 2.28 and newer
    --debug            without optimization: larger and slower, and built sooner
    --native           link with this machine's glibc, in place of 2.28
    --target TRIPLE    for aarch64-unknown-linux-gnu or x86_64-unknown-linux-gnu
  tidy                 check words, names of types, links, circles of modules, and reasons of differences
    --crate NAME       in one crate, or one folder at the root, such as docs
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<(), String> {
    match arguments {
        ["test", options @ ..] => test::run(options),
        ["lint"] => test::run(&test::LINTS),
        ["soak"] => soak::run(),
        ["steady", options @ ..] => steady::run(options),
        ["serve", options @ ..] => serve::run(options),
        ["fetch-onnxruntime"] => {
            println!("{}", onnxruntime::fetch()?.display());
            Ok(())
        }
        ["arrows"] => arrows::run(),
        ["bounds"] => tidy::print_bounds(),
        ["flags"] => flags::run(),
        ["headers"] => headers::run(),
        ["image", options @ ..] => image::run(options),
        ["sbom"] => {
            println!("{}", sbom::make(&target::Target::host())?.display());
            Ok(())
        }
        ["fuzz", options @ ..] => fuzz::run(options),
        ["loom"] => loom::run(),
        ["mutants", options @ ..] => mutants::run(options),
        ["release", options @ ..] => release::run(options),
        ["wheel", options @ ..] => wheel::run(options),
        ["tidy", options @ ..] => tidy::run(options),
        [] | ["help" | "--help"] => {
            println!("{USAGE}");
            Ok(())
        }
        unknown => Err(format!("unknown task '{}'\n\n{USAGE}", unknown.join(" "))),
    }
}
