//! Measures nanoseconds per request of the shares among 10 to 10,000 tenants, all of which have
//! waiting requests: `cargo bench -p galatea-policy --bench shares`. Compare only numbers from the
//! same machine.
#![allow(clippy::print_stdout, reason = "a command-line tool prints its result")]
#![allow(clippy::cast_precision_loss, reason = "rates are printed for people")]
#![allow(clippy::disallowed_types, reason = "the benchmark reads the clock; the shares do not")]

use std::time::Instant;

use galatea_policy::{FairShareSettings, FairShares, TenantId, Time};

/// The number of requests timed with each number of tenants.
const REQUESTS: u64 = 2_000_000;
const SAMPLES: usize = 3;
const TENANTS: [u32; 4] = [10, 100, 1_000, 10_000];

fn main() {
    for tenants in TENANTS {
        let samples = (0..SAMPLES).map(|_| nanoseconds_per_request(tenants));
        let best = samples.fold(f64::INFINITY, f64::min);
        println!("{tenants:>6} tenants: {best:.0} ns per request");
    }
}

/// Lets requests arrive, be dispatched and be settled, one after the other.
fn nanoseconds_per_request(tenants: u32) -> f64 {
    let mut shares = FairShares::new(FairShareSettings::default());
    for tenant in 0..tenants {
        shares.set_weight(TenantId(tenant), 1 + tenant % 7);
        shares.arrive(TenantId(tenant), Time(0));
        shares.arrive(TenantId(tenant), Time(0));
    }
    let begin = Instant::now();
    for number in 0..REQUESTS {
        let now = Time(number * 100_000);
        let tenant = shares.next_tenant(now).expect("requests wait");
        let charge = shares.dispatch(tenant, 1, now);
        shares.arrive(tenant, now);
        shares.settle(charge, 90_000 + number % 7 * 5_000);
    }
    begin.elapsed().as_nanos() as f64 / REQUESTS as f64
}
