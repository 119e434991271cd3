//! Helpers for this crate's tests: a host, requests, and models of the runtime in [`fake`].

#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod fake;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

use galatea_backend::{Device, Instance, LogLevel, Model, ModelHost, Placement};
use galatea_config::{ModelSpec, SupportedFeatures};
use galatea_devices::Devices;
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::{
    AdmissionTimes, CorrelationId, ExecutionSummary, ExecutionTimes, FailureReason,
    InferenceRequest, InferenceResponse, InputTensor, PendingRequest, Reply, RequestObserver,
    ResponseSender, SequenceContext, SequenceFlags, SequenceReleaseHook, StateTensor, Status,
};
use galatea_pbtxt::parse_config_draft;
use galatea_runtime::{MachineResources, RuntimeModel, SessionInterface};
use galatea_tensor::{Buffer, DataType, Shape};

use fake::{Compute, FakeSource, Journal};

/// Parses `text` as the configuration of the model `m`.
pub(crate) fn spec(text: &str) -> ModelSpec {
    let mut draft = parse_config_draft("config.pbtxt", text).unwrap();
    draft.resolve_name_and_backend("m", &["model.onnx".to_owned()]).unwrap();
    draft.into_validated_spec(&SupportedFeatures::default()).unwrap()
}

#[derive(Debug, Default)]
pub(crate) struct RecordingHost {
    pub(crate) batches: Mutex<Vec<u64>>,
    pub(crate) failed: Mutex<Vec<FailureReason>>,
}

impl ModelHost for RecordingHost {
    fn record_batch(&self, batch_size: u64, times: &ExecutionTimes) {
        let readings = times.readings();
        assert!(readings.start <= readings.compute_start && readings.compute_end <= readings.end);
        self.batches.lock().unwrap().push(batch_size);
    }

    fn model_version(&self) -> i64 {
        7
    }

    fn log(&self, _: LogLevel, _: &str) {}
}

impl RequestObserver for RecordingHost {
    fn succeeded(&self, _: u32, _: &AdmissionTimes, _: &ExecutionSummary) {}

    fn failed(&self, _: &AdmissionTimes, reason: FailureReason) {
        self.failed.lock().unwrap().push(reason);
    }
}

/// A loaded model with one instance.
pub(crate) struct TestModel {
    pub(crate) model: RuntimeModel<FakeSource>,
    pub(crate) instance: Box<dyn Instance>,
    pub(crate) host: Arc<RecordingHost>,
    pub(crate) journal: Arc<Journal>,
}

pub(crate) fn at(device: Device) -> Placement {
    let host_policy_settings = BTreeMap::new();
    Placement { name: String::from("m_0_0"), device, host_policy_settings }
}

pub(crate) fn try_load(
    interface: SessionInterface,
    compute: Compute,
    config: &str,
) -> Result<TestModel, Status> {
    let (host, journal) = (Arc::new(RecordingHost::default()), Arc::new(Journal::default()));
    let account = Arc::new(MemoryAccount::of_server(Arc::default()));
    let machine = MachineResources { devices: Devices::default(), account };
    let source = FakeSource { interface, compute, journal: journal.clone() };
    let model = RuntimeModel::load(source, machine, Arc::new(spec(config)), host.clone())?;
    let instance = model.create_instance(&at(Device::Cpu))?;
    Ok(TestModel { model, instance, host, journal })
}

pub(crate) fn load(interface: SessionInterface, compute: Compute, config: &str) -> TestModel {
    try_load(interface, compute, config).unwrap()
}

type Receiver = mpsc::Receiver<Reply>;

fn pending(request: InferenceRequest, host: &Arc<RecordingHost>) -> (PendingRequest, Receiver) {
    let (sender, replies) = mpsc::channel();
    let sender = ResponseSender::new(Box::new(move |reply: Reply| drop(sender.send(reply))));
    let first = request.inputs.first().and_then(|input| input.shape.dims().first().copied());
    let batch_size = u32::try_from(first.unwrap_or(1)).unwrap().max(1);
    let times = AdmissionTimes { arrival: Instant::now(), queued: Instant::now() };
    (PendingRequest::new(request, sender, batch_size, times, host.clone()), replies)
}

impl TestModel {
    /// Executes a batch and returns the results in batch order.
    pub(crate) fn execute(
        &mut self,
        requests: Vec<InferenceRequest>,
    ) -> Vec<Result<InferenceResponse, Status>> {
        let host = self.host.clone();
        self.execute_pending(requests.into_iter().map(|one| pending(one, &host)).collect())
    }

    /// Executes requests of numbered sequences.
    pub(crate) fn step(
        &mut self,
        store: &Arc<States>,
        requests: Vec<(u64, InferenceRequest)>,
    ) -> Vec<Result<InferenceResponse, Status>> {
        let host = self.host.clone();
        let rows = requests.into_iter().map(|(sequence, one)| store.row(&host, sequence, one));
        self.execute_pending(rows.collect())
    }

    /// Executes requests of numbered sequences until none is rescheduled, and returns all replies
    /// to each of them.
    pub(crate) fn iterate(
        &mut self,
        store: &Arc<States>,
        requests: Vec<(u64, InferenceRequest)>,
    ) -> Vec<Vec<Reply>> {
        let host = self.host.clone();
        let rows = requests.into_iter().map(|(sequence, one)| store.row(&host, sequence, one));
        let (mut live, replies): (Vec<_>, Vec<_>) = rows.unzip();
        while !live.is_empty() {
            self.instance.execute(live).unwrap();
            live = store.take_rescheduled();
        }
        replies.iter().map(|replies| replies.try_iter().collect()).collect()
    }

    fn execute_pending(
        &mut self,
        batch: Vec<(PendingRequest, Receiver)>,
    ) -> Vec<Result<InferenceResponse, Status>> {
        let (pending, replies): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        self.instance.execute(pending).unwrap();
        replies.iter().map(only_reply).collect()
    }

    /// The addresses and sizes of the latest run's inputs.
    pub(crate) fn places(&self) -> Vec<(usize, usize)> {
        self.journal.runs.lock().unwrap().last().cloned().unwrap_or_default()
    }
}

fn only_reply(replies: &Receiver) -> Result<InferenceResponse, Status> {
    let reply = replies.try_recv().expect("the request was answered");
    assert!(reply.is_final());
    match reply {
        Reply::Response { result, .. } => result,
        Reply::Finished => panic!("finished without a response"),
    }
}

/// The states of sequences, indexed by number. Each sequence starts with the state `initial`.
#[derive(Debug)]
pub(crate) struct States {
    initial: StateTensor,
    states: Mutex<BTreeMap<u64, StateTensor>>,
    /// The requests that instances rescheduled.
    rescheduled: Mutex<Vec<(u64, PendingRequest)>>,
}

impl States {
    /// Creates sequences with one state, which is passed from the output `STATE_OUT` to the input
    /// `STATE_IN`.
    pub(crate) fn new(datatype: DataType, dims: &[i64], data: Vec<u8>) -> Arc<Self> {
        let initial = StateTensor {
            input_name: Arc::from("STATE_IN"),
            output_name: Arc::from("STATE_OUT"),
            datatype,
            shape: Shape::new(dims).unwrap(),
            data: Buffer::from_vec(data),
        };
        Arc::new(Self { initial, states: Mutex::default(), rescheduled: Mutex::default() })
    }

    pub(crate) fn state(&self, sequence: u64) -> StateTensor {
        self.states.lock().unwrap().get(&sequence).unwrap_or(&self.initial).clone()
    }

    fn row(
        self: &Arc<Self>,
        host: &Arc<RecordingHost>,
        sequence: u64,
        request: InferenceRequest,
    ) -> (PendingRequest, Receiver) {
        let (mut pending, replies) = pending(request, host);
        self.begin_step(sequence, &mut pending);
        (pending, replies)
    }

    /// Adds the state, and makes the request a step of its sequence.
    fn begin_step(self: &Arc<Self>, sequence: u64, pending: &mut PendingRequest) {
        let state = self.states.lock().unwrap().remove(&sequence);
        let flags = SequenceFlags { start: state.is_none(), end: false };
        let state = state.unwrap_or_else(|| self.initial.clone());
        let StateTensor { input_name, datatype, shape, data, .. } = state.clone();
        let name = input_name.to_string();
        pending.inputs_mut().retain(|input| input.name != name);
        pending.inputs_mut().push(InputTensor { name, datatype, shape, data });
        pending.begin_sequence_step(Box::new(SequenceContext {
            correlation_id: CorrelationId::Number(sequence),
            flags,
            states: vec![state],
            owner: self.clone(),
            key: sequence,
            iterative: true,
        }));
    }

    /// The requests that were rescheduled since the last call, ready for their next execution.
    fn take_rescheduled(self: &Arc<Self>) -> Vec<PendingRequest> {
        let mut taken = std::mem::take(&mut *self.rescheduled.lock().unwrap());
        for (sequence, pending) in &mut taken {
            self.begin_step(*sequence, pending);
        }
        taken.into_iter().map(|(_, pending)| pending).collect()
    }
}

impl SequenceReleaseHook for States {
    fn released(&self, key: u64, states: Vec<StateTensor>) {
        let [state] = states.try_into().unwrap();
        self.states.lock().unwrap().insert(key, state);
    }

    fn rescheduled(&self, key: u64, request: PendingRequest, states: Vec<StateTensor>) {
        self.released(key, states);
        self.rescheduled.lock().unwrap().push((key, request));
    }
}

pub(crate) fn request(inputs: Vec<InputTensor>) -> InferenceRequest {
    InferenceRequest { id: String::from("r"), inputs, ..InferenceRequest::default() }
}

pub(crate) fn tensor(name: &str, datatype: DataType, dims: &[i64], data: Vec<u8>) -> InputTensor {
    let shape = Shape::new(dims).unwrap();
    InputTensor { name: name.to_owned(), datatype, shape, data: Buffer::from_vec(data) }
}

/// A request whose input `X` contains these numbers.
pub(crate) fn numbers(dims: &[i64], values: &[i32]) -> InferenceRequest {
    request(vec![tensor("X", DataType::Int32, dims, int32s(values))])
}

pub(crate) fn int32s(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Frames strings as in requests.
pub(crate) fn framed(texts: &[&str]) -> Vec<u8> {
    let frame = |text: &&str| {
        let length = u32::try_from(text.len()).unwrap().to_le_bytes();
        [&length[..], text.as_bytes()].concat()
    };
    texts.iter().flat_map(frame).collect()
}

/// An output's dimensions and bytes.
pub(crate) fn output<'a>(response: &'a InferenceResponse, name: &str) -> (&'a [i64], &'a [u8]) {
    let output = response.outputs.iter().find(|output| *output.name == *name).unwrap();
    (output.shape.dims(), output.data.host_bytes().unwrap())
}

/// The error message of a failed result.
pub(crate) fn failure<T>(result: Result<T, Status>) -> String {
    match result {
        Ok(_) => panic!("this must fail"),
        Err(status) => status.message().to_owned(),
    }
}
