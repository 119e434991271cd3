//! A lane's thread.
//!
//! **Gathered wake-ups.** A wake-up is a system call. A thread that is woken too early takes over a
//! shared core at once and finds only one thing to do. Wake-ups caused by a batch's responses are
//! therefore issued after the batch, once per receiver (see [`WakeBatch`]). While batches are
//! short, the wake-ups of several batches are gathered, for at most [`GATHERING_TIME_MAX`] of
//! execution. That requires an instance that guarantees never to wait: otherwise it might wait for
//! a thread whose wake-up is being held back.
//!
//! **I/O threads go first.** The thread yields before its next batch. On a shared core, the I/O
//! threads then send the responses and read the next requests, so the next batch is larger. On an
//! unshared core this costs next to nothing.

use std::sync::Arc;
use std::time::Duration;

use galatea_policy::InstanceId;
use galatea_stdx::sync::thread;
use galatea_stdx::{Inbox, Lock, WakeBatch};

use super::watch::LaneWatch;
use super::{
    ExecutionLane, LaneInstance, LaneLossReason, LaneOwner, LaneTask, execute, guarded, timed,
};
use crate::LogSink;
use crate::batch::ClosedBatch;
use crate::statistics::CountedGpu;

/// The maximum execution time during which wake-ups are gathered.
const GATHERING_TIME_MAX: Duration = Duration::from_micros(50);

/// The state of a lane's thread.
pub(super) struct Worker<O> {
    pub(super) id: InstanceId,
    pub(super) instance: Arc<Lock<LaneInstance>>,
    pub(super) inbox: Arc<Inbox<LaneTask>>,
    pub(super) owner: Arc<O>,
    pub(super) lost: LaneLossReason,
    pub(super) gpu: Option<CountedGpu>,
    /// The watch; `None` if nothing can terminate an execution.
    pub(super) watch: Option<Arc<LaneWatch>>,
    pub(super) name: String,
    pub(super) log: LogSink,
}

impl<O: LaneOwner> Worker<O> {
    /// Executes batches until the lane is stopped.
    pub(super) fn run(self) {
        let mut wake_ups = GatheredWakeUps::default();
        while let Some(first) = self.inbox.recv() {
            let mut next = Some(first);
            while let Some(task) = next {
                let took = match task {
                    LaneTask::Execute(batch) => self.execute(batch, &mut wake_ups),
                    LaneTask::Finish => self.finish(&mut wake_ups),
                };
                if wake_ups.is_due_after(took) {
                    wake_ups.issue();
                    thread::yield_now();
                }
                next = self.owner.lane_free(self.id).map(LaneTask::Execute);
            }
            wake_ups.flush();
        }
        // The instance is destroyed on the thread that executed it.
        let instance = self.instance.lock("destroy the instance").instance.take();
        drop(instance);
    }

    /// Finishes an execution that another thread began.
    fn finish(&self, wake_ups: &mut GatheredWakeUps) -> Duration {
        wake_ups.prepare(false);
        let mut instance = self.instance.lock("end an execution");
        let Some(resumable) = instance.instance.as_mut().and_then(|one| one.resumable()) else {
            return Duration::ZERO;
        };
        timed(|| guarded(&self.name, &self.log, || resumable.finish()))
    }

    fn execute(&self, batch: ClosedBatch, wake_ups: &mut GatheredWakeUps) -> Duration {
        let LaneInstance { instance, predictor } = &mut *self.instance.lock("execute a batch");
        let profile = predictor.profile(&batch);
        // Wake-ups must not wait for a batch that may be long, or that may itself wait for their
        // receiver.
        wake_ups.prepare(predictor.predicts_short_batch(profile));
        let Some(instance) = instance else { return Duration::ZERO };
        let watch = self.watch.as_deref().filter(|_| !predictor.is_surely_short(profile));
        let gpu = self.gpu.as_ref();
        let of = ExecutionLane { lost: &self.lost, gpu, watch, name: &self.name, log: &self.log };
        let took = timed(|| execute(instance.as_mut(), batch, &*self.owner, of));
        let elsewhere = instance.resumable().map(|resumable| resumable.took());
        predictor.observe(profile, elsewhere.unwrap_or(took));
        took
    }
}

/// The wake-ups of short batches, which are issued together.
#[derive(Default)]
struct GatheredWakeUps {
    /// The gathered wake-ups; `None` while wake-ups are not held back.
    batch: Option<WakeBatch>,
    /// The execution time since wake-ups were last issued.
    execution_time: Duration,
}

impl GatheredWakeUps {
    /// Holds wake-ups back during a short batch. Before any other batch, issues the gathered
    /// wake-ups.
    fn prepare(&mut self, is_short: bool) {
        if is_short {
            self.batch.get_or_insert_with(WakeBatch::begin);
        } else {
            self.batch = None;
        }
    }

    /// Returns true if the wake-ups must be issued after a batch with this duration.
    fn is_due_after(&mut self, took: Duration) -> bool {
        self.execution_time = self.execution_time.saturating_add(took);
        self.batch.is_none() || self.execution_time >= GATHERING_TIME_MAX
    }

    /// Issues the wake-ups, and restarts the measurement.
    fn issue(&mut self) {
        self.flush();
        self.execution_time = Duration::ZERO;
    }

    /// Issues the wake-ups because no batch follows.
    fn flush(&mut self) {
        self.batch = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_ups_are_gathered_for_a_limited_execution_time() {
        let mut wake_ups = GatheredWakeUps::default();
        wake_ups.prepare(true);
        assert!(!wake_ups.is_due_after(GATHERING_TIME_MAX - Duration::from_micros(1)));
        wake_ups.prepare(true);
        assert!(wake_ups.is_due_after(Duration::from_micros(1)));
        wake_ups.issue();
        wake_ups.prepare(true);
        assert!(!wake_ups.is_due_after(Duration::from_micros(1)));
    }

    #[test]
    fn wake_ups_do_not_wait_for_a_batch_that_may_be_long() {
        let mut wake_ups = GatheredWakeUps::default();
        wake_ups.prepare(true);
        assert!(!wake_ups.is_due_after(Duration::ZERO));
        wake_ups.prepare(false);
        assert!(wake_ups.batch.is_none());
        assert!(wake_ups.is_due_after(Duration::ZERO));
    }
}
