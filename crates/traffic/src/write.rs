//! Writing of lines as JSON, directly into a buffer shared by many lines.

use std::fmt;
use std::io::Write;

use serde_json::Value;

use crate::line::{FORMAT, RecordedExecution, RecordedRequest, TrafficHeader, TrafficLine};

impl fmt::Display for TrafficLine {
    /// Formats the line without a newline.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = Vec::new();
        self.write(&mut bytes);
        f.write_str(&String::from_utf8_lossy(&bytes))
    }
}

impl TrafficLine {
    /// Appends the line without a newline.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Header(header) => header.write(out),
            Self::Request(request) => request.write(out),
            Self::Execution(execution) => execution.write(out),
            Self::Lost(count) => {
                let mut object = ObjectWriter::begin(out);
                object.number("lost", *count);
                object.end();
            }
            Self::End(reason) => {
                let mut object = ObjectWriter::begin(out);
                object.text("end", reason);
                object.end();
            }
        }
    }
}

impl TrafficHeader {
    fn write(&self, out: &mut Vec<u8>) {
        let mut object = ObjectWriter::begin(out);
        object.number("galatea_traffic", FORMAT);
        object.text("model", &self.model);
        object.json("version", &Value::from(self.version));
        object.number("began_ms", self.began_ms);
        object.number("processors", u64::from(self.processors));
        object.json("instances", &Value::from(self.instances.as_slice()));
        object.json("variable", &Value::from(self.variable.as_slice()));
        if let Some(config) = &self.config {
            object.json("config", config);
        }
        object.end();
    }
}

impl RecordedRequest {
    /// Appends the line without a newline. Fields with default values are omitted.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut object = ObjectWriter::begin(out);
        object.number("at_ns", self.at_ns);
        object.number("rows", u64::from(self.rows));
        if !self.dims.is_empty() {
            object.numbers("dims", &self.dims);
            object.number("length", u64::from(self.length));
        }
        if self.priority != 0 {
            object.number("priority", self.priority);
        }
        if self.timeout_ns != 0 {
            object.number("timeout_ns", self.timeout_ns);
        }
        if let Some(deadline_ns) = self.deadline_ns {
            object.number("deadline_ns", deadline_ns);
        }
        if let Some(sequence) = &self.sequence {
            object.json("sequence", sequence);
        }
        object.text("status", &self.status);
        object.number("queue_ns", self.queue_ns);
        if let Some(executed) = &self.executed {
            object.number("compute_ns", executed.compute_ns);
            object.number("batch", u64::from(executed.batch));
            object.text("close", &executed.close);
            object.text("instance", &executed.instance);
            object.number("execution", executed.execution);
        }
        object.end();
    }
}

impl RecordedExecution {
    /// Appends the line without a newline.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut object = ObjectWriter::begin(out);
        object.number("execution", self.number);
        object.number("at_ns", self.at_ns);
        object.number("duration_ns", self.duration_ns);
        object.number("rows", u64::from(self.rows));
        object.number("requests", u64::from(self.requests));
        object.number("length", u64::from(self.length));
        object.number("busy", u64::from(self.busy));
        object.text("close", &self.close);
        object.text("instance", &self.instance);
        object.end();
    }
}

/// An object whose fields are written one by one. Field names must not require escaping.
struct ObjectWriter<'a> {
    out: &'a mut Vec<u8>,
    /// The byte before the next field.
    separator: u8,
}

impl<'a> ObjectWriter<'a> {
    fn begin(out: &'a mut Vec<u8>) -> Self {
        Self { out, separator: b'{' }
    }

    fn name(&mut self, name: &'static str) {
        self.out.push(self.separator);
        self.separator = b',';
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    fn number(&mut self, name: &'static str, number: u64) {
        self.name(name);
        push_number(self.out, number);
    }

    fn numbers(&mut self, name: &'static str, numbers: &[u32]) {
        self.name(name);
        self.out.push(b'[');
        for (place, number) in numbers.iter().enumerate() {
            if place > 0 {
                self.out.push(b',');
            }
            push_number(self.out, u64::from(*number));
        }
        self.out.push(b']');
    }

    fn text(&mut self, name: &'static str, text: &str) {
        self.name(name);
        // Writing to a buffer can't fail.
        let _ = serde_json::to_writer(&mut *self.out, text);
    }

    fn json(&mut self, name: &'static str, value: &Value) {
        self.name(name);
        let _ = write!(self.out, "{value}");
    }

    /// Ends the object. Must be called after a field.
    fn end(self) {
        self.out.push(b'}');
    }
}

fn push_number(out: &mut Vec<u8>, number: u64) {
    let _ = serde_json::to_writer(out, &number);
}
