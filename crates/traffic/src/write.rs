//! Lines as JSON.

use std::fmt;

use serde_json::{Map, Value, json};

use crate::line::{FORMAT, Header, Line, RecordedExecution, RecordedRequest};

impl fmt::Display for Line {
    /// The line without its end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", to_json(self))
    }
}

fn to_json(line: &Line) -> Value {
    match line {
        Line::Header(header) => header_json(header),
        Line::Request(request) => request_json(request),
        Line::Execution(execution) => execution_json(execution),
        Line::Lost(count) => json!({ "lost": count }),
        Line::End(reason) => json!({ "end": reason }),
    }
}

fn header_json(header: &Header) -> Value {
    let mut value = json!({
        "galatea_traffic": FORMAT,
        "model": header.model,
        "version": header.version,
        "began_ms": header.began_ms,
        "processors": header.processors,
        "instances": header.instances,
        "variable": header.variable,
    });
    if let (Some(config), Some(fields)) = (&header.config, value.as_object_mut()) {
        fields.insert(String::from("config"), config.clone());
    }
    value
}

/// What has its usual value is left out.
fn request_json(request: &RecordedRequest) -> Value {
    let mut fields = Map::new();
    let mut add = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    add("at_ns", json!(request.at_ns));
    add("rows", json!(request.rows));
    if !request.dims.is_empty() {
        add("dims", json!(request.dims));
        add("length", json!(request.length));
    }
    if request.priority != 0 {
        add("priority", json!(request.priority));
    }
    if request.timeout_ns != 0 {
        add("timeout_ns", json!(request.timeout_ns));
    }
    if let Some(deadline_ns) = request.deadline_ns {
        add("deadline_ns", json!(deadline_ns));
    }
    if let Some(sequence) = &request.sequence {
        add("sequence", sequence.clone());
    }
    add("status", json!(request.status));
    add("queue_ns", json!(request.queue_ns));
    if let Some(executed) = &request.executed {
        add("compute_ns", json!(executed.compute_ns));
        add("batch", json!(executed.batch));
        add("close", json!(executed.close));
        add("instance", json!(executed.instance));
        add("execution", json!(executed.execution));
    }
    Value::Object(fields)
}

fn execution_json(execution: &RecordedExecution) -> Value {
    json!({
        "execution": execution.number,
        "at_ns": execution.at_ns,
        "duration_ns": execution.duration_ns,
        "rows": execution.rows,
        "requests": execution.requests,
        "length": execution.length,
        "busy": execution.busy,
        "close": execution.close,
        "instance": execution.instance,
    })
}
