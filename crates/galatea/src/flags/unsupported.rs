//! Flags of features that this server doesn't have yet. A value is accepted if it leaves
//! the feature off.

use super::value::{self, Refusal};
use super::{Flag, Group};

pub(super) const TRACING: Group = Group { title: "Tracing", flags: &[TRACE_CONFIG] };

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
        TRACE_FILE,
        TRACE_LEVEL,
        TRACE_RATE,
        TRACE_COUNT,
        TRACE_LOG_FREQUENCY,
    ],
};

const TRACE_CONFIG: Flag = Flag {
    name: "trace-config",
    argument: Some("string,string=string"),
    default: "",
    help: "A setting of the tracing of requests. Not supported yet: only the values of a \
           server that traces nothing are taken.",
    apply: |_, value| match value.to_ascii_lowercase().as_str() {
        "level=off"
        | "level=false"
        | "mode=triton"
        | "rate=1000"
        | "count=-1"
        | "triton,log-frequency=0" => Ok(()),
        _ => Err(Refusal::unsupported("tracing")),
    },
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

const TRACE_FILE: Flag = Flag {
    name: "trace-file",
    argument: Some("string"),
    default: "",
    help: "The file for traces. Not supported yet.",
    apply: |_, _| Err(Refusal::unsupported("tracing")),
};

const TRACE_LEVEL: Flag = Flag {
    name: "trace-level",
    argument: Some("string"),
    default: "OFF",
    help: "What to trace. Only OFF is supported yet.",
    apply: |_, value| match value.to_ascii_lowercase().as_str() {
        "off" | "false" => Ok(()),
        _ => Err(Refusal::unsupported("tracing")),
    },
};

const TRACE_RATE: Flag = Flag {
    name: "trace-rate",
    argument: Some("integer"),
    default: "1000",
    help: "Of how many requests one is traced. No effect while nothing is traced.",
    apply: |settings, value| {
        value::number::<i32>(value)?;
        settings.no_effect("trace-rate", "nothing is traced");
        Ok(())
    },
};

const TRACE_COUNT: Flag = Flag {
    name: "trace-count",
    argument: Some("integer"),
    default: "-1",
    help: "How many requests to trace. No effect while nothing is traced.",
    apply: |settings, value| {
        value::number::<i32>(value)?;
        settings.no_effect("trace-count", "nothing is traced");
        Ok(())
    },
};

const TRACE_LOG_FREQUENCY: Flag = Flag {
    name: "trace-log-frequency",
    argument: Some("integer"),
    default: "0",
    help: "How many traces go into one file. No effect while nothing is traced.",
    apply: |settings, value| {
        value::number::<i32>(value)?;
        settings.no_effect("trace-log-frequency", "nothing is traced");
        Ok(())
    },
};
