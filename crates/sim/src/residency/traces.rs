//! Made sequences of requests for models with bytes and load times.

use crate::random::Random;

/// The number of models in each trace.
const MODELS: usize = 100;

/// A sequence of requests for models that don't all fit into memory.
#[derive(Clone, Debug)]
pub struct ModelTrace {
    /// The name.
    pub name: &'static str,
    /// The bytes of each model.
    pub bytes: Vec<u64>,
    /// The load time of each model, in milliseconds.
    pub load_ms: Vec<u64>,
    /// The memory for models.
    pub budget: u64,
    /// The models of the requests, in order.
    pub requests: Vec<usize>,
}

/// A law of random numbers with a rank: rank `n` has a weight of `n` to the power of `-exponent`.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(ranks: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let add = |rank: usize| {
            sum += (rank as f64).powf(-exponent);
            sum
        };
        Self((1..=ranks).map(add).collect())
    }

    fn draw(&self, random: &mut Random) -> usize {
        let point = random.unit() * self.0.last().copied().unwrap_or_default();
        self.0.partition_point(|sum| *sum < point).min(self.0.len() - 1)
    }
}

impl ModelTrace {
    /// Makes the twelve traces, each with this number of requests.
    #[must_use]
    pub fn all(requests: usize) -> Vec<Self> {
        vec![
            zipf("Zipf", requests, usize::MAX, LoadCosts::Equal),
            zipf("Zipf, ranks change at once", requests, 20_000, LoadCosts::Equal),
            drift(requests),
            scans(requests),
            Self::equal("loop", 75, (0..requests).map(|number| number % MODELS).collect()),
            bursts(requests),
            diurnal(requests),
            zipf("Zipf, different bytes", requests, usize::MAX, LoadCosts::Bytes),
            zipf("Zipf, different load times", requests, usize::MAX, LoadCosts::LoadTimes),
            zipf("both, ranks change at once", requests, 40_000, LoadCosts::Both),
            small_and_large(requests),
            newcomers(requests),
        ]
    }

    fn equal(name: &'static str, fit: u64, requests: Vec<usize>) -> Self {
        let (bytes, load_ms) = (vec![1_000; MODELS], vec![5_000; MODELS]);
        Self { name, bytes, load_ms, budget: fit * 1_000, requests }
    }
}

/// The costs of the models of a trace.
enum LoadCosts {
    Equal,
    Bytes,
    LoadTimes,
    Both,
}

/// Requests by Zipf's law, whose ranks are drawn again after `period` requests.
fn zipf(name: &'static str, requests: usize, period: usize, costs: LoadCosts) -> ModelTrace {
    let mut random = Random::new(name.len() as u64);
    let (law, mut models) = (Zipf::new(MODELS, 0.9), (0..MODELS).collect::<Vec<_>>());
    let mut next = |number: usize| {
        if number.is_multiple_of(period) {
            shuffle(&mut models, &mut random);
        }
        models[law.draw(&mut random)]
    };
    let mut trace = ModelTrace::equal(name, 25, (0..requests).map(&mut next).collect());
    let mut draw = |least: f64, most: f64| -> Vec<u64> {
        (0..MODELS).map(|_| (least * (most / least).powf(random.unit())) as u64).collect()
    };
    match costs {
        LoadCosts::Equal => return trace,
        LoadCosts::Bytes => {
            trace.bytes = draw(20.0, 5_000.0);
            trace.load_ms = trace.bytes.iter().map(|bytes| 500 + 2 * bytes).collect();
        }
        LoadCosts::LoadTimes => trace.load_ms = draw(200.0, 60_000.0),
        LoadCosts::Both => {
            (trace.bytes, trace.load_ms) = (draw(20.0, 5_000.0), draw(200.0, 60_000.0))
        }
    }
    trace.budget = trace.bytes.iter().sum::<u64>() / 5;
    trace
}

fn shuffle(models: &mut [usize], random: &mut Random) {
    for last in (1..models.len()).rev() {
        models.swap(last, below(last + 1, random));
    }
}

fn below(count: usize, random: &mut Random) -> usize {
    (random.number() % count as u64) as usize
}

/// Requests by Zipf's law, in which two models exchange ranks after every 100 requests.
fn drift(requests: usize) -> ModelTrace {
    let mut random = Random::new(3);
    let (law, mut models) = (Zipf::new(MODELS, 1.1), (0..MODELS).collect::<Vec<_>>());
    let next = |number: usize| {
        if number.is_multiple_of(100) {
            let (one, two) = (below(MODELS, &mut random), below(MODELS, &mut random));
            models.swap(one, two);
        }
        models[law.draw(&mut random)]
    };
    ModelTrace::equal("Zipf, ranks drift", 15, (0..requests).map(next).collect())
}

/// Requests by Zipf's law, with a scan of all models in every second request of a fifth.
fn scans(requests: usize) -> ModelTrace {
    let mut random = Random::new(4);
    let law = Zipf::new(MODELS, 0.9);
    let next = |number: usize| {
        let in_scan = number % 1_000;
        let is_scan = in_scan < 2 * MODELS && in_scan.is_multiple_of(2);
        if is_scan { in_scan / 2 } else { law.draw(&mut random) }
    };
    ModelTrace::equal("Zipf with scans", 25, (0..requests).map(next).collect())
}

/// Four clients, each of which stays with a model for 50 requests on average.
fn bursts(requests: usize) -> ModelTrace {
    let mut random = Random::new(6);
    let (law, mut models) = (Zipf::new(MODELS, 0.6), [0; 4]);
    let next = |_| {
        let client = below(4, &mut random);
        if random.unit() < 0.02 {
            models[client] = law.draw(&mut random);
        }
        models[client]
    };
    ModelTrace::equal("bursts", 10, (0..requests).map(next).collect())
}

/// Two halves of the models, whose shares of the requests alternate.
fn diurnal(requests: usize) -> ModelTrace {
    let mut random = Random::new(7);
    let law = Zipf::new(MODELS / 2, 0.8);
    let next = |number: usize| {
        let phase = (number as f64 / 50_000.0 * std::f64::consts::TAU).sin();
        let is_day = random.unit() < 0.5 + 0.48 * phase;
        law.draw(&mut random) + if is_day { 0 } else { MODELS / 2 }
    };
    ModelTrace::equal("day and night", 20, (0..requests).map(next).collect())
}

/// Many requests for small models, and a few for large ones.
fn small_and_large(requests: usize) -> ModelTrace {
    let mut random = Random::new(11);
    let law = Zipf::new(80, 0.7);
    let next = |_| {
        if random.unit() < 0.03 { 80 + below(20, &mut random) } else { law.draw(&mut random) }
    };
    let requests = (0..requests).map(next).collect();
    let bytes: Vec<u64> = (0..MODELS).map(|model| if model < 80 { 300 } else { 8_000 }).collect();
    let load_ms = bytes.iter().map(|bytes| 1_000 + 3 * bytes).collect();
    let budget = bytes.iter().sum::<u64>() / 4;
    ModelTrace { name: "small and large", bytes, load_ms, budget, requests }
}

/// Models that become popular one after the other, and are forgotten.
fn newcomers(requests: usize) -> ModelTrace {
    let mut random = Random::new(12);
    let law = Zipf::new(30, 0.8);
    let next = |number: usize| (number / 2_000 + law.draw(&mut random)) % MODELS;
    ModelTrace::equal("newcomers", 12, (0..requests).map(next).collect())
}
