//! Instances that come and go while their model serves.

use super::*;

#[test]
fn other_instances_come_and_go_in_place() {
    let world = World::new();
    world.put_text("m", &config("one", 1), &[1]);
    world.load("m").unwrap();
    let check = |count: u32, expected: usize| {
        world.put_config("m", &config("one", count), &[1]);
        world.load("m").unwrap();
        until(|| world.instances() == expected);
        let shown = world.server.model_config("m", None).unwrap();
        assert!(shown.json.contains(&format!("\"count\":{count}")), "{}", shown.json);
        assert_eq!((world.tag("m").as_str(), world.loads()), ("one", 1));
    };
    check(3, 3);
    check(3, 3);
    check(1, 1);
    check(2, 2);
    world.bench.refuses_instances.store(true, Ordering::SeqCst);
    world.put_config("m", &config("one", 4), &[1]);
    let status = world.load("m").unwrap_err();
    assert_eq!(
        status.message(),
        "load failed for model 'm': version 1 is at READY state: Unavailable: no room for \
         another;\n"
    );
    assert_eq!((world.tag("m").as_str(), world.instances()), ("one", 2));
    world.bench.refuses_instances.store(false, Ordering::SeqCst);
    world.load("m").unwrap();
    assert_eq!((world.instances(), world.loads()), (4, 1));
    world.put_config("m", &config("two", 4), &[1]);
    world.load("m").unwrap();
    assert_eq!((world.tag("m").as_str(), world.loads()), ("two", 2));
    until(|| world.instances() == 4);
    world.unload("m");
    until(|| world.instances() == 0);
}

#[test]
fn a_busy_instance_finishes_before_it_goes_and_others_take_over() {
    let world = World::new();
    world.put_text("m", &config("one", 2), &[1]);
    world.load("m").unwrap();
    let ask = || {
        let asked = InferenceRequest { model_name: "m".into(), ..request(&[1, 1]) };
        send(&world.server, asked)
    };
    world.bench.executing.close();
    let inboxes: Vec<_> = (0..5).map(|_| ask()).collect();
    world.bench.executing.wait_for(2);
    world.put_config("m", &config("one", 1), &[1]);
    world.load("m").unwrap();
    assert_eq!(world.instances(), 2, "both are busy");
    world.bench.executing.open();
    for inbox in inboxes {
        inbox.recv_timeout(LONG).unwrap().unwrap();
    }
    until(|| world.instances() == 1);
    assert_eq!(world.tag("m"), "one");
}
