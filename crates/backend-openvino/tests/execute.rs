//! Models in the intermediate representation, executed by OpenVINO itself.

#![allow(clippy::unwrap_used, reason = "a test may fail in any line")]

mod support;

use std::sync::Arc;

use galatea_backend::{
    Backend, ExecutionPredictability, LoadedVersion, ModelFiles as _, ModelHost,
};
use galatea_backend_openvino::Library;
use galatea_config::{ModelSpec, SupportedFeatures};
use galatea_infer::InferenceRequest;
use galatea_pbtxt::parse_config_draft;
use galatea_tensor::{Buffer, DataType};

use support::{
    Files, Log, backend, fixed_rows, library, long_chain, output, request, spec, try_load,
    two_outputs, variable_rank,
};

const BATCHED: &str = "
    max_batch_size: 8
    input [ { name: 'A' data_type: TYPE_FP32 dims: [ 2 ] },
            { name: 'B' data_type: TYPE_FP32 dims: [ 2 ] } ]
    output [ { name: 'SUM' data_type: TYPE_FP32 dims: [ 2 ] },
             { name: 'SAME' data_type: TYPE_FP32 dims: [ 2 ] } ]";

fn files(dims: &[i64]) -> Files {
    Files::new("model.xml", &two_outputs(dims, ""))
}

fn pair(a: [f32; 2], b: [f32; 2]) -> InferenceRequest {
    request(&[("A", &[1, 2], &a), ("B", &[1, 2], &b)])
}

#[test]
fn batches_of_any_size_need_no_padding() {
    let Some(library) = library() else { return };
    // The second model has a fixed batch dimension, as most models do.
    for dims in [[-1, 2], [1, 2]] {
        let mut loaded = try_load(library.clone(), &files(&dims), BATCHED).unwrap();
        for size in [1_u8, 3, 2, 8] {
            let batch: Vec<_> =
                (0..size).map(|row| pair([f32::from(row), -1.], [10., 20.])).collect();
            let results = loaded.execute(batch);
            for (row, result) in (0..size).zip(results) {
                let result = result.unwrap();
                let row = f32::from(row);
                assert_eq!(output(&result, "SUM"), (vec![1, 2], vec![row + 10., 19.]));
                assert_eq!(output(&result, "SAME"), (vec![1, 2], vec![row, 0.]));
            }
        }
    }
}

/// The model with the input A as another output.
fn with_input_as_output(dims: &[i64]) -> Files {
    let port: String = dims.iter().map(|dim| format!("<dim>{dim}</dim>")).collect();
    let result = format!(
        "<layer id=\"6\" name=\"A/result\" type=\"Result\" version=\"opset1\"><input>\
         <port id=\"0\" precision=\"FP32\">{port}</port></input></layer></layers>"
    );
    let edge = "<edge from-layer=\"0\" from-port=\"0\" to-layer=\"6\" to-port=\"0\"/></edges>";
    let text = two_outputs(dims, "").replace("</layers>", &result).replace("</edges>", edge);
    Files::new("model.xml", &text)
}

#[test]
fn outputs_that_are_inputs_have_their_elements() {
    let Some(library) = library() else { return };
    let config = format!("{BATCHED} output {{ name: 'A' data_type: TYPE_FP32 dims: [ 2 ] }}");
    for dims in [[-1, 2], [1, 2]] {
        let files = with_input_as_output(&dims);
        let mut loaded = try_load(library.clone(), &files, &config).unwrap();
        for _ in 0..2 {
            let results =
                loaded.execute(vec![pair([1., -1.], [10., 20.]), pair([3., 4.], [0., 0.])]);
            let expected = [([1., -1.], [11., 19.]), ([3., 4.], [3., 4.])];
            for (result, (own, sum)) in results.into_iter().zip(expected) {
                let result = result.unwrap();
                assert_eq!(output(&result, "A"), (vec![1, 2], own.to_vec()));
                assert_eq!(output(&result, "SUM"), (vec![1, 2], sum.to_vec()));
            }
        }
    }
}

/// As with files of other formats, nothing names the tensors: neither the input nor the output that
/// is the same tensor.
#[test]
fn an_output_without_a_name_may_be_an_input() {
    let Some(library) = library() else { return };
    let config = BATCHED.replace("'A'", "'INPUT__0'").replace("'SAME'", "'OUTPUT__1'")
        + "output { name: 'OUTPUT__2' data_type: TYPE_FP32 dims: [ 2 ] }";
    for dims in [[-1, 2], [1, 2]] {
        let files = with_input_as_output(&dims);
        let path = files.version_path().join("model.xml");
        let text = std::fs::read_to_string(&path).unwrap();
        let text = text.replace(" names=\"A\"", "").replace(" names=\"SAME\"", "");
        std::fs::write(path, text).unwrap();
        let mut loaded = try_load(library.clone(), &files, &config).unwrap();
        let one = request(&[("INPUT__0", &[1, 2], &[1., -1.]), ("B", &[1, 2], &[10., 20.])]);
        for _ in 0..2 {
            let result = loaded.execute(vec![one.clone()]).remove(0).unwrap();
            assert_eq!(output(&result, "OUTPUT__2"), (vec![1, 2], vec![1., -1.]));
            assert_eq!(output(&result, "SUM"), (vec![1, 2], vec![11., 19.]));
            assert_eq!(output(&result, "OUTPUT__1"), (vec![1, 2], vec![1., 0.]));
        }
    }
}

/// OpenVINO's CPU plug-in computes them with 32 bits; if it ever doesn't, the warning has to go.
#[test]
// row: BE-03
fn wide_numbers_are_warned_about_and_lose_bits() {
    let Some(library) = library() else { return };
    let load = |from: &str, to: &str, config: &str| {
        let model = two_outputs(&[-1, 2], "").replace("f32", from).replace("FP32", to);
        let config = BATCHED.replace("FP32", config);
        try_load(library.clone(), &Files::new("model.xml", &model), &config).unwrap()
    };
    let integers = "computes with signed 32-bit integers, so larger numbers come out wrong";
    for (from, to) in [("i64", "INT64"), ("u64", "UINT64"), ("u32", "UINT32")] {
        let log = load(from, &from.to_uppercase(), to).log();
        let line = format!("model 'm' has tensors of {to}: OpenVINO {integers}");
        assert_eq!(log.matches(&line).count(), 1, "{log}");
    }
    // A configuration may have other types than its model.
    assert!(load("f32", "FP32", "INT64").log().contains(integers));
    let log = load("f64", "FP64", "FP64").log();
    assert!(log.contains("has tensors of FP64: OpenVINO computes with 32-bit numbers"), "{log}");
    assert!(!load("i32", "I32", "INT32").log().contains("32-bit"));

    let mut loaded = load("i64", "I64", "INT64");
    let mut one = request(&[("A", &[1, 2], &[0.; 4]), ("B", &[1, 2], &[0.; 4])]);
    for (input, numbers) in one.inputs.iter_mut().zip([[1 << 32, i64::from(i32::MAX)], [5, 1]]) {
        input.datatype = DataType::Int64;
        let numbers = numbers.iter().flat_map(|number: &i64| number.to_le_bytes());
        input.data = Buffer::from_vec(numbers.collect());
    }
    let result = loaded.execute(vec![one]).remove(0).unwrap();
    let sum = result.outputs.iter().find(|output| *output.name == *"SUM").unwrap();
    let bytes = sum.data.host_bytes().unwrap();
    let numbers = bytes.as_chunks::<8>().0.iter().map(|&eight| i64::from_le_bytes(eight));
    assert_eq!(numbers.collect::<Vec<_>>(), [5, i64::from(i32::MIN)]);
}

#[test]
fn scalars_are_one_element_for_clients() {
    let Some(library) = library() else { return };
    let config = BATCHED.replace("max_batch_size: 8", "").replace("[ 2 ]", "[ 1 ]");
    let mut loaded = try_load(library, &files(&[]), &config).unwrap();
    let request = request(&[("A", &[1], &[2.]), ("B", &[1], &[3.])]);
    let result = loaded.execute(vec![request]).remove(0).unwrap();
    assert_eq!(output(&result, "SUM"), (vec![1], vec![5.]));
}

#[test]
fn responses_keep_their_outputs_through_later_runs() {
    let Some(library) = library() else { return };
    let mut loaded = try_load(library, &files(&[-1, 2]), BATCHED).unwrap();
    let first = loaded.execute(vec![pair([1., 2.], [3., 4.])]).remove(0).unwrap();
    // The next run requests only one output; the other must not be written to the first one's
    // memory.
    let one =
        InferenceRequest { outputs: vec![String::from("SUM")], ..pair([100., 200.], [300., 400.]) };
    let second = loaded.execute(vec![one]).remove(0).unwrap();
    assert_eq!(output(&first, "SUM").1, [4., 6.]);
    assert_eq!(output(&first, "SAME").1, [1., 2.]);
    assert_eq!(output(&second, "SUM").1, [400., 600.]);
    assert_eq!(second.outputs.len(), 1);
}

/// Small tensors are copied from and to memory that stays bound, and large ones are not.
#[test]
fn sizes_may_change_between_small_and_large() {
    let Some(library) = library() else { return };
    let config = BATCHED.replace("max_batch_size: 8", "").replace("[ 2 ]", "[ -1, 2 ]");
    let mut loaded = try_load(library, &files(&[-1, 2]), &config).unwrap();
    let values = |rows: u16, first: f32| -> Vec<f32> {
        (0..2 * rows).map(|number| first + f32::from(number)).collect()
    };
    let mut responses = Vec::new();
    for (number, rows) in [1, 1, 600, 3, 600, 700, 0, 1, 2].into_iter().enumerate() {
        let (a, b) = (values(rows, -2. - number as f32), values(rows, 100.));
        let dims = [i64::from(rows), 2];
        let one = request(&[("A", &dims, &a), ("B", &dims, &b)]);
        let expected: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        let positive: Vec<f32> = a.iter().map(|a| a.max(0.)).collect();
        responses.push((loaded.execute(vec![one]).remove(0).unwrap(), dims, expected, positive));
    }
    for (response, dims, sum, same) in responses {
        assert_eq!(output(&response, "SUM"), (dims.to_vec(), sum));
        assert_eq!(output(&response, "SAME"), (dims.to_vec(), same));
    }
}

#[test]
fn a_model_without_batches_takes_its_own_shape() {
    let Some(library) = library() else { return };
    let config = BATCHED.replace("max_batch_size: 8", "").replace("[ 2 ]", "[ 3, 2 ]");
    let mut loaded = try_load(library, &files(&[3, 2]), &config).unwrap();
    let values = [1., 2., 3., 4., 5., 6.];
    let one = || request(&[("A", &[3, 2], &values), ("B", &[3, 2], &values)]);
    let result = loaded.execute(vec![one()]).remove(0).unwrap();
    assert_eq!(output(&result, "SUM"), (vec![3, 2], vec![2., 4., 6., 8., 10., 12.]));
    loaded.instance.terminator().unwrap().terminate();
    assert!(loaded.execute(vec![one()])[0].is_ok(), "a cancellation concerns one execution");
}

#[test]
fn inputs_get_the_dimensions_of_the_configuration_if_asked() {
    let Some(library) = library() else { return };
    let config = BATCHED.replace("[ 2 ]", "[ 5 ]");
    let refused = try_load(library.clone(), &files(&[-1, 2]), &config).map(|_| ()).unwrap_err();
    assert!(refused.message().contains("(shape [-1,2])"), "{refused:?}");
    let config = format!(
        "{config} parameters {{ key: 'RESHAPE_IO_LAYERS' value: {{ string_value: 'yes' }} }}"
    );
    let mut loaded = try_load(library, &files(&[-1, 2]), &config).unwrap();
    let values = [1., 2., 3., 4., 5.];
    let one = request(&[("A", &[1, 5], &values), ("B", &[1, 5], &values)]);
    assert_eq!(output(loaded.execute(vec![one])[0].as_ref().unwrap(), "SUM").0, [1, 5]);
}

#[test]
fn configurations_are_completed_by_layouts() {
    let Some(library) = library() else { return };
    let completed = |model: &str, config: &str| {
        let files = Files::new("model.xml", model);
        let mut draft = parse_config_draft("config.pbtxt", config).unwrap();
        draft.resolve_name_and_backend("m", &["model.xml".to_owned()]).unwrap();
        backend(library.clone()).auto_complete_config(&mut draft, &files).unwrap();
        let tensors = draft.inputs().into_iter().chain(draft.outputs());
        let tensors: Vec<_> = tensors.map(|one| format!("{} {:?}", one.name, one.dims)).collect();
        let facts = (draft.max_batch_size(), draft.scheduling_is_set(), tensors);
        draft.into_validated_spec(&SupportedFeatures::default()).unwrap();
        facts
    };
    let (size, is_scheduled, tensors) = completed(&two_outputs(&[1, 3], "[N,C]"), "");
    assert_eq!((size, is_scheduled), (4, true));
    assert_eq!(tensors, ["A [3]", "B [3]", "SUM [3]", "SAME [3]"]);
    let (size, is_scheduled, tensors) = completed(&two_outputs(&[-1, 3], ""), "");
    assert_eq!((size, is_scheduled), (0, false));
    assert_eq!(tensors, ["A [-1, 3]", "B [-1, 3]", "SUM [-1, 3]", "SAME [-1, 3]"]);
    let (size, _, tensors) = completed(&two_outputs(&[-1, 3], ""), "max_batch_size: 2");
    assert_eq!((size, tensors.len()), (2, 4));
}

#[test]
fn parameters_reach_the_device() {
    let Some(library) = library() else { return };
    let with = |key: &str, value: &str| {
        let parameter =
            format!("parameters {{ key: '{key}' value: {{ string_value: '{value}' }} }}");
        try_load(library.clone(), &files(&[-1, 2]), &format!("{BATCHED} {parameter}"))
    };
    // OpenVINO doesn't create more streams than there are cores.
    let has_cores = std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
    let streams = if has_cores { "2" } else { "1" };
    for (key, value, property) in [
        ("INFERENCE_NUM_THREADS", "1", "INFERENCE_NUM_THREADS=1,"),
        ("NUM_STREAMS", streams, &format!("NUM_STREAMS={streams},")),
        ("PERFORMANCE_HINT", "throughput", "PERFORMANCE_HINT=THROUGHPUT"),
        ("PERFORMANCE_HINT", "CUMULATIVE_THROUGHPUT", "PERFORMANCE_HINT=CUMULATIVE_THROUGHPUT"),
        ("INFERENCE_PRECISION_HINT", "F32", "INFERENCE_PRECISION_HINT=f32"),
    ] {
        let mut loaded = with(key, value).unwrap();
        assert!(loaded.log().contains(property), "{property}: {}", loaded.log());
        assert!(loaded.execute(vec![pair([1., 2.], [3., 4.])])[0].is_ok(), "{key} {value}");
    }
    if has_cores {
        let config = format!(
            "{BATCHED} instance_group {{ count: 2 kind: KIND_CPU }} \
             parameters {{ key: 'INFERENCE_NUM_THREADS' value: {{ string_value: '1' }} }}"
        );
        let loaded = try_load(library.clone(), &files(&[-1, 2]), &config).unwrap();
        let expected = "NUM_STREAMS=2, INFERENCE_NUM_THREADS=2,";
        assert!(loaded.log().contains(expected), "{}", loaded.log());
    }
    // The CPU's plug-in has no such property.
    let refused = with("COMPILATION_NUM_THREADS", "1").map(|_| ()).unwrap_err();
    assert!(refused.message().contains("COMPILATION_NUM_THREADS"), "{refused:?}");
    let refused = with("TARGET_DEVICE", "warp").map(|_| ()).unwrap_err();
    assert!(refused.message().starts_with("openvino error in "), "{refused:?}");
    let refused = with("CPU_EXTENSION_PATH", "/no/such.so").map(|_| ()).unwrap_err();
    assert!(refused.message().contains("loading custom CPU extensions"), "{refused:?}");
}

#[test]
fn a_damaged_model_is_an_error() {
    let Some(library) = library() else { return };
    let whole = two_outputs(&[-1, 2], "");
    for length in [0, 10, whole.len() / 2, whole.len() - 5] {
        let files = Files::new("model.xml", &whole[..length]);
        let refused = try_load(library.clone(), &files, BATCHED).map(|_| ()).unwrap_err();
        assert!(refused.message().starts_with("openvino error in reading model"), "{refused:?}");
    }
}

#[test]
fn an_extension_is_loaded_before_the_model_is_read() {
    let Some(library) = library() else { return };
    let files = Files::new("model.xml", "damaged");
    let config = "parameters { key: 'CPU_EXTENSION_PATH' value: { string_value: '/no/such.so' } }";
    let mut draft = parse_config_draft("config.pbtxt", config).unwrap();
    draft.resolve_name_and_backend("m", &["model.xml".to_owned()]).unwrap();
    let refused = backend(library).auto_complete_config(&mut draft, &files).unwrap_err();
    assert!(refused.message().contains("loading custom CPU extensions"), "{refused:?}");
}

#[test]
fn batches_of_a_fixed_model_are_padded_only_if_all_tensors_have_their_rows() {
    let Some(library) = library() else { return };
    let files = fixed_rows();
    let config = "max_batch_size: 8 \
        input { name: 'A' data_type: TYPE_FP32 dims: [ 2 ] EXTRA } \
        output { name: 'B' data_type: TYPE_FP32 dims: [ 2 ] }";
    let plain = config.replace("EXTRA", "");
    let reshaped = format!(
        "{plain} parameters {{ key: 'RESHAPE_IO_LAYERS' value: {{ string_value: 'yes' }} }}"
    );
    for config in [&plain, &reshaped] {
        let mut loaded = try_load(library.clone(), &files, config).unwrap();
        let one = |numbers| request(&[("A", &[1, 2], numbers)]);
        let two = vec![one(&[1., 2.]), one(&[3., 4.])];
        for (result, expected) in loaded.execute(two).iter().zip([[1., 2.], [3., 4.]]) {
            assert_eq!(output(result.as_ref().unwrap(), "B"), (vec![1, 2], expected.to_vec()));
        }
    }
    for config in [
        config.replace("EXTRA", "allow_ragged_batch: true"),
        reshaped.replacen("[ 2 ]", "[ 4 ]", 1),
    ] {
        assert!(try_load(library.clone(), &files, &config).is_err(), "{config}");
    }
}

#[test]
fn a_library_that_is_replaced_is_logged_and_none_is_opened_for_a_fingerprint() {
    let Some(library) = library() else { return };
    let folder = Files::new("other.so", "");
    let path = |name: &str| {
        let path = folder.version_path().join(name);
        std::fs::copy(library.file().path(), &path).unwrap();
        std::fs::canonicalize(path).unwrap()
    };
    let own = path("own.so");
    let library = Library::open(&own).unwrap();
    let backend = backend(library.clone());
    let files = files(&[-1, 2]);
    let host: Arc<dyn ModelHost> = Arc::new(Log::default());
    let plain = Arc::new(spec(BATCHED));
    let model = backend.load(plain.clone(), &files, host.clone()).unwrap();
    let fingerprint = |spec: &Arc<ModelSpec>| {
        backend.fingerprint(&LoadedVersion { spec, files: &files, model: &*model, host: &host })
    };
    assert!(fingerprint(&plain).is_some());
    let other = path("other.so").display().to_string();
    let named = format!(
        "{BATCHED} parameters {{ key: 'OPENVINO_LIBRARY_PATH' value: {{ string_value: '{other}' }} }}"
    );
    assert!(fingerprint(&Arc::new(spec(&named))).is_none());
    assert!(!std::fs::read_to_string("/proc/self/maps").unwrap().contains(&other));

    let has_changed = "has changed since it was opened";
    let loaded = try_load(library.clone(), &files, BATCHED).unwrap();
    assert!(!loaded.log().contains(has_changed), "{}", loaded.log());
    let day = std::time::Duration::from_secs(24 * 60 * 60);
    let earlier = std::fs::metadata(&own).unwrap().modified().unwrap() - day;
    std::fs::File::options().append(true).open(&own).unwrap().set_modified(earlier).unwrap();
    let loaded = try_load(library, &files, BATCHED).unwrap();
    assert!(loaded.log().contains(has_changed), "{}", loaded.log());
}

#[test]
fn an_output_of_variable_rank_is_refused_only_if_it_keeps_that_rank() {
    let Some(library) = library() else { return };
    let files = Files::new("model.xml", &variable_rank());
    let config = "input [ { name: 'A' data_type: TYPE_FP32 dims: [ 3 ] },
                          { name: 'S' data_type: TYPE_FP32 dims: [ 2 ] } ]
                  output { name: 'R' data_type: TYPE_FP32 dims: [ -1, -1 ] }";
    let refused = try_load(library.clone(), &files, config).map(|_| ()).unwrap_err();
    assert!(refused.message().contains("'R' has a variable number of dimensions"), "{refused:?}");
    let reshaped = format!(
        "{config} parameters {{ key: 'RESHAPE_IO_LAYERS' value: {{ string_value: 'yes' }} }}"
    );
    let mut loaded = try_load(library, &files, &reshaped).unwrap();
    let one = request(&[("A", &[3], &[1., 2., 3.]), ("S", &[2], &[3., 1.])]);
    let result = loaded.execute(vec![one]).remove(0).unwrap();
    assert_eq!(output(&result, "R"), (vec![3, 1], vec![1., 2., 3.]));
}

#[test]
fn a_variable_batch_dimension_leaves_the_bounds_of_others() {
    let Some(library) = library() else { return };
    let model = two_outputs(&[1, -1], "").replace("shape=\"1,?\"", "shape=\"1,1..3\"");
    let config = BATCHED.replace("[ 2 ]", "[ -1 ]");
    let mut loaded = try_load(library, &Files::new("model.xml", &model), &config).unwrap();
    let values = [1., 2., 3., 4.];
    let mut of = |size| {
        let (dims, values) = ([1, size as i64], &values[..size]);
        loaded.execute(vec![request(&[("A", &dims, values), ("B", &dims, values)])]).remove(0)
    };
    assert_eq!(output(&of(3).unwrap(), "SUM").1, [2., 4., 6.]);
    let refused = of(4).unwrap_err();
    assert!(refused.message().contains("setting tensor data"), "{refused:?}");
}

#[test]
fn a_long_execution_ends_when_it_is_cancelled() {
    let Some(library) = library() else { return };
    let files = Files::new("model.xml", &long_chain(300));
    let config = "input { name: 'A' data_type: TYPE_FP32 dims: [ 512, 512 ] }
        output { name: 'B' data_type: TYPE_FP32 dims: [ 512, 512 ] }";
    let mut loaded = try_load(library, &files, config).unwrap();
    let terminator = loaded.instance.terminator().unwrap();
    let ones = vec![0.001; 512 * 512];
    let one = request(&[("A", &[512, 512], &ones)]);
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        // A cancellation before the execution begins has no effect, so it is repeated.
        scope.spawn(move || {
            while is_done.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                terminator.terminate();
                // sleep: the loop ends with the execution
                std::thread::yield_now();
            }
        });
        let refused = loaded.execute(vec![one]).remove(0).unwrap_err();
        done.send(()).unwrap();
        assert!(refused.message().contains("running inference"), "{refused:?}");
    });
}

#[test]
fn one_instance_is_predictable_and_several_may_wait_for_each_other() {
    let Some(library) = library() else { return };
    for (instances, expected) in
        [(1, ExecutionPredictability::Predictable), (2, ExecutionPredictability::NonBlocking)]
    {
        let config = format!("{BATCHED} instance_group {{ count: {instances} kind: KIND_CPU }}");
        let loaded = try_load(library.clone(), &files(&[-1, 2]), &config).unwrap();
        assert_eq!(loaded.instance.guarantee(), expected);
    }
}

#[test]
fn a_frozen_graph_needs_the_ending_that_openvino_knows() {
    let Some(library) = library() else { return };
    let files = Files::new("model.graphdef", "");
    let config = format!("{BATCHED} default_model_filename: 'model.graphdef'");
    let refused = try_load(library, &files, &config).map(|_| ()).unwrap_err();
    assert!(refused.message().contains("ends with '.pb', unlike 'model.graphdef'"), "{refused:?}");
}

#[test]
fn a_model_may_name_its_library_and_precision() {
    let Some(library) = library() else { return };
    let parameter = |key: &str, value: &str| {
        format!("parameters {{ key: '{key}' value: {{ string_value: '{value}' }} }}")
    };
    // A copy is another library for the process.
    let copy = Files::new("libopenvino_c.so", "");
    let own = copy.version_path().join("libopenvino_c.so");
    std::fs::copy(library.file().path(), &own).unwrap();
    let own = std::fs::canonicalize(own).unwrap().display().to_string();
    let is_open = || std::fs::read_to_string("/proc/self/maps").unwrap().contains(&own);
    assert!(!is_open());
    let config = [
        BATCHED,
        &parameter("OPENVINO_LIBRARY_PATH", &own),
        &parameter("INFERENCE_PRECISION_HINT", "F32"),
    ];
    let mut loaded = try_load(library.clone(), &files(&[-1, 2]), &config.concat()).unwrap();
    assert!(is_open() && loaded.log().contains("INFERENCE_PRECISION_HINT=f32"), "{}", loaded.log());
    assert!(loaded.execute(vec![pair([1., 2.], [3., 4.])])[0].is_ok());
    let config = format!("{BATCHED} {}", parameter("OPENVINO_LIBRARY_PATH", "/no/such.so"));
    let refused = try_load(library, &files(&[-1, 2]), &config).map(|_| ()).unwrap_err();
    assert!(refused.message().starts_with("can't use '/no/such.so' as OpenVINO's"), "{refused:?}");
}
