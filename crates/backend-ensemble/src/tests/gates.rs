//! `max_inflight_requests`, and steps that pause for those behind them.

use std::sync::{Arc, Mutex};

use galatea_infer::{
    CongestionPoint, InferenceRequest, ResponseSender, ResumeHook, Status, Throttle,
};

use super::{World, request, response};
use crate::plan::ROOM_WITHOUT_LIMIT;

fn chain(limit: u32) -> World {
    let models = ["net 4 X > Y", "head 4 X > Y"];
    World::new("4 IN > OUT", &models, &["net X=IN > Y=mid", "head X=mid > Y=OUT"], limit)
}

#[test]
fn a_step_has_so_many_requests_at_a_time_of_all_clients() {
    let world = chain(2);
    let clients: Vec<_> = (0..6).map(|n| world.send(&format!("IN={n}"))).collect();
    assert_eq!(world.asked(), ["net(X=0)", "net(X=1)"]);
    world.answer("net", "Y=10");
    assert_eq!(world.asked(), ["net(X=1)", "head(X=10)", "net(X=2)"]);
    world.answer("net", "Y=11");
    world.answer("net", "Y=12");
    assert_eq!(world.asked(), ["head(X=10)", "head(X=11)", "net(X=3)", "net(X=4)"]);
    world.answer("net", "Y=13");
    // Two wait before the slow step now, so the quick one gets nothing more.
    assert_eq!(world.asked(), ["head(X=10)", "head(X=11)", "net(X=4)"]);
    world.answer("net", "Y=14");
    assert_eq!(world.asked(), ["head(X=10)", "head(X=11)"]);
    world.answer("head", "Y=20");
    assert_eq!(world.asked(), ["head(X=11)", "head(X=12)"]);
    world.answer("head", "Y=21");
    assert_eq!(world.asked(), ["head(X=12)", "head(X=13)", "net(X=5)"]);
    world.answer("net", "Y=15");
    for expected in 22..=25 {
        world.answer("head", &format!("Y={expected}"));
    }
    let replies: Vec<_> = clients.iter().map(|client| client.replies()[0].clone()).collect();
    let expected: Vec<_> = (20..=25).map(|n| format!("OUT={n} end")).collect();
    assert_eq!(replies, expected);
}

#[test]
fn who_gives_up_while_it_waits_makes_room() {
    let world = chain(1);
    let first = world.send("IN=1");
    let second = world.send("IN=2");
    let third = world.send("IN=3");
    second.cancel.cancel();
    let expected = "Cancelled: in ensemble 'E', [request id: r] Request cancelled end";
    assert_eq!(second.replies(), [expected]);
    assert_eq!(world.asked(), ["net(X=1)"]);
    world.answer("net", "Y=10");
    world.answer("head", "Y=20");
    assert_eq!(first.replies(), ["OUT=20 end"]);
    assert_eq!(world.asked(), ["net(X=3)"]);
    third.cancel.cancel();
    world.take("net").sender.fail(Status::cancelled("gone"));
    let last = world.send("IN=4");
    world.answer("net", "Y=40");
    world.answer("head", "Y=41");
    assert_eq!(last.replies(), ["OUT=41 end"]);
}

/// A model that counts up for as long as nobody asks it to pause.
struct Producer {
    request: InferenceRequest,
    sender: ResponseSender,
    next: i32,
    count: i32,
}

impl Producer {
    fn go_on(mut self, made: &Arc<Mutex<i32>>) {
        while self.next < self.count {
            if self.request.throttle.is_congested() {
                let (throttle, made) = (self.request.throttle.clone(), made.clone());
                return throttle.when_free(move || self.go_on(&made));
            }
            self.sender.send(Ok(response(&self.request, &format!("Y={}", self.next))));
            self.next += 1;
            *made.lock().unwrap() += 1;
        }
        self.sender.finish();
    }
}

fn produce(world: &World, count: i32) -> Arc<Mutex<i32>> {
    let made = Arc::<Mutex<i32>>::default();
    let counted = made.clone();
    world.act("stream", move |request, sender| {
        Producer { request, sender, next: 0, count }.go_on(&counted);
    });
    made
}

#[test]
fn a_quick_decoupled_step_pauses_for_a_slow_one() {
    const LIMIT: u32 = 4;
    let models = ["stream* 0 X > Y", "net 0 X > Y"];
    let steps = ["stream X=IN > Y=wave", "net X=wave > Y=OUT"];
    let world = World::new("0 IN > OUT", &models, &steps, LIMIT);
    let made = produce(&world, 10_000);
    let clients = [world.send("IN=1"), world.send("IN=2")];
    let mut answered = 0;
    while !world.asked().is_empty() {
        assert!(world.asked().len() <= 4);
        let ahead = *made.lock().unwrap() - answered;
        // In the step and before it, and what each request may have in itself.
        assert!(ahead <= 2 * 4 + 2 * (2 * 4), "{ahead} responses are under way");
        world.answer("net", "Y=1");
        answered += 1;
    }
    assert_eq!((answered, *made.lock().unwrap()), (20_000, 20_000));
    for client in clients {
        let replies = client.replies();
        assert_eq!((replies.len(), replies.last().unwrap().as_str()), (10_000, "OUT=1 end"));
    }
}

/// Without a limit, what one request has under way is bounded all the same.
#[test]
fn a_quick_decoupled_step_pauses_in_the_end() {
    let models = ["stream* 0 X > Y", "net 0 X > Y"];
    let steps = ["stream X=IN > Y=wave", "net X=wave > Y=OUT"];
    let world = World::new("0 IN > OUT", &models, &steps, 0);
    let made = produce(&world, 10_000);
    let client = world.send("IN=1");
    let mut answered = 0;
    while !world.asked().is_empty() {
        let ahead = usize::try_from(*made.lock().unwrap() - answered).unwrap();
        assert!(ahead <= 2 * ROOM_WITHOUT_LIMIT, "{ahead} responses are under way");
        world.answer("net", "Y=1");
        answered += 1;
    }
    assert_eq!((answered, client.replies().len()), (10_000, 10_000));
}

/// Waves that nothing takes up, because another step has not answered, pile up in
/// the request itself.
#[test]
fn a_decoupled_step_pauses_for_one_beside_it() {
    let models = ["stream* 0 X > Y", "side 0 X > Y", "pair 0 A B > Y"];
    let steps = ["stream X=IN > Y=wave", "side X=IN > Y=once", "pair A=wave B=once > Y=OUT"];
    let world = World::new("0 IN > OUT", &models, &steps, 3);
    let made = produce(&world, 1_000);
    let client = world.send("IN=1");
    assert_eq!(*made.lock().unwrap(), 6);
    world.answer("side", "Y=5");
    for _ in 0..1_000 {
        world.answer("pair", "Y=1");
    }
    assert_eq!(client.replies().len(), 1_000);
}

#[test]
fn a_paused_step_goes_on_when_its_request_fails() {
    let models = ["stream* 0 X > Y", "side 0 X > Y", "pair 0 A B > Y"];
    let steps = ["stream X=IN > Y=wave", "side X=IN > Y=once", "pair A=wave B=once > Y=OUT"];
    let world = World::new("0 IN > OUT", &models, &steps, 1);
    let made = produce(&world, 1_000);
    let client = world.send("IN=1");
    assert_eq!(*made.lock().unwrap(), 2);
    world.take("side").sender.fail(Status::internal("no"));
    assert_eq!(client.replies().len(), 1);
    // This one does not look at its cancellation, so it comes to its end; partly
    // on the spare thread.
    while *made.lock().unwrap() < 1_000 {
        std::thread::yield_now();
    }
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
fn a_decoupled_step_pauses_for_the_client_too() {
    for limit in [0, 2] {
        let models = ["stream* 0 X > Y", "net 0 X > Y"];
        let steps = ["stream X=IN > Y=wave", "net X=wave > Y=OUT"];
        let world = World::new("0 IN > OUT", &models, &steps, limit);
        world.act("net", |request, sender| {
            let response = response(&request, "Y=1");
            sender.send_final(Ok(response));
        });
        let made = produce(&world, 100);
        let reader = Arc::<SlowClient>::default();
        reader.0.lock().unwrap().0 = true;
        let throttle = Throttle::default().with(reader.clone());
        let client = world.send_request(InferenceRequest { throttle, ..request("IN=1", false) });
        assert_eq!(*made.lock().unwrap(), 0);
        let hooks = {
            let mut reader = reader.0.lock().unwrap();
            reader.0 = false;
            std::mem::take(&mut reader.1)
        };
        hooks.into_iter().for_each(|hook| hook());
        assert_eq!(client.wait().len(), 101, "with limit {limit}");
    }
}
