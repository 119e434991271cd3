//! Converts the body of a request to the inputs of its model, on any thread.

use std::sync::Arc;

use bytes::Bytes;
use galatea_control::{ServedModel, ServerControl};
use galatea_gate::ledger::{MemoryAccount, MemoryCharge};
use galatea_infer::{AccessPass, InputTensor, Parameter, Status, api};
use galatea_openai::{
    Adapter, ChatRequest, CompletionKind, CompletionReply, CompletionRequest, ContentType,
    Embedding, EmbeddingRequest, Failure, Generation, JsonValue, ModelDescription, Rerank,
    RerankRequest, ResponsesRequest, ToolCallParser, read_body, split_adapter,
};

use super::adapters::{AdapterRegistration, OpenedAdapter};
use super::charged_inputs::ChargedInputs;
use super::known_models::{KnownModel, KnownModels};
use super::options::AdapterSource;
use super::responses::ErrorForm;
use super::sink::{NumbersReply, TextDelivery};
use crate::http_response::HttpResponse;

/// Converts bodies to requests, on any thread.
pub(super) struct Beginner {
    pub(super) control: Arc<dyn ServerControl>,
    pub(super) models: KnownModels,
    pub(super) tokens_default: i64,
    pub(super) tool_parser: Option<ToolCallParser>,
    pub(super) adapters: Option<AdapterSource>,
}

/// The model that a client requests, perhaps with an adapter.
struct FoundModel<'n> {
    model: Arc<dyn ServedModel>,
    known: Arc<KnownModel>,
    name: &'n str,
    adapter: Option<&'n str>,
}

/// The kind of a request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum BodyKind {
    Chat,
    Text,
    Embedding,
    Rerank,
    Response,
}

impl BodyKind {
    /// The form of the errors.
    pub(super) const fn error_form(self) -> ErrorForm {
        match self {
            Self::Response => ErrorForm::OpenAi,
            Self::Chat | Self::Text | Self::Embedding | Self::Rerank => ErrorForm::Detail,
        }
    }

    /// The number of times that a body is validated. A request for a response is validated again
    /// as a request for a chat.
    pub(super) const fn copies(self) -> usize {
        match self {
            Self::Response => 2,
            Self::Chat | Self::Text | Self::Embedding | Self::Rerank => 1,
        }
    }
}

/// A body, along with information about its request.
pub(super) struct ReceivedText {
    pub(super) bytes: Bytes,
    pub(super) content_type: ContentType,
    pub(super) kind: BodyKind,
    /// The identifier of the completion, and the time of its creation.
    pub(super) id: String,
    pub(super) created_secs: u64,
    /// The account that is charged for the inputs.
    pub(super) account: Arc<MemoryAccount>,
    /// The model, if the request has waited for it.
    pub(super) found: Option<Arc<dyn ServedModel>>,
}

/// A request that is about to be handed over to its model.
pub(super) struct Prepared {
    pub(super) model: Arc<dyn ServedModel>,
    pub(super) name: String,
    pub(super) inputs: Vec<InputTensor>,
    pub(super) parameters: Vec<Parameter>,
    pub(super) reply: PreparedReply,
    /// The adapter whose tensors are among the inputs.
    pub(super) registration: Option<AdapterRegistration>,
    /// The part of the request that its response repeats.
    pub(super) kept: Option<MemoryCharge>,
}

impl Prepared {
    fn new(found: FoundModel<'_>, inputs: Vec<InputTensor>, reply: PreparedReply) -> Self {
        let FoundModel { model, name, .. } = found;
        Self {
            model,
            name: name.to_owned(),
            inputs,
            parameters: Vec::new(),
            reply,
            registration: None,
            kept: None,
        }
    }
}

pub(super) enum PreparedReply {
    Text(Box<CompletionReply>, TextDelivery),
    Numbers(NumbersReply),
}

/// The reason why a request doesn't reach a model.
pub(super) enum NotBegun {
    Failure(Failure),
    Refusal(Status),
    /// The model was not found. It may be one that is loaded on demand.
    Missing(Box<MissingModel>),
    /// The model could not be loaded on demand.
    NotLoaded(Status),
}

/// A model that was not found.
pub(super) struct MissingModel {
    pub(super) name: String,
    /// The error of the lookup.
    pub(super) status: Status,
    /// The error for the client, unless the model is loaded on demand.
    pub(super) failure: Failure,
}

impl From<Failure> for NotBegun {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<Status> for NotBegun {
    fn from(status: Status) -> Self {
        Self::Refusal(status)
    }
}

impl NotBegun {
    pub(super) fn into_response(self, form: ErrorForm) -> HttpResponse {
        match self {
            Self::Failure(failure) => form.failed(failure),
            Self::Refusal(status) => form.refused(&status),
            Self::Missing(missing) => form.failed(missing.failure),
            Self::NotLoaded(status) => form.not_loaded(&status),
        }
    }
}

impl Beginner {
    /// True if a request of this kind may read files of its model.
    pub(super) fn reads_files(&self, kind: BodyKind) -> bool {
        self.adapters.is_some()
            && matches!(kind, BodyKind::Chat | BodyKind::Text | BodyKind::Response)
    }

    /// Reads a body and finds its model.
    pub(super) fn prepare(
        &self,
        pass: AccessPass<api::Inference>,
        text: &ReceivedText,
    ) -> Result<Prepared, NotBegun> {
        let body = read_body(&text.bytes, text.content_type)?;
        match text.kind {
            BodyKind::Chat => self.chat(pass, text, &body),
            BodyKind::Text => self.completion(pass, text, &body),
            BodyKind::Embedding => self.embedding(pass, text, &body),
            BodyKind::Rerank => self.rerank(pass, text, &body),
            BodyKind::Response => self.response(pass, text, &body),
        }
    }

    fn chat(
        &self,
        pass: AccessPass<api::Inference>,
        text: &ReceivedText,
        body: &JsonValue,
    ) -> Result<Prepared, NotBegun> {
        let request = ChatRequest::check(body)?;
        let kind = CompletionKind::Chat(request.named_tool());
        self.conversation(pass, text, &request, kind)
    }

    fn response(
        &self,
        pass: AccessPass<api::Inference>,
        text: &ReceivedText,
        body: &JsonValue,
    ) -> Result<Prepared, NotBegun> {
        let (request, echo) = ResponsesRequest::check(body)?.into_parts();
        let is_large = echo.len() > MemoryAccount::SMALL_BYTES_MAX;
        let charge = is_large.then(|| MemoryCharge::new(&text.account, echo.len()));
        let kept = charge.transpose().map_err(Status::from)?;
        let kind = CompletionKind::Response { tool: request.named_tool(), echo };
        Ok(Prepared { kept, ..self.conversation(pass, text, &request, kind)? })
    }

    /// Prepares the next message of a conversation.
    fn conversation(
        &self,
        pass: AccessPass<api::Inference>,
        text: &ReceivedText,
        request: &ChatRequest,
        kind: CompletionKind,
    ) -> Result<Prepared, NotBegun> {
        let found = self.model(pass, text, request.model())?;
        let template = self.models.template(found.name, &found.known)?;
        let capabilities = found.known.description.capabilities(self.tool_parser.is_some())?;
        let adapter = self.adapter(&found, request.model())?;
        let mut generation = request.generation(capabilities)?;
        let prompt = template.render(request, text.created_secs)?;
        let (inputs, registration) =
            self.generation_inputs(&found.known, &prompt, &mut generation, adapter, text)?;
        let mut reply = completion(&found.known.description, kind, request.model(), text)
            .with_logprobs(generation.likely_tokens.is_some())
            .with_usage(request.includes_usage());
        if let Some(parser) =
            self.tool_parser.as_ref().filter(|_| request.lets_model_choose_tools())
        {
            reply = reply.with_tools(parser.clone(), capabilities);
        }
        let reply = PreparedReply::Text(Box::new(reply), delivery(generation.is_stream));
        Ok(Prepared { registration, ..Prepared::new(found, inputs, reply) })
    }

    fn completion(
        &self,
        pass: AccessPass<api::Inference>,
        text: &ReceivedText,
        body: &JsonValue,
    ) -> Result<Prepared, NotBegun> {
        let request = CompletionRequest::check(body)?;
        let found = self.model(pass, text, request.model())?;
        let capabilities = found.known.description.capabilities(false)?;
        let adapter = self.adapter(&found, request.model())?;
        let mut generation = request.generation(capabilities)?;
        let (inputs, registration) =
            self.generation_inputs(&found.known, request.prompt(), &mut generation, adapter, text)?;
        let kind = CompletionKind::Text;
        let reply = completion(&found.known.description, kind, request.model(), text)
            .with_logprobs(generation.likely_tokens.is_some())
            .with_usage(request.includes_usage());
        let reply = PreparedReply::Text(Box::new(reply), delivery(generation.is_stream));
        Ok(Prepared { registration, ..Prepared::new(found, inputs, reply) })
    }

    fn embedding(
        &self,
        pass: AccessPass<api::Inference>,
        text: &ReceivedText,
        body: &JsonValue,
    ) -> Result<Prepared, NotBegun> {
        let for_list = EmbeddingRequest::model_for_list(body);
        let for_list = match for_list.map(|requested| self.model(pass, text, requested)) {
            Some(Err(NotBegun::Missing(mut missing))) => {
                // As in Triton, a model that doesn't exist takes no list.
                if let Err(failure) = EmbeddingRequest::check(body, false) {
                    missing.failure = failure;
                }
                return Err(NotBegun::Missing(missing));
            }
            found => found.and_then(Result::ok),
        };
        let for_list = for_list.filter(|found| found.known.description.takes_lists());
        let request = EmbeddingRequest::check(body, for_list.is_some())?;
        // As in Triton, an adapter in the name has no effect.
        let found = match for_list {
            Some(found) => found,
            None => self.model(pass, text, request.model())?,
        };
        let description = &found.known.description;
        description.capabilities(false)?;
        let charged = ChargedInputs::new(&text.account, description.embedding_bytes(&request)?)?;
        let inputs = charged.attach_to(description.embedding_inputs(&request)?);
        let parameters = description.embedding_parameters(&request)?;
        let reply = NumbersReply::Embedding(Box::new(Embedding::new(description, &request)));
        let reply = PreparedReply::Numbers(reply);
        Ok(Prepared { parameters, ..Prepared::new(found, inputs, reply) })
    }

    fn rerank(
        &self,
        pass: AccessPass<api::Inference>,
        text: &ReceivedText,
        body: &JsonValue,
    ) -> Result<Prepared, NotBegun> {
        let request = RerankRequest::check(body)?;
        let found = self.model(pass, text, request.model())?;
        let description = &found.known.description;
        let charged = ChargedInputs::new(&text.account, description.rerank_bytes(&request)?)?;
        let inputs = charged.attach_to(description.rerank_inputs(&request)?);
        let parameters = description.rerank_parameters(&request);
        let reply = Rerank::new(description, &request, text.id.replacen("cmpl", "rerank", 1));
        let reply = PreparedReply::Numbers(NumbersReply::Rerank(Box::new(reply)));
        Ok(Prepared { parameters, ..Prepared::new(found, inputs, reply) })
    }

    /// Finds a model. As in Triton, a model that isn't ready is unknown.
    fn model<'n>(
        &self,
        pass: AccessPass<api::Inference>,
        text: &ReceivedText,
        requested: &'n str,
    ) -> Result<FoundModel<'n>, NotBegun> {
        let separator = self.adapters.as_ref().map(|adapters| &*adapters.separator);
        let (name, adapter) = split_adapter(requested, separator);
        let unknown = |status| {
            let failure = Failure::Client(format!("Unknown model: {requested}"));
            let name = name.to_owned();
            NotBegun::Missing(Box::new(MissingModel { name, status, failure }))
        };
        let model = match &text.found {
            Some(found) => found.clone(),
            None => self.control.model_for_inference(pass, name, None).map_err(unknown)?,
        };
        let known = self.models.of(name, &model.config())?;
        Ok(FoundModel { model, known, name, adapter })
    }

    /// Returns the adapter that the client selects.
    fn adapter(&self, found: &FoundModel<'_>, requested: &str) -> Result<Option<Adapter>, Failure> {
        match (&self.adapters, found.adapter) {
            (Some(source), Some(adapter)) => {
                let takes_names = found.known.description.takes_adapter_names();
                found.known.adapters.find(takes_names, source, found.name, adapter, requested)
            }
            _ => Ok(None),
        }
    }

    /// Creates the inputs for a prompt. They include the tensors of the adapter if the model
    /// doesn't have them yet.
    fn generation_inputs(
        &self,
        known: &Arc<KnownModel>,
        prompt: &str,
        generation: &mut Generation,
        adapter: Option<Adapter>,
        text: &ReceivedText,
    ) -> Result<(Vec<InputTensor>, Option<AdapterRegistration>), NotBegun> {
        let description = &known.description;
        let opened = match (&self.adapters, adapter) {
            (Some(source), Some(adapter)) => {
                Some(known.adapters.open(description.takes_adapter_names(), source, adapter)?)
            }
            _ => None,
        };
        let files_bytes = opened.as_ref().map_or(0, OpenedAdapter::length);
        let bytes = prompt.len().saturating_add(files_bytes);
        let charged = ChargedInputs::new(&text.account, bytes)?;
        let mut registration = None;
        if let Some(opened) = opened {
            let choice = opened.read()?;
            registration = known.adapters.registration(&choice);
            generation.adapter = Some(choice);
        }
        let inputs = description.generation_inputs(prompt, generation, self.tokens_default)?;
        Ok((charged.attach_to(inputs), registration))
    }
}

fn completion(
    description: &ModelDescription,
    kind: CompletionKind,
    model: &str,
    text: &ReceivedText,
) -> CompletionReply {
    CompletionReply::new(description, kind, model, text.id.clone(), text.created_secs)
}

const fn delivery(is_stream: bool) -> TextDelivery {
    if is_stream { TextDelivery::Stream } else { TextDelivery::Document }
}
