//! Library errors on a GPU, and lost devices.

use galatea_tensor::DataType;

use crate::stand_ins::{Gpus, execute_one, lose, on_gpu, with_stand_ins};
use crate::support::onnx::{FLOAT, identity};
use crate::support::{Files, failure, floats, output, request, tensor};

const CONFIG: &str = "
    max_batch_size: 8
    input [ { name: 'INPUT0' data_type: TYPE_FP32 dims: [ 2 ] } ]
    output [ { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [ 2 ] } ]
    instance_group [ { kind: KIND_GPU } ]";

fn one() -> galatea_infer::InferenceRequest {
    request(vec![tensor("INPUT0", DataType::Fp32, &[1, 2], floats(&[1., 2.]))])
}

#[test]
fn exhausted_memory_fails_one_batch() {
    let failing = [("STAND_IN_ORT_FAIL", "Run:1:CUDA failure 2: out of memory ; GPU=0")];
    with_stand_ins("failures::exhausted_memory_fails_one_batch", &failing, || {
        let gpus = Gpus::new();
        let files = Files::model(identity(FLOAT, &[-1, 2]));
        let mut loaded = gpus.load(&files, CONFIG);
        let (_, message) = failure(loaded.execute_one(one()));
        assert_eq!(message, "onnx runtime error 11: CUDA failure 2: out of memory ; GPU=0");
        assert!(!gpus.devices.device(0).unwrap().is_lost());
        let response = loaded.execute_one(one()).unwrap();
        assert_eq!(output(&response, "OUTPUT0").1, floats(&[1., 2.]));
    });
}

#[test]
// row: INST-13
fn an_error_of_cuda_that_does_not_go_away_loses_the_device() {
    let failing =
        [("STAND_IN_ORT_FAIL", "Run:1:CUDA failure 700: an illegal memory access ; GPU=0")];
    let test = "failures::an_error_of_cuda_that_does_not_go_away_loses_the_device";
    with_stand_ins(test, &failing, || {
        let gpus = Gpus::new();
        let files = Files::model(identity(FLOAT, &[-1, 2]));
        let mut loaded = gpus.load(&files, CONFIG);
        let (_, message) = failure(loaded.execute_one(one()));
        assert!(message.contains("CUDA failure 700"), "{message}");
        assert!(gpus.devices.device(0).unwrap().is_lost());
        let (_, message) = failure(loaded.execute_one(one()));
        assert!(message.contains("GPU 0 is lost"), "{message}");
        // The other device still works.
        let mut other = on_gpu(loaded.model.as_ref(), 1).unwrap();
        execute_one(other.as_mut(), &loaded.host, one()).unwrap();
        // If a device is lost only to this process, its memory stays allocated.
        lose(0);
    });
}

#[test]
// row: INST-13
fn a_lost_device_fails_its_instances_alone() {
    with_stand_ins("failures::a_lost_device_fails_its_instances_alone", &[], || {
        let gpus = Gpus::new();
        let files = Files::model(identity(FLOAT, &[-1, 2]));
        let mut loaded = gpus.load(&files, CONFIG);
        let mut other = on_gpu(loaded.model.as_ref(), 1).unwrap();
        loaded.execute_one(one()).unwrap();
        lose(0);
        let (_, message) = failure(loaded.execute_one(one()));
        assert!(message.contains("unspecified launch failure"), "{message}");
        assert!(gpus.devices.device(0).unwrap().is_lost());
        execute_one(other.as_mut(), &loaded.host, one()).unwrap();
        let (_, message) = failure(on_gpu(loaded.model.as_ref(), 0));
        assert!(message.starts_with("unable to create stream: GPU 0 is lost"), "{message}");
    });
}

#[test]
fn a_session_that_fails_to_open_leaves_nothing_behind() {
    let failing = [("STAND_IN_ORT_FAIL", "CreateSession:2:CUDA failure 2: out of memory ; GPU=1")];
    let test = "failures::a_session_that_fails_to_open_leaves_nothing_behind";
    with_stand_ins(test, &failing, || {
        let gpus = Gpus::new();
        let files = Files::model(identity(FLOAT, &[-1, 2]));
        let loaded = gpus.load(&files, CONFIG);
        let (_, message) = failure(on_gpu(loaded.model.as_ref(), 1));
        assert!(message.starts_with("failed to load '"), "{message}");
        assert!(message.ends_with("CUDA failure 2: out of memory ; GPU=1"), "{message}");
        on_gpu(loaded.model.as_ref(), 1).unwrap();
    });
}
