//! Validation of requests against their model's configuration, and normalization.
//!
//! Code after admission relies on the following: the inputs are the configuration's inputs, in the
//! same order, with valid types and shapes, and each contains exactly the number of bytes that its
//! shape requires.

mod malformed;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use galatea_backend::AcceptedInputMemory;
use galatea_config::{ControlKind, InputSpec, ModelSpec, SchedulingChoice};
use galatea_infer::{
    CorrelationId, DeviceOutputs, InferenceRequest, InputTensor, MalformedInput, Status,
};
use galatea_tensor::elements::{BytesElements, BytesFramingError};
use galatea_tensor::{Buffer, DataType, ForeignMemoryError, Shape};

use crate::batch::ShapeClass;
use crate::deadlines::ModelDeadlines;
use crate::padding::{PaddedLength, PaddingPlan};
use crate::reshape::fill_variable_dims;

/// Checks the requests to one model version.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) deadlines: ModelDeadlines,
    model_name: String,
    max_batch_size: u32,
    inputs: Vec<InputRule>,
    output_names: Vec<String>,
    required_inputs: usize,
    /// True if two requests to this model can have different shape classes.
    has_shape_classes: bool,
    sequences: Option<SequenceRule>,
    /// True if all instances are passive, so a request would wait forever.
    is_passive: bool,
    /// The memory in which the backend accepts inputs.
    memory: AcceptedInputMemory,
    /// True if the backend is the only reader of tensors.
    backend_alone: bool,
    /// The padding; `None` if requests are not padded.
    padding: Option<PaddingPlan>,
}

/// The form in which a sequence batcher expects requests.
#[derive(Debug)]
struct SequenceRule {
    /// The control input for the correlation ID, and its type.
    correlation_id: Option<(String, DataType)>,
    /// The correlation ID to assign to the next request that has none, for iterative sequences.
    next_id: Option<AtomicU64>,
}

impl SequenceRule {
    fn new(spec: &ModelSpec) -> Option<Self> {
        let SchedulingChoice::Sequence(batching) = &spec.scheduling else { return None };
        let control =
            spec.sequence_controls().iter().find(|one| one.kind == ControlKind::CorrelationId);
        Some(Self {
            correlation_id: control.map(|control| (control.name.clone(), control.datatype)),
            next_id: batching.iterative.then(|| AtomicU64::new(1)),
        })
    }

    /// Checks that the correlation ID has the type of the control that passes the ID to the model.
    fn check_correlation_id(&self, id: &CorrelationId, model_name: &str) -> Result<(), String> {
        let Some((control, expected)) = &self.correlation_id else { return Ok(()) };
        let got = match id {
            CorrelationId::Number(_) if *expected == DataType::Bytes => DataType::Uint64,
            CorrelationId::Text(_) if *expected != DataType::Bytes => DataType::Bytes,
            CorrelationId::None | CorrelationId::Number(_) | CorrelationId::Text(_) => {
                return Ok(());
            }
        };
        Err(format!(
            "sequence batching control '{control}' data-type is '{got}', but model '{model_name}' \
             expects '{expected}'"
        ))
    }

    fn assign_correlation_id(&self, id: &mut CorrelationId) {
        if let (Some(next), CorrelationId::None) = (&self.next_id, &*id) {
            *id = CorrelationId::Number(next.fetch_add(1, Ordering::Relaxed));
        }
    }
}

/// The configuration's rules for one input.
#[derive(Debug)]
struct InputRule {
    spec: InputSpec,
    /// True if the input's shape, without the batch dimension, is part of the shape class.
    is_variable: bool,
    /// True if the input is padded, in which case its length is not part of the shape class.
    is_padded: bool,
}

/// The reason why a request is refused.
#[derive(Debug)]
enum AdmissionRefusal {
    /// An unknown input or output, or a tensor without a size. The error message does not include
    /// the request identifier.
    WithoutId(String),
    /// A tensor in a client's shared memory that can't be copied.
    NoCopy(ForeignMemoryError),
    /// A refusal for any other reason.
    Other(String),
}

impl From<String> for AdmissionRefusal {
    fn from(message: String) -> Self {
        Self::Other(message)
    }
}

impl AdmissionRefusal {
    fn status(self, request: &InferenceRequest) -> Status {
        match self {
            Self::WithoutId(message) => Status::invalid_argument(message),
            Self::NoCopy(error) => Status::from(error).prefixed(request.log_prefix()),
            Self::Other(message) => {
                Status::invalid_argument(message).prefixed(request.log_prefix())
            }
        }
    }
}

/// A request that has passed the checks.
#[derive(Debug)]
pub(crate) struct NormalizedRequest {
    pub(crate) request: Box<InferenceRequest>,
    /// The number of batch elements; 1 for a model without batching.
    pub(crate) batch_size: u32,
    /// `None` if all requests to the model may share a batch.
    pub(crate) shape_class: Option<ShapeClass>,
    /// The length used for padding batches; 0 for a model without padding.
    pub(crate) length: u32,
}

impl Admission {
    /// Creates the checks for a model with this configuration.
    #[must_use]
    pub(crate) fn new(spec: &ModelSpec) -> Self {
        let inputs: Vec<InputRule> = spec
            .inputs
            .iter()
            .map(|input| InputRule {
                spec: input.clone(),
                is_variable: input.dims.contains(&-1) && !input.allow_ragged_batch,
                is_padded: false,
            })
            .collect();
        let admission = Self {
            deadlines: ModelDeadlines::new(spec),
            model_name: spec.name.clone(),
            max_batch_size: spec.max_batch_size,
            output_names: spec.outputs.iter().map(|output| output.name.clone()).collect(),
            required_inputs: inputs.iter().filter(|rule| !rule.spec.optional).count(),
            // Without a batcher, requests never share a batch.
            has_shape_classes: spec.scheduling != SchedulingChoice::Default
                && spec.max_batch_size > 1
                && inputs.iter().any(|rule| {
                    rule.is_variable || rule.spec.optional || rule.spec.is_shape_tensor
                }),
            inputs,
            sequences: SequenceRule::new(spec),
            is_passive: !spec.instance_groups.is_empty()
                && spec.instance_groups.iter().all(|group| group.passive),
            memory: AcceptedInputMemory::Host,
            backend_alone: true,
            padding: None,
        };
        admission.padded_by(PaddingPlan::new(spec))
    }

    /// Adapts the checks to a model with padded requests: requests share batches regardless of
    /// their lengths, and may omit the mask if the server can create it.
    fn padded_by(mut self, padding: Option<PaddingPlan>) -> Self {
        let Some(plan) = padding else { return self };
        for rule in &mut self.inputs {
            rule.is_padded = plan.pads(&rule.spec.name);
            rule.spec.optional |= plan.makes(&rule.spec.name);
        }
        self.required_inputs = self.inputs.iter().filter(|rule| !rule.spec.optional).count();
        self.has_shape_classes = self.max_batch_size > 1
            && self.inputs.iter().any(|rule| {
                let differs = rule.is_variable && !rule.is_padded;
                let is_made = plan.makes(&rule.spec.name);
                differs || (rule.spec.optional && !is_made) || rule.spec.is_shape_tensor
            });
        self.padding = Some(plan);
        self
    }

    /// Adapts the checks to a backend that takes inputs in this memory, provided that nothing else
    /// reads the inputs: neither the cache, nor a comparison with other requests (`is_compared`), nor
    /// padding, nor a sequence whose states may include an input.
    pub(crate) fn with_memory(self, memory: AcceptedInputMemory, is_compared: bool) -> Self {
        let backend_alone = !is_compared && self.padding.is_none();
        let memory = match memory {
            AcceptedInputMemory::Device if backend_alone => memory,
            AcceptedInputMemory::Unread if backend_alone && self.sequences.is_none() => memory,
            _ => AcceptedInputMemory::Host,
        };
        Self { memory, backend_alone, ..self }
    }

    /// Checks and normalizes a request.
    ///
    /// # Errors
    ///
    /// `InvalidArgument`. The message begins with the request identifier, except for an unknown
    /// name and for a batch sent to a sequence batcher. If the request contains several mistakes,
    /// the message reports the same one as Triton.
    pub(crate) fn admit(
        &self,
        request: impl Into<Box<InferenceRequest>>,
    ) -> Result<NormalizedRequest, Status> {
        let mut request = request.into();
        let batch_size = self.check(&mut request).map_err(|refusal| refusal.status(&request))?;
        if !self.backend_alone {
            request.device_outputs = DeviceOutputs::None;
        }
        if let Some(rule) = &self.sequences {
            // As in Triton, the message has no identifier.
            if batch_size > 1 {
                return Err(Status::invalid_argument(format!(
                    "inference request to model '{}' must specify batch-size 1 due to requirements \
                     of sequence batcher",
                    self.model_name
                )));
            }
            rule.assign_correlation_id(&mut request.correlation_id);
        }
        if self.is_passive {
            return Err(Status::unavailable(format!(
                "every instance of model '{}' is passive, so that none executes requests",
                self.model_name
            )));
        }
        let length = match &self.padding {
            Some(plan) => Some(self.prepare_padding(plan, &mut request)?),
            None => None,
        };
        let is_mixed = matches!(length, Some(PaddedLength::Mixed(_)));
        let shape_class =
            (self.has_shape_classes || is_mixed).then(|| self.shape_class(&request, is_mixed));
        let length = length.map_or(0, PaddedLength::longest);
        Ok(NormalizedRequest { request, batch_size, shape_class, length })
    }

    /// Creates the mask if it is missing, and determines the length.
    fn prepare_padding(
        &self,
        plan: &PaddingPlan,
        request: &mut InferenceRequest,
    ) -> Result<PaddedLength, Status> {
        plan.check(&request.inputs)
            .map_err(|message| AdmissionRefusal::Other(message).status(request))?;
        if plan.make_mask(&mut request.inputs) {
            self.sort(&mut request.inputs);
        }
        Ok(plan.length(request))
    }

    /// Sorts inputs into the order of the configuration.
    fn sort(&self, inputs: &mut [InputTensor]) {
        inputs.sort_by_key(|input| self.inputs.iter().position(|r| r.spec.name == input.name));
    }

    /// Checks the request, and sorts its inputs into the order of the configuration.
    ///
    /// Triton keeps the inputs in a hash table, which it reads from last to first unless names
    /// collide. The checks here use the same order, so among several mistakes they report the same
    /// one.
    fn check(&self, request: &mut InferenceRequest) -> Result<u32, AdmissionRefusal> {
        self.check_outputs(&request.outputs)?;
        let inputs = &mut request.inputs;
        let malformed = request.malformed_inputs.as_slice();
        let in_order = inputs.len() == self.inputs.len()
            && inputs.iter().zip(&self.inputs).all(|(input, rule)| input.name == rule.spec.name);
        if !in_order {
            self.check_input_count(inputs)?;
            for input in inputs.iter().rev() {
                self.rule(&input.name)?;
            }
        }
        let first = self.batch_size(inputs, malformed)?;
        // The size is negative only for malformed inputs.
        let batch_size = u32::try_from(first).unwrap_or(0);
        for input in inputs.iter_mut().rev() {
            let rule = self.rule(&input.name)?;
            if let Some(claimed) = malformed.iter().find(|one| one.name == input.name) {
                return Err(self.malformed(&rule.spec, input, claimed, first));
            }
            self.check_input(rule, input, batch_size)?;
        }
        if !in_order {
            self.check_presence(inputs)?;
            self.sort(inputs);
        }
        if let Some(rule) = &self.sequences {
            rule.check_correlation_id(&request.correlation_id, &self.model_name)?;
        }
        if batch_size == 0 {
            // Triton executes such requests, with inputs that lack the batch dimension.
            let model = &self.model_name;
            let text = format!("inference request batch-size must be >= 1 for '{model}'");
            return Err(text.into());
        }
        Ok(batch_size)
    }

    fn check_outputs(&self, wanted: &[String]) -> Result<(), AdmissionRefusal> {
        // Triton keeps the names in a sorted set.
        let unknown = wanted.iter().filter(|name| !self.output_names.contains(name)).min();
        if let Some(name) = unknown {
            let model = &self.model_name;
            let text = format!("unexpected inference output '{name}' for model '{model}'");
            return Err(AdmissionRefusal::WithoutId(text));
        }
        for (index, name) in wanted.iter().enumerate() {
            if wanted.iter().take(index).any(|earlier| earlier == name) {
                return Err(format!("output '{name}' already exists in request").into());
            }
        }
        Ok(())
    }

    /// Refuses duplicates and too many or too few inputs.
    fn check_input_count(&self, inputs: &[InputTensor]) -> Result<(), String> {
        // A request may have thousands of inputs with long names.
        let mut names = BTreeSet::new();
        if let Some(second) = inputs.iter().find(|input| !names.insert(input.name.as_str())) {
            return Err(format!("input '{}' already exists in request", second.name));
        }
        if inputs.len() > self.inputs.len() || inputs.len() < self.required_inputs {
            return Err(self.wrong_input_count(inputs));
        }
        Ok(())
    }

    /// Refuses a request that lacks a required input.
    fn check_presence(&self, inputs: &[InputTensor]) -> Result<(), String> {
        let mut required = self.inputs.iter().filter(|rule| !rule.spec.optional);
        if required.all(|rule| inputs.iter().any(|input| input.name == rule.spec.name)) {
            return Ok(());
        }
        Err(self.wrong_input_count(inputs))
    }

    fn wrong_input_count(&self, inputs: &[InputTensor]) -> String {
        let all = self.inputs.len();
        let expected = if self.required_inputs == all {
            format!("expected {all} inputs")
        } else {
            format!("expected number of inputs between {} and {all}", self.required_inputs)
        };
        let specs = self.inputs.iter().map(|rule| &rule.spec).filter(|spec| !spec.optional);
        let names = specs.map(|spec| &spec.name);
        let missing: Vec<&String> =
            names.filter(|name| !inputs.iter().any(|input| input.name == **name)).collect();
        format!(
            "{expected} but got {} inputs for model '{}'. Got input(s) {}, but missing required \
             input(s) {}. Please provide all required input(s).",
            inputs.len(),
            self.model_name,
            quoted(inputs.iter().rev().map(|input| &input.name)),
            if missing.is_empty() { String::from("]") } else { quoted(missing.into_iter()) },
        )
    }

    fn rule(&self, name: &str) -> Result<&InputRule, AdmissionRefusal> {
        self.inputs.iter().find(|rule| rule.spec.name == name).ok_or_else(|| {
            let model = &self.model_name;
            AdmissionRefusal::WithoutId(format!(
                "unexpected inference input '{name}' for model '{model}'"
            ))
        })
    }

    /// Returns the first dimension of the inputs, for a model with batching.
    ///
    /// As in Triton, a size of 0 is replaced by the next input's size.
    fn batch_size(
        &self,
        inputs: &[InputTensor],
        malformed: &[MalformedInput],
    ) -> Result<i64, String> {
        if self.max_batch_size == 0 || inputs.is_empty() {
            return Ok(1);
        }
        let mut batch_size: i64 = 0;
        for input in inputs.iter().rev() {
            if self.is_shape_tensor(&input.name) {
                continue;
            }
            let claimed = malformed.iter().find(|one| one.name == input.name);
            let dims = claimed.map_or(input.shape.dims(), |one| one.dims.as_slice());
            let Some(&first) = dims.first() else {
                return Err(format!(
                    "input '{}' has no shape but model requires batch dimension for '{}'",
                    input.name, self.model_name
                ));
            };
            if batch_size == 0 {
                batch_size = first;
            } else if batch_size != first {
                return Err(format!(
                    "input '{}' batch size does not match other inputs for '{}'",
                    input.name, self.model_name
                ));
            }
        }
        if batch_size > i64::from(self.max_batch_size) {
            return Err(format!(
                "inference request batch-size must be <= {} for '{}'",
                self.max_batch_size, self.model_name
            ));
        }
        Ok(batch_size)
    }

    /// Returns true if an input has no batch dimension because its values describe the whole batch.
    fn is_shape_tensor(&self, name: &str) -> bool {
        self.inputs.iter().any(|rule| rule.spec.is_shape_tensor && rule.spec.name == name)
    }

    /// Checks an input, and converts its shape to the shape that the backend sees.
    fn check_input(
        &self,
        rule: &InputRule,
        input: &mut InputTensor,
        batch_size: u32,
    ) -> Result<(), AdmissionRefusal> {
        let spec = &rule.spec;
        if input.datatype != spec.datatype {
            return Err(self.wrong_datatype(spec, input.datatype.protocol_name()).into());
        }
        let (batch, dims) = self.split_batch(spec, input.shape.dims());
        let fits = dims.len() == spec.dims.len()
            && dims.iter().zip(&spec.dims).all(|(&got, &want)| want == -1 || got == want);
        if !fits {
            return Err(self.wrong_shape(spec, &input.shape.to_string()).into());
        }
        if spec.reshape.is_some() || batch.first().is_some_and(|&size| size == 0) {
            input.shape = backend_shape(spec, (!batch.is_empty()).then_some(batch_size), dims)?;
        }
        self.own_content(spec, input)?;
        if spec.is_non_linear_format_io {
            // Only the backend knows the required number of bytes.
            return Ok(());
        }
        Ok(self.check_bytes(input)?)
    }

    /// Replaces an input in a client's shared memory with a copy, unless nothing reads the input.
    /// As a result, all later checks see the same content.
    fn own_content(
        &self,
        spec: &InputSpec,
        input: &mut InputTensor,
    ) -> Result<(), AdmissionRefusal> {
        let Some(region) = input.data.foreign() else { return Ok(()) };
        let expected = input.shape.byte_size(input.datatype);
        if input.datatype != DataType::Bytes && expected != u64::try_from(region.byte_size).ok() {
            // The input is refused without being read.
            return Ok(());
        }
        let is_read =
            spec.is_shape_tensor || matches!(input.datatype, DataType::Bytes | DataType::Bool);
        let stays = match self.memory {
            AcceptedInputMemory::Host => false,
            AcceptedInputMemory::Device => region.memory.device_address().is_some(),
            AcceptedInputMemory::Unread => true,
        };
        if stays && !is_read {
            return Ok(());
        }
        input.data.make_owned().map_err(AdmissionRefusal::NoCopy)
    }

    fn split_batch<'a>(&self, spec: &InputSpec, dims: &'a [i64]) -> (&'a [i64], &'a [i64]) {
        let batch_dims = usize::from(self.max_batch_size > 0 && !spec.is_shape_tensor);
        dims.split_at(batch_dims.min(dims.len()))
    }

    fn wrong_datatype(&self, spec: &InputSpec, got: &str) -> String {
        format!(
            "inference input '{}' data-type is '{got}', but model '{}' expects '{}'",
            spec.name, self.model_name, spec.datatype
        )
    }

    fn wrong_shape(&self, spec: &InputSpec, got: &str) -> String {
        let mut expected = String::from("[");
        if self.max_batch_size > 0 {
            expected.push_str("-1,");
        }
        for dim in &spec.dims {
            expected.push_str(&dim.to_string());
            expected.push(',');
        }
        expected.pop();
        expected.push(']');
        let note = if self.max_batch_size > 0 {
            "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension \
             to be prepended to each input shape. If you want to specify the full shape including \
             the batch dim in your input dims config, try setting max_batch_size to zero. See the \
             model configuration docs for more info on max_batch_size."
        } else {
            ""
        };
        format!(
            "unexpected shape for input '{}' for model '{}'. Expected {expected}, got {got}. {note}",
            spec.name, self.model_name
        )
    }

    /// Checks the number of bytes. Data for host policies has the same shape, so the same checks
    /// apply.
    fn check_bytes(&self, input: &InputTensor) -> Result<(), String> {
        self.check_data(input, &input.data)?;
        for (policy, data) in input.data.host_policy_buffers() {
            self.check_data(input, data)
                .map_err(|error| format!("data for host policy '{policy}': {error}"))?;
        }
        Ok(())
    }

    fn check_data(&self, input: &InputTensor, data: &Buffer) -> Result<(), String> {
        let Some(expected) = input.shape.byte_size(input.datatype) else {
            if input.datatype == DataType::Bytes {
                return self.check_elements(input, data);
            }
            return Err(format!(
                "input '{}' with shape {} is larger than any tensor can be",
                input.name, input.shape
            ));
        };
        if u64::try_from(data.len()) != Ok(expected) {
            return Err(format!(
                "input byte size mismatch for input '{}' for model '{}'. Expected {expected}, got {}",
                input.name,
                self.model_name,
                data.len()
            ));
        }
        self.check_booleans(input, data)
    }

    /// Checks booleans. Backends read a boolean as C++ does, where values other than 0 and 1 are
    /// undefined behaviour. For example, a backend that counts true elements may sum the bytes, and
    /// return memory that was never written.
    fn check_booleans(&self, input: &InputTensor, data: &Buffer) -> Result<(), String> {
        if input.datatype != DataType::Bool {
            return Ok(());
        }
        let bytes = data.host_bytes().map_or(&[][..], |bytes| &bytes[..]);
        // Without a branch for each byte, the compiler can vectorize the loop.
        if bytes.iter().fold(0, |all, byte| all | byte) <= 1 {
            return Ok(());
        }
        Err(format!(
            "unexpected boolean for inference input '{}' for model '{}': each of its bytes must be \
             0 or 1",
            input.name, self.model_name
        ))
    }

    fn check_elements(&self, input: &InputTensor, data: &Buffer) -> Result<(), String> {
        let Some(data) = data.host_bytes() else {
            return Err(format!("input '{}' of type BYTES must be in CPU memory", input.name));
        };
        let expected = input.shape.element_count();
        let place = format!("inference input '{}' for model '{}'", input.name, self.model_name);
        let mut count: u64 = 0;
        for element in BytesElements::new(data) {
            element.map_err(|error| framing_message(&error, &place))?;
            count = count.saturating_add(1);
            if count > expected {
                return Err(format!(
                    "unexpected number of string elements {count} for {place}, expecting {expected}"
                ));
            }
        }
        if count != expected {
            return Err(format!("expected {expected} string elements for {place}, got {count}"));
        }
        Ok(())
    }

    /// Computes the shape class: the presence of inputs, and the relevant shapes and contents.
    /// Lengths are relevant unless padding would make them equal.
    fn shape_class(&self, request: &InferenceRequest, is_mixed: bool) -> ShapeClass {
        let mut class = ShapeClass::default();
        for rule in &self.inputs {
            let Some(input) = request.input(&rule.spec.name) else {
                class.push_absent();
                continue;
            };
            let (_, dims) = self.split_batch(&rule.spec, input.shape.dims());
            if rule.spec.is_shape_tensor {
                class.push_dims(dims);
                match input.data.host_bytes() {
                    Some(bytes) => class.push_contents(bytes),
                    // Device memory isn't read here: a region equals only itself.
                    None => class.push_device(input.data.device_region()),
                }
            } else if rule.is_variable && (is_mixed || !rule.is_padded) {
                class.push_dims(dims);
            } else {
                class.push_dims(&[]);
            }
        }
        class
    }
}

/// Returns the shape that the backend sees: the batch size followed by the reshaped dimensions. If
/// this input's first dimension is 0, the batch size comes from another input; if all are 0, the
/// shape has no batch dimension.
fn backend_shape(spec: &InputSpec, batch_size: Option<u32>, dims: &[i64]) -> Result<Shape, String> {
    let batch = batch_size.filter(|&size| size > 0).map(i64::from);
    let mut shape: Vec<i64> = batch.into_iter().collect();
    match &spec.reshape {
        Some(reshape) => shape.extend(fill_variable_dims(reshape, &spec.dims, dims)),
        None => shape.extend(dims),
    }
    Shape::new(&shape).map_err(|error| error.to_string())
}

fn framing_message(error: &BytesFramingError, place: &str) -> String {
    match error {
        BytesFramingError::TruncatedLength { available, .. } => format!(
            "incomplete string length indicator for {place}, expecting 4 bytes but only {available} \
             bytes available. Please make sure the string length indicator is in one buffer."
        ),
        BytesFramingError::TruncatedData { .. } | BytesFramingError::TooLong { .. } => {
            format!("{error} for {place}")
        }
    }
}

fn quoted<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<String> = names.map(|name| format!("'{name}'")).collect();
    format!("[{}]", names.join(","))
}

#[cfg(test)]
mod tests;
