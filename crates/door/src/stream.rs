//! The byte stream of a connection, either plain or inside TLS.
//!
//! One branch per system call distinguishes the two kinds, at a cost too small to measure. Beyond
//! that, TLS costs plain connections nothing.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::tls::TlsStream;

/// The byte stream of a connection.
#[derive(Debug)]
pub enum ConnectionStream {
    /// The bytes of the socket.
    Tcp(TcpStream),
    /// The bytes inside TLS, after the handshake.
    Tls(Box<TlsStream>),
}

/// The reading half of a [`ConnectionStream`].
#[derive(Debug)]
pub enum StreamReadHalf {
    /// Half of a plain stream.
    Tcp(OwnedReadHalf),
    /// Half of a TLS stream.
    Tls(ReadHalf<TlsStream>),
}

/// The writing half of a [`ConnectionStream`].
///
/// With TLS, bytes are guaranteed to be sent only after a flush.
#[derive(Debug)]
pub enum StreamWriteHalf {
    /// Half of a plain stream.
    Tcp(OwnedWriteHalf),
    /// Half of a TLS stream.
    Tls(WriteHalf<TlsStream>),
}

impl ConnectionStream {
    /// Splits the stream into independent halves.
    #[must_use]
    pub fn into_split(self) -> (StreamReadHalf, StreamWriteHalf) {
        match self {
            Self::Tcp(stream) => {
                let (read, write) = stream.into_split();
                (StreamReadHalf::Tcp(read), StreamWriteHalf::Tcp(write))
            }
            Self::Tls(stream) => {
                let (read, write) = tokio::io::split(*stream);
                (StreamReadHalf::Tls(read), StreamWriteHalf::Tls(write))
            }
        }
    }
}

impl From<TcpStream> for ConnectionStream {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

/// Delegates reads to the actual kind of stream.
macro_rules! read_through {
    ($type:ty) => {
        impl AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
                    Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
                }
            }
        }
    };
}

/// Delegates writes to the actual kind of stream.
macro_rules! write_through {
    ($type:ty) => {
        impl AsyncWrite for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                data: &[u8],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    Self::Tcp(stream) => Pin::new(stream).poll_write(context, data),
                    Self::Tls(stream) => Pin::new(stream).poll_write(context, data),
                }
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                parts: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, parts),
                    Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, parts),
                }
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
                    Self::Tls(stream) => Pin::new(stream).poll_flush(context),
                }
            }

            fn poll_shutdown(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
                    Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
                }
            }
        }
    };
}

read_through!(ConnectionStream);
read_through!(StreamReadHalf);
write_through!(ConnectionStream);
write_through!(StreamWriteHalf);
