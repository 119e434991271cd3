use super::*;

const SECOND: u64 = 1_000_000_000;

fn shares(weights: &[u32]) -> FairShares {
    let mut shares = FairShares::new(FairShareSettings::default());
    for (tenant, weight) in (0..).zip(weights) {
        shares.set_weight(TenantId(tenant), *weight);
    }
    shares
}

/// Dispatches `count` requests of `measured_ns` each, and returns the tenants as text.
fn serve(shares: &mut FairShares, count: usize, measured_ns: u64, now: u64) -> String {
    let mut served = String::new();
    for _ in 0..count {
        let Some(tenant) = shares.next_tenant(Time(now)) else { break };
        let charge = shares.dispatch(tenant, 1, Time(now));
        shares.settle(charge, measured_ns);
        served.push(char::from_digit(tenant.0, 10).unwrap());
    }
    served
}

fn arrive(shares: &mut FairShares, tenant: u32, count: usize, now: u64) {
    (0..count).for_each(|_| shares.arrive(TenantId(tenant), Time(now)));
}

#[test]
fn equal_tenants_take_turns_and_weights_divide_the_compute() {
    let mut equal = shares(&[1, 1, 1]);
    (0..3).for_each(|tenant| arrive(&mut equal, tenant, 9, 0));
    assert_eq!(serve(&mut equal, 9, 100, 0), "012012012");
    let mut weighted = shares(&[1, 2]);
    (0..2).for_each(|tenant| arrive(&mut weighted, tenant, 9, 0));
    assert_eq!(serve(&mut weighted, 9, 100, 0), "011011011");
}

#[test]
fn compute_counts_and_not_requests() {
    let mut shares = shares(&[1, 1]);
    (0..2).for_each(|tenant| arrive(&mut shares, tenant, 40, 0));
    let mut served = [0, 0];
    for _ in 0..40 {
        let tenant = shares.next_tenant(Time(0)).unwrap();
        let charge = shares.dispatch(tenant, 1, Time(0));
        // A request of the first tenant takes three times as long.
        let measured_ns = if tenant == TenantId(0) { 300 } else { 100 };
        shares.settle(charge, measured_ns);
        served[tenant.index()] += 1;
    }
    assert_eq!(served, [10, 30]);
}

#[test]
fn a_batch_that_is_formed_at_once_mixes_tenants() {
    let mut shares = shares(&[1, 1]);
    (0..2).for_each(|tenant| arrive(&mut shares, tenant, 8, 0));
    let mut batch = Vec::new();
    for _ in 0..4 {
        let tenant = shares.next_tenant(Time(0)).unwrap();
        batch.push(shares.dispatch(tenant, 1, Time(0)));
    }
    // Nothing has been measured yet, so turns go by the latest service.
    let tenants: Vec<u32> = batch.iter().map(|charge| charge.tenant().0).collect();
    assert_eq!(tenants, [0, 1, 0, 1]);
    for charge in batch {
        shares.settle(charge, 100);
    }
    assert_eq!(shares.waiting(TenantId(0)), 6);
}

#[test]
fn a_pause_earns_nothing_and_sheds_nothing() {
    let mut shares = shares(&[1, 1]);
    arrive(&mut shares, 0, 20, 0);
    assert_eq!(serve(&mut shares, 10, 100, 0), "0000000000");
    arrive(&mut shares, 1, 20, 0);
    // The second tenant gets no credit for the time before it came.
    assert_eq!(serve(&mut shares, 6, 100, 0), "101010");
    // It leaves right after an expensive request, and finds that request charged on its return.
    let charge = shares.dispatch(TenantId(1), 1, Time(0));
    (0..16).for_each(|_| shares.leave(TenantId(1)));
    shares.settle(charge, 500);
    arrive(&mut shares, 1, 2, 0);
    assert_eq!(serve(&mut shares, 6, 100, 0), "000010");
}

#[test]
fn a_request_that_was_not_executed_costs_nothing() {
    let mut shares = shares(&[1, 1]);
    (0..2).for_each(|tenant| arrive(&mut shares, tenant, 9, 0));
    assert_eq!(serve(&mut shares, 2, 100, 0), "01");
    let charge = shares.dispatch(TenantId(0), 1, Time(0));
    assert_eq!(charge.expected_ns(), 100);
    shares.settle(charge, 0);
    let charge = shares.dispatch(TenantId(0), 1, Time(0));
    assert_eq!((charge.expected_ns(), charge.is_ahead()), (100, true));
    shares.settle(charge, 0);
}

#[test]
fn a_tenant_that_waits_too_long_is_served_ahead_of_its_turn() {
    let mut shares = shares(&[1, 1_000_000]);
    arrive(&mut shares, 0, 5, 0);
    arrive(&mut shares, 1, 1_000, 0);
    let ms = 1_000_000;
    assert_eq!(serve(&mut shares, 5, ms, 0), "01111");
    assert_eq!(serve(&mut shares, 3, ms, SECOND - 1), "111");
    // Eight milliseconds have earned 80 µs of credit. The service takes a millisecond.
    assert_eq!(serve(&mut shares, 1, ms, SECOND), "0");
    assert!(!serve(&mut shares, 91, ms, 3 * SECOND).contains('0'));
    assert_eq!(serve(&mut shares, 3, ms, 3 * SECOND).matches('0').count(), 1);
}

#[test]
fn durations_are_divided_exactly() {
    let parts = |duration, works: &[u64]| {
        divide_compute(duration, works.iter().copied()).collect::<Vec<u64>>()
    };
    assert_eq!(parts(100, &[1, 1, 1]), [33, 33, 34]);
    assert_eq!(parts(100, &[1, 3]), [25, 75]);
    assert_eq!(parts(7, &[0, 0]), [3, 4]);
    assert_eq!(parts(u64::MAX, &[u64::MAX, 1, u64::MAX]).iter().sum::<u64>(), u64::MAX);
    assert_eq!(parts(5, &[]), []);
}

#[test]
fn a_bucket_fills_at_its_rate_and_holds_its_burst() {
    let mut bucket = TokenBucket::new(2, 4, Time(0));
    assert_eq!(bucket.wait_ns(Time(0), 4), 0);
    bucket.take(Time(0), 4);
    assert_eq!(bucket.wait_ns(Time(0), 1), SECOND / 2);
    assert_eq!(bucket.wait_ns(Time(SECOND / 2), 1), 0);
    assert_eq!(bucket.wait_ns(Time(SECOND / 2 - 1), 1), 1);
    // An amount above the burst is admitted when the bucket is full, and leaves a debt.
    assert_eq!(bucket.wait_ns(Time(2 * SECOND), 10), 0);
    bucket.take(Time(2 * SECOND), 10);
    assert_eq!(bucket.wait_ns(Time(2 * SECOND), 0), 3 * SECOND);
    // It never holds more than its burst.
    bucket.take(Time(90 * SECOND), 4);
    assert_eq!(bucket.wait_ns(Time(90 * SECOND), 1), SECOND / 2);
    // A time that was read earlier counts as the latest one.
    assert_eq!(bucket.wait_ns(Time(0), 1), SECOND / 2);
}

#[test]
fn a_request_takes_from_all_limits_or_from_none() {
    let limits = TenantLimits { requests: Some(2), bytes: Some(100), compute_ms: Some(10) };
    let mut usage = TenantUsage::new(&limits, Time(0));
    let refused = |limit, retry_after_ns| Err(TenantLimitExceeded { limit, retry_after_ns });
    assert_eq!(usage.admit(Time(0), 80), Ok(()));
    assert_eq!(usage.admit(Time(0), 80), refused(TenantLimit::Bytes, SECOND * 6 / 10));
    assert_eq!(usage.admit(Time(0), 20), Ok(()));
    assert_eq!(usage.admit(Time(0), 0), refused(TenantLimit::Requests, SECOND / 2));
    usage.charge_compute(Time(SECOND), 25_000_000);
    assert_eq!(usage.admit(Time(SECOND), 0), refused(TenantLimit::Compute, SECOND * 3 / 2));
    assert_eq!(usage.admit(Time(SECOND * 5 / 2), 0), Ok(()));
    assert_eq!(TenantUsage::default().admit(Time(0), u64::MAX), Ok(()));
}
