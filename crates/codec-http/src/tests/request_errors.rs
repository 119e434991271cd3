//! Tests of the code and message of refused requests.

use galatea_infer::Code::{Internal, InvalidArgument, NotFound, Unsupported};

use super::*;

#[test]
fn the_error_for_malformed_json_names_the_offset() {
    let check = |json: &str, message: &str| {
        let expected = format!("failed to parse the request JSON buffer: {message}");
        refuse(json, Internal, &expected);
    };
    check("", "The document is empty. at 0");
    check("  ", "The document is empty. at 2");
    check("A", "Invalid value. at 0");
    check("{", "Missing a name for object member. at 1");
    check("{]", "Missing a name for object member. at 1");
    check("{\"a\"}", "Missing a colon after a name of object member. at 4");
    check("{\"a\":1 \"b\":2}", "Missing a comma or '}' after an object member. at 7");
    check("{\"a\":1,}", "Missing a name for object member. at 7");
    check("{\"a\":[1 2]}", "Missing a comma or ']' after an array element. at 8");
    check("{\"a\":[1,]}", "Invalid value. at 8");
    check("{\"a\":nul}", "Invalid value. at 8");
    check("{\"a\":tru}", "Invalid value. at 8");
    check("{\"a\":01}", "Missing a comma or '}' after an object member. at 6");
    check("{\"a\":-}", "Invalid value. at 6");
    check("{\"a\":1.}", "Miss fraction part in number. at 7");
    check("{\"a\":1e}", "Miss exponent in number. at 7");
    check("{\"a\":1e400}", "Number too big to be stored in double. at 5");
    check("{\"a\":Nan}", "Invalid value. at 7");
    check("{\"a", "Missing a closing quotation mark in string. at 3");
    check("{\"a\u{1}\":1}", "Invalid escape character in string. at 3");
    check("{\"\\x\":1}", "Invalid escape character in string. at 2");
    check("{\"\\", "Invalid escape character in string. at 2");
    check("{\"\\u12g4\":1}", "Incorrect hex digit after \\u escape in string. at 2");
    check("{\"\\ud800\":1}", "The surrogate pair in string is invalid. at 2");
    check("{\"\\ud800\\u0041\":1}", "The surrogate pair in string is invalid. at 2");
    check("{\"\\udc00\":1}", "The surrogate pair in string is invalid. at 2");
    check("{\"inputs\":[]} x", "The document root must not be followed by other values. at 14");
}

#[test]
fn of_several_mistakes_the_one_is_named_that_triton_finds_first() {
    let syntax = |json: &str, message: &str| {
        refuse(json, Internal, &format!("failed to parse the request JSON buffer: {message}"));
    };
    syntax(r#"{"inputs":{},"id":1,]"#, "Missing a name for object member. at 20");
    syntax(r#"{"inputs":{},"a":"b}"#, "Missing a closing quotation mark in string. at 20");
    syntax(r#"{"inputs":{},"id": x"#, "Invalid value. at 19");
    let id = "Unable to parse 'id': attempt to access JSON non-string as string";
    refuse(r#"{"outputs":1,"inputs":{},"parameters":[],"id":1}"#, Internal, id);
    let parameters = "failed to get request params.: attempt to get members for non-object";
    refuse(r#"{"outputs":1,"inputs":{},"parameters":[],"id":"x"}"#, Internal, parameters);
    let missing = "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'";
    refuse(r#"{"outputs":1}"#, Internal, missing);
    let input = |members: &str, code, text: &str| {
        refuse(&format!(r#"{{"inputs":[{{{members}}},{{"name":2}}]}}"#), code, text);
    };
    let source = "Input must set only one of the following fields: 'data', 'binary_data_size' in \
                  'parameters', 'shared_memory_region' in 'parameters'. But no field is set";
    input(r#""name":1,"shape":["x"]"#, InvalidArgument, source);
    let name = "Unable to parse 'name': attempt to access JSON non-string as string";
    input(r#""shape":["x"],"datatype":1,"name":1,"data":[]"#, Internal, name);
    let datatype = "Unable to parse 'datatype': attempt to access JSON non-string as string";
    input(r#""shape":["x"],"datatype":1,"name":"a","data":[]"#, Internal, datatype);
    // Whitespace, and a source after the error.
    let both =
        format!("{} set 'data' 'binary_data_size'", source.trim_end_matches(" no field is set"));
    let sources =
        r#""name" : 1 , "data" : [ ] , "parameters" : { "x" : {} , "binary_data_size" : "" }"#;
    input(sources, InvalidArgument, &both);
    let few = "Failed to parse 'data' field: shape does not match true shape";
    input(r#""name":"a","datatype":"INT8","shape":[2],"data":[1]"#, Internal, few);
}

#[test]
fn members_of_the_wrong_type_are_refused() {
    let missing = "attempt to access non-existing object member";
    refuse("{}", Internal, &format!("Unable to parse 'inputs': {missing} 'inputs'"));
    refuse("[1]", Internal, &format!("Unable to parse 'inputs': {missing} 'inputs'"));
    let check = |json: &str, field: &str, what: &str| {
        let expected = format!("Unable to parse '{field}': attempt to access JSON {what}");
        refuse(json, Internal, &expected);
    };
    check(r#"{"inputs":{}}"#, "inputs", "non-array as array");
    check(r#"{"id":1,"inputs":[]}"#, "id", "non-string as string");
    check(r#"{"inputs":[],"outputs":{}}"#, "outputs", "non-array as array");
    check(r#"{"inputs":[{"data":[],"name":1}]}"#, "name", "non-string as string");
    check(
        r#"{"inputs":[{"data":[],"name":"a","datatype":[]}]}"#,
        "datatype",
        "non-string as string",
    );
    let typed = r#"{"inputs":[{"data":[],"name":"a","datatype":"INT8","shape":3}]}"#;
    check(typed, "shape", "non-array as array");
    check(r#"{"inputs":[],"outputs":[{"name":null}]}"#, "name", "non-string as string");
    let parameter = |name: &str, value: &str, what: &str| {
        check(&format!(r#"{{"parameters":{{"{name}":{value}}},"inputs":[]}}"#), name, what);
    };
    parameter("sequence_start", "1", "non-boolean as boolean");
    parameter("sequence_end", "\"x\"", "non-boolean as boolean");
    parameter("binary_data_output", "0", "non-boolean as boolean");
    parameter("priority", "-1", "non-unsigned-integer as unsigned-integer");
    parameter("timeout", "1.0", "non-unsigned-integer as unsigned-integer");
    parameter("sequence_id", "-1", "non-string as string");
    parameter("sequence_id", "true", "non-string as string");
}

#[test]
fn invalid_parameters_are_refused() {
    refuse(
        r#"{"parameters":[],"inputs":[]}"#,
        Internal,
        "failed to get request params.: attempt to get members for non-object",
    );
    refuse(
        r#"{"parameters":{"triton_enable_empty_final_response":true},"inputs":[]}"#,
        InvalidArgument,
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be \
         specified.",
    );
    for value in ["null", "[]", "{}"] {
        refuse(
            &format!(r#"{{"parameters":{{"p":{value}}},"inputs":[]}}"#),
            InvalidArgument,
            "parameter 'p' has invalid type. It should be either 'int', 'bool', or 'string'.",
        );
    }
    refuse(
        &format!(r#"{{"parameters":{{"sequence_id":"{}"}},"inputs":[]}}"#, "x".repeat(129)),
        Unsupported,
        "string correlation ID cannot be longer than 128 characters",
    );
}

#[test]
fn an_input_must_have_one_source() {
    const RULE: &str = "Input must set only one of the following fields: 'data', \
        'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'. But";
    let check = |members: &str, what: &str| {
        refuse(&input(members), InvalidArgument, &format!("{RULE}{what}"));
    };
    let tensor = r#""datatype":"UINT8","shape":[1]"#;
    check(tensor, " no field is set");
    let both = format!(r#"{tensor},"data":[1],"parameters":{{"binary_data_size":1}}"#);
    check(&both, " set 'data' 'binary_data_size'");
    let shared = format!(r#"{tensor},"data":[1],"parameters":{{"shared_memory_region":"r"}}"#);
    check(&shared, " set 'data' 'shared_memory_region'");
    refuse(r#"{"inputs":[1]}"#, InvalidArgument, &format!("{RULE} no field is set"));
}

#[test]
fn incomplete_inputs_are_refused() {
    let missing = |field: &str| {
        format!("Unable to parse '{field}': attempt to access non-existing object member '{field}'")
    };
    let check = |json: &str, field: &str| refuse(json, Internal, &missing(field));
    check(r#"{"inputs":[{"datatype":"INT8","shape":[1],"data":[1]}]}"#, "name");
    check(&input(r#""shape":[1],"data":[1]"#), "datatype");
    check(&input(r#""datatype":"INT8","data":[1]"#), "shape");
    refuse(
        &input(r#""datatype":"fp32","shape":[1],"data":[1]"#),
        InvalidArgument,
        "invalid datatype for input x",
    );
}

#[test]
fn elements_that_do_not_fit_are_refused() {
    let check = |datatype: &str, shape: &str, data: &str, message: &str| {
        let members = format!(r#""datatype":"{datatype}","shape":{shape},"data":{data}"#);
        refuse(&input(&members), Internal, message);
    };
    let more = "Unable to parse 'data': Shape does not match true shape of 'data' field";
    let fewer = "Failed to parse 'data' field: shape does not match true shape";
    check("INT32", "[2]", "[1,2,3]", more);
    check("INT32", "[2,2]", "[[1,2],[3,4],[5]]", more);
    check("INT32", "[3]", "[1,2]", fewer);
    let malformed = |data: &str| {
        let text = input(&format!(r#""datatype":"INT32","shape":[1],"data":{data}"#));
        let place = text.rfind(',').unwrap() + 1;
        let message = format!("failed to parse the request JSON buffer: Invalid value. at {place}");
        refuse(&text, Internal, &message);
    };
    malformed("[1,]");
    malformed("[1,x]");
    malformed("[[1],]");
    check("INT32", "[3]", "[]", fewer);
    let types = |datatype: &str, data: &str, what: &str| {
        let message = format!("Unable to parse 'data': attempt to access JSON {what}");
        check(datatype, "[1]", data, &message);
    };
    types("BOOL", "[1]", "non-boolean as boolean");
    types("UINT8", "[-1]", "non-unsigned-integer as unsigned-integer");
    types("UINT64", "[18446744073709551616]", "non-unsigned-integer as unsigned-integer");
    types("UINT32", "[\"1\"]", "non-unsigned-integer as unsigned-integer");
    types("INT32", "[1.0]", "non-signed-integer as signed-integer");
    types("INT64", "[9223372036854775808]", "non-signed-integer as signed-integer");
    types("INT8", "[null]", "non-signed-integer as signed-integer");
    types("FP32", "[true]", "non-number as double");
    types("FP64", "[{}]", "non-number as double");
    check(
        "BYTES",
        "[1]",
        "[1]",
        "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
    );
}

#[test]
fn data_must_be_an_array() {
    for datatype in ["FP32", "BYTES"] {
        refuse(
            &input(&format!(r#""datatype":"{datatype}","shape":[1],"data":1"#)),
            Internal,
            "Unable to parse 'data': attempt to access JSON non-array as array",
        );
    }
}

#[test]
fn half_precision_has_no_json_form() {
    for datatype in ["FP16", "BF16"] {
        refuse(
            &input(&format!(r#""datatype":"{datatype}","shape":[1],"data":[1]"#)),
            InvalidArgument,
            &format!(
                "receiving {datatype} data via JSON is not supported. Please use the binary data \
                 format for input x"
            ),
        );
    }
}

#[test]
fn binary_data_must_fit_the_body() {
    let json = input(r#""datatype":"UINT8","shape":[4],"parameters":{"binary_data_size":4}"#);
    let check = |binary: &[u8], message: &str| {
        let status = decode_parts(&json, binary).unwrap_err();
        assert_eq!((status.code(), status.message()), (InvalidArgument, message));
    };
    check(b"12", "unexpected size for input 'x', expecting 2 additional bytes for model 'm'");
    check(b"12345", "unexpected additional input data for model 'm'");
    assert!(decode_parts(&json, b"1234").is_ok());
    let body = Bytes::from_static(b"{}");
    let status = decode_infer(&body, 5, target(), &MessageLimits::default()).unwrap_err();
    assert_eq!(status.message(), "unexpected size for request JSON, expecting 3 more bytes");
}

#[test]
fn no_tensor_is_in_shared_memory_without_the_flag() {
    let missing = "Unable to find shared memory region: 'r'";
    let tensor = r#""datatype":"UINT8","shape":[1],"parameters":{"shared_memory_region":"r"}"#;
    refuse(&input(tensor), NotFound, missing);
    refuse(
        r#"{"inputs":[],"outputs":[{"name":"y","parameters":{"shared_memory_region":"r"}}]}"#,
        NotFound,
        missing,
    );
}

#[test]
fn wrong_shared_memory_parameters_are_refused() {
    let check = |parameters: &str, message: &str| {
        let message = format!("Unable to parse {message}");
        let tensor = format!(r#""datatype":"UINT8","shape":[1],"parameters":{{{parameters}}}"#);
        refuse(&input(&tensor), Internal, &message);
        let output = format!(r#"{{"name":"y","parameters":{{{parameters}}}}}"#);
        refuse(&format!(r#"{{"inputs":[],"outputs":[{output}]}}"#), Internal, &message);
    };
    let region = r#""shared_memory_region":"r""#;
    let text = "'shared_memory_region': attempt to access JSON non-string as string";
    for value in ["1", "null", "[\"r\"]", "{}"] {
        check(&format!(r#""shared_memory_region":{value}"#), text);
    }
    for name in ["shared_memory_offset", "shared_memory_byte_size"] {
        let number = "attempt to access JSON non-unsigned-integer as unsigned-integer";
        for value in ["-1", "1.5", "\"1\"", "null", "18446744073709551616", "[0]"] {
            check(&format!(r#"{region},"{name}":{value}"#), &format!("'{name}': {number}"));
        }
    }
    // The first error in Triton's order counts, and the first of two members with the same name.
    let mistakes = r#""shared_memory_byte_size":-1,"shared_memory_offset":-1"#;
    check(&format!(r#"{mistakes},"shared_memory_region":1,{region}"#), text);
    for binary in ["true", "false"] {
        let parameters = format!(r#"{{{region},"binary_data":{binary}}}"#);
        let output = format!(r#"{{"name":"y","parameters":{parameters}}}"#);
        let (code, message) = if binary == "true" {
            let text = "Output can't set both 'shared_memory_region' and 'binary_data'";
            (InvalidArgument, text)
        } else {
            (NotFound, "Unable to find shared memory region: 'r'")
        };
        refuse(&format!(r#"{{"inputs":[],"outputs":[{output}]}}"#), code, message);
    }
}

#[test]
fn invalid_class_counts_are_refused() {
    let output = |parameters: &str| {
        format!(r#"{{"inputs":[],"outputs":[{{"name":"y","parameters":{parameters}}}]}}"#)
    };
    for count in ["-1", "1.5", "1.0", "\"1\"", "true", "null", "[1]", "18446744073709551616"] {
        refuse(
            &output(&format!(r#"{{"classification":{count}}}"#)),
            Internal,
            "Unable to set 'classification': attempt to access JSON non-unsigned-integer as \
             unsigned-integer",
        );
    }
    for count in ["1", "0"] {
        refuse(
            &output(&format!(r#"{{"shared_memory_region":"r","classification":{count}}}"#)),
            InvalidArgument,
            "Output can't set both 'shared_memory_region' and 'classification'",
        );
    }
}

#[test]
fn the_error_for_sizes_above_the_limit_names_the_flag() {
    let limits = MessageLimits { input_bytes_max: 100 };
    let check = |json: &str, message: &str| {
        let body = Bytes::copy_from_slice(json.as_bytes());
        let status = decode_infer(&body, body.len(), target(), &limits).unwrap_err();
        assert_eq!((status.code(), status.message()), (InvalidArgument, message));
    };
    check(
        &" ".repeat(101),
        "request JSON size of 101 bytes exceeds the maximum allowed input size of 100 bytes. Use \
         --http-max-input-size to increase the limit.",
    );
    check(
        &input(r#""datatype":"FP64","shape":[13],"data":[]"#),
        "JSON input 'x' has a byte_size (104 bytes) that exceeds the maximum allowed value of 100 \
         bytes. Use --http-max-input-size to increase the limit.",
    );
    let strings = vec![r#""""#; 26].join(",");
    let json = input(&format!(r#""datatype":"BYTES","shape":[26],"data":[{strings}]"#));
    let limits = MessageLimits { input_bytes_max: 160 };
    let body = Bytes::from(json);
    assert!(decode_infer(&body, body.len(), target(), &limits).is_ok());
}
