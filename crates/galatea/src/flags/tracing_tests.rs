use std::fmt::Write;

use galatea_trace::TraceSettingValues;

use super::*;
use crate::environment::VertexAiVariables;
use crate::flags::{ServerCommand, parse};

fn read(arguments: &[&str]) -> Result<TraceFlags, String> {
    let (vertex_ai, span_batches) = (VertexAiVariables::default(), SpanBatchVariables::default());
    let arguments = arguments.iter().map(|argument| (*argument).to_owned());
    match parse(arguments, &vertex_ai, &span_batches) {
        Ok(ServerCommand::Serve(settings)) => Ok(settings.trace),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

#[track_caller]
fn check(arguments: &[&str], expected: &str) {
    let flags = read(arguments).unwrap();
    let TraceSettingValues { levels, rate, count, log_frequency } = flags.start;
    let mut found =
        format!("{} {rate} {count} {log_frequency} '{}'", levels.names().join("+"), flags.file);
    for (name, value) in flags.further {
        let _ = write!(found, " {name}={value}");
    }
    assert_eq!(found, expected, "{arguments:?}");
}

#[track_caller]
fn check_error(arguments: &[&str], option: &str, reason: &str) {
    assert_eq!(read(arguments), Err(format!("Bad option: \"{option}\".\n{reason}")));
}

#[test]
fn settings_of_all_modes_and_of_files() {
    check(&[], "OFF 1000 -1 0 ''");
    check(
        &[
            "--trace-config=level=TIMESTAMPS",
            "--trace-config=level=tensors",
            "--trace-config=rate=5",
            "--trace-config=count=7",
            "--trace-config=triton,file=a=b",
            "--trace-config=triton,log-frequency=3",
        ],
        "TIMESTAMPS+TENSORS 5 7 3 'a=b'",
    );
    check(&["--trace-config=Mode=x", "--trace-config=mode=TRITON"], "OFF 1000 -1 0 ''");
    check(&["--trace-config=rate=-1", "--trace-config=count=-7"], "OFF 4294967295 -7 0 ''");
}

#[test]
fn settings_of_a_mode_that_nothing_knows_are_shown_to_clients() {
    check(
        &["--trace-config=triton,rate=5", "--trace-config=triton,x=y"],
        "OFF 1000 -1 0 '' rate=5 x=y",
    );
    check(&["--trace-config=opentelemetry,url=x", "--trace-config=more=x"], "OFF 1000 -1 0 ''");
}

#[test]
fn settings_of_collectors() {
    let mode = "--trace-config=mode=opentelemetry";
    let defaults = "bsp_max_export_batch_size=512 bsp_schedule_delay=5000 bsp_max_queue_size=2048";
    check(&[mode], &format!("OFF 1000 -1 0 '' {defaults}"));
    check(&[mode, "--trace-file=x"], &format!("OFF 1000 -1 0 '' {defaults}"));
    check(
        &[
            mode,
            "--trace-config=opentelemetry,bsp_schedule_delay=7x",
            "--trace-config=opentelemetry,a=b",
        ],
        "OFF 1000 -1 0 '' bsp_schedule_delay=7 a=b bsp_max_export_batch_size=512 \
         bsp_max_queue_size=2048",
    );
    let url = "--trace-config opentelemetry,url";
    let malformed = "the URL of the collector is malformed";
    let given = "--trace-config=opentelemetry,url=ftp://a";
    check_error(&[mode, given], url, &format!("{malformed}. Got ftp://a"));
    let number = "Invalid option value. Got x";
    let delay = "--trace-config opentelemetry,bsp_schedule_delay";
    check_error(&[mode, "--trace-config=opentelemetry,bsp_schedule_delay=x"], delay, number);
}

#[test]
fn deprecated_flags_are_overridden_with_a_warning() {
    let old = ["--trace-file=a", "--trace-level=MIN", "--trace-rate=1", "--trace-count=2"];
    check(&old, "TIMESTAMPS 1 2 0 'a'");
    check(&["--trace-log-frequency=4"], "OFF 1000 -1 4 ''");
    let flags = read(&["--trace-rate=1", "--trace-config=rate=2"]).unwrap();
    assert_eq!(flags.start.rate, 2);
    let [deprecated, overridden] = flags.warnings[..] else { panic!("{:?}", flags.warnings) };
    assert!(deprecated.starts_with("Warning: '--trace-rate' has been deprecated"), "{deprecated}");
    let expected = "Warning: Overriding deprecated '--trace-rate' in favor of provided rate value \
                    in --trace-config!";
    assert_eq!(overridden, expected);
}

#[test]
fn only_the_deprecated_level_turns_the_others_off() {
    let level = "--trace-config=level=TENSORS";
    check(&[level, "--trace-config=level=OFF"], "TENSORS 1000 -1 0 ''");
    check(&[level, "--trace-level=OFF"], "OFF 1000 -1 0 ''");
}

#[test]
fn wrong_values_are_refused_with_the_texts_of_triton() {
    let format = "--trace-config option format is '<trace mode>,<setting>=<value>'. Got ";
    for text in ["x", "a=", "=b", "triton,x", "triton,=x"] {
        check_error(&["--trace-config", text], "--trace-config", &format!("{format}{text}\n"));
    }
    let none = "No trace mode specified. --trace-config option format is \
                <trace mode>,<setting>=<value> or <setting>=<value>. Got ,a=b\n";
    check_error(&["--trace-config=,a=b"], "--trace-config", none);
    let modes = "Available options are \"triton\" and \"opentelemetry\"";
    let mode = format!("invalid value for trace mode option: foo. {modes}");
    check_error(&["--trace-config=Foo,a=b"], "--trace-config", &mode);
    check_error(&["--trace-config=mode=foo"], "--trace-config mode", &mode);
    let level = "invalid value for trace level option: x";
    check_error(&["--trace-config=level=X"], "--trace-config level", level);
    check_error(&["--trace-level=X"], "--trace-level", level);
    let number = "Invalid option value. Got x";
    check_error(&["--trace-config=rate=x"], "--trace-config rate", number);
    let frequency = "--trace-config triton,log-frequency";
    check_error(&["--trace-config=triton,log-frequency=x"], frequency, number);
    let range = "Provided option value is out of bound. Got 99999999999";
    check_error(&["--trace-config=count=99999999999"], "--trace-config count", range);
}
