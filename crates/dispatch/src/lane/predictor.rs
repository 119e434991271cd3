//! Prediction of whether a lane's next execution is short.
//!
//! Two decisions depend on it: an I/O thread may execute a short batch itself, and the lane's
//! thread may hold back wake-ups while it executes a short batch. A mistake in the first decision
//! is more expensive, because a connection's I/O stalls in the meantime, so that decision is made
//! per kind of request, based on the names and shapes of inputs and the names of outputs. The
//! second is made for batches with any contents, based on the latest executions and the size of
//! their inputs.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::time::Duration;

use galatea_backend::ExecutionPredictability;
use galatea_infer::InputTensor;
use galatea_tensor::DataType;

use crate::batch::ClosedBatch;

/// The maximum duration of a short execution: roughly the time to wake another thread and be woken
/// by it. A debug build takes longer for the same work.
pub(crate) const SHORT_EXECUTION_MAX: Duration =
    Duration::from_micros(if cfg!(debug_assertions) { 1_000 } else { 50 });

/// The maximum duration of a short execution that runs elsewhere. After this time, the thread stops
/// waiting.
pub(crate) const SHORT_WAIT_MAX: Duration = SHORT_EXECUTION_MAX.saturating_mul(2);

/// The number of consecutive short executions after which the next is predicted to be short.
const STREAK_MIN: u32 = 16;

/// The maximum number of remembered kinds of requests.
const KINDS_MAX: usize = 4;

/// The minimum trust required for inline execution. Each short execution adds one.
const TRUST_MIN: u32 = 16;

/// The maximum trust.
const TRUST_MAX: u32 = 32;

/// The trust lost by an execution that is not short. A single slow execution may be bad luck, such
/// as another thread on the processor. After three in a row, the kind is no longer trusted.
const TRUST_LOSS: u32 = 8;

/// The multiple of a short execution's duration at which an execution loses all trust.
const LONG_FACTOR: u32 = 10;

/// Learns from a lane's executions.
#[derive(Debug)]
pub(super) struct LatencyPredictor {
    guarantee: ExecutionPredictability,
    /// The maximum duration of a short execution.
    short_max: Duration,
    /// True if the predictor distinguishes kinds of requests.
    knows_kinds: bool,
    /// The number of consecutive short executions.
    streak: u32,
    /// The size of the largest batch in the streak.
    streak_byte_size_max: usize,
    /// A hasher with random keys, so that clients can't construct kinds with equal hashes.
    hasher: RandomState,
    kinds: [TrustedKind; KINDS_MAX],
    /// The index of the most recently added kind.
    newest_kind: usize,
}

/// A kind of request, and the trust that its executions are short.
#[derive(Copy, Clone, Debug, Default)]
struct TrustedKind {
    kind: RequestKind,
    trust: u32,
}

/// A hash of the names, shapes and sizes of a request's inputs, and of the outputs that it names.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
struct RequestKind(u64);

/// The facts used for a prediction, and for learning from an observation.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct BatchProfile {
    /// The batch's size; `None` if the execution neither continues nor ends the streak.
    byte_size: Option<usize>,
    /// The kind of request; `None` unless the batch is a single request.
    kind: Option<RequestKind>,
}

impl LatencyPredictor {
    /// Creates a predictor without knowledge. The instance's guarantee determines which predictions
    /// are possible.
    pub(super) fn new(guarantee: ExecutionPredictability) -> Self {
        Self {
            guarantee,
            short_max: SHORT_EXECUTION_MAX,
            knows_kinds: guarantee >= ExecutionPredictability::Predictable,
            streak: 0,
            streak_byte_size_max: 0,
            hasher: RandomState::default(),
            kinds: [TrustedKind::default(); KINDS_MAX],
            newest_kind: 0,
        }
    }

    /// Adapts the predictor to an instance whose executions can be left to the lane's thread. For
    /// such an instance, a misprediction costs an I/O thread no more than [`SHORT_WAIT_MAX`].
    pub(super) fn for_resumable(self) -> Self {
        Self { short_max: SHORT_WAIT_MAX, knows_kinds: true, ..self }
    }

    /// The maximum duration of a short execution.
    pub(super) const fn short_max(&self) -> Duration {
        self.short_max
    }

    /// The profile of a batch for the lane's thread.
    pub(super) fn profile(&self, batch: &ClosedBatch) -> BatchProfile {
        let never_waits = self.guarantee >= ExecutionPredictability::NonBlocking;
        BatchProfile {
            byte_size: never_waits.then(|| batch.input_byte_size()),
            ..self.inline_profile(batch)
        }
    }

    /// The profile of a batch for inline execution by another thread.
    pub(super) fn inline_profile(&self, batch: &ClosedBatch) -> BatchProfile {
        let kind = if self.knows_kinds { self.kind_of_batch(batch) } else { None };
        BatchProfile { byte_size: None, kind }
    }

    fn kind_of_batch(&self, batch: &ClosedBatch) -> Option<RequestKind> {
        let ClosedBatch::Requests(requests) = batch else { return None };
        let [request] = requests.as_slice() else { return None };
        Some(self.kind_of(&request.request().inputs, &request.request().outputs))
    }

    /// Some libraries prepare an execution for each set of outputs, which takes longer than the
    /// execution.
    fn kind_of(&self, inputs: &[InputTensor], outputs: &[String]) -> RequestKind {
        let mut hasher = self.hasher.build_hasher();
        outputs.hash(&mut hasher);
        for input in inputs {
            input.name.hash(&mut hasher);
            input.shape.dims().hash(&mut hasher);
            if input.datatype == DataType::Bytes {
                // Sizes that differ by less than a factor of two may be treated as equal.
                hasher.write_u32(input.data.len().checked_ilog2().unwrap_or(0));
            }
        }
        RequestKind(hasher.finish())
    }

    /// Returns true if an I/O thread may execute the batch inline, that is, if it is a single
    /// request of a trusted kind.
    pub(super) fn allows_inline_execution(&self, profile: BatchProfile) -> bool {
        let is_trusted =
            |known: &TrustedKind| Some(known.kind) == profile.kind && known.trust >= TRUST_MIN;
        self.kinds.iter().any(is_trusted)
    }

    /// Returns true if the batch will probably be short, so that wake-ups may wait for its end.
    /// That is the case if the preceding executions were short and the batch is no larger than
    /// theirs.
    pub(super) fn predicts_short_batch(&self, profile: BatchProfile) -> bool {
        let is_expected =
            |byte_size| self.streak >= STREAK_MIN && byte_size <= self.streak_byte_size_max;
        profile.byte_size.is_some_and(is_expected)
    }

    /// Returns true if the batch can't take long: it will probably be short, and the values of its
    /// inputs can't prolong it.
    pub(super) fn is_surely_short(&self, profile: BatchProfile) -> bool {
        self.guarantee >= ExecutionPredictability::Predictable && self.predicts_short_batch(profile)
    }

    /// Learns from an execution.
    pub(super) fn observe(&mut self, profile: BatchProfile, took: Duration) {
        if let Some(byte_size) = profile.byte_size {
            self.observe_batch(byte_size, took);
        }
        if let Some(kind) = profile.kind {
            self.observe_kind(kind, took);
        }
    }

    fn observe_batch(&mut self, byte_size: usize, took: Duration) {
        if took > self.short_max {
            (self.streak, self.streak_byte_size_max) = (0, 0);
        } else {
            self.streak = self.streak.saturating_add(1);
            self.streak_byte_size_max = self.streak_byte_size_max.max(byte_size);
        }
    }

    fn observe_kind(&mut self, kind: RequestKind, took: Duration) {
        let short_max = self.short_max;
        let trust = match self.kinds.iter_mut().find(|known| known.kind == kind) {
            Some(known) => &mut known.trust,
            None => {
                self.newest_kind = (self.newest_kind + 1) % KINDS_MAX;
                let Some(oldest) = self.kinds.get_mut(self.newest_kind) else { return };
                *oldest = TrustedKind { kind, trust: 0 };
                &mut oldest.trust
            }
        };
        *trust = match took {
            _ if took > short_max.saturating_mul(LONG_FACTOR) => 0,
            _ if took > short_max => trust.saturating_sub(TRUST_LOSS),
            _ => trust.saturating_add(1).min(TRUST_MAX),
        };
    }
}

#[cfg(test)]
mod tests {
    use galatea_tensor::{Buffer, Shape};

    use super::*;

    fn input(name: &str, dims: &[i64], datatype: DataType, bytes: usize) -> InputTensor {
        InputTensor {
            name: String::from(name),
            datatype,
            shape: Shape::new(dims).unwrap(),
            data: Buffer::from_vec(vec![0; bytes]),
        }
    }

    fn predictor() -> LatencyPredictor {
        LatencyPredictor::new(ExecutionPredictability::Predictable)
    }

    fn of_kind(number: u64) -> BatchProfile {
        BatchProfile { byte_size: None, kind: Some(RequestKind(number)) }
    }

    fn of_size(byte_size: usize) -> BatchProfile {
        BatchProfile { byte_size: Some(byte_size), kind: None }
    }

    #[test]
    fn names_shapes_outputs_and_sizes_of_strings_make_a_kind() {
        let predictor = predictor();
        let of = |input: InputTensor| predictor.kind_of(&[input], &[]);
        let floats = |name, dims: &[i64]| of(input(name, dims, DataType::Fp32, 48));
        let strings = |bytes| of(input("a", &[3], DataType::Bytes, bytes));
        assert_eq!(floats("a", &[3, 4]), floats("a", &[3, 4]));
        assert_ne!(floats("a", &[3, 4]), floats("a", &[4, 3]));
        assert_ne!(floats("a", &[3, 4]), floats("a", &[12]));
        assert_ne!(floats("a", &[3, 4]), floats("b", &[3, 4]));
        assert_eq!(strings(64), strings(127));
        assert_ne!(strings(64), strings(128));
        let both = [input("a", &[1], DataType::Fp32, 4), input("b", &[1], DataType::Fp32, 4)];
        let with = |inputs: &[InputTensor], outputs: &[&str]| {
            let outputs: Vec<String> = outputs.iter().map(|&name| name.to_owned()).collect();
            predictor.kind_of(inputs, &outputs)
        };
        assert_ne!(with(&both, &[]), with(&both[..1], &[]));
        assert_eq!(with(&both, &["x"]), with(&both, &["x"]));
        assert_ne!(with(&both, &["x"]), with(&both, &[]));
        assert_ne!(with(&both, &["x"]), with(&both, &["y"]));
    }

    const TOO_LONG: Duration = SHORT_EXECUTION_MAX.saturating_add(Duration::from_nanos(1));

    #[test]
    fn each_kind_earns_trust_for_itself() {
        let mut predictor = predictor();
        let kinds = [1, 2, 3, 4].map(of_kind);
        for round in 0..TRUST_MIN {
            for kind in kinds {
                assert!(!predictor.allows_inline_execution(kind), "in round {round}");
                predictor.observe(kind, SHORT_EXECUTION_MAX);
            }
        }
        assert!(kinds.iter().all(|&kind| predictor.allows_inline_execution(kind)));
        predictor.observe(kinds[1], TOO_LONG);
        assert!(!predictor.allows_inline_execution(kinds[1]));
        assert!(predictor.allows_inline_execution(kinds[2]));
        // A fifth kind replaces the first.
        predictor.observe(of_kind(5), SHORT_EXECUTION_MAX);
        assert!(!predictor.allows_inline_execution(kinds[0]));
        assert!(predictor.allows_inline_execution(kinds[3]));
    }

    #[test]
    fn trust_survives_two_long_executions_but_not_three() {
        let mut predictor = predictor();
        let kind = of_kind(1);
        (0..999).for_each(|_| predictor.observe(kind, SHORT_EXECUTION_MAX));
        for expected in [true, true, false] {
            predictor.observe(kind, TOO_LONG);
            assert_eq!(predictor.allows_inline_execution(kind), expected);
        }
        (0..99).for_each(|_| predictor.observe(kind, SHORT_EXECUTION_MAX));
        predictor.observe(kind, SHORT_EXECUTION_MAX * LONG_FACTOR + Duration::from_nanos(1));
        assert!(!predictor.allows_inline_execution(kind), "one is enough if it is that long");
        (0..99).for_each(|_| predictor.observe(kind, TOO_LONG));
        (0..TRUST_MIN).for_each(|_| predictor.observe(kind, SHORT_EXECUTION_MAX));
        assert!(predictor.allows_inline_execution(kind), "trust can be regained");
    }

    #[test]
    fn what_an_io_thread_only_waits_for_may_take_longer() {
        let kind = of_kind(1);
        for (mut predictor, expected) in [(predictor(), false), (predictor().for_resumable(), true)]
        {
            (0..99).for_each(|_| predictor.observe(kind, SHORT_WAIT_MAX));
            assert_eq!(predictor.allows_inline_execution(kind), expected);
        }
        let unspecified = LatencyPredictor::new(ExecutionPredictability::Unspecified);
        assert!(unspecified.for_resumable().knows_kinds);
    }

    #[test]
    fn only_single_requests_are_executed_inline() {
        let mut predictor = predictor();
        let none = BatchProfile::default();
        (0..99).for_each(|_| predictor.observe(none, SHORT_EXECUTION_MAX));
        assert!(!predictor.allows_inline_execution(none));
        let batches = [ClosedBatch::Requests(Vec::new()), ClosedBatch::Rows(Vec::new())];
        for batch in batches {
            assert_eq!(predictor.inline_profile(&batch).kind, None);
        }
    }

    #[test]
    fn predictions_are_limited_by_the_guarantee() {
        let batch = ClosedBatch::Requests(Vec::new());
        let size = |guarantee| LatencyPredictor::new(guarantee).profile(&batch).byte_size;
        assert_eq!(size(ExecutionPredictability::Unspecified), None);
        assert_eq!(size(ExecutionPredictability::NonBlocking), Some(0));
        assert_eq!(size(ExecutionPredictability::Predictable), Some(0));
    }

    #[test]
    fn after_a_streak_batches_up_to_its_size_are_short() {
        let after = |executions: &[(usize, Duration)]| {
            let mut predictor = predictor();
            executions.iter().for_each(|&(size, took)| predictor.observe(of_size(size), took));
            predictor
        };
        let mut streak = vec![(8, Duration::from_micros(1)); 15];
        assert!(!after(&streak).predicts_short_batch(of_size(8)));
        streak.push((4, SHORT_EXECUTION_MAX));
        assert!(after(&streak).predicts_short_batch(of_size(8)));
        assert!(!after(&streak).predicts_short_batch(of_size(9)));
        streak.push((1, TOO_LONG));
        assert!(!after(&streak).predicts_short_batch(of_size(1)));
    }
}
