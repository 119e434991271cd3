//! How whoever sends responses learns that they pile up.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::CancelToken;

/// What is done once there is room.
pub type ResumeHook = Box<dyn FnOnce() + Send>;

/// A place on the way of responses where they may pile up: before a slow model
/// of an ensemble, or before a client that reads slowly.
///
/// Both methods are called on whichever thread sends, so neither may block.
pub trait CongestionPoint: Send + Sync {
    /// Whether whoever sends should pause.
    fn is_congested(&self) -> bool;

    /// Keeps `hook` and runs it once when there is room, on whichever thread
    /// makes it. If there is room already, it gives the hook back.
    ///
    /// Whoever is full and ends makes room.
    fn when_free(&self, hook: ResumeHook) -> Option<ResumeHook>;
}

/// What a request's responses may have to wait for: asked by backends that send
/// many.
///
/// Nothing is lost if nobody asks; it only takes memory. The default never asks
/// for a pause and costs no allocation.
#[derive(Clone, Default)]
pub struct Throttle {
    places: Vec<Arc<dyn CongestionPoint>>,
}

/// How often a thread that waits for room looks whether anybody still wants its
/// responses.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How long a thread waits for room at most. As in the original, sending goes on
/// then: models that wait for each other in a circle get out of it.
const WAIT_MAX: Duration = Duration::from_secs(300);

impl Throttle {
    /// The same, with one more place where responses may pile up.
    #[must_use]
    pub fn with(mut self, place: Arc<dyn CongestionPoint>) -> Self {
        self.places.push(place);
        self
    }

    /// Whether whoever sends should pause.
    #[must_use]
    pub fn is_congested(&self) -> bool {
        self.places.iter().any(|place| place.is_congested())
    }

    /// Runs `go_on` once there is room, or at once if there is: for backends that
    /// have other things to do meanwhile.
    pub fn when_free(self, go_on: impl FnOnce() + Send + 'static) {
        let Some(place) = self.places.iter().find(|place| place.is_congested()).cloned() else {
            return go_on();
        };
        // When it has room, another may be full.
        let again: ResumeHook = Box::new(move || self.when_free(go_on));
        if let Some(hook) = place.when_free(again) {
            hook();
        }
    }

    /// Blocks until there is room, the request is cancelled, or for so long that
    /// waiting makes no sense: for backends with a thread of their own, before
    /// they make the next response.
    pub fn wait(&self, cancel: &CancelToken) {
        if !self.is_congested() {
            return;
        }
        let (room, arrival) = channel();
        self.clone().when_free(move || {
            // Whoever gave up waiting is not there any more.
            let _ = room.send(());
        });
        let deadline = Instant::now() + WAIT_MAX;
        while !cancel.is_cancelled() && Instant::now() < deadline {
            match arrival.recv_timeout(LOOK_EVERY) {
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl fmt::Debug for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Throttle({} places, congested: {})", self.places.len(), self.is_congested())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::Receiver;

    use super::*;

    /// A place that the test fills and empties.
    #[derive(Default)]
    struct Place(Mutex<(bool, Vec<ResumeHook>)>);

    impl CongestionPoint for Place {
        fn is_congested(&self) -> bool {
            self.0.lock().unwrap().0
        }

        fn when_free(&self, hook: ResumeHook) -> Option<ResumeHook> {
            let mut place = self.0.lock().unwrap();
            if !place.0 {
                return Some(hook);
            }
            place.1.push(hook);
            None
        }
    }

    impl Place {
        fn fill(&self) {
            self.0.lock().unwrap().0 = true;
        }

        fn empty(&self) {
            let hooks = {
                let mut place = self.0.lock().unwrap();
                place.0 = false;
                std::mem::take(&mut place.1)
            };
            hooks.into_iter().for_each(|hook| hook());
        }
    }

    fn places() -> (Throttle, [Arc<Place>; 2]) {
        let places: [Arc<Place>; 2] = Default::default();
        let throttle = Throttle::default().with(places[0].clone()).with(places[1].clone());
        (throttle, places)
    }

    fn notice(throttle: &Throttle) -> Receiver<()> {
        let (told, notice) = channel();
        throttle.clone().when_free(move || told.send(()).unwrap());
        notice
    }

    #[test]
    fn going_on_waits_until_every_place_has_room() {
        let (throttle, [first, second]) = places();
        assert!(!throttle.is_congested());
        notice(&throttle).try_recv().unwrap();
        first.fill();
        second.fill();
        assert!(throttle.is_congested());
        let notice = notice(&throttle);
        first.empty();
        assert!(notice.try_recv().is_err(), "the second is full");
        first.fill();
        second.empty();
        assert!(notice.try_recv().is_err(), "the first is full again");
        first.empty();
        notice.try_recv().unwrap();
        assert!(notice.try_recv().is_err(), "once is enough");
    }

    #[test]
    fn a_thread_waits_for_room_or_the_end_of_interest() {
        let (throttle, [place, _]) = places();
        throttle.wait(&CancelToken::new());
        place.fill();
        let waiting = throttle.clone();
        let thread = std::thread::spawn(move || waiting.wait(&CancelToken::new()));
        while place.0.lock().unwrap().1.is_empty() {
            std::thread::yield_now();
        }
        assert!(!thread.is_finished());
        place.empty();
        thread.join().unwrap();
        place.fill();
        let cancelled = CancelToken::new();
        cancelled.cancel();
        throttle.wait(&cancelled);
    }
}
