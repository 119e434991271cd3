//! A model instance, which executes batches.

use core::ffi::{c_char, c_void};
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use galatea_abi::{
    TRITONBACKEND_Model, TRITONBACKEND_ModelInstance, TRITONBACKEND_Request,
    TRITONSERVER_BufferAttributes, TRITONSERVER_INSTANCEGROUPKIND_CPU,
    TRITONSERVER_INSTANCEGROUPKIND_GPU, TRITONSERVER_INSTANCEGROUPKIND_MODEL,
    TRITONSERVER_InstanceGroupKind, TRITONSERVER_Message,
};
use galatea_backend::{Device, ExecutionPredictability, Placement};
use galatea_c_objects::error::{take_c_error, to_c_string};
use galatea_c_objects::message::MessageObject;
use galatea_c_objects::{handle, list, log, pointer};
use galatea_config::{InstanceGroup, ModelSpec};
use galatea_infer::Status;
use galatea_stdx::{Condvar, Lock};

use crate::execution_recorder::ExecutionRecorder;
use crate::memory_usage::{MemoryReport, MemoryTotal};
use crate::model::Model;
use crate::owned::Owned;

/// An instance as C sees it.
pub(crate) struct InstanceObject {
    name: CString,
    kind: TRITONSERVER_InstanceGroupKind,
    device_id: i32,
    host_policy: Owned<MessageObject>,
    is_passive: bool,
    profiles: Vec<CString>,
    /// The kind and number of each secondary device.
    secondary_devices: Vec<(CString, i64)>,
    pub(crate) model: Arc<Model>,
    state: AtomicPtr<c_void>,
    memory_usage: MemoryReport,
    /// The requests of the latest batch that were released for rescheduling, with their execution
    /// recorders.
    rescheduled: Lock<Vec<(usize, ExecutionRecorder)>>,
}
galatea_c_objects::object!(InstanceObject as TRITONBACKEND_ModelInstance, kind 24);

impl InstanceObject {
    /// The number of the instance's GPU, if it is on one.
    pub(crate) fn gpu(&self) -> Option<u32> {
        let is_on_gpu = self.kind == TRITONSERVER_INSTANCEGROUPKIND_GPU;
        u32::try_from(self.device_id).ok().filter(|_| is_on_gpu)
    }

    /// The execution recorder of a request that was released for rescheduling. Triton lets backends
    /// report on such a request at any time, because its next execution uses the same object. Here,
    /// backends may report on the request until the next batch begins.
    pub(crate) fn rescheduled(
        &self,
        request: *mut TRITONBACKEND_Request,
    ) -> Option<ExecutionRecorder> {
        let rescheduled = self.rescheduled.lock("find a rescheduled request");
        let found = rescheduled.iter().find(|(address, _)| *address == request.addr());
        found.map(|(_, recorder)| recorder.clone())
    }
}

/// An initialised instance. Dropping it finalises it.
pub(crate) struct Instance {
    object: Owned<InstanceObject>,
    pub(crate) model: Arc<Model>,
    name: String,
    /// Dropped last.
    _life: InstanceLife,
}

/// The number of a model's instances that have not been finalised yet.
#[derive(Default)]
pub(crate) struct InstanceCount {
    count: Lock<usize>,
    changed: Condvar,
}

impl InstanceCount {
    /// Counts an instance until the returned guard is dropped.
    pub(crate) fn count_instance(self: &Arc<Self>) -> InstanceLife {
        *self.count.lock("count an instance") += 1;
        InstanceLife(self.clone())
    }

    /// Waits until all instances have been finalised.
    pub(crate) fn wait_for_none(&self) {
        let mut count = self.count.lock("wait for the ends of instances");
        while *count > 0 {
            count = self.changed.wait(count);
        }
    }
}

/// A counted instance's lifetime, from before its initialisation until its finalisation.
pub(crate) struct InstanceLife(Arc<InstanceCount>);

impl Drop for InstanceLife {
    fn drop(&mut self) {
        *self.0.count.lock("count an instance off") -= 1;
        self.0.changed.notify_all();
    }
}

impl Instance {
    /// Creates an instance and calls the backend's initialisation function.
    pub(crate) fn initialize(
        model: Arc<Model>,
        at: &Placement,
        life: InstanceLife,
    ) -> Result<Self, Status> {
        let (kind, device_id) = match at.device {
            Device::Cpu => (TRITONSERVER_INSTANCEGROUPKIND_CPU, 0),
            Device::Gpu(number) => (
                TRITONSERVER_INSTANCEGROUPKIND_GPU,
                i32::try_from(number).map_err(|_| Status::invalid_argument("no such GPU"))?,
            ),
            Device::Model => (TRITONSERVER_INSTANCEGROUPKIND_MODEL, 0),
        };
        let spec = model.serving()?.spec.clone();
        let group = spec.group_of_instance(&at.name);
        // The policy's settings, keyed by its name.
        let host_policy = serde_json::json!({ at.host_policy(&spec): at.host_policy_settings });
        let instance = Self {
            object: Owned::new(InstanceObject {
                name: to_c_string(&at.name),
                kind,
                device_id,
                host_policy: Owned::new(MessageObject::new(host_policy.to_string())),
                is_passive: group.is_some_and(|group| group.passive),
                profiles: profiles(&spec, group),
                secondary_devices: secondary_devices(group),
                model: model.clone(),
                state: AtomicPtr::default(),
                memory_usage: MemoryReport::default(),
                rescheduled: Lock::default(),
            }),
            model,
            name: at.name.clone(),
            _life: life,
        };
        if let Some(initialize) = instance.model.info.backend.entry_points.instance_initialize {
            // SAFETY: the object lives until the instance is dropped.
            unsafe { take_c_error(initialize(instance.address())) }?;
        }
        Ok(instance)
    }

    pub(crate) fn address(&self) -> *mut TRITONBACKEND_ModelInstance {
        self.object.address()
    }

    /// Returns an error unless the backend reports that the instance can serve.
    fn ready(&self) -> Result<(), Status> {
        match self.model.info.backend.entry_points.instance_ready {
            // SAFETY: the object lives as long as the instance.
            Some(ready) => unsafe { take_c_error(ready(self.address())) },
            None => Ok(()),
        }
    }

    /// Clears the previous batch's rescheduled requests.
    pub(crate) fn begin_batch(&self) {
        if let Some(object) = self.object.get() {
            object.rescheduled.lock("begin a batch").clear();
        }
    }

    /// The backend's guarantee about executions. By default, an execution may block on anything. A
    /// decoupled model never gets a stronger guarantee, because sending many responses may block on
    /// slow clients.
    pub(crate) fn guarantee(&self, decoupled: bool) -> Result<ExecutionPredictability, Status> {
        let entry_points = &self.model.info.backend.entry_points;
        let Some(ask) = entry_points.instance_predictable.filter(|_| !decoupled) else {
            return Ok(ExecutionPredictability::Unspecified);
        };
        let mut is_predictable = false;
        // SAFETY: the object lives as long as the instance, and the flag as long as the
        // call.
        unsafe { take_c_error(ask(self.address(), &raw mut is_predictable)) }?;
        Ok(if is_predictable {
            ExecutionPredictability::Predictable
        } else {
            ExecutionPredictability::Unspecified
        })
    }
}

impl Drop for Instance {
    /// Finalises the instance, even if its initialisation failed, as Triton does.
    fn drop(&mut self) {
        let finalize = self.model.info.backend.entry_points.instance_finalize;
        let Some(finalize) = finalize else { return };
        // SAFETY: the object is released only afterwards, and nothing uses it any more.
        if let Err(status) = unsafe { take_c_error(finalize(self.address())) } {
            log::error(&format!("failed finalizing model instance '{}': {status}", self.name));
        }
    }
}

/// Keeps an instance, and therefore its model, from being finalised. Every object that the plug-in
/// may still use contains a guard.
pub(crate) struct InstanceGuard(Option<Arc<Instance>>);

impl InstanceGuard {
    pub(crate) const fn new(instance: Arc<Instance>) -> Self {
        Self(Some(instance))
    }

    /// Creates a guard that protects no instance.
    pub(crate) const fn none() -> Self {
        Self(None)
    }

    /// Returns an error unless the backend reports that the instance can serve.
    pub(crate) fn ready(&self) -> Result<(), Status> {
        self.0.as_ref().map_or(Ok(()), |instance| instance.ready())
    }

    pub(crate) fn add_memory_usage(&self, total: &mut MemoryTotal) {
        if let Some(object) = self.0.as_ref().and_then(|instance| instance.object.get()) {
            total.add(&object.memory_usage);
        }
    }

    /// Records that a request is being released for rescheduling.
    pub(crate) fn record_rescheduled(
        &self,
        request: *mut TRITONBACKEND_Request,
        recorder: ExecutionRecorder,
    ) {
        if let Some(object) = self.0.as_ref().and_then(|instance| instance.object.get()) {
            object
                .rescheduled
                .lock("record a rescheduled request")
                .push((request.addr(), recorder));
        }
    }

    pub(crate) fn model(&self) -> Option<&Model> {
        self.0.as_ref().map(|instance| &*instance.model)
    }
}

impl Clone for InstanceGuard {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl Drop for InstanceGuard {
    /// Finalises the instance on a separate thread if this is the last guard. The plug-in itself
    /// often drops the last guard, on a thread that the finalisation would wait for.
    fn drop(&mut self) {
        let Some(last) = self.0.take().and_then(Arc::into_inner) else { return };
        let name = last.name.clone();
        let thread = std::thread::Builder::new().name(String::from("finalize"));
        if let Err(error) = thread.spawn(move || drop(last)) {
            log::error(&format!(
                "instance '{name}' was finalized on a thread of its backend: {error}"
            ));
        }
    }
}

fn profiles(spec: &ModelSpec, group: Option<&InstanceGroup>) -> Vec<CString> {
    let groups = spec.message().instance_group.iter();
    let own = groups.filter(|one| group.is_some_and(|group| group.name == one.name));
    own.flat_map(|group| group.profile.iter().map(|name| to_c_string(name))).collect()
}

fn secondary_devices(group: Option<&InstanceGroup>) -> Vec<(CString, i64)> {
    let devices = group.map_or(&[][..], |group| &group.secondary_devices);
    devices.iter().map(|device| (to_c_string(device.kind), device.device_id)).collect()
}

/// # Safety
///
/// Same requirements as for every exported function.
unsafe fn object<'a>(
    instance: *mut TRITONBACKEND_ModelInstance,
) -> Result<&'a InstanceObject, Status> {
    // SAFETY: guaranteed by the caller.
    unsafe { handle::borrow(instance, "instance") }
}

fn out_of_bounds(index: u32, count: usize, what: &str) -> Status {
    Status::invalid_argument(format!(
        "out of bounds index {index}: instance is configured with {count} {what}"
    ))
}

functions! {
    /// Returns the instance's name.
    fn TRITONBACKEND_ModelInstanceName(
        instance: *mut TRITONBACKEND_ModelInstance,
        name: *mut *const c_char,
    ) {
        pointer::write(name, object(instance)?.name.as_ptr(), "name")
    }

    /// Returns the kind of device that the instance runs on.
    fn TRITONBACKEND_ModelInstanceKind(
        instance: *mut TRITONBACKEND_ModelInstance,
        kind: *mut TRITONSERVER_InstanceGroupKind,
    ) {
        pointer::write(kind, object(instance)?.kind, "kind")
    }

    /// Returns the device number, or 0 for devices without numbers.
    fn TRITONBACKEND_ModelInstanceDeviceId(
        instance: *mut TRITONBACKEND_ModelInstance,
        device_id: *mut i32,
    ) {
        pointer::write(device_id, object(instance)?.device_id, "device_id")
    }

    /// Returns the host policy. The instance keeps ownership.
    fn TRITONBACKEND_ModelInstanceHostPolicy(
        instance: *mut TRITONBACKEND_ModelInstance,
        host_policy: *mut *mut TRITONSERVER_Message,
    ) {
        pointer::write(host_policy, object(instance)?.host_policy.address(), "host_policy")
    }

    /// Returns true if the instance never receives requests.
    fn TRITONBACKEND_ModelInstanceIsPassive(
        instance: *mut TRITONBACKEND_ModelInstance,
        is_passive: *mut bool,
    ) {
        pointer::write(is_passive, object(instance)?.is_passive, "is_passive")
    }

    /// Returns the number of profiles that are available to the instance.
    fn TRITONBACKEND_ModelInstanceProfileCount(
        instance: *mut TRITONBACKEND_ModelInstance,
        count: *mut u32,
    ) {
        let found = list::len_u32(&object(instance)?.profiles);
        pointer::write(count, found, "count")
    }

    /// Returns the name of a profile.
    fn TRITONBACKEND_ModelInstanceProfileName(
        instance: *mut TRITONBACKEND_ModelInstance,
        index: u32,
        profile_name: *mut *const c_char,
    ) {
        pointer::write(profile_name, core::ptr::null(), "profile_name")?;
        let profiles = &object(instance)?.profiles;
        let found = list::get_u32(profiles, index);
        let found = found.ok_or_else(|| out_of_bounds(index, profiles.len(), "profiles"))?;
        pointer::write(profile_name, found.as_ptr(), "profile_name")
    }

    /// Returns the number of secondary devices that the instance uses.
    fn TRITONBACKEND_ModelInstanceSecondaryDeviceCount(
        instance: *mut TRITONBACKEND_ModelInstance,
        count: *mut u32,
    ) {
        let found = list::len_u32(&object(instance)?.secondary_devices);
        pointer::write(count, found, "count")
    }

    /// Returns a secondary device's properties.
    fn TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(
        instance: *mut TRITONBACKEND_ModelInstance,
        index: u32,
        kind: *mut *const c_char,
        id: *mut i64,
    ) {
        let devices = &object(instance)?.secondary_devices;
        let found = list::get_u32(devices, index);
        let (name, number) =
            found.ok_or_else(|| out_of_bounds(index, devices.len(), "secondary devices"))?;
        pointer::write(kind, name.as_ptr(), "kind")?;
        pointer::write(id, *number, "id")
    }

    /// Returns the instance's model.
    fn TRITONBACKEND_ModelInstanceModel(
        instance: *mut TRITONBACKEND_ModelInstance,
        model: *mut *mut TRITONBACKEND_Model,
    ) {
        pointer::write(model, object(instance)?.model.address(), "model")
    }

    /// Returns the state that the backend has attached to the instance.
    fn TRITONBACKEND_ModelInstanceState(
        instance: *mut TRITONBACKEND_ModelInstance,
        state: *mut *mut c_void,
    ) {
        pointer::write(state, object(instance)?.state.load(Ordering::Acquire), "state")
    }

    /// Attaches the backend's state to the instance.
    fn TRITONBACKEND_ModelInstanceSetState(
        instance: *mut TRITONBACKEND_ModelInstance,
        state: *mut c_void,
    ) {
        object(instance)?.state.store(state, Ordering::Release);
        Ok(())
    }

    /// Records how much memory the instance uses.
    fn TRITONBACKEND_ModelInstanceReportMemoryUsage(
        instance: *mut TRITONBACKEND_ModelInstance,
        usage: *mut *mut TRITONSERVER_BufferAttributes,
        usage_size: u32,
    ) {
        object(instance)?.memory_usage.replace(usage, usage_size)
    }
}
