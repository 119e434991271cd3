//! Parses the text format of protocol buffers by descriptor.
//!
//! The parser continues after an error, so that one run finds all errors in a file.

mod edit;
mod lexer;
mod literal;
mod parser;
mod print;
mod scalar;

use galatea_protocol::inference::ModelConfig;
use galatea_protocol::schema::model_config;

pub use self::edit::ConfigText;
pub use self::print::to_pbtxt;
use crate::bounded;
use crate::diagnostic::{ConfigErrors, Diagnostic};
use crate::source::{SourceText, Spans};

/// The maximum length of a configuration file, in bytes.
pub const CONFIG_TEXT_BYTES_MAX: usize = 16 << 20;

/// A configuration and the positions of its fields.
#[derive(Debug)]
pub struct ParsedConfig {
    /// The configuration.
    pub message: ModelConfig,
    /// The positions of its fields.
    pub spans: Spans,
}

/// Parses a configuration file.
///
/// # Errors
///
/// All mistakes in the file, with their positions.
pub fn parse_config(source: &SourceText) -> Result<ParsedConfig, ConfigErrors> {
    if source.text().len() > CONFIG_TEXT_BYTES_MAX {
        let size = source.text().len();
        let most = CONFIG_TEXT_BYTES_MAX;
        let message = bounded!("{size} bytes are too many, at most {most} are read");
        return Err(Diagnostic::about("", message).into());
    }
    let parsed = parser::parse(source, model_config());
    ConfigErrors { diagnostics: parsed.diagnostics }.into_result()?;
    let message = parsed
        .message
        .to_message()
        .map_err(|error| Diagnostic::about("", bounded!("can not be read back: {error}")))?;
    Ok(ParsedConfig { message, spans: parsed.spans })
}

#[cfg(test)]
mod tests;
