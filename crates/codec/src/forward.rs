//! Header forwarding: request headers that become request parameters.

use galatea_infer::{Parameter, ParameterValue, Status};
use regex_lite::{Regex, RegexBuilder};

/// Parameters that the server interprets itself, so no header may set them.
const RESERVED: [&str; 7] = [
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "priority",
    "timeout",
    "headers",
    "binary_data_output",
];

/// The form in which header values arrive.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum HeaderWhitespace {
    /// The value is part of a line in an HTTP head. As in Triton, only the spaces before the value
    /// are removed, while all other whitespace is kept, and an empty value is read as a space.
    HttpLine,
    /// The value is kept unchanged, as in gRPC metadata.
    Exact,
}

impl HeaderWhitespace {
    fn value(self, sent: &[u8]) -> String {
        let value = match self {
            Self::Exact => sent,
            Self::HttpLine => {
                let begin = sent.iter().position(|byte| *byte != b' ');
                begin.and_then(|begin| sent.get(begin..)).unwrap_or(b" ")
            }
        };
        String::from_utf8_lossy(value).into_owned()
    }
}

/// Selects the headers to forward, which are those whose names match the pattern. The match ignores
/// case unless the pattern begins with `(?-i)`.
#[derive(Clone, Debug)]
pub struct HeaderForwardPattern {
    pattern: Regex,
}

impl HeaderForwardPattern {
    /// Compiles a pattern in the syntax that RE2 and `regex-lite` share.
    ///
    /// # Errors
    ///
    /// The error in the pattern.
    pub fn new(pattern: &str) -> Result<Self, String> {
        let compiled = RegexBuilder::new(pattern).case_insensitive(true).build();
        compiled.map(|pattern| Self { pattern }).map_err(|error| error.to_string())
    }

    /// Turns the selected headers into parameters. The last of several headers with the
    /// same name counts; bytes that are not UTF-8 are replaced.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a header that has the name of a reserved parameter.
    pub fn parameters_from_headers<'a>(
        &self,
        headers: impl Iterator<Item = (&'a str, &'a [u8])>,
        form: HeaderWhitespace,
    ) -> Result<Vec<Parameter>, Status> {
        let mut parameters: Vec<Parameter> = Vec::new();
        for (name, value) in headers.filter(|(name, _)| self.pattern.is_match(name)) {
            if RESERVED.contains(&name) || name.starts_with("triton_") {
                return Err(Status::invalid_argument(format!(
                    "Header '{name}' is reserved for Triton usage and cannot be forwarded."
                )));
            }
            let value = ParameterValue::String(form.value(value));
            set(&mut parameters, Parameter { name: name.to_owned(), value });
        }
        Ok(parameters)
    }
}

/// Adds forwarded headers to a request's parameters. They replace parameters with the same names.
pub fn add_header_parameters(parameters: &mut Vec<Parameter>, headers: Vec<Parameter>) {
    for header in headers {
        set(parameters, header);
    }
}

fn set(parameters: &mut Vec<Parameter>, parameter: Parameter) {
    parameters.retain(|earlier| earlier.name != parameter.name);
    parameters.push(parameter);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, headers: &[(&str, &str)], expected: &str) {
        let headers = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
        let forwarded = match HeaderForwardPattern::new(pattern)
            .unwrap()
            .parameters_from_headers(headers, HeaderWhitespace::Exact)
        {
            Ok(parameters) => parameters
                .iter()
                .map(|parameter| format!("{}={:?}", parameter.name, parameter.value))
                .collect::<Vec<_>>()
                .join(" "),
            Err(status) => status.message().to_owned(),
        };
        assert_eq!(forwarded, expected);
    }

    #[test]
    fn matching_headers_become_string_parameters() {
        let headers = [("my_header", "1"), ("other", "2"), ("x-my_header", "3")];
        check("^My_", &headers, "my_header=String(\"1\")");
        check("my_", &headers, "my_header=String(\"1\") x-my_header=String(\"3\")");
        check("(?-i)My_", &headers, "");
        check("a", &[("a", "1"), ("a", "2")], "a=String(\"2\")");
    }

    #[test]
    fn names_keep_their_case() {
        let headers = [("MY_a", "1"), ("my_a", "2"), ("Priority", "3"), ("Triton_x", "4")];
        let all = r#"MY_a=String("1") my_a=String("2") Priority=String("3") Triton_x=String("4")"#;
        check("", &headers, all);
        check("(?-i)MY_", &headers, r#"MY_a=String("1")"#);
        check("^my_", &headers, r#"MY_a=String("1") my_a=String("2")"#);
    }

    #[test]
    fn values_of_lines_keep_their_blanks() {
        let value = |sent: &str| HeaderWhitespace::HttpLine.value(sent.as_bytes());
        assert_eq!(value(" abc "), "abc ");
        assert_eq!(value("   x  y  "), "x  y  ");
        assert_eq!(value("\ta\tb\t "), "\ta\tb\t ");
        assert_eq!(value(" \t a"), "\t a");
        for empty in ["", " ", "   "] {
            assert_eq!(value(empty), " ");
        }
        assert_eq!(HeaderWhitespace::HttpLine.value(b" \xe9"), "\u{fffd}");
        assert_eq!(HeaderWhitespace::Exact.value(b" a "), " a ");
    }

    #[test]
    // row: HTTP-25
    fn matching_headers_with_reserved_names_are_refused() {
        let text = "Header 'priority' is reserved for Triton usage and cannot be forwarded.";
        check("p", &[("priority", "1")], text);
        check("^x", &[("priority", "1")], "");
        let text = "Header 'triton_x' is reserved for Triton usage and cannot be forwarded.";
        check("x", &[("triton_x", "1")], text);
    }

    #[test]
    fn headers_replace_parameters_of_the_same_name() {
        let parameter = |name: &str, value| Parameter {
            name: name.to_owned(),
            value: ParameterValue::Int64(value),
        };
        let mut parameters = vec![parameter("a", 1), parameter("b", 2)];
        add_header_parameters(&mut parameters, vec![parameter("a", 3), parameter("c", 4)]);
        assert_eq!(parameters, [parameter("b", 2), parameter("a", 3), parameter("c", 4)]);
    }

    #[test]
    fn an_invalid_pattern_is_refused() {
        assert!(HeaderForwardPattern::new("(").is_err());
    }
}
