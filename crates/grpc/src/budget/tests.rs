use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Wake, Waker};

use galatea_gate::ledger::{MemoryAccount, MemoryLedger};

use super::*;
use crate::failure::Failure;

/// Limits that are small enough for tests to reach.
pub(crate) const LIMITS: BudgetLimits = BudgetLimits {
    call_unwritten_bytes_max: 2000,
    unwritten_bytes_max: 3000,
    unwritten_bytes_dropped: 5000,
    retained_bytes_max: 1000,
    request_bytes_max: 1000,
    arriving_bytes_max: 500,
};

/// Counts wake-ups.
#[derive(Default)]
pub(crate) struct Count(pub(crate) AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// An account without a limit.
pub(crate) fn account() -> Arc<MemoryAccount> {
    Arc::new(MemoryAccount::unlimited())
}

pub(super) fn unwatched() -> Arc<MemoryBudget> {
    Arc::new(MemoryBudget::new(LIMITS, account(), Waker::noop().clone()))
}

pub(super) fn charged(
    budget: ResponseBudget,
    text_bytes: usize,
) -> Result<Outgoing, DroppedResponse> {
    let text = "x".repeat(text_bytes);
    let message =
        galatea_protocol::inference::ModelConfigRequest { name: text, ..Default::default() };
    Outgoing::new(galatea_codec_grpc::frame_message(&message).unwrap(), budget)
}

fn response(budget: &Arc<MemoryBudget>, text_bytes: usize) -> Result<Outgoing, DroppedResponse> {
    charged(ResponseBudget::Call(budget.clone()), text_bytes)
}

#[test]
fn responses_are_counted_until_they_are_dropped() {
    let budget = unwatched();
    let first = response(&budget, 1000).unwrap();
    assert!(budget.unwritten_bytes() > 1000 && !budget.is_full(CallKind::Unary));
    let second = response(&budget, 1000).unwrap();
    assert!(budget.is_full(CallKind::Unary));
    // One response may be larger than the limit, but then there is no more room.
    let third = response(&budget, 100_000).unwrap();
    assert_eq!(response(&budget, 1).unwrap_err(), DroppedResponse::Overrun);
    drop(third);
    drop(first);
    assert!(!budget.is_full(CallKind::Unary));
    drop(second);
    assert_eq!(budget.unwritten_bytes(), 0);
}

#[test]
fn streams_fill_the_connection_and_not_the_part_of_unary_calls() {
    let budget = unwatched();
    let limits = StreamLimits { messages_max: 10, bytes_max: 10_000 };
    let stream = Arc::new(StreamBudget::new(budget.clone(), limits, Waker::noop().clone()));
    let full = || [CallKind::Unary, CallKind::Stream].map(|kind| budget.is_full(kind));
    let first = charged(ResponseBudget::Stream(stream.clone()), 2000).unwrap();
    assert_eq!(full(), [false, false]);
    let second = charged(ResponseBudget::Stream(stream), 1000).unwrap();
    assert_eq!(full(), [true, true]);
    drop(first);
    let third = response(&budget, 2000).unwrap();
    assert_eq!(full(), [true, true]);
    drop(second);
    assert_eq!(full(), [true, false]);
    drop(third);
    assert_eq!(budget.unwritten_bytes(), 0);
}

#[test]
fn a_request_is_counted_while_it_is_in_progress() {
    let woken = Arc::<Count>::default();
    let budget = Arc::new(MemoryBudget::new(LIMITS, account(), Waker::from(woken.clone())));
    let check_woken = |expected| assert_eq!(woken.0.load(Ordering::Relaxed), expected);
    let begin = |bytes, kind| {
        RequestCharge::new(budget.clone(), RequestSize::of_message(bytes), kind).unwrap()
    };
    let first = begin(600, CallKind::Unary);
    assert!(!budget.is_full(CallKind::Unary));
    let second = begin(600, CallKind::Unary);
    assert!(budget.is_full(CallKind::Unary) && !budget.is_full(CallKind::Stream));
    check_woken(0);
    drop(first);
    // The task is woken because there is room.
    check_woken(1);
    assert!(!budget.is_full(CallKind::Unary));
    drop(second);
    check_woken(1);
    let streamed = begin(5000, CallKind::Stream);
    assert!(!budget.is_full(CallKind::Unary) && budget.is_full(CallKind::Stream));
    drop(streamed);
    assert_eq!(budget.request_bytes(), 0);
}

#[test]
fn arriving_messages_are_bounded_together_and_not_alone() {
    let budget = unwatched();
    let begin = || ArrivalCharge::new(budget.clone());
    let (mut first, mut second) = (begin(), begin());
    assert!(first.add(400).is_ok() && first.add(400).is_ok());
    assert!(second.add(100).is_err());
    assert_eq!(budget.request_bytes(), 900);
    drop(second);
    assert!(first.add(100).is_ok());
    assert!(first.set(0).is_ok());
    let mut third = begin();
    assert!(third.add(300).is_ok() && first.add(200).is_ok() && first.add(1).is_err());
    drop((first, third));
    assert_eq!(budget.request_bytes(), 0);
}

/// Checks that bytes that aren't charged separately are charged to the connection's account.
#[test]
fn requests_and_responses_are_charged_to_the_account() {
    let ledger = Arc::new(MemoryLedger::new(Some(100_000)));
    let account = Arc::new(MemoryAccount::without_base(ledger.clone()));
    let waker = Waker::noop().clone();
    let budget = Arc::new(MemoryBudget::new(LIMITS, account.clone(), waker));
    let begin = |bytes| {
        let size = RequestSize::of_message(bytes);
        RequestCharge::new(budget.clone(), size, CallKind::Unary)
    };
    let small = begin(10_000).unwrap();
    // The message's owner has charged it.
    let long = begin(1 << 30).unwrap();
    assert_eq!(account.held(), 10_000);
    let unread = response(&budget, 50_000).unwrap();
    assert!((60_000..61_000).contains(&account.held()), "{}", account.held());
    let dropped = response(&budget, 50_000).unwrap_err();
    assert!(matches!(dropped, DroppedResponse::Exhausted(_)));
    let failure = Failure::from(dropped);
    assert!(failure.retry_after_secs.is_some() && failure.message.contains("--memory-limit"));
    let other = MemoryAccount::without_base(ledger.clone());
    other.charge_unguarded(100_000 - ledger.held()).unwrap();
    // The remainder is the connection's credit.
    let last = begin(10_000).unwrap();
    assert!(begin(10_000).is_err());
    let refused =
        RequestCharge::of_refused(budget.clone(), RequestSize::of_message(10), CallKind::Unary);
    drop((small, long, unread, last, refused));
    assert_eq!((budget.request_bytes(), budget.unwritten_bytes()), (0, 0));
}
