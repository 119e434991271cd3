//! Composing models that reply before `infer` returns, and the threads that drive runs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use galatea_infer::{InferenceRequest, ResponseSender};
use galatea_stdx::testing::wait_until;

use super::{TestEnsemble, number, response};
use crate::executor::EVENTS_MAX;

/// A chain of steps that all use the same model.
fn long_chain(steps: usize) -> TestEnsemble {
    let name = |n: usize| match n {
        0 => String::from("IN"),
        n if n == steps => String::from("OUT"),
        n => format!("t{n}"),
    };
    let steps: Vec<String> =
        (0..steps).map(|n| format!("net X={} > Y={}", name(n), name(n + 1))).collect();
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    TestEnsemble::new("4 IN > OUT", &["net 4 X > Y"], &steps, 0)
}

fn add_one(request: &InferenceRequest, sender: ResponseSender) {
    let sum = number(&request.inputs[0].data) + 1;
    sender.send_final(Ok(response(request, &format!("Y={sum}"))));
}

/// The stack couldn't hold a frame for each step. The overflow thread takes over some of the steps.
#[test]
fn a_long_chain_of_models_that_reply_at_once_does_not_overflow_the_stack() {
    let ensemble = long_chain(2_000);
    ensemble.set_handler("net", |request, sender| add_one(&request, sender));
    let client = std::thread::Builder::new()
        .stack_size(128 * 1024)
        .spawn(move || (ensemble.send("IN=0"), ensemble))
        .unwrap();
    let (client, _world) = client.join().unwrap();
    assert_eq!(client.wait(), ["OUT=2000 end"]);
}

#[test]
fn a_thread_leaves_events_beyond_its_budget_to_the_overflow_thread() {
    let steps = 2 * EVENTS_MAX;
    let ensemble = long_chain(steps);
    let me = std::thread::current().id();
    let here = Arc::new(AtomicUsize::new(0));
    let counted = here.clone();
    ensemble.set_handler("net", move |request, sender| {
        counted.fetch_add(usize::from(std::thread::current().id() == me), Ordering::Relaxed);
        add_one(&request, sender);
    });
    let client = ensemble.send("IN=0");
    assert_eq!(client.wait(), [format!("OUT={steps} end")]);
    assert_eq!(here.load(Ordering::Relaxed), EVENTS_MAX);
}

/// The model replies to other requests while a request is being sent to it, as a model without
/// threads does. The reply to each request leads to the reply to the next one.
#[test]
fn replies_to_other_requests_do_not_nest_on_the_stack() {
    const REQUESTS: usize = 5_000;
    let ensemble = TestEnsemble::new(
        "4 IN > OUT",
        &["net 4 X > Y", "head 4 X > Y"],
        &["net X=IN > Y=mid", "head X=mid > Y=OUT"],
        0,
    );
    let clients: Vec<_> = (0..REQUESTS).map(|_| ensemble.send("IN=0")).collect();
    let waiting: Vec<_> = std::mem::take(&mut *ensemble.models.pending.lock().unwrap());
    let waiting = Arc::new(Mutex::new(waiting));
    let others = waiting.clone();
    // A request to the second step first completes another request to the first step.
    ensemble.set_handler("head", move |request, sender| {
        let next = others.lock().unwrap().pop();
        if let Some(next) = next {
            add_one(&next.request, next.sender);
        }
        add_one(&request, sender);
    });
    let start = move || {
        let first = waiting.lock().unwrap().pop().unwrap();
        add_one(&first.request, first.sender);
    };
    let thread = std::thread::Builder::new().stack_size(128 * 1024).spawn(start).unwrap();
    thread.join().unwrap();
    for client in clients {
        assert_eq!(client.wait(), ["OUT=2 end"]);
    }
}

/// Models with their own threads: no reply is lost, whatever the order of the replies.
#[test]
fn replies_from_many_threads_are_all_handled() {
    let ensemble = Arc::new(TestEnsemble::new(
        "4 IN > OUT",
        &["a 4 X > Y", "b 4 X > Y", "c 4 A B > Y"],
        &["a X=IN > Y=p", "b X=IN > Y=q", "c A=p B=q > Y=OUT"],
        3,
    ));
    let complete_one = |ensemble: &TestEnsemble| {
        let request = ensemble.models.pending.lock().unwrap().pop();
        if let Some(open) = request {
            let sum: i32 = open.request.inputs.iter().map(|input| number(&input.data)).sum();
            open.complete(&format!("Y={}", sum + 1));
        }
    };
    let (threads, requests) = (4, 500);
    let left = AtomicUsize::new(threads * requests);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                wait_until("all requests are complete", || {
                    complete_one(&ensemble);
                    left.load(Ordering::Relaxed) == 0
                });
            });
            scope.spawn(|| {
                for n in 0..requests {
                    let client = ensemble.send(&format!("IN={n}"));
                    assert_eq!(client.wait(), [format!("OUT={} end", 2 * n + 3)]);
                    left.fetch_sub(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(ensemble.successes(), threads * requests);
}
