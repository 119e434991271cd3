//! The doors for cloud platforms, each with the paths that its platform prescribes. They are route
//! tables in front of the inference door's endpoints.

mod archives;
mod options;
mod sagemaker;
mod sagemaker_route;
mod vertex_ai;

pub use options::{
    InferenceType, LogLineSink, PathPattern, PingCheck, SageMakerOptions, VertexAiOptions,
};
pub(crate) use sagemaker::SageMaker;
pub(crate) use vertex_ai::VertexAi;
