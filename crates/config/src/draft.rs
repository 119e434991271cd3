//! Configurations that are not yet complete or checked.

use std::collections::{BTreeMap, BTreeSet};

use galatea_protocol::inference::model_config::SchedulingChoice;
use galatea_protocol::inference::model_repository_agents::Agent;
use galatea_protocol::inference::{
    ModelConfig, ModelDynamicBatching, ModelInput, ModelOutput, ModelSequenceBatching,
    ModelTensorReshape,
};
use galatea_tensor::DataType;

use crate::spec::{ModelSpec, VersionPolicy};
use crate::support::SupportedFeatures;
use crate::{convert, identity, normalize, tolerance, validate, without_effect};
use galatea_config_message::{ConfigErrors, Diagnostic, Diagnostics, TritonDetectionStage};
use galatea_config_message::{SourceMap, parse_json};

/// A tensor of a draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorDraft {
    /// The name; empty if not set.
    pub name: String,
    /// The element type.
    pub datatype: Option<DataType>,
    /// The shape, without the batch dimension.
    pub dims: Vec<i64>,
    /// The shape that the backend sees instead.
    pub reshape: Option<Vec<i64>>,
    /// True if a request may omit the tensor; never set for outputs.
    pub optional: bool,
}

/// A repository agent named in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositoryAgentConfig {
    /// The agent's name, which may be any string.
    pub name: String,
    /// The agent's parameters for this model.
    pub parameters: BTreeMap<String, String>,
}

/// The backend's role in completing a configuration.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ConfigAutoCompletion {
    /// The backend may complete the configuration.
    ByBackend,
    /// The configuration must be complete.
    Without,
}

/// A configuration that may still be completed and has not been checked.
#[derive(Clone, Debug, Default)]
pub struct ConfigDraft {
    message: ModelConfig,
    map: SourceMap,
    is_provided: bool,
}

impl ConfigDraft {
    /// Creates an empty draft, for a model without a configuration file.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// Creates a draft from a parsed message and the positions of its values.
    #[must_use]
    pub const fn new(message: ModelConfig, map: SourceMap) -> Self {
        Self { message, map, is_provided: true }
    }

    /// Parses JSON. Field names are those of the .proto file or their camel-case forms. Enumeration
    /// values are case-insensitive names or numbers.
    ///
    /// # Errors
    ///
    /// Returns every syntax error, unknown field and value of the wrong type.
    pub fn from_json(file_name: &str, text: &str) -> Result<Self, ConfigErrors> {
        let message = parse_json(file_name, text)?;
        Ok(Self { message, map: SourceMap::default(), is_provided: true })
    }

    /// Returns true if the configuration was provided by a user or completed by a backend library.
    #[must_use]
    pub const fn has_explicit_config(&self) -> bool {
        self.is_provided
    }

    pub(crate) const fn note_provided(&mut self) {
        self.is_provided = true;
    }

    /// The message in its current state, in the text format.
    #[must_use]
    pub fn to_pbtxt(&self) -> String {
        galatea_config_message::to_pbtxt(&self.message)
    }

    /// The message in its current state.
    #[must_use]
    pub const fn message(&self) -> &ModelConfig {
        &self.message
    }

    /// The message, for changes that have no setter.
    pub const fn message_mut(&mut self) -> &mut ModelConfig {
        &mut self.message
    }

    /// The model's name; empty until it is set or resolved.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.message.name
    }

    /// Replaces the model's name.
    pub fn rename(&mut self, name: &str) {
        name.clone_into(&mut self.message.name);
    }

    /// The backend; empty until it is set or resolved.
    #[must_use]
    pub fn backend(&self) -> &str {
        &self.message.backend
    }

    /// The platform; empty if it is not set.
    #[must_use]
    pub fn platform(&self) -> &str {
        &self.message.platform
    }

    /// The model file; empty until it is set or resolved.
    #[must_use]
    pub fn default_model_filename(&self) -> &str {
        &self.message.default_model_filename
    }

    /// The repository agents, in execution order.
    #[must_use]
    pub fn repository_agents(&self) -> Vec<RepositoryAgentConfig> {
        let agents = self.message.model_repository_agents.iter().flat_map(|all| &all.agents);
        let draft = |agent: &Agent| RepositoryAgentConfig {
            name: agent.name.clone(),
            parameters: agent.parameters.clone(),
        };
        agents.map(draft).collect()
    }

    /// The operator libraries that the configuration names.
    #[must_use]
    pub fn op_library_filenames(&self) -> &[String] {
        let operations = self.message.model_operations.as_ref();
        operations.map_or(&[], |operations| operations.op_library_filename.as_slice())
    }

    /// The configuration in its current state, as JSON. As in Triton, an empty configuration has no
    /// fields.
    #[must_use]
    pub fn to_json(&self) -> String {
        if self.message == ModelConfig::default() {
            return String::from("{}");
        }
        galatea_config_message::model_config_to_json(&self.message)
    }

    /// The value of a parameter.
    #[must_use]
    pub fn parameter(&self, key: &str) -> Option<&str> {
        self.message.parameters.get(key).map(|parameter| parameter.string_value.as_str())
    }

    /// The versions to serve.
    #[must_use]
    pub fn version_policy(&self) -> VersionPolicy {
        convert::version_policy(&self.message)
    }

    /// The maximum batch size; 0 without batching or if not set. It may be negative, because it has
    /// not been checked yet.
    #[must_use]
    pub const fn max_batch_size(&self) -> i32 {
        self.message.max_batch_size
    }

    /// Sets the maximum batch size.
    pub const fn set_max_batch_size(&mut self, max_batch_size: i32) {
        self.message.max_batch_size = max_batch_size;
    }

    /// The current inputs.
    #[must_use]
    pub fn inputs(&self) -> Vec<TensorDraft> {
        let draft = |input: &ModelInput| TensorDraft {
            name: input.name.clone(),
            datatype: DataType::from_config_number(input.data_type),
            dims: input.dims.clone(),
            reshape: input.reshape.as_ref().map(|reshape| reshape.shape.clone()),
            optional: input.optional,
        };
        self.message.input.iter().map(draft).collect()
    }

    /// The current outputs.
    #[must_use]
    pub fn outputs(&self) -> Vec<TensorDraft> {
        let draft = |output: &ModelOutput| TensorDraft {
            name: output.name.clone(),
            datatype: DataType::from_config_number(output.data_type),
            dims: output.dims.clone(),
            reshape: output.reshape.as_ref().map(|reshape| reshape.shape.clone()),
            optional: false,
        };
        self.message.output.iter().map(draft).collect()
    }

    /// The names of model inputs that never appear in requests and must not be added as inputs: the
    /// sequence batcher's controls and states, and batch inputs.
    #[must_use]
    pub fn hidden_input_names(&self) -> BTreeSet<String> {
        let targets = self.message.batch_input.iter().flat_map(|one| one.target_name.clone());
        let Some(batching) = self.sequence_batching() else { return targets.collect() };
        let controls = batching.control_input.iter().map(|control| control.name.clone());
        let states = batching.state.iter().map(|state| state.input_name.clone());
        targets.chain(controls).chain(states).collect()
    }

    /// The names of model outputs that responses omit unless the configuration also lists them: the
    /// sequence batcher's states.
    #[must_use]
    pub fn hidden_output_names(&self) -> BTreeSet<String> {
        let Some(batching) = self.sequence_batching() else { return BTreeSet::new() };
        batching.state.iter().map(|state| state.output_name.clone()).collect()
    }

    /// The composing models of an ensemble and their versions; `None` selects the newest version.
    /// Empty for any other model.
    #[must_use]
    pub fn composing_models(&self) -> Vec<(String, Option<i64>)> {
        let Some(SchedulingChoice::EnsembleScheduling(ensemble)) = &self.message.scheduling_choice
        else {
            return Vec::new();
        };
        let version = |version: i64| (version >= 0).then_some(version);
        let steps = ensemble.step.iter();
        steps.map(|step| (step.model_name.clone(), version(step.model_version))).collect()
    }

    /// Returns true if only the instances and the served versions differ from `other`, so a loaded
    /// model need not be reloaded. Omitted settings count as their defaults.
    #[must_use]
    pub fn differs_in_instances_only(&self, other: &Self, support: &SupportedFeatures) -> bool {
        without_instances(&self.message, support) == without_instances(&other.message, support)
    }

    /// Compares in the same way with the configuration of a loaded model, which its backend may
    /// have completed.
    #[must_use]
    pub fn matches_loaded_except_instances(
        &self,
        loaded: &ModelSpec,
        support: &SupportedFeatures,
    ) -> bool {
        without_instances(&self.message, support) == without_instances(&loaded.message, support)
    }

    /// Returns the configuration of a loaded model, with the instances of this draft.
    #[must_use]
    pub fn apply_instances_to(&self, loaded: &ModelSpec) -> Self {
        let instance_group = self.message.instance_group.clone();
        let message = ModelConfig { instance_group, ..loaded.message.clone() };
        Self { message, map: SourceMap::default(), is_provided: self.is_provided }
    }

    const fn sequence_batching(&self) -> Option<&ModelSequenceBatching> {
        match &self.message.scheduling_choice {
            Some(SchedulingChoice::SequenceBatching(batching)) => Some(batching),
            Some(
                SchedulingChoice::DynamicBatching(_) | SchedulingChoice::EnsembleScheduling(_),
            )
            | None => None,
        }
    }

    /// Adds an input whose shape, without the batch dimension, is `dims`.
    ///
    /// Clients see a shape without dimensions as one element. With batching, the tensor is reshaped
    /// for the backend, so the batch size must be set first.
    pub fn add_input(&mut self, name: &str, datatype: DataType, dims: &[i64]) {
        let (dims, reshape) = self.client_shape(dims);
        self.message.input.push(ModelInput {
            name: name.to_owned(),
            data_type: datatype.config_number(),
            dims,
            reshape,
            ..ModelInput::default()
        });
    }

    /// Adds an output in the same way as [`ConfigDraft::add_input`].
    pub fn add_output(&mut self, name: &str, datatype: DataType, dims: &[i64]) {
        let (dims, reshape) = self.client_shape(dims);
        self.message.output.push(ModelOutput {
            name: name.to_owned(),
            data_type: datatype.config_number(),
            dims,
            reshape,
            ..ModelOutput::default()
        });
    }

    /// Sets the datatype and the shape of a listed input where they are missing. The shape has
    /// the same form as in [`ConfigDraft::add_input`].
    pub fn fill_in_input(&mut self, name: &str, datatype: DataType, dims: &[i64]) {
        let (dims, reshape) = self.client_shape(dims);
        let mut inputs = self.message.input.iter_mut();
        let Some(input) = inputs.find(|input| input.name == name) else { return };
        if DataType::from_config_number(input.data_type).is_none() {
            input.data_type = datatype.config_number();
        }
        if input.dims.is_empty() {
            input.dims = dims;
            input.reshape = reshape.or_else(|| input.reshape.take());
        }
    }

    /// Completes a listed output in the same way as [`ConfigDraft::fill_in_input`].
    pub fn fill_in_output(&mut self, name: &str, datatype: DataType, dims: &[i64]) {
        let (dims, reshape) = self.client_shape(dims);
        let mut outputs = self.message.output.iter_mut();
        let Some(output) = outputs.find(|output| output.name == name) else { return };
        if DataType::from_config_number(output.data_type).is_none() {
            output.data_type = datatype.config_number();
        }
        if output.dims.is_empty() {
            output.dims = dims;
            output.reshape = reshape.or_else(|| output.reshape.take());
        }
    }

    fn client_shape(&self, dims: &[i64]) -> (Vec<i64>, Option<ModelTensorReshape>) {
        if dims.is_empty() {
            let batches = self.message.max_batch_size > 0;
            return (vec![1], batches.then(ModelTensorReshape::default));
        }
        (dims.to_vec(), None)
    }

    /// Returns true if the configuration selects a scheduler.
    #[must_use]
    pub const fn scheduling_is_set(&self) -> bool {
        self.message.scheduling_choice.is_some()
    }

    /// Selects dynamic batching with its defaults, unless a scheduler is already selected.
    pub fn enable_dynamic_batching(&mut self) {
        if self.message.scheduling_choice.is_none() {
            let batching = ModelDynamicBatching::default();
            self.message.scheduling_choice = Some(SchedulingChoice::DynamicBatching(batching));
        }
    }

    /// Fills in the name, the backend, the platform and the model file from the model's directory.
    ///
    /// `version_files` contains the file names in one version directory; empty if there is none.
    ///
    /// # Errors
    ///
    /// Returns an error if the name differs from the directory's or the backend can't be
    /// determined.
    pub fn resolve_name_and_backend(
        &mut self,
        directory_name: &str,
        version_files: &[String],
    ) -> Result<(), ConfigErrors> {
        let diagnostics = identity::resolve(&mut self.message, directory_name, version_files);
        self.located(diagnostics)
    }

    /// Normalises and checks the configuration.
    ///
    /// # Errors
    ///
    /// Returns everything that is wrong or missing.
    pub fn into_validated_spec(
        mut self,
        support: &SupportedFeatures,
    ) -> Result<ModelSpec, ConfigErrors> {
        normalize::normalize(&mut self.message, support);
        let mut diagnostics = Diagnostics::default();
        validate::check(&self.message, support, &mut diagnostics);
        let (tolerated, mut diagnostics) = diagnostics.split_tolerated();
        let mut usable = self.message.clone();
        tolerance::leave_out(&mut usable, &tolerated);
        let spec = convert::model_spec(&usable, &mut diagnostics);
        let mut remarks = without_effect::remarks(&self.message, support);
        remarks.extend(self.tolerance_remarks(tolerated));
        let message = self.message.clone();
        self.located(diagnostics.into_vec())?;
        // `convert` returns a specification or adds a diagnostic.
        let filenames_on_gpus = support.filenames_on_gpus(&message);
        let spec = spec.map(|spec| ModelSpec { filenames_on_gpus, remarks, message, ..spec });
        spec.ok_or_else(|| Diagnostic::about("", "the configuration can not be converted").into())
    }

    /// Runs the checks that Triton makes when it reads the repository, before a backend completes
    /// the configuration. `completion` specifies whether a backend will do so.
    ///
    /// # Errors
    ///
    /// Returns the mistakes in the configuration.
    pub fn check_at_poll(
        &self,
        support: &SupportedFeatures,
        completion: ConfigAutoCompletion,
    ) -> Result<(), ConfigErrors> {
        let mut message = self.message.clone();
        normalize::normalize(&mut message, support);
        let mut diagnostics = Diagnostics::default();
        validate::check(&message, support, &mut diagnostics);
        let mut diagnostics = diagnostics.into_vec();
        let is_tensor = |path: &str| {
            ["input[", "output[", "batch_input[", "batch_output["]
                .iter()
                .any(|field| path.starts_with(field))
        };
        diagnostics.retain(|one| match (one.stage, completion) {
            (TritonDetectionStage::Poll, _) => true,
            (TritonDetectionStage::Load, ConfigAutoCompletion::Without) => is_tensor(&one.path),
            (TritonDetectionStage::Load, ConfigAutoCompletion::ByBackend)
            | (TritonDetectionStage::Never, _) => false,
        });
        self.located(diagnostics)
    }

    /// Remarks about tolerated mistakes, with their positions in the file.
    fn tolerance_remarks(&self, tolerated: Vec<Diagnostic>) -> impl Iterator<Item = String> {
        tolerated.into_iter().map(|mut diagnostic| {
            self.map.locate_diagnostic(&mut diagnostic);
            let what = if tolerance::is_left_out(&diagnostic) { "left out: " } else { "" };
            format!("model '{}': {what}{diagnostic}", self.message.name)
        })
    }

    /// Adds file positions to errors that were found after [`ConfigDraft::into_validated_spec`].
    #[must_use]
    pub fn add_error_positions(&self, mut errors: ConfigErrors) -> ConfigErrors {
        errors.diagnostics.iter_mut().for_each(|diagnostic| self.map.locate_diagnostic(diagnostic));
        errors
    }

    fn located(&self, mut diagnostics: Vec<Diagnostic>) -> Result<(), ConfigErrors> {
        for diagnostic in &mut diagnostics {
            self.map.locate_diagnostic(diagnostic);
        }
        ConfigErrors { diagnostics }.into_result()
    }
}

/// A configuration with its defaults, but without the settings that may change while its model is
/// serving.
fn without_instances(message: &ModelConfig, support: &SupportedFeatures) -> ModelConfig {
    let mut message =
        ModelConfig { instance_group: Vec::new(), version_policy: None, ..message.clone() };
    normalize::normalize(&mut message, support);
    ModelConfig { instance_group: Vec::new(), version_policy: None, ..message }
}
