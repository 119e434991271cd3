//! The regions by their names.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use galatea_gate::limits::Limits;
use galatea_infer::{Code, NoRegions, Pass, RegionControl, RegionKind, Status, SystemRegion, api};
use galatea_stdx::Lock;
use galatea_tensor::ForeignRegion;

use crate::key::check_key;
use crate::mapping::Mapping;

/// The regions that clients have registered.
#[derive(Default)]
pub struct SharedRegions {
    regions: Lock<BTreeMap<String, Registered>>,
}

struct Registered {
    region: SystemRegion,
    mapping: Arc<Mapping>,
}

impl fmt::Debug for SharedRegions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedRegions")
    }
}

impl SharedRegions {
    /// Checks that a name is free, and that there is room for another region.
    fn check_name(regions: &BTreeMap<String, Registered>, name: &str) -> Result<(), Status> {
        if regions.contains_key(name) {
            let text = format!("shared memory region '{name}' already in manager");
            return Err(Status::new(Code::AlreadyExists, text));
        }
        if regions.len() >= Limits::REGIONS_MAX {
            return Err(Status::unavailable(format!(
                "failed to register shared memory region '{name}': there are {} regions already",
                Limits::REGIONS_MAX
            )));
        }
        Ok(())
    }
}

impl RegionControl for SharedRegions {
    fn is_allowed(&self) -> bool {
        true
    }

    fn register(&self, _: Pass<api::SharedMemory>, region: SystemRegion) -> Result<(), Status> {
        let name = &region.name;
        if name.len() > Limits::NAME_BYTES_MAX {
            return Err(Status::invalid_argument(format!(
                "the name of a shared memory region has {} bytes, more than the allowed {}",
                name.len(),
                Limits::NAME_BYTES_MAX
            )));
        }
        check_key(name, &region.key)?;
        Self::check_name(&self.regions.lock("look for the name of a region"), name)?;
        let mapping = Arc::new(Mapping::open(&region)?);
        let mut regions = self.regions.lock("register a region");
        Self::check_name(&regions, name)?;
        regions.insert(region.name.clone(), Registered { region, mapping });
        Ok(())
    }

    fn status(
        &self,
        pass: Pass<api::SharedMemory>,
        kind: RegionKind,
        name: &str,
    ) -> Result<Vec<SystemRegion>, Status> {
        let regions = self.regions.lock("show the regions");
        match (kind, regions.get(name)) {
            (RegionKind::System, _) if name.is_empty() => {
                Ok(regions.values().map(|one| one.region.clone()).collect())
            }
            (RegionKind::System, Some(one)) => Ok(vec![one.region.clone()]),
            (RegionKind::Cuda, Some(_)) if !name.is_empty() => Err(Status::not_found(format!(
                "The region named '{name}' is registered as system shared memory, not CUDA shared \
                 memory"
            ))),
            (RegionKind::System | RegionKind::Cuda, _) => NoRegions.status(pass, kind, name),
        }
    }

    fn unregister(
        &self,
        _: Pass<api::SharedMemory>,
        kind: RegionKind,
        name: &str,
    ) -> Result<(), Status> {
        if kind == RegionKind::Cuda {
            return Ok(());
        }
        let mut regions = self.regions.lock("unregister regions");
        let removed = if name.is_empty() {
            std::mem::take(&mut *regions)
        } else {
            regions.remove_entry(name).into_iter().collect()
        };
        drop(regions);
        // Unmapping a large region takes time.
        drop(removed);
        Ok(())
    }

    fn find(
        &self,
        _: Pass<api::Inference>,
        name: &str,
        offset: u64,
        byte_size: u64,
    ) -> Result<ForeignRegion, Status> {
        let regions = self.regions.lock("find a region");
        let Some(Registered { region, mapping }) = regions.get(name) else {
            let text = format!("Unable to find shared memory region: '{name}'");
            return Err(Status::not_found(text));
        };
        let memory = mapping.clone();
        let size = region.byte_size;
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

/// Checks that a part is within a region of this size.
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
