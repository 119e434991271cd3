//! Execution statistics that plug-ins report.

use std::sync::Arc;
use std::time::Duration;

use galatea_abi::{
    TRITONBACKEND_ModelInstance, TRITONBACKEND_ModelInstanceResponseStatistics,
    TRITONBACKEND_Request, TRITONBACKEND_ResponseFactory, TRITONSERVER_Error,
};
use galatea_backend::{ModelHost, ResponseOutcome, ResponseRecord};
use galatea_c_objects::clock::ClockConverter;
use galatea_c_objects::error::borrow_c_error;
use galatea_c_objects::{handle, pointer};
use galatea_infer::{Code, Status};
use galatea_stdx::Lock;

use crate::instance::InstanceObject;
use crate::request::RequestObject;
use crate::response::factory::FactoryObject;
use crate::response_channel::ResponseChannel;

/// Statistics on one response, as C sees them.
#[derive(Default)]
pub(crate) struct ResponseStatisticsObject(Lock<ResponseReport>);
galatea_c_objects::object!(
    ResponseStatisticsObject as TRITONBACKEND_ModelInstanceResponseStatistics, kind 31
);

#[derive(Default)]
struct ResponseReport {
    host: Option<Arc<dyn ModelHost>>,
    channel: Option<Arc<ResponseChannel>>,
    start_ns: u64,
    compute_output_start_ns: u64,
    end_ns: u64,
    failure: Option<Status>,
}

impl ResponseReport {
    fn send(&self) -> Result<(), Status> {
        let (Some(host), Some(channel)) = (&self.host, &self.channel) else {
            return Err(Status::invalid_argument(
                "response statistics need a model instance and a response factory",
            ));
        };
        let outcome = match &self.failure {
            None if self.compute_output_start_ns > 0 => ResponseOutcome::Success,
            None => ResponseOutcome::Empty,
            Some(status) if status.code() == Code::Cancelled => ResponseOutcome::Cancelled,
            Some(_) => ResponseOutcome::Failure,
        };
        let has_output = match outcome {
            ResponseOutcome::Success | ResponseOutcome::Failure => self.compute_output_start_ns > 0,
            ResponseOutcome::Empty | ResponseOutcome::Cancelled => false,
        };
        let computed = if has_output { self.compute_output_start_ns } else { self.end_ns };
        let backwards = || Status::invalid_argument("the times of a response go backwards");
        let infer = computed.checked_sub(self.start_ns).ok_or_else(backwards)?;
        let output = self.end_ns.checked_sub(computed).ok_or_else(backwards)?;
        host.record_response(&ResponseRecord {
            index: channel.next_response_index(),
            outcome,
            infer: Duration::from_nanos(infer),
            output: has_output.then_some(Duration::from_nanos(output)),
        });
        Ok(())
    }
}

/// # Safety
///
/// Same requirements as for every exported function.
unsafe fn update(
    statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics,
    update: impl FnOnce(&mut ResponseReport),
) -> Result<(), Status> {
    // SAFETY: guaranteed by the caller.
    let object: &ResponseStatisticsObject =
        unsafe { handle::borrow(statistics, "response_statistics")? };
    update(&mut object.0.lock("update a report"));
    Ok(())
}

functions! {
    /// Counts an executed request.
    fn TRITONBACKEND_ModelInstanceReportStatistics(
        instance: *mut TRITONBACKEND_ModelInstance,
        request: *mut TRITONBACKEND_Request,
        success: bool,
        exec_start_ns: u64,
        compute_start_ns: u64,
        compute_end_ns: u64,
        exec_end_ns: u64,
    ) {
        let instance: &InstanceObject = handle::borrow(instance, "instance")?;
        let recorder = match instance.rescheduled(request) {
            Some(recorder) => Some(recorder),
            None => {
                let request: &RequestObject = handle::borrow(request, "request")?;
                request.recorder()
            }
        };
        // Padding isn't counted.
        let Some(recorder) = recorder else { return Ok(()) };
        let times = [exec_start_ns, compute_start_ns, compute_end_ns, exec_end_ns];
        let times = ClockConverter::shared().to_execution_times(times);
        recorder.record(success, &times);
        Ok(())
    }

    /// Counts an executed batch.
    fn TRITONBACKEND_ModelInstanceReportBatchStatistics(
        instance: *mut TRITONBACKEND_ModelInstance,
        batch_size: u64,
        exec_start_ns: u64,
        compute_start_ns: u64,
        compute_end_ns: u64,
        exec_end_ns: u64,
    ) {
        let instance: &InstanceObject = handle::borrow(instance, "instance")?;
        let times = [exec_start_ns, compute_start_ns, compute_end_ns, exec_end_ns];
        let times = ClockConverter::shared().to_execution_times(times);
        let host = &instance.model.serving()?.host;
        match instance.gpu() {
            Some(gpu) => host.record_gpu_batch(gpu, batch_size, &times),
            None => host.record_batch(batch_size, &times),
        }
        Ok(())
    }

    /// Begins a statistics report on one response.
    fn TRITONBACKEND_ModelInstanceResponseStatisticsNew(
        response_statistics: *mut *mut TRITONBACKEND_ModelInstanceResponseStatistics,
    ) {
        pointer::write(response_statistics, core::ptr::null_mut(), "response_statistics")?;
        let made = handle::into_raw(ResponseStatisticsObject::default());
        pointer::write(response_statistics, made, "response_statistics")
    }

    /// Deletes a statistics report.
    fn TRITONBACKEND_ModelInstanceResponseStatisticsDelete(
        statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics,
    ) {
        handle::delete::<ResponseStatisticsObject>(statistics, "response_statistics")
    }

    /// Sets the instance that produced the response.
    fn TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(
        statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics,
        model_instance: *mut TRITONBACKEND_ModelInstance,
    ) {
        let instance: &InstanceObject = handle::borrow(model_instance, "model_instance")?;
        let host = instance.model.serving()?.host.clone();
        update(statistics, |report| report.host = Some(host))
    }

    /// Sets the request that the response belongs to.
    fn TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(
        statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics,
        response_factory: *mut TRITONBACKEND_ResponseFactory,
    ) {
        let factory: &FactoryObject = handle::borrow(response_factory, "response_factory")?;
        update(statistics, |report| report.channel = Some(factory.channel.clone()))
    }

    /// Sets the time when work on the response began.
    fn TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(
        statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics,
        response_start: u64,
    ) {
        update(statistics, |report| report.start_ns = response_start)
    }

    /// Sets the time when the computation ended. Not called for an empty response.
    fn TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(
        statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics,
        compute_output_start: u64,
    ) {
        update(statistics, |report| report.compute_output_start_ns = compute_output_start)
    }

    /// Sets the time when the response was ready.
    fn TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(
        statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics,
        response_end: u64,
    ) {
        update(statistics, |report| report.end_ns = response_end)
    }

    /// Marks the response as an error. The backend keeps ownership of the error.
    fn TRITONBACKEND_ModelInstanceResponseStatisticsSetError(
        statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics,
        error: *mut TRITONSERVER_Error,
    ) {
        let failure = borrow_c_error(error).err();
        update(statistics, |report| report.failure = failure)
    }

    /// Counts the response that a report describes.
    fn TRITONBACKEND_ModelInstanceReportResponseStatistics(
        statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics,
    ) {
        let object: &ResponseStatisticsObject = handle::borrow(statistics, "response_statistics")?;
        object.0.lock("send a report").send()
    }
}
