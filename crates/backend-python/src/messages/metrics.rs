//! Metrics that models create.

use std::collections::BTreeMap;

use galatea_infer::Status;

use super::Members;
use crate::server::{CustomMetric, CustomMetricFamily, CustomMetricKind, ServerAccess};

/// A worker's metric families and metrics, keyed by the worker's numbers for them. They are removed
/// with the worker.
#[derive(Default)]
pub(crate) struct Metrics {
    families: BTreeMap<u64, Box<dyn CustomMetricFamily>>,
    metrics: BTreeMap<u64, Box<dyn CustomMetric>>,
    last_number: u64,
}

impl Metrics {
    /// Performs the operation that a document requests and returns the result.
    pub(crate) fn serve(
        &mut self,
        server: &dyn ServerAccess,
        document: &str,
    ) -> Result<String, Status> {
        let members = Members::parse(document)?;
        match members.text("op")? {
            "family" => self.add_family(server, &members),
            "metric" => self.add_metric(&members),
            "increment" => self.metric(&members)?.increment(members.number("value")?).map(done),
            "set" => self.metric(&members)?.set(members.number("value")?).map(done),
            "observe" => self.metric(&members)?.observe(members.number("value")?).map(done),
            "value" => {
                let value = self.metric(&members)?.value()?;
                Ok(format!("{{\"value\":{}}}", serde_json::Value::from(value)))
            }
            "drop_metric" => {
                self.metrics.remove(&members.index("metric")?);
                Ok(done(()))
            }
            "drop_family" => {
                self.families.remove(&members.index("family")?);
                Ok(done(()))
            }
            other => Err(Status::internal(format!("a worker asked for '{other}'"))),
        }
    }

    fn add_family(
        &mut self,
        server: &dyn ServerAccess,
        members: &Members,
    ) -> Result<String, Status> {
        let kind = match members.index("kind")? {
            0 => CustomMetricKind::Counter,
            1 => CustomMetricKind::Gauge,
            2 => CustomMetricKind::Histogram,
            _ => return Err(Status::invalid_argument("Unknown metric kind")),
        };
        let (name, description) = (members.text("name")?, members.text("description")?);
        let family = server.metric_family(name, description, kind)?;
        let number = self.next_number();
        self.families.insert(number, family);
        Ok(format!("{{\"family\":{number}}}"))
    }

    fn add_metric(&mut self, members: &Members) -> Result<String, Status> {
        let family = self.families.get(&members.index("family")?);
        let family = family.ok_or_else(|| Status::internal("there is no such metric family"))?;
        let labels = members.texts("labels")?;
        let labels = labels.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let buckets = members.numbers("buckets")?;
        let metric = family.metric(&labels.collect(), buckets.as_deref())?;
        let number = self.next_number();
        self.metrics.insert(number, metric);
        Ok(format!("{{\"metric\":{number}}}"))
    }

    fn metric(&self, members: &Members) -> Result<&dyn CustomMetric, Status> {
        let metric = self.metrics.get(&members.index("metric")?);
        metric.map(|metric| &**metric).ok_or_else(|| Status::internal("there is no such metric"))
    }

    const fn next_number(&mut self) -> u64 {
        self.last_number = self.last_number.wrapping_add(1);
        self.last_number
    }
}

fn done((): ()) -> String {
    String::from("{}")
}
