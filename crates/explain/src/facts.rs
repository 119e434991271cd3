//! The facts about one request.

use crate::waits::WaitTimes;

/// The maximum number of steps recorded per request. Steps are requests that the request itself
/// makes: an ensemble's steps, or a model's calls to other models.
pub const STEPS_MAX: usize = 64;

/// A milestone on a request's path.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Milestone {
    /// The server received its whole message.
    Received,
    /// Its model received the decoded request.
    Arrived,
    /// It passed the checks and entered its model's queue.
    Queued,
    /// Its batch closed.
    Closed,
    /// A thread began executing the batch.
    Started,
    /// The batch's inputs were in place.
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

/// A stage of a request's path. It ends at one milestone and begins at the previous one.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestStage {
    /// The message arrives.
    Receive,
    /// The message is decoded into a request.
    Decode,
    /// The request is validated, its shared-memory tensors are copied, and the response cache is
    /// checked.
    Admit,
    /// The request waits for its batch to close.
    Queue,
    /// The batch waits for the thread that will execute it.
    HandOver,
    /// The batch's inputs are gathered.
    Input,
    /// The model computes.
    Compute,
    /// The outputs are collected.
    Output,
    /// The whole execution, if the model reported none of its parts before answering.
    Execute,
    /// The response travels from the model to the door.
    Respond,
    /// The response waits for the thread that serves the connection.
    Reply,
    /// The response is encoded.
    Encode,
}

impl RequestStage {
    /// A stable, machine-readable name.
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

/// The level of detail of an explanation.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum DetailLevel {
    /// Only the request's own stages and nothing about other requests, for callers not allowed to
    /// read statistics.
    #[default]
    Own,
    /// Also the request's batch, and the requests that it waited for.
    Schedule,
}

/// The state of a model's queue when a request enters it. Times are in nanoseconds.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSnapshot {
    /// The number of requests ahead of this one.
    pub requests_ahead: u64,
    /// The number of the model's instances.
    pub instances: u64,
    /// The number of busy instances.
    pub busy: u64,
    /// The elapsed time of the longest-running execution.
    pub running_ns: u64,
    /// True if no instance was free, and at least one was on its first execution since loading.
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
    /// The reason why the batch closed.
    pub closed: &'static str,
    /// True if this was the instance's first execution since loading.
    pub is_first: bool,
}

/// The facts about one request. Times are in nanoseconds since the explanation began.
#[derive(Clone, Debug, Default)]
pub struct RequestFacts {
    /// The name of its model; empty until a model receives it.
    pub model: String,
    /// The model version that served it.
    pub version: i64,
    /// The time at which it began.
    pub begin: u64,
    /// The size of its inputs in bytes.
    pub input_bytes: u64,
    /// The size in bytes of the outputs of its first response.
    pub output_bytes: u64,
    /// True if its response came from the response cache.
    pub is_cached: bool,
    /// True if its model was warmed up after loading.
    pub is_warm: bool,
    /// The state of the queue when the request entered it.
    pub queued: Option<QueueSnapshot>,
    /// Its queue wait times, by reason.
    pub waits: WaitTimes,
    /// Its batch.
    pub batch: Option<BatchFacts>,
    /// The requests that this request made.
    pub steps: Vec<RequestFacts>,
    /// The number of steps left out.
    pub steps_omitted: u64,
    marks: [Option<u64>; Milestone::COUNT],
}

impl RequestFacts {
    /// The facts about a request that begins at `begin`.
    #[must_use]
    pub fn starting_at(begin: u64) -> Self {
        Self { begin, ..Self::default() }
    }

    /// Records that the request reached a milestone; only the first time counts.
    pub fn set_milestone(&mut self, mark: Milestone, at: u64) {
        if let Some(place) = self.marks.get_mut(mark.index()) {
            place.get_or_insert(at);
        }
    }

    /// The time at which the request reached a milestone.
    #[must_use]
    pub fn milestone_time(&self, mark: Milestone) -> Option<u64> {
        self.marks.get(mark.index()).copied().flatten()
    }

    /// Its duration so far, up to the latest milestone.
    #[must_use]
    pub fn total(&self) -> u64 {
        let last = self.marks.iter().flatten().max().copied();
        last.unwrap_or(self.begin).saturating_sub(self.begin)
    }

    /// Its stages in order, with their durations. Unfinished stages are omitted.
    #[must_use]
    pub fn stage_durations(&self) -> Vec<(RequestStage, u64)> {
        let mut passed: Vec<(u64, Milestone)> = Milestone::ALL
            .into_iter()
            .filter_map(|mark| Some((self.plausible(mark)?, mark)))
            .collect();
        // A door may encode either before or after the change of threads.
        passed.sort_unstable();
        let mut before = self.begin;
        let mut stages: Vec<(RequestStage, u64)> = Vec::with_capacity(passed.len());
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

    /// The time at which the request reached a milestone. Execution times reported by backends are
    /// clamped to the execution's own interval.
    fn plausible(&self, mark: Milestone) -> Option<u64> {
        let at = self.milestone_time(mark)?;
        match mark {
            Milestone::InputsReady | Milestone::Computed | Milestone::Ended => {
                let start = self.milestone_time(Milestone::Started).unwrap_or(at);
                let end = self
                    .milestone_time(Milestone::Answered)
                    .or(self.milestone_time(Milestone::Delivered))
                    .unwrap_or(u64::MAX);
                Some(at.min(end).max(start))
            }
            _ => Some(at),
        }
    }

    fn ended_by(&self, mark: Milestone) -> RequestStage {
        match mark {
            Milestone::Received => RequestStage::Receive,
            Milestone::Arrived => RequestStage::Decode,
            Milestone::Queued => RequestStage::Admit,
            Milestone::Closed => RequestStage::Queue,
            Milestone::Started => RequestStage::HandOver,
            // Parts of separate executions overlap.
            Milestone::InputsReady | Milestone::Computed | Milestone::Ended
                if !self.steps.is_empty() =>
            {
                RequestStage::Execute
            }
            Milestone::InputsReady => RequestStage::Input,
            Milestone::Computed => RequestStage::Compute,
            Milestone::Ended => RequestStage::Output,
            Milestone::Answered | Milestone::Delivered => self.ended_by_answer(mark),
            Milestone::TakenUp => RequestStage::Reply,
            Milestone::Encoded => RequestStage::Encode,
        }
    }

    fn ended_by_answer(&self, mark: Milestone) -> RequestStage {
        let passed = |mark| self.milestone_time(mark).is_some();
        let was_executed =
            passed(Milestone::Ended) || mark == Milestone::Delivered && passed(Milestone::Answered);
        match mark {
            _ if passed(Milestone::Started) && was_executed => RequestStage::Respond,
            _ if passed(Milestone::Started) => RequestStage::Execute,
            _ if passed(Milestone::Closed) => RequestStage::HandOver,
            _ if passed(Milestone::Queued) => RequestStage::Queue,
            _ => RequestStage::Admit,
        }
    }
}
