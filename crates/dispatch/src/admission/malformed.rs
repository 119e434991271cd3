//! Errors for inputs with an invalid type or shape.
//!
//! Triton keeps the client's description until it compares the input with the model's
//! configuration, so its messages depend on the configuration.

use galatea_config::InputSpec;
use galatea_infer::{InputTensor, MalformedInput};
use galatea_tensor::DataType;

use super::{Admission, AdmissionRefusal};
use crate::reshape::fill_variable_dims;

impl Admission {
    /// Returns the reason why Triton refuses this input.
    pub(super) fn malformed(
        &self,
        spec: &InputSpec,
        input: &InputTensor,
        claimed: &MalformedInput,
        batch_size: i64,
    ) -> AdmissionRefusal {
        let (name, model) = (&spec.name, &self.model_name);
        if claimed.datatype != Some(spec.datatype) {
            let got = claimed.datatype.map_or("<invalid>", DataType::protocol_name);
            return AdmissionRefusal::Other(self.wrong_datatype(spec, got));
        }
        let (_, dims) = self.split_batch(spec, &claimed.dims);
        let is_checked = |got: i64, want: i64| got == -1 || (want != -1 && got != want);
        let mismatch = dims.iter().zip(&spec.dims).find(|(got, want)| is_checked(**got, **want));
        if dims.len() != spec.dims.len() || mismatch.is_some_and(|(got, _)| *got != -1) {
            return AdmissionRefusal::Other(self.wrong_shape(spec, &format_dims(&claimed.dims)));
        }
        if mismatch.is_some() {
            return AdmissionRefusal::Other(format!(
                "All input dimensions should be specified for input '{name}' for model '{model}', \
                 got {}",
                format_dims(&claimed.dims)
            ));
        }
        let has_batch = self.max_batch_size > 0 && !spec.is_shape_tensor && batch_size != 0;
        let mut whole: Vec<i64> = has_batch.then_some(batch_size).into_iter().collect();
        match &spec.reshape {
            Some(reshape) => whole.extend(fill_variable_dims(reshape, &spec.dims, dims)),
            None => whole.extend(dims),
        }
        self.without_size(spec, input, &whole)
    }

    /// The error for an input with these dimensions, whose size can't be computed.
    fn without_size(
        &self,
        spec: &InputSpec,
        input: &InputTensor,
        dims: &[i64],
    ) -> AdmissionRefusal {
        let (name, model, length) = (&spec.name, &self.model_name, input.data.len());
        match size(name, spec.datatype, dims) {
            Err(text) => AdmissionRefusal::WithoutId(text),
            Ok(size) if spec.datatype == DataType::Bytes => {
                AdmissionRefusal::Other(if length == 0 {
                    format!(
                        "expected {size} string elements for inference input '{name}' for model \
                     '{model}', got 0"
                    )
                } else {
                    format!(
                        "unexpected number of string elements 1 for inference input '{name}' for model \
                     '{model}', expecting {size}"
                    )
                })
            }
            Ok(size) => AdmissionRefusal::Other(format!(
                "input byte size mismatch for input '{name}' for model '{model}'. Expected {size}, \
                 got {length}"
            )),
        }
    }
}

/// The number of bytes in a tensor, or of elements in a BYTES tensor; -1 if a dimension is -1. As
/// in Triton, the first invalid dimension determines the error.
fn size(name: &str, datatype: DataType, dims: &[i64]) -> Result<i64, String> {
    let too_large = |what: &str| {
        Err(format!("{what} for tensor '{name}' exceeds maximum size of {}", i64::MAX))
    };
    let (what, element_size, place) = match datatype.byte_size().map(i64::try_from) {
        Some(Ok(size)) => ("byte size", size, ""),
        Some(Err(_)) | None => ("element count", 1, "in shape "),
    };
    let mut count: i64 = i64::from(!dims.is_empty());
    for &dim in dims {
        if dim == -1 {
            return Ok(-1);
        }
        if dim < 0 {
            return Err(format!(
                "tensor '{name}' contains an invalid dimension {place}{}",
                format_dims(dims)
            ));
        }
        let Some(product) = count.checked_mul(dim) else { return too_large(what) };
        count = product;
    }
    count.checked_mul(element_size).map_or_else(|| too_large(what), Ok)
}

/// Formats dimensions as in Triton's messages: `[1,-1,3]`.
fn format_dims(dims: &[i64]) -> String {
    let dims: Vec<String> = dims.iter().map(i64::to_string).collect();
    format!("[{}]", dims.join(","))
}

#[cfg(test)]
mod tests {
    use galatea_config::SupportedFeatures;
    use galatea_infer::InferenceRequest;
    use galatea_pbtxt::parse_config_draft;
    use galatea_tensor::{Buffer, Shape};

    use super::*;

    /// Returns the error for a request with an input of this type and these dimensions that
    /// contains eight zero bytes.
    fn refused(model: &str, datatype: Option<DataType>, dims: &[i64]) -> String {
        let text = format!("name: 'm' backend: 'b' {model}");
        let draft = parse_config_draft("config.pbtxt", &text).unwrap();
        let admission =
            Admission::new(&draft.into_validated_spec(&SupportedFeatures::default()).unwrap());
        let name = String::from("I");
        let input = InputTensor {
            name: name.clone(),
            datatype: datatype.unwrap_or(DataType::Bytes),
            shape: Shape::default(),
            data: Buffer::from_vec(vec![0; 8]),
        };
        let malformed_inputs = vec![MalformedInput { name, datatype, dims: dims.to_vec() }];
        let inputs = vec![input];
        let request = InferenceRequest { inputs, malformed_inputs, ..InferenceRequest::default() };
        admission.admit(request).unwrap_err().message().to_owned()
    }

    fn model(max_batch_size: u32, datatype: &str, rest: &str) -> String {
        format!(
            "max_batch_size: {max_batch_size}
             input {{ name: 'I' data_type: {datatype} dims: [ -1 ] {rest} }}
             output {{ name: 'O' data_type: {datatype} dims: [ -1 ] }}"
        )
    }

    #[test]
    fn texts_are_those_of_triton() {
        let (float, text) = (Some(DataType::Fp32), Some(DataType::Bytes));
        let numbers = model(8, "TYPE_FP32", "");
        let check = |model: &str, datatype, dims: &[i64], expected: &str| {
            assert_eq!(refused(model, datatype, dims), expected, "{dims:?}");
        };
        let id = "[request id: <id_unknown>]";
        let invalid = format!(
            "{id} inference input 'I' data-type is '<invalid>', but model 'm' expects 'FP32'"
        );
        check(&numbers, None, &[1, 2], &invalid);
        check(&numbers, None, &[1, -2], &invalid);
        check(
            &numbers,
            None,
            &[9, 2],
            &format!("{id} inference request batch-size must be <= 8 for 'm'"),
        );
        check(
            &numbers,
            None,
            &[],
            &format!("{id} input 'I' has no shape but model requires batch dimension for 'm'"),
        );
        check(&numbers, float, &[1, -2], "tensor 'I' contains an invalid dimension [1,-2]");
        check(&numbers, float, &[-2, 2], "tensor 'I' contains an invalid dimension [-2,2]");
        check(
            &numbers,
            float,
            &[1, -1],
            &format!(
                "{id} All input dimensions should be specified for input 'I' for model 'm', got [1,-1]"
            ),
        );
        check(
            &numbers,
            float,
            &[-1, 2],
            &format!(
                "{id} input byte size mismatch for input 'I' for model 'm'. Expected -1, got 8"
            ),
        );
        let ranks = refused(&numbers, float, &[1, 2, -2]);
        let expected = format!(
            "{id} unexpected shape for input 'I' for model 'm'. Expected [-1,-1], got [1,2,-2]. NOTE"
        );
        assert!(ranks.starts_with(&expected), "{ranks}");
        let large = "byte size for tensor 'I' exceeds maximum size of 9223372036854775807";
        check(&numbers, float, &[4, 1 << 61], large);
        let texts = model(0, "TYPE_STRING", "");
        check(&texts, text, &[-3], "tensor 'I' contains an invalid dimension in shape [-3]");
        let reshaped = model(0, "TYPE_FP32", "reshape { shape: [ 1, -1 ] }");
        check(&reshaped, float, &[-2], "tensor 'I' contains an invalid dimension [1,-2]");
    }
}
