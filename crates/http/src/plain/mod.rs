//! Connections on which clients send plain requests.
//!
//! Nearly all requests to an inference server are of one kind: POST or GET, a path, a few
//! headers, a body of a known length or in chunks. They are served here: the head is parsed in the
//! receive buffer, once for all requests in a row that have the same, a large body is read into the memory that its tensors stay in, and the
//! response leaves with one system call. A head that is anything else, for example
//! upgraded, HTTP/1.0 or malformed, is handed to hyper unchanged, and with it the rest of its
//! connection. So this code refuses nothing for its form and is lenient about nothing:
//! a head that two parsers might understand differently isn't plain. Neither endpoints nor
//! clients see a difference.
//!
//! - `session.rs`: the requests of one connection, one after the other
//! - `receive_buffer.rs`: bytes that were received and not served
//! - `head.rs`, `body.rs`, `chunked_body.rs`, `chunks.rs`: the parts of a request
//! - `client_stream.rs`: the two directions of a connection, inside TLS or not
//! - `client_watch.rs`: notices a client that disconnects before it has its response
//! - `time_slice.rs`: how long a connection may keep its thread
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
