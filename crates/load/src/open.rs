//! An open loop: requests arrive regardless of the responses to earlier requests.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::options::Options;
use crate::report::Report;
use crate::serial::{self, Client};

/// Sends a request at each arrival. If every connection is in use, the request waits, and the wait
/// is part of its latency.
pub(crate) async fn run<C: Client + 'static>(
    options: &Rc<Options>,
    mut arrivals: UnboundedReceiver<Instant>,
    report: &Rc<RefCell<Report>>,
) {
    let permits = usize::try_from(options.connections).unwrap_or(Semaphore::MAX_PERMITS);
    let free = Rc::new(Semaphore::new(permits));
    let idle: Rc<RefCell<Vec<C>>> = Rc::default();
    let mut number = 0;
    while let Some(arrival) = arrivals.recv().await {
        number += 1;
        // The generator's own delays are not part of the server's latency.
        let begin = Instant::now();
        report.borrow_mut().late(begin.saturating_duration_since(arrival));
        let (options, report) = (options.clone(), report.clone());
        let (free, idle) = (free.clone(), idle.clone());
        tokio::task::spawn_local(async move {
            let Ok(_permit) = free.acquire().await else { return };
            let client = idle.borrow_mut().pop();
            let mut mix = serial::mix(&options, number);
            let client = serial::step(&options, client, &mut mix, begin, &report).await;
            idle.borrow_mut().extend(client);
        });
    }
}
