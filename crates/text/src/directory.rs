//! The files of a model directory.

use serde_json::Value;

use crate::error::TextModelError;

/// The maximum size of `tokenizer.json`. The largest vocabularies in use need 35 MB.
pub(crate) const TOKENIZER_BYTES_MAX: u64 = 256 << 20;
/// The maximum size of the weights of a dense layer. The largest layers in use need 50 MB.
const WEIGHTS_BYTES_MAX: u64 = 256 << 20;
/// The maximum size of any other file.
const DESCRIPTION_BYTES_MAX: u64 = 16 << 20;

/// Reads the files of a model directory.
pub trait TextModelFiles {
    /// Returns the content of a file; `None` if it doesn't exist. The path is relative to the
    /// directory.
    ///
    /// # Errors
    ///
    /// The reason why the file can't be read, such as a size above `bytes_max`.
    fn read(&self, path: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, String>;
}

/// Reads a file of any size that a tokenizer may have; `None` if it doesn't exist.
pub(crate) fn read_tokenizer(
    files: &dyn TextModelFiles,
    path: &str,
) -> Result<Option<Vec<u8>>, TextModelError> {
    files.read(path, TOKENIZER_BYTES_MAX).map_err(|reason| TextModelError::new(path, reason))
}

/// Reads the weights of a dense layer; `None` if the file doesn't exist.
pub(crate) fn read_weights(
    files: &dyn TextModelFiles,
    path: &str,
) -> Result<Option<Vec<u8>>, TextModelError> {
    files.read(path, WEIGHTS_BYTES_MAX).map_err(|reason| TextModelError::new(path, reason))
}

/// Reads a JSON file; `Value::Null` if it doesn't exist.
pub(crate) fn read_json(files: &dyn TextModelFiles, path: &str) -> Result<Value, TextModelError> {
    Ok(read_if_any(files, path)?.unwrap_or_default())
}

/// Reads a JSON file that contains an object; `Value::Null` if it doesn't exist.
pub(crate) fn read_object(files: &dyn TextModelFiles, path: &str) -> Result<Value, TextModelError> {
    read_if_any(files, path)?.map_or(Ok(Value::Null), |content| object(path, content))
}

/// Reads a JSON file that contains an object and must exist.
pub(crate) fn read_required(
    files: &dyn TextModelFiles,
    path: &str,
) -> Result<Value, TextModelError> {
    let content = read_if_any(files, path)?;
    let content = content.ok_or_else(|| TextModelError::new(path, "the file is missing"))?;
    object(path, content)
}

fn read_if_any(files: &dyn TextModelFiles, path: &str) -> Result<Option<Value>, TextModelError> {
    let content = files
        .read(path, DESCRIPTION_BYTES_MAX)
        .map_err(|reason| TextModelError::new(path, reason))?;
    let Some(content) = content else { return Ok(None) };
    let value = serde_json::from_slice(&content);
    value.map(Some).map_err(|error| TextModelError::new(path, error.to_string()))
}

fn object(path: &str, content: Value) -> Result<Value, TextModelError> {
    if content.is_object() {
        return Ok(content);
    }
    Err(TextModelError::new(path, "the file is not an object"))
}

/// Joins the path of a module to the name of a file in it.
pub(crate) fn join(folder: &str, file: &str) -> String {
    let folder = folder.trim_end_matches('/');
    if folder.is_empty() || folder == "." { file.to_owned() } else { format!("{folder}/{file}") }
}
