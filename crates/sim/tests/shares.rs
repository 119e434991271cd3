//! Tests random tenants, their shares over ten seconds, and their limits.

use galatea_sim::{check_shares, fuzz_shares, fuzz_tenant_limits};

#[test]
fn random_tenants_are_served_in_their_turns() {
    for seed in 0..1_000 {
        fuzz_shares(seed).unwrap_or_else(|message| panic!("seed {seed}: {message}"));
    }
}

#[test]
fn tenants_that_always_wait_get_their_shares_in_any_ten_seconds() {
    for seed in 0..12 {
        check_shares(seed).unwrap_or_else(|message| panic!("seed {seed}: {message}"));
    }
}

#[test]
fn limits_admit_what_they_allow_and_name_the_exact_wait() {
    for seed in 0..1_000 {
        fuzz_tenant_limits(seed).unwrap_or_else(|message| panic!("seed {seed}: {message}"));
    }
}
