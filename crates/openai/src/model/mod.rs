//! A model's description: the inputs for a prompt and its parameters, and the outputs that contain
//! the text.
//!
//! A description is derived from the model's configuration. Parameters named `openai_…` specify the
//! names. By default, the names are those that Triton's frontend uses for the vLLM backend, or for
//! TensorRT-LLM and all other backends. Inputs that the model doesn't declare are not sent.

mod inputs;
mod names;

use std::sync::Arc;

use galatea_infer::{InputTensor, Parameter, ParameterValue};
use galatea_protocol::inference::ModelConfig;
use galatea_tensor::DataType;
use prost::Message;

use self::inputs::{InputElements, tensor};
pub(crate) use self::names::Names;
use crate::Failure;
use crate::json::{JsonValue, push_spaced};
use crate::request::{
    AdapterChoice, Capabilities, EmbeddingRequest, Generation, Guide, RerankRequest,
};

/// The inputs of a text model that scores pairs of texts.
const RERANK_QUERY: &str = "query";
const RERANK_TEXT: &str = "text";

/// The input for a schema, for models with one input per parameter.
const GUIDE: &str = "guided_decoding_guide";

/// The input for the identifier of an adapter's task.
const ADAPTER_ID: &str = "lora_task_id";

/// A naming convention for a model's inputs and outputs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RequestFormat {
    /// The convention of the vLLM backend: one input contains all sampling parameters as JSON.
    Vllm,
    /// The convention of TensorRT-LLM's ensembles: one input per sampling parameter.
    TensorRtLlm,
}

/// An input that the model declares.
#[derive(Clone, Debug)]
struct DeclaredInput {
    name: String,
    datatype: DataType,
    /// The dimensions, including the batch dimension if there is one.
    dims: Vec<i64>,
    /// True if a request may omit the input.
    optional: bool,
}

/// The facts about a model.
#[derive(Clone, Debug)]
pub struct ModelDescription {
    backend: String,
    /// The maximum batch size; `None` without batches.
    batch_max: Option<usize>,
    inputs: Vec<DeclaredInput>,
    names: Arc<Names>,
    /// The model's own chat template and tokens.
    tokenizer_config: Option<String>,
    /// The maximum number of tokens for a client that doesn't state one.
    tokens_default: Option<i64>,
    /// True if the model's backend is `text`, whose models take lists of texts.
    is_text_model: bool,
}

impl ModelDescription {
    /// Derives the description from a configuration in protocol buffer form. `format` overrides the
    /// convention of the model's backend.
    ///
    /// # Errors
    ///
    /// Code 500 if the configuration can't be parsed.
    pub fn new(config: &[u8], format: Option<RequestFormat>) -> Result<Self, Failure> {
        let config = ModelConfig::decode(config)
            .map_err(|error| Failure::server(format!("unreadable model configuration: {error}")))?;
        let has_batch = config.max_batch_size > 0;
        let batch_max = usize::try_from(config.max_batch_size).ok().filter(|_| has_batch);
        let input = |input: &galatea_protocol::inference::ModelInput| {
            let batch = has_batch.then_some(-1).into_iter();
            Some(DeclaredInput {
                name: input.name.clone(),
                datatype: DataType::from_config_number(input.data_type)?,
                dims: batch.chain(input.dims.iter().copied()).collect(),
                optional: input.optional,
            })
        };
        let inputs: Vec<_> = config.input.iter().filter_map(input).collect();
        let is_ensemble = config.backend.is_empty() && config.platform == "ensemble";
        let backend = if is_ensemble { String::from("ensemble") } else { config.backend };
        let format = format.unwrap_or(match &*backend {
            "vllm" => RequestFormat::Vllm,
            _ => RequestFormat::TensorRtLlm,
        });
        let parameter =
            |name: &str| config.parameters.get(name).map(|value| value.string_value.clone());
        let declares = |name: &str| inputs.iter().any(|input| input.name == name);
        let is_text_model = backend == "text";
        let names = Arc::new(Names::new(format, is_text_model, parameter, declares));
        let tokenizer_config = parameter("openai_tokenizer_config");
        let tokens_default = parameter("openai_default_max_tokens")
            .map(|text| {
                text.parse().map_err(|_| {
                    let text = text.escape_debug();
                    Failure::server(format!(
                        "parameter 'openai_default_max_tokens' is no number: '{text}'"
                    ))
                })
            })
            .transpose()?;
        Ok(Self {
            backend,
            batch_max,
            inputs,
            names,
            tokenizer_config,
            tokens_default,
            is_text_model,
        })
    }

    /// Returns the text of the model's own `tokenizer_config.json`, which replaces the server's.
    #[must_use]
    pub fn tokenizer_config(&self) -> Option<&str> {
        self.tokenizer_config.as_deref()
    }

    /// Returns the facts that determine which requests the model can't serve, on a server with or
    /// without a parser of tool calls.
    ///
    /// # Errors
    ///
    /// Code 500 for a model without a backend, as in Triton.
    pub fn capabilities(&self, has_tool_parser: bool) -> Result<Capabilities, Failure> {
        if self.backend.is_empty() {
            return Err(Failure::server("Unknown backend"));
        }
        Ok(Capabilities { is_vllm: self.backend == "vllm", has_tool_parser })
    }

    pub(crate) const fn names(&self) -> &Arc<Names> {
        &self.names
    }

    /// True if the model is told whether its text is streamed. If it isn't, all of its responses
    /// are combined into one for a client that doesn't stream.
    pub(crate) fn is_told_to_stream(&self) -> bool {
        self.declared(&self.names.stream).is_some()
    }

    fn declared(&self, name: &str) -> Option<&DeclaredInput> {
        self.inputs.iter().find(|input| input.name == name)
    }

    /// Returns the inputs for a prompt.
    ///
    /// # Errors
    ///
    /// Code 400 if the client specifies a schema and the model has no input for it. Code 500 if the
    /// model has no input for the prompt, or if an input can't represent its value.
    pub fn generation_inputs(
        &self,
        prompt: &str,
        generation: &Generation,
        tokens_default: i64,
    ) -> Result<Vec<InputTensor>, Failure> {
        let names = &self.names;
        if matches!(generation.guide, Some(Guide::JsonSchema(_))) && !self.takes_schemas() {
            let param = generation.schema_field.to_owned();
            let text = format!("`{param}` of type `json_schema` is not supported by this model");
            return Err(Failure::Field { param, text, code: Some("unsupported_value") });
        }
        let mut list = InputList::new(self);
        list.add_required(&names.prompt, &InputElements::Texts(&[prompt]))?;
        list.add(&names.stream, &InputElements::Bool(generation.is_stream))?;
        let tokens_default = self.tokens_default.unwrap_or(tokens_default);
        let tokens_max = generation.tokens_max.unwrap_or(tokens_default);
        match &names.parameters {
            Some(parameters) => {
                let text = sampling_text(generation, tokens_max);
                list.add(parameters, &InputElements::Texts(&[&text]))?;
                list.add(
                    "return_logprobs",
                    &InputElements::Bool(generation.likely_tokens.is_some()),
                )?;
            }
            None => {
                list.add_parameters(generation, tokens_max)?;
                list.add_adapter(generation.adapter.as_ref())?;
            }
        }
        // The vLLM backend includes the prompt in the text unless a request excludes it.
        let echo = match names.parameters {
            Some(_) => Some(generation.echo.unwrap_or(false)),
            None => generation.echo,
        };
        if let (Some(name), Some(echo)) = (&names.exclude_prompt, echo) {
            list.add(name, &InputElements::Bool(!echo))?;
        }
        if names.finish_reason.is_some() {
            list.add("return_finish_reason", &InputElements::Bool(true))?;
        }
        list.add_counts()?;
        Ok(list.tensors)
    }

    /// True if the model gets the name of an adapter, and reads its tensors itself.
    #[must_use]
    pub fn takes_adapter_names(&self) -> bool {
        self.names.parameters.is_some()
    }

    /// True if the model has an input for the schema of its text.
    fn takes_schemas(&self) -> bool {
        let name = self.names.parameters.as_deref().unwrap_or(GUIDE);
        self.declared(name).is_some()
    }

    /// True if the model embeds lists of texts.
    #[must_use]
    pub const fn takes_lists(&self) -> bool {
        self.is_text_model
    }

    /// Refuses more texts than a request may contain, before they are copied. `field` is the part
    /// of the request that contains them.
    fn check_count(&self, input: &str, field: &str, count: usize) -> Result<(), Failure> {
        let Some(declared) = self.declared(input) else { return Ok(()) };
        // If another dimension varies, it contains the texts.
        let is_batch = declared.dims.iter().filter(|dim| **dim == -1).count() == 1;
        match self.batch_max.filter(|max| is_batch && count > *max) {
            Some(max) => Err(Failure::client(format!(
                "`{field}` has {count} items, but the model takes at most {max}"
            ))),
            None => Ok(()),
        }
    }

    /// Returns the size of the inputs for an embedding, which may be much larger than the request.
    ///
    /// # Errors
    ///
    /// Code 400 for more texts than the model takes.
    pub fn embedding_bytes(&self, request: &EmbeddingRequest) -> Result<usize, Failure> {
        let Some(name) = self.names.embedding_input.as_ref().filter(|_| self.is_text_model) else {
            return Ok(0);
        };
        self.check_count(name, "input", request.count())?;
        Ok(InputElements::Texts(&request.texts()?).texts_bytes())
    }

    /// Returns the inputs for an embedding.
    ///
    /// # Errors
    ///
    /// Code 400 for a model without embeddings, as in Triton, for unsupported options, and for more
    /// texts than the model takes.
    pub fn embedding_inputs(
        &self,
        request: &EmbeddingRequest,
    ) -> Result<Vec<InputTensor>, Failure> {
        let Some(name) = &self.names.embedding_input else {
            return Err(Failure::client(
                "TRT-LLM backend and Python backend do not support embedding requests",
            ));
        };
        let mut list = InputList::new(self);
        if self.is_text_model {
            if self.declared(RERANK_QUERY).is_some() {
                return Err(Failure::client("the model has scores, and no embeddings"));
            }
            self.check_count(name, "input", request.count())?;
            list.add_required(name, &InputElements::Texts(&request.texts()?))?;
            return Ok(list.tensors);
        }
        if self.names.embedding_output.is_some() {
            list.add_required(name, &InputElements::Texts(&[request.plain_text()?]))?;
        } else {
            list.add_required(name, &InputElements::Texts(&[&request.vllm_request()]))?;
            // vLLM's backend requires a prompt in every request, and doesn't read it in this one.
            // Triton accepts the request without it, because it only counts inputs.
            if self.declared(&self.names.prompt).is_some_and(|prompt| !prompt.optional) {
                list.add(&self.names.prompt, &InputElements::Texts(&[""]))?;
            }
        }
        list.add_counts()?;
        Ok(list.tensors)
    }
}

impl ModelDescription {
    /// Returns the parameters for an embedding.
    ///
    /// # Errors
    ///
    /// Code 400 for an invalid number of dimensions.
    pub fn embedding_parameters(
        &self,
        request: &EmbeddingRequest,
    ) -> Result<Vec<Parameter>, Failure> {
        if !self.is_text_model {
            return Ok(Vec::new());
        }
        let dimensions = request.dimensions()?.map(ParameterValue::Int64);
        let named = |value| Parameter { name: String::from("dimensions"), value };
        Ok(dimensions.map(named).into_iter().collect())
    }

    /// Returns the size of the inputs for the scores of documents. It may be much larger than the
    /// request, because the query is repeated for each document.
    ///
    /// # Errors
    ///
    /// Code 400 for a model that doesn't take pairs of texts, and for more documents than it takes.
    pub fn rerank_bytes(&self, request: &RerankRequest) -> Result<usize, Failure> {
        self.check_rerank(request)?;
        let documents = request.documents();
        let queries = InputElements::Repeated { text: request.query(), count: documents.len() };
        let documents = InputElements::Texts(&documents);
        Ok(queries.texts_bytes().saturating_add(documents.texts_bytes()))
    }

    /// Returns the inputs for the scores of documents.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Self::rerank_bytes`].
    pub fn rerank_inputs(&self, request: &RerankRequest) -> Result<Vec<InputTensor>, Failure> {
        self.check_rerank(request)?;
        let documents = request.documents();
        let queries = InputElements::Repeated { text: request.query(), count: documents.len() };
        let mut list = InputList::new(self);
        list.add_required(RERANK_QUERY, &queries)?;
        list.add_required(RERANK_TEXT, &InputElements::Texts(&documents))?;
        Ok(list.tensors)
    }

    fn check_rerank(&self, request: &RerankRequest) -> Result<(), Failure> {
        if !self.is_text_model || self.declared(RERANK_QUERY).is_none() {
            return Err(Failure::client("the model does not score documents"));
        }
        self.check_count(RERANK_QUERY, request.documents_field(), request.documents_count())
    }

    /// Returns the parameters for the scores of documents.
    #[must_use]
    pub fn rerank_parameters(&self, request: &RerankRequest) -> Vec<Parameter> {
        let option = |name: &str| {
            let value = ParameterValue::Bool(request.option(name)?);
            Some(Parameter { name: name.to_owned(), value })
        };
        ["raw_scores", "truncate"].into_iter().filter_map(option).collect()
    }
}

/// Returns the sampling parameters in the form that the vLLM backend reads.
fn sampling_text(generation: &Generation, tokens_max: i64) -> String {
    let mut sampling = generation.sampling.clone();
    sampling.push("max_tokens", JsonValue::Int(tokens_max));
    if let Some(count) = generation.likely_tokens {
        sampling.push("logprobs", JsonValue::Int(count));
    }
    if let Some(AdapterChoice::Name(adapter)) = &generation.adapter {
        sampling.push("lora_name", JsonValue::text(adapter));
    }
    if let Some(guide) = &generation.guide {
        let mut outputs = crate::json::Object::default();
        match guide {
            Guide::JsonObject => outputs.push("json_object", JsonValue::Bool(true)),
            Guide::JsonSchema(schema) | Guide::ToolSchema(schema) => {
                outputs.push("json", JsonValue::text(schema))
            }
        }
        let mut text = Vec::new();
        push_spaced(&mut text, &JsonValue::Object(outputs));
        sampling.push("structured_outputs", JsonValue::text(&String::from_utf8_lossy(&text)));
    }
    let mut text = Vec::new();
    push_spaced(&mut text, &JsonValue::Object(sampling));
    String::from_utf8_lossy(&text).into_owned()
}

/// The inputs of a request that have been created so far.
struct InputList<'d> {
    description: &'d ModelDescription,
    tensors: Vec<InputTensor>,
}

impl<'d> InputList<'d> {
    const fn new(description: &'d ModelDescription) -> Self {
        Self { description, tensors: Vec::new() }
    }

    /// Adds an input if the model declares it.
    fn add(&mut self, name: &str, elements: &InputElements<'_>) -> Result<(), Failure> {
        if let Some(declared) = self.description.declared(name) {
            self.tensors.push(tensor(declared, elements)?);
        }
        Ok(())
    }

    fn add_required(&mut self, name: &str, elements: &InputElements<'_>) -> Result<(), Failure> {
        let before = self.tensors.len();
        self.add(name, elements)?;
        if self.tensors.len() > before {
            return Ok(());
        }
        Err(Failure::server(format!("the model has no input '{name}' for the prompt")))
    }

    /// Adds the sampling parameters, one input for each.
    fn add_parameters(&mut self, generation: &Generation, tokens_max: i64) -> Result<(), Failure> {
        let description = self.description;
        let names = &description.names;
        self.add(names.sampling_input("max_tokens"), &InputElements::Int(tokens_max))?;
        let words: Vec<&str> = generation.stop_words.iter().map(String::as_str).collect();
        if !words.is_empty() {
            self.add(names.sampling_input("stop_words"), &InputElements::Texts(&words))?;
        }
        for name in ["top_p", "frequency_penalty", "presence_penalty", "seed", "temperature"] {
            let elements = match generation.sampling.get(name) {
                Some(JsonValue::Int(number)) => InputElements::Int(*number),
                Some(JsonValue::Float(number)) => InputElements::Float(*number),
                _ => continue,
            };
            self.add(names.sampling_input(name), &elements)?;
        }
        let kind = match &generation.guide {
            None => return Ok(()),
            Some(Guide::JsonObject) => "json",
            Some(Guide::JsonSchema(schema) | Guide::ToolSchema(schema)) => {
                self.add(GUIDE, &InputElements::Texts(&[schema]))?;
                "json_schema"
            }
        };
        self.add("guided_decoding_guide_type", &InputElements::Texts(&[kind]))
    }

    /// Adds the adapter. As in Triton, the inputs are sent even if the model doesn't declare them,
    /// in which case the server refuses them.
    fn add_adapter(&mut self, adapter: Option<&AdapterChoice>) -> Result<(), Failure> {
        let Some(AdapterChoice::Task { id, tensors }) = adapter else { return Ok(()) };
        let undeclared = DeclaredInput {
            name: String::from(ADAPTER_ID),
            datatype: DataType::Uint64,
            dims: vec![1, 1],
            optional: true,
        };
        let declared = self.description.declared(ADAPTER_ID).unwrap_or(&undeclared);
        let id = i64::try_from(*id).map_err(|error| Failure::server(error.to_string()))?;
        self.tensors.push(tensor(declared, &InputElements::Int(id))?);
        self.tensors.extend(tensors.iter().cloned());
        Ok(())
    }

    /// Requests the token counts.
    fn add_counts(&mut self) -> Result<(), Failure> {
        self.add("return_num_input_tokens", &InputElements::Bool(true))?;
        self.add("return_num_output_tokens", &InputElements::Bool(true))
    }
}

#[cfg(test)]
mod tests;
