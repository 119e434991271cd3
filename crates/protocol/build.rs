//! Compiles the .proto files without a system `protoc`: Rust messages for the
//! code, and the descriptor set for everything that works by reflection.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message as _;

const FILES: [&str; 2] = ["grpc_service.proto", "health.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let mut descriptors = protox::compile(FILES, ["proto"])?;

    // `bytes` fields become slices of the buffer they were decoded from, so
    // tensor contents are never copied; ordered maps make encoding repeatable.
    prost_build::Config::new().bytes(["."]).btree_map(["."]).compile_fds(descriptors.clone())?;

    for file in &mut descriptors.file {
        file.source_code_info = None;
    }
    fs::write(out_directory()?.join("descriptors.bin"), descriptors.encode_to_vec())?;
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "Cargo names the build directory this way only")]
fn out_directory() -> Result<PathBuf, Box<dyn Error>> {
    Ok(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?.into())
}
