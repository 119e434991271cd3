//! Requests to load model archives, in the form that SageMaker sends, and lists of loaded archives.
//!
//! A client names the directory of an archive. Only the locations where SageMaker places archives
//! are accepted. The path alone decides, so a path that isn't accepted is never looked up.

use std::fmt;

use galatea_codec::limits::MessageLimits;
use galatea_infer::Status;

use super::json::{JsonReader, JsonType, push_json_string};
use super::repository::read_object;

/// A request to load an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SageMakerLoadRequest {
    /// The name that SageMaker uses for the model.
    pub model_name: String,
    /// The directory of the archive.
    pub url: String,
}

impl SageMakerLoadRequest {
    /// Decodes the body. As in Triton, a missing name or directory is empty.
    ///
    /// # Errors
    ///
    /// `Internal` for malformed JSON, or if the name or directory isn't a string.
    pub fn decode(body: &[u8], limits: &MessageLimits) -> Result<Self, Status> {
        let (mut model_name, mut url) = (None, None);
        read_object(body, limits, |reader, name| {
            let member = match name {
                b"model_name" => &mut model_name,
                b"url" => &mut url,
                _ => return reader.skip_value(),
            };
            let read = text(reader)?;
            // The first of two members with the same name counts.
            member.get_or_insert(read);
            Ok(())
        })?;
        let found = |member: Option<Result<String, Status>>| member.unwrap_or(Ok(String::new()));
        Ok(Self { model_name: found(model_name)?, url: found(url)? })
    }
}

/// Reads the next value as text. The outer error ends the whole request.
fn text(reader: &mut JsonReader<'_>) -> Result<Result<String, Status>, Status> {
    if reader.value_type()? != JsonType::String {
        reader.skip_value()?;
        return Ok(Err(Status::internal("attempt to access JSON non-string as string")));
    }
    Ok(Ok(reader.text()?.into_owned()))
}

/// The folder that contains SageMaker's archives, each in a separate folder.
const ARCHIVES: &str = "/opt/ml/models/";

/// The directory of an archive: `/opt/ml/models/HASH/model`, or a directory inside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SageMakerModelPath {
    /// The directory.
    pub directory: String,
    /// The parent directory, `/opt/ml/models/HASH`.
    pub parent: String,
}

impl SageMakerModelPath {
    /// The name of an archive's directory within its parent.
    pub const MODEL: &str = "model";

    /// Accepts a directory that a client named. As in Triton, dots are resolved in the text.
    ///
    /// # Errors
    ///
    /// Returns an error if the directory is not an archive's directory.
    pub fn of(url: &str) -> Result<Self, SageMakerUrlError> {
        let Some(directory) = normalized(url) else { return Err(SageMakerUrlError::form(url)) };
        if ["/dev/", "/proc/", "/sys/"].iter().any(|start| directory.starts_with(start)) {
            return Err(SageMakerUrlError::System);
        }
        let parent = parent(&directory).ok_or_else(|| SageMakerUrlError::form(url))?;
        Ok(Self { parent: parent.to_owned(), directory })
    }
}

/// Returns `/opt/ml/models/HASH` for `/opt/ml/models/HASH/model`, with or without a slash and a
/// name after it.
fn parent(directory: &str) -> Option<&str> {
    let (hash, rest) = directory.strip_prefix(ARCHIVES)?.split_once('/')?;
    let name = rest.strip_prefix(SageMakerModelPath::MODEL)?;
    let name = name.strip_prefix('/').unwrap_or(name);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_');
    if hash.is_empty() || !hash.bytes().chain(name.bytes()).all(is_plain) {
        return None;
    }
    directory.get(..ARCHIVES.len().saturating_add(hash.len()))
}

/// Returns an absolute path without empty parts and dots. A trailing slash is kept.
fn normalized(url: &str) -> Option<String> {
    let mut parts = Vec::new();
    let mut is_folder = false;
    for part in url.strip_prefix('/')?.split('/') {
        is_folder = matches!(part, "" | "." | "..");
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    let end = if is_folder && !parts.is_empty() { "/" } else { "" };
    Some(format!("/{}{end}", parts.join("/")))
}

/// The reason why a directory isn't accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SageMakerUrlError {
    /// The directory belongs to the system. The client receives no message.
    System,
    /// The directory isn't a location of archives.
    Form(String),
}

impl SageMakerUrlError {
    fn form(url: &str) -> Self {
        Self::Form(url.to_owned())
    }
}

impl fmt::Display for SageMakerUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System => f.write_str("\"url\" can't start with /dev/, /proc/, or /sys/"),
            Self::Form(url) => write!(
                f,
                "Invalid \"url\" '{}': expected a path of the form \
                 /opt/ml/models/<hash>/model[/<subdir>]",
                shown(url)
            ),
        }
    }
}

impl std::error::Error for SageMakerUrlError {}

/// Returns the part of a text that error messages quote.
fn shown(text: &str) -> &str {
    let mut end = text.len().min(MessageLimits::NAME_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    text.get(..end).unwrap_or_default()
}

/// An archive in the list.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SageMakerModelEntry<'a> {
    /// The name that SageMaker uses for the model.
    pub name: &'a str,
    /// The repository from which it was loaded.
    pub url: &'a str,
}

/// Encodes one archive.
#[must_use]
pub fn encode_sagemaker_model(archive: SageMakerModelEntry<'_>) -> Vec<u8> {
    let mut json = Vec::new();
    push_archive(&mut json, Some(archive));
    json
}

/// Encodes the list. As in Triton, an archive that isn't ready is an empty object.
#[must_use]
pub fn encode_sagemaker_models<'a>(
    archives: impl IntoIterator<Item = Option<SageMakerModelEntry<'a>>>,
) -> Vec<u8> {
    let mut json = Vec::from(b"{\"models\":[");
    for (index, archive) in archives.into_iter().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        push_archive(&mut json, archive);
    }
    json.extend_from_slice(b"]}");
    json
}

fn push_archive(json: &mut Vec<u8>, archive: Option<SageMakerModelEntry<'_>>) {
    json.push(b'{');
    if let Some(SageMakerModelEntry { name, url }) = archive {
        json.extend_from_slice(b"\"modelName\":");
        push_json_string(json, name.as_bytes());
        json.extend_from_slice(b",\"modelUrl\":");
        push_json_string(json, url.as_bytes());
    }
    json.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(body: &str) -> Result<(String, String), String> {
        SageMakerLoadRequest::decode(body.as_bytes(), &MessageLimits::default())
            .map(|request| (request.model_name, request.url))
            .map_err(|status| status.message().to_owned())
    }

    #[test]
    fn names_and_directories_are_read() {
        let both = |name: &str, url: &str| Ok((name.to_owned(), url.to_owned()));
        assert_eq!(decoded(r#"{"url":"u","x":[1],"model_name":"m"}"#), both("m", "u"));
        assert_eq!(decoded(r#"{"url":"u","url":1,"model_name":"m","url":"v"}"#), both("m", "u"));
        for nothing in ["", "{}", "[]", "7", r#""url""#] {
            assert_eq!(decoded(nothing), both("", ""), "{nothing}");
        }
        let text = "attempt to access JSON non-string as string";
        for wrong in [r#"{"url":7}"#, r#"{"model_name":null}"#, r#"{"url":["u"]}"#] {
            assert_eq!(decoded(wrong), Err(text.to_owned()), "{wrong}");
        }
        let text = "failed to parse the request JSON buffer: ";
        for wrong in ["{", r#"{"url":7,}"#, r#"{"url":"u"} x"#] {
            assert!(decoded(wrong).unwrap_err().starts_with(text), "{wrong}");
        }
    }

    #[test]
    fn archives_are_below_their_folder() {
        for (url, directory, parent) in [
            ("/opt/ml/models/h/model", "/opt/ml/models/h/model", "/opt/ml/models/h"),
            ("/opt/ml/models/a.B_9/model/", "/opt/ml/models/a.B_9/model/", "/opt/ml/models/a.B_9"),
            ("/opt/ml/models/h/model/sub", "/opt/ml/models/h/model/sub", "/opt/ml/models/h"),
            ("/opt/ml/models/h/models", "/opt/ml/models/h/models", "/opt/ml/models/h"),
            ("//opt/./ml/x/../models//h/model", "/opt/ml/models/h/model", "/opt/ml/models/h"),
            ("/../opt/ml/models/h/model/x/..", "/opt/ml/models/h/model/", "/opt/ml/models/h"),
        ] {
            let path = SageMakerModelPath { directory: directory.into(), parent: parent.into() };
            assert_eq!(SageMakerModelPath::of(url), Ok(path), "{url}");
        }
    }

    #[test]
    fn other_places_are_refused() {
        for url in [
            "",
            "/",
            "model",
            "opt/ml/models/h/model",
            "/opt/ml/models",
            "/opt/ml/models/h",
            "/opt/ml/models/h/other",
            "/opt/ml/models//model",
            "/opt/ml/models/../model",
            "/opt/ml/models/h/model/../../../../../etc",
            "/opt/ml/models/h/model/a/b",
            "/opt/ml/models/h/model/sub/",
            "/opt/ml/models/h/model/a-b",
            "/opt/ml/models/h-i/model",
            "/opt/ml/models/h/model\n",
            "/opt/ml/models/h/model/\0",
            "/opt/ml/models_evil/h/model",
            "/opt/ml/model",
            "s3://bucket/model",
            "/opt/ml/models/ü/model",
        ] {
            let error = SageMakerModelPath::of(url).unwrap_err();
            let text = format!(
                "Invalid \"url\" '{url}': expected a path of the form \
                 /opt/ml/models/<hash>/model[/<subdir>]"
            );
            assert_eq!(error.to_string(), text);
        }
        for url in ["/dev/shm", "/proc/self/root/opt/ml/models/h/model", "/a/../sys/x", "//dev/x"] {
            assert_eq!(SageMakerModelPath::of(url), Err(SageMakerUrlError::System), "{url}");
        }
        let long = SageMakerModelPath::of(&"ü".repeat(1 << 20)).unwrap_err().to_string();
        assert!(long.len() < 2 * MessageLimits::NAME_BYTES_MAX);
    }

    #[test]
    fn lists_have_gaps_where_models_are_not_ready() {
        let archive = SageMakerModelEntry { name: "a\"", url: "/u" };
        let text = |json: Vec<u8>| String::from_utf8(json).unwrap();
        assert_eq!(text(encode_sagemaker_model(archive)), r#"{"modelName":"a\"","modelUrl":"/u"}"#);
        assert_eq!(text(encode_sagemaker_models([])), r#"{"models":[]}"#);
        let list = text(encode_sagemaker_models([None, Some(archive)]));
        assert_eq!(list, r#"{"models":[{},{"modelName":"a\"","modelUrl":"/u"}]}"#);
    }
}
