//! Determines the region that contains a tensor.

use galatea_infer::Status;

use super::fields;
use super::json::JsonReader;
use galatea_codec::regions::SharedMemoryRange;

/// The parameters of a tensor in a region, or their errors. If a request contains several errors,
/// the first in Triton's order is reported, so these errors are kept until then.
#[derive(Default)]
pub(super) struct RegionParameters {
    region: Option<Result<String, Status>>,
    offset: Option<Result<u64, Status>>,
    byte_size: Option<Result<u64, Status>>,
}

impl RegionParameters {
    /// Reads a parameter if it is a region parameter. Returns true if it is.
    pub(super) fn read(
        &mut self,
        name: &[u8],
        reader: &mut JsonReader<'_>,
    ) -> Result<bool, Status> {
        match name {
            b"shared_memory_region" => {
                let region = fields::string_or_mistake(reader, "shared_memory_region")?;
                fields::keep_first(&mut self.region, region);
            }
            b"shared_memory_offset" => {
                let offset = fields::unsigned_or_mistake(reader, "shared_memory_offset")?;
                fields::keep_first(&mut self.offset, offset);
            }
            b"shared_memory_byte_size" => {
                let byte_size = fields::unsigned_or_mistake(reader, "shared_memory_byte_size")?;
                fields::keep_first(&mut self.byte_size, byte_size);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns true if the parameters name a region.
    pub(super) const fn is_named(&self) -> bool {
        self.region.is_some()
    }

    /// Returns the part of a region, if the parameters name one. As in Triton, a missing size is 0.
    pub(super) fn part(self) -> Result<Option<SharedMemoryRange>, Status> {
        let region = self.region.transpose()?;
        let offset = self.offset.transpose()?.unwrap_or(0);
        let byte_size = self.byte_size.transpose()?.unwrap_or(0);
        Ok(region.map(|region| SharedMemoryRange { region, offset, byte_size }))
    }
}
