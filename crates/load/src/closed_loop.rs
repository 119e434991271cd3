//! A closed loop: connections that send the same request repeatedly, and the response latencies.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use galatea_measure::SlidingQuantiles;
use tokio::task::LocalSet;

use crate::connection::grpc::GrpcConnection;
use crate::connection::http::HttpConnection;
use crate::sample::SampleRequest;

/// The maximum number of distinct failure reasons that are kept.
const REASONS_MAX: usize = 8;

/// The pause before reconnecting after a failed connection.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The time after which a request without a response has failed.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);

/// The time between two progress reports.
const PROGRESS_PAUSE: Duration = Duration::from_millis(100);

/// A protocol that a server speaks.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// KServe v2 over HTTP/1.1.
    Http,
    /// KServe v2 over gRPC.
    Grpc,
}

impl Protocol {
    /// The protocol's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
        }
    }
}

/// A server, reached over one protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The protocol.
    pub protocol: Protocol,
    /// `HOST:PORT`.
    pub address: String,
}

/// One load level: the target, its request, the number of connections and the durations.
#[derive(Copy, Clone, Debug)]
pub struct LoadLevel<'a> {
    /// The server.
    pub target: &'a Target,
    /// The request to send.
    pub sample: &'a SampleRequest,
    /// The number of connections, each with one request in flight.
    pub connections: u64,
    /// The time spent sending requests before counting begins.
    pub warmup: Duration,
    /// The time during which requests are counted.
    pub duration: Duration,
}

/// The results of a level's requests.
#[derive(Debug)]
pub struct LoadMeasurement {
    /// The number of responses without an error.
    pub responses: u64,
    /// The time during which requests were counted.
    pub elapsed: Duration,
    /// Failed requests by reason.
    pub failures: BTreeMap<String, u64>,
    quantiles: SlidingQuantiles,
    longest: Duration,
}

impl LoadMeasurement {
    /// The latency that this fraction of the requests doesn't exceed.
    #[must_use]
    pub fn latency_quantile(&self, share: f64) -> Option<Duration> {
        let found = self.quantiles.read(Duration::ZERO).quantile(share);
        found.map(|ns| Duration::from_nanos(ns).min(self.longest))
    }

    /// The longest latency.
    #[must_use]
    pub const fn max_latency(&self) -> Duration {
        self.longest
    }

    /// The number of failed requests.
    #[must_use]
    pub fn failure_count(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Responses per second.
    #[must_use]
    pub fn responses_per_second(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a run has fewer than 2^53 responses")]
        let responses = self.responses as f64;
        responses / self.elapsed.as_secs_f64()
    }

    fn fail(&mut self, reason: String) {
        let is_known = self.failures.contains_key(&reason);
        let reason = if is_known || self.failures.len() < REASONS_MAX {
            reason
        } else {
            String::from("other reasons")
        };
        *self.failures.entry(reason).or_default() += 1;
    }
}

/// The state that all connections of a level share.
struct LevelShared {
    measurement: RefCell<LoadMeasurement>,
    /// The time at which counting begins.
    begin: Instant,
    end: Instant,
    responses: Cell<u64>,
}

/// Runs a level. Calls `begun` when counting begins, and `progress` regularly with the elapsed
/// fraction of the time and the number of responses so far.
///
/// # Errors
///
/// Returns an error if the level can't be run at all.
pub fn run_closed_loop(
    level: LoadLevel<'_>,
    begun: impl Fn() + 'static,
    progress: impl Fn(f64, u64) + 'static,
) -> Result<LoadMeasurement, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let begin = Instant::now() + level.warmup;
    let shared = Rc::new(LevelShared {
        measurement: RefCell::new(LoadMeasurement {
            responses: 0,
            elapsed: level.duration,
            failures: BTreeMap::new(),
            quantiles: SlidingQuantiles::new(),
            longest: Duration::ZERO,
        }),
        begin,
        end: begin + level.duration,
        responses: Cell::new(0),
    });
    let tasks = LocalSet::new();
    for number in 1..=level.connections {
        let shared = shared.clone();
        let address = level.target.address.clone();
        match level.target.protocol {
            Protocol::Http => {
                let request = level.sample.to_http_request(&address, number);
                tasks.spawn_local(async move {
                    client::<HttpConnection>(&shared, &address, request).await
                });
            }
            Protocol::Grpc => {
                let request = level.sample.to_grpc_message(number);
                tasks.spawn_local(async move {
                    client::<GrpcConnection>(&shared, &address, request).await
                });
            }
        }
    }
    let watched = shared.clone();
    tasks.spawn_local(async move {
        tokio::time::sleep_until(watched.begin.into()).await;
        begun();
        while Instant::now() < watched.end {
            let over = watched.begin.elapsed().as_secs_f64();
            let all = watched.end.duration_since(watched.begin).as_secs_f64();
            progress(over / all, watched.responses.get());
            let next = Instant::now() + PROGRESS_PAUSE;
            tokio::time::sleep_until(next.min(watched.end).into()).await;
        }
        watched.measurement.borrow_mut().elapsed = watched.begin.elapsed();
    });
    runtime.block_on(tasks);
    drop(runtime);
    let shared = Rc::try_unwrap(shared).map_err(|_| String::from("a connection is left"))?;
    let mut measurement = shared.measurement.into_inner();
    measurement.responses = shared.responses.get();
    Ok(measurement)
}

/// A connection that sends samples.
trait LoadConnection: Sized {
    async fn open(address: &str) -> Result<Self, String>;

    /// Sends a request. An error is the reason why no valid response arrived.
    async fn infer(&mut self, request: &Bytes) -> Result<(), String>;
}

impl LoadConnection for HttpConnection {
    async fn open(address: &str) -> Result<Self, String> {
        Self::connect(address).await
    }

    async fn infer(&mut self, request: &Bytes) -> Result<(), String> {
        let reply = self.exchange(request).await?;
        match reply.status {
            200 => Ok(()),
            status => Err(format!("{status} {}", String::from_utf8_lossy(&reply.body))),
        }
    }
}

impl LoadConnection for GrpcConnection {
    async fn open(address: &str) -> Result<Self, String> {
        Self::connect(address).await
    }

    async fn infer(&mut self, request: &Bytes) -> Result<(), String> {
        let reply = self.call("ModelInfer", request.clone()).await?;
        match reply.code.as_str() {
            "0" => Ok(()),
            code => Err(format!("code {code} {}", reply.text)),
        }
    }
}

/// Sends requests one after another until the time is up. Requests that began in time count.
async fn client<C: LoadConnection>(shared: &LevelShared, address: &str, request: Bytes) {
    let mut connection: Option<C> = None;
    loop {
        let sent = Instant::now();
        if sent >= shared.end {
            return;
        }
        let outcome =
            tokio::time::timeout(REQUEST_TIME_MAX, step(&mut connection, address, &request));
        let outcome = outcome.await.unwrap_or_else(|_| Err(String::from("no response in 30 s")));
        let done = Instant::now();
        let counts = sent >= shared.begin && done <= shared.end;
        match outcome {
            Ok(()) if counts => {
                let latency = done.duration_since(sent);
                shared.responses.set(shared.responses.get() + 1);
                let mut measurement = shared.measurement.borrow_mut();
                measurement.longest = measurement.longest.max(latency);
                let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
                measurement.quantiles.observe(Duration::ZERO, ns);
            }
            Ok(()) => {}
            Err(reason) => {
                connection = None;
                // The user wants to see failures at any time.
                shared.measurement.borrow_mut().fail(reason);
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}

async fn step<C: LoadConnection>(
    connection: &mut Option<C>,
    address: &str,
    request: &Bytes,
) -> Result<(), String> {
    let open = match connection {
        Some(open) => open,
        None => {
            let opened = C::open(address).await;
            connection.insert(opened.map_err(|reason| format!("can't connect: {reason}"))?)
        }
    };
    open.infer(request).await
}
