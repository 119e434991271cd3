//! Operator libraries that are compiled from C.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use galatea_backend::{
    Backend, BackendFingerprint, ExecutionPredictability, FileFingerprint, LoadedVersion, Model,
    ModelFiles, ModelHost,
};
use galatea_infer::Code;
use galatea_pbtxt::parse_config_draft;
use galatea_tensor::DataType;

use crate::support::onnx::{FLOAT, Graph, identity};
use crate::support::{
    Files, RecordingHost, backend, cpu, execute, failure, floats, output, request, spec, tensor,
    try_load,
};

const BASE: &str = "
    max_batch_size: 4
    input [ { name: 'INPUT0' data_type: TYPE_FP32 dims: [ 2 ] } ]
    output [ { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [ 2 ] } ]";

/// A model with one of the library's operators.
fn scaling() -> Files {
    let dims = [-1, 2];
    let graph = Graph::default().input("INPUT0", FLOAT, &dims).output("OUTPUT0", FLOAT, &dims);
    Files::model(graph.node_of("galatea.tests", "Scale", &["INPUT0"], &["OUTPUT0"]))
}

fn compile(library: &Path, flags: &[&str]) {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o"]);
    compiler.arg(library).arg(manifest.join("../../tests/clients/operators/scale.c"));
    let done = compiler.args(flags).output().expect("the tests need a C compiler, cc");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn beside(files: &Files, name: &str) -> PathBuf {
    files.model_path().join(name)
}

fn naming(libraries: &[&str]) -> String {
    let names: Vec<String> = libraries.iter().map(|name| format!("'{name}'")).collect();
    format!("{BASE} model_operations {{ op_library_filename: [ {} ] }}", names.join(", "))
}

fn scaled(model: &dyn Model, host: &Arc<RecordingHost>) -> Vec<u8> {
    let mut instance = model.create_instance(&cpu()).unwrap();
    let one = tensor("INPUT0", DataType::Fp32, &[1, 2], floats(&[1., 3.]));
    let response = execute(instance.as_mut(), host, vec![request(vec![one])]).remove(0).unwrap();
    output(&response, "OUTPUT0").1.to_vec()
}

#[test]
fn a_model_uses_operators_of_a_library() {
    let files = scaling();
    compile(&beside(&files, "ops.so"), &["-DFACTOR=3"]);
    let absolute = beside(&files, "ops.so").to_string_lossy().into_owned();
    for name in ["ops.so", "./ops.so", &absolute] {
        let loaded = try_load(&files, &naming(&[name])).unwrap();
        assert_eq!(scaled(loaded.model.as_ref(), &loaded.host), floats(&[3., 9.]), "{name}");
        assert_eq!(*loaded.host.log.lock().unwrap(), Vec::<String>::new());
    }
    let (_, message) = failure(try_load(&files, BASE));
    assert!(message.contains("galatea.tests:Scale"), "{message}");
}

#[test]
fn a_configuration_is_completed_with_custom_operators() {
    let files = scaling();
    compile(&beside(&files, "ops.so"), &[]);
    let text = "model_operations { op_library_filename: 'ops.so' }";
    let mut draft = parse_config_draft("config.pbtxt", text).unwrap();
    draft.resolve_name_and_backend("m", &["model.onnx".to_owned()]).unwrap();
    backend().auto_complete_config(&mut draft, &files).unwrap();
    assert_eq!((draft.inputs()[0].name.as_str(), draft.outputs().len()), ("INPUT0", 1));
}

/// An operator may call another model and wait for it. It may also replace one of ONNX Runtime's
/// operators.
#[test]
fn a_model_with_an_operator_library_guarantees_nothing() {
    let files = Files::model(identity(FLOAT, &[-1, 2]));
    compile(&beside(&files, "ops.so"), &[]);
    let guarantee = |config: &str| try_load(&files, config).unwrap().instance.guarantee();
    assert_eq!(guarantee(BASE), ExecutionPredictability::Predictable);
    assert_eq!(guarantee(&naming(&["ops.so"])), ExecutionPredictability::Unspecified);
}

#[test]
fn files_that_are_no_operator_libraries_are_refused_by_name() {
    let files = scaling();
    compile(&beside(&files, "no_entry.so"), &["-DNO_ENTRY"]);
    compile(&beside(&files, "refuses.so"), &["-DREFUSES"]);
    fs::write(beside(&files, "text.so"), "no library").unwrap();
    let whole = fs::read(beside(&files, "no_entry.so")).unwrap();
    fs::write(beside(&files, "cut.so"), &whole[..whole.len() / 3]).unwrap();
    let pipe = beside(&files, "pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (name, code, expected) in [
        ("none.so", Code::NotFound, "none.so' or '"),
        ("/nowhere/none.so", Code::NotFound, "there is no '/nowhere/none.so'"),
        ("../none.so", Code::NotFound, "none.so'"),
        ("text.so", Code::InvalidArgument, "it can't be opened as a library: "),
        ("cut.so", Code::InvalidArgument, "cut.so' is cut short"),
        ("no_entry.so", Code::InvalidArgument, "it has no function 'RegisterCustomOps'"),
        ("refuses.so", Code::Internal, "its operators can't be registered: onnx runtime error"),
        ("pipe", Code::InvalidArgument, "is not a file"),
        ("1", Code::InvalidArgument, "is not a file"),
        (".", Code::InvalidArgument, ""),
        ("", Code::InvalidArgument, "it is not a path"),
    ] {
        // The loader searches for a name without a directory.
        let name = if name == "none.so" { "./none.so" } else { name };
        let (found, message) = failure(try_load(&files, &naming(&[name])));
        assert_eq!(found, code, "{name}: {message}");
        let start = format!("model_operations.op_library_filename '{name}': ");
        assert!(message.starts_with(&start), "{message}\n  lacks\n{start}");
        assert!(message.contains(expected), "{message}\n  lacks\n{expected}");
    }
    let (_, message) = failure(try_load(&files, &naming(&["libgalatea_none.so"])));
    assert!(message.contains("'libgalatea_none.so': it can't be opened"), "{message}");
    let (_, message) = failure(try_load(&files, &naming(&["refuses.so"])));
    assert!(message.contains("not today"), "{message}");
}

/// Loads and executes the model. Returns the output, the log and the fingerprint.
fn load(
    backend: &impl Backend,
    files: &Files,
    libraries: &[&str],
) -> (Vec<u8>, Vec<String>, Option<BackendFingerprint>) {
    let (recorder, spec) = (Arc::new(RecordingHost::default()), Arc::new(spec(&naming(libraries))));
    let model = backend.load(spec.clone(), files, recorder.clone()).unwrap();
    let result = scaled(model.as_ref(), &recorder);
    let (host, model): (Arc<dyn ModelHost>, _) = (recorder.clone(), model.as_ref());
    let fingerprint =
        backend.fingerprint(&LoadedVersion { spec: &spec, files, model, host: &host });
    let log = recorder.log.lock().unwrap().clone();
    (result, log, fingerprint)
}

/// Replaces the file, as an update does: the new file has another inode.
fn replace(library: &Path, flags: &[&str]) {
    let new = library.with_extension("new");
    compile(&new, flags);
    fs::rename(new, library).unwrap();
}

#[test]
fn a_replaced_library_stays_in_use_and_in_the_fingerprint() {
    let files = scaling();
    let library = beside(&files, "ops.so");
    compile(&library, &["-DFACTOR=2"]);
    let (backend, mark) = (backend(), FileFingerprint::of(&library));
    let (result, log, fingerprint) = load(&backend, &files, &["ops.so"]);
    assert_eq!((result, log), (floats(&[2., 6.]), Vec::new()));
    let fingerprint = fingerprint.unwrap();
    assert_eq!(fingerprint.files.len(), 2);
    assert!(fingerprint.files.contains(mark.as_ref().unwrap()) && fingerprint.files.is_sorted());
    replace(&library, &["-DFACTOR=5", "-g3"]);
    assert_ne!(FileFingerprint::of(&library), mark);
    let (result, log, same) = load(&backend, &files, &["ops.so"]);
    assert_eq!((result, same), (floats(&[2., 6.]), Some(fingerprint)));
    let [line] = log.as_slice() else { panic!("{log:?}") };
    assert!(line.contains("Warning model 'm': model_operations.op_library_filename 'ops.so'"));
    assert!(line.contains("changed since it was opened"), "{line}");
}

#[test]
fn a_library_that_was_repaired_after_it_was_opened_is_reported() {
    let files = scaling();
    let library = beside(&files, "ops.so");
    compile(&library, &["-DNO_ENTRY"]);
    let backend = backend();
    let refused = || {
        let spec = Arc::new(spec(&naming(&["ops.so"])));
        failure(backend.load(spec, &files, Arc::new(RecordingHost::default()))).1
    };
    assert!(refused().ends_with("has no function 'RegisterCustomOps'"), "{}", refused());
    replace(&library, &[]);
    assert!(refused().contains("changed since it was opened"), "{}", refused());
}
