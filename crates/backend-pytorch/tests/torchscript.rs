//! TorchScript models, executed by PyTorch itself. `tests/pytorch/torchscript.py` creates them.

#![allow(clippy::unwrap_used, reason = "a test may fail in any line")]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use galatea_backend_pytorch::{NativeModelRefusal, WithoutNativeModels};
use galatea_infer::Status;
use galatea_tensor::DataType;

use support::goldens::{Case, Golden, Tensor, floats, request};
use support::{Files, TestModel, backend, execute, library, spec, try_load};

const FILE: &str = "model.pt";

fn models() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/models")
}

fn load_with(name: &str, config: &str) -> Option<Result<TestModel, Status>> {
    let backend = backend(library()?);
    let files = Files::new(&[(FILE, &models().join(format!("{name}.pt")))]);
    Some(try_load(&backend, &files, spec(config, FILE)))
}

fn golden(name: &str) -> Golden {
    Golden::read(&models().join(format!("{name}.json")))
}

fn error(name: &str, config: &str) -> Option<String> {
    Some(load_with(name, config)?.err()?.message().to_owned())
}

#[test]
// row: BE-02
fn answers_are_those_of_pytorch() {
    let names = [
        "mlp",
        "pair",
        "ordered",
        "named",
        "keyed",
        "upper",
        "mixed",
        "kinds",
        "writing",
        "loop",
        "turned",
        "best",
        "convolved",
    ];
    for name in names {
        let golden = golden(name);
        let Some(model) = load_with(name, &golden.config) else { return };
        let mut model = model.unwrap_or_else(|status| panic!("{name}: {status}"));
        // The first executions are profiled, and later ones are optimized.
        for _ in 0..3 {
            for case in &golden.cases {
                let request = case.request();
                let before = request.inputs.clone();
                let response = model.execute(vec![request]).remove(0);
                case.check(&response.unwrap_or_else(|status| panic!("{name}: {status}")), name);
                for (input, copy) in case.inputs.iter().zip(before) {
                    assert_eq!(**copy.data.host_bytes().unwrap(), *input.bytes, "{name}");
                }
            }
        }
        if model.spec.max_batch_size == 0 {
            continue;
        }
        let responses = model.execute(golden.cases.iter().map(Case::request).collect());
        for (case, response) in golden.cases.iter().zip(responses) {
            case.check(&response.unwrap(), &format!("{name} in a batch"));
        }
    }
}

#[test]
fn models_with_state_have_neither_the_memory_of_requests_nor_that_of_responses() {
    for name in ["keeping", "listing", "replacing", "counting"] {
        let golden = golden(name);
        let Some(model) = load_with(name, &golden.config) else { return };
        let mut model = model.unwrap_or_else(|status| panic!("{name}: {status}"));
        let responses: Vec<_> =
            golden.cases.iter().map(|case| model.execute(vec![case.request()]).remove(0)).collect();
        drop(model);
        for (case, response) in golden.cases.iter().zip(responses) {
            case.check(&response.unwrap_or_else(|status| panic!("{name}: {status}")), name);
        }
    }
}

#[test]
fn instances_execute_at_the_same_time_with_and_without_shared_weights() {
    for value in ["true", "false"] {
        let golden = golden("mlp");
        let more = format!(
            "instance_group {{ count: 2 }} parameters {{ key: 'ENABLE_WEIGHT_SHARING' \
             value {{ string_value: '{value}' }} }}"
        );
        let Some(model) = load_with("mlp", &format!("{}{more}", golden.config)) else { return };
        let mut model = model.unwrap();
        thread::scope(|scope| {
            for instance in &mut model.instances {
                scope.spawn(|| {
                    for case in golden.cases.iter().cycle().take(200) {
                        let result = execute(&mut **instance, true, vec![case.request()]).remove(0);
                        case.check(&result.unwrap(), "mlp");
                    }
                });
            }
        });
    }
}

#[test]
// row: BE-02
fn contradictions_are_refused_in_tritons_words() {
    let config = |inputs: &str, output: &str| {
        format!(
            "platform: 'pytorch_libtorch' {inputs} output {{ name: '{output}' dims: 2 data_type: TYPE_FP32 }}"
        )
    };
    let x = "input { name: 'x' data_type: TYPE_FP32 dims: 2 }";
    let Some(text) = error("pair", &config(x, "OUTPUT__0")) else { return };
    assert_eq!(text, "unable to load model 'm', configuration expects 1 inputs, model provides 2");
    let strings = x.replace("TYPE_FP32 dims: 2", "TYPE_STRING dims: [ 2, 2 ]");
    let text = error("upper", &config(&strings, "OUTPUT__0")).unwrap();
    let expected =
        "Triton only supports 1 dimensional List of String as input for 'x' for model 'm'";
    assert_eq!(text, expected);
    let one = || request(&[floats("x", &[2], &[1., 2.])]);
    let mut model = load_with("writing", &config(x, "OUTPUT__1")).unwrap().unwrap();
    let status = model.execute(vec![one()]).remove(0).unwrap_err();
    let expected = "The output OUTPUT__1 in the model configuration refers to an output index which \
        doesn't exist. This model has 1 outputs";
    assert_eq!(status.message(), expected);
    let wrong =
        config(x, "y").replace("dims: 2 data_type: TYPE_FP32", "dims: 2 data_type: TYPE_INT8");
    let mut model = load_with("writing", &wrong).unwrap().unwrap();
    let status = model.execute(vec![one()]).remove(0).unwrap_err();
    let expected =
        "configuration expects datatype TYPE_INT8 for output 'y', model provides TYPE_FP32";
    assert_eq!(status.message(), expected);
    let mut model = load_with("scalar", &golden("scalar").config).unwrap().unwrap();
    let status = model.execute(vec![one()]).remove(0).unwrap_err();
    assert_eq!(status.message(), "output 'OUTPUT__0' is a scalar which is not supported.");
}

#[test]
fn errors_of_the_model_are_passed_on() {
    let Some(model) = load_with("best", &golden("best").config.replace("[5]", "[-1]")) else {
        return;
    };
    let mut model = model.unwrap();
    let short = request(&[floats("x", &[1, 1], &[1.])]);
    let status = model.execute(vec![short]).remove(0).unwrap_err();
    assert!(status.message().starts_with("PyTorch execute failure: "), "{status}");
    assert!(status.message().contains("selected index k out of range"), "{status}");
}

#[test]
fn parameters_and_states_are_accepted() {
    let parameters = [
        ("DISABLE_OPTIMIZED_EXECUTION", "true"),
        ("INFERENCE_MODE", "false"),
        ("ENABLE_JIT_PROFILING", "false"),
        ("ENABLE_JIT_EXECUTOR", "false"),
        ("ENABLE_TENSOR_FUSER", "false"),
        ("INTER_OP_THREAD_COUNT", "1"),
        ("ENABLE_CACHE_CLEANING", "true"),
    ];
    let parameters = parameters.map(|(key, value)| {
        format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}")
    });
    let golden = golden("mlp");
    let config = format!("{}{}", golden.config, parameters.concat());
    let Some(model) = load_with("mlp", &config) else { return };
    let mut model = model.unwrap();
    assert_eq!(model.warnings.len(), 1, "{:?}", model.warnings);
    for case in &golden.cases {
        case.check(&model.execute(vec![case.request()]).remove(0).unwrap(), "mlp");
    }
    let states = self::golden("total").config;
    assert!(load_with("total", &states).unwrap().is_ok());
    let text = error("total", &states.replace("INPUT__1", "total")).unwrap();
    assert!(text.contains("does not follow the <name>__<index> naming convention"), "{text}");
}

#[test]
fn a_load_request_must_not_bring_a_model_that_uses_files() {
    let Some(library) = library() else { return };
    let load_request = NativeModelRefusal::LoadRequest;
    let backend = WithoutNativeModels::new(Arc::new(backend(library)), load_request);
    let load = |path: &Path, config: &str| {
        let files = Files::new(&[(FILE, path)]);
        let loaded = try_load(&backend, &files, spec(config, FILE));
        loaded.map(drop).map_err(|status| status.message().to_owned())
    };
    let config = golden("mlp").config;
    assert_eq!(load(&models().join("mlp.pt"), &config), Ok(()));
    for (name, operator) in [("saving", "save"), ("mapping", "from_file")] {
        let error = load(&models().join(format!("{name}.pt")), &golden(name).config).unwrap_err();
        let expected = format!("the model's code in 'code/__torch__.py' names '{operator}'");
        assert!(error.contains(&expected), "{error}");
        assert!(load_with(name, &golden(name).config).unwrap().is_ok(), "{name}");
    }
    let other = load(&models().join("mlp.json"), &config).unwrap_err();
    assert!(other.ends_with("the file is no archive of TorchScript"), "{other}");
}

#[test]
fn damaged_files_are_errors_and_nothing_else() {
    let Some(library) = library() else { return };
    let backend = backend(library);
    let (whole, config) = (std::fs::read(models().join("mlp.pt")).unwrap(), golden("mlp").config);
    let folder = std::env::temp_dir().join(format!("galatea-damaged-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("model.pt");
    for length in (0..whole.len()).step_by(397) {
        std::fs::write(&path, &whole[..length]).unwrap();
        let files = Files::new(&[(FILE, &path)]);
        let loaded = try_load(&backend, &files, spec(&config, FILE));
        assert!(
            loaded.is_err_and(|status| status.message().starts_with("failed to load model 'm'"))
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn strings_are_charged_and_empty_lists_are_possible() {
    let Some(model) = load_with("upper", &golden("upper").config) else { return };
    let none = Tensor {
        name: String::from("texts"),
        datatype: DataType::Bytes,
        dims: vec![0],
        bytes: Vec::new(),
    };
    let response = model.unwrap().execute(vec![request(&[none])]).remove(0).unwrap();
    assert_eq!(response.outputs[0].shape.dims(), [0]);
}
