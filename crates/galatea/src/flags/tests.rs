//! The command line as a whole: accepted flags, their effects, and the errors of refused
//! ones.

use std::collections::{BTreeMap, BTreeSet};

use galatea_dispatch::{RateLimiterMode, ResourceLimit};
use galatea_gate::access::AccessRules;

use super::settings::CacheSettings;
use std::time::Duration;

use super::parse::UsageError;
use super::*;
use crate::environment::{SpanBatchVariables, VertexAiVariables};
use crate::memory::ModelMemoryLimit;

fn parse_here(arguments: impl IntoIterator<Item = String>) -> Result<ServerCommand, UsageError> {
    parse(arguments, &VertexAiVariables::default(), &SpanBatchVariables::default())
}

fn settings(arguments: &[&str]) -> Settings {
    match parse_here(arguments.iter().map(|argument| (*argument).to_owned())) {
        Ok(ServerCommand::Serve(settings)) => *settings,
        other => panic!("{arguments:?}: {other:?}"),
    }
}

fn error(arguments: &[&str]) -> String {
    parse_here(arguments.iter().map(|argument| (*argument).to_owned())).unwrap_err().to_string()
}

/// Checks every difference between the settings after `arguments` and the defaults.
fn check(arguments: &[&str], expected: &[&str]) {
    let lines = |settings: &Settings| -> Vec<String> {
        let text = format!("{settings:#?}");
        text.lines().map(|line| line.trim().trim_end_matches(',').to_owned()).collect()
    };
    let before = lines(&Settings::default());
    let changed: Vec<String> = lines(&settings(arguments))
        .into_iter()
        .filter(|line| line != ")" && !before.contains(line))
        .collect();
    assert_eq!(changed, expected, "{arguments:?}");
}

#[test]
fn values_come_after_an_equals_sign_or_as_the_next_argument() {
    check(&["--id=a"], &["id: \"a\""]);
    check(&["--id", "a"], &["id: \"a\""]);
    check(&["--id", "--http-port"], &["id: \"--http-port\""]);
    check(&["--id=a=b"], &["id: \"a=b\""]);
    check(&["--id="], &["id: \"\""]);
    check(&["--id=a", "--id=b"], &["id: \"b\""]);
}

#[test]
fn connections_are_limited() {
    check(&["--connection-limit=100"], &["max: Some(", "100"]);
    check(&["--connection-limit-http=9"], &["http_max: Some(", "9"]);
    check(&["--connection-head-timeout=7"], &["7"]);
    check(&["--connection-idle-timeout=3600"], &["idle: Some(", "3600"]);
    let connections = |flag: &str| settings(&[flag]).connections;
    assert_eq!(connections("--connection-limit=0").max, Some(usize::MAX));
    assert_eq!(connections("--connection-limit-grpc=0").grpc_max, None);
    assert_eq!(connections("--connection-stall-timeout=0").timeouts.stall, None);
    let text = "Provided option value is out of bound. Got -1";
    assert!(error(&["--connection-limit=-1"]).ends_with(text));
}

#[test]
fn a_name_may_be_cut_short_while_it_names_one_flag() {
    check(&["--exit-t=7"], &["exit_timeout_secs: 7"]);
    check(&["--exit-t", "7", "--"], &["exit_timeout_secs: 7"]);
    check(&["--id=a", "--i=b"], &["id: \"b\""]);
    assert_eq!(
        error(&["--exit=7"]),
        "Bad option: \"--exit\".\nit may mean \"--exit-timeout-secs\" or \"--exit-on-error\""
    );
    assert_eq!(error(&["--exit-t=x"]), error(&["--exit-timeout-secs=x"]));
    assert_eq!(error(&["--=7"]), "Bad option: \"--\".\nunrecognized option");
    assert!(matches!(parse_here([String::from("--hel")]), Ok(ServerCommand::Help(HelpForm::Text))));
}

#[test]
// row: CLI-16
fn a_flag_changes_its_setting_alone() {
    check(&[], &[]);
    check(&["--exit-timeout-secs=7"], &["exit_timeout_secs: 7"]);
    check(&["--exit-timeout-secs=-7"], &["exit_timeout_secs: 0"]);
    check(&["--repository-symlinks=false"], &["repository_symlinks: Forbidden"]);
    check(&["--exit-on-error=off"], &["exit_on_error: false"]);
    check(&["--strict-readiness=FALSE"], &["strict_readiness: false"]);
    check(&["--backend-directory=/a"], &["backend_directory: \"/a\""]);
    check(&["--repoagent-directory=/a"], &["repoagent_directory: \"/a\""]);
    check(
        &["--disable-auto-complete-config"],
        &["auto_complete_config: false", "disables_auto_complete: true"],
    );
    check(&["--model-config-name=h100"], &["model_config_name: Some(", "\"h100\""]);
    check(&["--model-load-thread-count=0"], &["model_load_threads: 1"]);
    check(&["--model-load-retry-count=3"], &["load_retries: 3"]);
    check(&["--log-verbose=3"], &["verbose_level: 3"]);
    check(&["--log-verbose=True"], &["verbose_level: 1"]);
    check(&["--log-verbose=-1"], &[]);
    check(&["--log-info=false"], &["info: false"]);
    check(&["--log-warning=0"], &["warning: false"]);
    check(&["--log-error=off"], &["error: false"]);
    check(&["--log-format=ISO8601"], &["format: Iso8601"]);
    check(&["--log-file=x"], &["file: Some(", "\"x\""]);
    check(&["--http-port=9009"], &["port: 9009"]);
    check(&["--http-address=::1"], &["address: \"::1\""]);
    check(&["--http-thread-count=3"], &["http_threads: 3"]);
    check(&["--http-max-input-size=5"], &["http_input_bytes_max: 5"]);
    check(&["--allow-client-shm=true"], &["allow_client_shm: true"]);
    check(&["--allow-client-shm=0"], &[]);
    check(&["--grpc-port=9001"], &["port: 9001"]);
    check(&["--metrics-port=9002"], &["port: 9002"]);
    check(&["--metrics-interval-ms=5"], &["interval: 5ms"]);
    check(&["--metrics-config=counter_latencies=false"], &["counter_latencies: false"]);
    check(&["--metrics-config=histogram_latencies=true"], &["histogram_latencies: true"]);
    check(&["--metrics-config=summary_latencies=true"], &["summary_latencies: true"]);
    check(&["--metrics-config=galatea_histograms=true"], &["galatea_histograms: true"]);
    check(&["--allow-cpu-metrics=false"], &["cpu: false"]);
    check(
        &["--pinned-memory-pool-byte-size=9"],
        &[
            "pinned: 9",
            "notes_without: [",
            "\"'--pinned-memory-pool-byte-size' is only shown: nothing is pinned without GPUs\"",
            "notes: [",
            "\"'--pinned-memory-pool-byte-size' is only shown: nothing is pinned without GPUs\"",
        ],
    );
    check(&["--memory-limit=0"], &["memory_limit: Off"]);
    check(&["--memory-limit=none"], &["memory_limit: Off"]);
    check(&["--memory-limit=64K"], &["memory_limit: Bytes(", "65536"]);
    check(&["--onnxruntime-library=x"], &["onnxruntime_library: Some(", "\"x\""]);
    check(&["--openvino-library=x"], &["openvino_library: Some(", "\"x\""]);
    check(&["--tensorflow-library=x"], &["tensorflow_library: Some(", "\"x\""]);
    check(&["--torch-library=x"], &["torch_library: Some(", "\"x\""]);
    check(&["--allow-native-models=false"], &["allows_native_models: false"]);
}

#[test]
fn flags_of_an_endpoint_change_that_endpoint() {
    let settings = settings(&[
        "--allow-http=false",
        "--reuse-http-port=true",
        "--allow-grpc=false",
        "--grpc-address=b",
        "--reuse-grpc-port=true",
        "--allow-metrics=false",
        "--metrics-address=c",
    ]);
    let door = |address: &str, port, reuse_port| DoorSettings {
        allow: false,
        address: address.to_owned(),
        port,
        reuse_port,
        tls: tls::TlsSettings::default(),
    };
    assert_eq!(settings.http, door("0.0.0.0", 8000, true));
    assert_eq!(settings.grpc, door("b", 8001, true));
    assert_eq!(settings.metrics, door("c", 8002, false));
}

#[test]
fn repeated_flags_add_up() {
    let settings = settings(&[
        "--model-repository=b",
        "--model-store",
        "a",
        "--backend-config=default-max-batch-size=8",
        "--backend-config=onnxruntime,x=y=z",
    ]);
    assert_eq!(settings.model_repositories, ["b", "a"].map(std::path::PathBuf::from));
    let setting = |backend: &str, key: &str, value: &str| BackendSetting {
        backend: backend.to_owned(),
        key: key.to_owned(),
        value: value.to_owned(),
    };
    let expected = [setting("", "default-max-batch-size", "8"), setting("onnxruntime", "x", "y=z")];
    assert_eq!(settings.backend_settings, expected);
}

#[test]
fn a_default_in_the_help_is_the_default() {
    for (flag, default) in flags().map(|flag| (flag, flag.default_value())) {
        if default.is_empty() {
            continue;
        }
        let mut settings = Settings::default();
        flag.apply(&mut settings, &default).unwrap();
        settings.notes.clear();
        settings.gpus.notes_without.clear();
        settings.strict_model_config = None;
        settings.sets_poll_secs = false;
        let mut defaults = Settings::default();
        for one in [&mut settings, &mut defaults] {
            one.gpus.min_compute_capability = Some(one.gpus.minimum());
        }
        assert_eq!(format!("{settings:?}"), format!("{defaults:?}"), "{}", flag.name);
    }
}

#[test]
fn an_unknown_option_is_named() {
    let check = |arguments: &[&str], expected: &str| assert_eq!(error(arguments), expected);
    check(&["--nonsense=1"], "Bad option: \"--nonsense\".\nunrecognized option");
    check(&["--http-port"], "Bad option: \"--http-port\".\nthe option requires an argument");
    check(
        &["--disable-auto-complete-config=1"],
        "Bad option: \"--disable-auto-complete-config\".\nthe option takes no argument",
    );
    check(&["--http-port=x"], "Bad option: \"--http-port\".\nInvalid option value. Got x");
    check(
        &["--http-port=7000000000"],
        "Bad option: \"--http-port\".\nProvided option value is out of bound. Got 7000000000",
    );
    check(
        &["--allow-http=maybe"],
        "Bad option: \"--allow-http\".\ninvalid value for bool option: maybe",
    );
    check(&["models"], "Unexpected argument: models");
    check(&["-v"], "Unexpected argument: -v");
    check(&["--", "--id=a"], "Unexpected argument: --id=a");
    check(&["models", "--id"], "Bad option: \"--id\".\nthe option requires an argument");
    check(
        &["--log-format=json"],
        "Bad option: \"--log-format\".\ninvalid argument for --log-format",
    );
    check(
        &["--model-control-mode=sometimes"],
        "Bad option: \"--model-control-mode\".\ninvalid argument for --model-control-mode",
    );
    check(
        &["--load-model=a"],
        "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.",
    );
}

#[test]
fn restrictions_are_collected_and_checked() {
    let rules = |groups: &[&str], prefix: &str| {
        let mut rules = AccessRules::default();
        groups.iter().for_each(|group| rules.add(group, prefix).unwrap());
        rules
    };
    let settings = settings(&[
        "--http-restricted-api=health,trace:k=v=w",
        "--http-restricted-api=logging:l=x",
        "--grpc-restricted-protocol=health:k=v",
    ]);
    assert_eq!(settings.http_rules, rules(&["health,trace:k=v=w", "logging:l=x"], ""));
    assert_eq!(settings.grpc_rules, rules(&["health:k=v"], "triton-grpc-protocol-"));

    let refused = |flag: &str, values: &[&str], expected: &str| {
        let arguments: Vec<String> =
            values.iter().map(|value| format!("--{flag}={value}")).collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        assert_eq!(error(&arguments), format!("Bad option: \"--{flag}\".\n{expected}"));
    };
    let (http, grpc) = ("http-restricted-api", "grpc-restricted-protocol");
    let format = |flag: &str, value: &str| {
        format!("--{flag} option format is '<config name>:<setting>=<value>'. Got {value}\n")
    };
    for value in ["health", "health:k", "health:k=", ":k=v", "health:=v", ""] {
        refused(http, &[value], &format(http, value));
        refused(grpc, &[value], &format(grpc, value));
    }
    refused(http, &["model-reposit:a=b"], "unknown restricted api 'model-reposit' \n");
    refused(grpc, &["health,xx:a=b"], "unknown restricted protocol 'xx' \n");
    let twice = "'health' can not be specified in multiple config groups\n";
    refused(http, &["health,health:a=b"], &format!("restricted api {twice}"));
    refused(http, &["health:a=b", "health:a=b"], &format!("restricted api {twice}"));
    refused(grpc, &["health:a=b", "health:c=d"], &format!("restricted protocol {twice}"));
}

#[test]
fn a_value_that_leaves_a_missing_feature_off_is_accepted() {
    for arguments in [
        "--model-control-mode=NONE",
        "--rate-limit=OFF",
        "--trace-config=level=OFF",
        "--model-namespacing=false",
    ] {
        check(&[arguments], &[]);
    }
}

/// Flags that are accepted but have no effect.
const WITHOUT_EFFECT: [&str; 1] = ["--grpc-http2-max-pings-without-data=5"];

/// Flags for a structure in Triton that clients can't observe.
const CHECKED_ALONE: [&str; 3] = [
    "--grpc-infer-thread-count=16",
    "--grpc-infer-allocation-pool-size=64",
    "--buffer-manager-thread-count=4",
];

/// Flags that are accepted but have no effect without GPUs.
const WITHOUT_EFFECT_ON_CPUS: [&str; 7] = [
    "--enable-peer-access=false",
    "--allow-gpu-metrics=true",
    "--cuda-memory-pool-byte-size=0:1",
    "--cuda-virtual-address-size=0:1",
    "--min-supported-compute-capability=7.6",
    "--model-load-gpu-limit=0:0.5",
    "--model-gpu-memory=0:1G",
];

#[test]
fn a_flag_for_gpus_gets_one_remark_that_holds_without_them() {
    for argument in WITHOUT_EFFECT_ON_CPUS {
        // One of the flags needs this mode.
        let mode = ["--model-control-mode=demand", "--model-memory=1G"];
        let changed = settings(&[mode[0], mode[1], argument, argument]);
        let name = argument.split('=').next().unwrap();
        let note = format!("'{name}' has no effect: no GPU is used");
        assert_eq!(changed.notes, [note.as_str()]);
        assert_eq!(changed.gpus.notes_without, [note]);
    }
}

#[test]
// row: CLI-22
fn gpus_are_set_one_by_one() {
    let set = settings(&[
        "--cuda-memory-pool-byte-size=1:5",
        "--cuda-memory-pool-byte-size=0:-1",
        "--cuda-memory-pool-byte-size=1:6",
        "--cuda-virtual-address-size=3:7",
        "--pinned-memory-pool-byte-size=-8",
        "--min-supported-compute-capability=8.6",
        "--model-load-gpu-limit=2:0.25",
        "--enable-peer-access=false",
        "--allow-gpu-metrics=false",
    ]);
    let gpus = &set.gpus;
    assert_eq!(gpus.pools.devices, [(0, u64::MAX), (1, 6)].into());
    assert_eq!((gpus.pools.pinned, &gpus.growing_bytes), (0, &[(3, 7)].into()));
    assert_eq!((gpus.minimum(), gpus.peer_access), (8.6, false));
    assert_eq!((&gpus.load_limits, set.metrics_options.gpu), (&[(2, 0.25)].into(), false));
}

#[test]
fn a_flag_without_effect_gets_one_remark() {
    for argument in WITHOUT_EFFECT {
        let changed = settings(&[argument, argument]);
        let name = argument.split('=').next().unwrap();
        let [note] = &changed.notes[..] else { panic!("{argument}: {:?}", changed.notes) };
        assert!(note.starts_with(&format!("'{name}' has no effect: ")), "{argument}: {note}");
        let unchanged = Settings { notes: Vec::new(), ..changed };
        assert_eq!(format!("{unchanged:?}"), format!("{:?}", Settings::default()), "{argument}");
    }
    let note = "'--pinned-memory-pool-byte-size' is only shown: nothing is pinned without GPUs";
    assert_eq!(settings(&["--pinned-memory-pool-byte-size=1"]).notes, [note]);
}

#[test]
fn flags_that_no_client_can_see_need_no_remark() {
    for argument in CHECKED_ALONE {
        let changed = format!("{:?}", settings(&[argument]));
        assert_eq!(changed, format!("{:?}", Settings::default()), "{argument}");
        let name = argument.trim_start_matches("--").split('=').next().unwrap();
        let help = flags().find(|flag| flag.name == name).unwrap().help;
        assert!(help.contains("Checked alone"), "{help}");
    }
}

#[test]
// row: CLI-19
fn resources_are_counted_for_each_device_or_one() {
    let limits = settings(&["--rate-limit-resource=a:1:2", "--rate-limit-resource=b:3"]);
    assert_eq!(limits.rate_limit(), RateLimiterMode::Off);
    let limits = Settings { rate_limiting: true, ..limits };
    let limit = |name: &str, count, device| ResourceLimit { name: name.to_owned(), count, device };
    let expected = vec![limit("a", 1, Some(2)), limit("b", 3, None)];
    assert_eq!(limits.rate_limit(), RateLimiterMode::ExecutionCount(expected));
    let strange = |value: &str| {
        let limits = settings(&[&format!("--rate-limit-resource={value}")]);
        limits.rate_limit_resources
    };
    assert_eq!(strange("a:-1"), [limit("a", u32::MAX, None)]);
    assert_eq!(strange("a:1:-2"), [limit("a", 1, None)], "the whole server");
    assert_eq!(strange("a:1:-3"), [limit("a", 1, Some(u32::MAX))], "no instance has it");
    let limits = settings(&["--rate-limit=Execution_Count"]);
    assert_eq!(limits.rate_limit(), RateLimiterMode::ExecutionCount(Vec::new()));
}

#[test]
fn a_flag_whose_help_says_no_effect_gets_a_remark() {
    let named: BTreeSet<&str> = WITHOUT_EFFECT
        .iter()
        .chain(&WITHOUT_EFFECT_ON_CPUS)
        .filter_map(|argument| argument.strip_prefix("--")?.split('=').next())
        .collect();
    let admitted: BTreeSet<&str> = flags()
        .filter(|flag| flag.help.to_lowercase().contains("no effect"))
        .map(|flag| flag.name)
        .collect();
    assert_eq!(named, admitted);
}

#[test]
fn values_without_effect_are_still_checked() {
    for arguments in [
        "--repository-poll-secs=x",
        "--grpc-infer-thread-count=1",
        "--grpc-infer-thread-count=129",
        "--grpc-infer-allocation-pool-size=x",
        "--buffer-manager-thread-count=x",
        "--cuda-memory-pool-byte-size=1",
        "--cuda-memory-pool-byte-size=0:",
        "--cuda-virtual-address-size=:1",
        "--cuda-virtual-address-size=0:99999999999999999999",
        "--min-supported-compute-capability=new",
        "--model-load-gpu-limit=0",
        "--model-load-thread-count=-1",
        "--rate-limit-resource=a",
        "--rate-limit-resource=a:x",
        "--rate-limit-resource=a:1:2:3",
        "--rate-limit=sometimes",
        "--repoagent-directory=",
        "--model-config-name=",
        "--model-config-name=a/b",
        "--http-max-input-size=0",
        "--http-thread-count=-1",
        "--pinned-memory-pool-byte-size=x",
        "--metrics-config=a",
        "--metrics-config=a,b=c",
        "--backend-config=a",
        "--backend-config=,a=b",
        "--backend-config=a,b",
    ] {
        assert!(error(&[arguments]).starts_with("Bad option: \""), "{arguments}");
    }
}

#[test]
fn two_endpoints_can_not_share_a_port() {
    assert_eq!(
        error(&["--http-port=8001"]),
        "The server cannot listen to HTTP requests and GRPC requests at the same address and \
         port 0.0.0.0:8001"
    );
    assert_eq!(
        error(&["--metrics-port=8000"]),
        "The server cannot listen to HTTP requests and metrics requests at the same address \
         and port 0.0.0.0:8000"
    );
    settings(&["--http-port=8001", "--allow-grpc=false"]);
    settings(&["--http-port=8001", "--grpc-address=127.0.0.1"]);
    settings(&["--http-port=0", "--grpc-port=0", "--metrics-port=0"]);
}

#[test]
// row: CLI-14
fn the_metrics_address_follows_the_http_address() {
    assert_eq!(settings(&["--http-address=a"]).metrics_address(), "a");
    assert_eq!(settings(&["--http-address=a", "--metrics-address=b"]).metrics_address(), "b");
}

#[test]
fn remarks_wait_for_the_log() {
    let quantiles = settings(&["--metrics-config=summary_quantiles=0.5:0.1,0.9:0.01"]);
    assert_eq!(quantiles.metrics_options.summary_quantiles, [0.5, 0.9]);
    let notes = settings(&["--metrics-config=colour=red"]).notes;
    assert_eq!(notes, ["the metrics setting 'colour=red' is unknown and changes nothing"]);
}

#[test]
fn a_deprecated_flag_gets_warnings_of_triton() {
    let warnings = |arguments: &[&str]| settings(arguments).warnings().collect::<Vec<_>>();
    let deprecated = "Warning: '--strict-model-config' has been deprecated! Please use \
                      '--disable-auto-complete-config' instead.";
    let overridden = "Warning: Overriding deprecated '--strict-model-config' from False to True in \
                      favor of '--disable-auto-complete-config'!";
    let (disable, strict, lax) =
        ("--disable-auto-complete-config", "--strict-model-config=true", "--strict-model-config=0");
    assert!(warnings(&[disable]).is_empty());
    assert_eq!(warnings(&[strict]), [deprecated]);
    assert_eq!(warnings(&[lax]), [deprecated]);
    assert_eq!(warnings(&[strict, disable]), [deprecated]);
    assert_eq!(warnings(&[lax, disable]), [deprecated, overridden]);
    assert_eq!(warnings(&[disable, lax]), [deprecated, overridden]);
    assert!(!settings(&[disable, lax]).auto_complete_config);
    assert!(!settings(&["--strict-model-config=true"]).auto_complete_config);
    assert!(settings(&["--strict-model-config=false"]).auto_complete_config);
}

#[test]
fn help_and_version_come_before_errors_that_follow() {
    let request = |argument: &str| parse_here([argument.to_owned(), String::from("--nonsense")]);
    assert!(matches!(request("--help"), Ok(ServerCommand::Help(HelpForm::Text))));
    assert!(matches!(request("--version"), Ok(ServerCommand::Version)));
}

#[test]
fn the_usage_names_every_flag_once_in_lines_of_a_readable_width() {
    let usage = help(HelpForm::Text);
    for flag in flags() {
        let lines = usage.lines().filter(|line| {
            line.strip_prefix("  --").and_then(|line| line.split(' ').next()) == Some(flag.name)
        });
        assert_eq!(lines.count(), 1, "{}", flag.name);
    }
    assert!(usage.lines().all(|line| line.len() <= 80));
}

/// Triton's flags, all of which must exist here.
const TRITON_FLAGS: &str = "
    allow-client-shm allow-cpu-metrics allow-gpu-metrics allow-grpc allow-http allow-metrics
    allow-sagemaker allow-vertex-ai backend-config backend-directory buffer-manager-thread-count
    cache-config cache-directory cuda-memory-pool-byte-size cuda-virtual-address-size
    disable-auto-complete-config enable-peer-access exit-on-error exit-timeout-secs grpc-address
    grpc-header-forward-pattern grpc-http2-max-ping-strikes grpc-http2-max-pings-without-data
    grpc-http2-min-recv-ping-interval-without-data grpc-infer-allocation-pool-size
    grpc-infer-response-compression-level grpc-infer-thread-count
    grpc-keepalive-permit-without-calls grpc-keepalive-time grpc-keepalive-timeout
    grpc-max-connection-age grpc-max-connection-age-grace grpc-max-response-pool-size grpc-port
    grpc-restricted-protocol grpc-root-cert grpc-server-cert grpc-server-key grpc-use-ssl
    grpc-use-ssl-mutual host-policy http-address http-header-forward-pattern http-max-input-size
    http-port http-restricted-api http-thread-count id load-model log-error log-file log-format
    log-info log-verbose log-warning metrics-address metrics-config metrics-interval-ms
    metrics-port min-supported-compute-capability model-config-name model-control-mode
    model-load-gpu-limit model-load-retry-count model-load-thread-count model-namespacing
    model-repository model-store pinned-memory-pool-byte-size rate-limit rate-limit-resource
    repoagent-directory repository-poll-secs response-cache-byte-size reuse-grpc-port
    reuse-http-port sagemaker-port sagemaker-safe-port-range sagemaker-thread-count
    strict-model-config strict-readiness trace-config trace-count trace-file trace-level
    trace-log-frequency trace-rate vertex-ai-default-model vertex-ai-port vertex-ai-thread-count
";

/// The flags of Triton's frontend for clients of OpenAI that its server lacks.
const OPENAI_FLAGS: &str = "
    backend chat-template default-max-tokens enable-kserve-frontends host kserve-grpc-port
    kserve-http-port lora-separator max-tool-call-parse-bytes openai-port openai-restricted-api
    tokenizer tool-call-parser
";

#[test]
fn every_flag_of_triton_is_known_and_few_are_new() {
    let known: BTreeSet<&str> = flags().map(|flag| flag.name).collect();
    let mut expected: BTreeSet<&str> = TRITON_FLAGS.split_whitespace().collect();
    expected.extend(["onnxruntime-library", "openvino-library", "tensorflow-library"]);
    expected.extend(["torch-library", "allow-native-models"]);
    expected.extend(OPENAI_FLAGS.split_whitespace());
    expected.insert("openai-on-http-port");
    expected.insert("tenants-file");
    expected.insert("memory-limit");
    expected.extend(["model-memory", "model-gpu-memory"]);
    expected.insert("repository-symlinks");
    expected.insert("allow-dashboard");
    expected.insert("dashboard-host");
    expected.insert("allow-traffic-recording");
    expected.insert(crate::model_code::FLAG);
    expected.insert("error-paths");
    expected.extend(["http-use-ssl", "http-use-ssl-mutual"]);
    expected.extend(["http-server-cert", "http-server-key", "http-root-cert"]);
    expected.extend(known.iter().filter(|name| name.starts_with("connection-")));
    assert_eq!(known, expected);
    assert_eq!(flags().count(), known.len());
}

#[test]
fn tenants_restrict_loads() {
    let explicit = "--model-control-mode=explicit";
    assert!(open_loads(&settings(&[explicit])).is_some());
    let tenants = settings(&[explicit, "--tenants-file=t"]);
    assert_eq!(tenants.tenants_file.as_deref(), Some(std::path::Path::new("t")));
    assert_eq!(open_loads(&tenants), None);
}

#[test]
fn models_on_demand_need_a_limit_of_memory() {
    let demand = "--model-control-mode=demand";
    let limit = |value: &str| settings(&[demand, &format!("--model-memory={value}")]).demand();
    assert_eq!(limit("2G"), Ok(Some(ModelMemoryLimit::Bytes(2 << 30))));
    assert_eq!(limit("60%"), Ok(Some(ModelMemoryLimit::Percent(60))));
    assert_eq!(settings(&[]).demand(), Ok(None));
    for wrong in ["0", "0%", "101%", "1.5%", "x", "%", "-1%"] {
        assert!(error(&[demand, &format!("--model-memory={wrong}")]).contains("--model-memory"));
    }
    let refused = |more: &[&str]| error(&[&[demand, "--model-memory=1G"], more].concat());
    assert!(refused(&["--load-model=*"]).starts_with("--load-model=* can't be used"));
    assert!(refused(&["--repository-poll-secs=15"]).starts_with("--repository-poll-secs has no"));
    assert!(refused(&["--model-namespacing=true"]).starts_with("--model-namespacing can't"));
    assert_eq!(error(&[demand]), "--model-control-mode=demand needs --model-memory");
    assert_eq!(error(&["--model-memory=1G"]), "--model-memory needs --model-control-mode=demand");
    assert!(settings(&[demand, "--model-memory=1G", "--load-model=a"]).demand().is_ok());
}

#[test]
fn models_on_demand_may_have_limits_on_gpus() {
    let demand = ["--model-control-mode=demand", "--model-memory=1G"];
    let gpus = ["--model-gpu-memory=0:2G", "--model-gpu-memory=3:80%"];
    let parsed = settings(&[demand, gpus].concat());
    let expected = [(0, ModelMemoryLimit::Bytes(2 << 30)), (3, ModelMemoryLimit::Percent(80))];
    assert_eq!(parsed.gpus.model_memory, BTreeMap::from(expected));
    assert!(parsed.demand().is_ok());
    for wrong in ["0", "8G", "0:", "0:0", "-1:8G", "x:8G", "0:101%", "99999:8G"] {
        assert!(error(&[&format!("--model-gpu-memory={wrong}")]).contains("--model-gpu-memory"));
    }
    let needs = "--model-gpu-memory needs --model-control-mode=demand";
    assert_eq!(error(&["--model-gpu-memory=0:8G"]), needs);
}

#[test]
fn host_policies_bind_to_processors() {
    let policies = |flags: &[&str]| format!("{:?}", settings(flags).host_policies);
    let cores = |cores: &str, text: &str| {
        let binding =
            format!("Ok(ThreadBinding {{ cores: Some(CpuCores([{cores}])), nodes: {{}} }})");
        let settings = format!("{{\"cpu-cores\": \"{text}\"}}");
        format!("HostPolicy {{ binding: {binding}, settings: {settings} }}")
    };
    let expected = format!("HostPolicies({{\"a\": {}}})", cores("0, 1, 4", "0-1,4-4"));
    assert_eq!(policies(&["--host-policy=a,cpu-cores=0-1,4-4"]), expected);
    let flags = [
        "--host-policy=a,cpu-cores=0-1",
        "--host-policy=b,cpu-cores=1-1",
        "--host-policy=a,cpu-cores=2-2",
    ];
    let (a, b) = (cores("2", "2-2"), cores("1", "1-1"));
    let expected = format!("HostPolicies({{\"a\": {a}, \"b\": {b}}})");
    assert_eq!(policies(&flags), expected);
    for wrong in ["cpu-cores=1", "numa-node=one", "numa-node=1023"] {
        let found = policies(&[&format!("--host-policy=a,{wrong}")]);
        assert!(found.contains("binding: Err("), "only models that use it fail: {found}");
    }
    for wrong in ["a", "a,b", "a,=x", ",numa-node=0", "a,numa-node=", "a=b,c"] {
        let expected = format!(
            "Bad option: \"--host-policy\".\n--host-policy option format is \
             '<policy name>,<setting>=<value>'. Got {wrong}\n"
        );
        assert_eq!(error(&[&format!("--host-policy={wrong}")]), expected);
    }
}

#[test]
fn values_that_no_server_can_have_are_found_behind_malformed_ones() {
    let gpus = "--host-policy=a,gpus=1";
    let expected = "Failed to build Triton option:\nerror: setting host policy: Unsupported - \
                    Unsupported host policy setting 'gpus' is specified, supported settings are \
                    'numa-node', 'cpu-cores'";
    assert_eq!(error(&[gpus]), expected);
    assert!(error(&[gpus, "--http-port=x"]).ends_with("Got x"));
    for (value, why) in [
        ("0:1.5", "expects limit fraction to be in range [0.0, 1.0], got 1.500000"),
        ("-1:0.5", "expects device ID >= 0, got -1"),
    ] {
        let error = error(&[&format!("--model-load-gpu-limit={value}")]);
        let start = "Failed to build Triton option:\nerror: setting model load GPU limit";
        assert_eq!(error, format!("{start}: Invalid argument - {why}"));
    }
}

#[test]
// row: CLI-18
fn a_cache_is_asked_for_by_one_of_two_flags() {
    let cache = |flags: &[&str]| {
        let CacheSettings { name, config, .. } = settings(flags).cache.unwrap();
        format!("{name} {config}")
    };
    let expected = r#"local {"size":"7"}"#;
    assert_eq!(cache(&["--cache-config=local,size=7"]), expected);
    assert_eq!(cache(&["--response-cache-byte-size=7"]), expected);
    let again = cache(&["--cache-config", "local,size=1", "--cache-config", "local,size=7"]);
    assert_eq!(again, expected);
    let several = ["--cache-config=redis,port=1", "--cache-config=redis,host=a=\"b\""];
    assert_eq!(cache(&several), r#"redis {"port":"1","host":"a=\"b\""}"#);
    let whole = ["--cache-config=x,a=1", "--cache-config=x,{\"b\": [2, null]}"];
    assert_eq!(cache(&whole), r#"x {"b": [2, null]}"#);
    let more = [whole[1], "--cache-config=x,c=3"];
    assert_eq!(cache(&more), r#"x {"b":[2,null],"c":"3"}"#);
    for (flags, message) in [
        (&["--cache-config=x,{\"size\": }"][..], "not JSON"),
        (&["--response-cache-byte-size=x"], "Got x"),
        (&["--response-cache-byte-size=1", "--cache-config=local,size=1"], "incompatible"),
        (&["--cache-directory="], "can not be empty"),
    ] {
        let error = error(flags);
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn a_malformed_cache_configuration_gets_tritons_text() {
    let shape = "<cache name>,<setting>=<value>";
    let check = |wrong: &str, text: &str| {
        let expected = format!("Bad option: \"--cache-config\".\n{text}. Got {wrong}\n");
        assert_eq!(error(&[&format!("--cache-config={wrong}")]), expected);
    };
    for wrong in ["local", ",size=1", "size=3", ",{}"] {
        check(wrong, &format!("No cache specified. --cache-config option format is {shape}"));
    }
    for wrong in ["local,size", "local,=3", "local,size=", "a=b,c"] {
        check(wrong, &format!("--cache-config option format is '{shape}'"));
    }
}

#[test]
fn the_largest_pool_of_responses_is_no_bound() {
    let size = |value: &str| {
        settings(&[&format!("--grpc-max-response-pool-size={value}")]).grpc_response_pool_size
    };
    assert_eq!((size("1"), size("2147483646")), (Some(1), Some(2_147_483_646)));
    assert_eq!(size("2147483647"), None);
}

#[test]
fn responses_are_compressed_at_a_level() {
    for (level, expected) in
        [("LOW", "Low"), ("medium", "Medium"), ("High", "High"), ("none", "None")]
    {
        let flag = format!("--grpc-infer-response-compression-level={level}");
        let compression = settings(&[&flag]).grpc_response_compression;
        assert_eq!(format!("{compression:?}"), expected);
    }
}

#[test]
// row: CLI-13
fn keepalive_flags_have_the_meaning_of_grpc() {
    let keepalive = |flag: &str| settings(&[flag]).grpc_keepalive;
    let milliseconds = |number| Some(Duration::from_millis(number));
    for (value, expected) in
        [("500", milliseconds(500)), ("0", milliseconds(1)), ("-5", milliseconds(1))]
    {
        assert_eq!(keepalive(&format!("--grpc-keepalive-time={value}")).time, expected);
    }
    for (value, expected) in [("500", 500), ("0", 0), ("-5", 0)] {
        let timeout = keepalive(&format!("--grpc-keepalive-timeout={value}")).timeout;
        assert_eq!(timeout, milliseconds(expected));
        let flag = format!("--grpc-http2-min-recv-ping-interval-without-data={value}");
        assert_eq!(Some(keepalive(&flag).ping_interval_min), milliseconds(expected));
    }
    for value in [i32::MAX, 0] {
        let never = keepalive(&format!("--grpc-max-connection-age={value}"));
        assert_eq!(never.connection_age_max, None);
        let never = keepalive(&format!("--grpc-max-connection-age-grace={value}"));
        assert_eq!(never.connection_age_grace, None);
    }
    assert_eq!(keepalive("--grpc-keepalive-time=2147483647").time, None);
    assert_eq!(keepalive("--grpc-keepalive-timeout=2147483647").timeout, None);
    assert!(keepalive("--grpc-keepalive-permit-without-calls=on").permit_without_calls);
    let age = keepalive("--grpc-max-connection-age=60000").connection_age_max;
    assert_eq!(age, milliseconds(60_000));
    let grace = keepalive("--grpc-max-connection-age-grace=7").connection_age_grace;
    assert_eq!(grace, milliseconds(7));
    for (value, expected) in [("5", 5), ("0", 0), ("-1", 0)] {
        let flag = format!("--grpc-http2-max-ping-strikes={value}");
        assert_eq!(keepalive(&flag).ping_strikes_max, expected);
    }
    for flag in ["--grpc-keepalive-time=s", "--grpc-max-connection-age=2147483648"] {
        let error = error(&[flag]);
        assert!(error.contains("ption value"), "{error}");
    }
}

#[test]
fn header_patterns_are_regular_expressions() {
    check(
        &["--http-header-forward-pattern=^my_", "--grpc-header-forward-pattern=^x_"],
        &[
            "http_header_forward: Some(",
            "HeaderForwardPattern {",
            "pattern: Regex(",
            "\"^my_\"",
            "grpc_header_forward: Some(",
            "HeaderForwardPattern {",
            "pattern: Regex(",
            "\"^x_\"",
        ],
    );
    check(&["--http-header-forward-pattern="], &[]);
    let error = error(&["--grpc-header-forward-pattern=("]);
    assert!(error.contains("not a regular expression"), "{error}");
}

#[test]
fn flags_of_the_frontend_for_openai() {
    let openai = settings(&["--tool-call-parser=hermes", "--max-tool-call-parse-bytes=9"]).openai;
    assert_eq!(openai.tool_format, Some(galatea_http::ToolCallFormat::Hermes));
    assert_eq!(openai.tool_chars_max, 9);
    let refused = error(&["--tool-call-parser=x"]);
    assert!(refused.contains("tool parser: 'x' not found in tool_call_parsers"), "{refused}");
    assert_eq!(settings(&["--lora-separator=-"]).openai.lora_separator.as_deref(), Some("-"));
    assert_eq!(settings(&["--lora-separator="]).openai.lora_separator, None);
    let doors = settings(&["--allow-http=false", "--enable-kserve-frontends"]);
    assert!(doors.http.allow && doors.grpc.allow);
}
