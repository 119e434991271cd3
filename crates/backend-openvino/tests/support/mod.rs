//! Helpers for this backend's tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, mpsc};
use std::time::Instant;

use galatea_backend::{
    Backend, Device, Instance, LogLevel, Model, ModelFiles, ModelHost, Placement,
};
use galatea_backend_openvino::{BackendOptions, Library, OpenVinoBackend};
use galatea_config::{ModelSpec, SupportedFeatures};
use galatea_devices::Devices;
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::{
    AdmissionTimes, ExecutionSummary, ExecutionTimes, FailureReason, InferenceRequest,
    InferenceResponse, InputTensor, PendingRequest, Reply, RequestObserver, ResponseSender, Status,
};
use galatea_pbtxt::parse_config_draft;
use galatea_tensor::{Buffer, DataType, Shape};

/// The library; `None` if the variable that names it is not set, which skips the tests.
pub(crate) fn library() -> Option<Arc<Library>> {
    static LIBRARY: LazyLock<Option<Arc<Library>>> = LazyLock::new(|| {
        #[allow(clippy::disallowed_methods, reason = "a test has no caller that could pass it in")]
        let path = std::env::var_os("GALATEA_TEST_OPENVINO")?;
        Some(Library::open(Path::new(&path)).unwrap())
    });
    LIBRARY.clone()
}

pub(crate) fn backend(library: Arc<Library>) -> OpenVinoBackend {
    let options = BackendOptions {
        backend_config: BTreeMap::new(),
        devices: Devices::default(),
        account: Arc::new(MemoryAccount::of_server(Arc::default())),
    };
    OpenVinoBackend::new(library, options).unwrap()
}

/// A temporary version directory.
pub(crate) struct Files {
    root: PathBuf,
    version: PathBuf,
}

impl Files {
    pub(crate) fn new(name: &str, contents: &str) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = format!("galatea-openvino-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(folder);
        let version = root.join("1");
        fs::create_dir_all(&version).unwrap();
        fs::write(version.join(name), contents).unwrap();
        Self { root, version }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

impl ModelFiles for Files {
    fn model_path(&self) -> &Path {
        &self.root
    }

    fn version(&self) -> i64 {
        1
    }

    fn version_path(&self) -> &Path {
        &self.version
    }

    fn resolve(&self, name: &str) -> Result<PathBuf, Status> {
        let path = self.version.join(name);
        if path.exists() { Ok(path) } else { Err(Status::not_found("no such file")) }
    }
}

/// A host that keeps the log's lines.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl ModelHost for Log {
    fn record_batch(&self, _: u64, _: &ExecutionTimes) {}

    fn model_version(&self) -> i64 {
        1
    }

    fn log(&self, _: LogLevel, line: &str) {
        self.0.lock().unwrap().push(line.to_owned());
    }
}

#[derive(Debug)]
struct QuietObserver;

impl RequestObserver for QuietObserver {
    fn succeeded(&self, _: u32, _: &AdmissionTimes, _: &ExecutionSummary) {}

    fn failed(&self, _: &AdmissionTimes, _: FailureReason) {}
}

/// A loaded model with one instance.
pub(crate) struct TestModel {
    pub(crate) instance: Box<dyn Instance>,
    _model: Box<dyn Model>,
    log: Log,
}

pub(crate) fn spec(text: &str) -> ModelSpec {
    let mut draft = parse_config_draft("config.pbtxt", text).unwrap();
    draft.resolve_name_and_backend("m", &["model.xml".to_owned()]).unwrap();
    draft.into_validated_spec(&SupportedFeatures::default()).unwrap()
}

pub(crate) fn try_load(
    library: Arc<Library>,
    files: &Files,
    config: &str,
) -> Result<TestModel, Status> {
    let log = Log::default();
    let model = backend(library).load(Arc::new(spec(config)), files, Arc::new(log.clone()))?;
    let host_policy_settings = BTreeMap::new();
    let at = Placement { name: String::from("m_0_0"), device: Device::Cpu, host_policy_settings };
    Ok(TestModel { instance: model.create_instance(&at)?, _model: model, log })
}

impl TestModel {
    /// The log's lines since the model's load began.
    pub(crate) fn log(&self) -> String {
        self.log.0.lock().unwrap().join("\n")
    }

    /// Executes a batch and returns the results in batch order.
    pub(crate) fn execute(
        &mut self,
        requests: Vec<InferenceRequest>,
    ) -> Vec<Result<InferenceResponse, Status>> {
        let (pending, replies): (Vec<_>, Vec<_>) = requests.into_iter().map(pending).unzip();
        self.instance.execute(pending).unwrap();
        replies.iter().map(only_reply).collect()
    }
}

fn pending(request: InferenceRequest) -> (PendingRequest, mpsc::Receiver<Reply>) {
    let (sender, replies) = mpsc::channel();
    let sender = ResponseSender::new(Box::new(move |reply: Reply| drop(sender.send(reply))));
    let first = request.inputs.first().and_then(|input| input.shape.dims().first().copied());
    let batch_size = u32::try_from(first.unwrap_or(1)).unwrap().max(1);
    let times = AdmissionTimes { arrival: Instant::now(), queued: Instant::now() };
    (PendingRequest::new(request, sender, batch_size, times, Arc::new(QuietObserver)), replies)
}

fn only_reply(replies: &mpsc::Receiver<Reply>) -> Result<InferenceResponse, Status> {
    match replies.try_recv().expect("the request was answered") {
        Reply::Response { result, .. } => result,
        Reply::Finished => panic!("finished without a response"),
    }
}

/// A request whose inputs have these names, dimensions and numbers.
pub(crate) fn request(inputs: &[(&str, &[i64], &[f32])]) -> InferenceRequest {
    let tensor = |&(name, dims, values): &(&str, &[i64], &[f32])| InputTensor {
        name: name.to_owned(),
        datatype: DataType::Fp32,
        shape: Shape::new(dims).unwrap(),
        data: Buffer::from_vec(values.iter().flat_map(|value| value.to_le_bytes()).collect()),
    };
    InferenceRequest { inputs: inputs.iter().map(tensor).collect(), ..InferenceRequest::default() }
}

/// An output's dimensions and numbers.
pub(crate) fn output(response: &InferenceResponse, name: &str) -> (Vec<i64>, Vec<f32>) {
    let output = response.outputs.iter().find(|output| *output.name == *name).unwrap();
    let bytes = output.data.host_bytes().unwrap();
    let numbers = bytes.as_chunks::<4>().0.iter().map(|&four| f32::from_le_bytes(four));
    (output.shape.dims().to_vec(), numbers.collect())
}

/// A model in the intermediate representation, with the outputs `SUM`, which is A + B, and `SAME`,
/// which is A's positive part.
pub(crate) fn two_outputs(dims: &[i64], layout: &str) -> String {
    let shape: Vec<String> =
        dims.iter().map(|dim| if *dim < 0 { String::from("?") } else { dim.to_string() }).collect();
    let shape = shape.join(",");
    let dims: String = dims.iter().map(|dim| format!("<dim>{dim}</dim>")).collect();
    let layout = match layout {
        "" => String::new(),
        layout => format!("<attribute name=\"layout\" version=\"0\" layout=\"{layout}\" />"),
    };
    let info = format!("<rt_info>{layout}</rt_info>");
    let input = |id: u32, name: &str| {
        format!(
            "<layer id=\"{id}\" name=\"{name}\" type=\"Parameter\" version=\"opset1\">\
             <data shape=\"{shape}\" element_type=\"f32\"/>\
             <output><port id=\"0\" precision=\"FP32\" names=\"{name}\">{dims}{info}</port>\
             </output>\
             </layer>"
        )
    };
    let port = |id: u32| format!("<port id=\"{id}\" precision=\"FP32\">{dims}</port>");
    let result = |id: u32, name: &str| {
        format!(
            "<layer id=\"{id}\" name=\"{name}/result\" type=\"Result\" version=\"opset1\">\
             <input>{}</input></layer>",
            port(0)
        )
    };
    let edge = |from: u32, from_port: u32, to: u32, to_port: u32| {
        format!(
            "<edge from-layer=\"{from}\" from-port=\"{from_port}\" to-layer=\"{to}\" \
             to-port=\"{to_port}\"/>"
        )
    };
    let edges = [edge(0, 0, 2, 0), edge(1, 0, 2, 1), edge(0, 0, 3, 0), edge(2, 2, 4, 0)].concat()
        + &edge(3, 1, 5, 0);
    format!(
        "<?xml version=\"1.0\"?><net name=\"m\" version=\"11\"><layers>{}{}\
         <layer id=\"2\" name=\"sum\" type=\"Add\" version=\"opset1\">\
         <data auto_broadcast=\"numpy\"/><input>{}{}</input>\
         <output><port id=\"2\" precision=\"FP32\" names=\"SUM\">{dims}{info}</port></output>\
         </layer>\
         <layer id=\"3\" name=\"same\" type=\"ReLU\" version=\"opset1\"><input>{}</input>\
         <output><port id=\"1\" precision=\"FP32\" names=\"SAME\">{dims}{info}</port></output>\
         </layer>\
         {}{}</layers><edges>{edges}</edges></net>",
        input(0, "A"),
        input(1, "B"),
        port(0),
        port(1),
        port(0),
        result(4, "SUM"),
        result(5, "SAME"),
    )
}

/// A model whose input A and output B have eight rows of two numbers, which can't vary because of a
/// constant.
pub(crate) fn fixed_rows() -> Files {
    let dims = "<dim>8</dim><dim>2</dim>";
    let port =
        |id: u32, name: &str| format!("<port id=\"{id}\" precision=\"FP32\"{name}>{dims}</port>");
    let shape = "<port id=\"1\" precision=\"I64\"><dim>2</dim></port>";
    let text = format!(
        "<?xml version=\"1.0\"?><net name=\"m\" version=\"11\"><layers>\
         <layer id=\"0\" name=\"A\" type=\"Parameter\" version=\"opset1\">\
         <data shape=\"8,2\" element_type=\"f32\"/><output>{}</output></layer>\
         <layer id=\"1\" name=\"shape\" type=\"Const\" version=\"opset1\">\
         <data element_type=\"i64\" shape=\"2\" offset=\"0\" size=\"16\"/>\
         <output>{shape}</output></layer>\
         <layer id=\"2\" name=\"B\" type=\"Reshape\" version=\"opset1\">\
         <data special_zero=\"false\"/><input>{}{shape}</input><output>{}</output></layer>\
         <layer id=\"3\" name=\"B/result\" type=\"Result\" version=\"opset1\">\
         <input>{}</input></layer></layers><edges>\
         <edge from-layer=\"0\" from-port=\"0\" to-layer=\"2\" to-port=\"0\"/>\
         <edge from-layer=\"1\" from-port=\"1\" to-layer=\"2\" to-port=\"1\"/>\
         <edge from-layer=\"2\" from-port=\"2\" to-layer=\"3\" to-port=\"0\"/></edges></net>",
        port(0, " names=\"A\""),
        port(0, ""),
        port(2, " names=\"B\""),
        port(0, ""),
    );
    let files = Files::new("model.xml", &text);
    let sizes = [8_i64, 2].map(i64::to_le_bytes);
    fs::write(files.version.join("model.bin"), sizes.as_flattened()).unwrap();
    files
}

/// A model with the outputs `SAME`, the positive part of A, and `R`, which has the values of A and
/// the shape that S contains.
pub(crate) fn variable_rank() -> String {
    let f32 = |id: u32, name: &str| {
        format!("<port id=\"{id}\" precision=\"FP32\"{name}><dim>-1</dim></port>")
    };
    let i64 = |id: u32| format!("<port id=\"{id}\" precision=\"I64\"><dim>-1</dim></port>");
    let any = |id: u32, name: &str| format!("<port id=\"{id}\" precision=\"FP32\"{name}/>");
    let layer = |id: u32, name: &str, kind: &str, inside: &str| {
        format!(
            "<layer id=\"{id}\" name=\"{name}\" type=\"{kind}\" version=\"opset1\">{inside}</layer>"
        )
    };
    let parameter = |shape: &str, name: &str| {
        let port = f32(0, &format!(" names=\"{name}\""));
        format!("<data shape=\"{shape}\" element_type=\"f32\"/><output>{port}</output>")
    };
    let one = |data: &str, input: String, output: String| {
        format!("{data}<input>{input}</input><output>{output}</output>")
    };
    let end = |input: String| format!("<input>{input}</input>");
    let layers = [
        layer(0, "A", "Parameter", &parameter("?", "A")),
        layer(1, "S", "Parameter", &parameter("?", "S")),
        layer(2, "same", "ReLU", &one("", f32(0, ""), f32(1, " names=\"SAME\""))),
        layer(3, "c", "Convert", &one("<data destination_type=\"i64\"/>", f32(0, ""), i64(1))),
        layer(
            4,
            "r",
            "Reshape",
            &one("<data special_zero=\"false\"/>", f32(0, "") + &i64(1), any(2, " names=\"R\"")),
        ),
        layer(5, "SAME/result", "Result", &end(f32(0, ""))),
        layer(6, "R/result", "Result", &end(any(0, ""))),
    ];
    let edges =
        [(0, 0, 2, 0), (1, 0, 3, 0), (0, 0, 4, 0), (3, 1, 4, 1), (2, 1, 5, 0), (4, 2, 6, 0)];
    let edges = edges.map(|(from, from_port, to, to_port)| {
        format!(
            "<edge from-layer=\"{from}\" from-port=\"{from_port}\" to-layer=\"{to}\" \
             to-port=\"{to_port}\"/>"
        )
    });
    format!(
        "<?xml version=\"1.0\"?><net name=\"m\" version=\"11\"><layers>{}</layers>\
         <edges>{}</edges></net>",
        layers.concat(),
        edges.concat()
    )
}

/// A model that squares a matrix many times.
pub(crate) fn long_chain(length: usize) -> String {
    let port = |id: u32, name: &str| {
        format!("<port id=\"{id}\" precision=\"FP32\"{name}><dim>512</dim><dim>512</dim></port>")
    };
    let mut layers = format!(
        "<layer id=\"0\" name=\"A\" type=\"Parameter\" version=\"opset1\">\
         <data shape=\"512,512\" element_type=\"f32\"/><output>{}</output></layer>",
        port(2, " names=\"A\"")
    );
    let mut edges = String::new();
    for id in 1..=length {
        let name = if id == length { " names=\"B\"" } else { "" };
        layers.push_str(&format!(
            "<layer id=\"{id}\" name=\"l{id}\" type=\"MatMul\" version=\"opset1\">\
             <data transpose_a=\"false\" transpose_b=\"false\"/><input>{}{}</input>\
             <output>{}</output></layer>",
            port(0, ""),
            port(1, ""),
            port(2, name)
        ));
        for to_port in 0..2 {
            edges.push_str(&format!(
                "<edge from-layer=\"{}\" from-port=\"2\" to-layer=\"{id}\" to-port=\"{to_port}\"/>",
                id - 1
            ));
        }
    }
    let result = length + 1;
    layers.push_str(&format!(
        "<layer id=\"{result}\" name=\"B/result\" type=\"Result\" version=\"opset1\">\
         <input>{}</input></layer>",
        port(0, "")
    ));
    edges.push_str(&format!(
        "<edge from-layer=\"{length}\" from-port=\"2\" to-layer=\"{result}\" to-port=\"0\"/>"
    ));
    format!(
        "<?xml version=\"1.0\"?><net name=\"m\" version=\"11\"><layers>{layers}</layers>\
         <edges>{edges}</edges></net>"
    )
}
