//! Traffic files: the requests that a model received, with their results.
//!
//! A file has one JSON object per line, so that people, `jq` and scripts can read it. The first
//! line is the [`TrafficHeader`]. Each further line is a request, an execution or a remark ([`TrafficLine`]). The
//! fields are described in `docs/traffic.md`. A file contains no tensor contents.
//!
//! ```
//! use galatea_traffic::{TrafficHeader, TrafficLine, RecordedRequest, RecordedTraffic};
//!
//! let header = TrafficHeader { model: "m".into(), version: 1, ..TrafficHeader::default() };
//! let request = RecordedRequest { at_ns: 5, rows: 2, status: "ok".into(), ..RecordedRequest::default() };
//! let text = format!("{}\n{}\n", TrafficLine::Header(header), TrafficLine::Request(request));
//! let traffic = RecordedTraffic::read(&mut text.as_bytes()).unwrap();
//! assert_eq!(traffic.requests[0].rows, 2);
//! ```
//!
//! This crate is *not* a recorder: it records nothing and knows nothing about servers.
//!
//! | file | what it does |
//! |---|---|
//! | `line.rs` | lines as values |
//! | `parse.rs` | lines from their JSON |
//! | `write.rs` | JSON from lines |
//! | `read.rs` | a whole file |
//! | `rotate.rs` | a series of files of bounded size |

#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod line;
mod parse;
mod read;
mod rotate;
#[cfg(test)]
mod tests;
mod write;

pub use line::{
    FORMAT, RecordedExecution, RecordedRequest, RequestExecution, TrafficHeader, TrafficLine,
};
pub use read::{ReadError, RecordedTraffic};
pub use rotate::RotatingFile;
