//! The schema of a chat request.

use crate::schema::{Default, Extra, Field, ObjectForm, Schema};

const TEXT: Schema = Schema::Text;
pub(super) const OPTIONAL_TEXT: Schema = Schema::Nullable(&Schema::Text);
pub(super) const OPTIONAL_BOOL: Schema = Schema::Nullable(&Schema::Bool);
pub(super) const PENALTY: Schema =
    Schema::Nullable(&Schema::Float { min: Some(-2.0), max: Some(2.0) });
pub(super) const COUNT: Schema = Schema::Nullable(&Schema::Int { min: Some(0), max: None });
pub(super) const CHOICES: Schema = Schema::Nullable(&Schema::Int { min: Some(1), max: Some(128) });
pub(super) const SEED: Schema =
    Schema::Nullable(&Schema::Int { min: Some(i64::MIN), max: Some(i64::MAX) });
pub(super) const TEMPERATURE: Schema =
    Schema::Nullable(&Schema::Float { min: Some(0.0), max: Some(2.0) });
pub(super) const TOP_P: Schema =
    Schema::Nullable(&Schema::Float { min: Some(0.0), max: Some(1.0) });
pub(super) const LOGIT_BIAS: Schema =
    Schema::Nullable(&Schema::Map(&Schema::Int { min: None, max: None }));
pub(super) const STOP: Schema =
    Schema::Nullable(&Schema::Union(&[("str", TEXT), ("list[str]", TEXT_LIST)]));
pub(super) const TEXT_LIST: Schema = Schema::List { element: &TEXT, min: None, max: None };
pub(super) const STREAM_OPTIONS: Schema = Schema::Nullable(&Schema::ObjectForm(&ObjectForm {
    fields: &[Field::optional("include_usage", OPTIONAL_BOOL, Default::Bool(false))],
    extra: Extra::Ignored,
}));

/// OpenAI's own model names are treated like any other names, but errors list them.
pub(super) const CHAT_MODEL: Schema =
    Schema::Union(&[("str", TEXT), ("enum[Model2]", Schema::Choice(&CHAT_MODELS))]);
const CHAT_MODELS: [&str; 19] = [
    "gpt-4-turbo",
    "gpt-4-turbo-2024-04-09",
    "gpt-4-0125-preview",
    "gpt-4-turbo-preview",
    "gpt-4-1106-preview",
    "gpt-4-vision-preview",
    "gpt-4",
    "gpt-4-0314",
    "gpt-4-0613",
    "gpt-4-32k",
    "gpt-4-32k-0314",
    "gpt-4-32k-0613",
    "gpt-3.5-turbo",
    "gpt-3.5-turbo-16k",
    "gpt-3.5-turbo-0301",
    "gpt-3.5-turbo-0613",
    "gpt-3.5-turbo-1106",
    "gpt-3.5-turbo-0125",
    "gpt-3.5-turbo-16k-0613",
];

const fn object(fields: &'static [Field]) -> ObjectForm {
    ObjectForm { fields, extra: Extra::Ignored }
}

const NAME: Field = Field::optional("name", OPTIONAL_TEXT, Default::Null);

static CONTENT_TEXT: ObjectForm =
    object(&[Field::required("type", Schema::Choice(&["text"])), Field::required("text", TEXT)]);
static IMAGE_URL: ObjectForm = object(&[
    Field::required("url", Schema::Url),
    Field::optional(
        "detail",
        Schema::Nullable(&Schema::Choice(&["auto", "low", "high"])),
        Default::Text("auto"),
    ),
]);
static CONTENT_IMAGE: ObjectForm = object(&[
    Field::required("type", Schema::Choice(&["image_url"])),
    Field::required("image_url", Schema::ObjectForm(&IMAGE_URL)),
]);
static CONTENT_PART: Schema = Schema::Union(&[
    ("ChatCompletionRequestMessageContentPartText", Schema::ObjectForm(&CONTENT_TEXT)),
    ("ChatCompletionRequestMessageContentPartImage", Schema::ObjectForm(&CONTENT_IMAGE)),
]);
static SYSTEM_MESSAGE: ObjectForm = object(&[
    Field::required("content", TEXT),
    Field::required("role", Schema::Choice(&["system"])),
    NAME,
]);
static USER_MESSAGE: ObjectForm = object(&[
    Field::required(
        "content",
        Schema::Union(&[
            ("str", TEXT),
            (
                "list[ChatCompletionRequestMessageContentPart]",
                Schema::List { element: &CONTENT_PART, min: None, max: None },
            ),
        ]),
    ),
    Field::required("role", Schema::Choice(&["user"])),
    NAME,
]);
static CALLED_FUNCTION: ObjectForm =
    object(&[Field::required("name", TEXT), Field::required("arguments", TEXT)]);
static FUNCTION_CALL: ObjectForm =
    object(&[Field::required("arguments", TEXT), Field::required("name", TEXT)]);
static TOOL_CALL: Schema = Schema::ObjectForm(&object(&[
    Field::required("id", TEXT),
    Field::required("type", TEXT),
    Field::required("function", Schema::ObjectForm(&CALLED_FUNCTION)),
]));
static TOOL_CALLS: Schema = Schema::List { element: &TOOL_CALL, min: None, max: None };
static ASSISTANT_MESSAGE: ObjectForm = object(&[
    Field::optional("content", OPTIONAL_TEXT, Default::Null),
    Field::required("role", Schema::Choice(&["assistant"])),
    NAME,
    Field::optional("tool_calls", Schema::Nullable(&TOOL_CALLS), Default::Null),
    Field::optional(
        "function_call",
        Schema::Nullable(&Schema::ObjectForm(&FUNCTION_CALL)),
        Default::Null,
    ),
]);
static TOOL_MESSAGE: ObjectForm = object(&[
    Field::required("role", Schema::Choice(&["tool"])),
    Field::required("content", TEXT),
    Field::required("tool_call_id", TEXT),
]);
static FUNCTION_MESSAGE: ObjectForm = object(&[
    Field::required("role", Schema::Choice(&["function"])),
    Field::required("content", TEXT),
    Field::required("name", TEXT),
]);
static MESSAGE: Schema = Schema::Union(&[
    ("ChatCompletionRequestSystemMessage", Schema::ObjectForm(&SYSTEM_MESSAGE)),
    ("ChatCompletionRequestUserMessage", Schema::ObjectForm(&USER_MESSAGE)),
    ("ChatCompletionRequestAssistantMessage", Schema::ObjectForm(&ASSISTANT_MESSAGE)),
    ("ChatCompletionRequestToolMessage", Schema::ObjectForm(&TOOL_MESSAGE)),
    ("ChatCompletionRequestFunctionMessage", Schema::ObjectForm(&FUNCTION_MESSAGE)),
]);

static PARAMETERS: ObjectForm = ObjectForm { fields: &[], extra: Extra::Kept };
static FUNCTION: ObjectForm = object(&[
    Field::optional("description", OPTIONAL_TEXT, Default::Null),
    Field::required("name", TEXT),
    Field::optional(
        "parameters",
        Schema::Nullable(&Schema::ObjectForm(&PARAMETERS)),
        Default::Null,
    ),
]);
static FUNCTION_SCHEMA: Schema = Schema::ObjectForm(&FUNCTION);
static TOOL: Schema = Schema::ObjectForm(&object(&[
    Field::required("type", TEXT),
    Field::required("function", Schema::ObjectForm(&FUNCTION)),
]));
static FUNCTION_NAME: ObjectForm = object(&[Field::required("name", TEXT)]);
static NAMED_TOOL: ObjectForm = object(&[
    Field::required("type", TEXT),
    Field::required("function", Schema::ObjectForm(&FUNCTION_NAME)),
]);
static TOOL_CHOICE: Schema = Schema::Union(&[
    ("enum[ChatCompletionToolChoiceOption1]", Schema::Choice(&["none", "auto", "required"])),
    ("ChatCompletionNamedToolChoice", Schema::ObjectForm(&NAMED_TOOL)),
]);
static CALL_CHOICE: Schema = Schema::Union(&[
    ("enum[FunctionCall3]", Schema::Choice(&["none", "auto"])),
    ("ChatCompletionFunctionCallOption", Schema::ObjectForm(&FUNCTION_NAME)),
]);
static RESPONSE_FORMAT: Schema = Schema::ObjectForm(&object(&[Field::optional(
    "type",
    Schema::Nullable(&Schema::Choice(&["text", "json_object"])),
    Default::Text("text"),
)]));
static DESCRIBED_SCHEMA: ObjectForm = object(&[
    Field::required("name", TEXT),
    Field::required("schema", Schema::ObjectForm(&PARAMETERS)),
]);
static SCHEMA_FORMAT: Schema = Schema::ObjectForm(&object(&[
    Field::required("type", Schema::Choice(&["json_schema"])),
    Field::required("json_schema", Schema::ObjectForm(&DESCRIBED_SCHEMA)),
]));

/// The fields in the order of Triton's frontend, which determines the order of errors.
pub(super) static CHAT: Schema = Schema::ObjectForm(&ObjectForm {
    fields: &[
        Field::required("messages", Schema::List { element: &MESSAGE, min: Some(1), max: None }),
        Field::required("model", CHAT_MODEL),
        Field::optional("frequency_penalty", PENALTY, Default::Int(0)),
        Field::optional("ignore_eos", OPTIONAL_BOOL, Default::Bool(false)),
        Field::optional("logit_bias", LOGIT_BIAS, Default::Null),
        Field::optional("logprobs", OPTIONAL_BOOL, Default::Bool(false)),
        Field::optional(
            "top_logprobs",
            Schema::Nullable(&Schema::Int { min: Some(0), max: Some(20) }),
            Default::Null,
        ),
        Field::optional("max_completion_tokens", COUNT, Default::Null),
        Field::optional("max_tokens", COUNT, Default::Null),
        Field::optional("min_tokens", COUNT, Default::Null),
        Field::optional("n", CHOICES, Default::Int(1)),
        Field::optional("presence_penalty", PENALTY, Default::Int(0)),
        Field::optional(
            "response_format",
            Schema::Nullable(&Schema::Beyond(&SCHEMA_FORMAT, &RESPONSE_FORMAT)),
            Default::Null,
        ),
        Field::optional("seed", SEED, Default::Null),
        Field::optional("stop", STOP, Default::Null),
        Field::optional("stream", OPTIONAL_BOOL, Default::Bool(false)),
        Field::optional("stream_options", STREAM_OPTIONS, Default::Null),
        Field::optional("temperature", TEMPERATURE, Default::Float(0.7)),
        Field::optional("top_p", TOP_P, Default::Int(1)),
        Field::optional(
            "tools",
            Schema::Nullable(&Schema::List { element: &TOOL, min: None, max: None }),
            Default::Null,
        ),
        Field::optional("tool_choice", Schema::Nullable(&TOOL_CHOICE), Default::Null),
        Field::optional("user", OPTIONAL_TEXT, Default::Null),
        Field::optional("function_call", Schema::Nullable(&CALL_CHOICE), Default::Null),
        Field::optional(
            "functions",
            Schema::Nullable(&Schema::List {
                element: &FUNCTION_SCHEMA,
                min: Some(1),
                max: Some(128),
            }),
            Default::Null,
        ),
    ],
    extra: Extra::Forbidden,
});
