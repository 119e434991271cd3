//! What makes two requests equal.

use blake3::Hasher;
use galatea_backend::CacheKey;
use galatea_infer::{InferenceRequest, InputTensor, Parameter, ParameterValue};

use super::Origin;

/// The key of a request; `None` if an input isn't in the CPU's memory.
///
/// `request` is admitted: its inputs are in the configuration's order, and its outputs
/// are different ones of the `output_count` of the model. Who names all of those asks
/// for the same as who names none.
pub(crate) fn key_of(
    request: &InferenceRequest,
    output_count: usize,
    origin: &Origin,
) -> Option<CacheKey> {
    let mut hasher = Hasher::new();
    hasher.update(&origin.0);
    count(&mut hasher, request.inputs.len());
    for input in &request.inputs {
        tensor(&mut hasher, input)?;
    }
    let mut wanted: Vec<&String> = request.outputs.iter().collect();
    wanted.sort_unstable();
    if wanted.len() == output_count {
        wanted.clear();
    }
    count(&mut hasher, wanted.len());
    for name in wanted {
        text(&mut hasher, name);
    }
    let mut parameters: Vec<&Parameter> = request.parameters.iter().collect();
    parameters.sort_by(|a, b| a.name.cmp(&b.name));
    count(&mut hasher, parameters.len());
    for one in parameters {
        parameter(&mut hasher, one);
    }
    Some(CacheKey(*hasher.finalize().as_bytes()))
}

/// Every part begins with its length, so that no two lists of parts look alike.
pub(super) fn bytes(hasher: &mut Hasher, bytes: &[u8]) {
    count(hasher, bytes.len());
    hasher.update(bytes);
}

pub(super) fn text(hasher: &mut Hasher, text: &str) {
    bytes(hasher, text.as_bytes());
}

pub(super) fn count(hasher: &mut Hasher, count: usize) {
    hasher.update(&u64::try_from(count).unwrap_or(u64::MAX).to_le_bytes());
}

fn tensor(hasher: &mut Hasher, input: &InputTensor) -> Option<()> {
    text(hasher, &input.name);
    text(hasher, input.datatype.config_name());
    count(hasher, input.shape.rank());
    for dim in input.shape.dims() {
        hasher.update(&dim.to_le_bytes());
    }
    bytes(hasher, input.data.host()?);
    Some(())
}

fn parameter(hasher: &mut Hasher, parameter: &Parameter) {
    text(hasher, &parameter.name);
    match &parameter.value {
        ParameterValue::Bool(value) => bytes(hasher, &[0, u8::from(*value)]),
        ParameterValue::Int64(value) => {
            hasher.update(&[1]);
            bytes(hasher, &value.to_le_bytes());
        }
        ParameterValue::Double(value) => {
            hasher.update(&[2]);
            bytes(hasher, &value.to_bits().to_le_bytes());
        }
        ParameterValue::String(value) => {
            hasher.update(&[3]);
            text(hasher, value);
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
        key_of(&request, 3, &Origin([0; 32])).unwrap()
    }

    #[test]
    fn what_an_answer_can_depend_on_changes_the_key() {
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
        assert_ne!(Some(same), key_of(&request(), 3, &Origin([1; 32])));
    }

    #[test]
    fn all_outputs_are_wanted_with_and_without_names() {
        let none = key(|request| request.outputs.clear());
        let all = |request: &mut InferenceRequest| request.outputs.insert(0, String::from("Z"));
        assert_eq!(none, key(all));
        assert_ne!(none, key(|_| {}));
    }

    #[test]
    fn what_no_answer_depends_on_does_not_change_the_key() {
        let same = key(|_| {});
        assert_eq!(same, key(|request| request.id.push('2')));
        assert_eq!(same, key(|request| request.outputs.reverse()));
        assert_eq!(same, key(|request| request.priority = 3));
        assert_eq!(same, key(|request| request.timeout_microseconds = 3));
    }
}
