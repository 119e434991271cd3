//! Attributes that a backend declares: the object that `TRITONBACKEND_GetBackendAttribute` fills
//! in.

use std::sync::atomic::{AtomicBool, Ordering};

use galatea_abi::{
    TRITONBACKEND_BackendAttribute, TRITONSERVER_INSTANCEGROUPKIND_AUTO,
    TRITONSERVER_INSTANCEGROUPKIND_CPU, TRITONSERVER_INSTANCEGROUPKIND_GPU,
    TRITONSERVER_INSTANCEGROUPKIND_MODEL, TRITONSERVER_InstanceGroupKind,
};
use galatea_c_objects::{handle, pointer};
use galatea_config::{InstanceKind, PreferredInstances};
use galatea_infer::Status;
use galatea_stdx::Lock;

/// Backend attributes while the backend fills them in.
#[derive(Default)]
pub(crate) struct BackendAttributesObject {
    preferred: Lock<Vec<PreferredInstances>>,
    parallel_loading: AtomicBool,
}
galatea_c_objects::object!(BackendAttributesObject as TRITONBACKEND_BackendAttribute, kind 21);

impl BackendAttributesObject {
    pub(crate) fn wants_parallel_loading(&self) -> bool {
        self.parallel_loading.load(Ordering::Acquire)
    }

    pub(crate) fn into_preferred(self) -> Vec<PreferredInstances> {
        self.preferred.into_inner()
    }
}

fn kind(kind: TRITONSERVER_InstanceGroupKind) -> Result<Option<InstanceKind>, Status> {
    match kind {
        TRITONSERVER_INSTANCEGROUPKIND_AUTO => Ok(None),
        TRITONSERVER_INSTANCEGROUPKIND_CPU => Ok(Some(InstanceKind::Cpu)),
        TRITONSERVER_INSTANCEGROUPKIND_GPU => Ok(Some(InstanceKind::Gpu)),
        TRITONSERVER_INSTANCEGROUPKIND_MODEL => Ok(Some(InstanceKind::Model)),
        TRITONSERVER_InstanceGroupKind(other) => {
            Err(Status::invalid_argument(format!("unknown kind of instances {other}")))
        }
    }
}

functions! {
    /// Adds an instance group that the backend prefers. The server uses the first group that is
    /// possible.
    fn TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
        backend_attributes: *mut TRITONBACKEND_BackendAttribute,
        kind_: TRITONSERVER_InstanceGroupKind,
        count: u64,
        device_ids: *const u64,
        id_count: u64,
    ) {
        let attributes: &BackendAttributesObject =
            handle::borrow(backend_attributes, "backend_attributes")?;
        let id_count = if device_ids.is_null() { 0 } else { id_count };
        let id_count = usize::try_from(id_count)
            .map_err(|_| Status::invalid_argument("id_count is too large"))?;
        let gpus = pointer::slice(device_ids, id_count, "device_ids")?.iter().map(|&id| {
            i32::try_from(id).map_err(|_| {
                Status::invalid_argument(format!("{id} is not the number of a device"))
            })
        });
        let preferred = PreferredInstances {
            kind: kind(kind_)?,
            count: u32::try_from(count)
                .map_err(|_| Status::invalid_argument("count is too large"))?,
            gpus: gpus.collect::<Result<_, _>>()?,
        };
        attributes.preferred.lock("add preferred instances").push(preferred);
        Ok(())
    }

    /// Sets whether instances may be created in parallel.
    fn TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(
        backend_attributes: *mut TRITONBACKEND_BackendAttribute,
        enabled: bool,
    ) {
        let attributes: &BackendAttributesObject =
            handle::borrow(backend_attributes, "backend_attributes")?;
        attributes.parallel_loading.store(enabled, Ordering::Release);
        Ok(())
    }
}
