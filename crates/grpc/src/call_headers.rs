//! The call metadata that the door interprets.

use galatea_explain::LatencyExplanation;
use galatea_infer::TimeoutHeaders;
use http::{HeaderMap, HeaderValue};

/// The first value of each known header, collected in a single pass. A call has few headers, most
/// of them unknown, and each lookup would hash a name.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct CallHeaders<'a> {
    pub(crate) content_type: Option<&'a HeaderValue>,
    pub(crate) grpc_encoding: Option<&'a HeaderValue>,
    pub(crate) grpc_timeout: Option<&'a HeaderValue>,
    /// The client's choice of how stream failures are reported.
    pub(crate) stream_errors: Option<&'a HeaderValue>,
    pub(crate) explain: Option<&'a HeaderValue>,
    pub(crate) timeouts: TimeoutHeaders<'a>,
}

impl<'a> CallHeaders<'a> {
    pub(crate) fn of(headers: &'a HeaderMap) -> Self {
        let mut known = Self::default();
        for (name, value) in headers {
            let place = match name.as_str() {
                "content-type" => &mut known.content_type,
                "grpc-encoding" => &mut known.grpc_encoding,
                "grpc-timeout" => &mut known.grpc_timeout,
                "triton_grpc_error" => &mut known.stream_errors,
                LatencyExplanation::HEADER => &mut known.explain,
                TimeoutHeaders::ENVOY => {
                    known.timeouts.envoy.get_or_insert(value.as_bytes());
                    continue;
                }
                TimeoutHeaders::REQUEST => {
                    known.timeouts.request.get_or_insert(value.as_bytes());
                    continue;
                }
                _ => continue,
            };
            place.get_or_insert(value);
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    #[test]
    fn the_first_value_of_a_header_counts() {
        let names = [
            "content-type",
            "grpc-encoding",
            "grpc-timeout",
            "triton_grpc_error",
            LatencyExplanation::HEADER,
            TimeoutHeaders::ENVOY,
            TimeoutHeaders::REQUEST,
            "other",
        ];
        let mut headers = HeaderMap::new();
        for (name, number) in names.iter().cycle().zip(0..16) {
            headers.append(HeaderName::from_static(name), HeaderValue::from(number));
        }
        let known = CallHeaders::of(&headers);
        let text = |value: Option<&HeaderValue>| value.unwrap().to_str().unwrap().to_owned();
        assert_eq!(text(known.content_type), "0");
        assert_eq!(text(known.grpc_encoding), "1");
        assert_eq!(text(known.grpc_timeout), "2");
        assert_eq!(text(known.stream_errors), "3");
        assert_eq!(text(known.explain), "4");
        let TimeoutHeaders { envoy, request } = known.timeouts;
        assert_eq!((envoy, request), (Some(&b"5"[..]), Some(&b"6"[..])));
    }
}
