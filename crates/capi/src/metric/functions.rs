//! Exported functions for custom metrics.

use core::ffi::c_char;
use std::sync::{Arc, Weak};

use galatea_abi::server::*;
use galatea_abi::*;
use galatea_c_objects::parameter::{ParameterContents, ParameterObject};
use galatea_c_objects::{catch_panic, handle, pointer};
use galatea_infer::{ParameterValue, Status};
use galatea_stdx::Lock;

use super::{Family, Labels, MetricKind, REGISTRY, Series};

/// A metric family as a C object.
struct FamilyObject {
    family: Arc<Family>,
    /// Shared with the family's metrics, in order to count them.
    lifetime: Arc<()>,
}
galatea_c_objects::object!(FamilyObject as TRITONSERVER_MetricFamily, kind 50);

/// A metric within a family.
struct MetricObject {
    series: Arc<Series>,
    kind: MetricKind,
    family: Weak<()>,
}
galatea_c_objects::object!(MetricObject as TRITONSERVER_Metric, kind 51);

/// The arguments for creating a metric.
#[derive(Default)]
struct ArgumentsObject {
    /// A histogram's bucket bounds.
    bounds: Lock<Option<Vec<f64>>>,
}
galatea_c_objects::object!(ArgumentsObject as TRITONSERVER_MetricArgs, kind 52);

impl MetricKind {
    fn from_c(kind: TRITONSERVER_MetricKind) -> Result<Self, Status> {
        match kind {
            TRITONSERVER_METRIC_KIND_COUNTER => Ok(Self::Counter),
            TRITONSERVER_METRIC_KIND_GAUGE => Ok(Self::Gauge),
            TRITONSERVER_METRIC_KIND_HISTOGRAM => Ok(Self::Histogram),
            TRITONSERVER_MetricKind(_) => {
                let text = "Unsupported kind passed to MetricFamily constructor.";
                Err(Status::invalid_argument(text))
            }
        }
    }

    const fn to_c(self) -> TRITONSERVER_MetricKind {
        match self {
            Self::Counter => TRITONSERVER_METRIC_KIND_COUNTER,
            Self::Gauge => TRITONSERVER_METRIC_KIND_GAUGE,
            Self::Histogram => TRITONSERVER_METRIC_KIND_HISTOGRAM,
        }
    }
}

impl MetricObject {
    /// The series. Fails if another thread deleted the family while this metric was being created.
    fn series(&self, doing: &str) -> Result<&Series, Status> {
        if self.family.strong_count() == 0 {
            return Err(Status::internal(format!(
                "Could not {doing} metric value. Metric has been invalidated."
            )));
        }
        Ok(&self.series)
    }
}

/// Defines exported functions. Their bodies are unsafe code.
macro_rules! functions {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {
        $(
            const _: $name = $name;
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// Objects must be null or live objects of this library. Strings must be null or
            /// NUL-terminated, and out pointers must be null or valid for writes.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> *mut TRITONSERVER_Error {
                catch_panic(stringify!($name), || {
                    // SAFETY: the caller guarantees what the body requires.
                    unsafe { $body }
                })
            }
        )*
    };
}

functions! {
    /// Returns the family with this name, creating it if necessary.
    fn TRITONSERVER_MetricFamilyNew(
        family: *mut *mut TRITONSERVER_MetricFamily,
        kind: TRITONSERVER_MetricKind,
        name: *const c_char,
        description: *const c_char,
    ) {
        let kind = MetricKind::from_c(kind)?;
        let name = pointer::required_c_str(name, "name")?;
        let description = pointer::required_c_str(description, "description")?;
        pointer::check_not_null(family, "family")?;
        let found = REGISTRY.family(kind, name, description)?;
        let object = FamilyObject { family: found, lifetime: Arc::new(()) };
        pointer::write(family, handle::into_raw(object), "family")
    }

    /// Deletes a family. Its metrics must be deleted first.
    fn TRITONSERVER_MetricFamilyDelete(family: *mut TRITONSERVER_MetricFamily) {
        if family.is_null() {
            return Ok(());
        }
        let object = handle::borrow::<FamilyObject>(family, "family")?;
        if Arc::weak_count(&object.lifetime) > 0 {
            return Err(Status::internal(
                "Must call MetricDelete on all dependent metrics before calling \
                 MetricFamilyDelete.",
            ));
        }
        handle::delete::<FamilyObject>(family, "family")
    }

    /// Returns a family's kind.
    fn TRITONSERVER_GetMetricFamilyKind(
        family: *mut TRITONSERVER_MetricFamily,
        kind: *mut TRITONSERVER_MetricKind,
    ) {
        let object = handle::borrow::<FamilyObject>(family, "family")?;
        pointer::write(kind, object.family.kind.to_c(), "kind")
    }

    /// Creates an empty arguments object.
    fn TRITONSERVER_MetricArgsNew(args: *mut *mut TRITONSERVER_MetricArgs) {
        pointer::check_not_null(args, "args")?;
        pointer::write(args, handle::into_raw(ArgumentsObject::default()), "args")
    }

    /// Sets a histogram's arguments, which are its upper bounds.
    fn TRITONSERVER_MetricArgsSetHistogram(
        args: *mut TRITONSERVER_MetricArgs,
        buckets: *const f64,
        buckets_count: u64,
    ) {
        let object = handle::borrow::<ArgumentsObject>(args, "args")?;
        let count = usize::try_from(buckets_count)
            .map_err(|_| Status::invalid_argument("buckets_count is too large"))?;
        let bounds = pointer::slice(buckets, count, "buckets")?;
        if !bounds.is_sorted_by(|low, high| low < high) || bounds.iter().any(|one| one.is_nan()) {
            return Err(Status::invalid_argument("buckets must ascend strictly"));
        }
        *object.bounds.lock("set the bounds") = Some(bounds.to_vec());
        Ok(())
    }

    /// Deletes an arguments object.
    fn TRITONSERVER_MetricArgsDelete(args: *mut TRITONSERVER_MetricArgs) {
        handle::delete::<ArgumentsObject>(args, "args")
    }

    /// Creates a metric with these labels. Metrics with equal labels share their value.
    fn TRITONSERVER_MetricNew(
        metric: *mut *mut TRITONSERVER_Metric,
        family: *mut TRITONSERVER_MetricFamily,
        labels: *mut *const TRITONSERVER_Parameter,
        label_count: u64,
    ) {
        new_metric(metric, family, labels, label_count, None)
    }

    /// Like `TRITONSERVER_MetricNew`, but with arguments, which a histogram requires.
    fn TRITONSERVER_MetricNewWithArgs(
        metric: *mut *mut TRITONSERVER_Metric,
        family: *mut TRITONSERVER_MetricFamily,
        labels: *mut *const TRITONSERVER_Parameter,
        label_count: u64,
        args: *const TRITONSERVER_MetricArgs,
    ) {
        if args.is_null() {
            return new_metric(metric, family, labels, label_count, None);
        }
        let object = handle::borrow::<ArgumentsObject>(args, "args")?;
        let bounds = object.bounds.lock("read the bounds").clone();
        let bounds = bounds.ok_or_else(|| {
            Status::invalid_argument("Metric args not set to histogram kind.")
        })?;
        new_metric(metric, family, labels, label_count, Some(&bounds))
    }

    /// Deletes a metric. The value is removed together with the last metric that has these labels.
    fn TRITONSERVER_MetricDelete(metric: *mut TRITONSERVER_Metric) {
        handle::delete::<MetricObject>(metric, "metric")
    }

    /// Returns the value of a counter or a gauge.
    fn TRITONSERVER_MetricValue(metric: *mut TRITONSERVER_Metric, value: *mut f64) {
        let found = handle::borrow::<MetricObject>(metric, "metric")?.series("get")?.value()?;
        pointer::write(value, found, "value")
    }

    /// Increments a counter or a gauge.
    fn TRITONSERVER_MetricIncrement(metric: *mut TRITONSERVER_Metric, value: f64) {
        let object = handle::borrow::<MetricObject>(metric, "metric")?;
        object.series("increment")?.increment(object.kind, value)
    }

    /// Sets a gauge's value.
    fn TRITONSERVER_MetricSet(metric: *mut TRITONSERVER_Metric, value: f64) {
        let object = handle::borrow::<MetricObject>(metric, "metric")?;
        object.series("set")?.set(object.kind, value)
    }

    /// Records an observation in a histogram.
    fn TRITONSERVER_MetricObserve(metric: *mut TRITONSERVER_Metric, value: f64) {
        let object = handle::borrow::<MetricObject>(metric, "metric")?;
        object.series("set")?.observe(object.kind, value)
    }

    /// Returns a metric's kind.
    fn TRITONSERVER_GetMetricKind(
        metric: *mut TRITONSERVER_Metric,
        kind: *mut TRITONSERVER_MetricKind,
    ) {
        let object = handle::borrow::<MetricObject>(metric, "metric")?;
        pointer::write(kind, object.kind.to_c(), "kind")
    }
}

/// # Safety
///
/// Same requirements as for the functions that call this one.
unsafe fn new_metric(
    metric: *mut *mut TRITONSERVER_Metric,
    family: *mut TRITONSERVER_MetricFamily,
    labels: *mut *const TRITONSERVER_Parameter,
    label_count: u64,
    bounds: Option<&[f64]>,
) -> Result<(), Status> {
    let count = usize::try_from(label_count)
        .map_err(|_| Status::invalid_argument("label_count is too large"))?;
    pointer::check_not_null(metric, "metric")?;
    // SAFETY: guaranteed by the caller.
    let (object, pointers) = unsafe {
        (
            handle::borrow::<FamilyObject>(family, "family")?,
            pointer::slice(labels, count, "labels")?,
        )
    };
    let mut pairs = Labels::new();
    for pointer in pointers {
        // SAFETY: the caller guarantees valid parameters.
        let parameter = unsafe { handle::borrow::<ParameterObject>(*pointer, "a label")? };
        let ParameterContents::Value(ParameterValue::String(value)) = &parameter.value else {
            let text = format!(
                "Parameter [{}] must have a type of TRITONSERVER_PARAMETER_STRING to be added as \
                 a label.",
                parameter.name
            );
            return Err(Status::invalid_argument(text));
        };
        pairs.push((parameter.name.clone(), value.clone()));
    }
    pairs.sort();
    let series = object.family.series(pairs, bounds)?;
    let made =
        MetricObject { series, kind: object.family.kind, family: Arc::downgrade(&object.lifetime) };
    // SAFETY: the caller guarantees that the pointer is null or valid for a write.
    unsafe { pointer::write(metric, handle::into_raw(made), "metric") }
}
