//! Calls about memory that clients share, in any order: objects are resized, regions are
//! registered over HTTP or gRPC, used by tensors, and unregistered.
//!
//! An input is a list of calls. Each begins with a byte that selects it. A line end is the end of
//! its text; a gRPC message, which may have such bytes, has its length in front.

#![no_main]

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use galatea_codec::limits::MessageLimits;
use galatea_codec_http::{
    DecodeContext, OutputFormatMap, SystemShmRegisterRequest, TargetModel, decode_infer,
};
use galatea_control::{RequestShmRegions, ShmControl, ShmKind, SystemShmRegion};
use galatea_gate::access::AccessPass;
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::{InferenceRequest, InferenceResponse, OutputTensor};
use galatea_protocol::inference::SystemSharedMemoryRegisterRequest;
use galatea_shm::ShmRegistry;
use libfuzzer_sys::fuzz_target;
use prost::Message;

const OBJECTS: usize = 3;
const BYTES_MAX: u64 = 1 << 16;

/// The objects of a client, which stay after a run. `@` and a digit stand for them in keys.
static CLIENT: LazyLock<Vec<File>> = LazyLock::new(|| {
    (0..OBJECTS)
        .map(|number| {
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true).create(true).truncate(true);
            let path = format!("/dev/shm/{}", object(number));
            options.open(path).expect("an object can be made")
        })
        .collect()
});

fn object(number: usize) -> String {
    format!("galatea_fuzz_{number}")
}

fn with_objects(key: &str) -> String {
    (0..OBJECTS)
        .fold(key.to_owned(), |key, number| key.replace(&format!("@{number}"), &object(number)))
}

fuzz_target!(|data: &[u8]| {
    let regions = ShmRegistry::default();
    for file in CLIENT.iter() {
        file.set_len(8192).expect("an object can be resized");
    }
    let mut calls = data;
    while let Some((&kind, rest)) = calls.split_first() {
        let (text, rest) = if kind == b'g' { message(rest) } else { line(rest) };
        calls = rest;
        call(&regions, kind, text);
    }
    let all = regions.status(AccessPass::in_process(), "").expect("all are listed");
    assert!(all.iter().all(|region| !region.key.contains("triton_python_backend")));
    regions
        .unregister(AccessPass::in_process(), ShmKind::System, "")
        .expect("all are unregistered");
});

/// The text up to the end of its line, and what follows.
fn line(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[]),
    }
}

/// The bytes whose number stands in front, and what follows.
fn message(bytes: &[u8]) -> (&[u8], &[u8]) {
    let Some((&length, rest)) = bytes.split_first() else { return (&[], &[]) };
    rest.split_at(usize::from(length).min(rest.len()))
}

fn call(regions: &ShmRegistry, kind: u8, line: &[u8]) {
    match kind {
        b'h' => {
            if let Ok(request) = SystemShmRegisterRequest::decode(line, &MessageLimits::default()) {
                register(regions, request.into_region("r"));
            }
        }
        b'g' => {
            if let Ok(request) = SystemSharedMemoryRegisterRequest::decode(line) {
                let SystemSharedMemoryRegisterRequest { name, key, offset, byte_size } = request;
                register(regions, SystemShmRegion { name, key, offset, byte_size });
            }
        }
        b'u' => {
            let name = String::from_utf8_lossy(line);
            let result = regions.unregister(AccessPass::in_process(), ShmKind::System, &name);
            result.expect("any name may be unregistered");
        }
        b's' => {
            let name = String::from_utf8_lossy(line);
            let _ = regions.cuda_status(AccessPass::in_process(), &name);
        }
        b'l' => {
            let mut digits = [0; 3];
            let _ = (&mut &*line).read(&mut digits);
            let [number, high, low] = digits;
            let length = u64::from(u16::from_be_bytes([high, low])).min(BYTES_MAX);
            let file = &CLIENT[usize::from(number) % OBJECTS];
            file.set_len(length).expect("an object can be resized");
        }
        _ => infer(regions, line),
    }
}

fn register(regions: &ShmRegistry, mut region: SystemShmRegion) {
    region.key = with_objects(&region.key);
    let (name, end) = (region.name.clone(), region.offset.checked_add(region.byte_size));
    if regions.register(AccessPass::in_process(), region.clone()).is_ok() {
        assert!(end.expect("a sum that overflows is refused") <= BYTES_MAX);
        let shown = regions.status(AccessPass::in_process(), &name);
        let shown = shown.expect("it is listed");
        assert!(shown.contains(&region));
    }
}

/// An inference whose tensors may be in regions, answered with its own inputs.
fn infer(regions: &ShmRegistry, json: &[u8]) {
    let account = Arc::new(MemoryAccount::unlimited());
    let access = RequestShmRegions::new(regions, AccessPass::in_process());
    let limits = MessageLimits::default();
    let bounds = DecodeContext { limits: &limits, account: &account, regions: access };
    let target = TargetModel { model_name: "m".into(), model_version: None };
    let body = Bytes::copy_from_slice(json);
    let Ok((request, encoding)) = decode_infer(&body, body.len(), target, &bounds) else { return };
    for input in &request.inputs {
        let mut data = input.data.clone();
        if data.make_owned().is_ok() {
            assert_eq!(data.len(), input.data.len());
            assert!(data.host_bytes().is_some());
        }
    }
    answer(*request, &encoding);
}

fn answer(request: InferenceRequest, encoding: &OutputFormatMap) {
    let InferenceRequest { inputs, outputs, .. } = request;
    let outputs = outputs.iter().zip(inputs).map(|(name, input)| OutputTensor {
        name: Arc::from(name.as_str()),
        datatype: input.datatype,
        shape: input.shape,
        data: input.data,
    });
    let response = InferenceResponse {
        model_name: Arc::from("m"),
        model_version: 1,
        id: String::new(),
        parameters: Vec::new().into(),
        outputs: outputs.collect(),
    };
    if let Ok(placed) = encoding.write_shared_memory_outputs(response) {
        assert!(placed.outputs.iter().all(|output| output.data.foreign().is_none()));
    }
}
