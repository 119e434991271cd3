//! Recorded traffic as a response body.
//!
//! Nothing is recorded unless a client reads: the recording belongs to its response. The recording
//! is read ten times a second, on a thread that may block. For a client that reads slowly, readings
//! pause, and the recording counts the requests that it has to drop.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use galatea_control::{TrafficRecording, TrafficRecordingControl};
use galatea_infer::{AccessPass, Status, api};
use tokio::task::JoinHandle;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// The time between two readings.
const PERIOD: Duration = Duration::from_millis(100);

/// Records traffic for clients. Clones refer to the same recorder.
#[derive(Clone)]
pub struct TrafficRecorder {
    server: Arc<dyn TrafficRecordingControl>,
    has_ended: Arc<AtomicBool>,
}

impl TrafficRecorder {
    /// Creates a recorder of this server's traffic.
    #[must_use]
    pub fn new(server: Arc<dyn TrafficRecordingControl>) -> Self {
        Self { server, has_ended: Arc::default() }
    }

    /// Ends all recordings permanently, because the server is stopping.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
    }

    pub(crate) fn begin(
        &self,
        pass: AccessPass<api::Trace>,
        model: &str,
        version: Option<i64>,
    ) -> Result<TrafficStream, Status> {
        if self.has_ended.load(Ordering::Acquire) {
            return Err(Status::unavailable("Server exiting"));
        }
        let recording = self.server.record_traffic(pass, model, version)?;
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let has_ended = self.has_ended.clone();
        Ok(TrafficStream { state: RecordingState::Waiting(recording), ticks, has_ended })
    }
}

impl fmt::Debug for TrafficRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TrafficRecorder")
    }
}

type TrafficReading = JoinHandle<(Box<dyn TrafficRecording>, Option<String>)>;

enum RecordingState {
    Waiting(Box<dyn TrafficRecording>),
    Reading(TrafficReading),
    Ended,
}

/// The lines of a recording, as they arrive.
pub(crate) struct TrafficStream {
    state: RecordingState,
    ticks: Interval,
    has_ended: Arc<AtomicBool>,
}

impl TrafficStream {
    /// Returns the next lines, or `None` after the last one.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            match std::mem::replace(&mut self.state, RecordingState::Ended) {
                RecordingState::Ended => return Poll::Ready(None),
                RecordingState::Waiting(recording) => {
                    if self.has_ended.load(Ordering::Acquire) {
                        return Poll::Ready(Some(end("the server stops")));
                    }
                    if self.ticks.poll_tick(context).is_pending() {
                        self.state = RecordingState::Waiting(recording);
                        return Poll::Pending;
                    }
                    self.state = RecordingState::Reading(tokio::task::spawn_blocking(move || {
                        let mut recording = recording;
                        let lines = recording.read();
                        (recording, lines)
                    }));
                }
                RecordingState::Reading(mut reading) => {
                    let read = Pin::new(&mut reading).poll(context);
                    if read.is_pending() {
                        self.state = RecordingState::Reading(reading);
                        return Poll::Pending;
                    }
                    // The reading panicked, or the runtime is ending.
                    let Ok((recording, lines)) = ready!(read) else { return Poll::Ready(None) };
                    let Some(lines) = lines else {
                        let reason = "the model was unloaded, or loaded anew";
                        return Poll::Ready(Some(end(reason)));
                    };
                    self.state = RecordingState::Waiting(recording);
                    if !lines.is_empty() {
                        return Poll::Ready(Some(lines.into()));
                    }
                }
            }
        }
    }
}

/// Creates the last line. The reasons contain no characters that JSON escapes.
fn end(reason: &str) -> Bytes {
    format!("{{\"end\":\"{reason}\"}}\n").into()
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;

    use galatea_stdx::testing::wait_in_task;

    use super::*;

    /// A server that counts readings and determines their contents.
    #[derive(Debug, Default)]
    struct FakeServer {
        open: Arc<AtomicUsize>,
        lines: usize,
    }

    struct FakeRecording {
        open: Arc<AtomicUsize>,
        left: usize,
    }

    impl TrafficRecordingControl for FakeServer {
        fn record_traffic(
            &self,
            _: AccessPass<api::Trace>,
            model: &str,
            _: Option<i64>,
        ) -> Result<Box<dyn TrafficRecording>, Status> {
            if model != "m" {
                return Err(Status::not_found("no such model"));
            }
            self.open.fetch_add(1, Ordering::SeqCst);
            Ok(Box::new(FakeRecording { open: self.open.clone(), left: self.lines }))
        }
    }

    impl TrafficRecording for FakeRecording {
        fn read(&mut self) -> Option<String> {
            self.left = self.left.checked_sub(1)?;
            Some(if self.left.is_multiple_of(2) { String::from("line\n") } else { String::new() })
        }
    }

    impl Drop for FakeRecording {
        fn drop(&mut self) {
            self.open.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn recorder(lines: usize) -> (TrafficRecorder, Arc<AtomicUsize>) {
        let server = FakeServer { lines, ..FakeServer::default() };
        let open = server.open.clone();
        (TrafficRecorder::new(Arc::new(server)), open)
    }

    async fn next(stream: &mut TrafficStream) -> Option<String> {
        let bytes = poll_fn(|context| stream.poll_next(context)).await?;
        Some(String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn lines_come_until_the_version_is_gone() {
        let (recorder, open) = recorder(3);
        let mut stream = recorder.begin(AccessPass::in_process(), "m", None).unwrap();
        let mut seen = Vec::new();
        while let Some(line) = next(&mut stream).await {
            seen.push(line);
        }
        let end = "{\"end\":\"the model was unloaded, or loaded anew\"}\n";
        assert_eq!(seen, ["line\n", "line\n", end]);
        assert_eq!(open.load(Ordering::SeqCst), 0);
        assert!(recorder.begin(AccessPass::in_process(), "x", None).is_err());
    }

    #[tokio::test]
    async fn a_recording_ends_with_its_client_and_with_the_server() {
        let (recorder, open) = recorder(1000);
        let mut stream = recorder.begin(AccessPass::in_process(), "m", None).unwrap();
        next(&mut stream).await;
        assert_eq!(open.load(Ordering::SeqCst), 1);
        drop(stream);
        wait_in_task("the recording has ended", || open.load(Ordering::SeqCst) == 0).await;
        let mut stream = recorder.begin(AccessPass::in_process(), "m", None).unwrap();
        recorder.end();
        let mut last = None;
        while let Some(line) = next(&mut stream).await {
            last = Some(line);
        }
        assert_eq!(last.as_deref(), Some("{\"end\":\"the server stops\"}\n"));
        let refused = recorder.begin(AccessPass::in_process(), "m", None);
        assert_eq!(refused.err().unwrap().message(), "Server exiting");
    }
}
