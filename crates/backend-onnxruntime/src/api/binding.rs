//! Runs with inputs and outputs that are bound to memory.

use std::ptr;

use galatea_runtime::OutputPlace;
use ort_sys::{OrtIoBinding, OrtMemoryInfo, OrtValue};
use smallvec::SmallVec;

use super::error::OrtError;
use super::handle::OrtHandle;
use super::memory::DeviceMemory;
use super::options::RunOptions;
use super::session::ModelSession;
use super::value::{OrtTensor, PlacedOutput, RunOutputs};

impl ModelSession {
    /// Computes the outputs with the given indices and writes them to their destinations. Each
    /// input is given with its index. Inputs may be in `memory`, the memory of the session's GPU.
    ///
    /// When the call returns without an error, all work on the session's stream is complete.
    pub(crate) fn run_bound<'data>(
        &self,
        options: &RunOptions,
        memory: &DeviceMemory,
        inputs: &[(usize, OrtTensor<'data>)],
        outputs: &[(usize, OutputPlace)],
    ) -> Result<RunOutputs<'data>, OrtError> {
        let api = self.environment().api();
        let table = api.table();
        let unknown = |index: &usize| OrtError::invalid(format!("there is no tensor {index}"));
        // SAFETY: the session is alive; the constructor stores a binding, which the given function
        // releases. The binding doesn't outlive this function, and therefore doesn't outlive the
        // inputs.
        let binding = unsafe {
            OrtHandle::create(api, table.ReleaseIoBinding, "binding", |out| {
                (table.CreateIoBinding)(self.raw.as_ptr(), out)
            })?
        };
        for (index, value) in inputs {
            let name = self.input_names.get(*index).ok_or_else(|| unknown(index))?.as_ptr();
            // SAFETY: the binding and the value are alive, and the name lives during the call.
            unsafe { api.check((table.BindInput)(binding.as_ptr(), name, value.as_ptr()))? };
        }
        for (index, place) in outputs {
            let name = self.output_names.get(*index).ok_or_else(|| unknown(index))?.as_ptr();
            let memory: *const OrtMemoryInfo = match place {
                OutputPlace::Host => self.environment().memory(),
                OutputPlace::Device => memory.as_ptr(),
            };
            // SAFETY: as above; the description is copied.
            unsafe { api.check((table.BindOutputToDevice)(binding.as_ptr(), name, memory))? };
        }
        // SAFETY: session, options and binding are alive; any thread may run the session.
        unsafe {
            let run = table.RunWithBinding;
            api.check(run(self.raw.as_ptr(), options.as_ptr(), binding.as_ptr()))?;
        }
        let devices = outputs.iter().map(|(_, place)| match place {
            OutputPlace::Host => None,
            OutputPlace::Device => Some(memory.device()),
        });
        let values = self.bound_values(&binding, devices)?;
        let input_regions = inputs.iter().map(|(_, value)| value.region()).collect();
        Ok(RunOutputs::new(values, input_regions))
    }

    /// A run's outputs, in the order in which they were bound, each with the GPU whose memory it is
    /// in.
    fn bound_values<'data>(
        &self,
        binding: &OrtHandle<OrtIoBinding>,
        devices: impl ExactSizeIterator<Item = Option<u32>>,
    ) -> Result<SmallVec<[PlacedOutput<'data>; 4]>, OrtError> {
        let api = self.environment().api();
        let allocator = api.default_allocator()?;
        let mut raw: *mut *mut OrtValue = ptr::null_mut();
        let mut count = 0;
        // SAFETY: the binding is alive, the allocator is the library's own, and the out pointers
        // are valid.
        unsafe {
            api.check((api.table().GetBoundOutputValues)(
                binding.as_ptr(),
                allocator,
                &raw mut raw,
                &raw mut count,
            ))?;
        }
        let mut values: SmallVec<[Option<OrtTensor<'data>>; 4]> = SmallVec::new();
        for index in 0..count {
            // SAFETY: the library stored `count` values, each of which is null or now owned by us;
            // each may refer to the inputs' memory, which lives as long as `'data`.
            values.push(unsafe { OrtTensor::output(*raw.add(index), api) });
        }
        if !raw.is_null() {
            // SAFETY: the array is freed by the allocator that allocated it.
            unsafe { api.check((api.table().AllocatorFree)(allocator, raw.cast()))? };
        }
        if values.len() != devices.len() {
            return Err(OrtError::missing("value for an output"));
        }
        Ok(values.into_iter().zip(devices).collect())
    }
}
