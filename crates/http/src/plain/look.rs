//! Requests that are answered before they are taken from their connection.
//!
//! Many clients send a head and a body apart. Who reads two small segments acknowledges
//! them at once, with a segment of its own, although the answer, which acknowledges
//! them as well, is a few microseconds away. As long as they are only looked at the
//! system waits. So a connection whose last request was answered without a wait looks
//! at the next one, answers it and takes it then: one call more, and a segment less for
//! both sides to handle. That pays for a connection that its thread serves alone; among
//! others it was no gain.

use std::future::poll_fn;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::task::Poll;

use tokio::io::ReadBuf;
use tokio::net::TcpStream;

/// Longer requests are not looked at.
pub(super) const LOOKED_BYTES_MAX: usize = 2 << 10;

/// The connection of which a worker served the last request.
#[derive(Debug, Default)]
pub(crate) struct LastServed(AtomicI32);

impl LastServed {
    /// Notes this connection; says whether it already was the last.
    pub(super) fn note(&self, stream: &TcpStream) -> bool {
        let own = stream.as_raw_fd();
        // Only the worker's thread is here.
        let last = self.0.load(Ordering::Relaxed);
        self.0.store(own, Ordering::Relaxed);
        last == own
    }
}

/// Appends what is there to `buffer`, without taking it.
pub(super) async fn look(stream: &TcpStream, buffer: &mut Vec<u8>) -> io::Result<usize> {
    poll_fn(|context| {
        let mut bytes = [0; LOOKED_BYTES_MAX];
        let mut seen = ReadBuf::new(&mut bytes);
        let polled = stream.poll_peek(context, &mut seen);
        if let Poll::Ready(Ok(_)) = polled {
            buffer.extend_from_slice(seen.filled());
        }
        polled
    })
    .await
}

/// Takes so many bytes that were looked at, which therefore are there.
pub(super) fn take(stream: &TcpStream, mut count: usize) -> io::Result<()> {
    while count > 0 {
        let mut bytes = [0; LOOKED_BYTES_MAX];
        let wanted = count.min(bytes.len());
        match stream.try_read(bytes.get_mut(..wanted).unwrap_or_default())? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            taken => count = count.saturating_sub(taken),
        }
    }
    Ok(())
}
