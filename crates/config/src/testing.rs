//! A configuration reader for this crate's unit tests, which can't use drafts from `galatea-pbtxt`:
//! to them, those have the type of another crate.

use galatea_config_message::{ConfigErrors, SourceMap, SourceText};
use galatea_pbtxt::parse_config;

use crate::ConfigDraft;

/// Reads a configuration in the text format.
pub(crate) fn read_config(file_name: &str, text: &str) -> Result<ConfigDraft, ConfigErrors> {
    let source = SourceText::new(file_name, text);
    let parsed = parse_config(&source)?;
    Ok(ConfigDraft::new(parsed.message, SourceMap::new(source, parsed.spans)))
}
