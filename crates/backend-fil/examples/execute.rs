//! Measures executions of a model by the backend, without a server or a network.
//!
//! `execute MODEL ROWS COUNT…` loads version 1 of the model directory MODEL, which has a
//! `config.pbtxt`. For each COUNT, it prints the minimum and median time in microseconds of an
//! execution of one request with COUNT rows, and of two requests with half of them each. ROWS is a
//! file of 32-bit floats without a header.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use galatea_backend::{Backend, Device, Instance, LogLevel, ModelFiles, ModelHost, Placement};
use galatea_backend_fil::FilBackend;
use galatea_config::{ModelSpec, SupportedFeatures};
use galatea_infer::{
    AdmissionTimes, ExecutionSummary, ExecutionTimes, FailureReason, InferenceRequest, InputTensor,
    PendingRequest, Reply, RequestObserver, ResponseSender, Status,
};
use galatea_pbtxt::parse_config_draft;
use galatea_tensor::{Buffer, DataType, Shape};

/// The measurement time for each row count.
const MEASUREMENT: Duration = Duration::from_secs(2);
const VALUE_BYTES: usize = size_of::<f32>();

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, rows, counts @ ..] = &arguments[..] else {
        return Err("usage: execute MODEL ROWS COUNT...".into());
    };
    let model = PathBuf::from(model);
    let spec = Arc::new(read_spec(&model)?);
    let [input] = &spec.inputs[..] else { return Err("the model needs one input".into()) };
    let features = usize::try_from(input.dims.iter().product::<i64>())?;
    let files = Files { version: model.join("1"), model };
    let loaded = FilBackend.load(spec, &files, Arc::new(QuietHost))?;
    let host_policy_settings = BTreeMap::new();
    let at = Placement { name: String::from("m_0_0"), device: Device::Cpu, host_policy_settings };
    let mut instance = loaded.create_instance(&at)?;
    let rows = Bytes::from(std::fs::read(rows)?);
    for count in counts {
        let count = count.parse()?;
        measure(&mut *instance, &rows, features, count, 1)?;
        measure(&mut *instance, &rows, features, count, 2)?;
    }
    Ok(())
}

fn read_spec(model: &Path) -> Result<ModelSpec, Box<dyn Error>> {
    let path = model.join("config.pbtxt");
    let text = std::fs::read_to_string(&path)?;
    let mut draft = parse_config_draft("config.pbtxt", &text).map_err(|error| error.to_string())?;
    draft.resolve_name_and_backend("m", &[]).map_err(|error| error.to_string())?;
    let spec = draft.into_validated_spec(&SupportedFeatures::default());
    Ok(spec.map_err(|errors| errors.to_string())?)
}

/// Measures executions of a batch of `requests` requests with `count` rows in all. Each execution
/// gets different rows than the previous one.
#[expect(clippy::print_stdout, reason = "this is a measurement")]
fn measure(
    instance: &mut dyn Instance,
    rows: &Bytes,
    features: usize,
    count: usize,
    requests: usize,
) -> Result<(), Box<dyn Error>> {
    let share = count / requests;
    let part_bytes = share * features * VALUE_BYTES;
    if part_bytes == 0 || rows.len() < part_bytes * requests {
        return Ok(());
    }
    let (sender, receiver) = mpsc::channel();
    let mut times = Vec::new();
    let begin = Instant::now();
    let places = (0..=rows.len() - part_bytes * requests).step_by(part_bytes * requests);
    for place in places.cycle() {
        let part = |index: usize| {
            let start = place + index * part_bytes;
            pending(rows.slice(start..start + part_bytes), share, features, &sender)
        };
        let batch = (0..requests).map(part).collect::<Result<Vec<_>, _>>()?;
        let before = Instant::now();
        instance.execute(batch).map_err(|_| "the instance refused the batch")?;
        times.push(before.elapsed());
        for _ in 0..requests {
            let Reply::Response { result, .. } = receiver.recv()? else {
                return Err("finished without a response".into());
            };
            result?;
        }
        if begin.elapsed() > MEASUREMENT {
            break;
        }
    }
    times.sort_unstable();
    let microseconds = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1e6);
    let least = microseconds(times.first());
    let middle = microseconds(times.get(times.len() / 2));
    println!("{count} {requests} {least:.1} {middle:.1}");
    Ok(())
}

/// A request whose response goes to `sender`.
fn pending(
    data: Bytes,
    rows: usize,
    features: usize,
    sender: &mpsc::Sender<Reply>,
) -> Result<PendingRequest, Box<dyn Error>> {
    let mut request = InferenceRequest::default();
    request.inputs.push(InputTensor {
        name: String::from("input__0"),
        datatype: DataType::Fp32,
        shape: Shape::new(&[i64::try_from(rows)?, i64::try_from(features)?])?,
        data: Buffer::from_bytes(data),
    });
    let sender = sender.clone();
    let sender = ResponseSender::new(Box::new(move |reply: Reply| drop(sender.send(reply))));
    let now = Instant::now();
    let times = AdmissionTimes { arrival: now, queued: now };
    Ok(PendingRequest::new(request, sender, u32::try_from(rows)?, times, Arc::new(QuietHost)))
}

/// The directories of a model.
struct Files {
    model: PathBuf,
    version: PathBuf,
}

impl ModelFiles for Files {
    fn model_path(&self) -> &Path {
        &self.model
    }

    fn version(&self) -> i64 {
        1
    }

    fn version_path(&self) -> &Path {
        &self.version
    }

    fn resolve(&self, name: &str) -> Result<PathBuf, Status> {
        Ok(self.version.join(name))
    }
}

/// A host that records nothing.
#[derive(Debug)]
struct QuietHost;

impl ModelHost for QuietHost {
    fn record_batch(&self, _: u64, _: &ExecutionTimes) {}

    fn model_version(&self) -> i64 {
        1
    }

    fn log(&self, _: LogLevel, _: &str) {}
}

impl RequestObserver for QuietHost {
    fn succeeded(&self, _: u32, _: &AdmissionTimes, _: &ExecutionSummary) {}

    fn failed(&self, _: &AdmissionTimes, _: FailureReason) {}
}
