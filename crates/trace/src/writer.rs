//! The thread that writes traces.

use std::io;

use crate::files::TraceFiles;
use crate::queue::{Message, TraceQueue};

/// Writes what is queued, until the server ends.
pub(crate) fn run(queue: &TraceQueue, mut files: TraceFiles, log_error: &dyn Fn(&str)) {
    let mut losses = Losses::default();
    loop {
        for message in queue.take() {
            match message {
                Message::Trace(trace) => report(files.add(&trace), log_error),
                Message::Retired(setting) => report(files.retire(setting), log_error),
                Message::Stop => return report(files.finish(), log_error),
            }
        }
        losses.report(queue.dropped(), log_error);
    }
}

fn report(result: io::Result<()>, log_error: &dyn Fn(&str)) {
    if let Err(error) = result {
        log_error(&format!("failed creating trace file: {error}"));
    }
}

/// Tells of dropped traces, ever more seldom.
#[derive(Debug, Default)]
struct Losses {
    told: u64,
}

impl Losses {
    fn report(&mut self, dropped: u64, log_error: &dyn Fn(&str)) {
        if dropped > self.told.saturating_mul(2) {
            self.told = dropped;
            log_error(&format!(
                "{dropped} traces were dropped so far: requests are traced faster than traces \
                 are written"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_traces_are_told_of_ever_more_seldom() {
        let lines = std::cell::RefCell::new(Vec::new());
        let mut losses = Losses::default();
        for dropped in [0, 1, 1, 2, 3, 6, 7, 100] {
            losses.report(dropped, &|_| lines.borrow_mut().push(dropped));
        }
        assert_eq!(lines.into_inner(), [1, 3, 7, 100]);
    }
}
