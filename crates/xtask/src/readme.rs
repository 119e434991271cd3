//! The commands in README.md, run against a real server.
//!
//! An `sh` code block whose first line is `# test: NAME` must succeed. Its ports are replaced with
//! those of the server under test.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use crate::count::Count;
use crate::process::{command, record};
use crate::programs;

/// A block of commands.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    name: String,
    script: String,
}

/// The number of blocks in a document that are tests.
pub(crate) fn tests(document: &str) -> u64 {
    u64::try_from(blocks(document).len()).unwrap_or(u64::MAX)
}

/// Runs every block in a document; each block counts as a test.
pub(crate) fn run(
    document: &str,
    program: &Path,
    library: &Path,
    models: &Path,
) -> Result<Count, String> {
    let server = ReadmeServer::start(program, library, models)?;
    let mut count = Count::default();
    for block in blocks(document) {
        println!("\n-- {} --", block.name);
        let script = server.with_real_ports(&block.script);
        let passed = record(
            command("sh").args(["-e", "-c", &script]).env("PATH", programs::path_with(&["curl"])),
        )?
        .success;
        let one = Count { passed: passed.into(), failed: (!passed).into() };
        count = count.plus(one);
    }
    Ok(count)
}

fn blocks(document: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        if line != "```sh" {
            continue;
        }
        let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        if let Some((first, rest)) = body.split_first()
            && let Some(name) = first.strip_prefix("# test: ")
        {
            blocks.push(Block { name: name.trim().to_owned(), script: rest.join("\n") });
        }
    }
    blocks
}

/// A server on ports that the system chose. Dropping this kills the server.
struct ReadmeServer {
    child: Child,
    /// Each address in the document, with the corresponding address of this server.
    addresses: Vec<(&'static str, String)>,
}

const STARTED: [(&str, &str); 3] = [
    ("Started GRPCInferenceService at ", "localhost:8001"),
    ("Started HTTPService at ", "localhost:8000"),
    ("Started Metrics Service at ", "localhost:8002"),
];

impl ReadmeServer {
    fn start(program: &Path, library: &Path, models: &Path) -> Result<Self, String> {
        let mut child = command(program)
            .arg("--model-repository")
            .arg(models)
            .arg("--onnxruntime-library")
            .arg(library)
            .args(["--http-port=0", "--grpc-port=0", "--metrics-port=0"])
            .args(["--http-address=127.0.0.1", "--grpc-address=127.0.0.1"])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("can't start '{}': {error}", program.display()))?;
        let output = child.stdout.take().map(BufReader::new);
        let mut server = Self { child, addresses: Vec::new() };
        let output = output.ok_or("the server has no output")?;
        server.read_addresses(output)?;
        Ok(server)
    }

    fn read_addresses(&mut self, mut output: BufReader<ChildStdout>) -> Result<(), String> {
        while self.addresses.len() < STARTED.len() {
            let mut line = String::new();
            if !output.read_line(&mut line).is_ok_and(|length| length > 0) {
                return Err(String::from("the server ended before it was ready"));
            }
            for (text, usual) in STARTED {
                if let Some((_, address)) = line.split_once(text) {
                    let address = address.trim().trim_end_matches('"').to_owned();
                    self.addresses.push((usual, address));
                }
            }
        }
        // The log is read to its end, so the server never waits for a reader.
        std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
        Ok(())
    }

    fn with_real_ports(&self, script: &str) -> String {
        let replaced = self.addresses.iter();
        replaced.fold(script.to_owned(), |script, (usual, real)| script.replace(usual, real))
    }
}

impl Drop for ReadmeServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_blocks_are_run() {
        let document = "\
# A\n```sh\n# test: one\ncurl a\ncurl b\n```\n\
```sh\ncargo build\n```\n```json\n# test: no\n```\n```sh\n# test: two\n```\n";
        let block = |name: &str, script: &str| Block { name: name.into(), script: script.into() };
        assert_eq!(blocks(document), [block("one", "curl a\ncurl b"), block("two", "")]);
    }

    #[test]
    fn the_readme_has_blocks_to_run() {
        let path = crate::workspace::root().join("README.md");
        let names: Vec<String> = blocks(&std::fs::read_to_string(path).unwrap())
            .into_iter()
            .map(|block| block.name)
            .collect();
        assert_eq!(names, ["ready", "metadata", "infer", "metrics"]);
    }
}
