//! Reports: JSON documents about a model version, which clients read at `/v2/models/NAME/REPORT`.
//!
//! A report consists of a file here and a row in [`REPORTS`]. The row determines the report's path,
//! API category and method, so the traits and doors in between know no report by name. Reports
//! belong to the `statistics` category, and are written on a thread where slow work is allowed.
//!
//! A report about a model's requests reads a view of their observations. If the report is the
//! view's only reader, the view is in the report's file too: a type that implements
//! [`View`](super::observation::View). The report creates the view (`Views::get_or_begin`), and the
//! view ends itself when, according to the times that it observes, it has not been read for a
//! while.

mod scheduler;

use galatea_control::InferenceStatistics;
use galatea_explain::LatencyCauseFinder;

use super::Dispatcher;

/// All reports, by their names in the path.
const REPORTS: [(&str, ReportWriter); 1] = [("scheduler", scheduler::report)];

/// A function that writes a report.
type ReportWriter = fn(&Dispatcher, &ReportSubject<'_>) -> String;

/// Returns true if a report with this name exists.
#[must_use]
pub fn is_model_report(name: &str) -> bool {
    named(name).is_some()
}

fn named(name: &str) -> Option<ReportWriter> {
    REPORTS.into_iter().find(|(known, _)| *known == name).map(|(_, write)| write)
}

/// The version that a report describes, with the facts that its dispatcher doesn't know.
pub(crate) struct ReportSubject<'a> {
    pub(crate) name: &'a str,
    pub(crate) version: i64,
    /// The statistics of executed requests.
    pub(crate) executed: InferenceStatistics,
    /// Determines the main cause of request latency; if `None`, reports omit the cause.
    pub(crate) main_cause_text: Option<LatencyCauseFinder>,
}

impl Dispatcher {
    /// Writes the report with this name, if it exists.
    pub(crate) fn report(&self, name: &str, subject: &ReportSubject<'_>) -> Option<String> {
        named(name).map(|write| write(self, subject))
    }
}
