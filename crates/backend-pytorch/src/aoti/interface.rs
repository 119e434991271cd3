//! A compiled model's interface, with the names in its configuration.
//!
//! A configured tensor refers to one of the model's tensors by its path, such as `ARGS[0]` or
//! `RESULT[key]` (see `call_spec`), or by its number: `INPUT__0`, `OUTPUT__0`. Triton's backend
//! spells the path of a keyword argument `KWARGSkey`, and its documentation spells it
//! `KWARGS[key]`; both are accepted.
//!
//! A package specifies the types and sizes of inputs (see `package`), but nothing about outputs.
//! Anything that it doesn't specify is taken from the configuration.

use galatea_config::ModelSpec;
use galatea_infer::Status;
use galatea_runtime::configured::{ConfiguredTensor, configured_inputs, configured_outputs};
use galatea_runtime::{ElementKind, SessionInterface, TensorInfo};
use galatea_tensor::DataType;

use crate::package::CompiledInput;

/// The tensors of a compiled model.
pub(super) struct ModelTensors<'a> {
    /// The input paths; `None` if they are unknown because the call specification also lists other
    /// values.
    pub(super) input_names: Option<&'a [String]>,
    /// The output paths; `None` if they are unknown.
    pub(super) output_names: Option<&'a [String]>,
    pub(super) input_count: usize,
    pub(super) output_count: usize,
    /// The inputs that the model was compiled for; empty if they are unknown.
    pub(super) compiled: &'a [CompiledInput],
}

impl ModelTensors<'_> {
    /// The interface with the names in the configuration.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the configuration names a tensor that the model lacks, omits an input
    /// or names one twice, or if the model doesn't support what requests contain.
    pub(super) fn interface(&self, spec: &ModelSpec) -> Result<SessionInterface, Status> {
        let configured = configured_inputs(spec);
        if configured.len() != self.input_count {
            return Err(Status::internal(format!(
                "Failed to load model \"{}\" configuration expects {} inputs, but model expects {} \
                 inputs.",
                spec.name,
                configured.len(),
                self.input_count
            )));
        }
        let mut inputs: Vec<Option<TensorInfo>> = vec![None; self.input_count];
        for tensor in &configured {
            let index = self.find(spec, tensor, "input", self.input_names, self.input_count)?;
            check_type(spec, tensor, "input")?;
            let info = self.input(spec, tensor, index)?;
            put(spec, &mut inputs, index, info)?;
        }
        let mut outputs: Vec<Option<TensorInfo>> = vec![None; self.output_count];
        for tensor in configured_outputs(spec) {
            let index = self.find(spec, &tensor, "output", self.output_names, self.output_count)?;
            check_type(spec, &tensor, "output")?;
            let ConfiguredTensor { name, datatype, dims, .. } = tensor;
            let info = TensorInfo { name, element: ElementKind::Known(datatype), dims };
            put(spec, &mut outputs, index, info)?;
        }
        let unnamed = |index: usize| TensorInfo {
            name: format!("OUTPUT__{index}"),
            element: ElementKind::Known(DataType::Fp32),
            dims: Vec::new(),
        };
        let outputs = outputs.into_iter().enumerate();
        Ok(SessionInterface {
            required_inputs: self.input_count,
            inputs: inputs.into_iter().flatten().collect(),
            outputs: outputs.map(|(index, one)| one.unwrap_or_else(|| unnamed(index))).collect(),
        })
    }

    fn find(
        &self,
        spec: &ModelSpec,
        tensor: &ConfiguredTensor,
        role: &str,
        names: Option<&[String]>,
        count: usize,
    ) -> Result<usize, Status> {
        let name = tensor.name.as_str();
        let by_path = names.and_then(|names| names.iter().position(|known| is_path(known, name)));
        let by_number = || {
            let number = name.strip_prefix(&format!("{}__", role.to_ascii_uppercase()))?;
            number.parse().ok().filter(|&number: &usize| number < count)
        };
        by_path.or_else(by_number).ok_or_else(|| {
            let (role_name, model) = (role[..1].to_uppercase() + &role[1..], &spec.name);
            let known = names.map_or_else(
                || format!("{role_name}s are numbered from {}__0", role.to_ascii_uppercase()),
                |names| format!("The model has {}", names.join(", ")),
            );
            Status::internal(format!(
                "{role_name} \"{name}\" for model \"{model}\" is not found in model {role} map. \
                 {known}."
            ))
        })
    }

    /// Describes an input with what both sides know about it.
    fn input(
        &self,
        spec: &ModelSpec,
        tensor: &ConfiguredTensor,
        index: usize,
    ) -> Result<TensorInfo, Status> {
        let ConfiguredTensor { name, datatype, dims, .. } = tensor;
        let Some(compiled) = self.compiled.get(index) else {
            let (name, dims) = (name.clone(), dims.clone());
            return Ok(TensorInfo { name, element: ElementKind::Known(*datatype), dims });
        };
        if let Some(problem) = compiled.problem() {
            return Err(Status::unsupported(format!(
                "unable to load model '{}', input '{name}' {problem}",
                spec.name
            )));
        }
        if !compiled.is_contiguous() {
            return Err(Status::unsupported(format!(
                "unable to load model '{}', input '{name}' was compiled for another order of \
                 elements than that of rows: export the model with a contiguous sample",
                spec.name
            )));
        }
        if compiled.is_written {
            return Err(Status::unsupported(format!(
                "unable to load model '{}', the model writes to its input '{name}', whose memory is \
                 the request's: export a model that leaves its inputs as they are",
                spec.name
            )));
        }
        let element = ElementKind::Known(compiled.datatype.unwrap_or(*datatype));
        let mut sizes = compiled.sizes();
        // As in Triton, a configuration may leave variable what the model fixes. Requests are
        // compared with the model. The first size is the batch size, and a model may support only
        // one batch size.
        let pairs = sizes.iter_mut().zip(dims);
        for (size, _) in pairs.filter(|(_, configured)| **configured == -1) {
            *size = -1;
        }
        Ok(TensorInfo { name: name.clone(), element, dims: sizes })
    }
}

/// Returns true if a configured name is the path, in either spelling.
fn is_path(path: &str, name: &str) -> bool {
    path == name
        || path.strip_prefix("KWARGS[").is_some_and(|rest| {
            // `KWARGSkey` and the rest of the path after the key.
            rest.split_once(']').is_some_and(|(key, rest)| {
                name.strip_prefix("KWARGS")
                    .and_then(|name| name.strip_prefix(key))
                    .is_some_and(|name| name == rest)
            })
        })
}

fn check_type(spec: &ModelSpec, tensor: &ConfiguredTensor, role: &str) -> Result<(), Status> {
    if crate::element::number(tensor.datatype).is_some() {
        return Ok(());
    }
    Err(Status::internal(format!(
        "Unsupported datatype {} for {role} \"{}\" for model \"{}\".",
        tensor.datatype.config_name(),
        tensor.name,
        spec.name
    )))
}

fn put(
    spec: &ModelSpec,
    tensors: &mut [Option<TensorInfo>],
    index: usize,
    info: TensorInfo,
) -> Result<(), Status> {
    match tensors.get_mut(index) {
        Some(place @ None) => {
            *place = Some(info);
            Ok(())
        }
        Some(Some(other)) => Err(Status::invalid_argument(format!(
            "unable to load model '{}', '{}' and '{}' are the same tensor of the model",
            spec.name, other.name, info.name
        ))),
        None => Err(Status::internal(format!("the model has no tensor {index}"))),
    }
}

#[cfg(test)]
mod tests {
    use galatea_config::SupportedFeatures;
    use galatea_pbtxt::parse_config_draft;

    use super::*;
    use crate::package::compiled_inputs;

    fn spec(text: &str) -> ModelSpec {
        let mut draft = parse_config_draft("config.pbtxt", text).unwrap();
        draft.resolve_name_and_backend("m", &["model.pt2".to_owned()]).unwrap();
        draft.into_validated_spec(&SupportedFeatures::default()).unwrap()
    }

    const INPUTS: [&str; 3] = ["ARGS[0]", "ARGS[1][k]", "KWARGS[b]"];
    const OUTPUTS: [&str; 2] = ["RESULT[0]", "RESULT[1]"];

    fn config(inputs: [&str; 3], output: &str) -> String {
        let inputs =
            inputs.map(|name| format!("{{ name: '{name}' data_type: TYPE_FP32 dims: 2 }}"));
        format!(
            "input [ {} ] output {{ name: '{output}' data_type: TYPE_INT64 dims: 1 }}",
            inputs.join(",")
        )
    }

    /// The names of inputs and outputs in the model's order, or the error.
    fn names(text: &str) -> Result<Vec<String>, String> {
        let (inputs, outputs) = (INPUTS.map(str::to_owned), OUTPUTS.map(str::to_owned));
        let tensors = ModelTensors {
            input_names: Some(&inputs),
            output_names: Some(&outputs),
            input_count: 3,
            output_count: 2,
            compiled: &[],
        };
        let found = tensors.interface(&spec(text)).map_err(|status| status.message().to_owned())?;
        let all = found.inputs.into_iter().chain(found.outputs);
        Ok(all.map(|tensor| tensor.name).collect())
    }

    #[test]
    fn tensors_are_named_by_their_paths_or_numbers() {
        let paths = names(&config(["KWARGS[b]", "ARGS[0]", "ARGS[1][k]"], "RESULT[1]")).unwrap();
        assert_eq!(paths, ["ARGS[0]", "ARGS[1][k]", "KWARGS[b]", "OUTPUT__0", "RESULT[1]"]);
        let numbers = names(&config(["INPUT__2", "KWARGSb", "INPUT__1"], "OUTPUT__0"));
        assert!(numbers.unwrap_err().contains("are the same tensor"));
        let numbers = names(&config(["KWARGSb", "INPUT__0", "INPUT__1"], "OUTPUT__0")).unwrap();
        assert_eq!(numbers, ["INPUT__0", "INPUT__1", "KWARGSb", "OUTPUT__0", "OUTPUT__1"]);
    }

    #[test]
    fn wrong_names_and_counts_are_refused_in_tritons_words() {
        let error = names(&config(["x", "INPUT__0", "INPUT__1"], "OUTPUT__0")).unwrap_err();
        let expected = "Input \"x\" for model \"m\" is not found in model input map. The model has \
            ARGS[0], ARGS[1][k], KWARGS[b].";
        assert_eq!(error, expected);
        let error = names(&config(["INPUT__0", "INPUT__1", "INPUT__2"], "OUTPUT__2")).unwrap_err();
        assert!(error.starts_with("Output \"OUTPUT__2\" for model \"m\" is not found"), "{error}");
        let error = names(
            "input { name: 'INPUT__0' data_type: TYPE_FP32 dims: 1 }
             output { name: 'RESULT[0]' data_type: TYPE_FP32 dims: 1 }",
        );
        let expected = "Failed to load model \"m\" configuration expects 1 inputs, but model \
            expects 3 inputs.";
        assert_eq!(error.unwrap_err(), expected);
        let strings = config(["INPUT__0", "INPUT__1", "INPUT__2"], "OUTPUT__0");
        let error = names(&strings.replace("TYPE_INT64", "TYPE_STRING")).unwrap_err();
        let expected = "Unsupported datatype TYPE_STRING for output \"OUTPUT__0\" for model \"m\".";
        assert_eq!(error, expected);
    }

    #[test]
    fn the_package_knows_types_and_sizes() {
        let source = "
            ConstantHandle a = ConstantHandle(input_handles[0]);
            int32_t a_expected_dtype = aoti_torch_dtype_float16();
            if (a_size[0] < 2) {
            if (4 != a_size[1]) {
            if (3 != a_size[2]) {
            if (12 != a_stride[0]) {
            if (3 != a_stride[1]) {
            if (1 != a_stride[2]) {
            void run_impl(
            assert_size_stride(a, {s0, 4L, 3L}, {12L, 3L, 1L}, \"input\");";
        let tensors = |source: &str| {
            let compiled = compiled_inputs(source);
            let tensors = ModelTensors {
                input_names: None,
                output_names: None,
                input_count: 1,
                output_count: 1,
                compiled: &compiled,
            };
            tensors.interface(&spec(
                "max_batch_size: 4 input { name: 'INPUT__0' data_type: TYPE_FP32 dims: [ 4, -1 ] }
                 output { name: 'OUTPUT__0' data_type: TYPE_FP32 dims: 1 }",
            ))
        };
        let found = tensors(source).unwrap();
        assert_eq!(found.inputs[0].dims, [-1, 4, -1]);
        assert_eq!(found.inputs[0].element.datatype(), Some(DataType::Fp16));
        assert_eq!(found.outputs[0].dims, [-1, 1]);
        let writing = format!("{source}\nf((float*)(a.data_ptr()));");
        let error = tensors(&writing).unwrap_err();
        assert!(error.message().contains("writes to its input 'INPUT__0'"), "{}", error.message());
        let error = tensors(&source.replace("float16", "float8_e5m2")).unwrap_err();
        let expected = "unable to load model 'm', input 'INPUT__0' has the unsupported element type \
            'float8_e5m2'";
        assert_eq!(error.message(), expected);
        let error = tensors(&source.replace("3 != a_stride[1]", "1 != a_stride[1]")).unwrap_err();
        assert!(error.message().contains("another order of elements"), "{}", error.message());
    }
}
