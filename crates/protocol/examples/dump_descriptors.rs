//! Writes the embedded `FileDescriptorSet` to the file specified on the command line, so that other
//! tools can compare it with Triton's.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: dump_descriptors FILE")?;
    std::fs::write(path, galatea_protocol::DESCRIPTOR_SET)?;
    Ok(())
}
