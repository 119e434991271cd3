//! Reports: JSON documents about a model version, which clients read at `/v2/models/NAME/REPORT`.
//!
//! A report is a file here and a row of [`REPORTS`]. The path, its category of APIs and its method
//! follow from the row, so the traits and doors in between know no report by name. Reports are in
//! the category `statistics`, and are written on a thread that may take long.
//!
//! A report about the requests of a model reads a view of its observations. If it is the only
//! reader, the view is in the report's file, too: a type that implements
//! [`View`](super::observation::View), which the report begins (`Views::get_or_begin`) and which
//! ends itself when it has not been read for a while, by the times that it observes.

mod scheduler;

use galatea_control::InferenceStatistics;
use galatea_explain::MainCauseFinder;

use super::Dispatcher;

/// Every report, by its name in the path.
const REPORTS: [(&str, ReportWriter); 1] = [("scheduler", scheduler::report)];

/// A function that writes a report.
type ReportWriter = fn(&Dispatcher, &ReportSubject<'_>) -> String;

/// Returns true if there is a report of this name.
#[must_use]
pub fn has_report(name: &str) -> bool {
    named(name).is_some()
}

fn named(name: &str) -> Option<ReportWriter> {
    REPORTS.into_iter().find(|(known, _)| *known == name).map(|(_, write)| write)
}

/// The version that a report is about, with the facts that its dispatcher doesn't know.
pub(crate) struct ReportSubject<'a> {
    pub(crate) name: &'a str,
    pub(crate) version: i64,
    /// The counts of executed requests.
    pub(crate) executed: InferenceStatistics,
    /// Names the main cause of the requests' durations; if `None`, no report does.
    pub(crate) main_cause_text: Option<MainCauseFinder>,
}

impl Dispatcher {
    /// Writes the report of this name, if there is one.
    pub(crate) fn report(&self, name: &str, subject: &ReportSubject<'_>) -> Option<String> {
        named(name).map(|write| write(self, subject))
    }
}
