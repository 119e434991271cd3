//! Shared parts of the targets: doors in front of a model that returns its inputs, and the
//! memory that an input takes.

mod forests;
mod memory;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use galatea_control::{ModelArchiveClassifier, ModelArchiveKind};
use galatea_fakes::FakeServer;
use galatea_http::{
    HttpOptions, InferenceType, PathPattern, PingCheck, SageMakerOptions, VertexAiOptions,
};
use galatea_infer::{AccessPass, api};
use tokio::runtime::{Builder, Handle};

pub use self::forests::read_and_predict;
pub use self::memory::bounded_by_length;

/// A door that listens, on a thread of its own, to the end of the process.
pub struct DoorBuilder {
    address: SocketAddr,
}

impl DoorBuilder {
    /// The HTTP door.
    pub fn http() -> Self {
        Self::start_inference_endpoint(|workers, listener| {
            let options = galatea_http::HttpOptions::default();
            let server = Arc::new(FakeServer::plain());
            let door = galatea_http::start_inference_endpoint(
                workers,
                listener,
                server.clone(),
                server,
                options,
            );
            Box::new(door.expect("a door"))
        })
    }

    /// The door for SageMaker, with archives of one model each.
    pub fn sagemaker() -> Self {
        Self::start_inference_endpoint(|workers, listener| {
            let options = SageMakerOptions {
                http: HttpOptions::default(),
                ping: PingCheck::Ready,
                default_model: String::from("model"),
                inference: InferenceType::Infer,
                archives: Arc::new(OneModel),
                notices: Arc::new(|_| {}),
            };
            let server = Arc::new(FakeServer::plain());
            let door =
                galatea_http::start_sagemaker(workers, listener, server.clone(), server, options);
            Box::new(door.expect("a door"))
        })
    }

    /// The door for Vertex AI.
    pub fn vertex_ai() -> Self {
        Self::start_inference_endpoint(|workers, listener| {
            let route = |path| PathPattern::new(path).expect("a path");
            let options = VertexAiOptions {
                http: HttpOptions::default(),
                health: route("/health"),
                predict: route("/predict"),
                default_model: String::from("model"),
                metrics: Some(Arc::new(|| String::from("a 1\n"))),
            };
            let server = Arc::new(FakeServer::plain());
            let door =
                galatea_http::start_vertex_ai(workers, listener, server.clone(), server, options);
            Box::new(door.expect("a door"))
        })
    }

    /// The gRPC door.
    pub fn grpc() -> Self {
        Self::start_inference_endpoint(|workers, listener| {
            let options = galatea_grpc::GrpcOptions::default();
            let server = Arc::new(FakeServer::plain());
            let door = galatea_grpc::start(workers, listener, server.clone(), server, options);
            Box::new(door.expect("a door"))
        })
    }

    fn start_inference_endpoint(
        open: impl FnOnce(&[Handle], TcpListener) -> Box<dyn std::any::Any> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("a port");
        let (opened, is_open) = mpsc::channel();
        std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            let _door = open(&[runtime.handle().clone()], listener);
            opened.send(()).expect("a target");
            runtime.block_on(std::future::pending::<()>());
        });
        is_open.recv().expect("a door");
        Self { address }
    }
}

/// Archives that are models.
#[derive(Debug)]
struct OneModel;

impl ModelArchiveClassifier for OneModel {
    fn layout(&self, _: AccessPass<api::ModelRepository>, _: &str) -> ModelArchiveKind {
        ModelArchiveKind::Model
    }
}

/// Sends `data` on a new connection, then the end, and returns everything that comes back.
/// A connection that the server doesn't end within the time for an input is a finding.
pub fn exchange(door: &DoorBuilder, data: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(door.address).expect("a door that listens");
    stream.set_read_timeout(Some(Duration::from_secs(9))).expect("a time-out");
    let mut answer = Vec::new();
    // The server may close before it has read everything.
    let sent = stream.write_all(data).and_then(|()| stream.shutdown(Shutdown::Write));
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error} ({sent:?})"),
    }
    answer
}
