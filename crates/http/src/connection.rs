//! One connection, from its first byte to its end.
//!
//! Plain requests are served by [`plain`]; from the first other one on hyper serves the
//! connection. Inside TLS hyper serves all of them: there `plain` would save little, because
//! what it avoids are calls of the system and copies, which encryption makes anyway.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use galatea_door::{Connection, OpenConnection, PhaseWatch, Stream};
use galatea_gate::ledger::Account;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::endpoint::{Disconnected, Endpoint};
use crate::http_response::{HttpResponse, ResponseBody};
use crate::plain::{self, SessionEnd};
use crate::request_body::HyperBody;
use crate::request_head::RequestHead;

/// How long a connection without a request may take to complete the head of its first one
/// after the door has begun to stop.
const HEAD_GRACE: Duration = Duration::from_millis(500);

/// Serves a connection. One that was made while the door was draining gets one response.
pub(crate) async fn serve<E: Endpoint>(
    connection: Connection,
    endpoint: &Arc<E>,
    hyper: &http1::Builder,
    has_head_timeout: bool,
) {
    let account = Arc::new(endpoint.open_account());
    // The stream is dropped first: a connection that counts no longer is closed.
    let Connection { open, phase, mut stream, .. } = connection;
    let mut read = Bytes::new();
    if let Stream::Tcp(stream) = &mut stream
        && !has_head_timeout
    {
        let (watch, ends_idle) = (phase.clone(), open.is_some());
        match plain::serve(stream, &**endpoint, &account, watch, ends_idle).await {
            SessionEnd::Closed => return,
            SessionEnd::NotPlain(bytes) => read = bytes,
        }
    }
    // Few connections need it, and hyper's state is large.
    let stream = Rewound { read, stream };
    let endpoint = endpoint.clone();
    Box::pin(serve_with_hyper(stream, endpoint, account, phase, hyper.clone(), open)).await;
}

async fn serve_with_hyper<E: Endpoint>(
    stream: Rewound,
    endpoint: Arc<E>,
    account: Arc<Account>,
    mut phase: PhaseWatch,
    mut hyper: http1::Builder,
    open: Option<OpenConnection>,
) {
    let has_request = Arc::<AtomicBool>::default();
    let request_seen = has_request.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        request_seen.store(true, Ordering::Relaxed);
        respond(endpoint.clone(), account.clone(), request)
    });
    if open.is_none() {
        hyper.keep_alive(false);
    }
    let mut connection = std::pin::pin!(hyper.serve_connection(TokioIo::new(stream), service));
    if open.is_some() {
        tokio::select! {
            biased;
            // An error ends the connection like its end does.
            _ = connection.as_mut() => return,
            () = phase.stopping() => connection.as_mut().graceful_shutdown(),
        }
    }
    tokio::select! {
        biased;
        _ = connection.as_mut() => {}
        () = phase.closed() => {}
        () = no_request(&has_request), if open.is_some() => {}
    }
}

async fn respond<E: Endpoint>(
    endpoint: Arc<E>,
    account: Arc<Account>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Disconnected> {
    let (parts, body) = request.into_parts();
    let mut body = HyperBody::new(body, account);
    let head = RequestHead::of(&parts, endpoint.wants_headers());
    endpoint.respond(&head, &mut body).await.map(HttpResponse::into_hyper)
}

/// Gives a connection of a stopping door the time for its first request, and ends if none
/// has come. A connection that had one is ended by hyper: at once when it is idle or has
/// half a head, otherwise after the response.
async fn no_request(has_request: &AtomicBool) {
    tokio::time::sleep(HEAD_GRACE).await;
    if has_request.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
}

/// A stream of which some bytes were read already, and are read again.
struct Rewound {
    read: Bytes,
    stream: Stream,
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
