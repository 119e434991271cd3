//! Tests of capacities and limits.

use std::sync::{Arc, Mutex, Weak};

use galatea_infer::Status;
use galatea_policy::{InstanceId, ResourceId};

use crate::rate_limiter::resources::{Resource, ResourceScope};
use crate::rate_limiter::*;

#[derive(Debug)]
struct Unused;

impl PermitReceiver for Unused {
    fn permit_granted(&self, _: InstanceId) -> GrantedPermits {
        GrantedPermits::new()
    }
}

fn driver(limits: &[(&str, u32, Option<u32>)]) -> RateLimiterDriver {
    let limits = limits.iter().map(|&(name, count, device)| ResourceLimit {
        name: String::from(name),
        count,
        device,
    });
    let log = LogSink::new(|_, _, _| {});
    RateLimiterDriver::new(&RateLimiterMode::ExecutionCount(limits.collect()), &log).unwrap()
}

fn requirements(name: &str, scope: ResourceScope, count: u64) -> ResourceRequirements {
    let resource = Resource { name: String::from(name), scope };
    ResourceRequirements { resources: vec![(resource, count)], priority: 0 }
}

#[track_caller]
fn check(driver: &RateLimiterDriver, needed: &[(&str, ResourceScope, u64)], expected: &str) {
    let receiver = driver.add_receiver(Weak::<Unused>::new());
    let outcomes = (0..).map(InstanceId).zip(needed).map(|(instance, &(name, scope, count))| {
        driver.register(receiver, instance, requirements(name, scope, count))
    });
    let outcome: Result<Vec<()>, Status> = outcomes.collect();
    let said = outcome.err().map_or(String::new(), |status| status.message().to_owned());
    assert!(said.contains(expected) && said.is_empty() == expected.is_empty(), "{said}");
}

#[test]
// row: RL-02
fn without_limits_the_capacity_is_the_largest_requirement() {
    let driver = driver(&[]);
    let receiver = driver.add_receiver(Weak::<Unused>::new());
    for (instance, count) in (0..).map(InstanceId).zip([2, 5, 3]) {
        driver
            .register(receiver, instance, requirements("R", ResourceScope::Global, count))
            .unwrap();
    }
    let capacity = || driver.state.lock("look at the limiter").limiter.capacity(ResourceId(0));
    assert_eq!(capacity(), 5);
    driver.unregister(receiver, InstanceId(1));
    assert_eq!(capacity(), 3);
}

#[test]
// row: RL-02
fn limits_apply_to_every_resource() {
    let list = [("R", 4, None), ("R", 8, Some(1)), ("S", 2, Some(0)), ("S", 1, Some(0))];
    let on = ResourceScope::Device;
    check(&driver(&list), &[("R", on(0), 4), ("R", on(1), 8), ("S", on(0), 1)], "");
    check(&driver(&list), &[("R", ResourceScope::Global, 8)], "");
    let limited = "Resource count for \"R\" is limited to 4 which";
    check(&driver(&list), &[("R", on(0), 5)], limited);
    check(&driver(&list), &[("S", on(0), 2)], "limited to 1 which");
    check(&driver(&list), &[("S", on(1), 1)], "limited to 0 which");
    check(&driver(&list), &[("T", ResourceScope::Global, 1)], "\"T\" is limited to 0 which");
}

/// The amounts in the log after each of these steps. A step either registers an instance with this
/// requirement of R, or removes the instance with this number.
#[track_caller]
fn check_log(limits: &[(&str, u32, Option<u32>)], steps: &[Result<u64, u32>], expected: &[&str]) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let written = lines.clone();
    let log = LogSink::new(move |_, _, text| written.lock().unwrap().push(text.to_string()))
        .with_level_filter(|_| true);
    let driver = RateLimiterDriver { log, ..driver(limits) };
    let receiver = driver.add_receiver(Weak::<Unused>::new());
    let mut instances = (0..).map(InstanceId);
    for step in steps {
        match *step {
            Ok(count) => {
                let instance = instances.next().unwrap();
                let requirements = requirements("R", ResourceScope::Device(0), count);
                driver.register(receiver, instance, requirements).unwrap();
            }
            Err(number) => drop(driver.unregister(receiver, InstanceId(number))),
        }
    }
    let lines = lines.lock().unwrap();
    let shown: Vec<&str> = lines
        .iter()
        .map(|text| text.strip_prefix("\nMax Resource Map===>\n").unwrap())
        .map(|text| text.strip_prefix("\tDevice: 0\n\t\tResource: R\t Count: ").unwrap_or(text))
        .map(str::trim_end)
        .collect();
    assert_eq!(shown, expected);
}

#[test]
// row: RL-03
fn the_log_shows_how_much_there_is() {
    let limit = [("R", 10, None)];
    check_log(&limit, &[Ok(4), Ok(3), Err(0), Err(1)], &["10", "10", "10", "10"]);
    check_log(&limit, &[Ok(4), Ok(10), Err(1), Err(0)], &["10", "10", "10", "10"]);
    check_log(&limit, &[Ok(10), Err(0)], &["10", ""]);
    check_log(&[], &[Ok(4), Ok(3), Err(0), Err(1)], &["4", "4", "3", ""]);
}

#[test]
fn a_resource_is_either_global_or_specific_to_devices() {
    let both = [("R", ResourceScope::Global, 1), ("R", ResourceScope::Device(0), 1)];
    check(&driver(&[]), &both, "\"R\" is present as both global and device-specific");
    check(&driver(&[]), &[both[1], both[0]], "\"R\" is present as both");
}

#[test]
fn a_permit_of_a_dropped_dispatcher_goes_to_the_next_instance() {
    let driver = driver(&[]);
    let receiver = driver.add_receiver(Weak::<Unused>::new());
    for instance in [0, 1].map(InstanceId) {
        driver.register(receiver, instance, requirements("R", ResourceScope::Global, 1)).unwrap();
    }
    let operations = [0, 1].map(|instance| PermitOperation::Request(InstanceId(instance)));
    let PermitDecision { granted, delayed } = driver.apply(receiver, &operations).unwrap();
    assert_eq!(granted, [receiver.holder(InstanceId(0))]);
    assert_eq!(delayed, [InstanceId(1)]);
    driver.deliver(granted);
    assert_eq!(driver.state.lock("look at the limiter").limiter.waiting().count(), 0);
}
