//! A single connection: sends requests one after another until the time is up.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::time::timeout;

use crate::mix::{Action, Mix};
use crate::options::Options;
use crate::report::{GoodRequestOutcome, Report};

/// The time after which a request has failed.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);

/// The time limit for the response to a hostile request.
const HOSTILE_TIME_MAX: Duration = Duration::from_secs(10);

/// A client for one protocol. Errors are reasons.
pub(crate) trait Client: Sized {
    /// Connects.
    async fn connect(options: &Options) -> Result<Self, String>;

    /// Sends a good request with this tensor and compares the response with the tensor.
    async fn infer(
        &mut self,
        options: &Options,
        tensor: Vec<u8>,
    ) -> Result<GoodRequestOutcome, String>;

    /// Sends the first thousandths of a good request.
    async fn infer_partly(
        &mut self,
        options: &Options,
        tensor: Vec<u8>,
        thousandths: u64,
    ) -> Result<(), String>;

    /// Sends a hostile request; returns its kind and its result.
    async fn attack(&mut self, options: &Options, number: u64) -> (&'static str, String);
}

/// Serves one connection's share of the load.
pub(crate) async fn run<C: Client>(
    options: &Options,
    number: u64,
    end: Instant,
    report: &Rc<RefCell<Report>>,
) {
    let mut mix = mix(options, number);
    let mut client = None;
    while Instant::now() < end {
        client = step::<C>(options, client, &mut mix, Instant::now(), report).await;
    }
}

/// The sequence of choices for a connection or a sender.
pub(crate) const fn mix(options: &Options, number: u64) -> Mix {
    let seed = options.seed.wrapping_mul(1_000_003).wrapping_add(number);
    Mix::new(seed, options.hostile_percent, options.disconnect_percent)
}

/// Takes the next step, over a new connection if there is none. Returns the connection if it is
/// reusable.
pub(crate) async fn step<C: Client>(
    options: &Options,
    client: Option<C>,
    mix: &mut Mix,
    begin: Instant,
    report: &Rc<RefCell<Report>>,
) -> Option<C> {
    let connected = match client {
        Some(connected) => Ok(connected),
        None => C::connect(options).await,
    };
    let mut connected: C = match connected {
        Ok(connected) => connected,
        Err(reason) => {
            report.borrow_mut().good(begin, Err(format!("connect: {reason}")));
            return None;
        }
    };
    match mix.action() {
        Action::Good => {
            let tensor = tensor(mix, options.elements);
            let served = timeout(REQUEST_TIME_MAX, connected.infer(options, tensor)).await;
            let served = served.unwrap_or_else(|_| Err(String::from("no response in time")));
            let is_usable = served.is_ok();
            report.borrow_mut().good(begin, served);
            is_usable.then_some(connected)
        }
        Action::Hostile(kind) => {
            let attack = connected.attack(options, kind);
            let (kind, result) = timeout(HOSTILE_TIME_MAX, attack)
                .await
                .unwrap_or_else(|_| ("some", String::from("no response in time")));
            report.borrow_mut().hostile(kind, &result);
            None
        }
        Action::Disconnect(thousandths) => {
            let tensor = tensor(mix, options.elements);
            let _ = connected.infer_partly(options, tensor, thousandths).await;
            report.borrow_mut().disconnect();
            None
        }
    }
}

/// Random elements, so that the response to another request would differ.
fn tensor(mix: &mut Mix, elements: usize) -> Vec<u8> {
    let first = mix.number();
    let mut tensor = Vec::with_capacity(elements * 4);
    for index in 0..elements as u64 {
        let element = first.wrapping_mul(index.wrapping_add(1)) >> 32;
        tensor.extend_from_slice(&(element as u32).to_le_bytes());
    }
    tensor
}
