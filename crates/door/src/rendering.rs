//! Documents that take long to render, such as metrics and statistics.
//!
//! Rendering on an I/O thread would delay all of that thread's connections. Instead, all documents
//! of a [`CoalescingRenderer`] share another thread, however many clients ask. Clients that request the same
//! document while the thread is busy share one rendering.
//!
//! A document is never older than the request for it: a client never receives a rendering that
//! began before its request. A client that infers and then reads statistics therefore sees its own
//! inference.

use std::collections::VecDeque;
use std::sync::Arc;

use galatea_stdx::Lock;
use tokio::sync::oneshot;

use crate::panic::catch_panic;

/// Renders documents identified by `K` on a dedicated thread.
pub struct CoalescingRenderer<K, T> {
    shared: Arc<SharedRendering<K, T>>,
}

struct SharedRendering<K, T> {
    render: Box<dyn Fn(&K) -> T + Send + Sync>,
    queue: Lock<RenderQueue<K, T>>,
}

/// The documents to be rendered, limited by the number of waiting requests.
struct RenderQueue<K, T> {
    documents: VecDeque<RequestedDocument<K, T>>,
    /// True if a thread is processing the queue.
    is_active: bool,
}

/// A document, along with the clients that wait for it.
struct RequestedDocument<K, T> {
    key: K,
    waiters: Vec<oneshot::Sender<T>>,
}

impl<K, T> CoalescingRenderer<K, T>
where
    K: PartialEq + Send + 'static,
    T: Clone + Send + 'static,
{
    /// Creates a renderer that renders documents with `render`.
    pub fn new(render: impl Fn(&K) -> T + Send + Sync + 'static) -> Self {
        let queue = Lock::new(RenderQueue { documents: VecDeque::new(), is_active: false });
        Self { shared: Arc::new(SharedRendering { render: Box::new(render), queue }) }
    }

    /// Renders a document that is no older than this call. Returns `None` if rendering panics.
    pub async fn render(&self, key: K) -> Option<T> {
        let (waiter, document) = oneshot::channel();
        if self.shared.push(key, waiter) {
            let shared = self.shared.clone();
            drop(tokio::task::spawn_blocking(move || shared.work()));
        }
        document.await.ok()
    }
}

impl<K: PartialEq, T: Clone> SharedRendering<K, T> {
    /// Adds a waiting client. Returns true if a thread must be started.
    fn push(&self, key: K, waiter: oneshot::Sender<T>) -> bool {
        let mut queue = self.queue.lock("want a document");
        match queue.documents.iter_mut().find(|wanted| wanted.key == key) {
            Some(wanted) => wanted.waiters.push(waiter),
            None => queue.documents.push_back(RequestedDocument { key, waiters: vec![waiter] }),
        }
        !std::mem::replace(&mut queue.is_active, true)
    }

    /// Renders until no more documents are requested.
    fn work(&self) {
        while let Some(RequestedDocument { key, mut waiters }) = self.next() {
            waiters.retain(|waiter| !waiter.is_closed());
            if waiters.is_empty() {
                continue;
            }
            // Dropping the waiters reports to the clients that there is no document.
            let Ok(document) = catch_panic(|| (self.render)(&key)) else { continue };
            for waiter in waiters {
                // The receiver is dropped together with its client.
                let _ = waiter.send(document.clone());
            }
        }
    }

    fn next(&self) -> Option<RequestedDocument<K, T>> {
        let mut queue = self.queue.lock("take a wanted document");
        let next = queue.documents.pop_front();
        queue.is_active = next.is_some();
        next
    }
}

impl<K, T> std::fmt::Debug for CoalescingRenderer<K, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Renderer")
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;
    use std::task::{Context, Waker};

    use super::*;

    /// A renderer of ascending numbers, each released by the test. The receiver signals that a
    /// rendering has begun.
    struct Counter {
        renderer: CoalescingRenderer<&'static str, u32>,
        begun: mpsc::Receiver<()>,
        go: mpsc::Sender<()>,
    }

    fn counter() -> Counter {
        let ((begin, begun), (go, going)) = (mpsc::channel(), mpsc::channel());
        let (begin, going) = (Lock::new(begin), Lock::new(going));
        let count = AtomicU32::new(0);
        let renderer = CoalescingRenderer::new(move |key: &&str| {
            begin.lock("test").send(()).unwrap();
            going.lock("test").recv().unwrap();
            assert_ne!(*key, "panic");
            count.fetch_add(1, Ordering::SeqCst)
        });
        Counter { renderer, begun, go }
    }

    #[tokio::test]
    async fn clients_that_wait_share_one_rendering_and_no_earlier_one() {
        let Counter { renderer, begun, go } = counter();
        let context = &mut Context::from_waker(Waker::noop());
        let mut first = pin!(renderer.render("a"));
        assert!(first.as_mut().poll(context).is_pending());
        begun.recv().unwrap();
        // The first rendering has begun, so it is too old for these requests.
        let mut others: Vec<_> = (0..9).map(|_| Box::pin(renderer.render("a"))).collect();
        for other in &mut others {
            assert!(other.as_mut().poll(context).is_pending());
        }
        go.send(()).unwrap();
        go.send(()).unwrap();
        assert_eq!(first.await, Some(0));
        for other in others {
            assert_eq!(other.await, Some(1));
        }
    }

    #[tokio::test]
    async fn documents_without_waiting_clients_are_not_rendered() {
        let Counter { renderer, begun, go } = counter();
        let context = &mut Context::from_waker(Waker::noop());
        let mut first = pin!(renderer.render("a"));
        assert!(first.as_mut().poll(context).is_pending());
        begun.recv().unwrap();
        {
            let mut gone = pin!(renderer.render("b"));
            assert!(gone.as_mut().poll(context).is_pending());
        }
        let mut last = pin!(renderer.render("c"));
        assert!(last.as_mut().poll(context).is_pending());
        go.send(()).unwrap();
        go.send(()).unwrap();
        assert_eq!((first.await, last.await), (Some(0), Some(1)));
    }

    #[tokio::test]
    async fn a_panic_concerns_one_document() {
        let Counter { renderer, begun: _begun, go } = counter();
        go.send(()).unwrap();
        go.send(()).unwrap();
        assert_eq!(renderer.render("panic").await, None);
        assert_eq!(renderer.render("a").await, Some(0));
    }
}
