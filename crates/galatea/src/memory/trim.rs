//! Gives free memory back to the system after a burst.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use galatea_allocator::AllocatorTuning;
use galatea_gate::ledger::{Ledger, TrimDecision, TrimRule};
use galatea_telemetry::Logger;
use tokio::time::MissedTickBehavior;

/// The pause between two looks at the ledger.
const PERIOD: Duration = Duration::from_secs(1);

/// Gives free memory back whenever much less is held than before. The program's allocator
/// does it, on a thread that serves no door.
pub(crate) async fn trim_after_bursts(
    allocator: AllocatorTuning,
    ledger: Arc<Ledger>,
    logger: Logger,
) -> Infallible {
    let mut rule = TrimRule::default();
    let mut periods = tokio::time::interval(PERIOD);
    periods.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        periods.tick().await;
        match rule.step(ledger.sample()) {
            TrimDecision::Keep => {}
            TrimDecision::Trim => {
                // It takes the locks of the allocator, one heap after the other.
                let allocator = allocator.clone();
                let release = move || allocator.release_free_memory();
                let _ = tokio::task::spawn_blocking(release).await;
                logger.verbose(1, "gave free memory back to the system");
            }
        }
    }
}
