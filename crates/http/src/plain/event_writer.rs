//! Writes the events of a response as chunks while watching the client.
//!
//! A client that closes its sending side may still read, as `client_watch.rs` explains. As a probe,
//! a zero is sent before the next chunk's size; a leading zero doesn't change the size.

use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice, Write};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::Bytes;
use galatea_door::ConnectionActivity;

use super::client_stream::{InputEnd, Sender};
use super::writer::write;
use crate::event_stream::EventsLost;
use crate::events::Events;

/// The size up to which events are gathered and written with one system call.
const GATHERED_BYTES: usize = 16 << 10;

/// The number of consecutive writes without a wait after which the thread serves its other
/// connections.
const WRITES_IN_A_ROW_MAX: u32 = 16;

/// The bytes sent to probe a client that has stopped sending.
const PROBE: &[u8] = b"0";

/// The signal that indicates that a client has disconnected.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Watched {
    /// The client has stopped sending.
    End,
    /// The client rejected the data sent to it.
    Reset,
}

/// The result of a poll.
enum WriterPoll {
    Event(Bytes),
    /// There is no event at present, but there is data to write.
    Pause,
    LastEvent,
    End,
    Gone,
}

/// Writes `head`, followed by the events, each as a chunk.
pub(super) async fn write_events(
    stream: Sender<'_>,
    activity: &ConnectionActivity,
    head: &mut Vec<u8>,
    mut events: Events,
    mut watched: Watched,
) -> io::Result<()> {
    let mut reset = pin!(stream.reset());
    let mut in_a_row: u32 = 0;
    let gathered = head;
    loop {
        let seen = poll_fn(|context| {
            let event = match events.poll_next(context) {
                Poll::Ready(Some(Ok(event))) => return Poll::Ready(Ok(WriterPoll::Event(event))),
                Poll::Ready(Some(Err(EventsLost))) => Err(io::Error::other(EventsLost)),
                Poll::Ready(None) => Ok(WriterPoll::LastEvent),
                Poll::Pending if !gathered.is_empty() => Ok(WriterPoll::Pause),
                Poll::Pending => {
                    return poll_client(stream, watched, reset.as_mut(), context).map(Ok);
                }
            };
            Poll::Ready(event)
        });
        match seen.await? {
            WriterPoll::Event(event) if event.len() <= GATHERED_BYTES => {
                begin_chunk(gathered, event.len())?;
                gathered.extend_from_slice(&event);
                gathered.extend_from_slice(b"\r\n");
                if gathered.len() < GATHERED_BYTES {
                    continue;
                }
                write(stream, activity, gathered, &[]).await?;
            }
            WriterPoll::Event(event) => {
                begin_chunk(gathered, event.len())?;
                let parts = [event, Bytes::from_static(b"\r\n")];
                write(stream, activity, gathered, &parts).await?;
            }
            WriterPoll::Pause => {
                in_a_row = 0;
                write(stream, activity, gathered, &[]).await?;
            }
            WriterPoll::LastEvent => {
                gathered.extend_from_slice(b"0\r\n\r\n");
                return write(stream, activity, gathered, &[]).await;
            }
            WriterPoll::End => {
                stream.try_write(&[IoSlice::new(PROBE)])?;
                watched = Watched::Reset;
            }
            WriterPoll::Gone => return Err(ErrorKind::ConnectionAborted.into()),
        }
        gathered.clear();
        in_a_row = in_a_row.saturating_add(1);
        if in_a_row >= WRITES_IN_A_ROW_MAX {
            in_a_row = 0;
            tokio::task::yield_now().await;
        }
    }
}

fn begin_chunk(gathered: &mut Vec<u8>, length: usize) -> io::Result<()> {
    write!(gathered, "{length:x}\r\n")
}

/// Waits until the watch detects that the client has disconnected.
fn poll_client(
    stream: Sender<'_>,
    watched: Watched,
    reset: Pin<&mut impl Future<Output = ()>>,
    context: &mut Context<'_>,
) -> Poll<WriterPoll> {
    match watched {
        Watched::Reset => reset.poll(context).map(|()| WriterPoll::Gone),
        Watched::End => match stream.poll_input_end(context) {
            // Another request hides the end of the input.
            Poll::Ready(InputEnd::Hidden) | Poll::Pending => Poll::Pending,
            Poll::Ready(InputEnd::Reached) => Poll::Ready(WriterPoll::End),
            Poll::Ready(InputEnd::Gone) => Poll::Ready(WriterPoll::Gone),
        },
    }
}
