//! The memory that clients share with the server.

use std::fmt;

use galatea_gate::access::{AccessPass, api};
use galatea_tensor::ForeignRegion;

use galatea_infer::Status;

/// A kind of shared memory. The displayed form is the one in client messages.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ShmKind {
    /// The machine's POSIX shared memory.
    System,
    /// GPU memory.
    Cuda,
}

impl fmt::Display for ShmKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System => "system",
            Self::Cuda => "cuda",
        })
    }
}

/// A region of POSIX shared memory that a client registers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemShmRegion {
    /// The name by which requests refer to it.
    pub name: String,
    /// The name of the shared memory object.
    pub key: String,
    /// The start of the region in the object, in bytes.
    pub offset: u64,
    /// The length in bytes.
    pub byte_size: u64,
}

/// A region of GPU memory that a client registers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CudaShmRegion {
    /// The name by which requests refer to it.
    pub name: String,
    /// The number of the GPU.
    pub device_id: u64,
    /// The length in bytes.
    pub byte_size: u64,
}

/// Registers the regions that clients share, and finds them for their requests.
///
/// A request keeps its regions and can still use one that has since been unregistered.
pub trait ShmControl: Send + Sync + fmt::Debug {
    /// Returns true if clients may register regions.
    fn is_allowed(&self) -> bool;

    /// Registers a region of POSIX shared memory.
    ///
    /// # Errors
    ///
    /// `Unsupported` if clients may not register regions; `AlreadyExists` for a name that is
    /// registered; `InvalidArgument` and `Internal` for an impossible key or size.
    fn register(
        &self,
        pass: AccessPass<api::SharedMemory>,
        region: SystemShmRegion,
    ) -> Result<(), Status>;

    /// The POSIX shared memory region with this name, or all regions in name order if the name is
    /// empty.
    ///
    /// # Errors
    ///
    /// `NotFound` if no region of this kind has the name.
    fn status(
        &self,
        pass: AccessPass<api::SharedMemory>,
        name: &str,
    ) -> Result<Vec<SystemShmRegion>, Status>;

    /// Registers a region of GPU memory by the handle that the client got from its driver.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`ShmControl::register`], or `InvalidArgument` for a handle that
    /// can't be opened, which includes every handle on a server without GPUs.
    fn register_cuda(
        &self,
        pass: AccessPass<api::SharedMemory>,
        region: CudaShmRegion,
        raw_handle: &[u8],
    ) -> Result<(), Status>;

    /// The GPU memory region with this name, or all regions in name order if the name is empty.
    ///
    /// # Errors
    ///
    /// `NotFound` if no region of this kind has the name.
    fn cuda_status(
        &self,
        _: AccessPass<api::SharedMemory>,
        name: &str,
    ) -> Result<Vec<CudaShmRegion>, Status> {
        ShmDisabled::not_found_unless_empty(ShmKind::Cuda, name)
    }

    /// Unregisters the region with this name, or all of this kind if the name is empty. An unknown
    /// name is not an error.
    ///
    /// # Errors
    ///
    /// `Unsupported` if clients may not register regions.
    fn unregister(
        &self,
        pass: AccessPass<api::SharedMemory>,
        kind: ShmKind,
        name: &str,
    ) -> Result<(), Status>;

    /// The part of a region that contains a tensor.
    ///
    /// # Errors
    ///
    /// `NotFound` for an unknown name; `InvalidArgument` for a part that exceeds the region.
    fn find(
        &self,
        pass: AccessPass<api::Inference>,
        name: &str,
        offset: u64,
        byte_size: u64,
    ) -> Result<ForeignRegion, Status>;
}

/// A [`ShmControl`] that refuses to share memory with clients.
#[derive(Copy, Clone, Debug)]
pub struct ShmDisabled;

impl ShmDisabled {
    /// The error for a refused registration. As in Triton, it mentions the flag.
    #[must_use]
    pub fn refusal() -> Status {
        Status::unsupported(
            "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to \
             enable.",
        )
    }

    /// The result when no region has the name `name`, which may be empty.
    ///
    /// # Errors
    ///
    /// `NotFound` unless the name is empty.
    pub fn not_found_unless_empty<T>(kind: ShmKind, name: &str) -> Result<Vec<T>, Status> {
        if name.is_empty() {
            return Ok(Vec::new());
        }
        Err(Status::not_found(format!("Unable to find {kind} shared memory region: '{name}'")))
    }

    /// The error for a tensor in a region that does not exist.
    #[must_use]
    pub fn unknown(name: &str) -> Status {
        Status::not_found(format!("Unable to find shared memory region: '{name}'"))
    }
}

impl ShmControl for ShmDisabled {
    fn is_allowed(&self) -> bool {
        false
    }

    fn register_cuda(
        &self,
        _: AccessPass<api::SharedMemory>,
        _: CudaShmRegion,
        _: &[u8],
    ) -> Result<(), Status> {
        Err(Self::refusal())
    }

    fn register(&self, _: AccessPass<api::SharedMemory>, _: SystemShmRegion) -> Result<(), Status> {
        Err(Self::refusal())
    }

    fn status(
        &self,
        _: AccessPass<api::SharedMemory>,
        name: &str,
    ) -> Result<Vec<SystemShmRegion>, Status> {
        Self::not_found_unless_empty(ShmKind::System, name)
    }

    fn unregister(
        &self,
        _: AccessPass<api::SharedMemory>,
        _: ShmKind,
        _: &str,
    ) -> Result<(), Status> {
        Err(Self::refusal())
    }

    fn find(
        &self,
        _: AccessPass<api::Inference>,
        name: &str,
        _: u64,
        _: u64,
    ) -> Result<ForeignRegion, Status> {
        // As in Triton, only calls about regions mention the flag.
        Err(Self::unknown(name))
    }
}

/// The regions that a request's tensors may refer to.
#[derive(Copy, Clone)]
pub struct RequestShmRegions<'a> {
    control: &'a dyn ShmControl,
    pass: AccessPass<api::Inference>,
}

impl<'a> RequestShmRegions<'a> {
    /// The server's regions, for an admitted request.
    pub const fn new(control: &'a dyn ShmControl, pass: AccessPass<api::Inference>) -> Self {
        Self { control, pass }
    }

    /// No regions. Used for requests from inside the process.
    #[must_use]
    pub const fn none() -> Self {
        Self::new(&ShmDisabled, AccessPass::in_process())
    }

    /// Finds the part of a region that contains a tensor.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`ShmControl::find`].
    pub fn find(&self, name: &str, offset: u64, byte_size: u64) -> Result<ForeignRegion, Status> {
        self.control.find(self.pass, name, offset, byte_size)
    }
}

impl fmt::Debug for RequestShmRegions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Regions")
    }
}
