//! Batch execution.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use galatea_backend::{ExecutionPredictability, Instance, ModelHost, RefusedBatch};
use galatea_infer::{
    ExecutionReadings, ExecutionTimes, InferenceResponse, OutputTensor, PendingRequest, Status,
};
use galatea_stdx::WakeBatch;
use galatea_tensor::{Buffer, DataType};

use crate::loaded_forest::LoadedForest;
use crate::refusal::refused;
use crate::signature::{INPUT, OutputPlan};

const VALUE_BYTES: usize = size_of::<f32>();

/// Executes batches, each in one pass over the forest.
pub(crate) struct FilInstance {
    loaded: Arc<LoadedForest>,
    /// The host policy. Requests may contain separate inputs for it.
    host_policy: String,
    host: Arc<dyn ModelHost>,
    /// The input rows of the current batch.
    rows: Vec<f32>,
}

/// The values of one output for all rows of a batch.
struct BatchValues<'a> {
    plan: &'a OutputPlan,
    bytes: Bytes,
}

impl FilInstance {
    pub(crate) const fn new(
        loaded: Arc<LoadedForest>,
        host_policy: String,
        host: Arc<dyn ModelHost>,
    ) -> Self {
        Self { loaded, host_policy, host, rows: Vec::new() }
    }

    /// Predicts the rows of all requests. Sets the readings of the steps that it reaches.
    fn run(
        &mut self,
        requests: &[PendingRequest],
        readings: &mut ExecutionReadings,
    ) -> Result<Vec<Result<InferenceResponse, Status>>, Status> {
        let parts = self.gather(requests)?;
        let total = parts.last().map_or(0, |part| part.end);
        readings.compute_start = Instant::now();
        let computed = self.compute(requests, total);
        readings.compute_end = Instant::now();
        let computed = computed?;
        let responses = requests.iter().zip(parts);
        Ok(responses.map(|(pending, part)| self.response(pending, &part, &computed)).collect())
    }

    /// Joins the rows of all requests. Returns each request's range of rows.
    fn gather(&mut self, requests: &[PendingRequest]) -> Result<Vec<Range<usize>>, Status> {
        let features = self.loaded.forest.forest().feature_count();
        self.rows.clear();
        let mut parts = Vec::with_capacity(requests.len());
        let mut start = 0_usize;
        for pending in requests {
            let missing =
                || Status::internal(format!("input '{INPUT}' is not in the CPU's memory"));
            let input = pending.request().input(INPUT).ok_or_else(missing)?;
            let bytes =
                input.data.for_host_policy(&self.host_policy).host_bytes().ok_or_else(missing)?;
            let count = input.shape.dims().first().copied().unwrap_or(1);
            let count = usize::try_from(count).unwrap_or(0);
            let values = bytes.len() / VALUE_BYTES;
            if count.checked_mul(features) != Some(values) {
                return Err(Status::invalid_argument(format!(
                    "input '{INPUT}' has shape {}, but the model takes {features} values for each \
                     row",
                    input.shape
                )));
            }
            reserve(&mut self.rows, values)?;
            let values = bytes.as_chunks::<VALUE_BYTES>().0;
            self.rows.extend(values.iter().map(|&value| f32::from_le_bytes(value)));
            let end = start.saturating_add(count);
            parts.push(start..end);
            start = end;
        }
        Ok(parts)
    }

    /// Computes the outputs that at least one request asks for.
    fn compute(
        &self,
        requests: &[PendingRequest],
        count: usize,
    ) -> Result<Vec<BatchValues<'_>>, Status> {
        let signature = &self.loaded.signature;
        let wanted = signature.outputs().filter(|plan| {
            requests.iter().any(|pending| pending.request().wants_output(&plan.name))
        });
        let mut computed = Vec::with_capacity(2);
        for plan in wanted {
            let length = count.saturating_mul(plan.width);
            let mut values = Vec::new();
            reserve(&mut values, length)?;
            values.resize(length, 0.0_f32);
            self.predict(plan, count, &mut values)?;
            let mut bytes = Vec::new();
            reserve(&mut bytes, length.saturating_mul(VALUE_BYTES))?;
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            computed.push(BatchValues { plan, bytes: Bytes::from(bytes) });
        }
        Ok(computed)
    }

    /// Fills one output.
    fn predict(&self, plan: &OutputPlan, count: usize, values: &mut [f32]) -> Result<(), Status> {
        let LoadedForest { forest, signature, .. } = &*self.loaded;
        let filled = if std::ptr::eq(plan, &raw const signature.output) {
            forest.predict(&self.rows, count, values)
        } else {
            let explainer = forest.explainer(plan.width).map_err(refused)?;
            explainer.explain(&self.rows, count, values)
        };
        filled.map_err(|error| Status::internal(error.to_string()))
    }

    /// The response to a request. `part` is the request's range of rows.
    fn response(
        &self,
        pending: &PendingRequest,
        part: &Range<usize>,
        computed: &[BatchValues<'_>],
    ) -> Result<InferenceResponse, Status> {
        let request = pending.request();
        let is_wanted = |values: &&BatchValues<'_>| {
            !pending.is_padding() && request.wants_output(&values.plan.name)
        };
        let outputs = computed.iter().filter(is_wanted).map(|values| values.part(part));
        Ok(InferenceResponse {
            model_name: self.loaded.model_name.clone(),
            model_version: self.host.model_version(),
            id: request.id.clone(),
            parameters: Default::default(),
            outputs: outputs.collect::<Result<_, _>>()?,
        })
    }
}

impl BatchValues<'_> {
    /// One request's rows, without a copy.
    fn part(&self, rows: &Range<usize>) -> Result<OutputTensor, Status> {
        let row_bytes = self.plan.width.saturating_mul(VALUE_BYTES);
        let bytes = rows.start.saturating_mul(row_bytes)..rows.end.saturating_mul(row_bytes);
        let data =
            Buffer::from_bytes(self.bytes.slice(bytes)).with_retained_bytes(self.bytes.len());
        let shape = self.plan.shape(rows.len())?;
        Ok(OutputTensor { name: self.plan.name.clone(), datatype: DataType::Fp32, shape, data })
    }
}

impl Instance for FilInstance {
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        let start = Instant::now();
        let mut readings =
            ExecutionReadings { start, compute_start: start, compute_end: start, end: start };
        let responses = self.run(&requests, &mut readings);
        readings.end = Instant::now();
        let times = ExecutionTimes::from(readings);
        match responses {
            Ok(responses) => {
                let total = requests.iter().map(|pending| u64::from(pending.batch_size())).sum();
                self.host.record_batch(total, &times);
                let _wake_batch = WakeBatch::begin();
                for (pending, response) in requests.into_iter().zip(responses) {
                    pending.complete(response, &times);
                }
            }
            Err(status) => {
                for pending in requests {
                    pending.complete(Err(status.clone()), &times);
                }
            }
        }
        Ok(())
    }

    /// All rows take about the same time, and no call waits for another thread that a request
    /// depends on.
    fn guarantee(&self) -> ExecutionPredictability {
        ExecutionPredictability::Predictable
    }
}

/// Reserves memory whose size depends on a request. If memory is short, returns an error instead of
/// aborting the process.
fn reserve<T>(values: &mut Vec<T>, count: usize) -> Result<(), Status> {
    values.try_reserve(count).map_err(|_| {
        let bytes = count.saturating_mul(size_of::<T>());
        Status::unavailable(format!("there are no {bytes} bytes for a batch"))
    })
}
