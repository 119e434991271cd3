//! Compiled models, executed by PyTorch itself. `tests/pytorch/compiled.py` creates them.

#![allow(clippy::unwrap_used, reason = "a test may fail in any line")]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use galatea_backend_pytorch::{Library, NativeModelRefusal, WithoutNativeModels};
use galatea_infer::Code;
use serde_json::{Value, json};

use support::goldens::{Golden, floats, request};
use support::{Files, TestModel, backend, execute, library, spec, try_load, variable};

const PACKAGE: &str = "model.pt2";

/// The library, and the directory of the models that `tests/pytorch/compiled.py` creates.
fn library_and_models() -> Option<(Arc<Library>, PathBuf)> {
    Some((library()?, variable("GALATEA_TEST_TORCH_MODELS")?))
}

fn load(
    library: &Arc<Library>,
    models: &Path,
    name: &str,
    more: &str,
) -> Result<TestModel, String> {
    let golden = Golden::read(&models.join(format!("{name}.json")));
    load_with(library, models, name, &format!("{more}\n{}", golden.config))
}

fn load_with(
    library: &Arc<Library>,
    models: &Path,
    name: &str,
    config: &str,
) -> Result<TestModel, String> {
    let files = Files::new(&[(PACKAGE, &models.join(format!("{name}.pt2")))]);
    let backend = backend(library.clone());
    let loaded = try_load(&backend, &files, spec(config, PACKAGE));
    loaded.map_err(|status| status.message().to_owned())
}

#[test]
// row: BE-02
fn answers_are_those_of_pytorch() {
    let Some((library, models)) = library_and_models() else { return };
    let mut count = 0;
    for name in [
        "mlp", "fixed", "types", "bfloat", "nested", "lengths", "passed", "picture", "words",
        "best", "missing", "doubled", "beside",
    ] {
        let golden = Golden::read(&models.join(format!("{name}.json")));
        let mut model = load(&library, &models, name, "").unwrap();
        assert!(model.warnings.is_empty(), "{name}: {:?}", model.warnings);
        for case in &golden.cases {
            let response = model.execute(vec![case.request()]).remove(0);
            case.check(&response.unwrap_or_else(|status| panic!("{name}: {status}")), name);
            count += 1;
        }
        if model.spec.max_batch_size == 0 {
            continue;
        }
        let requests = golden.cases.iter().map(support::goldens::Case::request).collect();
        let responses = model.execute(requests);
        for (case, response) in golden.cases.iter().zip(responses) {
            case.check(&response.unwrap(), &format!("{name} in a batch"));
        }
    }
    assert!(count >= 20, "{count}");
}

#[test]
fn responses_keep_their_outputs_after_later_runs_and_the_model() {
    let Some((library, models)) = library_and_models() else { return };
    for name in ["passed", "missing"] {
        let golden = Golden::read(&models.join(format!("{name}.json")));
        let mut model = load(&library, &models, name, "").unwrap();
        let first = model.execute(vec![golden.cases[0].request()]).remove(0).unwrap();
        for _ in 0..3 {
            let last = golden.cases.last().unwrap();
            last.check(&model.execute(vec![last.request()]).remove(0).unwrap(), name);
        }
        drop(model);
        golden.cases[0].check(&first, name);
    }
}

#[test]
fn instances_execute_at_the_same_time() {
    let Some((library, models)) = library_and_models() else { return };
    let golden = Golden::read(&models.join("words.json"));
    let more = "instance_group { count: 3 }";
    let mut model = load(&library, &models, "words", more).unwrap();
    assert_eq!(model.instances.len(), 3);
    thread::scope(|scope| {
        for instance in &mut model.instances {
            scope.spawn(|| {
                for _ in 0..200 {
                    for case in &golden.cases {
                        let result = execute(&mut **instance, true, vec![case.request()]).remove(0);
                        case.check(&result.unwrap(), "words");
                    }
                }
            });
        }
    });
}

#[test]
fn a_shape_that_the_model_was_not_compiled_for_is_refused() {
    let Some((library, models)) = library_and_models() else { return };
    let golden = Golden::read(&models.join("mlp.json"));
    let config = golden.config.replace("dims: [8]", "dims: [-1]");
    let mut model = load_with(&library, &models, "mlp", &config).unwrap();
    let wrong = request(&[floats("ARGS[0]", &[1, 7], &[1.; 7])]);
    let status = model.execute(vec![wrong]).remove(0).unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let expected = "input 'ARGS[0]' of model 'm' has shape [1, 7]: the model was compiled for \
        [0..1024,8]";
    assert_eq!(status.message(), expected);
    // Two inputs whose sizes are the same in the model.
    let mut model = load(&library, &models, "lengths", "").unwrap();
    let inputs = [floats("INPUT__0", &[1, 3], &[1.; 3]), floats("INPUT__1", &[1, 2], &[1.; 2])];
    let status = model.execute(vec![request(&inputs)]).remove(0).unwrap_err();
    assert!(status.message().contains("follows from another one and is 3"), "{status}");
    // An input that has twice as many rows as the other.
    let mut model = load(&library, &models, "doubled", "").unwrap();
    let inputs = [floats("ARGS[0]", &[3, 2], &[1.; 6]), floats("ARGS[1]", &[2, 2], &[1.; 4])];
    let status = model.execute(vec![request(&inputs)]).remove(0).unwrap_err();
    assert!(status.message().contains("follows from another one and is 6"), "{status}");
    let error = load(&library, &models, "complex", "").err().unwrap();
    assert!(error.contains("has the unsupported element type 'complex64'"), "{error}");
    let golden = Golden::read(&models.join("mlp.json"));
    let config = golden.config.replace("dims: [8]", "dims: [9]");
    let error = load_with(&library, &models, "mlp", &config).err().unwrap();
    assert!(error.contains("the model expects 2 dimensions (shape [-1,8])"), "{error}");
    let config = golden.config.replacen("TYPE_FP32", "TYPE_INT32", 1);
    let error = load_with(&library, &models, "mlp", &config).err().unwrap();
    assert!(error.contains("model provides TYPE_FP32"), "{error}");
}

#[test]
// row: BE-02
fn a_package_without_the_weights_is_refused_before_its_code_runs() {
    let Some((library, models)) = library_and_models() else { return };
    let expected = "it has no weights: compile the model with \
        `aot_inductor.package_constants_in_so` on";
    let error = load(&library, &models, "weightless", "").err().unwrap();
    assert!(error.contains(expected), "{error}");
}

#[test]
// row: BE-02
fn a_package_with_pickled_weights_is_described_to_a_worker() {
    let Some((library, models)) = library_and_models() else { return };
    let job = |name| {
        let job = load(&library, &models, name, "").err().unwrap();
        serde_json::from_str::<Value>(&job).unwrap()
    };
    let listed = job("listed");
    assert_eq!(
        (&listed["inputs"], &listed["has_pickled_weights"]),
        (&json!(["ARGS[0]"]), &json!(true))
    );
    assert_eq!(job("counted")["has_pickled_weights"], json!(false));
}

#[test]
fn a_file_of_weights_that_is_too_short_is_refused() {
    let Some((library, models)) = library_and_models() else { return };
    let golden = Golden::read(&models.join("beside.json"));
    let whole = std::fs::read(models.join("beside.pt2")).unwrap();
    let folder = std::env::temp_dir().join(format!("galatea-weights-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("short.pt2");
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(whole)).unwrap();
    let mut writer = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
    for index in 0..archive.len() {
        let mut file = archive.by_index(index).unwrap();
        let mut content = Vec::new();
        std::io::Read::read_to_end(&mut file, &mut content).unwrap();
        let name = file.name().unwrap().into_owned();
        if name.ends_with(".blob") {
            content.truncate(content.len() / 2);
        }
        writer.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        std::io::Write::write_all(&mut writer, &content).unwrap();
    }
    writer.finish().unwrap();
    let files = Files::new(&[(PACKAGE, &path)]);
    let loaded = try_load(&backend(library), &files, spec(&golden.config, PACKAGE));
    let error = loaded.err().unwrap().message().to_owned();
    assert!(error.ends_with("the model needs 768 bytes, and has 384"), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn states_are_tensors_of_the_model() {
    let Some((library, models)) = library_and_models() else { return };
    assert!(load(&library, &models, "running", "").is_ok());
    let golden = Golden::read(&models.join("running.json"));
    let config = golden.config.replace("\"INPUT__1\"", "\"INPUT__2\"");
    let error = load_with(&library, &models, "running", &config).err().unwrap();
    assert!(error.starts_with("Input \"INPUT__2\" for model \"m\" is not found"), "{error}");
}

#[test]
fn outputs_without_dimensions_are_refused_as_in_triton() {
    let Some((library, models)) = library_and_models() else { return };
    let mut model = load(&library, &models, "scalar", "").unwrap();
    let inputs = [floats("ARGS[0]", &[4], &[1.; 4])];
    let status = model.execute(vec![request(&inputs)]).remove(0).unwrap_err();
    assert!(status.message().ends_with("is a scalar which is not supported."), "{status}");
}

#[test]
// row: BE-02
fn what_can_not_be_executed_here_is_refused_before_its_code_is_loaded() {
    let Some((library, models)) = library_and_models() else { return };
    let error = load(&library, &models, "writing", "").err().unwrap();
    assert!(error.contains("writes to its input 'ARGS[0]'"), "{error}");
    let files = Files::new(&[(PACKAGE, &models.join("mlp.pt2"))]);
    let operator = NativeModelRefusal::Operator;
    let refusing = WithoutNativeModels::new(Arc::new(backend(library)), operator);
    let golden = Golden::read(&models.join("mlp.json"));
    let status = try_load(&refusing, &files, spec(&golden.config, PACKAGE)).err().unwrap();
    assert!(
        status.message().ends_with("is native code, which --allow-native-models=false refuses"),
        "{status}"
    );
}

#[test]
fn a_model_with_operations_that_need_python_is_described_to_a_worker() {
    let Some((library, models)) = library_and_models() else { return };
    let job = load(&library, &models, "counted", "").err().unwrap();
    let job: Value = serde_json::from_str(&job).unwrap();
    assert_eq!((&job["form"], &job["inputs"]), (&json!("package"), &json!(["ARGS[0]"])));
    let output = json!({ "name": "RESULT", "index": 0, "datatype": "INT64" });
    assert_eq!(job["outputs"], json!([output]));
    let golden = Golden::read(&models.join("counted.json"));
    let config = golden.config.replace("ARGS[0]", "ARGS[1]");
    let error = load_with(&library, &models, "counted", &config).err().unwrap();
    assert!(error.starts_with("Input \"ARGS[1]\" for model \"m\" is not found"), "{error}");
}

#[test]
// row: BE-02
fn parameters_without_effect_are_warned_about() {
    let Some((library, models)) = library_and_models() else { return };
    let more = "parameters { key: 'DISABLE_CUDNN' value { string_value: 'true' } }
        parameters { key: 'INTRA_OP_THREAD_COUNT' value { string_value: '1' } }
        parameters { key: 'INFERENCE_MODE' value { string_value: 'true' } }
        parameters { key: 'ENABLE_JIT_PROFILING' value { string_value: 'true' } }";
    let warnings = load(&library, &models, "mlp", more).unwrap().warnings;
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    let more = "parameters { key: 'INTRA_OP_THREAD_COUNT' value { string_value: '2' } }";
    let warnings = load(&library, &models, "mlp", more).unwrap().warnings;
    assert!(warnings[0].contains("the first model that sets it decides"), "{warnings:?}");
}
