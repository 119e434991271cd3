//! Encoding of spans as OpenTelemetry messages.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, SpanKind};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as SpanMessage};
use prost::Message;

use super::spans::{AttributeValue, Span};

/// The scope name of all spans.
const SCOPE: &str = "triton-server";

/// The bit in a span's flags which declares that the remote-parent bit is valid.
const HAS_IS_REMOTE: u32 = 0x100;

/// The bit that marks a span as sampled. Unsampled spans are never created.
const SAMPLED: u32 = 1;

/// Encodes an export request with these spans.
pub(super) fn encode<'a>(
    resource: &[(String, String)],
    spans: impl Iterator<Item = &'a Span>,
) -> Vec<u8> {
    let scope = InstrumentationScope { name: SCOPE.to_owned(), ..Default::default() };
    let attributes = resource.iter().map(|(key, value)| text(key, value.clone())).collect();
    let spans = spans.map(message).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, schema_url: String::new() }];
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource { attributes, ..Default::default() }),
            scope_spans,
            schema_url: String::new(),
        }],
    }
    .encode_to_vec()
}

fn message(span: &Span) -> SpanMessage {
    let event = |(name, at): &(String, u64)| Event {
        name: name.clone(),
        time_unix_nano: *at,
        ..Default::default()
    };
    let attribute = |(key, value): &(&str, AttributeValue)| match value {
        AttributeValue::Text(value) => text(key, value.clone()),
        AttributeValue::Number(number) => pair(key, Value::IntValue(*number)),
    };
    SpanMessage {
        trace_id: span.trace.to_vec(),
        span_id: span.span.to_vec(),
        trace_state: String::from(&*span.state),
        parent_span_id: span.parent.map(|parent| parent.to_vec()).unwrap_or_default(),
        flags: SAMPLED | HAS_IS_REMOTE,
        name: span.name.clone(),
        kind: SpanKind::Server.into(),
        start_time_unix_nano: span.start_ns,
        end_time_unix_nano: span.end_ns,
        attributes: span.attributes.iter().map(attribute).collect(),
        events: span.events.iter().map(event).collect(),
        ..Default::default()
    }
}

fn text(key: &str, value: String) -> KeyValue {
    pair(key, Value::StringValue(value))
}

fn pair(key: &str, value: Value) -> KeyValue {
    let value = Some(AnyValue { value: Some(value) });
    KeyValue { key: key.to_owned(), value, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_message_has_all_of_a_span() {
        let span = Span {
            trace: [1; 16],
            span: [2; 8],
            parent: Some([3; 8]),
            state: Arc::from("a=b"),
            name: String::from("n"),
            start_ns: 4,
            end_ns: 5,
            attributes: vec![
                ("t", AttributeValue::Text(String::from("x"))),
                ("n", AttributeValue::Number(-1)),
            ],
            events: vec![(String::from("e"), 6)],
        };
        let resource = [(String::from("service.name"), String::from("s"))];
        let bytes = encode(&resource, [span].iter());
        let request = ExportTraceServiceRequest::decode(&bytes[..]).unwrap();
        let [all] = &request.resource_spans[..] else { panic!("{request:?}") };
        let resource = all.resource.as_ref().unwrap();
        assert_eq!(resource.attributes, [text("service.name", String::from("s"))]);
        let [of_scope] = &all.scope_spans[..] else { panic!("{request:?}") };
        assert_eq!(of_scope.scope.as_ref().unwrap().name, "triton-server");
        let [span] = &of_scope.spans[..] else { panic!("{request:?}") };
        assert_eq!((&span.trace_id[..], &span.span_id[..]), (&[1; 16][..], &[2; 8][..]));
        assert_eq!((&span.parent_span_id[..], &*span.trace_state), (&[3; 8][..], "a=b"));
        assert_eq!((span.start_time_unix_nano, span.end_time_unix_nano), (4, 5));
        assert_eq!((span.kind(), &*span.name), (SpanKind::Server, "n"));
        let attributes = [text("t", String::from("x")), pair("n", Value::IntValue(-1))];
        assert_eq!(span.attributes, attributes);
        assert_eq!((&*span.events[0].name, span.events[0].time_unix_nano), ("e", 6));
    }
}
