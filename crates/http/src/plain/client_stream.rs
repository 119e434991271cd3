//! The two directions of a client's connection: those of its socket, or those inside TLS.
//!
//! A socket is read and written by its own means at the same time. A stream inside TLS has one
//! state for both directions, so its halves share it under a lock, which no call holds while it
//! waits. What is written leaves TLS with a flush.
//!
//! A client that closes the sending side of its socket may still read its response. Inside TLS
//! it has left: it can say that it sends no more, and a stream that ends without that is cut.

use std::future::pending;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use galatea_door::tls::TlsStream;
use galatea_stdx::Lock;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::ReadHalf;

/// A stream inside TLS, which both directions share.
pub(super) type SharedTls = Lock<Box<TlsStream>>;

/// The direction from the client.
pub(super) enum Receiver<'s> {
    Tcp(ReadHalf<'s>),
    Tls(&'s SharedTls),
}

/// The direction to the client.
#[derive(Copy, Clone)]
pub(super) enum Sender<'s> {
    Tcp(&'s TcpStream),
    Tls(&'s SharedTls),
}

/// The end of what a client sends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum InputEnd {
    /// It isn't visible: the client has sent more.
    Hidden,
    /// The client sends no more, and may read.
    Reached,
    /// The client has left.
    Gone,
}

impl Receiver<'_> {
    /// The other direction.
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
    /// Writes what fits at once, and returns its length; the error `WouldBlock` if nothing fits.
    pub(super) fn try_write(self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match (self, parts) {
            (Self::Tcp(stream), [only]) => stream.try_write(only),
            (Self::Tcp(stream), parts) => stream.try_write_vectored(parts),
            (Self::Tls(stream), parts) => {
                let mut stream = stream.lock("write inside TLS");
                // Who has to wait polls for the flush, and is woken by that.
                let context = &mut Context::from_waker(Waker::noop());
                at_once(Pin::new(&mut **stream).poll_write_vectored(context, parts))
            }
        }
    }

    /// Returns true if nothing that was written waits for room in the socket.
    pub(super) fn try_flush(self) -> io::Result<bool> {
        let Self::Tls(stream) = self else { return Ok(true) };
        let mut stream = stream.lock("flush TLS");
        let context = &mut Context::from_waker(Waker::noop());
        match Pin::new(&mut **stream).poll_flush(context) {
            Poll::Ready(flushed) => flushed.map(|()| true),
            Poll::Pending => Ok(false),
        }
    }

    /// Waits for room, after `try_write` found none or `try_flush` was not done.
    pub(super) fn poll_room(self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(context),
            Self::Tls(stream) => {
                let mut stream = stream.lock("flush TLS");
                Pin::new(&mut **stream).poll_flush(context)
            }
        }
    }

    /// Waits for more from the client, or for its end. Nothing is taken of what it sends.
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

    /// Waits until a client that sends no more refuses what is sent.
    pub(super) async fn reset(self) {
        match self {
            // An error of the wait is one of the socket.
            Self::Tcp(stream) => drop(stream.ready(Interest::ERROR).await),
            // Such a client has left.
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
