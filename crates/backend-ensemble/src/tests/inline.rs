//! Composing models that answer before `infer` returns, and threads that drive
//! runs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use galatea_infer::{InferenceRequest, ResponseSender};

use super::{World, number, response};
use crate::turns::EVENTS_MAX;

/// A chain of so many steps of one model.
fn long_chain(steps: usize) -> World {
    let name = |n: usize| match n {
        0 => String::from("IN"),
        n if n == steps => String::from("OUT"),
        n => format!("t{n}"),
    };
    let steps: Vec<String> =
        (0..steps).map(|n| format!("net X={} > Y={}", name(n), name(n + 1))).collect();
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    World::new("4 IN > OUT", &["net 4 X > Y"], &steps, 0)
}

fn add_one(request: &InferenceRequest, sender: ResponseSender) {
    let sum = number(&request.inputs[0].data) + 1;
    sender.send_final(Ok(response(request, &format!("Y={sum}"))));
}

/// The stack would not hold a frame for each of the steps, and more are left to
/// the spare thread.
#[test]
fn a_long_chain_of_models_that_answer_at_once() {
    let world = long_chain(2_000);
    world.act("net", |request, sender| add_one(&request, sender));
    let client = std::thread::Builder::new()
        .stack_size(128 * 1024)
        .spawn(move || (world.send("IN=0"), world))
        .unwrap();
    let (client, _world) = client.join().unwrap();
    assert_eq!(client.wait(), ["OUT=2000 end"]);
}

#[test]
fn a_thread_leaves_the_rest_to_the_spare_one() {
    let steps = 2 * EVENTS_MAX;
    let world = long_chain(steps);
    let me = std::thread::current().id();
    let here = Arc::new(AtomicUsize::new(0));
    let counted = here.clone();
    world.act("net", move |request, sender| {
        counted.fetch_add(usize::from(std::thread::current().id() == me), Ordering::Relaxed);
        add_one(&request, sender);
    });
    let client = world.send("IN=0");
    assert_eq!(client.wait(), [format!("OUT={steps} end")]);
    assert_eq!(here.load(Ordering::Relaxed), EVENTS_MAX);
}

/// The model's answers to other requests come while a request is sent to it, as
/// those of a model without threads do. Each request's answer brings the next
/// one's, and so on.
#[test]
fn answers_to_others_do_not_pile_up_on_the_stack() {
    const REQUESTS: usize = 5_000;
    let world = World::new(
        "4 IN > OUT",
        &["net 4 X > Y", "head 4 X > Y"],
        &["net X=IN > Y=mid", "head X=mid > Y=OUT"],
        0,
    );
    let clients: Vec<_> = (0..REQUESTS).map(|_| world.send("IN=0")).collect();
    let waiting: Vec<_> = std::mem::take(&mut *world.models.asked.lock().unwrap());
    let waiting = Arc::new(Mutex::new(waiting));
    let others = waiting.clone();
    // Whoever is sent on answers another one first.
    world.act("head", move |request, sender| {
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

/// Models with threads of their own: nothing is lost, however the answers fall.
#[test]
fn answers_come_from_many_threads() {
    let world = Arc::new(World::new(
        "4 IN > OUT",
        &["a 4 X > Y", "b 4 X > Y", "c 4 A B > Y"],
        &["a X=IN > Y=p", "b X=IN > Y=q", "c A=p B=q > Y=OUT"],
        3,
    ));
    let answer_all = |world: &World| {
        let asked = world.models.asked.lock().unwrap().pop();
        if let Some(asked) = asked {
            let sum: i32 = asked.request.inputs.iter().map(|input| number(&input.data)).sum();
            asked.answer(&format!("Y={}", sum + 1));
        }
    };
    let (threads, requests) = (4, 500);
    let left = AtomicUsize::new(threads * requests);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while left.load(Ordering::Relaxed) > 0 {
                    answer_all(&world);
                    std::thread::yield_now();
                }
            });
            scope.spawn(|| {
                for n in 0..requests {
                    let client = world.send(&format!("IN={n}"));
                    assert_eq!(client.wait(), [format!("OUT={} end", 2 * n + 3)]);
                    left.fetch_sub(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(world.successes(), threads * requests);
}
