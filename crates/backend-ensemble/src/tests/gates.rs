//! `max_inflight_requests`, and decoupled steps that pause for later steps.

use std::sync::{Arc, Mutex};

use galatea_infer::{
    Backpressure, CongestionPoint, InferenceRequest, ResponseSender, ResumeHook, Status,
};
use galatea_stdx::testing::wait_until;

use super::{TestEnsemble, request, response};
use crate::plan::LOAD_MAX_WITHOUT_LIMIT;

fn chain(limit: u32) -> TestEnsemble {
    let models = ["net 4 X > Y", "head 4 X > Y"];
    TestEnsemble::new("4 IN > OUT", &models, &["net X=IN > Y=mid", "head X=mid > Y=OUT"], limit)
}

#[test]
fn a_step_has_at_most_the_limit_of_requests_of_all_clients() {
    let ensemble = chain(2);
    let clients: Vec<_> = (0..6).map(|n| ensemble.send(&format!("IN={n}"))).collect();
    assert_eq!(ensemble.pending_requests(), ["net(X=0)", "net(X=1)"]);
    ensemble.complete("net", "Y=10");
    assert_eq!(ensemble.pending_requests(), ["net(X=1)", "head(X=10)", "net(X=2)"]);
    ensemble.complete("net", "Y=11");
    ensemble.complete("net", "Y=12");
    assert_eq!(ensemble.pending_requests(), ["head(X=10)", "head(X=11)", "net(X=3)", "net(X=4)"]);
    ensemble.complete("net", "Y=13");
    // Two calls are waiting for the slow step now, so the fast step gets no more calls.
    assert_eq!(ensemble.pending_requests(), ["head(X=10)", "head(X=11)", "net(X=4)"]);
    ensemble.complete("net", "Y=14");
    assert_eq!(ensemble.pending_requests(), ["head(X=10)", "head(X=11)"]);
    ensemble.complete("head", "Y=20");
    assert_eq!(ensemble.pending_requests(), ["head(X=11)", "head(X=12)"]);
    ensemble.complete("head", "Y=21");
    assert_eq!(ensemble.pending_requests(), ["head(X=12)", "head(X=13)", "net(X=5)"]);
    ensemble.complete("net", "Y=15");
    for expected in 22..=25 {
        ensemble.complete("head", &format!("Y={expected}"));
    }
    let replies: Vec<_> = clients.iter().map(|client| client.replies()[0].clone()).collect();
    let expected: Vec<_> = (20..=25).map(|n| format!("OUT={n} end")).collect();
    assert_eq!(replies, expected);
}

#[test]
fn a_request_cancelled_at_a_gate_gives_up_its_place() {
    let ensemble = chain(1);
    let first = ensemble.send("IN=1");
    let second = ensemble.send("IN=2");
    let third = ensemble.send("IN=3");
    second.cancel.cancel();
    let expected = "Cancelled: in ensemble 'E', [request id: r] Request cancelled end";
    assert_eq!(second.replies(), [expected]);
    assert_eq!(ensemble.pending_requests(), ["net(X=1)"]);
    ensemble.complete("net", "Y=10");
    ensemble.complete("head", "Y=20");
    assert_eq!(first.replies(), ["OUT=20 end"]);
    assert_eq!(ensemble.pending_requests(), ["net(X=3)"]);
    third.cancel.cancel();
    ensemble.take("net").sender.fail(Status::cancelled("gone"));
    let last = ensemble.send("IN=4");
    ensemble.complete("net", "Y=40");
    ensemble.complete("head", "Y=41");
    assert_eq!(last.replies(), ["OUT=41 end"]);
}

/// A model that counts up and pauses while its request is congested.
struct Producer {
    request: InferenceRequest,
    sender: ResponseSender,
    next: i32,
    count: i32,
}

impl Producer {
    fn produce_rest(mut self, produced: &Arc<Mutex<i32>>) {
        while self.next < self.count {
            if self.request.backpressure.is_congested() {
                let (backpressure, produced) =
                    (self.request.backpressure.clone(), produced.clone());
                return backpressure.when_free(move || self.produce_rest(&produced));
            }
            self.sender.send(Ok(response(&self.request, &format!("Y={}", self.next))));
            self.next += 1;
            *produced.lock().unwrap() += 1;
        }
        self.sender.finish_without_response();
    }
}

fn produce(ensemble: &TestEnsemble, count: i32) -> Arc<Mutex<i32>> {
    let produced = Arc::<Mutex<i32>>::default();
    let counted = produced.clone();
    ensemble.set_handler("stream", move |request, sender| {
        Producer { request, sender, next: 0, count }.produce_rest(&counted);
    });
    produced
}

/// Waits until the slow step has a request, because the executor's thread may be just about to send
/// one.
fn wait_for_request(ensemble: &TestEnsemble) {
    wait_until("the slow step has a request", || !ensemble.pending_requests().is_empty());
}

#[test]
fn a_fast_decoupled_step_pauses_for_a_slow_one() {
    const LIMIT: u32 = 4;
    let models = ["stream* 0 X > Y", "net 0 X > Y"];
    let steps = ["stream X=IN > Y=wave", "net X=wave > Y=OUT"];
    let ensemble = TestEnsemble::new("0 IN > OUT", &models, &steps, LIMIT);
    let produced = produce(&ensemble, 10_000);
    let clients = [ensemble.send("IN=1"), ensemble.send("IN=2")];
    for completed in 0..20_000 {
        wait_for_request(&ensemble);
        assert!(ensemble.pending_requests().len() <= 4);
        let ahead = *produced.lock().unwrap() - completed;
        // Counts the calls in the step and at its gate, and both requests' pending events.
        assert!(ahead <= 2 * 4 + 2 * (2 * 4), "{ahead} responses are under way");
        ensemble.complete("net", "Y=1");
    }
    assert_eq!(*produced.lock().unwrap(), 20_000);
    for client in clients {
        let replies = client.wait();
        assert_eq!((replies.len(), replies.last().unwrap().as_str()), (10_000, "OUT=1 end"));
    }
}

/// A request's pending work is bounded even without a limit.
#[test]
fn a_fast_decoupled_step_pauses_without_a_limit_too() {
    let models = ["stream* 0 X > Y", "net 0 X > Y"];
    let steps = ["stream X=IN > Y=wave", "net X=wave > Y=OUT"];
    let ensemble = TestEnsemble::new("0 IN > OUT", &models, &steps, 0);
    let produced = produce(&ensemble, 10_000);
    let client = ensemble.send("IN=1");
    for completed in 0..10_000 {
        wait_for_request(&ensemble);
        let ahead = usize::try_from(*produced.lock().unwrap() - completed).unwrap();
        assert!(ahead <= 2 * LOAD_MAX_WITHOUT_LIMIT, "{ahead} responses are under way");
        ensemble.complete("net", "Y=1");
    }
    assert_eq!(client.wait().len(), 10_000);
}

/// Responses that can't be used until another step has completed accumulate in the run.
#[test]
fn a_decoupled_step_pauses_for_a_parallel_step() {
    let models = ["stream* 0 X > Y", "side 0 X > Y", "pair 0 A B > Y"];
    let steps = ["stream X=IN > Y=wave", "side X=IN > Y=once", "pair A=wave B=once > Y=OUT"];
    let ensemble = TestEnsemble::new("0 IN > OUT", &models, &steps, 3);
    let produced = produce(&ensemble, 1_000);
    let client = ensemble.send("IN=1");
    assert_eq!(*produced.lock().unwrap(), 6);
    ensemble.complete("side", "Y=5");
    for _ in 0..1_000 {
        ensemble.complete("pair", "Y=1");
    }
    assert_eq!(client.replies().len(), 1_000);
}

#[test]
fn a_paused_step_resumes_when_its_request_fails() {
    let models = ["stream* 0 X > Y", "side 0 X > Y", "pair 0 A B > Y"];
    let steps = ["stream X=IN > Y=wave", "side X=IN > Y=once", "pair A=wave B=once > Y=OUT"];
    let ensemble = TestEnsemble::new("0 IN > OUT", &models, &steps, 1);
    let produced = produce(&ensemble, 1_000);
    let client = ensemble.send("IN=1");
    assert_eq!(*produced.lock().unwrap(), 2);
    ensemble.take("side").sender.fail(Status::internal("no"));
    assert_eq!(client.replies().len(), 1);
    // This model ignores the cancellation, so it runs to completion, partly on the overflow thread.
    wait_until("all are produced", || *produced.lock().unwrap() == 1_000);
}

#[derive(Default)]
struct SlowClient(Mutex<(bool, Vec<ResumeHook>)>);

impl CongestionPoint for SlowClient {
    fn is_congested(&self) -> bool {
        self.0.lock().unwrap().0
    }

    fn when_free(&self, hook: ResumeHook) -> Option<ResumeHook> {
        self.0.lock().unwrap().1.push(hook);
        None
    }
}

#[test]
fn a_decoupled_step_pauses_for_a_slow_client() {
    for limit in [0, 2] {
        let models = ["stream* 0 X > Y", "net 0 X > Y"];
        let steps = ["stream X=IN > Y=wave", "net X=wave > Y=OUT"];
        let ensemble = TestEnsemble::new("0 IN > OUT", &models, &steps, limit);
        ensemble.set_handler("net", |request, sender| {
            let response = response(&request, "Y=1");
            sender.send_final(Ok(response));
        });
        let produced = produce(&ensemble, 100);
        let reader = Arc::<SlowClient>::default();
        reader.0.lock().unwrap().0 = true;
        let backpressure = Backpressure::default().with_congestion_point(reader.clone());
        let client =
            ensemble.send_request(InferenceRequest { backpressure, ..request("IN=1", false) });
        assert_eq!(*produced.lock().unwrap(), 0);
        let hooks = {
            let mut reader = reader.0.lock().unwrap();
            reader.0 = false;
            std::mem::take(&mut reader.1)
        };
        hooks.into_iter().for_each(|hook| hook());
        assert_eq!(client.wait().len(), 101, "with limit {limit}");
    }
}
