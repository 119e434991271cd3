//! Refuses clients when no place is free.
//!
//! A socket that is closed while its client is still sending is reset, and the client may not see
//! the data that was sent before. The socket is therefore closed for sending and read until the
//! client closes it or some time has passed. Only a few refused connections are kept at a time,
//! because they need descriptors; the oldest makes room for the next.

use std::io::Read;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::in_progress::TaskTracker;

/// The time that a client has to read the refusal.
const TIME_MAX: Duration = Duration::from_secs(1);

/// The maximum number of bytes that are read at once from a connection that makes room.
const LAST_BYTES_MAX: usize = 64 << 10;

/// The connections that are being refused.
pub(crate) struct Refusals(Arc<TaskTracker>);

impl Refusals {
    /// Creates refusals that give at most this many clients time to read them.
    pub(crate) fn new(count_max: usize) -> Self {
        Self(Arc::new(TaskTracker::new(count_max)))
    }

    /// Sends `text` and closes the connection, in a task on the current runtime.
    pub(crate) fn refuse(&self, stream: TcpStream, text: &'static [u8]) {
        if !send_refusal(&stream, text) {
            return;
        }
        let mut entry = self.0.track();
        tokio::spawn(async move {
            let mut stream = stream;
            tokio::select! {
                biased;
                () = read_to_end(&mut stream) => {}
                () = tokio::time::sleep(TIME_MAX) => {}
                () = entry.given_up() => read_what_is_there(&stream),
            }
        });
    }
}

/// Sends `text` and then the end of the stream. Returns true if the client may be able to read it.
///
/// The socket is new and has room for a short text. The send bypasses the runtime, which may not
/// know that yet.
pub(crate) fn send_refusal(stream: &TcpStream, text: &[u8]) -> bool {
    let socket = SockRef::from(stream);
    let is_told = !text.is_empty() && matches!(socket.send(text), Ok(sent) if sent == text.len());
    is_told && socket.shutdown(Shutdown::Write).is_ok()
}

async fn read_to_end(stream: &mut TcpStream) {
    let mut ignored = [0; 1 << 10];
    while let Ok(1..) = stream.read(&mut ignored).await {}
}

/// Reads the data that the client has sent so far, because unread bytes would reset the connection.
pub(crate) fn read_what_is_there(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let mut reader = (&*socket).take(LAST_BYTES_MAX as u64);
    let mut ignored = [0; 1 << 10];
    while let Ok(1..) = reader.read(&mut ignored) {}
}
