//! A running SageMaker or Vertex AI door.

use std::sync::{Arc, Mutex, mpsc};

use galatea_control::{ModelArchiveClassifier, ModelArchiveKind};
use galatea_fakes::{FakeServer, HeldRequest};
use galatea_http::{
    HttpOptions, InferenceType, PathPattern, PingCheck, RunningDoor, SageMakerOptions,
    VertexAiOptions, start_sagemaker, start_vertex_ai,
};
use galatea_infer::{AccessPass, api};

use crate::harness::{Client, Response, Workers, listener};

/// A classifier for archives whose paths describe their layout.
#[derive(Debug)]
struct NamedArchives;

impl ModelArchiveClassifier for NamedArchives {
    fn layout(&self, _: AccessPass<api::ModelRepository>, path: &str) -> ModelArchiveKind {
        match path {
            _ if path.contains("flat") => ModelArchiveKind::Model,
            _ if path.contains("empty") => ModelArchiveKind::Repository(String::new()),
            _ => ModelArchiveKind::Repository(String::from("inner")),
        }
    }
}

pub(crate) struct Cloud {
    pub(crate) door: RunningDoor,
    pub(crate) fake: Arc<FakeServer>,
    pub(crate) held: Mutex<mpsc::Receiver<HeldRequest>>,
    pub(crate) notices: Arc<Mutex<Vec<String>>>,
    _workers: Workers,
}

impl Cloud {
    pub(crate) fn sagemaker() -> Self {
        Self::sagemaker_with(HttpOptions::default(), InferenceType::Infer, PingCheck::Ready)
    }

    pub(crate) fn sagemaker_with(
        http: HttpOptions,
        inference: InferenceType,
        ping: PingCheck,
    ) -> Self {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let written = lines.clone();
        Self::start(lines, |workers, fake| {
            let options = SageMakerOptions {
                http,
                ping,
                default_model: String::from("echo"),
                inference,
                archives: Arc::new(NamedArchives),
                notices: Arc::new(move |line| written.lock().unwrap().push(line.to_string())),
            };
            start_sagemaker(&workers.handles, listener(), fake.clone(), fake, options).unwrap()
        })
    }

    pub(crate) fn vertex_ai(http: HttpOptions) -> Self {
        Self::start(Arc::default(), |workers, fake| {
            let options = VertexAiOptions {
                http,
                health: PathPattern::new("/health").unwrap(),
                predict: PathPattern::new("/predict").unwrap(),
                default_model: String::from("echo"),
                metrics: Some(Arc::new(|| String::from("a 1\n"))),
            };
            start_vertex_ai(&workers.handles, listener(), fake.clone(), fake, options).unwrap()
        })
    }

    fn start(
        notices: Arc<Mutex<Vec<String>>>,
        open: impl FnOnce(&Workers, Arc<FakeServer>) -> RunningDoor,
    ) -> Self {
        let workers = Workers::start(2);
        let (fake, held) = FakeServer::new();
        let fake = Arc::new(fake);
        let door = open(&workers, fake.clone());
        Self { door, fake, held: Mutex::new(held), notices, _workers: workers }
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.door.address())
    }

    pub(crate) fn call(&self, method: &str, path: &str, headers: &str, body: &str) -> Response {
        let mut client = self.connect();
        client.request(method, path, headers, body.as_bytes());
        client.response()
    }

    #[track_caller]
    pub(crate) fn check(&self, method: &str, path: &str, body: &str, code: u16, expected: &str) {
        let response = self.call(method, path, "", body);
        assert_eq!((response.code, response.text()), (code, expected), "{method} {path}");
    }

    /// Checks the response to a redirected request.
    #[track_caller]
    pub(crate) fn check_redirect(&self, path: &str, body: &str, code: u16, expected: &str) {
        let headers = format!("X-Vertex-Ai-Triton-Redirect: {path}\r\n");
        let response = self.call("POST", "/predict", &headers, body);
        assert_eq!((response.code, response.text()), (code, expected), "{path}");
    }

    pub(crate) fn load(&self, name: &str, folder: &str) -> Response {
        self.call("POST", "/models", "", &load_body(name, folder))
    }

    pub(crate) fn orders(&self) -> Vec<String> {
        std::mem::take(&mut *self.fake.orders.lock().unwrap())
    }
}

pub(crate) fn load_body(name: &str, folder: &str) -> String {
    format!(r#"{{"model_name":"{name}","url":"/opt/ml/models/{folder}/model"}}"#)
}
