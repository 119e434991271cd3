//! The watchers, and the task that reads on behalf of all of them.
//!
//! The first watcher starts the task, and the task ends when it finds that there are no watchers.
//! The task owns the recording, so nothing is recorded without watchers. Readings run on a thread
//! that may block. A watcher that reads slowly loses events and delays nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use galatea_control::{ActivityMonitor, ActivityRecording, GenerationReading};
use galatea_devices::Devices;
use galatea_gate::ledger::{MemoryAccount, MemoryLedger};
use galatea_infer::{AccessPass, Status, api};
use galatea_stdx::Lock;

use crate::history::History;
use crate::slot::WatcherSlot;
use crate::{frame, gpus};

/// The maximum number of clients that watch the server at a time. Each is an open dashboard page
/// that a person looks at, so even tens are many.
pub const WATCHERS_MAX: usize = 16;

/// The time between two readings, which is short enough for the page to seem live.
pub(crate) const PERIOD: Duration = Duration::from_millis(500);

/// Reads the speed of each model that has generated text.
pub type GenerationSource = Arc<dyn Fn() -> Vec<GenerationReading> + Send + Sync>;

/// The watchers of a server.
pub(crate) struct Watchers {
    server: Arc<dyn ActivityMonitor>,
    ledger: Arc<MemoryLedger>,
    devices: Devices,
    generation: GenerationSource,
    history: Lock<History>,
    state: Lock<WatchersState>,
}

#[derive(Default)]
struct WatchersState {
    slots: BTreeMap<u64, WatcherSlot>,
    next_number: u64,
    /// True if a task is reading for the watchers.
    is_read: bool,
    /// Set once, when the server stops.
    has_ended: bool,
}

impl Watchers {
    pub(crate) fn new(
        server: Arc<dyn ActivityMonitor>,
        ledger: Arc<MemoryLedger>,
        devices: Devices,
        generation: GenerationSource,
    ) -> Self {
        let (history, state) = (Lock::default(), Lock::default());
        Self { server, ledger, devices, generation, history, state }
    }

    /// Adds the server's activity since the last sample to the history and notifies the watchers.
    pub(crate) fn sample(&self) {
        let statistics = self.server.counters();
        let held = self.ledger.held();
        let from = self.history.lock("look for the next change").next_change();
        let residency = self.server.residency(from);
        // A watcher that is admitted in the meantime receives this sample exactly once, either with
        // the history or separately.
        let mut history = self.history.lock("take a sample");
        history.add(&statistics, held, residency);
        self.publish(&frame::latest_history(&history));
    }

    /// Adds a watcher and starts the task if this is the first watcher.
    pub(crate) fn admit(
        self: &Arc<Self>,
        pass: AccessPass<api::Statistics>,
        account: &Arc<MemoryAccount>,
    ) -> Result<Watcher, Status> {
        let history = self.history.lock("tell the history");
        let mut state = self.state.lock("add a watcher");
        if state.has_ended {
            return Err(Status::unavailable("Server exiting"));
        }
        if state.slots.len() >= WATCHERS_MAX {
            let max = WATCHERS_MAX;
            let text = format!("the dashboard has {max} watchers, which is the maximum");
            return Err(Status::unavailable(text));
        }
        let number = state.next_number;
        state.next_number = number.wrapping_add(1);
        let mut slot = WatcherSlot::new(account.clone());
        slot.add(&frame::hello(self.server.allows_model_control(), PERIOD));
        slot.add(&frame::history(&history));
        state.slots.insert(number, slot);
        let is_first = !std::mem::replace(&mut state.is_read, true);
        drop((state, history));
        let watcher = Watcher { watchers: self.clone(), number };
        if is_first {
            drop(tokio::spawn(self.clone().run(pass)));
        }
        Ok(watcher)
    }

    pub(crate) fn poll(&self, number: u64, context: &Context<'_>) -> Poll<Option<Bytes>> {
        let mut state = self.state.lock("look for an event");
        match state.slots.get_mut(&number) {
            Some(slot) => slot.poll(context).map(Some),
            None => Poll::Ready(None),
        }
    }

    /// Removes a watcher that has left.
    pub(crate) fn remove_watcher(&self, number: u64) {
        let slot = self.state.lock("remove a watcher").slots.remove(&number);
        drop(slot);
    }

    /// Ends all streams permanently.
    pub(crate) fn end_streams(&self) {
        self.state.lock("end the streams").has_ended = true;
        self.dismiss();
    }

    /// Ends all streams. Their clients may connect again.
    fn dismiss(&self) {
        let mut slots = std::mem::take(&mut self.state.lock("end the streams").slots);
        wake(slots.values_mut().filter_map(WatcherSlot::take_reader).collect());
    }

    /// Reads for the watchers until there are none.
    async fn run(self: Arc<Self>, pass: AccessPass<api::Statistics>) {
        while !self.try_stop() {
            // There is no other recording, because the task that owned one has dropped it.
            match self.server.begin(pass) {
                Some(recording) => self.record(recording).await,
                None => self.dismiss(),
            }
        }
    }

    /// Reads a recording until there are no watchers.
    async fn record(self: &Arc<Self>, mut recording: Box<dyn ActivityRecording>) {
        while self.is_watched() {
            let this = self.clone();
            let reading = tokio::task::spawn_blocking(move || {
                let gpus = gpus::rows(&this.devices);
                let generation = (this.generation)();
                let event = frame::encode(&recording.read(), &this.ledger, &gpus, &generation);
                (recording, event)
            });
            // The reading panicked, or the runtime is ending.
            let Ok((same, event)) = reading.await else { return self.dismiss() };
            recording = same;
            self.publish(&event);
            tokio::time::sleep(PERIOD).await;
        }
    }

    fn is_watched(&self) -> bool {
        !self.state.lock("look for watchers").slots.is_empty()
    }

    /// Returns true if the task may end because there are no watchers. The next watcher starts
    /// another task.
    fn try_stop(&self) -> bool {
        let mut state = self.state.lock("end without watchers");
        state.is_read = !state.slots.is_empty();
        !state.is_read
    }

    fn publish(&self, event: &Bytes) {
        let mut state = self.state.lock("publish an event");
        let readers = state.slots.values_mut().filter_map(|slot| slot.add(event)).collect();
        drop(state);
        wake(readers);
    }
}

/// A client that is watching. Dropping this value removes the client.
pub struct Watcher {
    watchers: Arc<Watchers>,
    number: u64,
}

impl Watcher {
    /// Polls for the next event. Returns `None` when the server stops.
    pub fn poll_next(&mut self, context: &Context<'_>) -> Poll<Option<Bytes>> {
        self.watchers.poll(self.number, context)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.watchers.remove_watcher(self.number);
    }
}

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watcher({})", self.number)
    }
}

fn wake(readers: Vec<Waker>) {
    readers.into_iter().for_each(Waker::wake);
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use galatea_control::{ActivityReading, ModelStatistics};

    use super::*;
    use crate::slot::WATCHER_EVENTS_MAX;

    /// Counts the readings and the ongoing recordings.
    #[derive(Clone, Debug, Default)]
    struct FakeWatch {
        recordings: Arc<AtomicUsize>,
        readings: Arc<AtomicUsize>,
        samples: Arc<AtomicUsize>,
        breaks: bool,
    }

    struct FakeRecording(FakeWatch);

    impl ActivityMonitor for FakeWatch {
        fn begin(&self, _: AccessPass<api::Statistics>) -> Option<Box<dyn ActivityRecording>> {
            assert_eq!(self.recordings.fetch_add(1, Ordering::SeqCst), 0);
            Some(Box::new(FakeRecording(self.clone())))
        }

        fn counters(&self) -> Vec<ModelStatistics> {
            self.samples.fetch_add(1, Ordering::SeqCst);
            Vec::new()
        }

        fn allows_model_control(&self) -> bool {
            true
        }
    }

    impl ActivityRecording for FakeRecording {
        fn read(&mut self) -> ActivityReading {
            assert!(!self.0.breaks, "on purpose");
            self.0.readings.fetch_add(1, Ordering::SeqCst);
            ActivityReading::default()
        }
    }

    impl Drop for FakeRecording {
        fn drop(&mut self) {
            self.0.recordings.fetch_sub(1, Ordering::SeqCst);
        }
    }

    struct Watched {
        server: FakeWatch,
        watchers: Arc<Watchers>,
        account: Arc<MemoryAccount>,
    }

    impl Watched {
        fn new(server: FakeWatch) -> Self {
            let watch = Arc::new(server.clone());
            let no_generation = Arc::new(Vec::new);
            let watchers = Watchers::new(watch, Arc::default(), Devices::default(), no_generation);
            let watchers = Arc::new(watchers);
            Self { server, watchers, account: Arc::new(MemoryAccount::unlimited()) }
        }

        fn watch(&self) -> Result<Watcher, Status> {
            self.watchers.admit(AccessPass::in_process(), &self.account)
        }

        fn recordings(&self) -> usize {
            self.server.recordings.load(Ordering::SeqCst)
        }

        /// Waits until nothing is recorded.
        async fn idle(&self) {
            while self.recordings() > 0 || self.watchers.state.lock("test").is_read {
                // sleep: the clock is paused
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    async fn next(watcher: &mut Watcher) -> Option<String> {
        let bytes = poll_fn(|context| watcher.poll_next(context)).await?;
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        assert!(text.starts_with("event: ") && text.ends_with("\n\n"), "{text}");
        text.strip_prefix("event: ").and_then(|rest| rest.lines().next()).map(String::from)
    }

    #[tokio::test(start_paused = true)]
    async fn recording_begins_with_the_first_watcher_and_ends_with_the_last() {
        let watched = Watched::new(FakeWatch::default());
        for _ in 0..2 {
            let (mut first, mut second) = (watched.watch().unwrap(), watched.watch().unwrap());
            for watcher in [&mut first, &mut second] {
                assert_eq!(next(watcher).await.as_deref(), Some("hello"));
                assert_eq!(next(watcher).await.as_deref(), Some("history"));
                assert_eq!(next(watcher).await.as_deref(), Some("frame"));
            }
            assert_eq!(watched.recordings(), 1);
            drop(first);
            assert_eq!(next(&mut second).await.as_deref(), Some("frame"));
            drop(second);
            watched.idle().await;
        }
        let read = watched.server.readings.load(Ordering::SeqCst);
        // sleep: the clock is paused
        tokio::time::sleep(PERIOD * 9).await;
        assert_eq!(watched.server.readings.load(Ordering::SeqCst), read);
        assert_eq!(watched.account.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_watcher_loses_the_oldest_events_and_is_told() {
        let watched = Watched::new(FakeWatch::default());
        let (mut slow, mut quick) = (watched.watch().unwrap(), watched.watch().unwrap());
        // The greeting, the history and six frames are added, and four of these events wait.
        for _ in 0..8 {
            next(&mut quick).await;
        }
        let mut seen = Vec::new();
        for _ in 0..=WATCHER_EVENTS_MAX {
            seen.extend(next(&mut slow).await);
        }
        assert_eq!(seen, ["lost", "frame", "frame", "frame", "frame"]);
    }

    #[tokio::test(start_paused = true)]
    async fn samples_are_told_to_watchers_and_taken_without_them() {
        let watched = Watched::new(FakeWatch::default());
        watched.watchers.sample();
        let mut watcher = watched.watch().unwrap();
        assert_eq!(next(&mut watcher).await.as_deref(), Some("hello"));
        let history = poll_fn(|context| watcher.poll_next(context)).await.unwrap();
        assert!(history.starts_with(b"event: history\n") && history.ends_with(b"\n\n"));
        let text = String::from_utf8(history.to_vec()).unwrap();
        assert!(text.contains(r#""memory":[0],"#), "{text}");
        watched.watchers.sample();
        assert_eq!(next(&mut watcher).await.as_deref(), Some("sample"));
        assert_eq!(watched.server.samples.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn there_is_a_maximum_of_watchers() {
        let watched = Watched::new(FakeWatch::default());
        let mut all: Vec<Watcher> = (0..WATCHERS_MAX).map(|_| watched.watch().unwrap()).collect();
        let refused = watched.watch().unwrap_err();
        assert_eq!(refused.message(), "the dashboard has 16 watchers, which is the maximum");
        all.pop();
        assert!(watched.watch().is_ok());
    }

    #[tokio::test]
    async fn streams_end_when_the_server_stops() {
        let watched = Watched::new(FakeWatch::default());
        let mut watcher = watched.watch().unwrap();
        next(&mut watcher).await;
        watched.watchers.end_streams();
        assert_eq!(next(&mut watcher).await, None);
        assert_eq!(watched.watch().unwrap_err().message(), "Server exiting");
        watched.idle().await;
    }

    #[tokio::test]
    async fn a_reading_that_panics_ends_the_streams_of_that_moment() {
        let watched = Watched::new(FakeWatch { breaks: true, ..FakeWatch::default() });
        for _ in 0..2 {
            let mut watcher = watched.watch().unwrap();
            while next(&mut watcher).await.is_some() {}
            watched.idle().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn events_without_memory_are_lost() {
        let ledger = Arc::new(MemoryLedger::new(Some(MemoryAccount::BASE_BYTES + (64 << 10))));
        let watched = Watched {
            account: Arc::new(MemoryAccount::of_connection(ledger)),
            ..Watched::new(FakeWatch::default())
        };
        let filler = Bytes::from(vec![b'x'; 1 << 20]);
        let mut watcher = watched.watch().unwrap();
        watched.watchers.publish(&filler);
        assert_eq!(next(&mut watcher).await.as_deref(), Some("lost"));
        assert_eq!(next(&mut watcher).await.as_deref(), Some("hello"));
    }
}
