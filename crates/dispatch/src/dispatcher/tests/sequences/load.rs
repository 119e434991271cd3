//! Tests with many concurrent clients that make every kind of mistake. Every sum must be correct,
//! and no state may be left behind.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use galatea_backend::ExecutionPolicy;
use galatea_infer::{CancelToken, Code, InferenceRequest, PendingRequest};

use crate::testing::TestServer;
use crate::testing::sequences::{
    DIRECT, OLDEST, ScriptedBackend, TWO_INSTANCES, add, config, step, value, wait_until_empty,
};
use crate::testing::{LONG, ServerSetup, send};

const CLIENTS: u64 = 8;
const ROUNDS: u64 = 60;

/// Pseudo-random numbers.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Runs sequences one after another with a few correlation IDs. Some clients send ahead, some
/// restart without an end, some cancel.
fn client(server: &TestServer, number: u64, sequences: &AtomicU64) {
    let mut chance = Chance(0x9e37_79b9 + number);
    for round in 0..ROUNDS {
        let id = number * 4 + chance.below(3) + 1;
        let length = chance.below(6) + 1;
        let cancels_at = (chance.below(8) == 0).then(|| chance.below(length));
        let mut inboxes = Vec::new();
        for place in 0..length {
            let start = if place == 0 { "+" } else { "" };
            let ends = place + 1 == length && chance.below(4) > 0;
            let flags = format!("{start}{}", if ends { "." } else { "" });
            let token = CancelToken::new();
            let amount = i32::try_from(round * 10 + place).unwrap();
            let request = InferenceRequest { cancel: token.clone(), ..step(id, &flags, amount) };
            inboxes.push((amount, send(server, request)));
            if cancels_at == Some(place) {
                token.cancel();
            }
            if chance.below(2) == 0 {
                // sleep: varies the order of steps and executions
                thread::yield_now();
            }
        }
        let mut sum = 0;
        let mut is_cut = false;
        for (amount, inbox) in &inboxes {
            match inbox.recv_timeout(LONG).unwrap() {
                Ok(response) => {
                    assert!(!is_cut, "client {number}: a request ran behind a cancelled one");
                    sum += amount;
                    let data = response.outputs[0].data.host_bytes().unwrap();
                    let got = i32::from_le_bytes(*data.first_chunk().unwrap());
                    assert_eq!(got, sum, "client {number}, sequence {id}, round {round}");
                }
                Err(status) => {
                    // A slow client's sequence may have reached its idle timeout.
                    let is_gone = status.message().contains("must specify the START flag");
                    let is_cancelled = status.code() == Code::Cancelled;
                    assert!(is_gone || is_cancelled && cancels_at.is_some(), "{number}: {status}");
                    is_cut = true;
                }
            }
        }
        sequences.fetch_add(1, Ordering::Relaxed);
    }
}

fn crowd(policy: ExecutionPolicy, batching: &str) {
    let idle = batching.replace("600000000", "50000");
    let text = config(3, &idle, TWO_INSTANCES);
    let server = ServerSetup::new(text, ScriptedBackend::summing(policy)).serve();
    let sequences = Arc::new(AtomicU64::new(0));
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (server, sequences) = (&server, &sequences);
            scope.spawn(move || client(server, number, sequences));
        }
    });
    assert_eq!(sequences.load(Ordering::Relaxed), CLIENTS * ROUNDS);
    // Sequences without an end reach their idle timeout.
    wait_until_empty(&server);
}

#[test]
fn direct_with_threads() {
    crowd(ExecutionPolicy::Blocking, DIRECT);
}

#[test]
fn direct_inline() {
    crowd(ExecutionPolicy::Inline, DIRECT);
}

#[test]
fn oldest_with_threads() {
    crowd(ExecutionPolicy::Blocking, OLDEST);
}

#[test]
fn oldest_inline() {
    crowd(ExecutionPolicy::Inline, OLDEST);
}

#[test]
fn oldest_with_ordered_replies() {
    let ordered = OLDEST.replace("oldest { ", "oldest { preserve_ordering: true ");
    crowd(ExecutionPolicy::Blocking, &ordered);
    crowd(ExecutionPolicy::Inline, &ordered);
}

#[test]
fn requests_may_be_released_by_other_threads() {
    for policy in [ExecutionPolicy::Blocking, ExecutionPolicy::Inline] {
        let (hand_over, others) = mpsc::channel();
        let worker = thread::spawn(move || {
            let others = others.into_iter();
            others.filter(|request: &PendingRequest| !request.is_padding()).for_each(add);
        });
        let backend = ScriptedBackend::new(policy, move |batch| {
            batch.into_iter().for_each(|request| hand_over.send(request).unwrap());
            Ok(())
        });
        let server = ServerSetup::new(config(3, DIRECT, TWO_INSTANCES), backend).serve();
        let sum = |id: u64| {
            let flags = |place| match place {
                0 => "+",
                49 => ".",
                _ => "",
            };
            let inboxes: Vec<_> =
                (0..50).map(|place| send(&server, step(id, flags(place), place))).collect();
            inboxes.iter().map(value).next_back().unwrap()
        };
        thread::scope(|scope| {
            for id in 1..=8 {
                let sum = &sum;
                scope.spawn(move || assert_eq!(sum(id), (0..50).sum::<i32>()));
            }
        });
        wait_until_empty(&server);
        assert_eq!(server.unload_all(LONG), 0);
        drop(server);
        worker.join().unwrap();
    }
}
