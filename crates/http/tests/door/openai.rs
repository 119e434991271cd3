//! The OpenAI endpoint: its threads and its memory.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};

use galatea_fakes::{FakeServer, HeldRequest};
use galatea_gate::ledger::MemoryLedger;
use galatea_http::{
    AdapterList, AdapterSource, HttpOptions, OpenAiMeters, OpenAiOptions, RunningDoor, start_openai,
};
use galatea_stdx::testing::wait_until;
use galatea_tensor::DataType;

use crate::harness::{Client, PATIENCE, Workers, listener};

/// An endpoint with one I/O thread, in front of a model that takes texts.
struct OpenAiServer {
    door: RunningDoor,
    fake: Arc<FakeServer>,
    held: mpsc::Receiver<HeldRequest>,
    _workers: Workers,
}

impl OpenAiServer {
    fn start(backend: &str, inputs: &[&str], options: OpenAiOptions) -> Self {
        let (mut fake, held) = FakeServer::new();
        backend.clone_into(&mut fake.model.backend);
        fake.model.max_batch_size = 1000;
        let mut input = fake.model.input.remove(0);
        input.data_type = DataType::Bytes.config_number();
        input.dims = vec![1];
        for name in inputs {
            (*name).clone_into(&mut input.name);
            fake.model.input.push(input.clone());
        }
        let (fake, workers) = (Arc::new(fake), Workers::start(1));
        let door = start_openai(&workers.handles, listener(), fake.clone(), fake.clone(), options)
            .unwrap();
        Self { door, fake, held, _workers: workers }
    }

    fn send(&self, path: &str, body: &str) -> Client {
        let mut client = Client::connect(self.door.address());
        client.request("POST", path, "", body.as_bytes());
        client
    }
}

fn options() -> OpenAiOptions {
    OpenAiOptions {
        http: HttpOptions::default(),
        template: None,
        format: None,
        tokens_default: 16,
        adapters: None,
        tool_format: None,
        tool_chars_max: 100,
        has_model_control: false,
        metrics: Arc::new(String::new),
        meters: Arc::new(OpenAiMeters::default()),
    }
}

#[test]
fn files_are_read_away_from_the_io_threads() {
    let (go_on, signal) = mpsc::channel();
    let signal = Mutex::new(signal);
    let read = move |_: &str| {
        // The I/O thread responds to another client in the meantime.
        signal.lock().unwrap().recv_timeout(PATIENCE / 4).expect("the I/O thread is blocked");
        AdapterList::Known(Vec::new())
    };
    let open = |_: &str, _: &Path| Err(String::from("no files"));
    let (read, open) = (Arc::new(read), Arc::new(open));
    let adapters = AdapterSource { separator: String::from("_lora_"), read, open };
    let options = OpenAiOptions { adapters: Some(adapters), ..options() };
    let server = OpenAiServer::start("vllm", &["text_input"], options);
    let body = r#"{"model":"m_lora_a","prompt":"x"}"#;
    let mut waiting = server.send("/v1/completions", body);
    wait_until("the model is found", || server.fake.lookups.load(Ordering::SeqCst) > 0);
    let mut other = Client::connect(server.door.address());
    other.request("GET", "/health/ready", "", b"");
    assert_eq!(other.response().code, 200);
    go_on.send(()).unwrap();
    let response = waiting.response();
    let expected = r#"{"detail":"Unknown LoRA: a; for model: m_lora_a"}"#;
    assert_eq!((response.code, response.text()), (400, expected));
}

#[test]
fn a_query_is_charged_once_per_document() {
    let ledger = Arc::new(MemoryLedger::new(Some(8 << 20)));
    let http = HttpOptions { ledger: ledger.clone(), ..HttpOptions::default() };
    let options = OpenAiOptions { http, ..options() };
    let server = OpenAiServer::start("text", &["query", "text"], options);
    let rerank = |count: usize| {
        let documents = vec![r#""""#; count].join(",");
        let query = "q".repeat(20_000);
        let body = format!(r#"{{"model":"held","query":"{query}","documents":[{documents}]}}"#);
        server.send("/v1/rerank", &body)
    };
    let many = rerank(1001).response();
    let expected = r#"{"detail":"`documents` has 1001 items, but the model takes at most 1000"}"#;
    assert_eq!((many.code, many.text()), (400, expected));
    let large = rerank(1000).response();
    assert_eq!((large.code, large.header("Retry-After")), (503, Some("1")));
    assert_eq!((server.fake.requests.load(Ordering::SeqCst), ledger.refusals()), (0, 1));
    let mut client = rerank(100);
    let held = server.held.recv_timeout(PATIENCE).unwrap();
    assert!(ledger.held() > 2_000_000, "{}", ledger.held());
    drop(held);
    assert_eq!(client.response().code, 500);
    drop(client);
    wait_until("the memory is released", || ledger.held() == 0);
}
