//! A model's parameters, read as Triton's backend reads them.

use std::collections::BTreeMap;

use galatea_infer::Status;

/// The default device.
pub(crate) const CPU: &str = "CPU";
const NUM_STREAMS: &str = "NUM_STREAMS";
const PERFORMANCE_HINT: &str = "PERFORMANCE_HINT";
pub(crate) const NUM_THREADS: &str = "INFERENCE_NUM_THREADS";
const HINT_BF16: &str = "HINT_BF16";
/// A parameter that Triton's backend doesn't have.
pub(crate) const PRECISION_HINT: &str = "INFERENCE_PRECISION_HINT";
/// Another such parameter: the path of the library that executes this model.
pub(crate) const LIBRARY: &str = "OPENVINO_LIBRARY_PATH";

/// The path of a library with custom operators for the model.
pub(crate) const CPU_EXTENSION: &str = "CPU_EXTENSION_PATH";

/// A model's parameters, parsed and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelParameters {
    /// The device name in upper case.
    pub(crate) target_device: String,
    /// The library with custom operators for the model; empty if there is none.
    pub(crate) cpu_extension: String,
    /// True if the inputs get the dimensions in the configuration.
    pub(crate) reshapes_inputs: bool,
    /// True if the device must not combine executions.
    pub(crate) skips_dynamic_batches: bool,
    /// True if batches are to be padded, which isn't necessary here.
    pub(crate) pads_batches: bool,
    /// The device properties and their values.
    pub(crate) properties: Vec<(&'static str, String)>,
}

impl ModelParameters {
    pub(crate) fn parse(values: &BTreeMap<String, String>) -> Result<Self, Status> {
        let text = |key: &str| values.get(key).map_or("", String::as_str);
        let is_yes = |key: &str| text(key).eq_ignore_ascii_case("yes");
        let device = text("TARGET_DEVICE").to_ascii_uppercase();
        let mut properties = Vec::new();
        for (key, property) in [
            (NUM_THREADS, NUM_THREADS),
            ("COMPILATION_NUM_THREADS", "COMPILATION_NUM_THREADS"),
            (HINT_BF16, PRECISION_HINT),
            (NUM_STREAMS, NUM_STREAMS),
            (PERFORMANCE_HINT, PERFORMANCE_HINT),
            (PRECISION_HINT, PRECISION_HINT),
        ] {
            let value = text(key);
            if !value.is_empty() {
                properties.push((property, property_value(key, &value.to_ascii_lowercase())?));
            }
        }
        let hint = text(PRECISION_HINT);
        if !text(HINT_BF16).is_empty() && !hint.is_empty() && !hint.eq_ignore_ascii_case("bf16") {
            return Err(Status::invalid_argument(format!(
                "the parameters '{HINT_BF16}' and '{PRECISION_HINT}' contradict each other: \
                 bfloat16 and {hint}"
            )));
        }
        Ok(Self {
            target_device: if device.is_empty() { String::from(CPU) } else { device },
            cpu_extension: text(CPU_EXTENSION).to_owned(),
            reshapes_inputs: is_yes("RESHAPE_IO_LAYERS"),
            skips_dynamic_batches: is_yes("SKIP_OV_DYNAMIC_BATCHSIZE"),
            pads_batches: is_yes("ENABLE_BATCH_PADDING"),
            properties,
        })
    }
}

impl ModelParameters {
    /// The device properties for this number of instances. Each execution in progress needs a
    /// stream, but OpenVINO creates only one by default. Triton's instances wait for each other
    /// unless NUM_STREAMS is set.
    ///
    /// OpenVINO distributes the threads among the streams. To keep the threads per execution that
    /// the configuration specifies, as with Triton's single stream, each stream adds that many
    /// threads.
    pub(crate) fn properties_for(&self, instances: u32) -> Vec<(&'static str, String)> {
        let is_given = |one: &(&str, String)| matches!(one.0, NUM_STREAMS | PERFORMANCE_HINT);
        let mut properties = self.properties.clone();
        if instances > 1 && self.target_device == CPU && !self.properties.iter().any(is_given) {
            for (_, threads) in properties.iter_mut().filter(|(key, _)| *key == NUM_THREADS) {
                let total = threads.parse::<u32>().ok().and_then(|it| it.checked_mul(instances));
                if let Some(total) = total {
                    *threads = total.to_string();
                }
            }
            properties.push((NUM_STREAMS, instances.to_string()));
        }
        properties
    }
}

/// The property value for a parameter's value in lower case.
fn property_value(key: &str, value: &str) -> Result<String, Status> {
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let expected = match key {
        HINT_BF16 if value == "yes" => return Ok(String::from("bf16")),
        HINT_BF16 => "YES",
        NUM_STREAMS if is_number || matches!(value, "auto" | "numa") => {
            return Ok(value.to_ascii_uppercase());
        }
        NUM_STREAMS => "either AUTO/NUMA/<int_value>",
        PERFORMANCE_HINT if matches!(value, "latency" | "throughput" | "cumulative_throughput") => {
            return Ok(value.to_ascii_uppercase());
        }
        PRECISION_HINT if matches!(value, "f32" | "bf16" | "f16") => return Ok(value.to_owned()),
        PRECISION_HINT => "F32/BF16/F16",
        PERFORMANCE_HINT => "LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT",
        _ if is_number => return Ok(value.to_owned()),
        _ => "a non-negative number",
    };
    Err(Status::invalid_argument(format!(
        "expected the parameter '{key}' to be {expected}, got {value}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<ModelParameters, String> {
        let values = pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        ModelParameters::parse(&values).map_err(|status| status.message().to_owned())
    }

    #[test]
    fn parameters_become_properties() {
        let found = parse(&[
            ("INFERENCE_NUM_THREADS", "2"),
            ("HINT_BF16", "Yes"),
            ("NUM_STREAMS", "auto"),
            ("PERFORMANCE_HINT", "Latency"),
            ("TARGET_DEVICE", "auto"),
            ("RESHAPE_IO_LAYERS", "YES"),
            ("ENABLE_BATCH_PADDING", "YES"),
        ]);
        let expected = [
            ("INFERENCE_NUM_THREADS", "2"),
            ("INFERENCE_PRECISION_HINT", "bf16"),
            ("NUM_STREAMS", "AUTO"),
            ("PERFORMANCE_HINT", "LATENCY"),
        ];
        let found = found.unwrap();
        assert_eq!(found.properties, expected.map(|(key, value)| (key, value.to_owned())));
        assert_eq!(found.target_device, "AUTO");
        assert!(found.reshapes_inputs && found.pads_batches && !found.skips_dynamic_batches);
        assert_eq!(parse(&[]).unwrap().target_device, "CPU");
    }

    #[test]
    fn instances_have_streams_unless_the_configuration_decides() {
        let streams = |pairs: &[(&str, &str)], instances| {
            let properties = parse(pairs).unwrap().properties_for(instances);
            let found = properties.iter().find(|(key, _)| *key == "NUM_STREAMS");
            found.map(|(_, value)| value.clone())
        };
        assert_eq!(streams(&[], 1), None);
        assert_eq!(streams(&[], 3).as_deref(), Some("3"));
        assert_eq!(streams(&[("NUM_STREAMS", "1")], 3).as_deref(), Some("1"));
        assert_eq!(streams(&[("PERFORMANCE_HINT", "latency")], 3), None);
        assert_eq!(streams(&[("TARGET_DEVICE", "AUTO")], 3), None);
    }

    #[test]
    fn each_execution_has_the_threads_of_the_configuration() {
        let threads = |pairs: &[(&str, &str)], instances| {
            let properties = parse(pairs).unwrap().properties_for(instances);
            properties.iter().find(|(key, _)| *key == NUM_THREADS).unwrap().1.clone()
        };
        let four = (NUM_THREADS, "4");
        assert_eq!(threads(&[four], 1), "4");
        assert_eq!(threads(&[four], 2), "8");
        assert_eq!(threads(&[four, (NUM_STREAMS, "2")], 2), "4");
        assert_eq!(threads(&[four, (PERFORMANCE_HINT, "latency")], 2), "4");
        let large = u32::MAX.to_string();
        assert_eq!(threads(&[(NUM_THREADS, &large)], 2), large);
    }

    #[test]
    fn hints_of_two_precisions_are_refused() {
        let hints = |other| parse(&[(HINT_BF16, "YES"), (PRECISION_HINT, other)]);
        assert!(hints("BF16").is_ok());
        assert_eq!(
            hints("F32").unwrap_err(),
            "the parameters 'HINT_BF16' and 'INFERENCE_PRECISION_HINT' contradict each other: \
             bfloat16 and F32"
        );
    }

    #[test]
    fn wrong_values_are_refused_in_tritons_words() {
        for (key, value, expected) in [
            ("INFERENCE_NUM_THREADS", "-1", "a non-negative number, got -1"),
            ("COMPILATION_NUM_THREADS", "X", "a non-negative number, got x"),
            ("HINT_BF16", "NO", "YES, got no"),
            ("NUM_STREAMS", "some", "either AUTO/NUMA/<int_value>, got some"),
            ("INFERENCE_PRECISION_HINT", "fp32", "F32/BF16/F16, got fp32"),
            ("PERFORMANCE_HINT", "Fast", "LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT, got fast"),
        ] {
            let expected = format!("expected the parameter '{key}' to be {expected}");
            assert_eq!(parse(&[(key, value)]), Err(expected));
        }
    }
}
