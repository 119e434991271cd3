//! Inputs in host and GPU memory.

use galatea_tensor::DataType;

use crate::stand_ins::{Gpus, buffer, report, with_stand_ins};
use crate::support::onnx::{FLOAT, Graph, INT32, STRING, identity};
use crate::support::{Files, TestModel, cpu, failure, floats, int32s, output, request, tensor};

const CONFIG: &str = "
    max_batch_size: 8
    input [ { name: 'INPUT0' data_type: TYPE_FP32 dims: [ 2 ] } ]
    output [ { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [ 2 ] } ]
    instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]";

/// The reads and writes of a session's last run.
fn last_run() -> String {
    report("onnxruntime").pop().unwrap()
}

#[test]
fn inputs_of_any_memory_are_joined_on_the_gpu() {
    with_stand_ins("inputs::inputs_of_any_memory_are_joined_on_the_gpu", &[], || {
        let gpus = Gpus::new();
        let files = Files::model(identity(FLOAT, &[-1, 2]));
        let mut loaded = gpus.load(&files, CONFIG);
        let row = |value: f32| floats(&[value, -value]);
        let host = |value| tensor("INPUT0", DataType::Fp32, &[1, 2], row(value));
        let on = |gpu, value| gpus.tensor_on(gpu, "INPUT0", DataType::Fp32, &[1, 2], row(value));
        // Executed twice, because the memory is reused and then contains the previous batch.
        for start in [1., 10.] {
            let inputs = [
                host(start),
                host(start + 1.),
                on(0, start + 2.),
                on(1, start + 3.),
                host(start + 4.),
            ];
            let requests = inputs.map(|input| request(vec![input])).into();
            let results = loaded.execute(requests);
            let expected = (0..5_u8).map(|index| row(start + f32::from(index)));
            for (result, expected) in results.into_iter().zip(expected) {
                assert_eq!(output(&result.unwrap(), "OUTPUT0").1, expected);
            }
        }
        assert_eq!(last_run(), "run 1 inputs 1 of 1 on device, outputs h");
    });
}

#[test]
fn neighbors_on_the_gpu_are_not_copied() {
    with_stand_ins("inputs::neighbors_on_the_gpu_are_not_copied", &[], || {
        let gpus = Gpus::new();
        let files = Files::model(identity(FLOAT, &[-1, 2]));
        let mut loaded = gpus.load(&files, CONFIG);
        let memory = gpus.upload(0, floats(&[1., 2., 3., 4.]));
        let free = || gpus.devices.device(0).unwrap().memory_use().unwrap().free;
        let before = free();
        let input = |range: std::ops::Range<usize>| {
            let mut input = tensor("INPUT0", DataType::Fp32, &[1, 2], Vec::new());
            input.data = buffer(&memory.slice(range).unwrap());
            request(vec![input])
        };
        let results = loaded.execute(vec![input(0..8), input(8..16)]);
        for (result, expected) in results.into_iter().zip([[1., 2.], [3., 4.]]) {
            assert_eq!(output(&result.unwrap(), "OUTPUT0").1, floats(&expected));
        }
        assert_eq!(free(), before, "no memory was needed for the inputs");
    });
}

#[test]
fn strings_stay_on_the_host() {
    with_stand_ins("inputs::strings_stay_on_the_host", &[], || {
        let gpus = Gpus::new();
        let graph = Graph::default()
            .input("S", STRING, &[-1, 1])
            .input("N", INT32, &[-1, 1])
            .output("T", STRING, &[-1, 1])
            .output("M", INT32, &[-1, 1])
            .node("Identity", &["S"], &["T"])
            .node("Add", &["N", "N"], &["M"]);
        let config = "
            max_batch_size: 8
            input [ { name: 'S' data_type: TYPE_STRING dims: [ 1 ] },
                    { name: 'N' data_type: TYPE_INT32 dims: [ 1 ] } ]
            output [ { name: 'T' data_type: TYPE_STRING dims: [ 1 ] },
                     { name: 'M' data_type: TYPE_INT32 dims: [ 1 ] } ]
            instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]";
        let mut loaded = gpus.load(&Files::model(graph), config);
        let framed = b"\x02\0\0\0ab".to_vec();
        let number = tensor("N", DataType::Int32, &[1, 1], int32s(&[21]));
        for gpu in [None, Some(0), Some(1)] {
            let text = match gpu {
                None => tensor("S", DataType::Bytes, &[1, 1], framed.clone()),
                Some(gpu) => gpus.tensor_on(gpu, "S", DataType::Bytes, &[1, 1], framed.clone()),
            };
            let response = loaded.execute_one(request(vec![text, number.clone()])).unwrap();
            assert_eq!(output(&response, "T").1, framed);
            assert_eq!(output(&response, "M").1, int32s(&[42]));
            assert_eq!(last_run(), "run 1 inputs 1 of 2 on device, outputs hh");
        }
    });
}

#[test]
fn an_instance_on_the_cpu_gets_copies() {
    with_stand_ins("inputs::an_instance_on_the_cpu_gets_copies", &[], || {
        let gpus = Gpus::new();
        let files = Files::model(identity(FLOAT, &[-1, 2]));
        let config = CONFIG.replace("KIND_GPU gpus: [ 0 ]", "KIND_CPU");
        let (model, host) = gpus.try_load(&files, &config).unwrap();
        let instance = model.create_instance(&cpu()).unwrap();
        let mut loaded = TestModel { instance, model, host };
        let data = floats(&[5., 6.]);
        let far = gpus.tensor_on(1, "INPUT0", DataType::Fp32, &[1, 2], data.clone());
        let near = tensor("INPUT0", DataType::Fp32, &[1, 2], floats(&[7., 8.]));
        let results = loaded.execute(vec![request(vec![far]), request(vec![near])]);
        assert_eq!(output(results[0].as_ref().unwrap(), "OUTPUT0").1, data);
        assert_eq!(output(results[1].as_ref().unwrap(), "OUTPUT0").1, floats(&[7., 8.]));
    });
}

#[test]
fn a_part_of_a_wrong_size_is_refused() {
    with_stand_ins("inputs::a_part_of_a_wrong_size_is_refused", &[], || {
        let gpus = Gpus::new();
        let files = Files::model(identity(FLOAT, &[-1, 2]));
        let mut loaded = gpus.load(&files, CONFIG);
        let short = gpus.tensor_on(0, "INPUT0", DataType::Fp32, &[1, 2], floats(&[5.]));
        let (_, message) = failure(loaded.execute_one(request(vec![short])));
        assert_eq!(message, "input 'INPUT0' has another size than its shape says");
    });
}
