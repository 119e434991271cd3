use std::sync::Arc;

use super::*;

const LIMIT: usize = 1 << 20;

/// A generator of pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 1).unwrap() % bound.max(1)
    }

    /// A size: mostly small, but sometimes large enough to fill the ledger.
    fn size(&mut self) -> usize {
        match self.below(8) {
            0 => 0,
            1..=4 => self.below(2 * MemoryAccount::STEP_BYTES),
            5 | 6 => self.below(LIMIT / 4),
            _ => self.below(2 * LIMIT),
        }
    }
}

/// A bug that code using the ledger could have.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum PlantedBug {
    None,
    /// A charge is lost and never released.
    Leak,
    /// A charge is released twice.
    ReleasedTwice,
    /// Memory is taken without checking the limit.
    Unchecked,
}

/// A detected violation.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Violation {
    /// An account's sum differs from the sum of its charges.
    WrongSum,
    /// More is held than the limit plus the connections' bases.
    BeyondLimit,
    /// A counter of the ledger fell below zero.
    BelowZero,
    /// Bytes are held although no account exists.
    NotEmpty,
}

/// Connections come and go, and their charges are made, changed and dropped in a random
/// order. Every sum is checked after every step.
fn run(seed: u64, bug: PlantedBug) -> Result<(), Violation> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let ledger = Arc::new(MemoryLedger::new(Some(LIMIT)));
    let mut accounts: Vec<(Arc<MemoryAccount>, Vec<MemoryCharge>)> = Vec::new();
    for step in 0..600 {
        if accounts.is_empty() || (accounts.len() < 6 && random.below(20) == 0) {
            accounts.push((Arc::new(MemoryAccount::of_connection(ledger.clone())), Vec::new()));
        }
        let chosen = random.below(accounts.len());
        let (account, charges) = &mut accounts[chosen];
        let buggy = step == 300;
        match random.below(10) {
            0..=3 => charges.extend(MemoryCharge::new(account, random.size())),
            4..=5 if !charges.is_empty() => {
                let charge = random.below(charges.len());
                let _ = charges[charge].set(random.size());
            }
            6 if random.below(4) == 0 => drop(accounts.swap_remove(chosen)),
            _ if !charges.is_empty() => drop(charges.swap_remove(random.below(charges.len()))),
            _ => {}
        }
        if buggy {
            plant(bug, &ledger, &mut accounts);
        }
        check(&ledger, &accounts)?;
    }
    drop(accounts);
    if ledger.held() == 0 { Ok(()) } else { Err(Violation::NotEmpty) }
}

fn plant(
    bug: PlantedBug,
    ledger: &Arc<MemoryLedger>,
    accounts: &mut Vec<(Arc<MemoryAccount>, Vec<MemoryCharge>)>,
) {
    let account = Arc::new(MemoryAccount::without_base(ledger.clone()));
    let small =
        MemoryCharge::new(&account, 1).unwrap_or_else(|_| MemoryCharge::nothing(account.clone()));
    match bug {
        PlantedBug::None => {}
        PlantedBug::Leak => std::mem::forget(small),
        PlantedBug::ReleasedTwice => {
            account.release(small.bytes());
            accounts.push((account, vec![small]));
        }
        PlantedBug::Unchecked => ledger.force(LIMIT),
    }
}

fn check(
    ledger: &MemoryLedger,
    accounts: &[(Arc<MemoryAccount>, Vec<MemoryCharge>)],
) -> Result<(), Violation> {
    if ledger.held() > usize::MAX / 2 {
        return Err(Violation::BelowZero);
    }
    let bases = accounts.len() * MemoryAccount::BASE_BYTES;
    if ledger.held() > LIMIT + bases {
        return Err(Violation::BeyondLimit);
    }
    let mut shared = ledger.held();
    for (account, charges) in accounts {
        let charged: usize = charges.iter().map(MemoryCharge::bytes).sum();
        let base = account.held().checked_sub(charged).ok_or(Violation::WrongSum)?;
        if base != 0 && base != MemoryAccount::BASE_BYTES {
            return Err(Violation::WrongSum);
        }
        let most = account.held() + 2 * MemoryAccount::STEP_BYTES;
        shared = shared.saturating_sub(most);
    }
    // The remaining bytes belong to no account.
    if shared > 0 { Err(Violation::WrongSum) } else { Ok(()) }
}

#[test]
fn sums_hold_in_any_order_of_events() {
    for seed in 0..300 {
        assert_eq!(run(seed, PlantedBug::None), Ok(()), "seed {seed}");
    }
}

/// Shows that the check above finds bugs.
#[test]
fn planted_bugs_are_found() {
    for bug in [PlantedBug::Leak, PlantedBug::ReleasedTwice, PlantedBug::Unchecked] {
        let found = (0..50).filter(|&seed| run(seed, bug).is_err()).count();
        assert!(found > 40, "{bug:?} was found with {found} of 50 seeds");
    }
}

/// Threads charge and release concurrently: held bytes never exceed the limit, and none remain at
/// the end.
#[test]
fn threads_never_exceed_the_limit_together() {
    let ledger = Arc::new(MemoryLedger::new(Some(LIMIT)));
    let shared = Arc::new(MemoryAccount::without_base(ledger.clone()));
    std::thread::scope(|scope| {
        for seed in 1..=4 {
            let (ledger, shared) = (ledger.clone(), shared.clone());
            scope.spawn(move || {
                let mut random = Random(seed);
                let own = Arc::new(MemoryAccount::without_base(ledger.clone()));
                let mut charges = Vec::new();
                for _ in 0..20_000 {
                    let account = if random.below(2) == 0 { &own } else { &shared };
                    charges.extend(MemoryCharge::new(account, random.size()));
                    assert!(ledger.held() <= LIMIT);
                    if charges.len() > 8 {
                        drop(charges.swap_remove(random.below(charges.len())));
                    }
                }
            });
        }
    });
    assert_eq!(shared.held(), 0);
    drop(shared);
    assert_eq!(ledger.held(), 0);
}

#[test]
fn a_charge_beyond_the_limit_is_refused_and_counted() {
    let ledger = Arc::new(MemoryLedger::new(Some(LIMIT)));
    let account = Arc::new(MemoryAccount::without_base(ledger.clone()));
    let mut first = MemoryCharge::new(&account, LIMIT - 100).unwrap();
    let refused = MemoryCharge::new(&account, 101).unwrap_err();
    assert_eq!(refused, MemoryLimitExceeded { wanted: 101, limit: LIMIT });
    assert!(!refused.can_never_fit());
    assert_eq!((ledger.refusals(), first.bytes()), (1, LIMIT - 100));
    assert!(first.set(LIMIT + 1).is_err());
    assert_eq!((first.bytes(), account.held()), (LIMIT - 100, LIMIT - 100));
    let rest = MemoryCharge::new(&account, 100).unwrap();
    first.shrink(LIMIT);
    assert_eq!(first.bytes(), LIMIT - 100);
    drop((first, rest));
    let lasting = MemoryCharge::new(&account, LIMIT + 1).unwrap_err();
    assert!(lasting.can_never_fit() && lasting.to_string().contains("--memory-limit"));
    assert_eq!(ledger.check(LIMIT + 1), Err(lasting));
}

#[test]
fn a_ledger_without_a_limit_counts() {
    let account = Arc::new(MemoryAccount::unlimited());
    let charge = MemoryCharge::new(&account, 1 << 40).unwrap();
    assert_eq!((account.ledger().held(), account.ledger().limit()), (1 << 40, None));
    drop(charge);
    assert_eq!(account.ledger().held(), 0);
}

/// A small request touches the counters that all connections share only when its
/// connection's credit is used up.
#[test]
fn small_charges_come_out_of_the_credit() {
    let ledger = Arc::new(MemoryLedger::new(Some(LIMIT)));
    let account = Arc::new(MemoryAccount::of_connection(ledger.clone()));
    assert_eq!(ledger.held(), MemoryAccount::BASE_BYTES);
    drop(MemoryCharge::new(&account, 100));
    let held = ledger.held();
    for _ in 0..1000 {
        let charge = MemoryCharge::new(&account, MemoryAccount::STEP_BYTES - 1).unwrap();
        assert_eq!(ledger.held(), held);
        drop(charge);
    }
    assert_eq!(account.held(), MemoryAccount::BASE_BYTES);
    drop(account);
    assert_eq!(ledger.held(), 0);
}

#[test]
fn what_a_holder_keeps_is_charged_whatever_the_limit_is() {
    let ledger = Arc::new(MemoryLedger::new(Some(LIMIT)));
    let account = Arc::new(MemoryAccount::of_connection(ledger.clone()));
    account.force_charge(LIMIT);
    assert_eq!(account.held(), MemoryAccount::BASE_BYTES + LIMIT);
    assert_eq!(ledger.account_peak(), account.held());
    assert!(MemoryCharge::new(&account, 1).is_err());
    drop(account);
    assert_eq!(ledger.held(), 0);
}

#[test]
fn memory_stays_charged_as_long_as_it_lives() {
    let ledger = Arc::new(MemoryLedger::new(Some(LIMIT)));
    let account = Arc::new(MemoryAccount::without_base(ledger.clone()));
    let held = MemoryCharge::new(&account, 100_000).unwrap().attach_to(vec![7_u8; 100_000]);
    // The account is kept alive by its charges.
    drop(account);
    assert_eq!((ledger.held(), held.as_ref().len()), (100_000, 100_000));
    assert_eq!(held.memory().first(), Some(&7));
    drop(held);
    assert_eq!((ledger.held(), ledger.account_peak()), (0, 100_000));
}

#[test]
fn a_sample_has_the_peak_of_its_period() {
    let ledger = Arc::new(MemoryLedger::new(None));
    let account = Arc::new(MemoryAccount::without_base(ledger.clone()));
    drop(MemoryCharge::new(&account, 5 << 20));
    let kept = MemoryCharge::new(&account, 1 << 20);
    assert_eq!(ledger.sample(), MemoryLedgerSample { held: 1 << 20, peak: 5 << 20 });
    assert_eq!(ledger.sample(), MemoryLedgerSample { held: 1 << 20, peak: 1 << 20 });
    ledger.note_freed(9 << 20);
    assert_eq!(ledger.sample().peak, 10 << 20);
    drop(kept);
    assert_eq!(ledger.sample(), MemoryLedgerSample { held: 0, peak: 1 << 20 });
}

#[test]
fn what_the_server_can_do_without_is_no_refusal_and_no_peak_of_a_connection() {
    let ledger = Arc::new(MemoryLedger::new(Some(100_000)));
    let account = Arc::new(MemoryAccount::of_server(ledger.clone()));
    let charge = MemoryCharge::if_there_is_room(&account, 90_000).unwrap();
    assert!(MemoryCharge::if_there_is_room(&account, 20_000).is_none());
    assert_eq!((ledger.held(), ledger.refusals(), ledger.account_peak()), (90_000, 0, 0));
    drop(charge);
    assert_eq!(ledger.held(), 0);
}
