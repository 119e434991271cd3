//! The series of a version: the version's own, and one for each GPU that its instances use.

use std::borrow::Cow;
use std::ops::Deref;

use galatea_control::{
    DurationStatistic, HistogramReading, InferenceStatistics, LatencySummaries, ModelGpuStatistics,
    ModelMeasurements, ModelStatistics,
};

/// The values that the model metric families show in one series.
#[derive(Debug)]
pub(super) struct Series<'a> {
    pub(super) gpu_uuid: Option<&'a str>,
    statistics: Cow<'a, ModelStatistics>,
}

impl Deref for Series<'_> {
    type Target = ModelStatistics;

    fn deref(&self) -> &ModelStatistics {
        &self.statistics
    }
}

/// The series of all versions. `uuid_of` identifies the GPUs that have their own series; executions
/// on other GPUs count in the version's series.
pub(super) fn all<'a>(
    statistics: &'a [ModelStatistics],
    uuid_of: impl Fn(u32) -> Option<&'a str>,
) -> Vec<Series<'a>> {
    let mut all = Vec::new();
    for model in statistics {
        let gpus = model.gpus.iter().filter_map(|gpu| Some((uuid_of(gpu.gpu)?, gpu)));
        let gpus: Vec<(&str, &ModelGpuStatistics)> = gpus.collect();
        if gpus.is_empty() {
            all.push(Series { gpu_uuid: None, statistics: Cow::Borrowed(model) });
            continue;
        }
        let rest = gpus.iter().fold(model.clone(), |rest, (_, gpu)| without(rest, gpu));
        all.push(Series { gpu_uuid: None, statistics: Cow::Owned(rest) });
        all.extend(gpus.into_iter().map(|(uuid, gpu)| Series {
            gpu_uuid: Some(uuid),
            statistics: Cow::Owned(of_gpu(model, gpu)),
        }));
    }
    all
}

/// A version's counts excluding executions on this GPU.
fn without(model: ModelStatistics, gpu: &ModelGpuStatistics) -> ModelStatistics {
    let minus = |all: DurationStatistic, part: DurationStatistic| DurationStatistic {
        // The two counts are read one after the other while both grow.
        count: all.count.saturating_sub(part.count),
        ns: all.ns.saturating_sub(part.ns),
    };
    let (all, part) = (model.inference, gpu.inference);
    let mut failures = model.failures;
    for (all, part) in failures.iter_mut().zip(gpu.failures) {
        *all = all.saturating_sub(part);
    }
    let mut measurements = model.measurements;
    if let (Some(all), Some(part)) = (&mut measurements.summaries, &gpu.summaries) {
        take_away(all, part);
    }
    ModelStatistics {
        inference_count: model.inference_count.saturating_sub(gpu.inference_count),
        execution_count: model.execution_count.saturating_sub(gpu.execution_count),
        inference: InferenceStatistics {
            success: minus(all.success, part.success),
            fail: minus(all.fail, part.fail),
            queue: minus(all.queue, part.queue),
            compute_input: minus(all.compute_input, part.compute_input),
            compute_infer: minus(all.compute_infer, part.compute_infer),
            compute_output: minus(all.compute_output, part.compute_output),
            ..all
        },
        failures,
        measurements,
        ..model
    }
}

/// Subtracts a GPU's counts and sums from summaries. Their quantiles already exclude it.
fn take_away(all: &mut LatencySummaries, part: &LatencySummaries) {
    let pairs = [
        (Some(&mut all.queue), Some(&part.queue)),
        (Some(&mut all.compute_input), Some(&part.compute_input)),
        (Some(&mut all.compute_infer), Some(&part.compute_infer)),
        (Some(&mut all.compute_output), Some(&part.compute_output)),
        (all.request.as_mut(), part.request.as_ref()),
    ];
    for (all, part) in pairs.into_iter().filter_map(|(all, part)| all.zip(part)) {
        all.count = all.count.saturating_sub(part.count);
        all.sum_us = all.sum_us.saturating_sub(part.sum_us);
    }
}

/// A version's counts of executions on this GPU. As in Triton, its gauges and its histogram are
/// present, with value 0.
fn of_gpu(model: &ModelStatistics, gpu: &ModelGpuStatistics) -> ModelStatistics {
    let first_response_ms = model.measurements.first_response_ms.as_ref();
    let first_response_ms = first_response_ms.map(|all| HistogramReading {
        bounds: all.bounds.clone(),
        counts: vec![0; all.counts.len()],
        sum: 0.0,
    });
    ModelStatistics {
        name: model.name.clone(),
        namespace: model.namespace.clone(),
        version: model.version,
        metric_tags: model.metric_tags.clone(),
        is_cached: model.is_cached,
        inference_count: gpu.inference_count,
        execution_count: gpu.execution_count,
        inference: gpu.inference,
        failures: gpu.failures,
        measurements: ModelMeasurements {
            first_response_ms,
            summaries: gpu.summaries.clone(),
            ..ModelMeasurements::default()
        },
        ..ModelStatistics::default()
    }
}

#[cfg(test)]
mod tests {
    use galatea_control::SummaryReading;

    use super::*;

    fn duration(count: u64) -> DurationStatistic {
        DurationStatistic { count, ns: 10 * count }
    }

    fn summaries(count: u64) -> LatencySummaries {
        let one = SummaryReading { count, sum_us: 10 * count, quantiles: Vec::new() };
        LatencySummaries { request: Some(one.clone()), queue: one, ..LatencySummaries::default() }
    }

    fn model() -> ModelStatistics {
        let success =
            |count| InferenceStatistics { success: duration(count), ..Default::default() };
        let gpu = |gpu, count| ModelGpuStatistics {
            gpu,
            inference_count: count,
            execution_count: count,
            inference: success(count),
            failures: [0, 0, 1, 0],
            summaries: Some(summaries(count)),
        };
        ModelStatistics {
            inference_count: 9,
            execution_count: 8,
            inference: success(7),
            failures: [1, 2, 3, 4],
            pending: 5,
            measurements: ModelMeasurements {
                summaries: Some(summaries(7)),
                ..ModelMeasurements::default()
            },
            gpus: vec![gpu(0, 2), gpu(3, 4)],
            ..ModelStatistics::default()
        }
    }

    #[test]
    // row: MET-06
    fn what_gpus_execute_is_in_series_of_their_own() {
        let statistics = [model()];
        let shown = all(&statistics, |gpu| (gpu == 3).then_some("GPU-3"));
        let read = |one: &Series<'_>| {
            let sums = one.measurements.summaries.as_ref().unwrap();
            (
                (one.gpu_uuid.map(str::to_owned), one.inference_count, one.execution_count),
                (one.inference.success, one.failures, one.pending),
                (sums.queue.count, sums.request.as_ref().unwrap().sum_us),
            )
        };
        let read: Vec<_> = shown.iter().map(read).collect();
        let own = ((None, 5, 4), (duration(3), [1, 2, 2, 4], 5), (3, 30));
        let gpus = (Some(String::from("GPU-3")), 4, 4);
        assert_eq!(read, [own, (gpus, (duration(4), [0, 0, 1, 0], 0), (4, 40))]);
        assert_eq!(all(&statistics, |_| None).len(), 1);
        assert_eq!(all(&statistics, |_| None)[0].inference_count, 9);
    }
}
