//! Flags for the SageMaker and Vertex AI endpoints.

use super::Group;
use super::flag::{Flag, no_default};
use super::value;

pub(super) const GROUP: Group = Group {
    title: "Sagemaker and Vertex",
    flags: &[&[
        Flag::boolean(
            "allow-sagemaker",
            "Whether to listen for SageMaker's requests.",
            |settings| &mut settings.clouds.sagemaker.allow,
        ),
        Flag::port(
            "sagemaker-port",
            "The port to listen on for SageMaker; 0 lets the system choose one.",
            |settings| &mut settings.clouds.sagemaker.port,
        ),
        Flag::other(
            "sagemaker-safe-port-range",
            "integer-integer",
            no_default,
            "The first and the last port that other endpoints may listen on, at the same \
             address, if there is an endpoint for SageMaker.",
            |settings, value| {
                let (first, last) = value::numbers(value, '-')?;
                let range = (value::number(first)?, value::number(last)?);
                settings.clouds.sagemaker_safe_ports = Some(range);
                Ok(())
            },
        ),
        Flag::threads(
            "sagemaker-thread-count",
            "At most this many of the threads of --http-thread-count serve SageMaker.",
            |settings| &mut settings.clouds.sagemaker_threads,
        ),
        Flag::boolean(
            "allow-vertex-ai",
            "Whether to listen for Vertex AI's requests, at the paths that AIP_PREDICT_ROUTE and \
             AIP_HEALTH_ROUTE in the environment name. AIP_MODE=PREDICTION in the environment \
             makes it the default, and turns HTTP and gRPC off unless flags turn them on.",
            |settings| &mut settings.clouds.vertex_ai.allow,
        ),
        Flag::port(
            "vertex-ai-port",
            "The port to listen on for Vertex AI; 0 lets the system choose one. AIP_HTTP_PORT in \
             the environment changes the default.",
            |settings| &mut settings.clouds.vertex_ai.port,
        ),
        Flag::threads(
            "vertex-ai-thread-count",
            "At most this many of the threads of --http-thread-count serve Vertex AI.",
            |settings| &mut settings.clouds.vertex_ai_threads,
        ),
        Flag::text(
            "vertex-ai-default-model",
            "The model of Vertex AI's requests that name none. Without this flag there must be \
             exactly one model.",
            |settings| &mut settings.clouds.vertex_ai_default_model,
        ),
    ]],
};
