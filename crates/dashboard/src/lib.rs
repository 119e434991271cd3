//! The dashboard: a page that shows the server's activity, and the stream of events that feeds it.
//!
//! The page is a self-contained document ([`Page`]). Its HTML, styles and scripts are files under
//! `page/`, which are assembled when the server starts.
//!
//! Twice a second, the stream ([`Dashboard::watch`]) reports the state of the models and the
//! executions of their instances. All watchers share the readings. Without watchers, nothing is
//! recorded, but a thread reads the counters every five seconds so that a newly opened page shows
//! the last fifteen minutes.
//!
//! The crate doesn't know HTTP and changes nothing in the server. Loads, unloads and inference
//! requests from the page go to the endpoints that any client uses.
//!
//! | file | what it does |
//! |---|---|
//! | `page.rs` | puts the page together, with its policy and its compressed form |
//! | `watchers.rs` | the watchers, and the task that reads for them |
//! | `slot.rs` | what waits for one watcher |
//! | `frame.rs` | a reading as an event |
//! | `history.rs` | the samples of the last fifteen minutes |
//! | `residency.rs` | the models in memory, if they are loaded on demand |
//! | `sampler.rs` | the thread that takes them |
//! | `gpus.rs` | the use of GPUs |
//! | `hosts.rs` | the names under which the page is served |

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::arithmetic_side_effects
)]

mod frame;
mod gpus;
mod history;
mod hosts;
mod page;
mod residency;
mod sampler;
mod slot;
mod watchers;

use std::fmt;
use std::sync::Arc;

use galatea_control::ActivityMonitor;
use galatea_devices::Devices;
use galatea_gate::ledger::{MemoryAccount, MemoryLedger};
use galatea_infer::{AccessPass, Status, api};

pub use self::hosts::AllowedHosts;
pub use self::page::Page;
use self::sampler::Sampler;
use self::watchers::Watchers;
pub use self::watchers::{GenerationSource, WATCHERS_MAX, Watcher};

/// The page and its watchers. Clones refer to the same dashboard.
#[derive(Clone)]
pub struct Dashboard {
    page: Arc<Page>,
    watchers: Arc<Watchers>,
    hosts: Arc<AllowedHosts>,
    /// The sampler, which ends when the last clone is dropped.
    sampler: Arc<Sampler>,
}

impl Dashboard {
    /// Creates the dashboard of a server with these names and GPUs. `generation` reads the speed of
    /// the models that generate text.
    #[must_use]
    pub fn new(
        server: Arc<dyn ActivityMonitor>,
        ledger: Arc<MemoryLedger>,
        hosts: AllowedHosts,
        devices: Devices,
        generation: GenerationSource,
    ) -> Self {
        let watchers = Arc::new(Watchers::new(server, ledger, devices, generation));
        Self {
            page: Arc::new(Page::new()),
            hosts: Arc::new(hosts),
            sampler: Arc::new(Sampler::start(watchers.clone())),
            watchers,
        }
    }

    /// The names under which the dashboard is served.
    #[must_use]
    pub fn hosts(&self) -> &AllowedHosts {
        &self.hosts
    }

    /// The page.
    #[must_use]
    pub fn page(&self) -> &Page {
        &self.page
    }

    /// Begins to watch. Must be called within a runtime that has timers. The first watcher's call
    /// starts a task in that runtime that reads on behalf of all watchers.
    ///
    /// # Errors
    ///
    /// `Unavailable` if there are too many watchers or the server is stopping.
    pub fn watch(
        &self,
        pass: AccessPass<api::Statistics>,
        account: &Arc<MemoryAccount>,
    ) -> Result<Watcher, Status> {
        self.watchers.admit(pass, account)
    }

    /// Ends the streams of all watchers permanently because the server is stopping.
    pub fn close_streams(&self) {
        self.sampler.end();
        self.watchers.end_streams();
    }
}

impl fmt::Debug for Dashboard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dashboard")
    }
}
