//! The network: its configuration, its inputs and its output.

use galatea_backend::{Backend, ModelFiles};
use galatea_config::{ConfigDraft, ModelSpec, SupportedFeatures};
use galatea_infer::Status;
use galatea_tensor::DataType;
use galatea_text::{TextDescription, TextSettings, TextTask};

/// The names under which exporters store a network, in the order in which to look.
const FILES: [&str; 2] = ["model.onnx", "onnx/model.onnx"];
/// The names for networks that OpenVINO executes.
const OPENVINO_FILES: [&str; 3] =
    ["openvino_model.xml", "openvino/openvino_model.xml", "model.xml"];

/// The outputs that contain a vector for each token, in the order of preference.
const TOKEN_OUTPUTS: [&str; 2] = ["last_hidden_state", "token_embeddings"];
/// The output that contains an embedding for each text.
const EMBEDDING_OUTPUT: &str = "sentence_embedding";
/// The output of a classifier.
const LOGITS: &str = "logits";

/// The inputs and the output of a network that the backend uses.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    /// The inputs, in the order of the network's configuration.
    pub(crate) inputs: Vec<NetworkInput>,
    /// The name of the output.
    pub(crate) output: String,
    /// The number of values in the last dimension of the output.
    pub(crate) width: usize,
    /// True if the output contains a vector for each token.
    pub(crate) is_per_token: bool,
}

/// An input of the network.
#[derive(Clone, Debug)]
pub(crate) struct NetworkInput {
    pub(crate) name: String,
    pub(crate) role: InputRole,
    pub(crate) datatype: DataType,
}

/// The meaning of an input.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum InputRole {
    /// The tokens.
    Ids,
    /// 1 for a token, 0 for padding.
    Mask,
    /// The number of the text that a token belongs to.
    TypeIds,
    /// The position of each token.
    Positions,
}

impl InputRole {
    fn from_name(name: &str) -> Option<Self> {
        match name {
            "input_ids" => Some(Self::Ids),
            "attention_mask" => Some(Self::Mask),
            "token_type_ids" => Some(Self::TypeIds),
            "position_ids" => Some(Self::Positions),
            _ => None,
        }
    }
}

/// Derives the network's configuration from that of the text model. `backend` completes the inputs
/// and outputs from the network's file.
pub(crate) fn network_spec(
    spec: &ModelSpec,
    description: &TextDescription,
    backend: &dyn Backend,
    runtime: &str,
    files: &dyn ModelFiles,
    support: &SupportedFeatures,
) -> Result<ModelSpec, Status> {
    let mut draft = ConfigDraft::empty();
    let file = network_file(spec, description, runtime, files)?;
    let (message, whole) = (draft.message_mut(), spec.message());
    message.name.clone_from(&whole.name);
    runtime.clone_into(&mut message.backend);
    file.clone_into(&mut message.default_model_filename);
    message.max_batch_size = whole.max_batch_size;
    message.instance_group.clone_from(&whole.instance_group);
    message.optimization.clone_from(&whole.optimization);
    message.model_operations.clone_from(&whole.model_operations);
    message.cc_model_filenames.clone_from(&whole.cc_model_filenames);
    let parameters = whole.parameters.iter().filter(|(name, _)| !TextSettings::is_setting(name));
    message.parameters = parameters.map(|(name, value)| (name.clone(), value.clone())).collect();
    let invalid = |errors: galatea_config::ConfigErrors| {
        Status::invalid_argument(format!("the network: {}", errors.first_message()))
    };
    draft.resolve_name_and_backend(&spec.name, std::slice::from_ref(&file)).map_err(invalid)?;
    backend.auto_complete_config(&mut draft, files)?;
    draft.into_validated_spec(support).map_err(invalid)
}

/// The network's file, relative to the version's directory.
fn network_file(
    spec: &ModelSpec,
    description: &TextDescription,
    runtime: &str,
    files: &dyn ModelFiles,
) -> Result<String, Status> {
    if !spec.default_model_filename.is_empty() {
        return Ok(spec.default_model_filename.clone());
    }
    let own: &[&str] = if runtime == "openvino" { &OPENVINO_FILES } else { &[] };
    let names = own.iter().chain(&FILES);
    for name in names.clone() {
        for folder in &description.network_folders {
            let path =
                if folder.is_empty() { (*name).to_owned() } else { format!("{folder}/{name}") };
            if files.resolve(&path).is_ok() {
                return Ok(path);
            }
        }
    }
    let names: Vec<String> = names.map(|name| format!("'{name}'")).collect();
    Err(Status::not_found(format!(
        "text model '{}' has no network: '{}' contains none of {}",
        spec.name,
        files.version_path().display(),
        names.join(", ")
    )))
}

impl Network {
    /// Finds the network's inputs and its output.
    pub(crate) fn new(spec: &ModelSpec, task: &TextTask) -> Result<Self, Status> {
        let mut inputs = Vec::new();
        for input in &spec.inputs {
            let refused = |problem: &str| {
                let (file, name) = (&spec.default_model_filename, &input.name);
                Status::invalid_argument(format!(
                    "'{file}': the network's input '{name}' {problem}"
                ))
            };
            let role = InputRole::from_name(&input.name).ok_or_else(|| {
                refused(
                    "is not one of 'input_ids', 'attention_mask', 'token_type_ids' and \
                     'position_ids'",
                )
            })?;
            if !matches!(input.datatype, DataType::Int64 | DataType::Int32) {
                return Err(refused("has neither 32-bit nor 64-bit integers"));
            }
            if input.dims.len() != 1 {
                return Err(refused("does not have the shape [batch, tokens]"));
            }
            let (name, datatype) = (input.name.clone(), input.datatype);
            inputs.push(NetworkInput { name, role, datatype });
        }
        if !inputs.iter().any(|input| input.role == InputRole::Ids) {
            let file = &spec.default_model_filename;
            let message = format!("'{file}': the network has no input 'input_ids'");
            return Err(Status::invalid_argument(message));
        }
        Self::with_output(spec, task, inputs)
    }

    fn with_output(
        spec: &ModelSpec,
        task: &TextTask,
        inputs: Vec<NetworkInput>,
    ) -> Result<Self, Status> {
        let file = &spec.default_model_filename;
        let is_per_token = matches!(
            task,
            TextTask::Embedding(task) if task.pooling.is_some()
        );
        let rank = if is_per_token { 2 } else { 1 };
        let preferred: &[&str] = match task {
            TextTask::Embedding(_) if is_per_token => &TOKEN_OUTPUTS,
            TextTask::Embedding(_) => &[EMBEDDING_OUTPUT],
            TextTask::Scores { .. } => &[LOGITS],
        };
        let candidates = || spec.outputs.iter().filter(|output| output.dims.len() == rank);
        let named =
            preferred.iter().find_map(|name| candidates().find(|output| output.name == *name));
        let only = || candidates().next().filter(|_| candidates().count() == 1);
        if let Some(output) = named.or_else(only) {
            if !matches!(output.datatype, DataType::Fp32 | DataType::Fp16) {
                return Err(Status::invalid_argument(format!(
                    "'{file}': the network's output '{}' has neither 32-bit nor 16-bit floats",
                    output.name
                )));
            }
            let width = output.dims.last().and_then(|dim| usize::try_from(*dim).ok());
            let width = width.filter(|width| *width > 0).ok_or_else(|| {
                Status::invalid_argument(format!(
                    "'{file}': the last dimension of the network's output '{}' is not fixed",
                    output.name
                ))
            })?;
            return Ok(Self { inputs, output: output.name.clone(), width, is_per_token });
        }
        // A network with pooling inside needs none here.
        let embeds = spec.outputs.iter().any(|output| output.name == EMBEDDING_OUTPUT);
        if is_per_token && embeds {
            let mut without = task.clone();
            if let TextTask::Embedding(task) = &mut without {
                task.pooling = None;
            }
            return Self::with_output(spec, &without, inputs);
        }
        let shape = if is_per_token { "[batch, tokens, n]" } else { "[batch, n]" };
        Err(Status::invalid_argument(format!(
            "'{file}': the network has no output of the shape {shape} with the name {}, and not \
             exactly one with any other name",
            preferred.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(" or ")
        )))
    }
}
