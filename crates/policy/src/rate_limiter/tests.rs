use super::*;

const GPU: ResourceId = ResourceId(0);
const DISK: ResourceId = ResourceId(1);

/// Creates holders 0, 1, 2, … with their needs for GPU and DISK and their priorities.
fn limiter(gpu: u64, disk: u64, holders: &[(u64, u64, u32)]) -> RateLimiter {
    let mut limiter = RateLimiter::default();
    limiter.set_capacity(GPU, gpu);
    limiter.set_capacity(DISK, disk);
    for (name, &(gpu, disk, priority)) in (0..).zip(holders) {
        limiter.register(PermitHolder(name), &[(GPU, gpu), (DISK, disk)], priority);
    }
    limiter
}

/// Runs `+1` (request), `-1` (withdraw), `!1` (executed) and `?1` (unused), and compares the
/// holders that get a permit after each operation.
#[track_caller]
fn check(limiter: &mut RateLimiter, script: &str) {
    for word in script.split_whitespace() {
        let (event, expected) = word.split_once(':').unwrap_or((word, ""));
        let holder = PermitHolder(event[1..].parse().expect("a number"));
        let event = match &event[..1] {
            "+" => PermitEvent::Request(holder),
            "-" => PermitEvent::Withdraw(holder),
            "!" => PermitEvent::Return { holder, used_for: PermitUse::Executed },
            "?" => PermitEvent::Return { holder, used_for: PermitUse::Unused },
            other => panic!("unknown event {other}"),
        };
        let mut granted = Vec::new();
        limiter.step(event, &mut granted);
        let granted: Vec<String> = granted.iter().map(|one| one.0.to_string()).collect();
        assert_eq!(granted.join(","), expected, "at {word}");
    }
}

#[test]
fn permits_are_limited_by_the_resource() {
    let mut limiter = limiter(2, 0, &[(1, 0, 1), (1, 0, 1), (1, 0, 1)]);
    check(&mut limiter, "+0:0 +1:1 +2 !0:2 !1 !2");
}

#[test]
fn an_unused_permit_does_not_count() {
    let mut used = limiter(1, 0, &[(1, 0, 1), (1, 0, 1)]);
    check(&mut used, "+0:0 +1 !0:1 +0 !1:0 +1 !0:1");
    let mut unused = limiter(1, 0, &[(1, 0, 1), (1, 0, 1)]);
    check(&mut unused, "+0:0 !0 +1:1 +0 ?1:0 +1 ?0:1");
    check(&mut unused, "+0 !1:0");
}

#[test]
fn an_instance_of_priority_two_gets_half_as_many() {
    let mut limiter = limiter(1, 0, &[(1, 0, 1), (1, 0, 2)]);
    let mut counts = [0_u64; 2];
    let mut granted = Vec::new();
    for holder in [0, 1] {
        limiter.step(PermitEvent::Request(PermitHolder(holder)), &mut granted);
    }
    for _ in 0..300 {
        let holder = granted.pop().expect("a holder has a permit");
        counts[usize::try_from(holder.0).unwrap()] += 1;
        // A busy instance requests again at the moment it returns its permit.
        let again = PermitEvent::Return { holder, used_for: PermitUse::Executed };
        limiter.step_all(&[again, PermitEvent::Request(holder)], &mut granted);
    }
    assert_eq!(counts, [200, 100]);
}

/// Compares the turns of two instances with these priorities, both of which always have a batch.
/// The first one requests first.
#[track_caller]
fn check_turns(priorities: [u32; 2], first: u64, expected: &str) {
    let mut limiter = limiter(1, 0, &priorities.map(|priority| (1, 0, priority)));
    let (mut granted, mut turns) = (Vec::new(), String::new());
    for holder in [first, 1 - first].map(PermitHolder) {
        limiter.step(PermitEvent::Request(holder), &mut granted);
    }
    while turns.len() < expected.len() {
        let holder = granted.pop().expect("a holder has a permit");
        turns.push_str(&(holder.0 + 1).to_string());
        let again = PermitEvent::Return { holder, used_for: PermitUse::Executed };
        limiter.step_all(&[again, PermitEvent::Request(holder)], &mut granted);
    }
    assert_eq!(turns, expected, "{priorities:?}");
}

#[test]
// row: RL-04
fn the_turns_are_those_of_triton() {
    // Recorded from Triton with two Python models that always have 8 requests each waiting.
    check_turns([1, 2], 0, "11211211211211211211");
    check_turns([1, 2], 1, "21111211211211211211");
    check_turns([1, 3], 0, "11112111211121112111");
    check_turns([1, 3], 1, "21111111211121112111");
    check_turns([1, 1], 0, "12121212121212121212");
    check_turns([3, 2], 0, "12221212212122121221");
    check_turns([3, 2], 1, "21221212212122121221");
}

#[test]
// row: RL-05
fn a_large_need_is_not_starved_and_other_resources_stay_usable() {
    let mut limiter = limiter(2, 1, &[(1, 0, 1), (2, 0, 1), (1, 0, 1), (0, 1, 1)]);
    check(&mut limiter, "+0:0 +1 +2 +3:3 !0:1 !1:2");
}

#[test]
fn a_withdrawn_request_reserves_nothing() {
    let mut limiter = limiter(2, 0, &[(1, 0, 1), (2, 0, 1), (1, 0, 1)]);
    check(&mut limiter, "+0:0 +1 +2 -1:2 -1 !0 !2");
}

#[test]
fn a_holder_that_withdrew_and_requests_again_keeps_its_granted_permit() {
    let mut limiter = limiter(1, 0, &[(1, 0, 1), (1, 0, 1)]);
    check(&mut limiter, "+0:0 -0 +0 +1 !0:1 +0 -1 ?1:0");
    check(&mut limiter, "-0 ?0 +1:1 -1 !1 +0:0");
}

#[test]
fn a_raised_capacity_takes_effect_at_the_next_event() {
    let mut limiter = limiter(1, 0, &[(1, 0, 1), (1, 0, 1)]);
    check(&mut limiter, "+0:0 +1");
    limiter.set_capacity(GPU, 2);
    check(&mut limiter, "!0:1 +0:0");
    assert_eq!(limiter.waiting().count(), 0);
}

#[test]
#[should_panic(expected = "could never run")]
fn a_holder_that_could_never_run_is_refused() {
    limiter(1, 0, &[(2, 0, 1)]);
}

#[test]
#[should_panic(expected = "asked before")]
fn a_holder_has_one_request() {
    check(&mut limiter(1, 0, &[(1, 0, 1)]), "+0:0 +0");
}

#[test]
fn a_late_holder_starts_from_the_share_of_the_others() {
    let mut limiter = limiter(1, 0, &[(1, 0, 1), (1, 0, 1)]);
    check(&mut limiter, &["+0:0 !0 "; 9].concat());
    check(&mut limiter, "+0:0");
    limiter.register(PermitHolder(2), &[(GPU, 1)], 1);
    // Without that, 1 and 2 would now run ten times each before 0 runs again. Only the two startup
    // executions by which 0 is ahead remain.
    check(&mut limiter, "+1 +2 !0:1 +0 !1:2 +1 !2:1 +2 !1:2 +1 !2:1 +2 !1:2 +1 !2:0 +2 !0:1");
}

#[test]
fn a_holder_with_a_permit_is_deleted_when_it_is_returned() {
    let mut limiter = limiter(1, 0, &[(1, 0, 1), (1, 0, 1), (1, 0, 1)]);
    check(&mut limiter, "+0:0 +1 +2");
    let mut granted = Vec::new();
    limiter.unregister(PermitHolder(0), &mut granted);
    limiter.unregister(PermitHolder(1), &mut granted);
    assert_eq!(granted, []);
    assert!(limiter.knows(PermitHolder(0)) && !limiter.knows(PermitHolder(1)));
    check(&mut limiter, "?0:2");
    assert!(!limiter.knows(PermitHolder(0)));
}

#[test]
fn a_deleted_holder_reserves_nothing() {
    let mut limiter = limiter(2, 0, &[(1, 0, 1), (2, 0, 1), (1, 0, 1)]);
    check(&mut limiter, "+0:0 +1 +2");
    let mut granted = Vec::new();
    limiter.unregister(PermitHolder(1), &mut granted);
    assert_eq!(granted, [PermitHolder(2)]);
}
