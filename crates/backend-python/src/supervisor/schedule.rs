//! When a worker that has ended is started anew. Pure.

use std::time::Duration;

/// A worker that served for so long has recovered from what ended the ones before.
const RECOVERED: Duration = Duration::from_secs(10);
/// The first pause; further ones double.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// This many workers in a row are started without a pause.
const STARTS_AT_ONCE: u32 = 3;

/// The workers that ended in a row.
#[derive(Debug, Default)]
pub(crate) struct Restarts {
    in_a_row: u32,
}

impl Restarts {
    /// A worker ended after it had served for this long.
    pub(crate) fn served(&mut self, time: Duration) {
        self.in_a_row = if time >= RECOVERED { 1 } else { self.in_a_row.saturating_add(1) };
    }

    /// A worker could not be started.
    pub(crate) const fn failed(&mut self) {
        self.in_a_row = self.in_a_row.saturating_add(1);
        if self.in_a_row <= STARTS_AT_ONCE {
            self.in_a_row = STARTS_AT_ONCE.saturating_add(1);
        }
    }

    /// How long to wait before the next start.
    pub(crate) fn pause(&self) -> Duration {
        let Some(doublings) = self.in_a_row.checked_sub(STARTS_AT_ONCE.saturating_add(1)) else {
            return Duration::ZERO;
        };
        let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
        PAUSE_FIRST.saturating_mul(factor).min(PAUSE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_while_workers_end_soon() {
        let mut restarts = Restarts::default();
        let mut pauses = Vec::new();
        for _ in 0..14 {
            restarts.served(Duration::from_millis(1));
            pauses.push(restarts.pause().as_millis());
        }
        assert_eq!(
            pauses,
            [0, 0, 0, 100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]
        );
        restarts.served(RECOVERED);
        assert_eq!(restarts.pause(), Duration::ZERO);
    }

    #[test]
    fn what_does_not_start_is_tried_after_a_pause() {
        let mut restarts = Restarts::default();
        restarts.served(Duration::ZERO);
        assert_eq!(restarts.pause(), Duration::ZERO);
        restarts.failed();
        assert_eq!(restarts.pause(), PAUSE_FIRST);
        restarts.failed();
        assert_eq!(restarts.pause(), PAUSE_FIRST * 2);
        (0..100).for_each(|_| restarts.failed());
        assert_eq!(restarts.pause(), PAUSE_MAX);
    }
}
