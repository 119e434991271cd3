//! The registered regions, keyed by name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use galatea_control::{CudaShmRegion, ShmControl, ShmDisabled, ShmKind, SystemShmRegion};
use galatea_devices::Devices;
use galatea_infer::{AccessPass, Code, Status, api};
use galatea_stdx::Lock;
use galatea_tensor::{ForeignMemory, ForeignRegion};

use crate::cuda::CudaMemory;
use crate::key::check_key;
use crate::mapping::Mapping;

/// The maximum number of shared-memory regions that clients may register.
///
/// Each region is a mapping, and Linux allows a process 65,530 mappings. Clients use one region per
/// tensor, or one per in-flight request of their own.
pub(crate) const REGIONS_MAX: usize = 16_384;
/// The maximum length of a region's name in bytes. Names are compared, and are repeated in
/// messages.
pub(crate) const REGION_NAME_BYTES_MAX: usize = 4096;

/// A function that logs errors.
type ErrorLog = Box<dyn Fn(&str) + Send + Sync>;

/// The regions that clients have registered.
#[derive(Default)]
pub struct ShmRegistry {
    devices: Devices,
    regions: Lock<BTreeMap<String, RegisteredRegion>>,
    log_error: Option<ErrorLog>,
}

/// A region of either kind. Both kinds share one namespace.
enum RegisteredRegion {
    System { region: SystemShmRegion, mapping: RegionHold<Mapping> },
    Cuda { region: CudaShmRegion, memory: RegionHold<CudaMemory> },
}

/// A reference to a region's memory. It changes from `Kept` to `Lent`, but never back.
enum RegionHold<T> {
    /// The region is registered.
    Kept(Arc<T>),
    /// The region was unregistered while requests were using it. As in Triton, it is still listed,
    /// can be found, and keeps its name until the last of these requests has ended.
    Lent(Weak<T>),
}

impl<T> RegionHold<T> {
    fn get(&self) -> Option<Arc<T>> {
        match self {
            Self::Kept(memory) => Some(memory.clone()),
            Self::Lent(memory) => memory.upgrade(),
        }
    }

    fn is_over(&self) -> bool {
        match self {
            Self::Kept(_) => false,
            Self::Lent(memory) => memory.strong_count() == 0,
        }
    }

    /// Leaves the memory to the requests that use it. Returns the reference that has been kept so
    /// far.
    fn lend(&mut self) -> Option<Arc<T>> {
        let Self::Kept(memory) = self else { return None };
        let weak = Arc::downgrade(memory);
        match std::mem::replace(self, Self::Lent(weak)) {
            Self::Kept(memory) => Some(memory),
            Self::Lent(_) => None,
        }
    }
}

impl RegisteredRegion {
    const fn kind(&self) -> ShmKind {
        match self {
            Self::System { .. } => ShmKind::System,
            Self::Cuda { .. } => ShmKind::Cuda,
        }
    }

    const fn system(&self) -> Option<&SystemShmRegion> {
        match self {
            Self::System { region, .. } => Some(region),
            Self::Cuda { .. } => None,
        }
    }

    /// Returns true if the region has been unregistered and no request uses it any more.
    fn is_over(&self) -> bool {
        match self {
            Self::System { mapping, .. } => mapping.is_over(),
            Self::Cuda { memory, .. } => memory.is_over(),
        }
    }

    /// The memory; `None` if it no longer exists.
    fn memory(&self) -> Option<(Arc<dyn ForeignMemory>, u64)> {
        match self {
            Self::System { region, mapping } => Some((mapping.get()?, region.byte_size)),
            Self::Cuda { region, memory } => Some((memory.get()?, region.byte_size)),
        }
    }

    /// Leaves the memory to the requests that use it. Returns the reference that has been kept so
    /// far.
    fn lend(&mut self) -> Option<Arc<dyn ForeignMemory>> {
        match self {
            Self::System { mapping, .. } => Some(mapping.lend()?),
            Self::Cuda { memory, .. } => Some(memory.lend()?),
        }
    }

    const fn cuda(&self) -> Option<&CudaShmRegion> {
        match self {
            Self::System { .. } => None,
            Self::Cuda { region, .. } => Some(region),
        }
    }
}

impl fmt::Debug for ShmRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedRegions")
    }
}

impl ShmRegistry {
    /// Creates an empty registry. Regions that are registered later may be in these devices'
    /// memory.
    #[must_use]
    pub fn new(devices: Devices) -> Self {
        Self { devices, ..Self::default() }
    }

    /// Adds a log that receives the reason why a GPU driver rejects a handle. As in Triton, the
    /// client's error doesn't contain this reason.
    #[must_use]
    pub fn with_error_log(self, log_error: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { log_error: Some(Box::new(log_error)), ..self }
    }

    /// Registers the memory that `open` opens under a name that must not be in use.
    fn insert(
        &self,
        name: &str,
        check: impl FnOnce() -> Result<(), Status>,
        open: impl FnOnce() -> Result<RegisteredRegion, Status>,
    ) -> Result<(), Status> {
        if name.len() > REGION_NAME_BYTES_MAX {
            return Err(Status::invalid_argument(format!(
                "the name of a shared memory region has {} bytes, more than the allowed {}",
                name.len(),
                REGION_NAME_BYTES_MAX
            )));
        }
        check()?;
        Self::check_name(&mut self.regions.lock("look for the name of a region"), name)?;
        let opened = open()?;
        let mut regions = self.regions.lock("register a region");
        Self::check_name(&mut regions, name)?;
        regions.insert(name.to_owned(), opened);
        Ok(())
    }

    /// Checks that a name is free and that there is capacity for another region.
    fn check_name(
        regions: &mut BTreeMap<String, RegisteredRegion>,
        name: &str,
    ) -> Result<(), Status> {
        if regions.get(name).is_some_and(RegisteredRegion::is_over) {
            regions.remove(name);
        }
        if regions.contains_key(name) {
            let text = format!("shared memory region '{name}' already in manager");
            return Err(Status::new(Code::AlreadyExists, text));
        }
        if regions.len() >= REGIONS_MAX {
            regions.retain(|_, one| !one.is_over());
        }
        if regions.len() >= REGIONS_MAX {
            return Err(Status::unavailable(format!(
                "failed to register shared memory region '{name}': there are {} regions already",
                REGIONS_MAX
            )));
        }
        Ok(())
    }

    /// The regions of this kind: the one with this name, or all of them if the name is empty.
    fn shown<T: Clone>(
        &self,
        kind: ShmKind,
        name: &str,
        of_kind: impl Fn(&RegisteredRegion) -> Option<&T>,
    ) -> Result<Vec<T>, Status> {
        let mut regions = self.regions.lock("show the regions");
        regions.retain(|_, one| !one.is_over());
        if name.is_empty() {
            return Ok(regions.values().filter_map(of_kind).cloned().collect());
        }
        let Some(one) = regions.get(name) else {
            return ShmDisabled::not_found_unless_empty(kind, name);
        };
        if let Some(region) = of_kind(one) {
            return Ok(vec![region.clone()]);
        }
        let words = |kind| match kind {
            ShmKind::System => "system",
            ShmKind::Cuda => "CUDA",
        };
        Err(Status::not_found(format!(
            "The region named '{name}' is registered as {} shared memory, not {} shared memory",
            words(one.kind()),
            words(kind)
        )))
    }
}

impl ShmControl for ShmRegistry {
    fn is_allowed(&self) -> bool {
        true
    }

    fn register(
        &self,
        _: AccessPass<api::SharedMemory>,
        region: SystemShmRegion,
    ) -> Result<(), Status> {
        let name = region.name.clone();
        let key = region.key.clone();
        self.insert(
            &name,
            || check_key(&name, &key),
            || {
                let mapping = RegionHold::Kept(Arc::new(Mapping::open(&region)?));
                Ok(RegisteredRegion::System { region, mapping })
            },
        )
    }

    fn status(
        &self,
        _: AccessPass<api::SharedMemory>,
        name: &str,
    ) -> Result<Vec<SystemShmRegion>, Status> {
        self.shown(ShmKind::System, name, RegisteredRegion::system)
    }

    fn register_cuda(
        &self,
        _: AccessPass<api::SharedMemory>,
        region: CudaShmRegion,
        raw_handle: &[u8],
    ) -> Result<(), Status> {
        let name = region.name.clone();
        self.insert(
            &name,
            || Ok(()),
            || {
                let opened = CudaMemory::open(&self.devices, &region, raw_handle);
                let memory = opened.map_err(|refusal| {
                    if let (Some(log), Some(cause)) = (&self.log_error, &refusal.cause) {
                        log(&format!("failed to open CUDA IPC handle: {cause}"));
                    }
                    refusal.status
                })?;
                let memory = RegionHold::Kept(Arc::new(memory));
                Ok(RegisteredRegion::Cuda { region, memory })
            },
        )
    }

    fn cuda_status(
        &self,
        _: AccessPass<api::SharedMemory>,
        name: &str,
    ) -> Result<Vec<CudaShmRegion>, Status> {
        self.shown(ShmKind::Cuda, name, RegisteredRegion::cuda)
    }

    fn unregister(
        &self,
        _: AccessPass<api::SharedMemory>,
        kind: ShmKind,
        name: &str,
    ) -> Result<(), Status> {
        let mut regions = self.regions.lock("unregister regions");
        let is_meant = |one: &RegisteredRegion| one.kind() == kind;
        let lent: Vec<Arc<dyn ForeignMemory>> = if name.is_empty() {
            let meant = regions.values_mut().filter(|one| is_meant(one));
            meant.filter_map(RegisteredRegion::lend).collect()
        } else {
            let meant = regions.get_mut(name).filter(|one| is_meant(one));
            meant.and_then(RegisteredRegion::lend).into_iter().collect()
        };
        drop(regions);
        // Unmapping a large region takes time. This removes the regions that no request uses.
        drop(lent);
        Ok(())
    }

    fn find(
        &self,
        _: AccessPass<api::Inference>,
        name: &str,
        offset: u64,
        byte_size: u64,
    ) -> Result<ForeignRegion, Status> {
        let regions = self.regions.lock("find a region");
        let Some((memory, size)) = regions.get(name).and_then(RegisteredRegion::memory) else {
            return Err(ShmDisabled::unknown(name));
        };
        drop(regions);
        check_part(name, size, offset, byte_size)?;
        let invalid = || invalid_part("offset + byte size", name);
        Ok(ForeignRegion {
            memory,
            offset: usize::try_from(offset).map_err(|_| invalid())?,
            byte_size: usize::try_from(byte_size).map_err(|_| invalid())?,
            charge: None,
        })
    }
}

/// Checks that a part lies within a region of this size.
fn check_part(name: &str, size: u64, offset: u64, byte_size: u64) -> Result<(), Status> {
    if offset >= size {
        return Err(invalid_part("offset", name));
    }
    let Some(end) = offset.checked_add(byte_size) else {
        return Err(Status::invalid_argument(format!(
            "Integer overflow detected: byte_size ({byte_size}) + offset ({offset}) exceeds \
             maximum value ({}) for region '{name}'",
            u64::MAX
        )));
    };
    if end > size {
        return Err(invalid_part("offset + byte size", name));
    }
    Ok(())
}

fn invalid_part(what: &str, name: &str) -> Status {
    Status::invalid_argument(format!("Invalid {what} for shared memory region: '{name}'"))
}
