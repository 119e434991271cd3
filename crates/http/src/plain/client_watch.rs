//! Detects clients that disconnect before they have their response.
//!
//! A client that has sent its request may close its sending side and still want the response. It
//! looks like a client that has disconnected, because only the end of the socket's input is
//! visible. Sending distinguishes the two, because the system of a disconnected client answers with
//! a reset. The first byte of the response, which is the same for all responses, is therefore sent
//! early.

use std::future::poll_fn;
use std::io::IoSlice;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use super::client_stream::{InputEnd, Sender};

/// The beginning of every response.
const FIRST_BYTE: &[u8] = b"H";

/// Watches a connection while its response is created.
pub(super) struct ClientWatch<'s> {
    stream: Sender<'s>,
    /// True if the whole body has been received. Until then, reading the body detects the end.
    is_body_whole: &'s AtomicBool,
    /// True if the end of the connection is visible. Unread requests hide the end.
    is_end_visible: bool,
}

/// The result of watching the connection during a request.
pub(super) enum WatchedResponse<T> {
    /// The response was created; this many of its bytes have already been sent.
    Made(T, usize),
    /// The request failed, or the client disconnected.
    Gone,
}

/// The result of a poll.
enum WatchPoll<T> {
    Response(T),
    /// The client has stopped sending.
    End,
    Gone,
}

impl<'s> ClientWatch<'s> {
    pub(super) const fn new(
        stream: Sender<'s>,
        is_body_whole: &'s AtomicBool,
        is_end_visible: bool,
    ) -> Self {
        Self { stream, is_body_whole, is_end_visible }
    }

    /// Returns the result of `respond`, unless it fails or the client disconnects.
    pub(super) async fn unless_disconnected<T, F>(
        mut self,
        mut respond: Pin<&mut impl Future<Output = Result<T, F>>>,
    ) -> WatchedResponse<T> {
        let seen = poll_fn(|context| match respond.as_mut().poll(context) {
            Poll::Ready(Ok(response)) => Poll::Ready(WatchPoll::Response(response)),
            Poll::Ready(Err(_)) => Poll::Ready(WatchPoll::Gone),
            Poll::Pending => self.poll_end(context),
        })
        .await;
        match seen {
            WatchPoll::Response(response) => WatchedResponse::Made(response, 0),
            WatchPoll::Gone => WatchedResponse::Gone,
            WatchPoll::End => Box::pin(self.unless_reset(respond)).await,
        }
    }

    fn poll_end<T>(&mut self, context: &mut Context<'_>) -> Poll<WatchPoll<T>> {
        if !self.is_end_visible || !self.is_body_whole.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        match self.stream.poll_input_end(context) {
            Poll::Ready(InputEnd::Hidden) => {
                self.is_end_visible = false;
                Poll::Pending
            }
            Poll::Ready(InputEnd::Reached) => Poll::Ready(WatchPoll::End),
            Poll::Ready(InputEnd::Gone) => Poll::Ready(WatchPoll::Gone),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Returns the result of `respond` for a client that has stopped sending, unless the client
    /// rejects the data sent to it.
    async fn unless_reset<T, F>(
        self,
        respond: Pin<&mut impl Future<Output = Result<T, F>>>,
    ) -> WatchedResponse<T> {
        let Ok(sent) = self.stream.try_write(&[IoSlice::new(FIRST_BYTE)]) else {
            return WatchedResponse::Gone;
        };
        let reset = pin!(self.stream.reset());
        tokio::select! {
            biased;
            response = respond => match response {
                Ok(response) => WatchedResponse::Made(response, sent),
                Err(_) => WatchedResponse::Gone,
            },
            () = reset => WatchedResponse::Gone,
        }
    }
}
