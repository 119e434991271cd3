//! Conversion of Triton's traces to the format that Perfetto and Chrome's trace viewer read.
//!
//! Each client request becomes a process. The door and each model that serves the request become
//! threads. Anything with a beginning and an end becomes a slice, a single event becomes an
//! instant, and tensors become arguments of their request.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// Converts the traces in a file's text, a JSON array, and adds them to `events`. Trace numbers are
/// shared across the files of one server.
///
/// # Errors
///
/// Returns an error if the text is not a JSON array of traces.
pub fn append_chrome_events(text: &str, events: &mut Vec<Value>) -> Result<(), String> {
    let entries: Vec<Value> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut traces: BTreeMap<u64, TraceEntries> = BTreeMap::new();
    for (index, entry) in entries.iter().enumerate() {
        let id = entry.get("id").and_then(Value::as_u64);
        let id = id.ok_or_else(|| format!("entry {index} has no id of a trace"))?;
        traces.entry(id).or_default().add(entry);
    }
    for (&id, trace) in &traces {
        trace.convert(id, root_of(id, &traces), events);
    }
    Ok(())
}

/// The document in the format that viewers open.
#[must_use]
pub fn chrome_trace_document(events: Vec<Value>) -> String {
    json!({ "displayTimeUnit": "ns", "traceEvents": events }).to_string()
}

/// The entries of one trace.
#[derive(Default)]
struct TraceEntries {
    subject: Map<String, Value>,
    /// Names and times in nanoseconds, in order.
    times: Vec<(String, u64)>,
    tensors: Vec<Value>,
}

/// The stages between pairs of trace points of a request.
const STAGES: [(&str, &str, &str); 5] = [
    ("request", "REQUEST_START", "REQUEST_END"),
    ("queue", "QUEUE_START", "COMPUTE_START"),
    ("compute input", "COMPUTE_START", "COMPUTE_INPUT_END"),
    ("compute", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"),
    ("compute output", "COMPUTE_OUTPUT_START", "COMPUTE_END"),
];

/// The door's stages of a request, which may repeat.
const DOOR_STAGES: [(&str, &str, &str); 4] = [
    ("receive", "HTTP_RECV_START", "HTTP_RECV_END"),
    ("send", "HTTP_SEND_START", "HTTP_SEND_END"),
    ("wait and read", "GRPC_WAITREAD_START", "GRPC_WAITREAD_END"),
    ("send", "GRPC_SEND_START", "GRPC_SEND_END"),
];

/// An instant in the door.
const COMPLETE: &str = "INFER_RESPONSE_COMPLETE";

impl TraceEntries {
    fn add(&mut self, entry: &Value) {
        if let (Some(_), Some(entry)) = (entry.get("model_name"), entry.as_object()) {
            self.subject = entry.clone();
        }
        for stamp in entry.get("timestamps").and_then(Value::as_array).into_iter().flatten() {
            let name = stamp.get("name").and_then(Value::as_str);
            if let (Some(name), Some(ns)) = (name, stamp.get("ns").and_then(Value::as_u64)) {
                self.times.push((name.to_owned(), ns));
            }
        }
        if let (Some(activity), Some(tensor)) = (entry.get("activity"), entry.get("tensor")) {
            self.tensors.push(json!({ "activity": activity, "tensor": tensor }));
        }
    }

    fn convert(&self, id: u64, root: u64, events: &mut Vec<Value>) {
        let model = self.subject.get("model_name").and_then(Value::as_str).unwrap_or("request");
        if id == root {
            let request = self.subject.get("request_id").and_then(Value::as_str);
            let name = request.map_or_else(|| model.to_owned(), |id| format!("{model} {id}"));
            events.push(name_event("process_name", root, 0, &name));
            events.push(name_event("thread_name", root, 0, "door"));
        }
        events.push(name_event("thread_name", root, id, model));
        let mut arguments = self.subject.clone();
        if !self.tensors.is_empty() {
            arguments.insert(String::from("tensors"), Value::Array(self.tensors.clone()));
        }
        for (name, begin, end) in STAGES {
            let arguments = (name == "request").then(|| Value::Object(arguments.clone()));
            if let (Some(begin), Some(end)) = (self.first(begin), self.first(end)) {
                events.push(slice(name, [root, id], begin, end, arguments));
            }
        }
        for (name, begin, end) in DOOR_STAGES {
            for (begin, end) in self.all(begin).zip(self.all(end)) {
                events.push(slice(name, [root, 0], begin, end, None));
            }
        }
        for at in self.all(COMPLETE) {
            events.push(instant(COMPLETE, [root, 0], at));
        }
        self.convert_custom(root, id, events);
    }

    /// Converts reports from backends: begin and end pairs, and instants.
    fn convert_custom(&self, root: u64, id: u64, events: &mut Vec<Value>) {
        let mut open: Vec<(&str, u64)> = Vec::new();
        for (name, ns) in self.times.iter().filter(|(name, _)| !is_known(name)) {
            if let Some(begun) = name.strip_suffix("_START") {
                open.push((begun, *ns));
                continue;
            }
            let begun = name.strip_suffix("_END");
            let place = begun.and_then(|begun| open.iter().rposition(|(name, _)| *name == begun));
            match place {
                Some(place) => {
                    let (begun, start) = open.remove(place);
                    events.push(slice(begun, [root, id], start, *ns, None));
                }
                None => events.push(instant(name, [root, id], *ns)),
            }
        }
        for (name, start) in open {
            events.push(instant(&format!("{name}_START"), [root, id], start));
        }
    }

    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = u64> + 'a {
        self.times.iter().filter(move |(known, _)| known == name).map(|(_, ns)| *ns)
    }

    fn first(&self, name: &str) -> Option<u64> {
        self.all(name).next()
    }
}

fn is_known(name: &str) -> bool {
    let mut stages = STAGES.iter().chain(&DOOR_STAGES);
    name == COMPLETE || stages.any(|(_, begin, end)| *begin == name || *end == name)
}

/// The root of a trace, which is the trace that the client's request began.
fn root_of(id: u64, traces: &BTreeMap<u64, TraceEntries>) -> u64 {
    let mut root = id;
    // A parent's number is smaller, so the loop terminates.
    while let Some(parent) = traces
        .get(&root)
        .and_then(|trace| trace.subject.get("parent_id").and_then(Value::as_u64))
        .filter(|parent| *parent < root && traces.contains_key(parent))
    {
        root = parent;
    }
    root
}

fn name_event(kind: &str, process: u64, thread: u64, name: &str) -> Value {
    json!({ "ph": "M", "name": kind, "pid": process, "tid": thread, "args": { "name": name } })
}

fn slice(
    name: &str,
    [process, thread]: [u64; 2],
    begin: u64,
    end: u64,
    arguments: Option<Value>,
) -> Value {
    let duration = micros(end.saturating_sub(begin));
    let mut event = json!({
        "ph": "X", "name": name, "pid": process, "tid": thread, "ts": micros(begin), "dur": duration,
    });
    if let (Some(arguments), Some(event)) = (arguments, event.as_object_mut()) {
        event.insert(String::from("args"), arguments);
    }
    event
}

fn instant(name: &str, [process, thread]: [u64; 2], at: u64) -> Value {
    json!({ "ph": "i", "s": "t", "name": name, "pid": process, "tid": thread, "ts": micros(at) })
}

/// Time in microseconds, the unit that viewers use. An `f64` represents times of a few years to the
/// nanosecond.
#[allow(clippy::cast_precision_loss, reason = "the loss begins after months without a restart")]
fn micros(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<String> {
        let mut events = Vec::new();
        append_chrome_events(text, &mut events).unwrap();
        let show = |event: &Value| {
            let place = format!("{}/{}", event["pid"], event["tid"]);
            let name = event["name"].as_str().unwrap();
            match event["ph"].as_str().unwrap() {
                "M" => format!("{place} is {}", event["args"]["name"]),
                "X" => format!("{place} {name} {}+{}", event["ts"], event["dur"]),
                _ => format!("{place} {name} {}", event["ts"]),
            }
        };
        events.iter().map(show).collect()
    }

    fn time(id: u64, name: &str, ns: u64) -> String {
        format!("{{\"id\":{id},\"timestamps\":[{{\"name\":\"{name}\",\"ns\":{ns}}}]}}")
    }

    #[test]
    fn stages_are_slices_of_the_models_and_of_the_door() {
        let text = [
            time(1, "HTTP_RECV_START", 1000),
            time(1, "HTTP_RECV_END", 2000),
            String::from(
                "{\"id\":1,\"model_name\":\"m\",\"model_version\":1,\"request_id\":\"r\"}",
            ),
            time(1, "REQUEST_START", 3000),
            time(1, "INFER_RESPONSE_COMPLETE", 3500),
            time(1, "REQUEST_END", 4500),
        ];
        let expected = [
            "1/0 is \"m r\"",
            "1/0 is \"door\"",
            "1/1 is \"m\"",
            "1/1 request 3.0+1.5",
            "1/0 receive 1.0+1.0",
            "1/0 INFER_RESPONSE_COMPLETE 3.5",
        ];
        assert_eq!(shown(&format!("[{}]", text.join(","))), expected);
    }

    #[test]
    fn models_that_serve_a_request_are_threads_of_it() {
        let text = "[{\"id\":2,\"model_name\":\"b\",\"model_version\":1,\"parent_id\":1},\
                     {\"id\":3,\"model_name\":\"c\",\"model_version\":1,\"parent_id\":2},\
                     {\"id\":1,\"model_name\":\"a\",\"model_version\":1}]";
        let expected =
            ["1/0 is \"a\"", "1/0 is \"door\"", "1/1 is \"a\"", "1/2 is \"b\"", "1/3 is \"c\""];
        assert_eq!(shown(text), expected);
    }

    #[test]
    fn activities_of_backends_are_slices_or_instants() {
        let names = ["A_START", "B_START", "note", "B_END", "A_END", "C_END", "D_START"];
        let times = names.iter().zip(1..).map(|(name, ns)| time(1, name, ns * 1000));
        let text = format!("[{}]", times.collect::<Vec<_>>().join(","));
        let expected =
            ["1/1 note 3.0", "1/1 B 2.0+2.0", "1/1 A 1.0+4.0", "1/1 C_END 6.0", "1/1 D_START 7.0"];
        assert_eq!(shown(&text)[3..], expected);
    }

    #[test]
    fn tensors_are_arguments_of_their_request() {
        let tensor = "{\"id\":1,\"activity\":\"TENSOR_QUEUE_INPUT\",\"tensor\":{\"name\":\"x\"}}";
        let text = [time(1, "REQUEST_START", 1), time(1, "REQUEST_END", 2), tensor.to_owned()];
        let mut events = Vec::new();
        append_chrome_events(&format!("[{}]", text.join(",")), &mut events).unwrap();
        let request = events.iter().find(|event| event["name"] == "request").unwrap();
        assert_eq!(request["args"]["tensors"][0]["tensor"]["name"], "x");
        assert!(
            chrome_trace_document(events)
                .starts_with("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[{")
        );
    }

    #[test]
    fn what_is_no_trace_is_an_error() {
        let error = |text| append_chrome_events(text, &mut Vec::new()).unwrap_err();
        assert_eq!(error("[{\"id\":1},{}]"), "entry 1 has no id of a trace");
        assert!(error("{}").contains("expected a sequence"));
        assert!(error("[").contains("EOF"));
    }
}
