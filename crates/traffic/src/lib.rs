//! Traffic files: the requests that a model received, with their results.
//!
//! A file has one JSON object per line, so that people, `jq` and scripts can read it. The first
//! line is the [`Header`]. Each further line is a request, an execution or a remark ([`Line`]). The
//! fields are described in `docs/traffic.md`. A file contains no tensor contents.
//!
//! ```
//! use galatea_traffic::{Header, Line, RecordedRequest, Traffic};
//!
//! let header = Header { model: "m".into(), version: 1, ..Header::default() };
//! let request = RecordedRequest { at_ns: 5, rows: 2, status: "ok".into(), ..RecordedRequest::default() };
//! let text = format!("{}\n{}\n", Line::Header(header), Line::Request(request));
//! let traffic = Traffic::read(&mut text.as_bytes()).unwrap();
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

pub use line::{FORMAT, Header, Line, RecordedExecution, RecordedRequest, RequestExecution};
pub use read::{ReadError, Traffic};
pub use rotate::RotatingFile;
