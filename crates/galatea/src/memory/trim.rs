//! Returns free memory to the system after a burst.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use galatea_allocator::GlibcMallocTuner;
use galatea_gate::ledger::{HeapTrimDecision, HeapTrimPolicy, MemoryLedger};
use galatea_telemetry::Logger;
use tokio::time::MissedTickBehavior;

/// The interval between checks of the ledger.
const PERIOD: Duration = Duration::from_secs(1);

/// Returns free memory whenever usage has dropped considerably. The program's allocator returns the
/// memory on a thread that serves no door.
pub(crate) async fn trim_after_bursts(
    allocator: GlibcMallocTuner,
    ledger: Arc<MemoryLedger>,
    logger: Logger,
) -> Infallible {
    let mut rule = HeapTrimPolicy::default();
    let mut periods = tokio::time::interval(PERIOD);
    periods.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        periods.tick().await;
        match rule.decide(ledger.sample()) {
            HeapTrimDecision::Keep => {}
            HeapTrimDecision::Trim => {
                // Trimming takes the allocator's locks, one heap at a time.
                let allocator = allocator.clone();
                let release = move || allocator.release_free_memory();
                let _ = tokio::task::spawn_blocking(release).await;
                logger.verbose(1, "gave free memory back to the system");
            }
        }
    }
}
