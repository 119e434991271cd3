//! Reads configuration files and prints each as one line of JSON, for comparison with
//! other parsers of the format.

use std::error::Error;
use std::io::Write as _;

use galatea_config::model_config_to_json;
use galatea_pbtxt::parse_config_draft;
use prost::Message as _;
use serde_json::json;

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    for path in std::env::args().skip(1) {
        let text = String::from_utf8(std::fs::read(&path)?)?;
        let line = match parse_config_draft(&path, &text) {
            Ok(draft) => json!({
                "path": path,
                "protobuf": hexadecimal(&draft.message().encode_to_vec()),
                "json": model_config_to_json(draft.message()),
            }),
            Err(errors) => json!({ "path": path, "errors": errors.to_string() }),
        };
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
