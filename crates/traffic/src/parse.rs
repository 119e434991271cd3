//! Parsing of JSON lines.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::line::{
    FORMAT, RecordedExecution, RecordedRequest, RequestExecution, TrafficHeader, TrafficLine,
};

impl TrafficLine {
    /// Parses a line.
    ///
    /// # Errors
    ///
    /// Returns a description of the first fault in the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let Value::Object(fields) = &value else {
            return Err(String::from("a line is a JSON object"));
        };
        let fields = RecordFields(fields);
        if fields.has("galatea_traffic") {
            return fields.header().map(Self::Header);
        }
        if fields.has("lost") {
            return fields.number("lost").map(Self::Lost);
        }
        if fields.has("end") {
            return fields.text("end").map(|reason| Self::End(reason.to_owned()));
        }
        if fields.has("duration_ns") {
            return fields.execution().map(Self::Execution);
        }
        fields.request().map(Self::Request)
    }
}

/// The fields of a line. Unknown fields are ignored, so that later versions can add some.
struct RecordFields<'a>(&'a Map<String, Value>);

impl RecordFields<'_> {
    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn number(&self, name: &str) -> Result<u64, String> {
        let value = self.0.get(name).ok_or_else(|| format!("'{name}' is missing"))?;
        value.as_u64().ok_or_else(|| format!("'{name}' is not a number from 0 on"))
    }

    fn small(&self, name: &str) -> Result<u32, String> {
        u32::try_from(self.number(name)?).map_err(|_| format!("'{name}' is too large"))
    }

    fn or_zero(&self, name: &str) -> Result<u64, String> {
        if self.has(name) { self.number(name) } else { Ok(0) }
    }

    fn small_or_zero(&self, name: &str) -> Result<u32, String> {
        if self.has(name) { self.small(name) } else { Ok(0) }
    }

    fn text(&self, name: &str) -> Result<&str, String> {
        let value = self.0.get(name).ok_or_else(|| format!("'{name}' is missing"))?;
        value.as_str().ok_or_else(|| format!("'{name}' is not a text"))
    }

    fn texts(&self, name: &str) -> Result<Vec<String>, String> {
        let list = self.0.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let text = |value: &Value| value.as_str().map(String::from);
        let texts: Option<Vec<String>> = list.iter().map(text).collect();
        texts.ok_or_else(|| format!("'{name}' is not a list of texts"))
    }

    fn owned(&self, name: &str) -> Result<Cow<'static, str>, String> {
        self.text(name).map(|text| Cow::Owned(text.to_owned()))
    }

    fn header(&self) -> Result<TrafficHeader, String> {
        let format = self.number("galatea_traffic")?;
        if format != FORMAT {
            return Err(format!("it has version {format} of the format, not {FORMAT}"));
        }
        let version = self.0.get("version").and_then(Value::as_i64);
        Ok(TrafficHeader {
            model: self.text("model")?.to_owned(),
            version: version.ok_or("'version' is not a number")?,
            began_ms: self.or_zero("began_ms")?,
            processors: self.small_or_zero("processors")?,
            instances: self.texts("instances")?,
            variable: self.texts("variable")?,
            config: self.0.get("config").cloned(),
        })
    }

    fn request(&self) -> Result<RecordedRequest, String> {
        let dims = self.0.get("dims").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let size = |value: &Value| u32::try_from(value.as_u64()?).ok();
        let dims: Option<Vec<u32>> = dims.iter().map(size).collect();
        let is_executed = self.has("execution");
        let executed = is_executed.then(|| self.executed()).transpose()?;
        let has_deadline = self.has("deadline_ns");
        Ok(RecordedRequest {
            at_ns: self.number("at_ns")?,
            rows: self.small("rows")?,
            dims: dims.ok_or("'dims' is not a list of sizes")?,
            length: self.small_or_zero("length")?,
            priority: self.or_zero("priority")?,
            timeout_ns: self.or_zero("timeout_ns")?,
            deadline_ns: has_deadline.then(|| self.number("deadline_ns")).transpose()?,
            sequence: self.0.get("sequence").cloned(),
            status: if self.has("status") { self.owned("status")? } else { "ok".into() },
            queue_ns: self.or_zero("queue_ns")?,
            executed,
        })
    }

    fn executed(&self) -> Result<RequestExecution, String> {
        Ok(RequestExecution {
            execution: self.number("execution")?,
            compute_ns: self.number("compute_ns")?,
            batch: self.small("batch")?,
            close: self.owned("close")?,
            instance: self.text("instance")?.into(),
        })
    }

    fn execution(&self) -> Result<RecordedExecution, String> {
        Ok(RecordedExecution {
            number: self.or_zero("execution")?,
            at_ns: self.or_zero("at_ns")?,
            duration_ns: self.number("duration_ns")?,
            rows: self.small("rows")?,
            requests: self.small_or_zero("requests")?,
            length: self.small_or_zero("length")?,
            busy: self.small_or_zero("busy")?.max(1),
            close: if self.has("close") { self.owned("close")? } else { "".into() },
            instance: if self.has("instance") { self.text("instance")? } else { "" }.into(),
        })
    }
}
