//! Tensors in memory that clients share.

use std::sync::Arc;

use galatea_control::Regions;
use galatea_gate::ledger::{Account, Charge};
use galatea_infer::{DeviceOutputs, InferenceResponse, InputTensor, OutputTensor, Status};
use galatea_tensor::{Buffer, ForeignRegion};

use crate::classification::Classification;

/// The means to find the regions of a request's tensors.
#[derive(Copy, Clone, Debug)]
pub struct RegionAccess<'a> {
    /// The regions that the client may use.
    pub regions: Regions<'a>,
    /// The account that copies of inputs are charged to.
    pub account: &'a Arc<Account>,
}

/// The part of a region that a tensor is in, as its parameters say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionPart {
    /// The region's name.
    pub region: String,
    /// The place of its first byte in the region.
    pub offset: u64,
    /// Its bytes.
    pub byte_size: u64,
}

impl RegionAccess<'_> {
    /// The data of an input. A copy of it is charged now, when it is not made yet.
    pub fn input(&self, part: &RegionPart) -> Result<Buffer, Status> {
        let mut region = self.output(part)?;
        if region.byte_size > Account::SMALL_BYTES_MAX {
            region.charge = Some(Arc::new(Charge::new(self.account, region.byte_size)?));
        }
        Ok(Buffer::from_foreign(region))
    }

    /// The place of an output.
    pub fn output(&self, part: &RegionPart) -> Result<ForeignRegion, Status> {
        self.regions.find(&part.region, part.offset, part.byte_size)
    }
}

/// The outputs of a request that the client does not get as they are: those that become
/// classes, and those that it wants in its regions. The regions of a request, those of its inputs
/// too, are in use as long as this is there.
#[derive(Clone, Debug, Default)]
pub struct ReplacedOutputs {
    classification: Option<Classification>,
    /// Mostly none.
    regions: Option<Box<UsedRegions>>,
}

/// The regions of a request.
#[derive(Clone, Debug)]
struct UsedRegions {
    /// By name.
    outputs: Vec<(String, ForeignRegion)>,
    /// The inputs are copied before they are executed; these keep their regions listed.
    _inputs: Vec<ForeignRegion>,
}

impl ReplacedOutputs {
    /// Of several regions for an output the first counts.
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

    /// The place of an output, if it is in a region.
    pub fn region(&self, name: &str) -> Option<&ForeignRegion> {
        let outputs = &self.regions.as_ref()?.outputs;
        let found = outputs.binary_search_by(|(one, _)| one.as_str().cmp(name));
        outputs.get(found.ok()?).map(|(_, region)| region)
    }

    /// The outputs that are wanted in a GPU's memory.
    pub fn device_outputs(&self) -> DeviceOutputs {
        let on_device = |region: &ForeignRegion| region.memory.device_address().is_some();
        let outputs = self.regions.iter().flat_map(|used| &used.outputs);
        let mut names = outputs.filter(|(_, region)| on_device(region)).peekable();
        if names.peek().is_none() {
            return DeviceOutputs::None;
        }
        DeviceOutputs::Named(names.map(|(name, _)| name.clone()).collect())
    }

    /// Writes outputs to their regions, after which they are empty.
    ///
    /// # Errors
    ///
    /// `Internal` if an output does not fit its region; `InvalidArgument` if the client has
    /// shortened its region.
    pub fn place(&self, mut response: InferenceResponse) -> Result<InferenceResponse, Status> {
        for output in &mut response.outputs {
            match self.region(&output.name) {
                Some(region) => place(output, region)?,
                // An input that the model repeats.
                None => output.data.own()?,
            }
        }
        Ok(response)
    }

    /// Replaces outputs by their classes, and places others in their regions.
    ///
    /// # Errors
    ///
    /// As [`ReplacedOutputs::place`] and [`Classification::apply`].
    pub fn apply(&self, response: InferenceResponse) -> Result<InferenceResponse, Status> {
        let response = self.place(response)?;
        match &self.classification {
            None => Ok(response),
            Some(classification) => classification.apply(response),
        }
    }
}

/// A region without the charge for a copy, which the copy has.
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
