//! A descriptor-driven parser for the Protocol Buffers text format.
//!
//! The parser continues after an error, so that one run finds all errors in a file.

use galatea_config::ConfigDraft;
use galatea_config_message::{
    ConfigErrors, Diagnostic, FieldSpans, SourceMap, SourceText, bounded,
};
use galatea_protocol::inference::ModelConfig;
use galatea_protocol::schema::model_config_descriptor;

/// The maximum length of a configuration file, in bytes.
pub const CONFIG_TEXT_BYTES_MAX: usize = 16 << 20;

/// A parsed configuration and its field positions.
#[derive(Debug)]
pub struct ParsedConfig {
    /// The configuration.
    pub message: ModelConfig,
    /// The field positions.
    pub spans: FieldSpans,
}

/// Parses a configuration file.
///
/// # Errors
///
/// Returns all mistakes in the file, with their positions.
pub fn parse_config(source: &SourceText) -> Result<ParsedConfig, ConfigErrors> {
    if source.text().len() > CONFIG_TEXT_BYTES_MAX {
        let size = source.text().len();
        let most = CONFIG_TEXT_BYTES_MAX;
        let message = bounded!("{size} bytes are too many, at most {most} are read");
        return Err(Diagnostic::about("", message).into());
    }
    let parsed = crate::parser::parse(source, model_config_descriptor());
    ConfigErrors { diagnostics: parsed.diagnostics }.into_result()?;
    let message = parsed
        .message
        .to_message()
        .map_err(|error| Diagnostic::about("", bounded!("can not be read back: {error}")))?;
    Ok(ParsedConfig { message, spans: parsed.spans })
}

/// Reads a `config.pbtxt`.
///
/// # Errors
///
/// Returns every syntax error, unknown field and value of the wrong type, each with its position in
/// the file.
pub fn parse_config_draft(file_name: &str, text: &str) -> Result<ConfigDraft, ConfigErrors> {
    let source = SourceText::new(file_name, text);
    let parsed = parse_config(&source)?;
    Ok(ConfigDraft::new(parsed.message, SourceMap::new(source, parsed.spans)))
}
