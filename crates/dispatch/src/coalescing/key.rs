//! The key that equal requests share.

use galatea_backend::CacheKey;
use galatea_infer::{CorrelationId, InferenceRequest, InputTensor, SequenceFlags};

use crate::cache::equality_key_of;

/// The key of a request to one loaded version. It covers everything that a model can see of the
/// request, except its identifier, and its place in the queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CoalescingKey {
    digest: [u8; 32],
    priority: u64,
    timeout_microseconds: u64,
}

/// Computes the key of an admitted request. Returns `None` if the request shares no execution:
///
/// - It may belong to a sequence of an ensemble's step.
/// - It has different contents for different host policies.
///
/// `cache_key` is the request's key in the response cache, if it is known.
pub(crate) fn coalescing_key_of(
    request: &InferenceRequest,
    output_count: usize,
    cache_key: Option<CacheKey>,
) -> Option<CoalescingKey> {
    let is_alone = request.correlation_id == CorrelationId::None
        && request.sequence_flags == SequenceFlags::default();
    let has_one_content = |input: &InputTensor| input.data.host_policy_buffers().is_empty();
    if !is_alone || !request.inputs.iter().all(has_one_content) {
        return None;
    }
    let digest = match cache_key {
        Some(known) => known,
        None => equality_key_of(request, output_count)?,
    };
    let InferenceRequest { priority, timeout_microseconds, .. } = *request;
    Some(CoalescingKey { digest: digest.0, priority, timeout_microseconds })
}

#[cfg(test)]
mod tests {
    use galatea_tensor::Buffer;

    use super::*;
    use crate::testing::echo_request;

    fn key(change: impl FnOnce(&mut InferenceRequest)) -> Option<CoalescingKey> {
        let mut request = echo_request(&[1, 2]);
        change(&mut request);
        coalescing_key_of(&request, 1, None)
    }

    #[test]
    fn the_key_covers_what_a_model_and_its_queue_see() {
        let same = key(|_| {});
        assert!(same.is_some());
        assert_eq!(same, key(|request| request.id.push('2')));
        assert_ne!(same, key(|request| request.priority = 1));
        assert_ne!(same, key(|request| request.timeout_microseconds = 1));
        let data = |request: &mut InferenceRequest| {
            request.inputs[0].data = Buffer::from_vec(vec![1; 8]);
        };
        assert_ne!(same, key(data));
        let cached = CacheKey([7; 32]);
        assert_eq!(
            coalescing_key_of(&echo_request(&[1, 2]), 1, Some(cached)).unwrap().digest,
            cached.0
        );
    }

    #[test]
    fn sequences_and_contents_of_host_policies_are_not_shared() {
        assert_eq!(key(|request| request.correlation_id = CorrelationId::Number(1)), None);
        assert_eq!(key(|request| request.sequence_flags.start = true), None);
        let policies = |request: &mut InferenceRequest| {
            let other = vec![(String::from("far"), Buffer::from_vec(vec![1; 8]))];
            request.inputs[0].data = request.inputs[0].data.clone().with_host_policy_buffers(other);
        };
        assert_eq!(key(policies), None);
    }
}
