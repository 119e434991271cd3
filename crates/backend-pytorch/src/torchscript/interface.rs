//! A TorchScript model's interface, with the names in its configuration.
//!
//! Triton has three rules, and the first that applies is used: all input names are arguments of
//! `forward`; all names end with `__` and a number; the order in the configuration is the order of
//! the arguments. For outputs, only the last two rules exist. A single argument of type `Dict[str,
//! Tensor]` receives all inputs by name.

use galatea_config::ModelSpec;
use galatea_infer::Status;
use galatea_runtime::configured::{
    ConfiguredTensor, TensorRole, configured_inputs, configured_outputs,
};
use galatea_runtime::{ElementKind, SessionInterface, TensorInfo};
use galatea_tensor::DataType;

use crate::api::{Argument, ArgumentKind};
use crate::element;

/// The maximum index of an output. The number of a model's outputs is only known once it has been
/// executed.
const OUTPUT_INDEX_MAX: usize = 4095;

/// The mapping of names to a model's tensors.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Naming {
    Arguments,
    Numbers,
    Positions,
}

/// The interface of a model with these arguments.
pub(super) fn interface(
    spec: &ModelSpec,
    arguments: &[Argument],
) -> Result<SessionInterface, Status> {
    let inputs = inputs(spec, arguments)?;
    let outputs = outputs(spec)?;
    Ok(SessionInterface { required_inputs: inputs.len(), inputs, outputs })
}

/// Returns true if the model takes a dictionary of inputs.
pub(super) fn takes_dictionary(arguments: &[Argument]) -> bool {
    matches!(arguments, [Argument { kind: ArgumentKind::Dictionary, .. }])
}

fn inputs(spec: &ModelSpec, arguments: &[Argument]) -> Result<Vec<TensorInfo>, Status> {
    let configured = configured_inputs(spec);
    for tensor in &configured {
        check_type(spec, tensor, "input")?;
    }
    check_controls(&configured, arguments)?;
    if takes_dictionary(arguments) {
        return Ok(configured.into_iter().map(info).collect());
    }
    let is_other = |one: &&Argument| !matches!(one.kind, ArgumentKind::Tensor | ArgumentKind::List);
    if let Some(other) = arguments.iter().find(is_other) {
        let text = if other.kind == ArgumentKind::Dictionary {
            String::from(
                "Multiple inputs of kind DictType were detected. Only a single input of type \
                 Dict(str, Tensor) is supported.",
            )
        } else {
            format!(
                "An input of type '{}' was detected in the model. Only a single input of type \
                 Dict(str, Tensor) or input(s) of type Tensor are supported.",
                other.type_name
            )
        };
        return Err(Status::internal(text));
    }
    if configured.len() != arguments.len() {
        return Err(Status::invalid_argument(format!(
            "unable to load model '{}', configuration expects {} inputs, model provides {}",
            spec.name,
            configured.len(),
            arguments.len()
        )));
    }
    let naming = naming(spec, &configured, arguments);
    check_states(spec, naming, spec.sequence_states().iter().map(|state| &state.input_name))?;
    let mut inputs: Vec<Option<TensorInfo>> = vec![None; arguments.len()];
    let mut positions = 0..;
    for tensor in configured {
        let by_argument = || arguments.iter().position(|one| one.name == tensor.name);
        // Controls always have numbers. Batch inputs come after the inputs of requests.
        let position = if tensor.role == TensorRole::Control { None } else { positions.next() };
        let index = match naming {
            Naming::Arguments => by_argument().or_else(|| number(&tensor.name)),
            Naming::Positions => position.or_else(|| number(&tensor.name)),
            Naming::Numbers => number(&tensor.name),
        };
        let name = tensor.name.clone();
        let place = index.and_then(|index| inputs.get_mut(index)).filter(|place| place.is_none());
        let place = place.ok_or_else(|| {
            let names: Vec<&str> = arguments.iter().map(|one| one.name.as_str()).collect();
            Status::invalid_argument(format!(
                "unable to load model '{}', input '{name}' is none of the model's inputs, or one \
                 that another name has: {}",
                spec.name,
                names.join(", ")
            ))
        })?;
        *place = Some(info(tensor));
    }
    Ok(inputs.into_iter().flatten().collect())
}

fn outputs(spec: &ModelSpec) -> Result<Vec<TensorInfo>, Status> {
    let configured = configured_outputs(spec);
    let naming = naming(spec, &configured, &[]);
    check_states(spec, naming, spec.sequence_states().iter().map(|state| &state.output_name))?;
    let mut outputs: Vec<Option<TensorInfo>> = Vec::new();
    for (order, tensor) in configured.into_iter().enumerate() {
        check_type(spec, &tensor, "output")?;
        let index = match naming {
            Naming::Positions if tensor.role == TensorRole::Request => Some(order),
            Naming::Arguments | Naming::Numbers | Naming::Positions => number(&tensor.name),
        };
        let index = index.filter(|&index| index <= OUTPUT_INDEX_MAX).ok_or_else(|| {
            Status::invalid_argument(format!(
                "unable to load model '{}', output '{}' does not follow <name>__<index> naming \
                 convention.",
                spec.name, tensor.name
            ))
        })?;
        if outputs.len() <= index {
            outputs.resize(index + 1, None);
        }
        if let Some(place) = outputs.get_mut(index) {
            if let Some(other) = place {
                return Err(Status::invalid_argument(format!(
                    "unable to load model '{}', '{}' and '{}' are the same output of the model",
                    spec.name, other.name, tensor.name
                )));
            }
            *place = Some(info(tensor));
        }
    }
    let unnamed = |index: usize| TensorInfo {
        name: format!("OUTPUT__{index}"),
        element: ElementKind::Known(DataType::Fp32),
        dims: Vec::new(),
    };
    let outputs = outputs.into_iter().enumerate();
    Ok(outputs.map(|(index, one)| one.unwrap_or_else(|| unnamed(index))).collect())
}

fn info(tensor: ConfiguredTensor) -> TensorInfo {
    let ConfiguredTensor { name, datatype, dims, .. } = tensor;
    TensorInfo { name, element: ElementKind::Known(datatype), dims }
}

/// The naming scheme of a configuration's inputs, or of its outputs if there are no arguments.
fn naming(spec: &ModelSpec, tensors: &[ConfiguredTensor], arguments: &[Argument]) -> Naming {
    let mut of_requests = tensors.iter().filter(|tensor| tensor.role == TensorRole::Request);
    let is_argument =
        |tensor: &ConfiguredTensor| arguments.iter().any(|argument| argument.name == tensor.name);
    if !arguments.is_empty() && !spec.inputs.is_empty() && of_requests.clone().all(is_argument) {
        return Naming::Arguments;
    }
    if of_requests.all(|tensor| number(&tensor.name).is_some()) {
        Naming::Numbers
    } else {
        Naming::Positions
    }
}

/// Like Triton, refuses states whose names have no number, and states in models with other tensors
/// whose names have none.
fn check_states<'a>(
    spec: &ModelSpec,
    naming: Naming,
    names: impl Iterator<Item = &'a String>,
) -> Result<(), Status> {
    let mut names = names.peekable();
    if names.peek().is_some() && naming != Naming::Numbers {
        return Err(Status::invalid_argument(format!(
            "PyTorch model '{}' is using sequence batching with state but not all inputs and \
             outputs follow the <name>__<index> naming convention. ",
            spec.name
        )));
    }
    match names.find(|name| number(name).is_none()) {
        None => Ok(()),
        Some(name) => Err(Status::invalid_argument(format!(
            "PyTorch model '{}' is using sequence batching with state but state '{name}' does not \
             follow the <name>__<index> naming convention. ",
            spec.name
        ))),
    }
}

/// Like Triton, refuses controls whose names have no number. However, a control may also have the
/// name of an argument.
fn check_controls(configured: &[ConfiguredTensor], arguments: &[Argument]) -> Result<(), Status> {
    let is_named = |tensor: &&ConfiguredTensor| {
        number(&tensor.name).is_some() || arguments.iter().any(|one| one.name == tensor.name)
    };
    let mut controls = configured.iter().filter(|tensor| tensor.role == TensorRole::Control);
    match controls.find(|tensor| !is_named(tensor)) {
        None => Ok(()),
        Some(tensor) => Err(Status::internal(format!(
            "input '{}' does not follow <name>__<index> naming convention.",
            tensor.name
        ))),
    }
}

/// The number after the first `__` in a name.
fn number(name: &str) -> Option<usize> {
    let (_, digits) = name.split_once("__")?;
    if digits.is_empty() { Some(0) } else { digits.parse().ok().filter(|_| is_digits(digits)) }
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

fn check_type(spec: &ModelSpec, tensor: &ConfiguredTensor, role: &str) -> Result<(), Status> {
    let ConfiguredTensor { name, datatype, dims, .. } = tensor;
    if *datatype == DataType::Bytes {
        if dims.len() <= 1 {
            return Ok(());
        }
        return Err(Status::internal(format!(
            "Triton only supports 1 dimensional List of String as {role} for '{name}' for model \
             '{}'",
            spec.name
        )));
    }
    if element::number(*datatype).is_some() {
        return Ok(());
    }
    Err(Status::internal(format!(
        "unsupported datatype {} for {role} '{name}' for model '{}'",
        datatype.config_name(),
        spec.name
    )))
}

#[cfg(test)]
mod tests {
    use galatea_config::SupportedFeatures;
    use galatea_pbtxt::parse_config_draft;

    use super::*;

    fn names(inputs: &[&str], outputs: &[&str], arguments: &[&str]) -> Result<String, String> {
        let tensor = |kind: &str, name: &&str| {
            format!("{kind} {{ name: '{name}' data_type: TYPE_FP32 dims: 1 }}")
        };
        let inputs = inputs.iter().map(|name| tensor("input", name));
        let outputs = outputs.iter().map(|name| tensor("output", name));
        let text: String = inputs.chain(outputs).collect();
        names_in(&text, arguments)
    }

    /// The names of inputs and outputs in the model's order, or the error.
    fn names_in(text: &str, arguments: &[&str]) -> Result<String, String> {
        let mut draft = parse_config_draft("config.pbtxt", text).unwrap();
        draft.resolve_name_and_backend("m", &["model.pt".to_owned()]).unwrap();
        let spec = draft.into_validated_spec(&SupportedFeatures::default()).unwrap();
        let argument = |name: &&str| Argument {
            name: (*name).to_owned(),
            type_name: String::from("Tensor"),
            kind: ArgumentKind::Tensor,
        };
        let arguments: Vec<Argument> = arguments.iter().map(argument).collect();
        let found = interface(&spec, &arguments).map_err(|status| status.message().to_owned())?;
        let list = |tensors: Vec<TensorInfo>| -> String {
            let names: Vec<String> = tensors.into_iter().map(|tensor| tensor.name).collect();
            names.join(" ")
        };
        Ok(format!("{} -> {}", list(found.inputs), list(found.outputs)))
    }

    #[test]
    fn names_follow_tritons_three_rules() {
        for (inputs, outputs, expected) in [
            (["b", "a"], ["y", "z"], "a b -> y z"),
            (["x__1", "y__0"], ["o__1", "o__0"], "y__0 x__1 -> o__0 o__1"),
            (["x__1", "other"], ["o__1", "z"], "x__1 other -> o__1 z"),
            (["a", "other"], ["o__x", "z"], "a other -> o__x z"),
            (["a", "x__1"], ["o", "p"], "a x__1 -> o p"),
        ] {
            assert_eq!(names(&inputs, &outputs, &["a", "b"]).as_deref(), Ok(expected));
        }
        let skipped = names(&["a"], &["o__2"], &["a"]);
        assert_eq!(skipped.as_deref(), Ok("a -> OUTPUT__0 OUTPUT__1 o__2"));
    }

    #[test]
    fn batch_inputs_follow_the_inputs_of_requests() {
        let config = |input: &str, target: &str| {
            format!(
                "max_batch_size: 4
                 input {{ name: '{input}' data_type: TYPE_FP32 dims: 1 allow_ragged_batch: true }}
                 output {{ name: 'o' data_type: TYPE_FP32 dims: 1 }}
                 sequence_batching {{ control_input {{ name: 'start__1'
                   control {{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }} }} }}
                 batch_input {{ kind: BATCH_ELEMENT_COUNT target_name: '{target}'
                   data_type: TYPE_FP32 source_input: '{input}' }}"
            )
        };
        let arguments = ["a", "b", "c"];
        let found = names_in(&config("x__0", "n__2"), &arguments);
        assert_eq!(found.as_deref(), Ok("x__0 start__1 n__2 -> o"));
        let found = names_in(&config("a", "c"), &arguments);
        assert_eq!(found.as_deref(), Ok("a start__1 c -> o"));
        // By its position, the batch input would be the second input, but the control already is.
        let error = names_in(&config("x", "n"), &arguments).unwrap_err();
        assert!(error.contains("input 'n' is none of the model's inputs"), "{error}");
        let later = config("x", "n").replace("start__1", "start__2");
        assert_eq!(names_in(&later, &arguments).as_deref(), Ok("x n start__2 -> o"));
        let error = names_in(&later.replace("start__2", "start"), &arguments).unwrap_err();
        assert_eq!(error, "input 'start' does not follow <name>__<index> naming convention.");
    }

    #[test]
    fn states_need_numbers_beside_tensors_with_numbers() {
        let config = |input: &str, output: &str, state_in: &str, state_out: &str| {
            format!(
                "max_batch_size: 4
                 input {{ name: '{input}' data_type: TYPE_FP32 dims: 1 }}
                 output {{ name: '{output}' data_type: TYPE_FP32 dims: 1 }}
                 sequence_batching {{ state {{ input_name: '{state_in}' output_name: '{state_out}'
                   data_type: TYPE_FP32 dims: 1 }} }}"
            )
        };
        let names = |input, output, state_in, state_out| {
            names_in(&config(input, output, state_in, state_out), &["a", "b"])
        };
        let found = names("x__0", "y__0", "s__1", "s__1");
        assert_eq!(found.as_deref(), Ok("x__0 s__1 -> y__0 s__1"));
        let others = "PyTorch model 'm' is using sequence batching with state but not all inputs and \
            outputs follow the <name>__<index> naming convention. ";
        assert_eq!(names("a", "y__0", "s__1", "s__1").unwrap_err(), others);
        assert_eq!(names("x__0", "y", "s__1", "s__1").unwrap_err(), others);
        for (state_in, state_out) in [("s", "t__1"), ("s__1", "s")] {
            let error = names("x__0", "y__0", state_in, state_out).unwrap_err();
            let expected = "PyTorch model 'm' is using sequence batching with state but state 's' \
                does not follow the <name>__<index> naming convention. ";
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn wrong_names_and_counts_are_refused() {
        let error = names(&["a"], &["o"], &["a", "b"]).unwrap_err();
        let expected = "unable to load model 'm', configuration expects 1 inputs, model provides 2";
        assert_eq!(error, expected);
        let error = names(&["x__0", "y__0"], &["o"], &["a", "b"]).unwrap_err();
        assert!(error.contains("input 'y__0' is none of the model's inputs"), "{error}");
        let error = names(&["a"], &["o__0", "p__0"], &["a"]).unwrap_err();
        assert!(error.contains("are the same output"), "{error}");
        assert!(names(&["a"], &["o__99999999999"], &["a"]).is_err());
    }
}
