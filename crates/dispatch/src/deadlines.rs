//! Request deadlines.

use std::time::{Duration, Instant};

use galatea_config::ModelSpec;
use galatea_infer::{Deadline, InferenceRequest, Status, TimeoutHeaders};

/// A model's deadline configuration.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelDeadlines {
    /// The maximum response time.
    objective: Option<Duration>,
    /// True if the configuration enables deadlines. Other models ignore deadlines, but propagate
    /// them to the requests that they make.
    matter: bool,
}

impl ModelDeadlines {
    pub(crate) fn new(spec: &ModelSpec) -> Self {
        let objective = spec.own.latency_objective_microseconds;
        Self {
            objective: objective.filter(|us| *us > 0).map(Duration::from_micros),
            matter: objective.is_some(),
        }
    }

    /// The earliest applicable deadline of a request that arrived at `arrival`.
    pub(crate) fn earliest_deadline(
        &self,
        request: &InferenceRequest,
        arrival: Instant,
    ) -> Deadline {
        let mut deadline = request.deadline;
        if request.timeout_microseconds > 0 {
            let timeout = Duration::from_micros(request.timeout_microseconds);
            deadline = deadline.earliest(Deadline::within(arrival, timeout));
        }
        if let Some(objective) = self.objective {
            deadline = deadline.earliest(Deadline::within(arrival, objective));
        }
        deadline
    }

    /// Checks that the request's headers can be parsed.
    ///
    /// # Errors
    ///
    /// `InvalidArgument`, with a message that names the header.
    pub(crate) fn check(&self, request: &InferenceRequest) -> Result<(), Status> {
        match request.deadline {
            Deadline::Unreadable(name) if self.matter => {
                let unit = if name == TimeoutHeaders::ENVOY { "milliseconds" } else { "seconds" };
                let text = format!("the header '{name}' is not a number of {unit}");
                Err(Status::invalid_argument(text).prefixed(request.log_prefix()))
            }
            Deadline::Unreadable(_) | Deadline::At(_) | Deadline::None => Ok(()),
        }
    }

    /// The deadline, if the model uses deadlines.
    pub(crate) fn reported_deadline(&self, request: &InferenceRequest) -> Option<Instant> {
        request.deadline.instant().filter(|_| self.matter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn model(objective: Option<Duration>) -> ModelDeadlines {
        ModelDeadlines { objective, matter: true }
    }

    #[test]
    fn the_earliest_deadline_counts() {
        let arrival = Instant::now();
        let check =
            |own: Option<u64>, timeout: u64, objective: Option<u64>, expected: Option<u64>| {
                let own = own.map_or(Deadline::None, |ms| Deadline::At(arrival + MS(ms)));
                let request = InferenceRequest {
                    deadline: own,
                    timeout_microseconds: timeout * 1000,
                    ..InferenceRequest::default()
                };
                let found = model(objective.map(MS)).earliest_deadline(&request, arrival).instant();
                assert_eq!(found.map(|at| at - arrival), expected.map(MS), "{request:?}");
            };
        check(None, 0, None, None);
        check(Some(5), 0, None, Some(5));
        check(None, 5, None, Some(5));
        check(None, 0, Some(5), Some(5));
        check(Some(4), 5, Some(6), Some(4));
        check(Some(6), 4, Some(5), Some(4));
        check(Some(5), 6, Some(4), Some(4));
        check(None, u64::MAX / 1000, Some(7), Some(7));
    }

    #[test]
    fn only_models_with_deadlines_refuse_headers_that_cannot_be_read() {
        let request = InferenceRequest {
            deadline: Deadline::Unreadable(TimeoutHeaders::REQUEST),
            ..InferenceRequest::default()
        };
        let status = model(None).check(&request).unwrap_err();
        assert!(status.message().ends_with("'request-timeout' is not a number of seconds"));
        ModelDeadlines { objective: None, matter: false }.check(&request).unwrap();
    }
}
