//! Serves connections on which clients send plain requests.
//!
//! Nearly all requests to an inference server are of one kind: POST or GET, a path, a few headers,
//! and a body with a known length or in chunks. They are served here. The head is parsed in the
//! receive buffer, only once for consecutive requests with the same head; a large body is read into
//! the memory in which its tensors stay; and the response is sent with one system call. Any other
//! head, such as an upgraded, HTTP/1.0 or malformed one, is handed to hyper unchanged, along with
//! the rest of its connection. This code therefore never refuses a request for its form, and is
//! never lenient: a head that two parsers might understand differently isn't plain. Neither
//! endpoints nor clients see a difference.
//!
//! - `session.rs`: the successive requests of one connection
//! - `receive_buffer.rs`: bytes that were received but not served yet
//! - `head.rs`, `body.rs`, `chunked_body.rs`, `chunks.rs`: the parts of a request
//! - `client_stream.rs`: the two directions of a connection, with or without TLS
//! - `client_watch.rs`: detects a client that disconnects before it has its response
//! - `time_slice.rs`: how long a connection may occupy its thread
//! - `writer.rs`, `event_writer.rs`: write responses

mod body;
mod chunked_body;
mod chunks;
mod client_stream;
mod client_watch;
mod event_writer;
mod head;
mod receive_buffer;
mod session;
mod time_slice;
mod writer;

pub(crate) use self::session::{SessionEnd, serve};
