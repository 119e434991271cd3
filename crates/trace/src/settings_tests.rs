use super::*;

const TIMES: TraceLevels = TraceLevels { timestamps: true, tensors: false };
const OFF: TraceLevels = TraceLevels { timestamps: false, tensors: false };

fn table() -> SettingsTable {
    SettingsTable::new(TraceSettingValues::default(), Destination::Files, None)
}

fn set<T>(value: T) -> FieldChange<T> {
    FieldChange::Set(value)
}

fn change() -> TraceSettingsChange {
    TraceSettingsChange::default()
}

#[track_caller]
fn check(table: &SettingsTable, model: &str, expected: &str) {
    let fields = table.settings_of(Some(model)).fields();
    let TraceSettingValues { levels, rate, count, log_frequency } = fields;
    let found = format!("{} {rate} {count} {log_frequency}", levels.names().join("+"));
    assert_eq!(found, expected, "{model}");
}

#[test]
fn fields_that_were_not_set_follow_the_global_ones() {
    let mut table = table();
    let first = TraceSettingsChange { levels: set(TIMES), rate: set(2), ..change() };
    table.change(None, &first).unwrap();
    table.change(Some("m"), &TraceSettingsChange { rate: set(5), ..change() }).unwrap();
    check(&table, "m", "TIMESTAMPS 5 -1 0");
    check(&table, "other", "TIMESTAMPS 2 -1 0");
    table
        .change(None, &TraceSettingsChange { log_frequency: set(7), rate: set(9), ..change() })
        .unwrap();
    check(&table, "m", "TIMESTAMPS 5 -1 7");
    check(&table, "other", "TIMESTAMPS 9 -1 7");
}

#[test]
fn cleared_fields_follow_again() {
    let mut table = table();
    table
        .change(None, &TraceSettingsChange { levels: set(TIMES), rate: set(2), ..change() })
        .unwrap();
    table
        .change(Some("m"), &TraceSettingsChange { rate: set(5), count: set(3), ..change() })
        .unwrap();
    table.change(Some("m"), &TraceSettingsChange { rate: FieldChange::Clear, ..change() }).unwrap();
    check(&table, "m", "TIMESTAMPS 2 3 0");
    table.change(None, &TraceSettingsChange { rate: FieldChange::Clear, ..change() }).unwrap();
    check(&table, "m", "TIMESTAMPS 1000 3 0");
    table
        .change(Some("m"), &TraceSettingsChange { count: FieldChange::Clear, ..change() })
        .unwrap();
    assert!(table.models.is_empty());
}

#[test]
fn a_change_of_nothing_leaves_models_without_settings_of_their_own() {
    let mut table = table();
    table.change(Some("m"), &change()).unwrap();
    assert!(table.models.is_empty());
}

#[track_caller]
fn check_invalid(destination: Destination, bad: &TraceSettingsChange, reason: &str) {
    let mut table = SettingsTable::new(TraceSettingValues::default(), destination, None);
    let before = table.global.fields();
    let error = table.change(None, bad).unwrap_err();
    assert_eq!(error.message(), format!("Attempting to set invalid trace setting :{reason}"));
    assert_eq!(table.global.fields(), before);
}

#[test]
fn settings_that_can_trace_nothing_are_refused_unless_they_are_off() {
    let on = TraceSettingsChange { levels: set(TIMES), ..change() };
    check_invalid(Destination::NoFiles, &on, "trace file name is not given");
    let never = TraceSettingsChange { rate: set(0), ..on };
    check_invalid(Destination::Files, &never, "sample rate must be non-zero");
    check_invalid(Destination::Collector, &never, "sample rate must be non-zero");
    check_invalid(Destination::Files, &TraceSettingsChange { count: set(0), ..on }, "");
    for destination in [Destination::Files, Destination::NoFiles, Destination::Collector] {
        let mut table = SettingsTable::new(TraceSettingValues::default(), destination, None);
        let off = TraceSettingsChange { levels: set(OFF), rate: set(0), count: set(0), ..change() };
        table.change(None, &off).unwrap();
    }
}

#[test]
fn the_count_that_is_left_is_inherited() {
    let mut table = table();
    let first = TraceSettingsChange { levels: set(TIMES), rate: set(1), count: set(5), ..change() };
    table.change(None, &first).unwrap();
    assert!(table.settings_of(None).is_next_traced(false));
    table.change(Some("m"), &TraceSettingsChange { rate: set(1), ..change() }).unwrap();
    check(&table, "m", "TIMESTAMPS 1 4 0");
    while table.settings_of(None).is_next_traced(false) {}
    let error = table.change(None, &TraceSettingsChange { rate: set(2), ..change() }).unwrap_err();
    assert_eq!(error.message(), "Attempting to set invalid trace setting :");
}

#[test]
fn a_global_change_stops_at_the_first_model_that_becomes_invalid() {
    let mut table = table();
    for model in ["a", "b"] {
        table.change(Some(model), &TraceSettingsChange { rate: set(0), ..change() }).unwrap();
    }
    table.change(None, &TraceSettingsChange { levels: set(TIMES), ..change() }).unwrap_err();
    check(&table, "other", "TIMESTAMPS 1000 -1 0");
    check(&table, "a", "OFF 0 -1 0");
}

#[test]
fn invalid_settings_of_the_start_trace_nothing() {
    let start = TraceSettingValues { levels: TIMES, rate: 1, ..TraceSettingValues::default() };
    let table = SettingsTable::new(start, Destination::NoFiles, None);
    assert!(!table.may_trace());
    assert!(!table.settings_of(None).is_next_traced(false));
    check(&table, "m", "TIMESTAMPS 1 -1 0");
}

#[test]
fn requests_may_be_traced_if_any_settings_say_so() {
    let mut table = table();
    assert!(!table.may_trace());
    table.change(Some("m"), &TraceSettingsChange { levels: set(TIMES), ..change() }).unwrap();
    assert!(table.may_trace());
    // With a collector, clients may ask for traces regardless of the rate.
    let start = TraceSettingValues { levels: TIMES, rate: 0, ..TraceSettingValues::default() };
    assert!(SettingsTable::new(start, Destination::Collector, None).may_trace());
    assert!(!SettingsTable::new(start, Destination::Files, None).may_trace());
}

#[test]
fn the_number_of_models_with_settings_is_bounded() {
    let mut table = table();
    let rate = TraceSettingsChange { rate: set(1), ..change() };
    for number in 0..TRACED_MODELS_MAX {
        table.change(Some(&number.to_string()), &rate).unwrap();
    }
    let error = table.change(Some("x"), &rate).unwrap_err();
    assert!(error.message().starts_with("at most 4096 models"), "{error}");
    table.change(Some("5"), &rate).unwrap();
}
