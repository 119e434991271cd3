//! Tensors in memory that clients share.

use std::sync::Arc;

use galatea_control::RequestShmRegions;
use galatea_gate::ledger::{MemoryAccount, MemoryCharge};
use galatea_infer::{DeviceOutputs, InferenceResponse, InputTensor, OutputTensor, Status};
use galatea_tensor::{Buffer, ForeignRegion};

use crate::classification::Classification;

/// Access to the regions that a request's tensors use.
#[derive(Copy, Clone, Debug)]
pub struct SharedMemoryAccess<'a> {
    /// The regions that the client may use.
    pub regions: RequestShmRegions<'a>,
    /// The account to which copies of inputs are charged.
    pub account: &'a Arc<MemoryAccount>,
}

/// The part of a region that contains a tensor, according to the tensor's parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedMemoryRange {
    /// The region's name.
    pub region: String,
    /// The offset of the part's first byte in the region.
    pub offset: u64,
    /// The size of the part in bytes.
    pub byte_size: u64,
}

impl SharedMemoryAccess<'_> {
    /// Returns the data of an input. A copy of the data is charged in advance, by this call.
    pub fn input_buffer(&self, part: &SharedMemoryRange) -> Result<Buffer, Status> {
        let mut region = self.output_region(part)?;
        if region.byte_size > MemoryAccount::SMALL_BYTES_MAX {
            region.charge = Some(Arc::new(MemoryCharge::new(self.account, region.byte_size)?));
        }
        Ok(Buffer::from_foreign(region))
    }

    /// Returns the part of a region in which an output is placed.
    pub fn output_region(&self, part: &SharedMemoryRange) -> Result<ForeignRegion, Status> {
        self.regions.find(&part.region, part.offset, part.byte_size)
    }
}

/// The outputs of a request that the client doesn't receive unchanged: outputs that become classes,
/// and outputs to be placed in the client's regions. The request's regions, including its input
/// regions, stay in use for as long as this value exists.
#[derive(Clone, Debug, Default)]
pub struct OutputPostprocessing {
    classification: Option<Classification>,
    /// The regions of the request. Most requests have none.
    regions: Option<Box<UsedRegions>>,
}

/// The regions of a request.
#[derive(Clone, Debug)]
struct UsedRegions {
    /// The output regions by output name.
    outputs: Vec<(String, ForeignRegion)>,
    /// The input regions. Inputs are copied before execution; these values keep their regions
    /// listed as in use.
    _inputs: Vec<ForeignRegion>,
}

impl OutputPostprocessing {
    /// Creates the postprocessing. If an output has several regions, the first one counts.
    pub fn new(
        classification: Option<Classification>,
        mut outputs: Vec<(String, ForeignRegion)>,
        inputs: &[InputTensor],
    ) -> Self {
        let in_regions = inputs.iter().filter_map(|input| input.data.foreign());
        let held: Vec<_> = in_regions.map(lent).collect();
        if outputs.is_empty() && held.is_empty() {
            return Self { classification, regions: None };
        }
        outputs.sort_by(|(one, _), (other, _)| one.cmp(other));
        outputs.dedup_by(|(later, _), (first, _)| later == first);
        Self { classification, regions: Some(Box::new(UsedRegions { outputs, _inputs: held })) }
    }

    /// The outputs that become classes.
    pub const fn classification(&self) -> Option<&Classification> {
        self.classification.as_ref()
    }

    /// The part of a region in which an output is placed, if any.
    pub fn output_region(&self, name: &str) -> Option<&ForeignRegion> {
        let outputs = &self.regions.as_ref()?.outputs;
        let found = outputs.binary_search_by(|(one, _)| one.as_str().cmp(name));
        outputs.get(found.ok()?).map(|(_, region)| region)
    }

    /// The outputs that are requested in GPU memory.
    pub fn outputs_on_device(&self) -> DeviceOutputs {
        let on_device = |region: &ForeignRegion| region.memory.device_address().is_some();
        let outputs = self.regions.iter().flat_map(|used| &used.outputs);
        let mut names = outputs.filter(|(_, region)| on_device(region)).peekable();
        if names.peek().is_none() {
            return DeviceOutputs::None;
        }
        DeviceOutputs::Named(names.map(|(name, _)| name.clone()).collect())
    }

    /// Writes outputs to their regions. The outputs are empty afterwards.
    ///
    /// # Errors
    ///
    /// `Internal` if an output does not fit its region; `InvalidArgument` if the client has
    /// shortened the region.
    pub fn write_to_regions(
        &self,
        mut response: InferenceResponse,
    ) -> Result<InferenceResponse, Status> {
        for output in &mut response.outputs {
            match self.output_region(&output.name) {
                Some(region) => place(output, region)?,
                // This is an input that the model returns as an output.
                None => output.data.make_owned()?,
            }
        }
        Ok(response)
    }

    /// Replaces outputs with their classes, and places other outputs in their regions.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`OutputPostprocessing::write_to_regions`] and
    /// [`Classification::apply`].
    pub fn apply(&self, response: InferenceResponse) -> Result<InferenceResponse, Status> {
        let response = self.write_to_regions(response)?;
        match &self.classification {
            None => Ok(response),
            Some(classification) => classification.apply(response),
        }
    }
}

/// Returns a region without the charge for a copy, because the copy holds the charge.
fn lent(region: &ForeignRegion) -> ForeignRegion {
    ForeignRegion { charge: None, ..region.clone() }
}

fn place(output: &mut OutputTensor, region: &ForeignRegion) -> Result<(), Status> {
    let byte_size = output.data.len();
    if byte_size > region.byte_size {
        return Err(Status::internal(format!(
            "shared memory size specified with the request for output '{}' ({} bytes) should be \
             at least {byte_size} bytes to hold the results",
            output.name, region.byte_size
        )));
    }
    region.write(&output.data)?;
    output.data = Buffer::empty();
    Ok(())
}
