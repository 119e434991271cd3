//! Tests of the commands' command lines.

use super::*;

fn read(line: &str) -> Result<Invocation, String> {
    let arguments: Vec<String> = line.split_whitespace().map(String::from).collect();
    let parsed = parse(&arguments, &Environment::default()).expect("a command");
    parsed.map_err(|error| format!("{}: {}", error.command.name, error.reason))
}

#[track_caller]
fn check_error(line: &str, expected: &str) {
    assert_eq!(read(line).unwrap_err(), expected, "{line}");
}

#[test]
fn arguments_of_the_server_are_no_command() {
    for line in ["", "--check", "--id check", "models", "--help"] {
        let arguments: Vec<String> = line.split_whitespace().map(String::from).collect();
        assert!(parse(&arguments, &Environment::default()).is_none(), "{line}");
    }
}

#[test]
fn a_new_model_has_a_name_and_a_place() {
    let check = |line: &str, place: &str| match read(line) {
        Ok(Invocation::New(model, ReportFormat::Text)) => {
            assert_eq!(Ok(model), NewModel::new("m", place));
        }
        other => panic!("{other:?}"),
    };
    check("new python m", "models");
    check("new python --directory d m", "d");
    check("new python m --dir=d", "d");
    let json = read("new python m --json");
    assert!(matches!(json, Ok(Invocation::New(_, ReportFormat::Json))), "{json:?}");
    check_error("new", "new python: there is no command 'new', only 'new python'");
    check_error("new onnx a", "new python: there is no command 'new onnx', only 'new python'");
    check_error("new python", "new python: the name of one model is missing");
    check_error("new python a b", "new python: the name of one model is missing");
    let needs = "new python: Bad option: \"--directory\".\nthe option requires an argument";
    check_error("new python a --directory", needs);
    let unknown = "new python: Bad option: \"--http-port\".\nunrecognized option";
    check_error("new python a --http-port 1", unknown);
    assert!(read("new python a/b").unwrap_err().contains("'a/b' is no name"));
}

#[test]
fn help_of_a_command_is_its_own() {
    for line in ["new python --help", "serve --help --nonsense", "check --help=man"] {
        assert!(matches!(read(line), Ok(Invocation::Help(_))), "{line}");
    }
}

#[test]
fn a_check_takes_flags_and_models() {
    match read("check a.onnx --json --model-repository r --model-config-name x b") {
        Ok(Invocation::Check(options, ReportFormat::Json)) => {
            assert_eq!(options.models, ["a.onnx", "b"]);
            assert_eq!(options.settings.model_repositories, [PathBuf::from("r")]);
            assert_eq!(options.settings.model_config_name.as_deref(), Some("x"));
        }
        other => panic!("{other:?}"),
    }
    check_error("check", "check: a model is missing: a file, a directory or a repository");
}

#[test]
fn traces_are_files() {
    match read("trace export a b") {
        Ok(Invocation::ExportTraces(files, ReportFormat::Text)) => {
            assert_eq!(files, [PathBuf::from("a"), PathBuf::from("b")]);
        }
        other => panic!("{other:?}"),
    }
    check_error("trace export", "trace export: files of traces are missing");
    check_error("trace", "trace export: there is no command 'trace', only 'trace export'");
}
