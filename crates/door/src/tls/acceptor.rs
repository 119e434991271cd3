//! TLS handshakes.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server};

use super::config::{ApplicationProtocol, TlsConfig};
use super::failure::{HandshakeFailure, HandshakeFailureKind};
use super::socket::Socket;
use crate::connections::CountedConnection;
use crate::in_progress::TaskTracker;
use crate::phase::PhaseWatch;

/// The time limit for a client's TLS handshake.
///
/// A handshake takes two round trips, so this is long even for a client behind a satellite link.
/// Triton's gRPC door waits 120 s.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(20);
/// The maximum number of TLS handshakes in progress at a door. Beyond it, the oldest is given up.
/// Each uses some 30 KiB, so together they use 30 MiB.
const HANDSHAKES_MAX: usize = 1024;

/// The time that a client without TLS may keep sending before it is disconnected.
const PLAIN_TEXT_TIME_MAX: Duration = Duration::from_secs(1);

/// The maximum number of bytes read from a client without TLS before it is disconnected.
const PLAIN_TEXT_BYTES_MAX: usize = 1 << 20;

/// TLS at a door, consisting of a replaceable configuration and the handshakes in progress.
#[derive(Clone)]
pub struct SharedTlsAcceptor(Arc<AcceptorShared>);

struct AcceptorShared {
    config: ArcSwap<TlsConfig>,
    handshakes: Arc<TaskTracker>,
    report: Box<dyn Fn(&HandshakeFailure) + Send + Sync>,
}

impl SharedTlsAcceptor {
    /// Creates TLS with this configuration. Handshake failures are passed to `report`.
    pub fn new(
        config: TlsConfig,
        report: impl Fn(&HandshakeFailure) + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(AcceptorShared {
            config: ArcSwap::from_pointee(config),
            handshakes: Arc::new(TaskTracker::new(HANDSHAKES_MAX)),
            report: Box::new(report),
        }))
    }

    /// Replaces the configuration for future handshakes. Existing connections are unaffected.
    pub fn replace_config(&self, config: TlsConfig) {
        self.0.config.store(Arc::new(config));
    }

    /// Performs the handshake of a connection. Returns `None` if it failed or the door closed.
    ///
    /// A drain doesn't wait for it: a client that has not completed a handshake has sent no
    /// request.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        phase: &mut PhaseWatch,
        open: &mut Option<CountedConnection>,
        reply_to_plain_text: &[u8],
    ) -> Option<Box<TlsStream>> {
        let mut handshake = std::pin::pin!(self.handshake(stream, reply_to_plain_text));
        let mut stopping = phase.clone();
        let shaken = tokio::select! {
            biased;
            shaken = handshake.as_mut() => shaken,
            () = stopping.wait_until_stopping(), if open.is_some() => {
                drop(open.take());
                tokio::select! {
                    biased;
                    shaken = handshake => shaken,
                    () = phase.closed() => return None,
                }
            }
            () = phase.closed() => return None,
        };
        shaken.inspect_err(|failure| (self.0.report)(failure)).ok().map(Box::new)
    }

    async fn handshake(
        &self,
        stream: TcpStream,
        reply_to_plain_text: &[u8],
    ) -> Result<TlsStream, HandshakeFailure> {
        let mut in_progress = self.0.handshakes.track();
        let time_max = HANDSHAKE_TIME_MAX;
        let shaken = tokio::time::timeout(time_max, self.negotiate(stream, reply_to_plain_text));
        tokio::select! {
            biased;
            shaken = shaken => shaken.unwrap_or_else(|_| {
                let reason = format!("it took longer than {} s", time_max.as_secs());
                Err(HandshakeFailure::new(HandshakeFailureKind::Timeout, reason))
            }),
            () = in_progress.given_up() => {
                let reason = "it was given up because too many others were in progress";
                Err(HandshakeFailure::new(HandshakeFailureKind::GivenUp, reason))
            }
        }
    }

    async fn negotiate(
        &self,
        mut stream: TcpStream,
        reply_to_plain_text: &[u8],
    ) -> Result<TlsStream, HandshakeFailure> {
        if begins_with_a_letter(&stream).await {
            refuse_plain_text(&mut stream, reply_to_plain_text).await;
            let reason = "the client sent plain text to a port that speaks TLS";
            return Err(HandshakeFailure::new(HandshakeFailureKind::NotTls, reason));
        }
        let config = self.0.config.load_full();
        let accepting = TlsAcceptor::from(config.server.clone()).accept(Socket::new(stream));
        let stream = accepting.await.map_err(|error| HandshakeFailure::from_io(&error))?;
        // The client may list the protocols that it knows. If none of them is acceptable, rustls
        // has already ended the handshake.
        let names_none = stream.get_ref().1.alpn_protocol().is_none();
        if names_none && config.protocol == ApplicationProtocol::Http2 {
            let reason = "the client didn't name the protocol h2";
            return Err(HandshakeFailure::new(HandshakeFailureKind::Incompatible, reason));
        }
        Ok(TlsStream(stream))
    }
}

/// Returns true if a client speaks a text protocol such as HTTP instead of TLS.
async fn begins_with_a_letter(stream: &TcpStream) -> bool {
    let mut first = [0];
    matches!(stream.peek(&mut first).await, Ok(1) if first.iter().all(u8::is_ascii_uppercase))
}

/// Responds to a client that doesn't speak TLS, if the client seems able to understand the
/// response.
async fn refuse_plain_text(stream: &mut TcpStream, reply: &[u8]) {
    if reply.is_empty() || stream.write_all(reply).await.is_err() {
        return;
    }
    let _ = stream.shutdown().await;
    // If the socket were closed with unread bytes, the client might not see the response.
    let mut piece = [0; 1024];
    let reading = async {
        let mut length: usize = 0;
        while let Ok(count @ 1..) = stream.read(&mut piece).await {
            length = length.saturating_add(count);
            if length > PLAIN_TEXT_BYTES_MAX {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(PLAIN_TEXT_TIME_MAX, reading).await;
}

impl fmt::Debug for SharedTlsAcceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

/// A stream inside TLS, after the handshake.
#[derive(Debug)]
pub struct TlsStream(server::TlsStream<Socket>);

impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncBufRead for TlsStream {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Pin::new(&mut self.get_mut().0).poll_fill_buf(context)
    }

    fn consume(mut self: Pin<&mut Self>, count: usize) {
        Pin::new(&mut self.0).consume(count);
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
