//! Connections on which clients ask for nothing unusual.
//!
//! Nearly all requests to an inference server are of one kind: POST or GET, a path, a
//! few headers, a body of a known length. They are served here: the bytes that were
//! received are looked at where they lie, a large body is read into the memory that its
//! tensors stay in, and an answer leaves with one system call. A head that is anything
//! else, be it chunked, upgraded, split or wrong, is given to hyper as it came, and with
//! it the rest of its connection: so there is nothing to be lenient about here.

mod answer;
mod body;
mod head;
mod look;

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;

use crate::body::RequestBody;
use crate::connection::after;
use crate::door::{Endpoint, Phase};
use crate::respond::Reply;

use self::answer::Writer;
use self::body::PlainBody;
use self::head::PlainHead;
use self::look::{LOOKED_BYTES_MAX, look, take};

pub(crate) use self::look::LastServed;

/// How a connection ended here.
pub(crate) enum End {
    /// There is nothing more to do.
    Closed,
    /// What follows isn't plain; these bytes of it were read.
    NotPlain(Bytes),
}

/// What is read at once: heads, and bodies that are no longer than this. A connection
/// keeps as much while it is idle, and never more.
const READ_BYTES: usize = 16 << 10;

/// After so many requests without a wait it is the turn of other connections.
const REQUESTS_IN_A_ROW: u32 = 16;

/// Serves plain requests until the connection ends or another request comes. While the
/// door stops, a connection gets one answer; if `ends_idle`, only one that it waits for.
pub(crate) async fn serve<E: Endpoint>(
    stream: &mut TcpStream,
    endpoint: &E,
    last_served: &LastServed,
    phase: watch::Receiver<Phase>,
    ends_idle: bool,
) -> End {
    let stopping = AtomicBool::new(false);
    let (read, write) = stream.split();
    let session = Session {
        endpoint,
        last_served,
        read,
        write,
        buffer: Vec::with_capacity(READ_BYTES),
        start: 0,
        looks: false,
        looked_at: 0,
        in_a_row: 0,
        writer: Writer::default(),
        ends_idle,
        stopping: &stopping,
    };
    until_closed(session.run(), phase, &stopping).await
}

/// Runs a session until the door is closed; says when the door begins to stop.
async fn until_closed(
    session: impl Future<Output = End>,
    phase: watch::Receiver<Phase>,
    stopping: &AtomicBool,
) -> End {
    let mut glance = phase.clone();
    let mut session = pin!(session);
    let mut phases = pin!(async move {
        let mut phase = phase;
        after(&mut phase, Phase::Serving).await;
        stopping.store(true, Ordering::Relaxed);
        after(&mut phase, Phase::Draining).await;
    });
    let mut is_waiting = false;
    poll_fn(move |context| {
        // Who waits for the next phase is told of it, so it need not be asked each time.
        if !is_waiting || glance.has_changed().unwrap_or(true) {
            is_waiting = true;
            glance.mark_unchanged();
            if phases.as_mut().poll(context).is_ready() {
                return Poll::Ready(End::Closed);
            }
        }
        session.as_mut().poll(context)
    })
    .await
}

struct Session<'s, E> {
    endpoint: &'s E,
    /// What its worker served last.
    last_served: &'s LastServed,
    read: ReadHalf<'s>,
    write: WriteHalf<'s>,
    /// What was received, from `start` on not yet looked at.
    buffer: Vec<u8>,
    start: usize,
    /// Whether it only looks at the next request before it is answered, see [`look`].
    looks: bool,
    /// So many bytes at the end of the buffer were looked at and not taken.
    looked_at: usize,
    in_a_row: u32,
    writer: Writer,
    /// Whether it ends when the door begins to stop and it has nothing to do.
    ends_idle: bool,
    stopping: &'s AtomicBool,
}

/// What became of a request.
enum Served {
    /// It was answered, and another may follow.
    Answered,
    /// It was the last.
    Last,
    NotPlain,
}

impl<E: Endpoint> Session<'_, E> {
    async fn run(mut self) -> End {
        loop {
            // A single byte may have come along with a body; it makes no head.
            if self.unread().len() <= 1 && !self.wait().await {
                return End::Closed;
            }
            match self.next().await {
                Served::Answered => {}
                Served::NotPlain => return End::NotPlain(Bytes::copy_from_slice(self.unread())),
                Served::Last => {
                    // However that goes, the connection ends.
                    let _ = self.write.shutdown().await;
                    return End::Closed;
                }
            }
            if self.in_a_row >= REQUESTS_IN_A_ROW {
                self.in_a_row = 0;
                tokio::task::yield_now().await;
            }
        }
    }

    fn unread(&self) -> &[u8] {
        self.buffer.get(self.start..).unwrap_or_default()
    }

    /// Makes room where the bytes lie that were looked at.
    fn forget_served(&mut self) {
        self.buffer.drain(..self.start.min(self.buffer.len()));
        self.start = 0;
    }

    /// Waits for the next request's first bytes; false if none will come.
    async fn wait(&mut self) -> bool {
        self.forget_served();
        let ends = self.ends_idle;
        let mut reading = pin!(receive(&mut self.read, &mut self.buffer, self.looks));
        let read = poll_fn(|context| match reading.as_mut().poll(context) {
            Poll::Ready(count) => Poll::Ready(Some(count)),
            Poll::Pending => {
                self.in_a_row = 0;
                let ending = ends && self.stopping.load(Ordering::Relaxed);
                if ending { Poll::Ready(None) } else { Poll::Pending }
            }
        })
        .await;
        let read = match read {
            Some(count) => Poll::Ready(count),
            None => {
                // What came before the order to stop may be there without the runtime
                // having looked.
                tokio::task::yield_now().await;
                poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await
            }
        };
        let Poll::Ready(Ok(count @ 1..)) = read else { return false };
        self.looked_at = if self.looks { count } else { 0 };
        true
    }

    /// Serves the request at the front of the buffer.
    async fn next(&mut self) -> Served {
        let bytes = self.buffer.get(self.start..).unwrap_or_default();
        let looked_at = std::mem::take(&mut self.looked_at);
        let Some(plain) = head::read(bytes, self.endpoint.wants_headers()) else {
            return match take(self.read.as_ref(), looked_at) {
                Ok(()) => Served::NotPlain,
                Err(_) => Served::Last,
            };
        };
        let PlainHead { head, length, body_length, waits, keeps_alive } = plain;
        let rest = bytes.get(length..).unwrap_or_default();
        let early = usize::try_from(body_length).unwrap_or(usize::MAX).min(rest.len());
        let (early, rest) = rest.split_at_checked(early).unwrap_or_default();
        let whole = AtomicBool::new(false);
        let mut body = PlainBody::new(&mut self.read, early, body_length, waits, &whole);
        let is_all = body.missing_min() == 0 && rest.is_empty();
        let stream = self.write.as_ref();
        let mut gone = Gone { stream, whole: &whole, watched: rest.is_empty(), looked_at };
        if !is_all && gone.take().is_err() {
            return Served::Last;
        }
        let (reply, waited) = {
            let respond = pin!(self.endpoint.respond(&head, &mut body));
            gone.unless(respond).await
        };
        self.looked_at = gone.looked_at;
        let is_alone = self.last_served.note(self.write.as_ref());
        let is_short = bytes.len() < LOOKED_BYTES_MAX;
        self.looks = is_alone && is_all && is_short && !waited;
        let Some(reply) = reply else { return Served::Last };
        let (missing, surplus) = (body.missing_min(), body.surplus());
        self.start = self.start.saturating_add(length).saturating_add(early.len());
        if let Some(surplus) = surplus {
            // The buffer may be full of what was served, and must not grow for a byte.
            self.forget_served();
            self.buffer.push(surplus);
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        let served = self.answer(&reply, missing, keeps_alive).await;
        // Also before the connection ends: closed with bytes that nobody took, it would
        // be reset, and with it the answer.
        self.take().await;
        served
    }

    /// Takes the request that was looked at, and with it what came since.
    async fn take(&mut self) {
        let looked_at = std::mem::take(&mut self.looked_at);
        if looked_at == 0 {
            return;
        }
        self.forget_served();
        let until = self.buffer.len().saturating_add(looked_at);
        while self.buffer.len() < until {
            let taken = receive(&mut self.read, &mut self.buffer, false).await;
            if !matches!(taken, Ok(1..)) {
                // What is done next fails, too.
                break;
            }
        }
        self.start = until.min(self.buffer.len());
    }

    /// Answers a request of whose body so many bytes were not read.
    async fn answer(&mut self, reply: &Reply, missing: u64, keeps_alive: bool) -> Served {
        let drained = missing == 0 || self.drain(missing).await;
        let stopping = self.stopping.load(Ordering::Relaxed);
        let keeps_alive = keeps_alive && drained && !stopping;
        let closes = reply.closes || !keeps_alive;
        match self.writer.send(self.write.as_ref(), reply, closes).await {
            Ok(()) if !closes => Served::Answered,
            Ok(()) | Err(_) => Served::Last,
        }
    }

    /// Reads what is left of a body if it is there and short; says whether that was all.
    async fn drain(&mut self, missing: u64) -> bool {
        self.buffer.clear();
        self.start = 0;
        let Ok(missing) = usize::try_from(missing) else { return false };
        if missing > READ_BYTES {
            return false;
        }
        let mut buffer = (&mut self.buffer).limit(READ_BYTES);
        let mut reading = pin!(self.read.read_buf(&mut buffer));
        let count = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
        self.start = missing.min(self.buffer.len());
        matches!(count, Poll::Ready(Ok(count)) if count >= missing)
    }
}

/// Receives what there is room for, or only looks at it; either way it is in the buffer.
async fn receive(
    stream: &mut ReadHalf<'_>,
    buffer: &mut Vec<u8>,
    only_looks: bool,
) -> io::Result<usize> {
    if only_looks {
        return look(stream.as_ref(), buffer).await;
    }
    let room = READ_BYTES.saturating_sub(buffer.len());
    stream.read_buf(&mut buffer.limit(room)).await
}

/// Looks whether a client went away that waits for its answer.
struct Gone<'s> {
    stream: &'s TcpStream,
    /// What of its request was looked at and not taken.
    looked_at: usize,
    /// While a body is read, that finds out.
    whole: &'s AtomicBool,
    /// Behind more requests the end of the connection can't be seen.
    watched: bool,
}

impl Gone<'_> {
    /// What `respond` returns, unless it fails or the client is gone; and whether it was
    /// waited for.
    async fn unless<T, F>(
        &mut self,
        mut respond: Pin<&mut impl Future<Output = Result<T, F>>>,
    ) -> (Option<T>, bool) {
        let mut waited = false;
        poll_fn(move |context| match respond.as_mut().poll(context) {
            Poll::Ready(reply) => Poll::Ready((reply.ok(), waited)),
            Poll::Pending => {
                waited = true;
                self.poll(context).map(|()| (None, true))
            }
        })
        .await
    }

    /// Takes the bytes that were looked at.
    fn take(&mut self) -> io::Result<()> {
        take(self.stream, std::mem::take(&mut self.looked_at))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.take().is_err() {
            return Poll::Ready(());
        }
        if !self.watched || !self.whole.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        let mut byte = [0];
        match self.stream.poll_peek(context, &mut ReadBuf::new(&mut byte)) {
            Poll::Ready(Ok(1..)) => {
                self.watched = false;
                Poll::Pending
            }
            Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::Ipv4Addr;
    use std::sync::Mutex;

    use hyper::StatusCode;

    use crate::body::BodyLimits;
    use crate::door::Closed;
    use crate::head::Head;
    use crate::respond;

    use super::*;

    /// Reads bodies, and says how long they were.
    struct Lengths;

    impl Endpoint for Lengths {
        async fn respond<B: RequestBody>(
            &self,
            _: &Head<'_>,
            body: &mut B,
        ) -> Result<Reply, Closed> {
            let limits = BodyLimits { bytes_max: u64::MAX, chunks_max: 0 };
            let body = body.collect(limits).await.map_err(|_| Closed)?;
            Ok(respond::error(StatusCode::OK, &body.len().to_string()))
        }

        fn stop(&self) {}
    }

    /// Serves so many requests, all of which are there before the first is read, and
    /// returns how much memory the connection keeps.
    async fn kept_after(requests: &[u8], count: usize) -> usize {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(requests).unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let stopping = AtomicBool::new(false);
        let (read, write) = stream.split();
        let mut session = Session {
            endpoint: &Lengths,
            last_served: &LastServed::default(),
            read,
            write,
            buffer: Vec::with_capacity(READ_BYTES),
            start: 0,
            looks: false,
            looked_at: 0,
            in_a_row: 0,
            writer: Writer::default(),
            ends_idle: true,
            stopping: &stopping,
        };
        for _ in 0..count {
            assert!(session.unread().len() > 1 || session.wait().await);
            assert!(matches!(session.next().await, Served::Answered));
        }
        session.buffer.capacity()
    }

    /// Notes how much of a connection nobody had taken when a request was answered.
    struct Untaken {
        connection: std::net::TcpStream,
        bytes: Mutex<Vec<usize>>,
    }

    impl Untaken {
        fn count(&self) -> usize {
            self.connection.peek(&mut [0; 100]).unwrap_or(0)
        }
    }

    impl Endpoint for Untaken {
        async fn respond<B: RequestBody>(&self, _: &Head<'_>, _: &mut B) -> Result<Reply, Closed> {
            self.bytes.lock().unwrap().push(self.count());
            Ok(respond::error(StatusCode::OK, "done"))
        }

        fn stop(&self) {}
    }

    #[test]
    fn a_connection_served_alone_takes_requests_behind_their_answers() {
        let request = "GET / HTTP/1.1\r\n\r\n";
        let last = "GET / HTTP/1.1\r\nConnection: close\r\n\r\n";
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let (untaken, left) = runtime.block_on(async {
            let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (connection, _) = listener.accept().unwrap();
            connection.set_nonblocking(true).unwrap();
            let mut stream = TcpStream::from_std(connection.try_clone().unwrap()).unwrap();
            let endpoint = Untaken { connection, bytes: Mutex::default() };
            let (_sender, phase) = watch::channel(Phase::Serving);
            let last_served = LastServed::default();
            let serving = serve(&mut stream, &endpoint, &last_served, phase, true);
            let asking = std::thread::spawn(move || {
                let mut answer = [0; 500];
                for request in [request, request, last] {
                    client.write_all(request.as_bytes()).unwrap();
                    assert!(client.read(&mut answer).unwrap() > 0);
                }
                assert_eq!(client.read(&mut answer).unwrap(), 0);
            });
            assert!(matches!(serving.await, End::Closed));
            let left = endpoint.count();
            drop((stream, endpoint.connection));
            asking.join().unwrap();
            (endpoint.bytes.into_inner().unwrap(), left)
        });
        // Before the first the worker served another, and before the second nobody knew
        // how long it would take.
        assert_eq!(untaken, [0, 0, last.len()]);
        // Closed with bytes that nobody took, a connection is reset.
        assert_eq!(left, 0);
    }

    #[test]
    fn requests_behind_large_bodies_leave_the_buffer_as_it_was() {
        let size = READ_BYTES + 1000;
        let request = format!("POST / HTTP/1.1\r\nContent-Length: {size}\r\n\r\n{:size$}", "");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let kept = runtime.block_on(kept_after(request.repeat(3).as_bytes(), 3));
        assert!(kept <= READ_BYTES, "{kept} bytes are kept");
    }
}
