//! Flags of features that this server doesn't have yet. A value is accepted if it leaves
//! the feature off.

use super::value;
use super::{Flag, Group};

pub(super) const CLOUD_ENDPOINTS: Group = Group {
    title: "Sagemaker and Vertex",
    flags: &[
        ALLOW_SAGEMAKER,
        SAGEMAKER_PORT,
        SAGEMAKER_SAFE_PORT_RANGE,
        SAGEMAKER_THREAD_COUNT,
        ALLOW_VERTEX_AI,
        VERTEX_AI_PORT,
        VERTEX_AI_THREAD_COUNT,
        VERTEX_AI_DEFAULT_MODEL,
    ],
};

pub(super) const DEPRECATED: Group = Group {
    title: "DEPRECATED",
    flags: &[
        STRICT_MODEL_CONFIG,
        super::cache::RESPONSE_CACHE_BYTE_SIZE,
        super::tracing::TRACE_FILE,
        super::tracing::TRACE_LEVEL,
        super::tracing::TRACE_RATE,
        super::tracing::TRACE_COUNT,
        super::tracing::TRACE_LOG_FREQUENCY,
    ],
};

const ALLOW_SAGEMAKER: Flag = Flag {
    name: "allow-sagemaker",
    argument: Some("boolean"),
    default: "false",
    help: "Whether to listen for SageMaker. Only false is supported yet.",
    apply: |_, value| value::must_be_false(value, "the SageMaker endpoint"),
};

const SAGEMAKER_PORT: Flag = Flag {
    name: "sagemaker-port",
    argument: Some("integer"),
    default: "8080",
    help: "The port for SageMaker. No effect without --allow-sagemaker.",
    apply: |settings, value| {
        value::number::<i32>(value)?;
        settings.no_effect("sagemaker-port", "there is no SageMaker endpoint yet");
        Ok(())
    },
};

const SAGEMAKER_SAFE_PORT_RANGE: Flag = Flag {
    name: "sagemaker-safe-port-range",
    argument: Some("integer-integer"),
    default: "",
    help: "The ports allowed for other endpoints. No effect without --allow-sagemaker.",
    apply: |settings, value| {
        let (first, last) = value::numbers(value, '-')?;
        value::number::<i32>(first)?;
        value::number::<i32>(last)?;
        settings.no_effect("sagemaker-safe-port-range", "there is no SageMaker endpoint yet");
        Ok(())
    },
};

const SAGEMAKER_THREAD_COUNT: Flag = Flag {
    name: "sagemaker-thread-count",
    argument: Some("integer"),
    default: "8",
    help: "Threads for SageMaker. No effect without --allow-sagemaker.",
    apply: |settings, value| {
        value::number::<i32>(value)?;
        settings.no_effect("sagemaker-thread-count", "there is no SageMaker endpoint yet");
        Ok(())
    },
};

const ALLOW_VERTEX_AI: Flag = Flag {
    name: "allow-vertex-ai",
    argument: Some("boolean"),
    default: "false",
    help: "Whether to listen for Vertex AI. Only false is supported yet, which must be given if \
           AIP_MODE=PREDICTION is in the environment.",
    apply: |settings, value| {
        value::must_be_false(value, "the Vertex AI endpoint")?;
        settings.vertex_ai = false;
        Ok(())
    },
};

const VERTEX_AI_PORT: Flag = Flag {
    name: "vertex-ai-port",
    argument: Some("integer"),
    default: "8080",
    help: "The port for Vertex AI. No effect without --allow-vertex-ai.",
    apply: |settings, value| {
        value::number::<i32>(value)?;
        settings.no_effect("vertex-ai-port", "there is no Vertex AI endpoint yet");
        Ok(())
    },
};

const VERTEX_AI_THREAD_COUNT: Flag = Flag {
    name: "vertex-ai-thread-count",
    argument: Some("integer"),
    default: "8",
    help: "Threads for Vertex AI. No effect without --allow-vertex-ai.",
    apply: |settings, value| {
        value::number::<i32>(value)?;
        settings.no_effect("vertex-ai-thread-count", "there is no Vertex AI endpoint yet");
        Ok(())
    },
};

const VERTEX_AI_DEFAULT_MODEL: Flag = Flag {
    name: "vertex-ai-default-model",
    argument: Some("string"),
    default: "",
    help: "The model that Vertex AI's requests mean. No effect without --allow-vertex-ai.",
    apply: |settings, _| {
        settings.no_effect("vertex-ai-default-model", "there is no Vertex AI endpoint yet");
        Ok(())
    },
};

const STRICT_MODEL_CONFIG: Flag = Flag {
    name: "strict-model-config",
    argument: Some("boolean"),
    default: "false",
    help: "True is the same as --disable-auto-complete-config.",
    apply: |settings, value| {
        let is_strict = value::boolean(value)?;
        if is_strict {
            settings.auto_complete_config = false;
        }
        settings.strict_model_config = Some(is_strict);
        Ok(())
    },
};
