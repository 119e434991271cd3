//! The endpoints whose paths SageMaker and Vertex AI prescribe.

use super::value;
use super::{Flag, Group};

pub(super) const GROUP: Group = Group {
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

const ALLOW_SAGEMAKER: Flag = Flag {
    name: "allow-sagemaker",
    argument: Some("boolean"),
    default: "false",
    help: "Whether to listen for SageMaker's requests.",
    apply: |settings, value| {
        settings.clouds.sagemaker.allow = value::boolean(value)?;
        Ok(())
    },
};

const SAGEMAKER_PORT: Flag = Flag {
    name: "sagemaker-port",
    argument: Some("integer"),
    default: "8080",
    help: "The port to listen on for SageMaker; 0 lets the system choose one.",
    apply: |settings, value| {
        settings.clouds.sagemaker.port = value::port(settings, "sagemaker-port", value)?;
        Ok(())
    },
};

const SAGEMAKER_SAFE_PORT_RANGE: Flag = Flag {
    name: "sagemaker-safe-port-range",
    argument: Some("integer-integer"),
    default: "",
    help: "The first and the last port that other endpoints may listen on, at the same address, \
           if there is an endpoint for SageMaker.",
    apply: |settings, value| {
        let (first, last) = value::numbers(value, '-')?;
        let range = (value::number(first)?, value::number(last)?);
        settings.clouds.sagemaker_safe_ports = Some(range);
        Ok(())
    },
};

const SAGEMAKER_THREAD_COUNT: Flag = Flag {
    name: "sagemaker-thread-count",
    argument: Some("integer"),
    default: "8",
    help: "At most this many of the threads of --http-thread-count serve SageMaker.",
    apply: |settings, value| {
        let threads: usize = value::number(value)?;
        settings.clouds.sagemaker_threads = threads.max(1);
        Ok(())
    },
};

const ALLOW_VERTEX_AI: Flag = Flag {
    name: "allow-vertex-ai",
    argument: Some("boolean"),
    default: "false",
    help: "Whether to listen for Vertex AI's requests, at the paths that AIP_PREDICT_ROUTE and \
           AIP_HEALTH_ROUTE in the environment name. AIP_MODE=PREDICTION in the environment makes \
           it the default, and turns HTTP and gRPC off unless flags turn them on.",
    apply: |settings, value| {
        settings.clouds.vertex_ai.allow = value::boolean(value)?;
        Ok(())
    },
};

const VERTEX_AI_PORT: Flag = Flag {
    name: "vertex-ai-port",
    argument: Some("integer"),
    default: "8080",
    help: "The port to listen on for Vertex AI; 0 lets the system choose one. AIP_HTTP_PORT in \
           the environment changes the default.",
    apply: |settings, value| {
        settings.clouds.vertex_ai.port = value::port(settings, "vertex-ai-port", value)?;
        Ok(())
    },
};

const VERTEX_AI_THREAD_COUNT: Flag = Flag {
    name: "vertex-ai-thread-count",
    argument: Some("integer"),
    default: "8",
    help: "At most this many of the threads of --http-thread-count serve Vertex AI.",
    apply: |settings, value| {
        let threads: usize = value::number(value)?;
        settings.clouds.vertex_ai_threads = threads.max(1);
        Ok(())
    },
};

const VERTEX_AI_DEFAULT_MODEL: Flag = Flag {
    name: "vertex-ai-default-model",
    argument: Some("string"),
    default: "",
    help: "The model of Vertex AI's requests that name none. Without this flag there must be \
           exactly one model.",
    apply: |settings, value| {
        settings.clouds.vertex_ai_default_model = value.to_owned();
        Ok(())
    },
};
