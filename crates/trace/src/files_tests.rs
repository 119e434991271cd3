use std::sync::Arc;

use galatea_control::TraceLevels;

use super::*;
use crate::event::{Event, TraceActivity};
use crate::queue::TraceQueue;
use crate::settings::{Destination, SettingsTable, TraceSettingValues, TraceSettings};

/// A temporary directory for a single test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("galatea-trace-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn files(&self) -> TraceFiles {
        TraceFiles::new(self.0.join("t"))
    }

    /// The files, each with the numbers of its traces.
    fn shown(&self) -> String {
        let mut names: Vec<_> =
            std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        let show = |path: &PathBuf| {
            let text = std::fs::read_to_string(path).unwrap();
            let numbers = text
                .replace("{\"id\":", "")
                .replace(",\"timestamps\":[{\"name\":\"X\",\"ns\":1}]}", "");
            format!("{}:{numbers}", path.file_name().unwrap().to_str().unwrap())
        };
        names.iter().map(show).collect::<Vec<_>>().join(" ")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn setting(count: i32, log_frequency: u32) -> Arc<TraceSettings> {
    let levels = TraceLevels { timestamps: true, tensors: false };
    let start = TraceSettingValues { levels, rate: 1, count, log_frequency };
    SettingsTable::new(start, Destination::Files, None).settings_of(None).clone()
}

fn add(files: &mut TraceFiles, setting: &Arc<TraceSettings>, trace: u64) {
    setting.is_next_traced(false);
    let events = vec![Event::Time { trace, activity: TraceActivity::Point("X"), ns: 1 }];
    let memory = TraceQueue::default().memory();
    files.add(&CollectedTrace::new(setting.clone(), events, None, memory)).unwrap();
}

#[test]
fn traces_without_a_frequency_are_written_at_the_end() {
    let folder = Folder::new("end");
    let (mut files, setting) = (folder.files(), setting(-1, 0));
    (1..4).for_each(|trace| add(&mut files, &setting, trace));
    assert_eq!(folder.shown(), "");
    files.finish().unwrap();
    assert_eq!(folder.shown(), "t:[1,2,3]");
}

#[test]
fn the_file_of_all_traces_grows_with_each_change_of_the_settings() {
    let folder = Folder::new("grow");
    let mut files = folder.files();
    for round in 1..4 {
        add(&mut files, &setting(-1, 0), round);
        files.retire(0).unwrap();
        files.retire(0).unwrap();
    }
    assert_eq!(folder.shown(), "t:[1,2,3]");
}

#[test]
fn a_frequency_writes_files_with_numbers() {
    let folder = Folder::new("frequency");
    let (mut files, setting) = (folder.files(), setting(-1, 2));
    (1..6).for_each(|trace| add(&mut files, &setting, trace));
    assert_eq!(folder.shown(), "t.0:[1,2] t.1:[3,4]");
    files.finish().unwrap();
    assert_eq!(folder.shown(), "t.0:[1,2] t.1:[3,4] t.2:[5]");
}

#[test]
fn the_last_trace_of_a_count_writes_a_file_with_a_number() {
    let folder = Folder::new("count");
    let (mut files, setting) = (folder.files(), setting(2, 0));
    (1..3).for_each(|trace| add(&mut files, &setting, trace));
    assert_eq!(folder.shown(), "t.0:[1,2]");
    files.finish().unwrap();
    assert_eq!(folder.shown(), "t.0:[1,2]");
}

#[test]
fn traces_whose_records_were_dropped_leave_no_gap() {
    let folder = Folder::new("lost");
    let (mut files, setting) = (folder.files(), setting(-1, 0));
    let lost =
        || CollectedTrace::new(setting.clone(), Vec::new(), None, TraceQueue::default().memory());
    files.add(&lost()).unwrap();
    add(&mut files, &setting, 1);
    files.add(&lost()).unwrap();
    add(&mut files, &setting, 2);
    files.finish().unwrap();
    assert_eq!(folder.shown(), "t:[1,2]");
}

#[test]
fn much_text_is_written_early() {
    let folder = Folder::new("early");
    let (mut files, setting) = (folder.files(), setting(-1, 0));
    let name: Box<str> = "x".repeat(TRACE_TEXT_BYTES_MAX).into();
    let big = vec![Event::Time { trace: 1, activity: TraceActivity::Custom(name), ns: 1 }];
    let memory = TraceQueue::default().memory();
    files.add(&CollectedTrace::new(setting.clone(), big, None, memory)).unwrap();
    add(&mut files, &setting, 2);
    files.finish().unwrap();
    let text = std::fs::read_to_string(folder.0.join("t")).unwrap();
    assert!(
        text.starts_with("[{\"id\":1,")
            && text.ends_with("]},{\"id\":2,\"timestamps\":[{\"name\":\"X\",\"ns\":1}]}]")
    );
}

#[test]
fn a_folder_that_is_not_there_is_reported() {
    let mut files = TraceFiles::new(PathBuf::from("/nowhere/at/all/t"));
    let setting = setting(-1, 1);
    let events = vec![Event::Time { trace: 1, activity: TraceActivity::Point("X"), ns: 1 }];
    let memory = TraceQueue::default().memory();
    let error = files.add(&CollectedTrace::new(setting, events, None, memory)).unwrap_err();
    assert!(error.to_string().starts_with("/nowhere/at/all/t.0: No such file"), "{error}");
}
