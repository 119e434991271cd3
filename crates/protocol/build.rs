//! Compiles the .proto files without a system `protoc`. Produces Rust messages, the configuration
//! schema tables, and the descriptor set for tools and tests.

#[path = "build/tables.rs"]
mod tables;

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message as _;

const FILES: [&str; 2] = ["grpc_service.proto", "health.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed=build");
    let mut descriptors = protox::compile(FILES, ["proto"])?;

    // `bytes` fields become slices of the decoded buffer, so tensor contents are never copied.
    // Ordered maps make the encoding deterministic.
    prost_build::Config::new().bytes(["."]).btree_map(["."]).compile_fds(descriptors.clone())?;

    for file in &mut descriptors.file {
        file.source_code_info = None;
    }
    let out = out_directory()?;
    fs::write(out.join("schema.rs"), tables::write(&descriptors, "inference.ModelConfig")?)?;
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "Cargo passes the build directory only in the environment"
)]
fn out_directory() -> Result<PathBuf, Box<dyn Error>> {
    Ok(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?.into())
}
