//! The HTTP door: KServe v2 over HTTP/1.1, the metrics endpoint, and the doors for SageMaker,
//! Vertex AI and OpenAI clients.
//!
//! The door reads requests from connections, decodes them with `galatea-codec-http`, passes them to
//! an [`InferenceService`](galatea_infer::InferenceService) and writes the responses. Management
//! requests go to a [`ServerControl`](galatea_control::ServerControl).
//!
//! Out of scope: the crate doesn't know models, schedulers or backends, and owns no threads. Its
//! connections live on the runtimes that it is given, each on one runtime for its whole life.
//! [`galatea_door`] accepts connections and stops the door.
//!
//! The door itself (`plain/`) serves nearly all requests, which are of one plain kind. hyper serves
//! everything else that HTTP/1.1 allows. Clients can't tell the difference.
//!
//! A refused request uses no more memory than its received bytes: bodies have limits in bytes and
//! in chunks, and buffers grow as bytes arrive rather than as headers announce them. Clients that
//! don't continue with a request lose their connection.
//!
//! Start with `server.rs` and `connection.rs`. `api/` contains the endpoints, and `clouds/` the
//! cloud endpoints, which lead to the same handlers. `openai/` contains the endpoint for OpenAI
//! clients.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use galatea_control::ServerControl;
//! # use galatea_infer::InferenceService;
//! # fn serve(service: Arc<dyn InferenceService>, control: Arc<dyn ServerControl>) -> std::io::Result<()> {
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! let listener = std::net::TcpListener::bind("0.0.0.0:8000")?;
//! let workers = [runtime.handle().clone()];
//! let door = galatea_http::start_inference_endpoint(&workers, listener, service, control, Default::default())?;
//! // Later, when the server stops:
//! door.begin_drain();
//! runtime.block_on(door.drained());
//! # Ok(())
//! # }
//! ```
//!
//! # Stopping
//!
//! After [`RunningDoor::begin_drain`], new connections are closed immediately. Open connections
//! are served as before until their clients or [`RunningDoor::close`] close them.

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::arithmetic_side_effects
)]

mod api;
mod body_drain;
mod charged_buffer;
mod clouds;
mod compression;
mod connection;
mod dialect;
mod endpoint;
mod event_queue;
mod event_stream;
mod events;
mod guard;
mod http_response;
mod hyper_stream;
mod long_text;
mod metrics;
mod openai;
mod options;
mod plain;
mod request_body;
mod request_head;
mod request_log;
mod route;
mod server;
mod single_response;
mod traffic;

pub use clouds::{
    InferenceType, LogLineSink, PathPattern, PingCheck, SageMakerOptions, VertexAiOptions,
};
pub use galatea_dashboard::{AllowedHosts, Dashboard};
pub use galatea_door::RunningDoor;
pub use galatea_openai::{AdapterList, ChatTemplate, RequestFormat, ToolCallFormat};
pub use openai::{
    AdapterFiles, AdapterSource, OpenAdapter, OpenAiMeters, OpenAiOptions, ReadAdapter,
};
pub use options::{HttpOptions, OrcaReportSource};
pub use request_log::RequestLog;
pub use server::{
    start_inference_endpoint, start_inference_endpoint_with_openai, start_metrics, start_openai,
    start_sagemaker, start_vertex_ai,
};
pub use traffic::TrafficRecorder;
