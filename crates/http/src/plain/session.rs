//! The successive plain requests of one connection.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use galatea_door::{
    AwaitedClientStep, ClientTimedOut, ConnectionActivity, ConnectionStream, PhaseWatch,
};
use galatea_gate::ledger::MemoryAccount;
use galatea_stdx::Lock;
use smallvec::SmallVec;
use tokio::io::{AsyncWriteExt, copy, sink};
use tokio::time::timeout;

use super::body::PlainBody;
use super::chunked_body::ChunkedBody;
use super::client_stream::{Receiver, Sender};
use super::client_watch::{ClientWatch, WatchedResponse};
use super::event_writer::{Watched, write_events};
use super::head::{self, Framing, Parsed, PlainHead};
use super::receive_buffer::{RECEIVE_BYTES, ReceiveBuffer};
use super::time_slice::TimeSlice;
use super::writer::{ResponseWriter, Sent};
use crate::endpoint::Endpoint;
use crate::events::Events;
use crate::http_response::{self, HttpResponse, SendTrace};
use crate::request_body::RequestBody;
use crate::request_head::RequestHead;

/// The time that a client may keep sending after the response to a request that was not fully read.
/// If the socket were closed earlier, the connection would be reset and the response lost.
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);

/// The maximum length of a head that is remembered.
const REMEMBERED_BYTES_MAX: usize = 2 << 10;

/// The end of a session.
pub(crate) enum SessionEnd {
    /// The connection must be closed.
    Closed,
    /// The next request isn't plain; these bytes of it have been received.
    NotPlain(ConnectionStream, Bytes),
}

/// Serves plain requests until the connection ends or another request arrives.
pub(crate) async fn serve<E: Endpoint>(
    stream: ConnectionStream,
    endpoint: &E,
    account: &Arc<MemoryAccount>,
    phase: PhaseWatch,
    activity: &ConnectionActivity,
) -> SessionEnd {
    let serving = async {
        match stream {
            ConnectionStream::Tcp(mut stream) => {
                let (receiver, half) = stream.split();
                let (receiver, sender) = (Receiver::Tcp(receiver), Sender::Tcp(half.as_ref()));
                let session = Session::new(endpoint, activity, account, receiver, sender);
                let last = session.run().await;
                end(ConnectionStream::Tcp(stream), last).await
            }
            ConnectionStream::Tls(stream) => {
                let stream = Lock::new(stream);
                let (receiver, sender) = (Receiver::Tls(&stream), Sender::Tls(&stream));
                let session = Session::new(endpoint, activity, account, receiver, sender);
                // Boxed, because connections without TLS need no room for it.
                let last = Box::pin(session.run()).await;
                end(ConnectionStream::Tls(stream.into_inner()), last).await
            }
        }
    };
    until_closed(serving, phase).await
}

/// Ends a session after its last request.
async fn end(mut stream: ConnectionStream, last: LastStep) -> SessionEnd {
    let lingers = match last {
        LastStep::Gone => return SessionEnd::Closed,
        LastStep::NotPlain(bytes) => return SessionEnd::NotPlain(stream, bytes),
        LastStep::Close => false,
        LastStep::Linger => true,
    };
    let ending = async {
        // The connection ends whether or not this succeeds.
        if stream.shutdown().await.is_ok() && lingers {
            let _ = copy(&mut stream, &mut sink()).await;
        }
    };
    let _ = Box::pin(timeout(LINGER_TIME_MAX, ending)).await;
    SessionEnd::Closed
}

/// Runs a session until the door is closed.
async fn until_closed(
    session: impl Future<Output = SessionEnd>,
    mut phase: PhaseWatch,
) -> SessionEnd {
    let now = phase.clone();
    let mut session = pin!(session);
    let mut closed = pin!(phase.closed());
    let mut is_waiting = false;
    poll_fn(move |context| {
        // While the door is serving, one poll is enough: the next phase wakes the future, and this
        // thread may see that phase before the wake-up. After that, the future is polled each time,
        // because any wake-up may be meant for it.
        if !is_waiting || now.is_stopping() {
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
    activity: &'s ConnectionActivity,
    account: &'s Arc<MemoryAccount>,
    receiver: Receiver<'s>,
    sender: Sender<'s>,
    buffer: ReceiveBuffer,
    time_slice: TimeSlice,
    writer: ResponseWriter,
}

/// The step after a connection's last plain request.
enum LastStep {
    /// The client has closed the connection, or the connection must make room for another one.
    Gone,
    /// The connection is closed.
    Close,
    /// The connection is closed once the client has stopped sending.
    Linger,
    /// The next request isn't plain; these bytes of it have been received.
    NotPlain(Bytes),
}

/// The next step after a request.
enum Next {
    /// The connection stays open for another request.
    KeepAlive,
    /// The connection is closed.
    Close,
    /// The connection is closed once the client has stopped sending.
    Linger,
    /// The request was not served, because it isn't plain.
    NotPlain,
    /// No other request will arrive.
    Gone,
}

/// A request with its response, which has yet to be written.
struct Exchange {
    response: HttpResponse,
    /// The number of bytes of the response that the client already has.
    sent: usize,
    rest: Rest,
}

/// The state that a request leaves behind after its response.
struct Rest {
    /// The length of the head, plus the body bytes that follow it in the receive buffer.
    consumed: usize,
    /// The bytes after the body that were received with it.
    behind_body: SmallVec<[u8; 1]>,
    /// True if the client wants to keep the connection open.
    keeps_alive: bool,
    /// True if the whole body has been received.
    is_whole: bool,
}

impl<'s, E: Endpoint> Session<'s, E> {
    fn new(
        endpoint: &'s E,
        activity: &'s ConnectionActivity,
        account: &'s Arc<MemoryAccount>,
        receiver: Receiver<'s>,
        sender: Sender<'s>,
    ) -> Self {
        Self {
            endpoint,
            activity,
            account,
            receiver,
            sender,
            buffer: ReceiveBuffer::new(),
            time_slice: TimeSlice::default(),
            writer: ResponseWriter::default(),
        }
    }

    async fn run(mut self) -> LastStep {
        let mut seen = Vec::new();
        loop {
            if !self.has_request().await {
                return LastStep::Gone;
            }
            let next = if !seen.is_empty() && self.buffer.unread().starts_with(&seen) {
                self.serve_alike(&seen).await
            } else {
                // Other requests are far more common, and their futures need no room for this one.
                Box::pin(self.serve_next(&mut seen)).await
            };
            match next {
                Next::KeepAlive => {}
                Next::NotPlain => {
                    return LastStep::NotPlain(Bytes::copy_from_slice(self.buffer.unread()));
                }
                Next::Close => return LastStep::Close,
                Next::Linger => return LastStep::Linger,
                Next::Gone => return LastStep::Gone,
            }
        }
    }

    /// Waits until the beginning of a request has arrived. Returns false if no request will arrive.
    async fn has_request(&mut self) -> bool {
        // The single byte that may have been received after a body is not a head.
        if self.buffer.unread().len() <= 1 && !self.wait().await {
            return false;
        }
        if self.time_slice.is_over(Instant::now) {
            tokio::task::yield_now().await;
        }
        true
    }

    /// Waits for the first bytes of the next request. Returns true if any arrived.
    async fn wait(&mut self) -> bool {
        let time_slice = &mut self.time_slice;
        let mut receiving = pin!(self.buffer.receive(&mut self.receiver));
        let received = poll_fn(|context| {
            let received = receiving.as_mut().poll(context);
            if received.is_pending() {
                time_slice.end();
            }
            received
        });
        matches!(
            self.activity.wait_for_client(AwaitedClientStep::Idle, received).await,
            Ok(Ok(1..))
        )
    }

    /// Serves the request at the front of the buffer and remembers its head.
    async fn serve_next(&mut self, seen: &mut Vec<u8>) -> Next {
        let wants_headers = |path: &str| self.endpoint.wants_headers_of(path);
        let mut parsed = head::parse(self.buffer.unread(), wants_headers);
        if matches!(parsed, Parsed::Incomplete) {
            if let Some(next) = self.complete_head().await {
                return next;
            }
            parsed = head::parse(self.buffer.unread(), wants_headers);
        }
        let Parsed::Plain(head) = parsed else { return Next::NotPlain };
        let unread = self.buffer.unread();
        let (text, behind_head) = unread.split_at_checked(head.length).unwrap_or_default();
        seen.clear();
        if text.len() <= REMEMBERED_BYTES_MAX {
            seen.extend_from_slice(text);
        }
        let directions = Directions { receiver: &mut self.receiver, sender: self.sender };
        match respond(self.endpoint, self.activity, self.account, directions, &head, behind_head)
            .await
        {
            Some(exchange) => self.settle(exchange).await,
            None => Next::Close,
        }
    }

    /// Serves the requests at the front of the buffer whose head equals `text`. Most clients repeat
    /// their heads, so a repeated head is parsed only once.
    async fn serve_alike(&mut self, text: &[u8]) -> Next {
        let wants_headers = |path: &str| self.endpoint.wants_headers_of(path);
        let Parsed::Plain(head) = head::parse(text, wants_headers) else { return Next::NotPlain };
        while let Some(behind_head) = self.buffer.unread().strip_prefix(text) {
            let directions = Directions { receiver: &mut self.receiver, sender: self.sender };
            let exchange =
                respond(self.endpoint, self.activity, self.account, directions, &head, behind_head);
            let Some(exchange) = exchange.await else { return Next::Close };
            match self.settle(exchange).await {
                Next::KeepAlive => {}
                end => return end,
            }
            if !self.has_request().await {
                return Next::Gone;
            }
        }
        Next::KeepAlive
    }

    /// Receives the rest of a head. Returns the next step if the received bytes don't complete the
    /// head.
    async fn complete_head(&mut self) -> Option<Next> {
        let since = self.activity.now();
        loop {
            let seen = self.buffer.unread().len();
            if seen >= RECEIVE_BYTES {
                // hyper has a larger buffer.
                return Some(Next::NotPlain);
            }
            let receiving = self.buffer.receive(&mut self.receiver);
            match self
                .activity
                .wait_for_client_since(AwaitedClientStep::Head, since, receiving)
                .await
            {
                Ok(Ok(1..)) if head::has_end(self.buffer.unread(), seen) => return None,
                Ok(Ok(1..)) => {}
                Ok(Ok(0) | Err(_)) => return Some(Next::Close),
                Err(ClientTimedOut) => {
                    let response = http_response::overdue("head");
                    let _ = self.write(&response, 0, true).await;
                    return Some(Next::Close);
                }
            }
        }
    }

    /// Consumes the request and writes its response.
    async fn settle(&mut self, exchange: Exchange) -> Next {
        let Exchange { mut response, sent, rest } = exchange;
        self.buffer.consume(rest.consumed);
        self.buffer.push(&rest.behind_body);
        let closes = response.closes || !rest.keeps_alive || !rest.is_whole;
        let next = match response.events.take() {
            None => self.write(&response, sent, closes).await,
            Some(events) => Box::pin(self.write_events(&response, events, sent, closes)).await,
        };
        match next {
            Next::Close if !rest.is_whole => Next::Linger,
            next => next,
        }
    }

    async fn write_events(
        &mut self,
        response: &HttpResponse,
        events: Events,
        sent: usize,
        closes: bool,
    ) -> Next {
        let _trace = SendTrace::begin(response.trace.clone());
        let sender = self.sender;
        let head = self.writer.events_head(response, sent, closes);
        // A client that was sent an early byte sends no more.
        let watched = if sent > 0 { Watched::Reset } else { Watched::End };
        match write_events(sender, self.activity, head, events, watched).await {
            Ok(()) if !closes => Next::KeepAlive,
            Ok(()) | Err(_) => Next::Close,
        }
    }

    async fn write(&mut self, response: &HttpResponse, sent: usize, closes: bool) -> Next {
        let _trace = SendTrace::begin(response.trace.clone());
        let sender = self.sender;
        let written = match self.writer.send(sender, response, sent, closes) {
            Ok(Sent::All) => Ok(()),
            Ok(Sent::Part(count)) => {
                let rest = self.writer.send_rest(sender, self.activity, response, sent, count);
                Box::pin(rest).await
            }
            Err(error) => Err(error),
        };
        match written {
            Ok(()) if !closes => Next::KeepAlive,
            Ok(()) | Err(_) => Next::Close,
        }
    }
}

/// The two directions of a connection.
struct Directions<'c, 's> {
    receiver: &'c mut Receiver<'s>,
    sender: Sender<'s>,
}

/// Creates the response to a request. Returns `None` if the client disconnects first.
async fn respond<E: Endpoint>(
    endpoint: &E,
    activity: &ConnectionActivity,
    account: &Arc<MemoryAccount>,
    directions: Directions<'_, '_>,
    plain: &PlainHead<'_>,
    behind_head: &[u8],
) -> Option<Exchange> {
    let PlainHead { head, length: head_length, framing, waits_for_continue, keeps_alive } = plain;
    let (framing, waits_for_continue, keeps_alive) = (*framing, *waits_for_continue, *keeps_alive);
    let Directions { receiver, sender } = directions;
    let is_body_whole = AtomicBool::new(false);
    let (early, is_end_visible) = match framing {
        Framing::Length(length) => {
            let early = usize::try_from(length).unwrap_or(usize::MAX).min(behind_head.len());
            let (early, behind) = behind_head.split_at_checked(early).unwrap_or_default();
            (early, behind.is_empty())
        }
        // The bytes after the body aren't known yet. A peek at the socket then finds only the end,
        // which the client reached after sending all of its requests.
        Framing::Chunks => (behind_head, true),
    };
    let watch = ClientWatch::new(sender, &is_body_whole, is_end_visible);
    let consumed = head_length.saturating_add(early.len());
    let (watched, is_whole, behind_body) = match framing {
        Framing::Length(length) => {
            let mut body = PlainBody::new(
                receiver,
                activity,
                account,
                early,
                length,
                waits_for_continue,
                &is_body_whole,
            );
            let watched = watched_response(endpoint, head, &mut body, watch).await;
            (watched, body.is_whole(), body.byte_after_body().into_iter().collect())
        }
        Framing::Chunks => {
            let mut body = ChunkedBody::new(
                receiver,
                activity,
                account,
                early,
                waits_for_continue,
                &is_body_whole,
            );
            let watched = Box::pin(watched_response(endpoint, head, &mut body, watch)).await;
            (watched, body.is_whole(), SmallVec::from_vec(body.into_rest()))
        }
    };
    let WatchedResponse::Made(response, sent) = watched else { return None };
    let rest = Rest { consumed, behind_body, keeps_alive, is_whole };
    Some(Exchange { response, sent, rest })
}

async fn watched_response<E: Endpoint, B: RequestBody>(
    endpoint: &E,
    head: &RequestHead<'_>,
    body: &mut B,
    watch: ClientWatch<'_>,
) -> WatchedResponse<HttpResponse> {
    watch.unless_disconnected(pin!(endpoint.respond(head, body))).await
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::Ipv4Addr;

    use hyper::StatusCode;

    use crate::endpoint::Disconnected;
    use crate::request_body::BodyLimits;

    use super::*;

    /// Reads bodies and responds with the path and the body lengths.
    struct Lengths;

    impl Endpoint for Lengths {
        async fn respond<B: RequestBody>(
            &self,
            head: &RequestHead<'_>,
            body: &mut B,
        ) -> Result<HttpResponse, Disconnected> {
            let limits = BodyLimits { bytes_max: u64::MAX, chunks_max: 0 };
            let body = body.collect(limits).await.map_err(|_| Disconnected)?;
            let found = format!("{} {}", head.path, body.len());
            Ok(http_response::error(StatusCode::OK, &found))
        }

        async fn drain<B: RequestBody>(&self, _: &mut B) {}
    }

    /// Makes a session serve requests that have all arrived before the first is read. Returns the
    /// session's result and the responses.
    async fn served<T>(
        requests: &[u8],
        serve: impl AsyncFnOnce(Session<'_, Lengths>) -> T,
    ) -> (T, String) {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(requests).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let (read, write) = stream.split();
        let (activity, account) =
            (ConnectionActivity::default(), Arc::new(MemoryAccount::unlimited()));
        let (receiver, sender) = (Receiver::Tcp(read), Sender::Tcp(write.as_ref()));
        let served = serve(Session::new(&Lengths, &activity, &account, receiver, sender)).await;
        drop(stream);
        let mut responses = String::new();
        client.read_to_string(&mut responses).unwrap();
        (served, responses)
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(future)
    }

    /// Checks the responses to requests, given as the words of their errors.
    fn check(requests: &str, expected: &[&str]) -> LastStep {
        let (last, responses) =
            block_on(served(requests.as_bytes(), async |session| session.run().await));
        let found = responses.split("{\"error\":\"").skip(1);
        let found: Vec<&str> = found.filter_map(|rest| Some(rest.split_once('"')?.0)).collect();
        assert_eq!(found, expected, "{requests}");
        last
    }

    fn request(path: &str, length: usize) -> String {
        format!("POST {path} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n{:length$}", "")
    }

    #[test]
    fn repeated_heads_and_others_are_served() {
        let (short, long) = (request("/a", 3), request("/a", 30));
        let other = request("/b", 3);
        // This is longer than any head that is remembered.
        let cookie = format!("HTTP/1.1\r\nCookie: {}\r\n", "c".repeat(REMEMBERED_BYTES_MAX));
        let odd = short.replace("HTTP/1.1\r\n", &cookie);
        let requests =
            [&short, &short, &short, &long, &long, &short, &odd, &odd, &other, &other, &short];
        let expected = [
            "/a 3", "/a 3", "/a 3", "/a 30", "/a 30", "/a 3", "/a 3", "/a 3", "/b 3", "/b 3",
            "/a 3",
        ];
        let requests: String = requests.into_iter().map(String::as_str).collect();
        assert!(matches!(check(&requests, &expected), LastStep::Gone));
    }

    #[test]
    fn the_end_of_a_session_follows_a_repeated_head() {
        let plain = request("/a", 3).repeat(3);
        let expected = ["/a 3", "/a 3", "/a 3"];
        let odd = "PUT /b HTTP/1.1\r\n\r\n";
        let LastStep::NotPlain(rest) = check(&format!("{plain}{odd}"), &expected) else {
            panic!("the session ended")
        };
        assert_eq!(rest, odd.as_bytes());
        let closing = request("/c", 1).replace("HTTP/1.1", "HTTP/1.1\r\nConnection: close");
        let closed =
            check(&format!("{plain}{}", closing.repeat(2)), &["/a 3", "/a 3", "/a 3", "/c 1"]);
        assert!(matches!(closed, LastStep::Close));
        let half = request("/a", 3).split_at(20).0.to_owned();
        assert!(matches!(check(&format!("{plain}{half}"), &expected), LastStep::Close));
    }

    #[test]
    fn requests_behind_large_bodies_leave_the_buffer_as_it_was() {
        let requests = request("/", RECEIVE_BYTES + 1000).repeat(3);
        let serve = async |mut session: Session<'_, Lengths>| {
            for _ in 0..3 {
                assert!(session.has_request().await);
                let next = session.serve_next(&mut Vec::new()).await;
                assert!(matches!(next, Next::KeepAlive));
            }
            session.buffer.capacity()
        };
        let (capacity, _) = block_on(served(requests.as_bytes(), serve));
        assert!(capacity <= RECEIVE_BYTES, "{capacity} bytes are kept");
    }
}
