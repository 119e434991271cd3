//! The sockets between the server and a worker.
//!
//! Executions use a separate socket pair for each direction. With a single pair, a thread that
//! waits for incoming bytes would also be woken when its outgoing bytes are read. This accounted
//! for a quarter of all context switches.
//!
//! No thread blocks on a worker that doesn't read. Bytes that a socket doesn't accept immediately
//! are queued, and the supervisor's thread sends them when the socket has room.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use galatea_stdx::Lock;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::wire::FrameSplitter;

/// The server's ends of the sockets to a worker.
#[derive(Debug)]
pub(crate) struct WorkerSockets {
    /// The channel for executions, which the executing thread reads.
    pub(crate) a: Channel,
    /// The channel for everything else, which the supervisor reads.
    pub(crate) b: Channel,
    /// A descriptor that wakes the supervisor.
    waker: OwnedFd,
}

/// A bidirectional channel: either two sockets, or one for both directions.
#[derive(Debug)]
pub(crate) struct Channel {
    /// The socket for outgoing frames.
    socket: UnixStream,
    /// The socket for incoming frames; `None` if the outgoing socket is also used for incoming
    /// frames.
    back: Option<UnixStream>,
    unsent: Lock<Vec<u8>>,
    /// True if `unsent` is not empty.
    is_congested: AtomicBool,
}

/// The worker's ends of the sockets.
#[derive(Debug)]
pub(crate) struct WorkerEnds {
    /// The socket on which the worker receives executions.
    pub(crate) commands: UnixStream,
    /// The socket on which the worker sends results.
    pub(crate) results: UnixStream,
    /// The socket for everything else.
    pub(crate) others: UnixStream,
}

/// The events that occurred while the supervisor waited.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SocketEvents {
    /// True if the socket for executions has data or has been closed.
    pub(crate) a: bool,
    /// True if the second socket has data or has been closed.
    pub(crate) b: bool,
    /// True if the process has ended.
    pub(crate) has_exited: bool,
    /// True if nothing happened before the timeout.
    pub(crate) is_idle: bool,
}

impl WorkerSockets {
    /// Creates both the server's and the worker's ends.
    pub(crate) fn pair() -> io::Result<(Self, WorkerEnds)> {
        let ((a, commands), (back, results)) = (UnixStream::pair()?, UnixStream::pair()?);
        let (b, others) = UnixStream::pair()?;
        let waker = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (a, b) = (Channel::new(a, Some(back)), Channel::new(b, None));
        Ok((Self { a, b, waker }, WorkerEnds { commands, results, others }))
    }

    /// Sends a frame on the socket for executions. Returns false if the worker is gone.
    pub(crate) fn send_a(&self, frame: &[u8]) -> bool {
        self.send(&self.a, frame)
    }

    /// Sends a frame on the second socket. Returns false if the worker is gone.
    pub(crate) fn send_b(&self, frame: &[u8]) -> bool {
        self.send(&self.b, frame)
    }

    fn send(&self, channel: &Channel, frame: &[u8]) -> bool {
        match channel.send(frame) {
            Ok(true) => true,
            Ok(false) => {
                self.wake();
                true
            }
            Err(_) => false,
        }
    }

    /// Wakes the supervisor to check for work.
    pub(crate) fn wake(&self) {
        // A full counter wakes the supervisor as well.
        let _ = rustix::io::write(&self.waker, &1_u64.to_ne_bytes());
    }

    /// Shuts down both sockets, so that their readers see the end of the stream.
    pub(crate) fn close(&self) {
        for channel in [&self.a, &self.b] {
            let _ = channel.socket.shutdown(std::net::Shutdown::Both);
            let _ = channel.incoming().shutdown(std::net::Shutdown::Both);
        }
    }

    /// Waits until the second socket is readable, and sends the unsent bytes of both sockets in the
    /// meantime.
    pub(crate) fn wait_for_events(
        &self,
        process: Option<&OwnedFd>,
        timeout: Duration,
    ) -> SocketEvents {
        self.wait_for(PollFlags::empty(), process, timeout)
    }

    /// Like [`Self::wait_for_events`], for both sockets.
    pub(crate) fn wait_for_both(
        &self,
        process: Option<&OwnedFd>,
        timeout: Duration,
    ) -> SocketEvents {
        self.wait_for(PollFlags::IN, process, timeout)
    }

    fn wait_for(
        &self,
        on_a: PollFlags,
        process: Option<&OwnedFd>,
        timeout: Duration,
    ) -> SocketEvents {
        let wanted = |channel: &Channel, base: PollFlags| {
            let congested = channel.is_congested.load(Ordering::Acquire);
            if congested { base | PollFlags::OUT } else { base }
        };
        let mut polled = smallvec::SmallVec::<[PollFd<'_>; 5]>::new();
        polled.push(PollFd::new(&self.b.socket, wanted(&self.b, PollFlags::IN)));
        polled.push(PollFd::new(&self.a.socket, wanted(&self.a, PollFlags::empty())));
        polled.push(PollFd::new(self.a.incoming(), on_a));
        polled.push(PollFd::new(&self.waker, PollFlags::IN));
        polled.extend(process.map(|process| PollFd::new(process, PollFlags::IN)));
        let timeout = Timespec::try_from(timeout).ok();
        let count = rustix::event::poll(&mut polled, timeout.as_ref());
        let has = |index: usize, flags: PollFlags| {
            polled.get(index).is_some_and(|one| one.revents().intersects(flags))
        };
        let ended = PollFlags::HUP | PollFlags::ERR;
        let events = SocketEvents {
            a: has(2, PollFlags::IN | ended),
            b: has(0, PollFlags::IN | ended),
            has_exited: has(4, PollFlags::IN),
            is_idle: count == Ok(0),
        };
        let (b_has_room, a_has_room) = (has(0, PollFlags::OUT), has(1, PollFlags::OUT));
        if has(3, PollFlags::IN) {
            let _ = rustix::io::read(&self.waker, &mut [0_u8; 8]);
        }
        for (channel, has_room) in [(&self.b, b_has_room), (&self.a, a_has_room)] {
            if has_room {
                channel.flush();
            }
        }
        events
    }
}

impl Channel {
    fn new(socket: UnixStream, back: Option<UnixStream>) -> Self {
        Self { socket, back, unsent: Lock::default(), is_congested: AtomicBool::new(false) }
    }

    /// The socket to the worker.
    pub(crate) const fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// The socket on which the worker replies.
    fn incoming(&self) -> &UnixStream {
        self.back.as_ref().unwrap_or(&self.socket)
    }

    /// Sends a frame, after any unsent bytes. Returns false if part of it remains unsent.
    fn send(&self, frame: &[u8]) -> io::Result<bool> {
        let mut unsent = self.unsent.lock("send a frame");
        if !unsent.is_empty() {
            unsent.extend_from_slice(frame);
            return Ok(false);
        }
        let sent = self.send_some(frame)?;
        unsent.extend_from_slice(frame.get(sent..).unwrap_or_default());
        self.is_congested.store(!unsent.is_empty(), Ordering::Release);
        Ok(unsent.is_empty())
    }

    fn flush(&self) {
        let mut unsent = self.unsent.lock("send the rest");
        // If sending fails because the socket has been closed, its reader will notice.
        let sent = self.send_some(&unsent).unwrap_or_default();
        unsent.drain(..sent);
        self.is_congested.store(!unsent.is_empty(), Ordering::Release);
    }

    /// Sends as much as the socket accepts without blocking.
    fn send_some(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut sent: usize = 0;
        while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.socket, rest, flags) {
                Ok(count) => sent = sent.saturating_add(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(sent)
    }

    /// Limits how long a read may block.
    pub(crate) fn limit_reads(&self, patience: Option<Duration>) {
        // If this fails, a read waits until the worker ends.
        let _ = self.incoming().set_read_timeout(patience);
    }

    /// Reads the available bytes, or waits for some until the deadline. Returns false if none
    /// arrived.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` at the end of the stream.
    pub(crate) fn read_until(
        &self,
        into: &mut FrameSplitter,
        deadline: Instant,
    ) -> io::Result<bool> {
        loop {
            let space = spare_capacity(into.space());
            match rustix::net::recv(self.incoming(), space, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => return Ok(true),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(timeout) = Timespec::try_from(left).ok().filter(|_| !left.is_zero()) else {
                return Ok(false);
            };
            let mut polled = [PollFd::new(self.incoming(), PollFlags::IN)];
            match rustix::event::poll(&mut polled, Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads the available bytes, or waits for some.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` at the end of the stream, or `WouldBlock` if the socket's timeout has
    /// expired.
    pub(crate) fn read(&self, into: &mut FrameSplitter) -> io::Result<()> {
        loop {
            let space = spare_capacity(into.space());
            match rustix::net::recv(self.incoming(), space, RecvFlags::empty()) {
                Ok((0, _)) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
