//! The settings of the OpenAI endpoint.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use galatea_openai::{AdapterList, ChatTemplate, RequestFormat, ToolCallFormat};

use super::OpenAiMeters;
use crate::HttpOptions;

/// The adapters that clients select with `MODEL`, a separator and `ADAPTER`.
#[derive(Clone)]
pub struct AdapterSource {
    /// The separator.
    pub separator: String,
    /// Reads the adapters of a model from its files.
    pub read: Arc<dyn Fn(&str) -> AdapterList + Send + Sync>,
    /// Opens the files with the tensors of the adapter of this name in this directory, or returns
    /// the reason why they can't be read.
    pub open: Arc<OpenAdapter>,
}

/// Opens the files of the adapter with a name, in a directory.
pub type OpenAdapter = dyn Fn(&str, &Path) -> Result<AdapterFiles, String> + Send + Sync;

/// Files with the tensors of an adapter.
pub struct AdapterFiles {
    /// The sum of their lengths.
    pub length: usize,
    /// Reads the files with the weights and the configuration.
    pub read: ReadAdapter,
}

/// Reads two files.
pub type ReadAdapter = Box<dyn FnOnce() -> Result<[Vec<u8>; 2], String>>;

impl fmt::Debug for AdapterFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdapterFiles").field("length", &self.length).finish_non_exhaustive()
    }
}

impl fmt::Debug for AdapterSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdapterSource").field("separator", &self.separator).finish_non_exhaustive()
    }
}

/// The settings of the OpenAI endpoint.
#[derive(Clone)]
pub struct OpenAiOptions {
    /// The options shared with the inference door. The gate's category `statistics` covers the
    /// metrics. Headers don't become parameters.
    pub http: HttpOptions,
    /// The chat template; `None` if the server has none, in which case it doesn't support chats.
    pub template: Option<Arc<ChatTemplate>>,
    /// The convention for the inputs and outputs of all models; `None` for each backend's own
    /// convention.
    pub format: Option<RequestFormat>,
    /// The maximum number of tokens for a client that doesn't state one.
    pub tokens_default: i64,
    /// The adapters of models; `None` if clients can't select one.
    pub adapters: Option<AdapterSource>,
    /// The form of the tool calls in the models' texts; `None` if they aren't parsed.
    pub tool_format: Option<ToolCallFormat>,
    /// The maximum number of characters in a streamed text with tools.
    pub tool_chars_max: usize,
    /// True if clients may load and unload models.
    pub has_model_control: bool,
    /// Renders the metrics.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
    /// Measures the texts that models generate.
    pub meters: Arc<OpenAiMeters>,
}

impl fmt::Debug for OpenAiOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("OpenAiOptions");
        shown.field("http", &self.http).field("template", &self.template);
        shown.field("format", &self.format).field("tokens_default", &self.tokens_default);
        shown.field("adapters", &self.adapters).field("tool_format", &self.tool_format);
        shown.field("tool_chars_max", &self.tool_chars_max);
        shown.field("has_model_control", &self.has_model_control).finish_non_exhaustive()
    }
}
