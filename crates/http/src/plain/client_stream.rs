//! The two directions of a client's connection, over its socket or inside TLS.
//!
//! A socket can be read and written at the same time. A stream inside TLS has one state for both
//! directions, so its halves share the state under a lock, which no call holds while it waits.
//! Written bytes leave TLS with a flush.
//!
//! A client that closes the sending side of its socket may still read its response. A client inside
//! TLS has disconnected in that case: TLS has a message that announces the end of sending, and a
//! stream that ends without it has been cut off.

use std::future::pending;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use galatea_door::tls::TlsStream;
use galatea_stdx::Lock;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::ReadHalf;

/// A stream inside TLS that both directions share.
pub(super) type SharedTls = Lock<Box<TlsStream>>;

/// The receiving half: client to server.
pub(super) enum Receiver<'s> {
    Tcp(ReadHalf<'s>),
    Tls(&'s SharedTls),
}

/// The sending half: server to client.
#[derive(Copy, Clone)]
pub(super) enum Sender<'s> {
    Tcp(&'s TcpStream),
    Tls(&'s SharedTls),
}

/// The end of the client's input.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum InputEnd {
    /// The end can't be seen, because unread input precedes it.
    Hidden,
    /// The client has stopped sending but may still read.
    Reached,
    /// The client has disconnected.
    Gone,
}

impl Receiver<'_> {
    /// Returns the other direction.
    pub(super) fn sender(&self) -> Sender<'_> {
        match self {
            Self::Tcp(stream) => Sender::Tcp(stream.as_ref()),
            Self::Tls(stream) => Sender::Tls(stream),
        }
    }
}

impl AsyncRead for Receiver<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => {
                let mut stream = stream.lock("read inside TLS");
                Pin::new(&mut **stream).poll_read(context, buffer)
            }
        }
    }
}

impl Sender<'_> {
    /// Writes as much as fits immediately and returns its length, or the error `WouldBlock` if
    /// nothing fits.
    pub(super) fn try_write(self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match (self, parts) {
            (Self::Tcp(stream), [only]) => stream.try_write(only),
            (Self::Tcp(stream), parts) => stream.try_write_vectored(parts),
            (Self::Tls(stream), parts) => {
                let mut stream = stream.lock("write inside TLS");
                // Callers that have to wait poll for the flush, which wakes them.
                let context = &mut Context::from_waker(Waker::noop());
                at_once(Pin::new(&mut **stream).poll_write_vectored(context, parts))
            }
        }
    }

    /// Returns true if no written bytes wait for room in the socket.
    pub(super) fn try_flush(self) -> io::Result<bool> {
        let Self::Tls(stream) = self else { return Ok(true) };
        let mut stream = stream.lock("flush TLS");
        let context = &mut Context::from_waker(Waker::noop());
        match Pin::new(&mut **stream).poll_flush(context) {
            Poll::Ready(flushed) => flushed.map(|()| true),
            Poll::Pending => Ok(false),
        }
    }

    /// Waits for room after `try_write` found none or `try_flush` was incomplete.
    pub(super) fn poll_room(self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(context),
            Self::Tls(stream) => {
                let mut stream = stream.lock("flush TLS");
                Pin::new(&mut **stream).poll_flush(context)
            }
        }
    }

    /// Waits for more input from the client, or for its end. No input is consumed.
    pub(super) fn poll_input_end(self, context: &mut Context<'_>) -> Poll<InputEnd> {
        match self {
            Self::Tcp(stream) => {
                let mut byte = [0];
                let peeked = stream.poll_peek(context, &mut ReadBuf::new(&mut byte));
                peeked.map(|peeked| match peeked {
                    Ok(1..) => InputEnd::Hidden,
                    Ok(0) => InputEnd::Reached,
                    Err(_) => InputEnd::Gone,
                })
            }
            Self::Tls(stream) => {
                let mut stream = stream.lock("look for the end of TLS");
                let filled = Pin::new(&mut **stream).poll_fill_buf(context);
                filled.map(|filled| match filled {
                    Ok([_, ..]) => InputEnd::Hidden,
                    Ok([]) | Err(_) => InputEnd::Gone,
                })
            }
        }
    }

    /// Waits until a client that has stopped sending rejects the data sent to it.
    pub(super) async fn reset(self) {
        match self {
            // An error while waiting is an error of the socket.
            Self::Tcp(stream) => drop(stream.ready(Interest::ERROR).await),
            // Such a client has disconnected.
            Self::Tls(_) => pending().await,
        }
    }
}

fn at_once(written: Poll<io::Result<usize>>) -> io::Result<usize> {
    match written {
        Poll::Ready(written) => written,
        Poll::Pending => Err(ErrorKind::WouldBlock.into()),
    }
}
