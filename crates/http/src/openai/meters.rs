//! The generation speed of each model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use galatea_control::{GenerationReading, HistogramReading};
use galatea_measure::Histogram;
use galatea_stdx::Lock;

/// The bounds of the histogram of times to the first token, in microseconds.
const FIRST_BOUNDS: [u64; 14] = [
    1_000, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000, 30_000_000, 60_000_000,
];
/// The bounds of the histogram of the times between tokens, in microseconds.
const BETWEEN_BOUNDS: [u64; 12] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    5_000_000,
];

/// The measurements of all models that have generated text.
#[derive(Debug, Default)]
pub struct OpenAiMeters {
    models: Lock<BTreeMap<String, Arc<ModelMeter>>>,
}

/// The measurements of a model.
#[derive(Debug)]
pub(super) struct ModelMeter {
    first: Timing,
    between: Timing,
    tokens: AtomicU64,
    prompt_tokens: AtomicU64,
}

/// The times and their sum.
#[derive(Debug)]
struct Timing {
    histogram: Histogram<u64>,
    sum_us: AtomicU64,
}

impl Timing {
    fn new(bounds: &[u64]) -> Self {
        Self { histogram: Histogram::new(bounds), sum_us: AtomicU64::new(0) }
    }

    fn observe(&self, time: Duration) {
        let time_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.histogram.observe(time_us);
        self.sum_us.fetch_add(time_us, Ordering::Relaxed);
    }

    fn read(&self) -> HistogramReading {
        let seconds = |micros: u64| Duration::from_micros(micros).as_secs_f64();
        HistogramReading {
            bounds: self.histogram.bounds().iter().copied().map(seconds).collect(),
            counts: self.histogram.counts(),
            sum: seconds(self.sum_us.load(Ordering::Relaxed)),
        }
    }
}

impl OpenAiMeters {
    /// Returns the meter of an existing model.
    pub(super) fn of(&self, model: &str) -> Arc<ModelMeter> {
        let mut models = self.models.lock("find the meter of a model");
        if let Some(meter) = models.get(model) {
            return meter.clone();
        }
        let meter = Arc::new(ModelMeter {
            first: Timing::new(&FIRST_BOUNDS),
            between: Timing::new(&BETWEEN_BOUNDS),
            tokens: AtomicU64::new(0),
            prompt_tokens: AtomicU64::new(0),
        });
        models.insert(model.to_owned(), meter.clone());
        meter
    }

    /// Reads all measurements.
    #[must_use]
    pub fn read(&self) -> Vec<GenerationReading> {
        let models = self.models.lock("read the meters of all models");
        let read = |(model, meter): (&String, &Arc<ModelMeter>)| GenerationReading {
            model: model.clone(),
            first_token: meter.first.read(),
            between_tokens: meter.between.read(),
            tokens: meter.tokens.load(Ordering::Relaxed),
            prompt_tokens: meter.prompt_tokens.load(Ordering::Relaxed),
        };
        models.iter().map(read).collect()
    }
}

/// Measures the tokens of one request.
pub(super) struct TextMeter {
    model: Arc<ModelMeter>,
    arrived: Instant,
    last: Option<Instant>,
    has_prompt: bool,
}

impl TextMeter {
    pub(super) const fn new(model: Arc<ModelMeter>, arrived: Instant) -> Self {
        Self { model, arrived, last: None, has_prompt: false }
    }

    /// Counts the prompt tokens that a response states. Each response states the same number, so
    /// only the first counts.
    pub(super) fn prompt(&mut self, tokens: Option<u64>) {
        if let Some(tokens) = tokens
            && !std::mem::replace(&mut self.has_prompt, true)
        {
            self.model.prompt_tokens.fetch_add(tokens, Ordering::Relaxed);
        }
    }

    /// Counts the tokens in a response to a client that streams. If a response contains several
    /// tokens, they share the time before it.
    pub(super) fn stream(&mut self, tokens: u64, now: Instant) {
        if tokens == 0 {
            return;
        }
        self.count(tokens);
        match self.last.replace(now) {
            None => self.model.first.observe(now.saturating_duration_since(self.arrived)),
            Some(last) => {
                let shared = u32::try_from(tokens).unwrap_or(u32::MAX);
                let time = now.saturating_duration_since(last);
                self.model.between.observe(time.checked_div(shared).unwrap_or(time));
            }
        }
    }

    /// Counts the tokens of a text that is sent as a whole.
    pub(super) fn count(&self, tokens: u64) {
        self.model.tokens.fetch_add(tokens, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_tokens_and_the_times_between_tokens_are_measured() {
        let meters = OpenAiMeters::default();
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut text = TextMeter::new(meters.of("m"), start);
        text.prompt(None);
        text.prompt(Some(5));
        text.stream(0, at(1));
        text.prompt(Some(5));
        text.stream(1, at(7));
        text.stream(4, at(15));
        TextMeter::new(meters.of("m"), start).count(3);
        let [GenerationReading { model, first_token, between_tokens, tokens, prompt_tokens }] =
            <[_; 1]>::try_from(meters.read()).unwrap();
        assert_eq!((model.as_str(), tokens, prompt_tokens), ("m", 8, 5));
        assert_eq!((first_token.counts[2], first_token.sum), (1, 0.007));
        // Two milliseconds for each of the four tokens.
        assert_eq!((between_tokens.counts[2], between_tokens.sum), (1, 0.002));
    }
}
