//! The plain requests of one connection, one after the other.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use galatea_door::PhaseWatch;
use galatea_gate::ledger::Account;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use super::body::PlainBody;
use super::client_watch::ClientWatch;
use super::head::{self, PlainHead};
use super::receive_buffer::{RECEIVE_BYTES, ReceiveBuffer};
use super::time_slice::TimeSlice;
use super::writer::ResponseWriter;
use crate::endpoint::Endpoint;
use crate::http_response::HttpResponse;
use crate::request_body::RequestBody;

/// How a session ended.
pub(crate) enum SessionEnd {
    /// The connection is to be closed.
    Closed,
    /// The next request isn't plain; these bytes of it were received.
    NotPlain(Bytes),
}

/// Serves plain requests until the connection ends or another request arrives. While the
/// door stops, a connection gets one response; if `ends_idle`, only if it waits for one.
pub(crate) async fn serve<E: Endpoint>(
    stream: &mut TcpStream,
    endpoint: &E,
    account: &Arc<Account>,
    phase: PhaseWatch,
    ends_idle: bool,
) -> SessionEnd {
    let (read, write) = stream.split();
    let session = Session {
        endpoint,
        account,
        read,
        write,
        buffer: ReceiveBuffer::new(),
        time_slice: TimeSlice::default(),
        writer: ResponseWriter::default(),
        ends_idle,
        phase: &phase,
    };
    until_closed(session.run(), phase.clone()).await
}

/// Runs a session until the door is closed. The session is polled when the door begins to
/// stop.
async fn until_closed(
    session: impl Future<Output = SessionEnd>,
    mut phase: PhaseWatch,
) -> SessionEnd {
    let mut changes = phase.clone();
    let mut session = pin!(session);
    let mut closed = pin!(async move {
        phase.stopping().await;
        phase.closed().await;
    });
    let mut is_waiting = false;
    poll_fn(move |context| {
        // The future that waits for the next phase is woken by it, so it isn't polled
        // otherwise.
        if !is_waiting || changes.take_change() {
            is_waiting = true;
            if closed.as_mut().poll(context).is_ready() {
                return Poll::Ready(SessionEnd::Closed);
            }
        }
        session.as_mut().poll(context)
    })
    .await
}

struct Session<'s, E> {
    endpoint: &'s E,
    account: &'s Arc<Account>,
    read: ReadHalf<'s>,
    write: WriteHalf<'s>,
    buffer: ReceiveBuffer,
    time_slice: TimeSlice,
    writer: ResponseWriter,
    /// Whether the session ends when the door begins to stop while it waits for a request.
    ends_idle: bool,
    phase: &'s PhaseWatch,
}

/// What follows a request.
enum Next {
    /// The connection stays open for another request.
    KeepAlive,
    /// The connection is closed.
    Close,
    /// The request was not served, because it isn't plain.
    NotPlain,
}

/// A request with its response, which is not written yet.
struct Exchange {
    response: HttpResponse,
    /// The length of the head and of the body bytes behind it in the receive buffer.
    consumed: usize,
    /// How much of the body was not received.
    missing: u64,
    /// The first byte behind the body, if it was received with it.
    byte_after_body: Option<u8>,
    /// Whether the client wants to keep the connection.
    keeps_alive: bool,
}

impl<E: Endpoint> Session<'_, E> {
    async fn run(mut self) -> SessionEnd {
        loop {
            // The single byte that may have been received behind a body makes no head.
            if self.buffer.unread().len() <= 1 && !self.wait().await {
                return SessionEnd::Closed;
            }
            if self.time_slice.is_over(Instant::now) {
                tokio::task::yield_now().await;
            }
            match self.serve_next().await {
                Next::KeepAlive => {}
                Next::NotPlain => {
                    return SessionEnd::NotPlain(Bytes::copy_from_slice(self.buffer.unread()));
                }
                Next::Close => {
                    // The connection ends whether this succeeds or not.
                    let _ = self.write.shutdown().await;
                    return SessionEnd::Closed;
                }
            }
        }
    }

    /// Waits for the first bytes of the next request; returns whether there are some.
    async fn wait(&mut self) -> bool {
        let (phase, ends_idle) = (self.phase, self.ends_idle);
        let time_slice = &mut self.time_slice;
        let mut receiving = pin!(self.buffer.receive(&mut self.read));
        let received = poll_fn(|context| match receiving.as_mut().poll(context) {
            Poll::Ready(received) => Poll::Ready(Some(received)),
            Poll::Pending => {
                time_slice.end();
                let ends = ends_idle && phase.is_stopping();
                if ends { Poll::Ready(None) } else { Poll::Pending }
            }
        })
        .await;
        let received = match received {
            Some(received) => Poll::Ready(received),
            None => {
                // Bytes from before the door began to stop may be there, although the
                // runtime has not polled the socket since.
                tokio::task::yield_now().await;
                poll_fn(|context| Poll::Ready(receiving.as_mut().poll(context))).await
            }
        };
        matches!(received, Poll::Ready(Ok(1..)))
    }

    /// Serves the request at the front of the buffer.
    async fn serve_next(&mut self) -> Next {
        let bytes = self.buffer.unread();
        let Some(head) = head::parse(bytes, self.endpoint.wants_headers()) else {
            return Next::NotPlain;
        };
        let behind_head = bytes.get(head.length..).unwrap_or_default();
        let stream = self.write.as_ref();
        let responding =
            respond(self.endpoint, self.account, &mut self.read, stream, head, behind_head);
        match responding.await {
            Some(exchange) => self.settle(exchange).await,
            None => Next::Close,
        }
    }

    /// Leaves the request behind and writes its response.
    async fn settle(&mut self, exchange: Exchange) -> Next {
        let Exchange { response, consumed, missing, byte_after_body, keeps_alive } = exchange;
        self.buffer.consume(consumed);
        if let Some(byte_after_body) = byte_after_body {
            self.buffer.push(byte_after_body);
        }
        let is_body_gone = missing == 0 || self.drain(missing).await;
        let keeps_alive = keeps_alive && is_body_gone && !self.phase.is_stopping();
        let closes = response.closes || !keeps_alive;
        match self.writer.send(self.write.as_ref(), &response, closes).await {
            Ok(()) if !closes => Next::KeepAlive,
            Ok(()) | Err(_) => Next::Close,
        }
    }

    /// Drops the rest of a body if it has been received by the system and is short;
    /// returns whether that was all of it.
    async fn drain(&mut self, missing: u64) -> bool {
        self.buffer.clear();
        let Ok(missing) = usize::try_from(missing) else { return false };
        if missing > RECEIVE_BYTES {
            return false;
        }
        let received = {
            let mut receiving = pin!(self.buffer.receive(&mut self.read));
            poll_fn(|context| Poll::Ready(receiving.as_mut().poll(context))).await
        };
        self.buffer.consume(missing);
        matches!(received, Poll::Ready(Ok(count)) if count >= missing)
    }
}

/// Makes the response to a request; `None` if its client disconnects first.
async fn respond<E: Endpoint>(
    endpoint: &E,
    account: &Arc<Account>,
    read: &mut ReadHalf<'_>,
    stream: &TcpStream,
    head: PlainHead<'_>,
    behind_head: &[u8],
) -> Option<Exchange> {
    let PlainHead { head, length, body_length, waits_for_continue, keeps_alive } = head;
    let early = usize::try_from(body_length).unwrap_or(usize::MAX).min(behind_head.len());
    let (early, next_request) = behind_head.split_at_checked(early).unwrap_or_default();
    let is_body_whole = AtomicBool::new(false);
    let mut body =
        PlainBody::new(read, early, body_length, waits_for_continue, &is_body_whole, account);
    let response = {
        let watch = ClientWatch::new(stream, &is_body_whole, next_request.is_empty());
        let responding = pin!(endpoint.respond(&head, &mut body));
        watch.unless_disconnected(responding).await?
    };
    Some(Exchange {
        response,
        consumed: length.saturating_add(early.len()),
        missing: body.missing_min(),
        byte_after_body: body.byte_after_body(),
        keeps_alive,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::Ipv4Addr;

    use galatea_door::Door;
    use hyper::StatusCode;

    use crate::endpoint::Disconnected;
    use crate::http_response;
    use crate::request_body::BodyLimits;
    use crate::request_head::RequestHead;

    use super::*;

    /// Reads bodies, and responds with their lengths.
    struct Lengths;

    impl Endpoint for Lengths {
        async fn respond<B: RequestBody>(
            &self,
            _: &RequestHead<'_>,
            body: &mut B,
        ) -> Result<HttpResponse, Disconnected> {
            let limits = BodyLimits { bytes_max: u64::MAX, chunks_max: 0 };
            let body = body.collect(limits).await.map_err(|_| Disconnected)?;
            Ok(http_response::error(StatusCode::OK, &body.len().to_string()))
        }
    }

    /// Serves `count` requests, which are all there before the first is read, and returns
    /// the memory that the connection keeps.
    async fn capacity_after(requests: &[u8], count: usize) -> usize {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(requests).unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let (read, write) = stream.split();
        let mut session = Session {
            endpoint: &Lengths,
            account: &Arc::new(Account::unlimited()),
            read,
            write,
            buffer: ReceiveBuffer::new(),
            time_slice: TimeSlice::default(),
            writer: ResponseWriter::default(),
            ends_idle: true,
            phase: &Door::new().phase(),
        };
        for _ in 0..count {
            assert!(session.buffer.unread().len() > 1 || session.wait().await);
            assert!(matches!(session.serve_next().await, Next::KeepAlive));
        }
        session.buffer.capacity()
    }

    #[test]
    fn requests_behind_large_bodies_leave_the_buffer_as_it_was() {
        let size = RECEIVE_BYTES + 1000;
        let request = format!("POST / HTTP/1.1\r\nContent-Length: {size}\r\n\r\n{:size$}", "");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let capacity = runtime.block_on(capacity_after(request.repeat(3).as_bytes(), 3));
        assert!(capacity <= RECEIVE_BYTES, "{capacity} bytes are kept");
    }
}
