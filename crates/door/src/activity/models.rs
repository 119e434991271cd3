//! Loom models that explore all interleavings of the threads that share a connection's activity.

use galatea_stdx::sync::thread;

use super::*;

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(run);
}

fn activity() -> Arc<ConnectionActivity> {
    Arc::new(ConnectionActivity::new(Arc::new(AtomicU32::new(0))))
}

#[test]
fn a_connection_that_lost_its_place_serves_no_request() {
    model(|| {
        let activity = activity();
        let other = activity.clone();
        let evicting =
            thread::spawn(move || other.idle_since().is_some_and(|since| other.evict(since)));
        activity.begin_wait(AwaitedClientStep::Idle, UptimeSeconds(0));
        let first = activity.end_wait();
        activity.begin_wait(AwaitedClientStep::Idle, UptimeSeconds(0));
        let second = activity.end_wait();
        let is_evicted = evicting.join().unwrap();
        // A connection that was evicted while idle finds out before it serves the next request.
        assert_eq!(is_evicted, first.is_err() || second.is_err());
        assert_eq!(is_evicted, activity.has_expired());
    });
}

#[test]
fn a_place_is_taken_once() {
    model(|| {
        let activity = activity();
        activity.begin_wait(AwaitedClientStep::Idle, UptimeSeconds(0));
        let evicting = [(); 2].map(|()| {
            let other = activity.clone();
            thread::spawn(move || other.idle_since().is_some_and(|since| other.evict(since)))
        });
        activity
            .expire(&ClientTimeouts { idle: Some(1), head: None, stall: None }, UptimeSeconds(9));
        let evictions = evicting.map(|evicting| evicting.join().unwrap());
        assert!(!(evictions[0] && evictions[1]));
        assert!(activity.has_expired());
        assert_eq!(activity.end_wait().is_err(), evictions[0] || evictions[1]);
    });
}
