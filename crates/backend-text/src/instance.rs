//! Executes batches of texts.

use std::sync::Arc;
use std::time::Instant;

use galatea_backend::{ExecutionPredictability, ExecutionTerminator, Instance, RefusedBatch};
use galatea_infer::{
    CancelToken, Code, ExecutionReadings, ExecutionTimes, FailureReason, InferenceResponse,
    InputTensor, OutputTensor, PendingRequest, Status,
};
use galatea_stdx::WakeBatch;
use galatea_tensor::elements::BytesElements;
use galatea_tensor::{Buffer, DataType, Shape};
use galatea_text::{Activation, TextTask, TokenRow, keep_dimensions, normalize, plan_runs};

use crate::interface::{QUERY, TEXT, TOKEN_COUNT};
use crate::options::RequestOptions;
use crate::run::{RunRow, execute};
use crate::served::ServedText;

/// Executes batches, one at a time.
pub(crate) struct TextInstance {
    served: Arc<ServedText>,
    network: Box<dyn Instance>,
}

/// A request whose texts have been converted to tokens.
struct TextRequest {
    /// `None` once the request has a reply.
    pending: Option<PendingRequest>,
    options: RequestOptions,
    /// The number of tokens at the beginning of each text that pooling leaves out.
    prompt_tokens: usize,
    rows: Vec<TokenRow>,
    /// The values of all rows.
    values: Vec<f32>,
    /// The number of rows that have not been executed.
    rows_left: usize,
}

/// The place of a row: its request and its index in the request.
#[derive(Copy, Clone)]
struct RowPlace {
    request: usize,
    row: usize,
}

impl TextInstance {
    pub(crate) fn new(served: Arc<ServedText>, network: Box<dyn Instance>) -> Self {
        Self { served, network }
    }

    /// Executes the rows of all requests, the shortest first. Each request gets its response as
    /// soon as its last row has been executed.
    fn execute_requests(&mut self, mut requests: Vec<TextRequest>, start: Instant) {
        let mut places = row_places(&requests);
        let length = |place: &RowPlace| row_length(&requests, *place);
        places.sort_by_key(length);
        let lengths: Vec<u64> = places.iter().map(length).collect();
        let compute_start = Instant::now();
        for run in plan_runs(&lengths, self.served.limits) {
            let places = places.get(run).unwrap_or_default();
            refuse_cancelled(&mut requests);
            let places: Vec<RowPlace> = places
                .iter()
                .copied()
                .filter(|place| requests.get(place.request).is_some_and(TextRequest::is_waiting))
                .collect();
            if places.is_empty() {
                continue;
            }
            let rows: Vec<RunRow<'_>> =
                places.iter().filter_map(|place| run_row(&requests, *place)).collect();
            let executed = execute(&self.served, &mut *self.network, &rows);
            let compute_end = Instant::now();
            let readings =
                ExecutionReadings { start, compute_start, compute_end, end: compute_end };
            let _wake_batch = WakeBatch::begin();
            self.distribute(&mut requests, &places, executed, readings);
        }
    }

    /// Stores the values of a run, and completes the requests that have all their values.
    fn distribute(
        &self,
        requests: &mut [TextRequest],
        places: &[RowPlace],
        executed: Result<Vec<f32>, Status>,
        mut readings: ExecutionReadings,
    ) {
        let width = self.served.width;
        match executed {
            Ok(values) => {
                for (place, values) in places.iter().zip(values.chunks(width.max(1))) {
                    let Some(request) = requests.get_mut(place.request) else { continue };
                    let start = place.row.saturating_mul(width);
                    let target = request.values.get_mut(start..start.saturating_add(width));
                    if let Some(target) = target.filter(|target| target.len() == values.len()) {
                        target.copy_from_slice(values);
                        request.rows_left = request.rows_left.saturating_sub(1);
                    }
                }
                for request in requests.iter_mut().filter(|request| request.rows_left == 0) {
                    let Some(pending) = request.pending.take() else { continue };
                    let response = self.response(&pending, request);
                    readings.end = Instant::now();
                    pending.complete(response, &ExecutionTimes::from(readings));
                }
            }
            Err(status) => {
                for place in places {
                    let pending =
                        requests.get_mut(place.request).and_then(|request| request.pending.take());
                    if let Some(pending) = pending {
                        pending.complete(Err(status.clone()), &ExecutionTimes::from(readings));
                    }
                }
            }
        }
    }

    fn response(
        &self,
        pending: &PendingRequest,
        request: &mut TextRequest,
    ) -> Result<InferenceResponse, Status> {
        let served = &*self.served;
        let rows = request.rows.len();
        let width = finish_values(served, request);
        let values = request.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let counts = request
            .rows
            .iter()
            .flat_map(|row| i32::try_from(row.ids.len()).unwrap_or(i32::MAX).to_le_bytes());
        let wanted = |name: &str| pending.request().wants_output(name);
        let mut outputs = Vec::with_capacity(2);
        if wanted(&served.output_name) {
            outputs.push(OutputTensor {
                name: served.output_name.clone(),
                datatype: DataType::Fp32,
                shape: shape(rows, width)?,
                data: Buffer::from_vec(values),
            });
        }
        if wanted(TOKEN_COUNT) {
            outputs.push(OutputTensor {
                name: Arc::from(TOKEN_COUNT),
                datatype: DataType::Int32,
                shape: shape(rows, 1)?,
                data: Buffer::from_vec(counts.collect()),
            });
        }
        Ok(InferenceResponse {
            model_name: served.model_name.clone(),
            model_version: served.host.model_version(),
            id: pending.request().id.clone(),
            parameters: Default::default(),
            outputs,
        })
    }
}

/// Converts the values of a request's rows to the values that the client gets. Returns the number
/// of values of each row.
fn finish_values(served: &ServedText, request: &mut TextRequest) -> usize {
    let (width, options) = (served.width, &request.options);
    match &served.text.description.task {
        TextTask::Embedding(task) => {
            let kept = options.dimensions.unwrap_or(width);
            if kept < width {
                keep_dimensions(&mut request.values, width, kept);
            }
            if options.normalize.unwrap_or(task.normalize) {
                request.values.chunks_mut(kept.max(1)).for_each(normalize);
            }
            kept
        }
        TextTask::Scores { activation, .. } => {
            let activation = if options.raw_scores { Activation::Identity } else { *activation };
            request.values.chunks_mut(width.max(1)).for_each(|row| activation.apply(row));
            width
        }
    }
}

fn shape(rows: usize, width: usize) -> Result<Shape, Status> {
    let dims = [rows, width].map(|dim| i64::try_from(dim).unwrap_or(i64::MAX));
    Shape::new(&dims).map_err(|error| Status::internal(error.to_string()))
}

impl TextRequest {
    /// Converts the texts of a request. Returns the request in the error.
    fn new(served: &ServedText, pending: PendingRequest) -> Result<Self, (PendingRequest, Status)> {
        match encode(served, &pending) {
            Ok((options, prompt_tokens, rows)) => Ok(Self {
                pending: Some(pending),
                options,
                prompt_tokens,
                values: vec![0.0; rows.len().saturating_mul(served.width)],
                rows_left: rows.len(),
                rows,
            }),
            Err(status) => Err((pending, status)),
        }
    }

    const fn is_waiting(&self) -> bool {
        self.pending.is_some()
    }
}

/// The options of a request, the number of prompt tokens that pooling leaves out, and the tokens of
/// the request's texts.
fn encode(
    served: &ServedText,
    pending: &PendingRequest,
) -> Result<(RequestOptions, usize, Vec<TokenRow>), Status> {
    let (request, text) = (pending.request(), &served.text);
    let options = RequestOptions::read(&request.parameters, &text.description, served.width)?;
    let prompt_tokens = text
        .prompt_tokens(options.prompt.as_deref())
        .map_err(|problem| Status::invalid_argument(format!("the prompt: {problem}")))?;
    let count = usize::try_from(pending.batch_size()).unwrap_or(usize::MAX);
    let input = |name: &str| texts(request.input(name), name, count);
    let refused = |row: usize, problem: String| {
        Status::invalid_argument(format!("input '{TEXT}', element {row}: {problem}"))
    };
    let seconds = input(TEXT)?;
    let rows = match &text.description.task {
        TextTask::Scores { is_pair: true, .. } => {
            let pairs = input(QUERY)?.into_iter().zip(seconds);
            convert_rows(pairs, &request.cancel, |row, pair| {
                let encoded = text.encode_pair(pair, options.prompt.as_deref(), options.truncates);
                encoded.map_err(|problem| refused(row, problem))
            })?
        }
        TextTask::Scores { is_pair: false, .. } | TextTask::Embedding(_) => {
            convert_rows(seconds, &request.cancel, |row, one| {
                let encoded = text.encode(one, options.prompt.as_deref(), options.truncates);
                encoded.map_err(|problem| refused(row, problem))
            })?
        }
    };
    Ok((options, prompt_tokens, rows))
}

/// Converts the rows of a request until one is refused or the client cancels the request.
fn convert_rows<T>(
    rows: impl IntoIterator<Item = T>,
    cancel: &CancelToken,
    convert: impl Fn(usize, T) -> Result<TokenRow, Status>,
) -> Result<Vec<TokenRow>, Status> {
    let convert = |(row, one)| {
        if cancel.is_cancelled() { Err(cancelled()) } else { convert(row, one) }
    };
    rows.into_iter().enumerate().map(convert).collect()
}

fn cancelled() -> Status {
    Status::cancelled("request cancelled during its execution")
}

/// The texts of an input, whose number is `count`.
fn texts<'a>(
    input: Option<&'a InputTensor>,
    name: &str,
    count: usize,
) -> Result<Vec<&'a str>, Status> {
    let invalid = |problem: String| Status::invalid_argument(format!("input '{name}': {problem}"));
    let input = input.ok_or_else(|| invalid(String::from("is missing")))?;
    let bytes = input.data.host_bytes();
    let bytes = bytes.ok_or_else(|| invalid(String::from("is not in the CPU's memory")))?;
    let mut found = Vec::with_capacity(count.min(bytes.len()));
    for (row, element) in BytesElements::new(bytes).enumerate() {
        let element = element.map_err(|error| invalid(error.to_string()))?;
        let text = std::str::from_utf8(element)
            .map_err(|error| invalid(format!("element {row} is not UTF-8: {error}")))?;
        found.push(text);
    }
    if found.len() != count {
        return Err(invalid(format!("has {} elements instead of {count}", found.len())));
    }
    Ok(found)
}

fn row_places(requests: &[TextRequest]) -> Vec<RowPlace> {
    let places = requests.iter().enumerate();
    places
        .flat_map(|(request, one)| (0..one.rows.len()).map(move |row| RowPlace { request, row }))
        .collect()
}

fn run_row(requests: &[TextRequest], place: RowPlace) -> Option<RunRow<'_>> {
    let request = requests.get(place.request)?;
    let tokens = request.rows.get(place.row)?;
    Some(RunRow { tokens, prompt_tokens: request.prompt_tokens })
}

fn row_length(requests: &[TextRequest], place: RowPlace) -> u64 {
    let count = run_row(requests, place).map_or(0, |row| row.tokens.ids.len());
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Refuses the requests whose clients have cancelled them.
fn refuse_cancelled(requests: &mut [TextRequest]) {
    for request in requests {
        let is_cancelled = |pending: &PendingRequest| pending.request().cancel.is_cancelled();
        if request.pending.as_ref().is_some_and(is_cancelled)
            && let Some(pending) = request.pending.take()
        {
            pending.fail(cancelled(), FailureReason::Canceled);
        }
    }
}

impl Instance for TextInstance {
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        let start = Instant::now();
        let mut accepted = Vec::with_capacity(requests.len());
        for pending in requests {
            if pending.request().cancel.is_cancelled() {
                let status = Status::cancelled("request cancelled before its execution");
                pending.fail(status, FailureReason::Canceled);
                continue;
            }
            match TextRequest::new(&self.served, pending) {
                Ok(request) => accepted.push(request),
                Err((pending, status)) if status.code() == Code::Cancelled => {
                    pending.fail(status, FailureReason::Canceled);
                }
                Err((pending, status)) => {
                    let end = Instant::now();
                    let readings =
                        ExecutionReadings { start, compute_start: end, compute_end: end, end };
                    pending.complete(Err(status), &ExecutionTimes::from(readings));
                }
            }
        }
        self.execute_requests(accepted, start);
        Ok(())
    }

    /// Conversion to tokens takes longer for longer texts, and doesn't wait for anything.
    fn guarantee(&self) -> ExecutionPredictability {
        match self.network.guarantee() {
            ExecutionPredictability::Predictable => ExecutionPredictability::NonBlocking,
            other => other,
        }
    }

    fn terminator(&self) -> Option<Arc<dyn ExecutionTerminator>> {
        self.network.terminator()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_cancellation_ends_the_conversion_of_a_requests_texts() {
        let (cancel, converted) = (CancelToken::new(), Cell::new(0));
        let result = convert_rows(0..5, &cancel, |row, _| {
            converted.set(converted.get() + 1);
            if row == 1 {
                cancel.cancel();
            }
            Ok(TokenRow { ids: Vec::new(), type_ids: Vec::new() })
        });
        assert_eq!((result.unwrap_err(), converted.get()), (cancelled(), 2));
    }
}
