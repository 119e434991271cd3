//! The cache key of a request.

use blake3::Hasher;
use galatea_backend::CacheKey;
use galatea_infer::{InferenceRequest, InputTensor, Parameter, ParameterValue};

use super::fingerprint::VersionFingerprint;
use super::hashing::{add_bytes, add_count, add_text};

/// Computes the key for a request. Returns `None` if an input is not in CPU memory.
///
/// The request has been admitted: its inputs are in the configuration's order, and its outputs are
/// distinct outputs of the model, which has `output_count` outputs. Naming all outputs is
/// equivalent to naming none.
pub(crate) fn key_of(
    request: &InferenceRequest,
    output_count: usize,
    fingerprint: &VersionFingerprint,
) -> Option<CacheKey> {
    let mut hasher = Hasher::new();
    hasher.update(&fingerprint.0);
    add_count(&mut hasher, request.inputs.len());
    for input in &request.inputs {
        add_tensor(&mut hasher, input)?;
    }
    let mut outputs: Vec<&String> = request.outputs.iter().collect();
    outputs.sort_unstable();
    if outputs.len() == output_count {
        outputs.clear();
    }
    add_count(&mut hasher, outputs.len());
    for name in outputs {
        add_text(&mut hasher, name);
    }
    let mut parameters: Vec<&Parameter> = request.parameters.iter().collect();
    parameters.sort_by(|a, b| a.name.cmp(&b.name));
    add_count(&mut hasher, parameters.len());
    for parameter in parameters {
        add_parameter(&mut hasher, parameter);
    }
    Some(CacheKey(*hasher.finalize().as_bytes()))
}

/// Computes a key that only equal requests to one loaded version share. Returns `None` if an input
/// is not in CPU memory.
pub(crate) fn equality_key_of(request: &InferenceRequest, output_count: usize) -> Option<CacheKey> {
    key_of(request, output_count, &VersionFingerprint([0; 32]))
}

fn add_tensor(hasher: &mut Hasher, input: &InputTensor) -> Option<()> {
    add_text(hasher, &input.name);
    add_text(hasher, input.datatype.config_name());
    add_count(hasher, input.shape.rank());
    for dim in input.shape.dims() {
        hasher.update(&dim.to_le_bytes());
    }
    add_bytes(hasher, input.data.host_bytes()?);
    Some(())
}

fn add_parameter(hasher: &mut Hasher, parameter: &Parameter) {
    add_text(hasher, &parameter.name);
    match &parameter.value {
        ParameterValue::Bool(value) => add_bytes(hasher, &[0, u8::from(*value)]),
        ParameterValue::Int64(value) => {
            hasher.update(&[1]);
            add_bytes(hasher, &value.to_le_bytes());
        }
        ParameterValue::Double(value) => {
            hasher.update(&[2]);
            add_bytes(hasher, &value.to_bits().to_le_bytes());
        }
        ParameterValue::String(value) => {
            hasher.update(&[3]);
            add_text(hasher, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use galatea_tensor::{Buffer, DataType, Shape};

    use super::*;

    fn request() -> InferenceRequest {
        InferenceRequest {
            id: String::from("first"),
            model_name: String::from("m"),
            inputs: vec![input("A", &[2, 2]), input("B", &[4])],
            outputs: vec![String::from("X"), String::from("Y")],
            parameters: vec![Parameter {
                name: String::from("p"),
                value: ParameterValue::Int64(1),
            }],
            ..InferenceRequest::default()
        }
    }

    fn input(name: &str, dims: &[i64]) -> InputTensor {
        InputTensor {
            name: String::from(name),
            datatype: DataType::Int8,
            shape: Shape::new(dims).unwrap(),
            data: Buffer::from_vec(vec![1, 2, 3, 4]),
        }
    }

    fn key(change: impl FnOnce(&mut InferenceRequest)) -> CacheKey {
        let mut request = request();
        change(&mut request);
        key_of(&request, 3, &VersionFingerprint([0; 32])).unwrap()
    }

    #[test]
    fn the_key_changes_with_everything_that_a_response_depends_on() {
        let same = key(|_| {});
        let changes: [fn(&mut InferenceRequest); 9] = [
            |request| request.inputs[0].shape = Shape::new(&[4, 1]).unwrap(),
            |request| request.inputs[0].datatype = DataType::Uint8,
            |request| request.inputs[0].data = Buffer::from_vec(vec![1, 2, 3, 5]),
            |request| request.inputs[0].name.push('2'),
            |request| drop(request.inputs.pop()),
            |request| drop(request.outputs.pop()),
            |request| request.outputs.clear(),
            |request| request.parameters[0].value = ParameterValue::Bool(true),
            |request| request.parameters.clear(),
        ];
        let mut keys = vec![same];
        for change in changes {
            let changed = key(change);
            assert!(!keys.contains(&changed), "two of the requests have one key");
            keys.push(changed);
        }
        assert_ne!(Some(same), key_of(&request(), 3, &VersionFingerprint([1; 32])));
    }

    #[test]
    fn requesting_all_outputs_by_name_equals_requesting_none_by_name() {
        let none = key(|request| request.outputs.clear());
        let all = |request: &mut InferenceRequest| request.outputs.insert(0, String::from("Z"));
        assert_eq!(none, key(all));
        assert_ne!(none, key(|_| {}));
    }

    #[test]
    fn the_key_ignores_what_no_response_depends_on() {
        let same = key(|_| {});
        assert_eq!(same, key(|request| request.id.push('2')));
        assert_eq!(same, key(|request| request.outputs.reverse()));
        assert_eq!(same, key(|request| request.priority = 3));
        assert_eq!(same, key(|request| request.timeout_microseconds = 3));
    }
}
