//! When those who wait for a batch's answers are woken.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::Instant;

use galatea_infer::{PendingRequest, Reply, RequestTimes, ResponseSender, ResponseSink};
use galatea_stdx::wake_batch;

use crate::batches::{CONFIG, graph, pair};
use crate::support::load;

/// Counts answers, and notes how many there are whenever it is woken.
#[derive(Default)]
struct Waiting {
    answers: AtomicUsize,
    seen: Mutex<Vec<usize>>,
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.seen.lock().unwrap().push(self.answers.load(Ordering::Relaxed));
    }
}

struct Sink(Arc<Waiting>);

impl ResponseSink for Sink {
    fn deliver(&mut self, _: Reply) {
        self.0.answers.fetch_add(1, Ordering::Relaxed);
        wake_batch::defer(Waker::from(self.0.clone()));
    }
}

#[test]
fn one_who_waits_for_the_whole_batch_is_woken_once_at_its_end() {
    let mut loaded = load(graph(), CONFIG);
    let waiting = Arc::<Waiting>::default();
    let times = RequestTimes { arrival: Instant::now(), queued: Instant::now() };
    let batch = (0..4)
        .map(|_| {
            let sender = ResponseSender::new(Box::new(Sink(waiting.clone())));
            PendingRequest::new(pair(&[1, 2], &[3, 4]), sender, 1, times, loaded.books.clone())
        })
        .collect();
    loaded.instance.execute(batch).map_err(|refused| refused.status).unwrap();
    assert_eq!(*waiting.seen.lock().unwrap(), [4]);
}
