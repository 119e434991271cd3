//! The sessions of GPU instances: their devices, streams and options.

use galatea_tensor::DataType;

use crate::stand_ins::{Gpus, execute_one, on_gpu, report, with_stand_ins};
use crate::support::onnx::{FLOAT, identity};
use crate::support::{Files, failure, floats, output, request, tensor};

const TENSORS: &str = "
    max_batch_size: 4
    input [ { name: 'INPUT0' data_type: TYPE_FP32 dims: [ 2 ] } ]
    output [ { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [ 2 ] } ]";

fn accelerators(text: &str) -> String {
    format!(
        "{TENSORS} instance_group [ {{ kind: KIND_GPU gpus: [ 0 ] }} ]
         optimization {{ execution_accelerators {{ gpu_execution_accelerator: [ {text} ] }} }}"
    )
}

/// The part of a line after `key=`.
fn value<'a>(line: &'a str, key: &str) -> &'a str {
    let (_, rest) = line.split_once(&format!(" {key}=")).unwrap();
    rest.split_whitespace().next().unwrap()
}

#[test]
// row: ONNX-06
fn each_instance_has_a_session_on_its_gpu_with_a_stream() {
    with_stand_ins("sessions::each_instance_has_a_session_on_its_gpu_with_a_stream", &[], || {
        let gpus = Gpus::new();
        let files = Files::model(identity(FLOAT, &[-1, 2]));
        let config = format!("{TENSORS} instance_group [ {{ kind: KIND_GPU count: 3 }} ]");
        let (model, host) = gpus.try_load(&files, &config).unwrap();
        // One session was opened to check the model.
        assert_eq!(report("onnxruntime").len(), 1);
        for gpu in [1, 0, 1, 0] {
            let mut instance = on_gpu(model.as_ref(), gpu).unwrap();
            let data = floats(&[gpu as f32, 2.]);
            let one = request(vec![tensor("INPUT0", DataType::Fp32, &[1, 2], data.clone())]);
            let response = execute_one(instance.as_mut(), &host, one).unwrap();
            assert_eq!(output(&response, "OUTPUT0").1, data);
        }
        let instances: Vec<_> = [0, 0, 1].map(|gpu| on_gpu(model.as_ref(), gpu).unwrap()).into();
        let lines = report("onnxruntime");
        let sessions: Vec<&String> =
            lines.iter().filter(|line| line.starts_with("session")).collect();
        let devices: Vec<&str> = sessions.iter().map(|line| value(line, "device_id")).collect();
        // The first session belongs to the first instance on GPU 0.
        assert_eq!(devices, ["0", "1", "1", "0", "0", "0", "1"]);
        let last = &sessions[sessions.len() - instances.len()..];
        let mut streams: Vec<&str> = last.iter().map(|line| value(line, "stream")).collect();
        streams.sort_unstable();
        streams.dedup();
        assert_eq!(streams.len(), instances.len(), "no two share a stream");
    });
}

#[test]
// row: ONNX-06
fn options_are_passed_as_they_are_written() {
    with_stand_ins("sessions::options_are_passed_as_they_are_written", &[], || {
        let gpus = Gpus::new();
        let files = Files::model(identity(FLOAT, &[-1, 2]));
        let config = accelerators(
            "{ name: 'tensorrt' parameters { key: 'precision_mode' value: 'FP16' }
               parameters { key: 'max_workspace_size_bytes' value: '4096' } },
             { name: 'cuda' parameters { key: 'use_tf32' value: '0' }
               parameters { key: 'gpu_mem_limit' value: '1073741824' } }",
        );
        let search = "parameters { key: 'cudnn_conv_algo_search' value: { string_value: '1' } }";
        let loaded = gpus.load(&files, &format!("{config} {search}"));
        let lines = report("onnxruntime");
        let [session] = &lines[..] else { panic!("{lines:?}") };
        let (tensorrt, cuda) = session.split_once(" cuda{").unwrap();
        let stream = value(cuda, "stream");
        assert_ne!(stream, "(nil)");
        let expected = " cudnn_conv_algo_search=HEURISTIC device_id=0 gpu_mem_limit=1073741824 \
                        has_user_compute_stream=1 use_tf32=0";
        assert_eq!(cuda, format!("{expected} stream={stream} }}"));
        let expected = " device_id=0 trt_fp16_enable=1 trt_max_workspace_size=4096";
        assert!(tensorrt.ends_with(&format!(" tensorrt{{{expected} stream={stream} }}")));
        drop(loaded);
        assert_eq!(report("onnxruntime").last().unwrap(), "released 1");
    });
}

#[test]
// row: ONNX-06
fn graphs_of_cuda_are_not_recorded() {
    with_stand_ins("sessions::graphs_of_cuda_are_not_recorded", &[], || {
        let gpus = Gpus::new();
        let files = Files::model(identity(FLOAT, &[-1, 2]));
        let config = accelerators(
            "{ name: 'cuda' parameters { key: 'enable_cuda_graph' value: '1' } },
             { name: 'tensorrt' parameters { key: 'trt_cuda_graph_enable' value: 'true' } }",
        );
        let loaded = gpus.load(&files, &config);
        // The library receives the options and, as in Triton, checks the model.
        let lines = report("onnxruntime");
        for option in [" trt_cuda_graph_enable=true ", " enable_cuda_graph=1 "] {
            assert!(lines[0].contains(option), "{lines:?}");
        }
        assert_eq!(report("run_options"), ["gpu_graph_id=-1"]);
        let log = loaded.host.log.lock().unwrap().clone();
        let expected = ["trt_cuda_graph_enable", "enable_cuda_graph"].map(|option| {
            format!(
                "Warning model 'm' asks for '{option}', which has no effect: a recorded graph \
                 would read the inputs of the batch that it was recorded with"
            )
        });
        assert_eq!(log, expected);
    });
}

#[test]
// row: ONNX-06
fn wrong_options_are_refused() {
    with_stand_ins("sessions::wrong_options_are_refused", &[], || {
        let gpus = Gpus::new();
        let files = Files::model(identity(FLOAT, &[-1, 2]));
        let refused = |text: &str| failure(gpus.try_load(&files, &accelerators(text))).1;
        for (text, expected) in [
            ("{ name: 'warp' }", "unknown Execution Accelerator 'warp' is requested"),
            (
                "{ name: 'tensorrt' parameters { key: 'x' value: '1' } }",
                "unknown parameter 'x' is provided for TensorRT Execution Accelerator",
            ),
            (
                "{ name: 'tensorrt' parameters { key: 'precision_mode' value: 'FP4' } }",
                "unsupported precision mode 'FP4' is requested",
            ),
            (
                "{ name: 'cuda' parameters { key: 'x' value: '1' } }",
                "onnx runtime error 2: Unknown provider option: \"x\".",
            ),
        ] {
            assert_eq!(refused(text), expected);
        }
        // Nothing is leaked on the GPU, as the stand-in verifies.
        assert_eq!(report("onnxruntime"), [""; 0]);
    });
}

#[test]
// row: ONNX-06
fn a_library_without_a_provider_is_refused() {
    let test = "sessions::a_library_without_a_provider_is_refused";
    with_stand_ins(test, &[("STAND_IN_ORT_PROVIDERS", "cuda")], || {
        let gpus = Gpus::new();
        let files = Files::model(identity(FLOAT, &[-1, 2]));
        let (_, message) = failure(gpus.try_load(&files, &accelerators("{ name: 'tensorrt' }")));
        let expected = "execution accelerator 'tensorrt' needs TensorrtExecutionProvider, which \
                        ONNX Runtime ";
        assert!(message.starts_with(expected), "{message}");
        let expected = "does not have; it has CUDAExecutionProvider, CPUExecutionProvider. A \
                        library with it is in the Python package onnxruntime-gpu (pip install \
                        onnxruntime-gpu)";
        assert!(message.ends_with(expected), "{message}");
    });
}
