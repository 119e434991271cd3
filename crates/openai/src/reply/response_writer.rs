//! Responses of OpenAI's Responses API, as documents and typed events.

use super::outputs::Usage;
use crate::json::push_string;
use crate::tools::ToolEvent;

/// The reason of a text that is cut off at the maximum number of tokens.
const CUT_OFF: &str = "length";

/// Writes a response. Text and calls become the items of its output, in their order.
pub(super) struct ResponseWriter {
    /// The identifier without its prefix.
    stem: String,
    created_secs: u64,
    /// The members of the request that the response repeats, as JSON.
    echo: Vec<u8>,
    /// The number of events.
    sequence: u64,
    /// True if no events are written.
    is_silent: bool,
    /// The items that are complete, as JSON.
    items: Vec<u8>,
    /// The number of items, including the open one.
    count: usize,
    open: Option<OpenItem>,
}

/// The item that is being written.
enum OpenItem {
    Message { text: String },
    Call { call_id: String, name: String, arguments: String },
}

/// The state of a response.
#[derive(Copy, Clone)]
enum ResponseStatus<'m> {
    InProgress,
    Completed,
    /// The text has the maximum length.
    Incomplete,
    /// The model failed with this message.
    Failed(&'m str),
}

impl ResponseStatus<'_> {
    const fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
            Self::Failed(_) => "failed",
        }
    }

    /// The status of an item at the end of a response. Items don't fail.
    const fn item_name(self) -> &'static str {
        match self {
            Self::Failed(_) => "incomplete",
            Self::InProgress | Self::Completed | Self::Incomplete => self.name(),
        }
    }

    fn of_reason(reason: &str) -> Self {
        if reason == CUT_OFF { Self::Incomplete } else { Self::Completed }
    }
}

impl ResponseWriter {
    /// Begins a response with the identifier of a completion.
    pub(super) fn new(id: &str, created_secs: u64, echo: Vec<u8>) -> Self {
        Self {
            stem: id.trim_start_matches("cmpl-").replace('-', ""),
            created_secs,
            echo,
            sequence: 0,
            is_silent: false,
            items: Vec::new(),
            count: 0,
            open: None,
        }
    }

    /// Returns an upper bound on the memory that the output needs so far.
    pub(super) fn held_bytes(&self) -> usize {
        let open = match &self.open {
            None => 0,
            Some(OpenItem::Message { text }) => text.capacity(),
            Some(OpenItem::Call { call_id, name, arguments }) => {
                call_id.len().saturating_add(name.len()).saturating_add(arguments.capacity())
            }
        };
        self.items.capacity().saturating_add(open)
    }

    /// Appends the events at the beginning.
    pub(super) fn begin(&mut self, events: &mut Vec<u8>) {
        for kind in ["response.created", "response.in_progress"] {
            self.push_lifecycle(events, kind, ResponseStatus::InProgress, None);
        }
    }

    /// Appends the events for a change of the output.
    pub(super) fn add(&mut self, events: &mut Vec<u8>, change: &ToolEvent) {
        match change {
            ToolEvent::Content(text) if text.is_empty() => {}
            ToolEvent::Content(text) => self.add_text(events, text),
            ToolEvent::Begin { id, name, .. } => {
                let (call_id, name) = (id.clone(), name.clone());
                self.begin_item(events, OpenItem::Call { call_id, name, arguments: String::new() });
            }
            ToolEvent::Arguments { text, .. } => self.add_arguments(events, text),
        }
    }

    fn add_text(&mut self, events: &mut Vec<u8>, added: &str) {
        if !matches!(self.open, Some(OpenItem::Message { .. })) {
            self.begin_message(events);
        }
        if let Some(OpenItem::Message { text }) = &mut self.open {
            text.push_str(added);
        }
        if !added.is_empty() {
            self.push_part_event(events, "response.output_text.delta", "delta", added);
        }
    }

    fn begin_message(&mut self, events: &mut Vec<u8>) {
        self.begin_item(events, OpenItem::Message { text: String::new() });
        self.push_event(events, "response.content_part.added", |writer, json| {
            writer.push_place(json);
            json.extend_from_slice(b",\"content_index\":0,\"part\":");
            push_part(json, "");
        });
    }

    /// True if no item has begun.
    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn add_arguments(&mut self, events: &mut Vec<u8>, text: &str) {
        if let Some(OpenItem::Call { arguments, .. }) = &mut self.open {
            arguments.push_str(text);
            self.push_event(events, "response.function_call_arguments.delta", |writer, json| {
                writer.push_place(json);
                json.extend_from_slice(b",\"delta\":");
                push_string(json, text);
            });
        }
    }

    fn begin_item(&mut self, events: &mut Vec<u8>, item: OpenItem) {
        self.end_item(events, ResponseStatus::Completed);
        self.count = self.count.saturating_add(1);
        self.open = Some(item);
        self.push_event(events, "response.output_item.added", |writer, json| {
            writer.push_index(json);
            json.extend_from_slice(b",\"item\":");
            writer.push_item(json, "in_progress");
        });
    }

    fn end_item(&mut self, events: &mut Vec<u8>, status: ResponseStatus<'_>) {
        match &self.open {
            None => return,
            Some(OpenItem::Message { text }) => {
                let text = text.clone();
                self.push_part_event(events, "response.output_text.done", "text", &text);
                self.push_event(events, "response.content_part.done", |writer, json| {
                    writer.push_place(json);
                    json.extend_from_slice(b",\"content_index\":0,\"part\":");
                    push_part(json, &text);
                });
            }
            Some(OpenItem::Call { name, arguments, .. }) => {
                let (name, arguments) = (name.clone(), arguments.clone());
                self.push_event(events, "response.function_call_arguments.done", |writer, json| {
                    writer.push_place(json);
                    json.extend_from_slice(b",\"name\":");
                    push_string(json, &name);
                    json.extend_from_slice(b",\"arguments\":");
                    push_string(json, &arguments);
                });
            }
        }
        let mut item = Vec::new();
        self.push_item(&mut item, status.item_name());
        self.push_event(events, "response.output_item.done", |writer, json| {
            writer.push_index(json);
            json.extend_from_slice(b",\"item\":");
            json.extend_from_slice(&item);
        });
        if !self.items.is_empty() {
            self.items.push(b',');
        }
        self.items.append(&mut item);
        self.open = None;
    }

    /// Appends the events at the end of a text with this reason for its end.
    pub(super) fn end(&mut self, events: &mut Vec<u8>, reason: &str, usage: Option<Usage>) {
        let status = ResponseStatus::of_reason(reason);
        self.end_output(events, status);
        let kind = match status {
            ResponseStatus::Incomplete => "response.incomplete",
            _ => "response.completed",
        };
        self.push_lifecycle(events, kind, status, usage);
    }

    /// Appends the events after an error of the model.
    pub(super) fn fail(&mut self, events: &mut Vec<u8>, message: &str) {
        let status = ResponseStatus::Failed(message);
        self.end_item(events, status);
        self.push_lifecycle(events, "response.failed", status, None);
    }

    /// Ends the output, which contains a message even if the model sent no text.
    fn end_output(&mut self, events: &mut Vec<u8>, status: ResponseStatus<'_>) {
        if self.is_empty() {
            self.add_text(events, "");
        }
        self.end_item(events, status);
    }

    /// Returns the document of a response with this output.
    pub(super) fn document(
        &mut self,
        output: &[ToolEvent],
        reason: &str,
        usage: Option<Usage>,
    ) -> Vec<u8> {
        self.is_silent = true;
        let mut no_events = Vec::new();
        for change in output {
            self.add(&mut no_events, change);
        }
        let status = ResponseStatus::of_reason(reason);
        self.end_output(&mut no_events, status);
        let mut json = Vec::new();
        self.push_response(&mut json, status, usage);
        json
    }

    fn push_event(
        &mut self,
        events: &mut Vec<u8>,
        kind: &str,
        members: impl FnOnce(&Self, &mut Vec<u8>),
    ) {
        if self.is_silent {
            return;
        }
        events.extend_from_slice(format!("event: {kind}\ndata: {{\"type\":\"{kind}\"").as_bytes());
        push_number(events, "sequence_number", self.sequence);
        self.sequence = self.sequence.saturating_add(1);
        members(self, events);
        events.extend_from_slice(b"}\n\n");
    }

    fn push_lifecycle(
        &mut self,
        events: &mut Vec<u8>,
        kind: &str,
        status: ResponseStatus<'_>,
        usage: Option<Usage>,
    ) {
        self.push_event(events, kind, |writer, json| {
            json.extend_from_slice(b",\"response\":");
            writer.push_response(json, status, usage);
        });
    }

    /// Appends an event with a text of the open message.
    fn push_part_event(&mut self, events: &mut Vec<u8>, kind: &str, member: &str, text: &str) {
        self.push_event(events, kind, |writer, json| {
            writer.push_place(json);
            json.extend_from_slice(b",\"content_index\":0,\"logprobs\":[],\"");
            json.extend_from_slice(member.as_bytes());
            json.extend_from_slice(b"\":");
            push_string(json, text);
        });
    }

    /// Appends the position of the open item.
    fn push_index(&self, json: &mut Vec<u8>) {
        let index = u64::try_from(self.count.saturating_sub(1)).unwrap_or(u64::MAX);
        push_number(json, "output_index", index);
    }

    /// Appends the position and the identifier of the open item.
    fn push_place(&self, json: &mut Vec<u8>) {
        self.push_index(json);
        json.extend_from_slice(b",\"item_id\":");
        push_string(json, &self.item_id());
    }

    /// The identifier of the open item.
    fn item_id(&self) -> String {
        let prefix = match &self.open {
            Some(OpenItem::Call { .. }) => "fc",
            Some(OpenItem::Message { .. }) | None => "msg",
        };
        format!("{prefix}_{}_{}", self.stem, self.count)
    }

    /// Appends the open item.
    fn push_item(&self, json: &mut Vec<u8>, status: &str) {
        json.extend_from_slice(b"{\"id\":");
        push_string(json, &self.item_id());
        json.extend_from_slice(b",\"status\":");
        push_string(json, status);
        match &self.open {
            Some(OpenItem::Call { call_id, name, arguments }) => {
                json.extend_from_slice(b",\"type\":\"function_call\",\"call_id\":");
                push_string(json, call_id);
                json.extend_from_slice(b",\"name\":");
                push_string(json, name);
                json.extend_from_slice(b",\"arguments\":");
                push_string(json, arguments);
                json.push(b'}');
            }
            Some(OpenItem::Message { text }) => {
                let members = b",\"type\":\"message\",\"role\":\"assistant\",\"content\":[";
                json.extend_from_slice(members);
                if status != "in_progress" {
                    push_part(json, text);
                }
                json.extend_from_slice(b"]}");
            }
            None => json.push(b'}'),
        }
    }

    fn push_response(&self, json: &mut Vec<u8>, status: ResponseStatus<'_>, usage: Option<Usage>) {
        json.extend_from_slice(b"{\"id\":");
        push_string(json, &format!("resp_{}", self.stem));
        json.extend_from_slice(b",\"object\":\"response\"");
        push_number(json, "created_at", self.created_secs);
        json.extend_from_slice(b",\"status\":");
        push_string(json, status.name());
        json.extend_from_slice(b",\"error\":");
        match status {
            ResponseStatus::Failed(message) => {
                json.extend_from_slice(b"{\"code\":\"server_error\",\"message\":");
                push_string(json, message);
                json.push(b'}');
            }
            _ => json.extend_from_slice(b"null"),
        }
        json.extend_from_slice(b",\"incomplete_details\":");
        json.extend_from_slice(match status {
            ResponseStatus::Incomplete => b"{\"reason\":\"max_output_tokens\"}",
            _ => b"null",
        });
        json.extend_from_slice(&self.echo);
        json.extend_from_slice(b",\"reasoning\":{\"effort\":null,\"summary\":null},\"output\":[");
        json.extend_from_slice(&self.items);
        json.extend_from_slice(b"],\"usage\":");
        match usage {
            Some(usage) => usage.push_of_response(json),
            None => json.extend_from_slice(b"null"),
        }
        json.push(b'}');
    }
}

/// Appends a part of a message.
fn push_part(json: &mut Vec<u8>, text: &str) {
    json.extend_from_slice(
        b"{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":",
    );
    push_string(json, text);
    json.push(b'}');
}

/// Appends a member that is a number.
fn push_number(json: &mut Vec<u8>, name: &str, number: u64) {
    json.extend_from_slice(format!(",\"{name}\":{number}").as_bytes());
}
