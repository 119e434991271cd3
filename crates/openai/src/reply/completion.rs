//! Chat and text completions.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::Arc;

use galatea_infer::InferenceResponse;

use super::calls::{push_tool_calls, push_tool_event};
use super::collected::CollectedText;
use super::logprobs::{Logprobs, chunk_number, document_number};
use super::outputs::{Usage, text};
use super::response_writer::ResponseWriter;
use crate::json::push_string;
use crate::model::{ModelDescription, Names};
use crate::tools::{PieceOutcome, ToolCallParser, ToolCallStream, ToolEvent};
use crate::{Capabilities, Failure, NamedTool, error_document};

/// The kind of a completion.
#[derive(Clone, Debug, PartialEq)]
pub enum CompletionKind {
    /// A message, or a call of the tool that the client named.
    Chat(Option<NamedTool>),
    /// A text.
    Text,
    /// A response of the Responses API.
    Response {
        /// The tool that the client named.
        tool: Option<NamedTool>,
        /// The members of the request that the response repeats, as JSON.
        echo: Vec<u8>,
    },
}

/// A completion whose responses are still arriving.
pub struct CompletionReply {
    id: String,
    created_secs: u64,
    model: String,
    kind: CompletionKind,
    names: Arc<Names>,
    /// The constant parts of a chunk, which are formatted for the first one.
    chunk: OnceCell<ChunkParts>,
    wants_logprobs: bool,
    includes_usage: bool,
    concatenates: bool,
    usage: Option<Usage>,
    /// The number of characters in the stream's text so far.
    offset: usize,
    collected: CollectedText,
    /// The reason why the text ends, if the model states it.
    reason: Option<String>,
    tools: Option<ParsedTools>,
    /// Writes a response of the Responses API.
    writer: Option<ResponseWriter>,
    /// True if the text became longer than its parser's limit.
    is_cut_off: bool,
}

/// The parts of an event that are the same for all chunks of a stream without token counts.
struct ChunkParts {
    /// The part before the choices.
    head: Vec<u8>,
    /// The part after them.
    tail: Vec<u8>,
}

/// The search for tool calls in the text.
struct ParsedTools {
    parser: ToolCallParser,
    stream: ToolCallStream,
    is_vllm: bool,
}

impl CompletionReply {
    /// Begins a completion by a model. The responses contain this identifier and this time.
    #[must_use]
    pub fn new(
        description: &ModelDescription,
        kind: CompletionKind,
        model: &str,
        id: String,
        created_secs: u64,
    ) -> Self {
        let mut kind = kind;
        let writer = match &mut kind {
            CompletionKind::Response { echo, .. } => {
                Some(ResponseWriter::new(&id, created_secs, std::mem::take(echo)))
            }
            CompletionKind::Chat(_) | CompletionKind::Text => None,
        };
        Self {
            id,
            created_secs,
            model: model.to_owned(),
            kind,
            names: description.names().clone(),
            chunk: OnceCell::new(),
            wants_logprobs: false,
            includes_usage: false,
            concatenates: !description.is_told_to_stream(),
            usage: None,
            offset: 0,
            collected: CollectedText::default(),
            reason: None,
            tools: None,
            writer,
            is_cut_off: false,
        }
    }

    /// Finds tool calls in the text.
    #[must_use]
    pub fn with_tools(mut self, parser: ToolCallParser, capabilities: Capabilities) -> Self {
        let stream = match &self.writer {
            Some(_) => parser.exact_stream(capabilities.is_vllm),
            None => parser.stream(),
        };
        self.tools = Some(ParsedTools { parser, stream, is_vllm: capabilities.is_vllm });
        self
    }

    /// Includes the token probabilities.
    #[must_use]
    pub const fn with_logprobs(mut self, wants_logprobs: bool) -> Self {
        self.wants_logprobs = wants_logprobs;
        self
    }

    /// Includes the token counts at the end of a stream.
    #[must_use]
    pub const fn with_usage(mut self, includes_usage: bool) -> Self {
        self.includes_usage = includes_usage;
        self
    }

    /// Appends the events that precede the first response: for a chat, the speaker's role.
    pub fn begin(&mut self, events: &mut Vec<u8>) {
        if let Some(writer) = &mut self.writer {
            writer.begin(events);
            return;
        }
        if self.kind == CompletionKind::Text {
            return;
        }
        self.push_chunk(events, |json| {
            json.extend_from_slice(
                b"[{\"delta\":{\"content\":\"\",\"function_call\":null,\"role\":\"assistant\"},\
                  \"logprobs\":null,\"finish_reason\":null,\"index\":0}]",
            );
        });
    }

    /// Appends the event for a response, or for an end without a response. Returns the number of
    /// tokens, or 1 if the response doesn't state it.
    ///
    /// # Errors
    ///
    /// Returns an error if the output isn't a string.
    pub fn continue_stream(
        &mut self,
        response: Option<&InferenceResponse>,
        is_last: bool,
        events: &mut Vec<u8>,
    ) -> Result<u64, Failure> {
        let text = response.map_or(Ok(Cow::Borrowed("")), |one| text(one, &self.names.text))?;
        self.note_reason(response)?;
        let usage = response.and_then(|response| Usage::of(response, &self.names));
        if let Some(Usage { prompt_tokens, completion_tokens }) = usage {
            let sum = self.usage.get_or_insert(Usage { prompt_tokens, completion_tokens: 0 });
            sum.completion_tokens = sum.completion_tokens.saturating_add(completion_tokens);
        }
        let logprobs = response.filter(|_| self.wants_logprobs).and_then(Logprobs::of);
        match &mut self.tools {
            None if self.writer.is_some() => {
                let changes = self.changes(text.clone().into_owned());
                self.write(events, &changes);
            }
            None => {
                let choice =
                    |json: &mut Vec<u8>| self.push_choice(json, &text, logprobs.as_ref(), is_last);
                self.push_chunk(events, choice);
            }
            Some(tools) => {
                let mut found = Vec::new();
                let outcome = tools.stream.feed(&text, is_last, &mut found)?;
                let has_calls = tools.stream.has_calls();
                self.is_cut_off = outcome == PieceOutcome::TooLong;
                let reason = match (outcome, is_last) {
                    (PieceOutcome::TooLong, _) => Some("length"),
                    (PieceOutcome::Parsed, true) => Some(self.reason(has_calls)),
                    (PieceOutcome::Parsed, false) => None,
                };
                if self.writer.is_some() {
                    self.write(events, &found);
                } else {
                    let logprobs = logprobs.as_ref().filter(|_| outcome == PieceOutcome::Parsed);
                    self.push_tool_chunks(events, &found, logprobs, reason);
                }
            }
        }
        self.offset = self.offset.saturating_add(text.chars().count());
        let stated = usage.and_then(|usage| u64::try_from(usage.completion_tokens).ok());
        Ok(if response.is_some() { stated.unwrap_or(1) } else { 0 })
    }

    /// Returns the number of prompt tokens, if the response states it.
    #[must_use]
    pub fn prompt_tokens(&self, response: &InferenceResponse) -> Option<u64> {
        u64::try_from(Usage::prompt_tokens_of(response, &self.names)?).ok()
    }

    /// Returns an upper bound on the memory that a stream's text needs.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let tools = self.tools.as_ref().map_or(0, |tools| tools.stream.held_bytes());
        let written = self.writer.as_ref().map_or(0, ResponseWriter::held_bytes);
        tools.saturating_add(written)
    }

    /// Reads the reason why the text ends from a response that states it.
    fn note_reason(&mut self, response: Option<&InferenceResponse>) -> Result<(), Failure> {
        if let (Some(name), Some(response)) = (&self.names.finish_reason, response) {
            let stated = text(response, name)?;
            if !stated.is_empty() {
                self.reason = Some(stated.into_owned());
            }
        }
        Ok(())
    }

    /// The reason why the text ends. As in Triton, it is `stop` if the model doesn't state it.
    fn reason(&self, has_calls: bool) -> &str {
        match self.reason.as_deref().unwrap_or("stop") {
            "stop" if has_calls => "tool_calls",
            reason => reason,
        }
    }

    /// True if the stream ends before the model does, because its text with tools is too long.
    #[must_use]
    pub const fn is_cut_off(&self) -> bool {
        self.is_cut_off
    }

    /// Appends a chunk for each change of the message. The last chunk of the stream contains the
    /// reason for its end.
    fn push_tool_chunks(
        &self,
        events: &mut Vec<u8>,
        found: &[ToolEvent],
        logprobs: Option<&Logprobs>,
        reason: Option<&str>,
    ) {
        let nothing = [ToolEvent::Content(String::new())];
        let found = if found.is_empty() && reason.is_some() { &nothing } else { found };
        for (index, event) in found.iter().enumerate() {
            let is_last = index.saturating_add(1) == found.len();
            let (logprobs, reason) = (logprobs.filter(|_| index == 0), reason.filter(|_| is_last));
            let delta = |json: &mut Vec<u8>| push_tool_event(json, event);
            self.push_chunk(events, |json| push_chat(json, delta, logprobs, reason));
        }
    }

    /// Appends the events that follow the last response.
    pub fn end_stream(&mut self, events: &mut Vec<u8>) {
        let reason = self.reason(false).to_owned();
        let reason = if self.is_cut_off { "length" } else { &*reason };
        if let Some(writer) = &mut self.writer {
            writer.end(events, reason, self.usage);
            return;
        }
        if let Some(usage) = self.usage.filter(|_| self.includes_usage) {
            let none = |json: &mut Vec<u8>| json.extend_from_slice(b"[]");
            events.extend_from_slice(EVENT);
            self.push_document(events, none, self.chunk_object(), Some(usage));
            events.extend_from_slice(EVENT_END);
        }
        events.extend_from_slice(b"data: [DONE]\n\n");
    }

    /// Appends the event for an error of the model, which ends a stream that has begun.
    pub fn fail_stream(&mut self, message: &str, events: &mut Vec<u8>) {
        if let Some(writer) = &mut self.writer {
            writer.fail(events, message);
            return;
        }
        events.extend_from_slice(b"data: ");
        events.extend_from_slice(&error_document(message, "server_error", None));
        events.extend_from_slice(b"\n\n");
    }

    /// Appends the events for changes of a response's output.
    fn write(&mut self, events: &mut Vec<u8>, changes: &[ToolEvent]) {
        if let Some(writer) = &mut self.writer {
            changes.iter().for_each(|change| writer.add(events, change));
        }
    }

    /// Returns the changes of a response's output for a text without calls, or for the arguments
    /// of the tool that the client named.
    fn changes(&self, text: String) -> Vec<ToolEvent> {
        let CompletionKind::Response { tool: Some(NamedTool(name)), .. } = &self.kind else {
            return vec![ToolEvent::Content(text)];
        };
        let mut changes = Vec::new();
        if self.writer.as_ref().is_some_and(ResponseWriter::is_empty) {
            let id = self.id.replacen("cmpl-", "call_", 1);
            changes.push(ToolEvent::Begin { index: 0, id, name: name.clone() });
        }
        if !text.is_empty() {
            changes.push(ToolEvent::Arguments { index: 0, text });
        }
        changes
    }

    const fn chunk_object(&self) -> &'static str {
        match self.kind {
            CompletionKind::Chat(_) => "chat.completion.chunk",
            CompletionKind::Text | CompletionKind::Response { .. } => "text_completion",
        }
    }

    /// Appends the event of a chunk.
    fn push_chunk(&self, events: &mut Vec<u8>, choices: impl FnOnce(&mut Vec<u8>)) {
        let parts = self.chunk.get_or_init(|| self.chunk_parts());
        events.extend_from_slice(&parts.head);
        choices(events);
        events.extend_from_slice(&parts.tail);
    }

    fn chunk_parts(&self) -> ChunkParts {
        let mut head = EVENT.to_vec();
        let mut split = 0;
        self.push_document(&mut head, |json| split = json.len(), self.chunk_object(), None);
        head.extend_from_slice(EVENT_END);
        let tail = head.split_off(split);
        ChunkParts { head, tail }
    }

    fn push_document(
        &self,
        json: &mut Vec<u8>,
        choices: impl FnOnce(&mut Vec<u8>),
        object: &str,
        usage: Option<Usage>,
    ) {
        json.extend_from_slice(b"{\"id\":");
        push_string(json, &self.id);
        json.extend_from_slice(b",\"choices\":");
        choices(json);
        json.extend_from_slice(b",\"created\":");
        json.extend_from_slice(itoa::Buffer::new().format(self.created_secs).as_bytes());
        json.extend_from_slice(b",\"model\":");
        push_string(json, &self.model);
        json.extend_from_slice(b",\"system_fingerprint\":null,\"object\":");
        push_string(json, object);
        json.extend_from_slice(b",\"usage\":");
        match usage {
            Some(usage) => usage.push(json),
            None => json.extend_from_slice(b"null"),
        }
        json.push(b'}');
    }

    /// Appends a chunk's choice.
    fn push_choice(
        &self,
        json: &mut Vec<u8>,
        text: &str,
        logprobs: Option<&Logprobs>,
        is_last: bool,
    ) {
        let reason = is_last.then(|| self.reason(false));
        let tool = match &self.kind {
            CompletionKind::Chat(tool) => tool,
            CompletionKind::Text | CompletionKind::Response { .. } => {
                json.extend_from_slice(b"[{\"finish_reason\":");
                push_reason(json, reason);
                json.extend_from_slice(b",\"index\":0,\"logprobs\":");
                match logprobs {
                    Some(logprobs) => logprobs.push_text(json, self.offset, chunk_number),
                    None => json.extend_from_slice(b"null"),
                }
                json.extend_from_slice(b",\"text\":");
                push_string(json, text);
                json.extend_from_slice(b"}]");
                return;
            }
        };
        let delta = |json: &mut Vec<u8>| match tool {
            Some(NamedTool(name)) => {
                json.extend_from_slice(b"{\"tool_calls\":[{\"index\":0,\"function\":{\"name\":");
                push_string(json, name);
                json.extend_from_slice(b",\"arguments\":");
                push_string(json, text);
                json.extend_from_slice(b"}}]}");
            }
            None => {
                json.extend_from_slice(b"{\"content\":");
                push_string(json, text);
                json.extend_from_slice(b",\"function_call\":null,\"role\":null}");
            }
        };
        push_chat(json, delta, logprobs, reason);
    }

    /// Processes a response, or an end without a response, for a client that doesn't stream.
    /// Returns the number of bytes by which the completion grew.
    ///
    /// # Errors
    ///
    /// Returns an error if the output isn't a string.
    pub fn collect(&mut self, response: Option<&InferenceResponse>) -> Result<usize, Failure> {
        self.note_reason(response)?;
        self.collected.add(response, &self.names, self.concatenates, self.wants_logprobs)
    }

    /// The token counts collected so far.
    #[must_use]
    pub const fn collected_usage(&self) -> Option<Usage> {
        self.collected.usage
    }

    /// Returns the document for a client that doesn't stream.
    ///
    /// # Errors
    ///
    /// Code 500 if the number of responses isn't one, unless the model wasn't told that the client
    /// doesn't stream.
    pub fn document(&mut self) -> Result<Vec<u8>, Failure> {
        self.collected.check(self.concatenates)?;
        if self.writer.is_some() {
            return Ok(self.response_document().unwrap_or_default());
        }
        let object = match self.kind {
            CompletionKind::Chat(_) => "chat.completion",
            CompletionKind::Text | CompletionKind::Response { .. } => "text_completion",
        };
        let mut json = Vec::new();
        self.push_document(&mut json, |json| self.push_whole(json), object, self.collected.usage);
        Ok(json)
    }

    /// Returns the document of a response of the Responses API, if this is one.
    fn response_document(&mut self) -> Option<Vec<u8>> {
        let text = &self.collected.text;
        let changes = match &self.tools {
            Some(tools) => tools.parser.parse(text, tools.is_vllm).into_events(),
            None => self.changes(text.clone()),
        };
        let reason = self.reason(false).to_owned();
        Some(self.writer.as_mut()?.document(&changes, &reason, self.collected.usage))
    }

    /// Appends a document's only choice.
    fn push_whole(&self, json: &mut Vec<u8>) {
        let CollectedText { text, logprobs, .. } = &self.collected;
        let parsed = self.tools.as_ref().map(|tools| tools.parser.parse(text, tools.is_vllm));
        let content = parsed.as_ref().map_or(&**text, |parsed| &*parsed.content);
        let calls = parsed.as_ref().and_then(|parsed| parsed.calls.as_deref());
        let is_call = calls.is_some_and(|calls| !calls.is_empty());
        json.extend_from_slice(b"[{\"finish_reason\":");
        push_reason(json, Some(self.reason(is_call)));
        json.extend_from_slice(b",\"index\":0,");
        let tool = match &self.kind {
            CompletionKind::Text | CompletionKind::Response { .. } => {
                json.extend_from_slice(b"\"logprobs\":");
                match logprobs {
                    Some(logprobs) => logprobs.push_text(json, 0, document_number),
                    None => json.extend_from_slice(b"null"),
                }
                json.extend_from_slice(b",\"text\":");
                push_string(json, text);
                json.extend_from_slice(b"}]");
                return;
            }
            CompletionKind::Chat(tool) => tool,
        };
        json.extend_from_slice(b"\"message\":{\"content\":");
        push_string(json, if tool.is_some() { "" } else { content });
        json.extend_from_slice(b",\"tool_calls\":");
        match tool {
            Some(NamedTool(name)) => self.push_call(json, name, text),
            None => push_tool_calls(json, calls),
        }
        json.extend_from_slice(b",\"role\":\"assistant\",\"function_call\":null},\"logprobs\":");
        match logprobs {
            Some(logprobs) => logprobs.push_chat(json, document_number),
            None => json.extend_from_slice(b"null"),
        }
        json.extend_from_slice(b"}]");
    }

    fn push_call(&self, json: &mut Vec<u8>, name: &str, arguments: &str) {
        json.extend_from_slice(b"[{\"id\":");
        push_string(json, &self.id);
        json.extend_from_slice(b",\"type\":\"function\",\"function\":{\"name\":");
        push_string(json, name);
        json.extend_from_slice(b",\"arguments\":");
        push_string(json, arguments);
        json.extend_from_slice(b"}}]");
    }
}

/// The beginning and the end of an event.
const EVENT: &[u8] = b"data: ";
const EVENT_END: &[u8] = b"\n\n";

/// Appends the choice of a chat's chunk.
fn push_chat(
    json: &mut Vec<u8>,
    delta: impl FnOnce(&mut Vec<u8>),
    logprobs: Option<&Logprobs>,
    reason: Option<&str>,
) {
    json.extend_from_slice(b"[{\"delta\":");
    delta(json);
    json.extend_from_slice(b",\"logprobs\":");
    match logprobs {
        Some(logprobs) => logprobs.push_chat(json, chunk_number),
        None => json.extend_from_slice(b"null"),
    }
    json.extend_from_slice(b",\"finish_reason\":");
    push_reason(json, reason);
    json.extend_from_slice(b",\"index\":0}]");
}

fn push_reason(json: &mut Vec<u8>, reason: Option<&str>) {
    match reason {
        Some(reason) => push_string(json, reason),
        None => json.extend_from_slice(b"null"),
    }
}
