//! Notices a client that disconnects before it has its response.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::ReadBuf;
use tokio::net::TcpStream;

/// Watches a connection while its response is made.
pub(super) struct ClientWatch<'s> {
    stream: &'s TcpStream,
    /// Whether the whole body was received. Until then, reading it notices the end.
    is_body_whole: &'s AtomicBool,
    /// Whether the end of the connection is visible: behind further requests it isn't.
    is_end_visible: bool,
}

impl<'s> ClientWatch<'s> {
    pub(super) const fn new(
        stream: &'s TcpStream,
        is_body_whole: &'s AtomicBool,
        is_end_visible: bool,
    ) -> Self {
        Self { stream, is_body_whole, is_end_visible }
    }

    /// What `respond` returns; `None` if it fails or the client disconnects.
    pub(super) async fn unless_disconnected<T, F>(
        mut self,
        mut respond: Pin<&mut impl Future<Output = Result<T, F>>>,
    ) -> Option<T> {
        poll_fn(move |context| match respond.as_mut().poll(context) {
            Poll::Ready(response) => Poll::Ready(response.ok()),
            Poll::Pending => self.poll_disconnected(context).map(|()| None),
        })
        .await
    }

    fn poll_disconnected(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.is_end_visible || !self.is_body_whole.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        let mut byte = [0];
        match self.stream.poll_peek(context, &mut ReadBuf::new(&mut byte)) {
            Poll::Ready(Ok(1..)) => {
                self.is_end_visible = false;
                Poll::Pending
            }
            Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        }
    }
}
