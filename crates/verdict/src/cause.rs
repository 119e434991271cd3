//! The main cause of a request's duration: the cause of its largest part.

use galatea_explain::{DetailLevel, RequestFacts, RequestStage, WaitReason, WaitTimes};

/// The minimum tensor size at which stages that move tensors count as copies.
const LARGE_BYTES_MIN: u64 = 1 << 20;
/// The maximum time per byte before a client counts as slow, which corresponds to 50 MB/s.
const RECEIVE_NS_PER_BYTE_MAX: u64 = 20;
/// A body that arrives within this time is never slow.
const RECEIVE_NS_MIN: u64 = 1_000_000;

/// The reason for a request's duration.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LatencyCause {
    /// The model computed.
    Execution,
    /// The client sent the message slowly.
    SlowClient,
    /// Large tensors were copied.
    LargeCopy,
    /// A small message was decoded or encoded.
    Coding,
    /// The request was checked or looked up.
    Admission,
    /// A change of shape separated its batch from the previous one.
    ShapeSplit,
    /// Its batch waited for more requests.
    QueueDelay,
    /// Its batch waited for more requests, within its deadlines.
    DeadlineWindow,
    /// Every instance was busy.
    TooFewInstances,
    /// An instance executed for the first time since the load, or no instance was ready yet.
    ColdLoad,
    /// The rate limiter gave the resources to other models.
    RateLimiter,
    /// Every slot was occupied by another sequence.
    SequenceSlot,
    /// An earlier request of its sequence was still in progress.
    SequenceOrder,
    /// A test variable held back the request.
    Hold,
    /// The request waited in the queue for a reason that its client may not see.
    Queue,
    /// The thread that should execute the request or send its response was busy.
    ThreadStarvation,
    /// Padding rows, which belong to no request, were computed along with it.
    Padding,
    /// The response was on its way from the model to the door, for example because other responses
    /// come first or because a cache stores it.
    Response,
}

impl LatencyCause {
    const COUNT: usize = 18;

    /// Every cause.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Execution,
        Self::SlowClient,
        Self::LargeCopy,
        Self::Coding,
        Self::Admission,
        Self::ShapeSplit,
        Self::QueueDelay,
        Self::DeadlineWindow,
        Self::TooFewInstances,
        Self::ColdLoad,
        Self::RateLimiter,
        Self::SequenceSlot,
        Self::SequenceOrder,
        Self::Hold,
        Self::Queue,
        Self::ThreadStarvation,
        Self::Padding,
        Self::Response,
    ];

    /// The cause's name for programs, which does not change.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Execution => "execution",
            Self::SlowClient => "slow_client",
            Self::LargeCopy => "large_copy",
            Self::Coding => "coding",
            Self::Admission => "admission",
            Self::ShapeSplit => "shape_split",
            Self::QueueDelay => "queue_delay",
            Self::DeadlineWindow => "deadline_window",
            Self::TooFewInstances => "too_few_instances",
            Self::ColdLoad => "cold_load",
            Self::RateLimiter => "rate_limiter",
            Self::SequenceSlot => "sequence_slot",
            Self::SequenceOrder => "sequence_order",
            Self::Hold => "hold",
            Self::Queue => "queue",
            Self::ThreadStarvation => "thread_starvation",
            Self::Padding => "padding",
            Self::Response => "response",
        }
    }

    /// The cause's meaning, for human readers.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Self::Execution => "the model computed",
            Self::SlowClient => "the client sent the request slowly",
            Self::LargeCopy => "large tensors were copied",
            Self::Coding => "the message was decoded or encoded",
            Self::Admission => "the request was checked, or looked up in the cache",
            Self::ShapeSplit => "a batch ended at a request of another shape; the next one waited",
            Self::QueueDelay => "the batch waited to grow, up to its delay",
            Self::DeadlineWindow => "the batch waited to grow, as long as its deadlines allowed",
            Self::TooFewInstances => "every instance was busy",
            Self::ColdLoad => "an instance executed for the first time since its load",
            Self::RateLimiter => "other models held the resources of the rate limiter",
            Self::SequenceSlot => "other sequences held every slot",
            Self::SequenceOrder => "an earlier request of the sequence went on",
            Self::Hold => "TRITONSERVER_DELAY_SCHEDULER held requests back",
            Self::Queue => "the request waited in the queue",
            Self::ThreadStarvation => "the thread for the batch or the response was not free",
            Self::Padding => "rows of padding were computed",
            Self::Response => "the response waited behind others, or was stored",
        }
    }
}

/// The verdict on a request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LatencyVerdict<'a> {
    /// The main cause.
    pub cause: LatencyCause,
    /// The cause's share of the request's time, in nanoseconds.
    pub ns: u64,
    /// The model of the step to which the verdict applies, if any.
    pub step: Option<&'a str>,
}

impl<'a> LatencyVerdict<'a> {
    /// The verdict on a request. The main cause is the one with the largest sum over the stages and
    /// waits that it explains. If several sums are equal, the first cause wins.
    #[must_use]
    pub fn for_request(facts: &'a RequestFacts, detail: DetailLevel) -> Self {
        let mut verdict = Self { cause: LatencyCause::Execution, ns: 0, step: None };
        for (cause, ns) in LatencyCause::ALL.into_iter().zip(sums(facts, detail)) {
            if ns > verdict.ns {
                verdict = Self { cause, ns, step: None };
            }
        }
        let is_executed = matches!(verdict.cause, LatencyCause::Execution | LatencyCause::ColdLoad);
        match longest_step(facts).filter(|_| is_executed) {
            None => verdict,
            Some(step) => {
                let inner = Self::for_request(step, detail);
                Self { step: inner.step.or(Some(&step.model)), ..inner }
            }
        }
    }
}

/// The longest step.
fn longest_step(facts: &RequestFacts) -> Option<&RequestFacts> {
    facts.steps.iter().filter(|step| !step.model.is_empty()).max_by_key(|step| step.total())
}

/// Nanoseconds by cause. They add up to the total time of all stages.
fn sums(facts: &RequestFacts, detail: DetailLevel) -> [u64; LatencyCause::COUNT] {
    let mut sums = DurationSums([0; LatencyCause::COUNT]);
    let (input_bytes, output_bytes) = (facts.input_bytes, facts.output_bytes);
    for (stage, ns) in facts.stage_durations() {
        match stage {
            RequestStage::Receive => sums.add(of_receiving(input_bytes, ns), ns),
            RequestStage::Decode => sums.add(of_copying(input_bytes, LatencyCause::Coding), ns),
            RequestStage::Encode => sums.add(of_copying(output_bytes, LatencyCause::Coding), ns),
            RequestStage::Input if input_bytes >= LARGE_BYTES_MIN => {
                sums.add(LatencyCause::LargeCopy, ns)
            }
            RequestStage::Output if output_bytes >= LARGE_BYTES_MIN => {
                sums.add(LatencyCause::LargeCopy, ns)
            }
            // Tensors in shared memory are copied here.
            RequestStage::Admit => sums.add(of_copying(input_bytes, LatencyCause::Admission), ns),
            RequestStage::Queue => add_waits(&mut sums, facts, ns, detail),
            RequestStage::HandOver | RequestStage::Reply => {
                sums.add(LatencyCause::ThreadStarvation, ns)
            }
            RequestStage::Input
            | RequestStage::Output
            | RequestStage::Compute
            | RequestStage::Execute => {
                add_execution(&mut sums, facts, ns, detail);
            }
            RequestStage::Respond => sums.add(LatencyCause::Response, ns),
        }
    }
    sums.0
}

/// The client is the cause of a slow body, unless the body's size explains the time.
fn of_receiving(bytes: u64, ns: u64) -> LatencyCause {
    let plausible = bytes.saturating_mul(RECEIVE_NS_PER_BYTE_MAX);
    match ns > plausible.max(RECEIVE_NS_MIN) {
        true => LatencyCause::SlowClient,
        false => of_copying(bytes, LatencyCause::Coding),
    }
}

const fn of_copying(bytes: u64, otherwise: LatencyCause) -> LatencyCause {
    if bytes >= LARGE_BYTES_MIN { LatencyCause::LargeCopy } else { otherwise }
}

fn add_waits(sums: &mut DurationSums, facts: &RequestFacts, ns: u64, detail: DetailLevel) {
    if detail == DetailLevel::Own {
        return sums.add(LatencyCause::Queue, ns);
    }
    let mut left = ns;
    for wait in WaitReason::ALL {
        let waited = facts.waits.time_of(wait).min(left);
        left = left.saturating_sub(waited);
        sums.add(of_waiting(facts, wait), waited);
    }
    sums.add(LatencyCause::Queue, left);
}

fn of_waiting(facts: &RequestFacts, wait: WaitReason) -> LatencyCause {
    let is_cold = facts.queued.is_some_and(|found| found.instances == 0 || found.behind_first);
    match wait {
        WaitReason::Instance if is_cold && !facts.is_warm => LatencyCause::ColdLoad,
        WaitReason::Instance => LatencyCause::TooFewInstances,
        WaitReason::Shape => LatencyCause::ShapeSplit,
        WaitReason::BatchDelay => LatencyCause::QueueDelay,
        WaitReason::Window => LatencyCause::DeadlineWindow,
        WaitReason::Permit => LatencyCause::RateLimiter,
        WaitReason::Slot => LatencyCause::SequenceSlot,
        WaitReason::Predecessor => LatencyCause::SequenceOrder,
        WaitReason::Hold => LatencyCause::Hold,
    }
}

fn add_execution(sums: &mut DurationSums, facts: &RequestFacts, ns: u64, detail: DetailLevel) {
    let batch = facts.batch.filter(|_| detail == DetailLevel::Schedule);
    let Some(batch) = batch else { return sums.add(LatencyCause::Execution, ns) };
    let padding = ns
        .checked_div(batch.rows)
        .map_or(0, |row| row.saturating_mul(batch.padding_rows.min(batch.rows)));
    let rest = ns.saturating_sub(padding);
    let is_cold = batch.is_first && !facts.is_warm;
    sums.add(LatencyCause::Padding, padding);
    sums.add(if is_cold { LatencyCause::ColdLoad } else { LatencyCause::Execution }, rest);
}

struct DurationSums([u64; LatencyCause::COUNT]);

impl DurationSums {
    fn add(&mut self, cause: LatencyCause, ns: u64) {
        if let Some(sum) = self.0.get_mut(cause as usize) {
            *sum = sum.saturating_add(ns);
        }
    }
}

/// The main cause over all requests of a model: `waits` in the queue, and the execution time. If
/// several causes are equal, the first one wins.
#[must_use]
pub fn main_cause_of_model(waits: &WaitTimes, execution_ns: u64) -> (LatencyCause, u64) {
    let facts = RequestFacts::default();
    let mut overall = (LatencyCause::Execution, execution_ns);
    for wait in WaitReason::ALL {
        let ns = waits.time_of(wait);
        if ns > overall.1 {
            overall = (of_waiting(&facts, wait), ns);
        }
    }
    overall
}
