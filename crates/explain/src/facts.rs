//! The facts of one request.

use crate::waits::WaitTimes;

/// The maximum number of steps that are kept for a request. Steps are requests that it makes
/// itself: an ensemble's steps, or a model's calls to other models.
pub const STEPS_MAX: usize = 64;

/// A point that a request passes.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Milestone {
    /// Its whole message was received.
    Received,
    /// Its model received it in decoded form.
    Arrived,
    /// It was checked and entered its model's queue.
    Queued,
    /// Its batch was closed.
    Closed,
    /// A thread began to execute the batch.
    Started,
    /// The inputs of the batch were in place.
    InputsReady,
    /// The model finished computing.
    Computed,
    /// The outputs were collected.
    Ended,
    /// The model sent its first response.
    Answered,
    /// The response reached the door.
    Delivered,
    /// The thread that serves the connection took the response.
    TakenUp,
    /// The response was encoded.
    Encoded,
}

impl Milestone {
    const COUNT: usize = 12;

    const ALL: [Self; Self::COUNT] = [
        Self::Received,
        Self::Arrived,
        Self::Queued,
        Self::Closed,
        Self::Started,
        Self::InputsReady,
        Self::Computed,
        Self::Ended,
        Self::Answered,
        Self::Delivered,
        Self::TakenUp,
        Self::Encoded,
    ];

    const fn index(self) -> usize {
        self as usize
    }
}

/// A part of a request's path. It ends at a mark and begins at the previous one.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The message arrives.
    Receive,
    /// It becomes a request.
    Decode,
    /// The request is checked, tensors in shared memory are copied, and it is looked up in the
    /// response cache.
    Admit,
    /// It waits for its batch to close.
    Queue,
    /// The batch waits for the thread that executes it.
    HandOver,
    /// The inputs of the batch are gathered.
    Input,
    /// The model computes.
    Compute,
    /// The outputs are collected.
    Output,
    /// The whole execution, if the model reported no parts of it before it answered.
    Execute,
    /// The response goes from the model to the door.
    Respond,
    /// The response waits for the thread that serves the connection.
    Reply,
    /// The response is encoded.
    Encode,
}

impl Stage {
    /// The stage's name for programs, which does not change.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::Decode => "decode",
            Self::Admit => "admit",
            Self::Queue => "queue",
            Self::HandOver => "hand_over",
            Self::Input => "input",
            Self::Compute => "compute",
            Self::Output => "output",
            Self::Execute => "execute",
            Self::Respond => "respond",
            Self::Reply => "reply",
            Self::Encode => "encode",
        }
    }
}

/// The level of detail in which a request is explained.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum DetailLevel {
    /// Only its own stages, for callers who may not read statistics: nothing about other requests.
    #[default]
    Own,
    /// Also its batch, and the requests that it waited for.
    Schedule,
}

/// The state of a model's queue when a request entered it. Times are in nanoseconds.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSnapshot {
    /// The requests that were in front of it.
    pub requests_ahead: u64,
    /// The number of the model's instances.
    pub instances: u64,
    /// The number of busy instances.
    pub busy: u64,
    /// The age of the longest execution in progress.
    pub running_ns: u64,
    /// True if no instance was free, and one of them was executing for the first time since its
    /// load.
    pub behind_first: bool,
}

/// The batch in which a request was executed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BatchFacts {
    /// The number of requests in the batch.
    pub requests: u64,
    /// The number of rows, including padding.
    pub rows: u64,
    /// The number of rows that only keep other sequences in their slots.
    pub padding_rows: u64,
    /// The reason why the batch was closed.
    pub closed: &'static str,
    /// True if its instance executed for the first time since its load.
    pub is_first: bool,
}

/// The facts of one request. Times are nanoseconds since the explanation began.
#[derive(Clone, Debug, Default)]
pub struct RequestFacts {
    /// The name of its model; empty until a model receives it.
    pub model: String,
    /// The version that served it.
    pub version: i64,
    /// The time at which it began.
    pub begin: u64,
    /// The size of its inputs in bytes.
    pub input_bytes: u64,
    /// The size of its first response's outputs in bytes.
    pub output_bytes: u64,
    /// True if its response came from the response cache.
    pub is_cached: bool,
    /// True if its model was warmed up after loading.
    pub is_warm: bool,
    /// The state of the queue that it entered.
    pub queued: Option<QueueSnapshot>,
    /// Its times in the queue, by the reason for the wait.
    pub waits: WaitTimes,
    /// Its batch.
    pub batch: Option<BatchFacts>,
    /// The requests that it made itself.
    pub steps: Vec<RequestFacts>,
    /// The number of further steps that are left out.
    pub steps_omitted: u64,
    marks: [Option<u64>; Milestone::COUNT],
}

impl RequestFacts {
    /// The facts about a request that begins at this time.
    #[must_use]
    pub fn beginning(begin: u64) -> Self {
        Self { begin, ..Self::default() }
    }

    /// Records that the request passed a mark; only the first time counts.
    pub fn set_milestone(&mut self, mark: Milestone, at: u64) {
        if let Some(place) = self.marks.get_mut(mark.index()) {
            place.get_or_insert(at);
        }
    }

    /// The time at which it passed a mark.
    #[must_use]
    pub fn at(&self, mark: Milestone) -> Option<u64> {
        self.marks.get(mark.index()).copied().flatten()
    }

    /// Its duration so far: up to the last mark.
    #[must_use]
    pub fn total(&self) -> u64 {
        let last = self.marks.iter().flatten().max().copied();
        last.unwrap_or(self.begin).saturating_sub(self.begin)
    }

    /// Its stages in order, with their durations. Unfinished stages are left out.
    #[must_use]
    pub fn stages(&self) -> Vec<(Stage, u64)> {
        let mut passed: Vec<(u64, Milestone)> = Milestone::ALL
            .into_iter()
            .filter_map(|mark| Some((self.plausible(mark)?, mark)))
            .collect();
        // Doors may encode either before or after they change threads.
        passed.sort_unstable();
        let mut before = self.begin;
        let mut stages: Vec<(Stage, u64)> = Vec::with_capacity(passed.len());
        for (at, mark) in passed {
            let duration = at.saturating_sub(before);
            before = before.max(at);
            let stage = self.ended_by(mark);
            match stages.last_mut() {
                Some((last, sum)) if *last == stage => *sum = sum.saturating_add(duration),
                _ => stages.push((stage, duration)),
            }
        }
        stages
    }

    /// The time at which it passed a mark. Times that backends report of an execution are kept
    /// within it.
    fn plausible(&self, mark: Milestone) -> Option<u64> {
        let at = self.at(mark)?;
        match mark {
            Milestone::InputsReady | Milestone::Computed | Milestone::Ended => {
                let start = self.at(Milestone::Started).unwrap_or(at);
                let end = self
                    .at(Milestone::Answered)
                    .or(self.at(Milestone::Delivered))
                    .unwrap_or(u64::MAX);
                Some(at.min(end).max(start))
            }
            _ => Some(at),
        }
    }

    fn ended_by(&self, mark: Milestone) -> Stage {
        match mark {
            Milestone::Received => Stage::Receive,
            Milestone::Arrived => Stage::Decode,
            Milestone::Queued => Stage::Admit,
            Milestone::Closed => Stage::Queue,
            Milestone::Started => Stage::HandOver,
            // Parts of several executions overlap.
            Milestone::InputsReady | Milestone::Computed | Milestone::Ended
                if !self.steps.is_empty() =>
            {
                Stage::Execute
            }
            Milestone::InputsReady => Stage::Input,
            Milestone::Computed => Stage::Compute,
            Milestone::Ended => Stage::Output,
            Milestone::Answered | Milestone::Delivered => self.ended_by_answer(mark),
            Milestone::TakenUp => Stage::Reply,
            Milestone::Encoded => Stage::Encode,
        }
    }

    fn ended_by_answer(&self, mark: Milestone) -> Stage {
        let passed = |mark| self.at(mark).is_some();
        let was_executed =
            passed(Milestone::Ended) || mark == Milestone::Delivered && passed(Milestone::Answered);
        match mark {
            _ if passed(Milestone::Started) && was_executed => Stage::Respond,
            _ if passed(Milestone::Started) => Stage::Execute,
            _ if passed(Milestone::Closed) => Stage::HandOver,
            _ if passed(Milestone::Queued) => Stage::Queue,
            _ => Stage::Admit,
        }
    }
}
