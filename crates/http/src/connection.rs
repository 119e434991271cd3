//! One connection, from its first byte to its end.

use std::io;
use std::net::TcpStream;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

use crate::door::{Closed, Endpoint, OpenConnection, Phase};
use crate::head::Head;
use crate::plain::{self, End, LastServed};
use crate::respond::{Reply, ResponseBody};

/// A connection, accepted and not yet served.
pub(crate) struct Connection<E> {
    pub(crate) stream: TcpStream,
    pub(crate) endpoint: Arc<E>,
    pub(crate) last_served: Arc<LastServed>,
    pub(crate) phase: watch::Receiver<Phase>,
    pub(crate) protocol: http1::Builder,
    /// Only hyper measures how long a head takes.
    pub(crate) has_head_timeout: bool,
    /// `None` for a connection made while draining: it gets one answer, and
    /// nobody waits for it.
    pub(crate) open: Option<OpenConnection>,
}

/// What is left of a request's head may arrive this long after the order to
/// stop.
const HEAD_GRACE: Duration = Duration::from_millis(500);

impl<E: Endpoint> Connection<E> {
    /// Serves it: plain requests here, and everything from the first other one on
    /// with hyper.
    pub(crate) async fn run(self) {
        let Self { stream, endpoint, last_served, phase, protocol, has_head_timeout, open } = self;
        let Ok(mut stream) = tokio::net::TcpStream::from_std(stream) else { return };
        let mut read = Bytes::new();
        if !has_head_timeout {
            let phase = phase.clone();
            match plain::serve(&mut stream, &*endpoint, &last_served, phase, open.is_some()).await {
                End::Closed => return,
                End::NotPlain(bytes) => read = bytes,
            }
        }
        // Few connections need it, and hyper's state is large.
        Box::pin(by_hyper(Rewound { read, stream }, endpoint, phase, protocol, open)).await;
    }
}

async fn by_hyper<E: Endpoint>(
    stream: Rewound,
    endpoint: Arc<E>,
    mut phase: watch::Receiver<Phase>,
    mut protocol: http1::Builder,
    open: Option<OpenConnection>,
) {
    let asked = Arc::<AtomicBool>::default();
    let ask = asked.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        ask.store(true, Ordering::Relaxed);
        answer(endpoint.clone(), request)
    });
    if open.is_none() {
        protocol.keep_alive(false);
    }
    let mut connection = std::pin::pin!(protocol.serve_connection(TokioIo::new(stream), service));
    if open.is_some() {
        tokio::select! {
            biased;
            // However it ended, nobody is left to be told.
            _ = connection.as_mut() => return,
            () = after(&mut phase, Phase::Serving) => connection.as_mut().graceful_shutdown(),
        }
    }
    tokio::select! {
        biased;
        _ = connection.as_mut() => {}
        () = after(&mut phase, Phase::Draining) => {}
        () = no_request(&asked), if open.is_some() => {}
    }
}

async fn answer<E: Endpoint>(
    endpoint: Arc<E>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Closed> {
    let (parts, mut body) = request.into_parts();
    let head = Head::of(&parts, endpoint.wants_headers());
    endpoint.respond(&head, &mut body).await.map(Reply::into_response)
}

/// Waits until the door is beyond `passed`. Without a sender the door is gone,
/// which is beyond everything.
pub(crate) async fn after(phase: &mut watch::Receiver<Phase>, passed: Phase) {
    drop(phase.wait_for(|phase| *phase > passed).await);
}

/// Gives a connection that stops the time for its first request, and ends if
/// none has come. A connection that had one is ended by hyper: when it is idle
/// or has half a head, at once; else after the response.
async fn no_request(asked: &AtomicBool) {
    tokio::time::sleep(HEAD_GRACE).await;
    if asked.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
}

/// A stream of which something was read already, which is read again.
struct Rewound {
    read: Bytes,
    stream: tokio::net::TcpStream,
}

impl AsyncRead for Rewound {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let length = self.read.len().min(buffer.remaining());
        buffer.put_slice(self.read.get(..length).unwrap_or_default());
        self.read.advance(length);
        if self.read.is_empty() {
            self.read = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Rewound {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
