//! Tests of inputs in clients' shared memory.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use galatea_backend::AcceptedInputMemory;
use galatea_config::SupportedFeatures;
use galatea_infer::{Code, DeviceOutputs, InferenceRequest, InputTensor};
use galatea_pbtxt::parse_config_draft;
use galatea_tensor::{Buffer, DataType, ForeignMemory, ForeignMemoryError, ForeignRegion, Shape};

use super::Admission;

/// Memory that counts how often it is copied. Each copy has different content.
#[derive(Default)]
struct Counted(AtomicUsize, Option<u64>);

impl ForeignMemory for Counted {
    fn read(&self, offset: usize, byte_size: usize) -> Result<Bytes, ForeignMemoryError> {
        let count = self.0.fetch_add(1, Ordering::Relaxed);
        match offset {
            0 => Ok(vec![u8::try_from(count).unwrap(); byte_size].into()),
            1 => Err(ForeignMemoryError::Lost(String::from("gone"))),
            _ => Err(ForeignMemoryError::NoMemory(byte_size)),
        }
    }

    fn write(&self, _: usize, _: &Buffer) -> Result<(), ForeignMemoryError> {
        Err(ForeignMemoryError::NotReadable)
    }

    fn device_address(&self) -> Option<u64> {
        self.1
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn admission(kind: &str, extra: &str) -> Admission {
    let text = format!(
        "name: 'm' backend: 'b' max_batch_size: 8 {extra}
        input [ {{ name: 'I' data_type: TYPE_{kind} dims: [ -1 ] }} ]
        output [ {{ name: 'O' data_type: TYPE_{kind} dims: [ -1 ] }} ]"
    );
    let draft = parse_config_draft("config.pbtxt", &text).unwrap();
    Admission::new(&draft.into_validated_spec(&SupportedFeatures::default()).unwrap())
}

/// A request whose only input, with four elements, is in shared memory.
fn request(
    memory: &Arc<Counted>,
    datatype: DataType,
    offset: usize,
    byte_size: usize,
) -> InferenceRequest {
    let region = ForeignRegion { memory: memory.clone(), offset, byte_size, charge: None };
    let shape = Shape::new(&[1, 4]).unwrap();
    let data = Buffer::from_foreign(region);
    let input = InputTensor { name: String::from("I"), datatype, shape, data };
    InferenceRequest { inputs: vec![input], ..InferenceRequest::default() }
}

fn copies(admission: &Admission, datatype: DataType, byte_size: usize) -> (usize, bool) {
    let memory = Arc::new(Counted::default());
    let admitted = admission.admit(request(&memory, datatype, 0, byte_size));
    let is_foreign =
        admitted.is_ok_and(|admitted| admitted.request.inputs[0].data.foreign().is_some());
    (memory.0.load(Ordering::Relaxed), is_foreign)
}

#[test]
fn shared_memory_is_copied_once_before_it_is_checked() {
    assert_eq!(copies(&admission("FP32", ""), DataType::Fp32, 16), (1, false));
    assert_eq!(copies(&admission("BOOL", ""), DataType::Bool, 4), (1, false));
    assert_eq!(copies(&admission("STRING", ""), DataType::Bytes, 16), (1, false));
    // The first copy contains zeros: four empty strings.
    let memory = Arc::new(Counted::default());
    let admitted = admission("STRING", "").admit(request(&memory, DataType::Bytes, 0, 16)).unwrap();
    assert_eq!(admitted.request.inputs[0].data.host_bytes().unwrap()[..], [0; 16]);
}

#[test]
fn only_what_stays_unread_is_not_copied() {
    let repeating =
        |kind, extra| admission(kind, extra).with_memory(AcceptedInputMemory::Unread, false);
    assert_eq!(copies(&repeating("FP32", ""), DataType::Fp32, 16), (0, true));
    for (kind, datatype, byte_size) in
        [("BOOL", DataType::Bool, 4), ("STRING", DataType::Bytes, 16)]
    {
        assert_eq!(copies(&repeating(kind, ""), datatype, byte_size), (1, false));
    }
    let cached = admission("FP32", "").with_memory(AcceptedInputMemory::Unread, true);
    assert_eq!(copies(&cached, DataType::Fp32, 16), (1, false));
    assert_eq!(copies(&repeating("FP32", "sequence_batching { }"), DataType::Fp32, 16), (1, false));
}

#[test]
fn backends_that_take_a_devices_memory_get_it() {
    let admitted = |kind, datatype, byte_size, memory, is_cached, address| {
        let admission = admission(kind, "").with_memory(memory, is_cached);
        let foreign = Arc::new(Counted(AtomicUsize::new(0), address));
        let mut request = request(&foreign, datatype, 0, byte_size);
        request.device_outputs = DeviceOutputs::All;
        let admitted = admission.admit(request).unwrap().request;
        let on_device = admitted.device_outputs.include("O");
        (foreign.0.load(Ordering::Relaxed), on_device)
    };
    let (device, host) = (AcceptedInputMemory::Device, AcceptedInputMemory::Host);
    let fp32 = |memory, is_cached, address| {
        admitted("FP32", DataType::Fp32, 16, memory, is_cached, address)
    };
    assert_eq!(fp32(device, false, Some(64)), (0, true));
    assert_eq!(fp32(device, false, None), (1, true), "a region of the host");
    assert_eq!(fp32(host, false, Some(64)), (1, true));
    assert_eq!(fp32(device, true, Some(64)), (1, false), "the cache reads tensors");
    assert_eq!(admitted("BOOL", DataType::Bool, 4, device, false, Some(64)), (1, true));
    let sequences = admission("FP32", "sequence_batching { }").with_memory(device, false);
    let foreign = Arc::new(Counted(AtomicUsize::new(0), Some(64)));
    let _ = sequences.admit(request(&foreign, DataType::Fp32, 0, 16)).unwrap();
    assert_eq!(foreign.0.load(Ordering::Relaxed), 0);
}

#[test]
fn a_place_of_the_wrong_size_is_refused_unread() {
    for byte_size in [0, 15, 17, usize::MAX] {
        let memory = Arc::new(Counted::default());
        let refused = admission("FP32", "").admit(request(&memory, DataType::Fp32, 0, byte_size));
        let status = refused.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains("input byte size mismatch"), "{status}");
        assert_eq!(memory.0.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn a_copy_that_fails_is_an_error_of_the_request() {
    let memory = Arc::new(Counted::default());
    for (offset, code, text) in [
        (1, Code::InvalidArgument, "[request id: <id_unknown>] gone"),
        (
            2,
            Code::Unavailable,
            "[request id: <id_unknown>] there is no memory for a copy of 16 bytes",
        ),
    ] {
        let refused = admission("FP32", "").admit(request(&memory, DataType::Fp32, offset, 16));
        let status = refused.unwrap_err();
        assert_eq!((status.code(), status.message()), (code, text));
    }
}
