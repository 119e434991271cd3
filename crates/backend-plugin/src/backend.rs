//! A backend: one library opened under one backend name.

use core::ffi::{CStr, c_void};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use galatea_abi::{
    TRITONBACKEND_ARTIFACT_FILESYSTEM, TRITONBACKEND_ArtifactType, TRITONBACKEND_Backend,
    TRITONBACKEND_EXECUTION_BLOCKING, TRITONBACKEND_EXECUTION_DEVICE_BLOCKING,
    TRITONBACKEND_ExecutionPolicy, TRITONBACKEND_MemoryManager, TRITONSERVER_Message,
};
use galatea_backend::{BackendFingerprint, InstanceCreation};
use galatea_c_objects::error::{take_c_error, to_c_string};
use galatea_c_objects::message::MessageObject;
use galatea_c_objects::{handle, log, pointer};
use galatea_config::PreferredInstances;
use galatea_devices::Devices;
use galatea_infer::Status;
use galatea_stdx::Lock;

use crate::attributes::BackendAttributesObject;
use crate::library::BackendEntryPoints;
use crate::memory::MemoryManagerObject;
use crate::owned::Owned;
use crate::settings::LateServerPointer;

/// A backend as C sees it.
pub(crate) struct BackendObject {
    name: CString,
    directory: CString,
    config: Owned<MessageObject>,
    memory_manager: Owned<MemoryManagerObject>,
    policy: AtomicU32,
    state: AtomicPtr<c_void>,
}
galatea_c_objects::object!(BackendObject as TRITONBACKEND_Backend, kind 20);

/// An initialised backend. Dropping it finalises it.
pub(crate) struct Backend {
    object: Owned<BackendObject>,
    pub(crate) name: String,
    pub(crate) entry_points: BackendEntryPoints,
    pub(crate) preferred: Lock<Vec<PreferredInstances>>,
    /// True if a model's instances may be created in parallel.
    parallel: AtomicBool,
    /// The GPUs that the server uses.
    pub(crate) devices: Devices,
    pub(crate) server: LateServerPointer,
    pub(crate) fingerprint: Option<BackendFingerprint>,
}

/// The facts that a backend receives during initialisation.
pub(crate) struct BackendInfo<'a> {
    pub(crate) name: &'a str,
    pub(crate) directory: &'a str,
    /// The command-line settings as JSON.
    pub(crate) config: String,
    pub(crate) server: LateServerPointer,
    /// The GPUs that the backend may use.
    pub(crate) devices: Devices,
    /// `None` if a later version of the files couldn't be distinguished from this one.
    pub(crate) fingerprint: Option<BackendFingerprint>,
}

impl Backend {
    /// Initialises a backend.
    pub(crate) fn initialize(
        entry_points: BackendEntryPoints,
        identity: BackendInfo<'_>,
    ) -> Result<Self, Status> {
        let backend = Self {
            object: Owned::new(BackendObject {
                name: to_c_string(identity.name),
                directory: to_c_string(identity.directory),
                config: Owned::new(MessageObject::new(identity.config)),
                memory_manager: Owned::new(MemoryManagerObject::new(identity.devices.clone())),
                policy: AtomicU32::new(TRITONBACKEND_EXECUTION_BLOCKING.0),
                state: AtomicPtr::default(),
            }),
            name: identity.name.to_owned(),
            entry_points,
            preferred: Lock::default(),
            parallel: AtomicBool::new(false),
            devices: identity.devices,
            server: identity.server,
            fingerprint: identity.fingerprint,
        };
        if let Some(initialize) = backend.entry_points.initialize {
            // SAFETY: the object lives until the backend is dropped.
            unsafe { take_c_error(initialize(backend.address())) }?;
        }
        if let Some(attributes) = backend.entry_points.attributes {
            let declared = Owned::new(BackendAttributesObject::default());
            // SAFETY: both objects outlive the call.
            unsafe { take_c_error(attributes(backend.address(), declared.address())) }?;
            let declared = declared.into_inner().unwrap_or_default();
            backend.parallel.store(declared.wants_parallel_loading(), Ordering::Relaxed);
            *backend.preferred.lock("set preferred instances") = declared.into_preferred();
        }
        Ok(backend)
    }

    /// Creates a built-in backend for C code that accompanies its models.
    pub(crate) fn of_built_in(identity: BackendInfo<'_>) -> Result<Self, Status> {
        Self::initialize(BackendEntryPoints::NONE, identity)
    }

    pub(crate) const fn address(&self) -> *mut TRITONBACKEND_Backend {
        self.object.address()
    }

    /// The instance creation mode that the backend declared. By default, instances are created one
    /// at a time.
    pub(crate) fn instance_creation(&self) -> InstanceCreation {
        match self.parallel.load(Ordering::Relaxed) {
            true => InstanceCreation::Parallel,
            false => InstanceCreation::Sequential,
        }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        let Some(finalize) = self.entry_points.finalize else { return };
        // SAFETY: the object is released only afterwards, and no model uses it any more.
        if let Err(status) = unsafe { take_c_error(finalize(self.address())) } {
            log::error(&format!("failed finalizing backend '{}': {status}", self.name));
        }
    }
}

/// # Safety
///
/// Same requirements as for every exported function.
unsafe fn object<'a>(backend: *mut TRITONBACKEND_Backend) -> Result<&'a BackendObject, Status> {
    // SAFETY: guaranteed by the caller.
    unsafe { handle::borrow(backend, "backend") }
}

functions! {
    /// Returns the version of this interface.
    fn TRITONBACKEND_ApiVersion(major: *mut u32, minor: *mut u32) {
        pointer::write(major, galatea_abi::BACKEND_API_VERSION.0, "major")?;
        pointer::write(minor, galatea_abi::BACKEND_API_VERSION.1, "minor")
    }

    /// Returns the backend's name.
    fn TRITONBACKEND_BackendName(
        backend: *mut TRITONBACKEND_Backend,
        name: *mut *const core::ffi::c_char,
    ) {
        pointer::write(name, object(backend)?.name.as_ptr(), "name")
    }

    /// Returns the command-line settings. The backend keeps ownership.
    fn TRITONBACKEND_BackendConfig(
        backend: *mut TRITONBACKEND_Backend,
        backend_config: *mut *mut TRITONSERVER_Message,
    ) {
        pointer::write(backend_config, object(backend)?.config.address(), "backend_config")
    }

    /// Returns the execution policy.
    fn TRITONBACKEND_BackendExecutionPolicy(
        backend: *mut TRITONBACKEND_Backend,
        policy: *mut TRITONBACKEND_ExecutionPolicy,
    ) {
        let found = TRITONBACKEND_ExecutionPolicy(object(backend)?.policy.load(Ordering::Acquire));
        pointer::write(policy, found, "policy")
    }

    /// Sets the execution policy. With either policy, each CPU instance has its own thread, as in
    /// Triton.
    fn TRITONBACKEND_BackendSetExecutionPolicy(
        backend: *mut TRITONBACKEND_Backend,
        policy: TRITONBACKEND_ExecutionPolicy,
    ) {
        let backend = object(backend)?;
        match policy {
            TRITONBACKEND_EXECUTION_BLOCKING | TRITONBACKEND_EXECUTION_DEVICE_BLOCKING => {
                backend.policy.store(policy.0, Ordering::Release);
                Ok(())
            }
            TRITONBACKEND_ExecutionPolicy(other) => {
                Err(Status::invalid_argument(format!("unknown execution policy {other}")))
            }
        }
    }

    /// Returns the location of the backend's files.
    fn TRITONBACKEND_BackendArtifacts(
        backend: *mut TRITONBACKEND_Backend,
        artifact_type: *mut TRITONBACKEND_ArtifactType,
        location: *mut *const core::ffi::c_char,
    ) {
        let directory: &CStr = &object(backend)?.directory;
        pointer::write(artifact_type, TRITONBACKEND_ARTIFACT_FILESYSTEM, "artifact_type")?;
        pointer::write(location, directory.as_ptr(), "location")
    }

    /// Returns the object that allocates memory for the backend.
    fn TRITONBACKEND_BackendMemoryManager(
        backend: *mut TRITONBACKEND_Backend,
        manager: *mut *mut TRITONBACKEND_MemoryManager,
    ) {
        pointer::write(manager, object(backend)?.memory_manager.address(), "manager")
    }

    /// Returns the state that the backend has attached to itself.
    fn TRITONBACKEND_BackendState(
        backend: *mut TRITONBACKEND_Backend,
        state: *mut *mut c_void,
    ) {
        pointer::write(state, object(backend)?.state.load(Ordering::Acquire), "state")
    }

    /// Attaches state to the backend.
    fn TRITONBACKEND_BackendSetState(backend: *mut TRITONBACKEND_Backend, state: *mut c_void) {
        object(backend)?.state.store(state, Ordering::Release);
        Ok(())
    }
}
