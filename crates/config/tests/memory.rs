//! Tests of the memory that a configuration takes while it is read, checked and shown: at most 64
//! bytes per byte of text, plus one mebibyte.

use galatea_config::{ConfigDraft, ConfigErrors, SupportedFeatures};
use galatea_pbtxt::parse_config_draft;
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// The maximum memory per byte of a configuration's text.
const PER_BYTE_MAX: usize = 64;
/// The fixed memory that a configuration may take in addition.
const BYTES_MAX: usize = 1 << 20;
/// The lengths of the configurations. In the short one, the objects that any text may have,
/// regardless of its length, take more memory than its bytes.
const LENGTHS: [usize; 2] = [4 << 10, 64 << 10];

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Form {
    Text,
    Json,
}

/// Reads a configuration in the same way as a load.
fn read(form: Form, text: &str) -> Result<(), ConfigErrors> {
    let mut draft = match form {
        Form::Text => parse_config_draft("config.pbtxt", text)?,
        Form::Json => ConfigDraft::from_json("config", text)?,
    };
    draft.resolve_name_and_backend("model", &[String::from("model.onnx")])?;
    let spec = draft.into_validated_spec(&SupportedFeatures::default())?;
    assert!(!spec.to_json().is_empty());
    Ok(())
}

fn check(form: Form, text: &str) {
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    let outcome = read(form, text);
    let taken = ALLOCATOR.peak_usage().saturating_sub(before);
    let most = text.len() * PER_BYTE_MAX + BYTES_MAX;
    let start: String = text.escape_debug().take(60).collect();
    let outcome = outcome.map_err(|error| error.first_message().to_owned());
    assert!(taken <= most, "{taken} bytes for {} of {form:?} {start}: {outcome:?}", text.len());
}

/// Checks a list of many elements, with a comma after each.
fn check_list(form: Form, head: &str, element: &str, tail: &str) {
    for length in LENGTHS {
        let element = format!("{element},");
        let elements = element.repeat(length / element.len());
        let elements = elements.trim_end_matches(',');
        check(form, &format!("{head}{elements}{tail}"));
    }
}

/// Checks an object with many keys.
fn check_keys(head: &str, value: &str, tail: &str) {
    for length in LENGTHS {
        let keys: Vec<String> = (0..length / 12).map(|i| format!("\"{i:06}\":{value}")).collect();
        check(Form::Json, &format!("{head}{{{}}}{tail}", keys.join(",")));
    }
}

// There is only one test, because the allocator counts for the whole process.
#[test]
fn memory_is_bounded_by_the_length_of_a_configuration() {
    for (head, tail) in [
        ("input{name:'x' data_type:TYPE_FP32 dims:[", "]}"),
        ("instance_group{gpus:[", "]}"),
        ("dynamic_batching{preferred_batch_size:[", "]}"),
        ("sequence_batching{control_input{control{int32_false_true:[", "]}}}"),
        ("model_operations{op_library_filename:[", "]}"),
        ("unknown:[", "]"),
    ] {
        for element in ["1", "-1", "x", "''", "[", "{}", "<>", "@"] {
            check_list(Form::Text, head, element, tail);
        }
    }
    for (head, tail) in [
        ("input[", "]"),
        ("instance_group[", "]"),
        ("model_warmup[", "]"),
        ("ensemble_scheduling{step[", "]}"),
        ("batch_input[", "]"),
        ("sequence_batching{control_input[", "]}"),
        ("sequence_batching{state[", "]}"),
        ("parameters[", "]"),
        ("model_warmup{inputs[", "]}"),
    ] {
        // At the second length, the number of elements is within the limit.
        for element in ["{}", "{             }"] {
            check_list(Form::Text, head, element, tail);
        }
    }
    for text in ["}", "a:1 ", "@ ", "input{}", "a", "\n", "'", "''", "max_batch_size:1 ", "'\n"] {
        for length in LENGTHS {
            check(Form::Text, &text.repeat(length / text.len()));
        }
    }
    for length in LENGTHS {
        let entries: Vec<String> =
            (0..length / 24).map(|i| format!("parameters{{key:'{i:06}'}}")).collect();
        check(Form::Text, &entries.concat());
    }

    for (head, tail) in [
        (r#"{"input":[{"name":"x","data_type":"TYPE_FP32","dims":["#, "]}]}"),
        (r#"{"instance_group":[{"gpus":["#, "]}]}"),
        (r#"{"model_operations":{"op_library_filename":["#, "]}}"),
        (r#"{"input":["#, "]}"),
        (r#"{"instance_group":["#, "]}"),
        (r#"{"model_warmup":["#, "]}"),
        (r#"{"ensemble_scheduling":{"step":["#, "]}}"),
        (r#"{"sequence_batching":{"state":["#, "]}}"),
        (r#"{"unknown":["#, "]}"),
    ] {
        for element in
            ["1", "\"1\"", "\"\"", "[]", "{}", "{             }", "{\"\":0}", "{a:{a:{}}}"]
        {
            check_list(Form::Json, head, element, tail);
        }
    }
    check_keys("", "1", "");
    check_keys("{\"parameters\":", "{}", "}");
    check_keys("{\"parameters\":", "{              }", "}");
    check_keys("{\"metric_tags\":", "\"\"", "}");
    check_keys("{\"model_warmup\":[{\"inputs\":", "{}", "}]}");
    // The padding parameters name tensors that don't exist.
    for name in ["batch_padding", "batch_padding_outputs"] {
        let head = format!("{{\"parameters\":{{\"{name}\":{{\"string_value\":\"");
        check_list(Form::Json, &head, "x:0", "\"}}}");
    }
}
