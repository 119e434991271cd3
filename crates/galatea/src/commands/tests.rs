//! Tests of the commands' command lines.

use galatea_engine::ControlMode;
use galatea_gate::access::AccessRules;

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
fn keys_have_a_file() {
    match read("keys new f t --apis inference --requests-per-second 5 --json") {
        Ok(Invocation::Keys(KeysCommand::New(new), ReportFormat::Json)) => {
            assert_eq!((new.file, new.tenant), (PathBuf::from("f"), String::from("t")));
            assert_eq!(
                (new.apis.as_deref(), new.requests_per_second),
                (Some("inference"), Some(5))
            );
        }
        other => panic!("{other:?}"),
    }
    match read("keys revoke f id") {
        Ok(Invocation::Keys(KeysCommand::Revoke(file, id), ReportFormat::Text)) => {
            assert_eq!((file, id), (PathBuf::from("f"), String::from("id")));
        }
        other => panic!("{other:?}"),
    }
    let names = "'keys new', 'keys list', 'keys revoke'";
    check_error("keys", &format!("keys new: there is no command 'keys', only {names}"));
    check_error("keys new f", "keys new: one file and the name of one tenant are needed");
    check_error("keys list", "keys list: one file is needed");
    check_error("keys revoke f", "keys revoke: one file and the ID of one key are needed");
    let number = "keys new: '0' is no positive number of requests a second";
    check_error("keys new f t --requests-per-second 0", number);
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

/// Describes the settings that the frontend's flags change, apart from those with these defaults:
/// port 9000, no other port, and a repository `r`.
fn frontend(line: &str) -> String {
    let settings = match read(&format!("openai {line}")) {
        Ok(Invocation::OpenAi(settings)) => settings,
        Ok(other) => return format!("{other:?}"),
        Err(reason) => return reason,
    };
    let Settings { openai, http, grpc, metrics, log, .. } = &*settings;
    let address = &openai.door.address;
    assert!(openai.door.allow && !metrics.allow && settings.log.info, "{line}");
    let mut found = Vec::new();
    let mut add = |is_shown: bool, text: String| found.extend(is_shown.then_some(text));
    let repositories = &settings.model_repositories;
    add(repositories != &[PathBuf::from("r")], format!("{repositories:?}"));
    add(openai.door.port != 9000, format!("port {}", openai.door.port));
    add(address != "0.0.0.0", format!("host {address}"));
    let shown = |path: &Option<PathBuf>| {
        path.as_ref().map_or(String::new(), |path| path.display().to_string())
    };
    add(openai.tokenizer.is_some(), format!("tokenizer {}", shown(&openai.tokenizer)));
    add(openai.chat_template.is_some(), format!("template {}", shown(&openai.chat_template)));
    add(openai.format.is_some(), format!("{:?}", openai.format));
    add(openai.lora_separator.is_some(), format!("separator {:?}", openai.lora_separator));
    add(openai.tool_format.is_some(), format!("{:?}", openai.tool_format));
    add(openai.tool_chars_max != 131_072, format!("{} characters", openai.tool_chars_max));
    add(openai.tokens_default != 16, format!("{} tokens", openai.tokens_default));
    add(openai.rules != AccessRules::default(), String::from("restricted"));
    add(http.allow, format!("http {}:{}", http.address, http.port));
    add(grpc.allow, format!("grpc {}:{}", grpc.address, grpc.port));
    add(log.verbose_level > 0, format!("verbose {}", log.verbose_level));
    add(settings.control_mode == ControlMode::Explicit, String::from("explicit"));
    add(!settings.startup_models.is_empty(), format!("{:?}", settings.startup_models));
    let input = settings.http_input_bytes_max;
    add(input != Settings::default().http_input_bytes_max, format!("{input} bytes"));
    found.join(", ")
}

#[test]
// row: OAI-05
fn start_lines_of_tritons_openai_frontend() {
    for (line, expected) in [
        ("", ""),
        ("--tokenizer t", "tokenizer t"),
        ("--tokenizer=t --backend vllm", "tokenizer t, Some(Vllm)"),
        ("--tok t --back tensorrtllm", "tokenizer t, Some(TensorRtLlm)"),
        ("--lora-separator _lora_", "separator Some(\"_lora_\")"),
        ("--tritonserver-log-verbose-level 3", "verbose 3"),
        ("--tritonserver-log=1", "verbose 1"),
        ("--host 127.0.0.1", "host 127.0.0.1"),
        ("--tool-call-parser llama3", "Some(Llama3)"),
        ("--tool-call-parser=mistral", "Some(Mistral)"),
        ("--max-tool-call-parse-bytes 9", "9 characters"),
        ("--chat-template f", "template f"),
        ("--default-max-tokens 100", "100 tokens"),
        ("--default 7", "7 tokens"),
        ("--model-control-mode none", ""),
        ("--model-control-mode explicit", "explicit"),
        ("--model-control-mode=explicit --load-model a --load-model b", "explicit, [\"a\", \"b\"]"),
        ("--model-control explicit --load=*", "explicit, [\"*\"]"),
        ("--openai-port 9010", "port 9010"),
        ("--uvicorn-log-level warning", ""),
        ("--openai-restricted-api inference,metrics key value", "restricted"),
        ("--openai-restricted-api inference k v --openai-restricted-api health a b", "restricted"),
        ("--http-max-input-size 1024", "1024 bytes"),
        ("--enable-kserve-frontends", "http 0.0.0.0:8000, grpc 0.0.0.0:8001"),
        (
            "--enable --kserve-http-port 1 --kserve-grpc-port=2 --host h",
            "host h, http h:1, grpc h:2",
        ),
        ("--kserve-http-port 1", ""),
    ] {
        assert_eq!(frontend(&format!("--model-repository r {line}")), expected, "{line}");
    }
    assert_eq!(frontend("--model-rep=q"), "[\"q\"]");
}

#[test]
// row: OAI-05
fn start_lines_that_tritons_openai_frontend_refuses() {
    for (line, expected) in [
        ("--tokenizer t", "the following arguments are required: --model-repository"),
        ("--model-repository r x", "unrecognized arguments: x"),
        (
            "--model-repository r --load-model a",
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.",
        ),
        (
            "--model-repository r --uvicorn-log-level loud",
            "argument --uvicorn-log-level: invalid choice: 'loud' (choose from 'debug', 'info', \
             'warning', 'error', 'critical', 'trace')",
        ),
        (
            "--model-repository r --tritonserver-log-verbose-level x",
            "Bad option: \"--log-verbose\".\nInvalid option value. Got x",
        ),
        ("--model-repository r --nothing", "Bad option: \"--nothing\".\nunrecognized option"),
    ] {
        assert_eq!(frontend(line), format!("openai: {expected}"), "{line}");
    }
    for line in ["openai -h", "openai --help", "openai --he"] {
        assert!(matches!(read(line), Ok(Invocation::Help(_))), "{line}");
    }
}
