//! A plug-in's instance as the engine sees it.
//!
//! Each request in a batch is boxed into an object that C can refer to. A release takes the object
//! back. If the batch is refused, the objects that haven't been released are taken back.

use std::sync::{Arc, Weak};

use galatea_abi::TRITONBACKEND_Request;
use galatea_backend::{
    Device, ExecutionPredictability, Instance as InstanceTrait, Placement, RefusedBatch,
};
use galatea_c_objects::error::take_c_error;
use galatea_c_objects::{handle, log};
use galatea_infer::{FailureReason, PendingRequest, Status};

use crate::device_tensor::place_inputs;
use crate::instance::{Instance, InstanceGuard, InstanceLife};
use crate::model::Model;
use crate::request::RequestObject;

/// The instance as the engine sees it.
pub(crate) struct PluginInstance {
    instance: Arc<Instance>,
    /// The GPU that the instance runs on, if any.
    gpu: Option<u32>,
    guarantee: ExecutionPredictability,
}

impl PluginInstance {
    pub(crate) fn downgrade(&self) -> Weak<Instance> {
        Arc::downgrade(&self.instance)
    }

    pub(crate) fn initialize(
        model: Arc<Model>,
        at: &Placement,
        life: InstanceLife,
    ) -> Result<Self, Status> {
        let decoupled = model.serving()?.spec.decoupled;
        let instance = Instance::initialize(model, at, life)?;
        let guarantee = instance.guarantee(decoupled)?;
        let gpu = match at.device {
            Device::Gpu(number) => Some(number),
            Device::Cpu | Device::Model => None,
        };
        Ok(Self { instance: Arc::new(instance), gpu, guarantee })
    }

    /// Moves the request's inputs to memory that the instance can use. If that fails, the request
    /// fails.
    fn placed(&self, mut request: PendingRequest) -> Option<PendingRequest> {
        let devices = &self.instance.model.info.backend.devices;
        match place_inputs(request.inputs_mut(), self.gpu, devices) {
            Ok(()) => Some(request),
            Err(status) => {
                let prefix = request.request().log_prefix();
                request.fail(status.prefixed(prefix), FailureReason::Other);
                None
            }
        }
    }
}

impl InstanceTrait for PluginInstance {
    fn guarantee(&self) -> ExecutionPredictability {
        self.guarantee
    }

    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        let instance = &self.instance;
        let serving = match instance.model.serving() {
            Ok(serving) => serving,
            Err(status) => return Err(RefusedBatch { requests, status }),
        };
        instance.begin_batch();
        let addresses: Vec<*mut TRITONBACKEND_Request> = requests
            .into_iter()
            .filter_map(|request| self.placed(request))
            .map(|request| {
                let instance_guard = InstanceGuard::new(instance.clone());
                handle::into_raw(RequestObject::new(request, serving, instance_guard))
            })
            .collect();
        if addresses.is_empty() {
            return Ok(());
        }
        // The plug-in gets a copy because it may overwrite the array.
        let mut array = addresses.clone();
        let Ok(count) = u32::try_from(array.len()) else {
            return Err(take_back(&addresses, Status::internal("a batch has too many requests")));
        };
        let execute = instance.model.info.backend.entry_points.execute;
        // SAFETY: the array and its objects outlive the call. If the call succeeds, the plug-in
        // owns the objects from then on.
        let executed =
            unsafe { take_c_error(execute(instance.address(), array.as_mut_ptr(), count)) };
        executed.map_err(|status| take_back(&addresses, status))
    }
}

/// The requests of a refused batch. Requests that the plug-in released in violation of its contract
/// are lost.
fn take_back(addresses: &[*mut TRITONBACKEND_Request], status: Status) -> RefusedBatch {
    let mut requests = Vec::with_capacity(addresses.len());
    for &address in addresses {
        // SAFETY: the address belongs to an object that was created for this batch.
        match unsafe { handle::take::<RequestObject>(address, "a request of a refused batch") } {
            Ok(object) => requests.extend(object.into_refused()),
            Err(_) => log::error(
                "a backend returned an error from TRITONBACKEND_ModelInstanceExecute after it \
                 had released requests of the batch",
            ),
        }
    }
    RefusedBatch { requests, status }
}
