//! A request as a shell command line.

use serde_json::{Value, json};

use crate::interface::ServedModelInterface;
use crate::sample::{InputShapes, SampleInput, SampleRequest, encode_path_segment};
use galatea_tensor::DataType;

/// The maximum number of tensor elements that are written out.
const ELEMENTS_MAX: usize = 32;

/// The maximum number of strings in a tensor that are written out. String tensors can't be
/// abbreviated.
const STRINGS_MAX: usize = 1_000;

/// A command that sends a sample to the server at this URL. It works unchanged in a shell that has
/// `curl` and, for long tensors, `head`.
///
/// # Errors
///
/// Returns an error if the model's requests don't fit on a command line.
pub fn curl_command(interface: &ServedModelInterface, url: &str) -> Result<String, String> {
    let sample = SampleRequest::new(interface, 1, &InputShapes::new())?;
    let is_text = |input: &SampleInput| input.datatype == DataType::Bytes;
    if sample.inputs.iter().any(|input| is_text(input) && input.elements > STRINGS_MAX) {
        return Err(String::from("it takes too many strings"));
    }
    let model = format!("{url}/v2/models/{}", encode_path_segment(&sample.model));
    if interface.is_decoupled {
        return Ok(events(&sample, &model));
    }
    let is_binary = |input: &SampleInput| {
        !is_text(input) && (input.elements > ELEMENTS_MAX || is_half(input.datatype))
    };
    let inputs: Vec<Value> = sample
        .inputs
        .iter()
        .map(|input| {
            let mut one = json!({
                "name": input.name,
                "datatype": input.datatype.protocol_name(),
                "shape": input.shape,
            });
            if is_binary(input) {
                one["parameters"] = json!({ "binary_data_size": input.bytes().len() });
            } else {
                one["data"] = input.json();
            }
            one
        })
        .collect();
    let mut document = json!({ "inputs": inputs });
    let mut parameters = json!({});
    sample.add_sequence(&mut parameters, 1);
    // JSON has no half-precision numbers.
    let returns_binary = sample.outputs.iter().any(|output| is_half(output.datatype));
    if returns_binary {
        parameters["binary_data_output"] = json!(true);
    }
    if parameters.as_object().is_some_and(|parameters| !parameters.is_empty()) {
        document["parameters"] = parameters;
    }
    let document = document.to_string();
    let output = if returns_binary { " --output response.bin" } else { "" };
    let zeros: usize = sample
        .inputs
        .iter()
        .filter(|input| is_binary(input))
        .map(|input| input.bytes().len())
        .sum();
    if zeros == 0 {
        return Ok(format!("curl --silent {model}/infer{output} --data {}", quoted(&document)));
    }
    Ok(format!(
        "{{ printf %s {}; head -c {zeros} /dev/zero; }} | curl --silent {model}/infer{output} \
         --header 'Inference-Header-Content-Length: {}' --data-binary @-",
        quoted(&document),
        document.len(),
    ))
}

/// The command for a decoupled model, which sends its responses as events, in flat JSON.
fn events(sample: &SampleRequest, model: &str) -> String {
    let value = |input: &SampleInput| match input.json() {
        Value::Array(mut elements) if elements.len() == 1 => elements.swap_remove(0),
        elements => elements,
    };
    let fields = sample.inputs.iter().map(|input| (input.name.clone(), value(input)));
    let document = Value::Object(fields.collect()).to_string();
    format!("curl --silent --no-buffer {model}/generate_stream --data {}", quoted(&document))
}

fn is_half(datatype: DataType) -> bool {
    matches!(datatype, DataType::Fp16 | DataType::Bf16)
}

/// Quotes a string as a single shell word.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::TensorInterface;

    fn interface(datatype: DataType, shape: &[i64]) -> ServedModelInterface {
        let tensor = |name: &str| TensorInterface {
            name: name.to_owned(),
            datatype,
            shape: shape.to_vec(),
            is_optional: false,
        };
        ServedModelInterface {
            name: String::from("m"),
            inputs: vec![tensor("it's")],
            outputs: vec![tensor("y")],
            is_decoupled: false,
            has_sequences: false,
            has_batches: true,
        }
    }

    #[track_caller]
    fn check(interface: &ServedModelInterface, expected: &str) {
        assert_eq!(curl_command(interface, "http://h:1").as_deref(), Ok(expected));
    }

    #[test]
    fn short_tensors_are_written_out() {
        check(
            &interface(DataType::Fp32, &[-1, 2]),
            "curl --silent http://h:1/v2/models/m/infer --data '{\"inputs\":[{\"name\":\
             \"it'\\''s\",\"datatype\":\"FP32\",\"shape\":[1,2],\"data\":[0.5,0.5]}]}'",
        );
    }

    #[test]
    fn long_tensors_are_zeros_behind_the_document() {
        check(
            &interface(DataType::Int64, &[-1, 100]),
            "{ printf %s '{\"inputs\":[{\"name\":\"it'\\''s\",\"datatype\":\"INT64\",\"shape\":\
             [1,100],\"parameters\":{\"binary_data_size\":800}}]}'; head -c 800 /dev/zero; } | \
             curl --silent http://h:1/v2/models/m/infer --header \
             'Inference-Header-Content-Length: 101' --data-binary @-",
        );
    }

    #[test]
    fn halves_travel_in_binary_both_ways() {
        let line = curl_command(&interface(DataType::Fp16, &[-1, 1]), "http://h:1").unwrap();
        assert!(line.contains("head -c 2 /dev/zero"), "{line}");
        assert!(line.contains("\"binary_data_output\":true"), "{line}");
        assert!(line.contains("--output response.bin"), "{line}");
    }

    #[test]
    fn a_sequence_begins_and_ends_and_a_decoupled_model_sends_events() {
        let mut interface = interface(DataType::Bytes, &[-1, 1]);
        interface.has_sequences = true;
        let line = curl_command(&interface, "http://h:1").unwrap();
        assert!(line.contains("\"sequence_end\":true"), "{line}");
        interface.is_decoupled = true;
        check(
            &interface,
            "curl --silent --no-buffer http://h:1/v2/models/m/generate_stream --data \
             '{\"it'\\''s\":\"text\"}'",
        );
    }
}
