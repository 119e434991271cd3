use super::*;
use crate::otel::address::CollectorAddress;
use crate::otel::collector::CollectorSettings;
use crate::otel::spans::ClientSpan;
use crate::queue::{TRACE_BYTES_MAX, TRACES_QUEUED_MAX, TraceQueue};
use crate::settings::{Destination, SettingsTable, TraceSettingValues};

const LIMITS: SpanBatchLimits =
    SpanBatchLimits { queued_max: 4, delay: Duration::from_secs(5), batch_max: 2 };

#[test]
fn a_full_batch_is_sent_at_once_and_others_when_they_are_due() {
    let start = Instant::now();
    let at = |secs| start + Duration::from_secs(secs);
    let mut batcher = Batcher::new(LIMITS);
    assert_eq!(batcher.time_until_batch(start), None);
    batcher.add(start, 1);
    assert_eq!(
        (batcher.take(at(4)), batcher.time_until_batch(at(4))),
        (None, Some(LIMITS.delay - Duration::from_secs(4)))
    );
    batcher.add(at(4), 2);
    batcher.add(at(4), 3);
    assert_eq!(batcher.take(at(4)), Some(vec![1, 2]));
    assert_eq!(batcher.take(at(4)), None);
    assert_eq!(batcher.take(at(5)), Some(vec![3]));
    assert_eq!((batcher.take(at(9)), batcher.time_until_batch(at(9))), (None, None));
}

#[test]
fn spans_that_find_the_queue_full_are_dropped() {
    let now = Instant::now();
    let mut batcher = Batcher::new(LIMITS);
    (0..6).for_each(|span| batcher.add(now, span));
    assert_eq!(batcher.dropped, 2);
    assert_eq!(batcher.take_any(), Some(vec![0, 1]));
    assert_eq!(batcher.take_any(), Some(vec![2, 3]));
    assert_eq!(batcher.take_any(), None);
}

#[test]
fn limits_of_nothing_send_single_spans() {
    let now = Instant::now();
    let limits = SpanBatchLimits { batch_max: 0, delay: Duration::ZERO, ..LIMITS };
    let mut batcher = Batcher::new(limits);
    batcher.add(now, 1);
    assert_eq!(batcher.take(now), Some(vec![1]));
    let mut none = Batcher::new(SpanBatchLimits { queued_max: 0, ..limits });
    none.add(now, 1);
    assert_eq!((none.take_any(), none.dropped), (None, 1));
}
/// A trace for a collector, accounted to this memory.
fn trace(memory: TraceMemory) -> CollectedTrace {
    let client = ClientSpan {
        remote: None,
        trace: [1; 16],
        span: [1; 8],
        start_ns: 1,
        end_ns: 2,
        epoch_ns: 0,
    };
    let table = SettingsTable::new(TraceSettingValues::default(), Destination::Collector, None);
    let setting = table.settings_of(None).clone();
    CollectedTrace::new(setting, Vec::new(), Some((1, Box::new(client))), memory)
}

#[test]
fn the_memory_of_spans_is_counted_until_they_are_sent() {
    let queue = TraceQueue::default();
    let address = CollectorAddress::parse("http://127.0.0.1:1/").unwrap();
    let collector = CollectorClient::new(address, CollectorSettings::default()).unwrap();
    let mut exporter = Exporter::new(collector, Vec::new(), LIMITS, Arc::default());
    let mut all = queue.memory();
    assert!(all.grow(TRACE_BYTES_MAX));
    exporter.add(Instant::now(), trace(all));
    assert!(!queue.memory().grow(1));
    assert_eq!(exporter.spans.take_any().map(|batch| batch.len()), Some(1));
    assert!(queue.memory().grow(1));
}

#[test]
fn traces_for_a_collector_that_is_too_slow_are_not_queued() {
    let queue = TraceQueue::default();
    for _ in 0..TRACES_QUEUED_MAX + 5 {
        queue.push_trace(trace(queue.memory()));
    }
    assert_eq!(queue.take(None).len(), TRACES_QUEUED_MAX);
}
