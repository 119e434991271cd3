//! Wake-ups of the receivers of a batch's responses.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::Instant;

use galatea_infer::{AdmissionTimes, PendingRequest, Reply, ResponseSender, ResponseSink};
use galatea_stdx::wake_batch;

use crate::batches::{CONFIG, graph, pair};
use crate::support::load;

/// Counts replies and records the count at each wake-up.
#[derive(Default)]
struct WakeRecorder {
    replies: AtomicUsize,
    replies_at_wake_up: Mutex<Vec<usize>>,
}

impl Wake for WakeRecorder {
    fn wake(self: Arc<Self>) {
        self.replies_at_wake_up.lock().unwrap().push(self.replies.load(Ordering::Relaxed));
    }
}

struct Sink(Arc<WakeRecorder>);

impl ResponseSink for Sink {
    fn deliver(&mut self, _: Reply) {
        self.0.replies.fetch_add(1, Ordering::Relaxed);
        wake_batch::defer_wake(Waker::from(self.0.clone()));
    }
}

#[test]
fn a_receiver_of_a_whole_batch_is_woken_once_at_its_end() {
    let mut loaded = load(graph(), CONFIG);
    let recorder = Arc::<WakeRecorder>::default();
    let times = AdmissionTimes { arrival: Instant::now(), queued: Instant::now() };
    let batch = (0..4)
        .map(|_| {
            let sender = ResponseSender::new(Box::new(Sink(recorder.clone())));
            PendingRequest::new(pair(&[1, 2], &[3, 4]), sender, 1, times, loaded.host.clone())
        })
        .collect();
    loaded.instance.execute(batch).map_err(|refused| refused.status).unwrap();
    assert_eq!(*recorder.replies_at_wake_up.lock().unwrap(), [4]);
}
