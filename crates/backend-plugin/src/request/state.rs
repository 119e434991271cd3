//! Sequence states that a plug-in writes.

use core::ffi::c_void;
use std::sync::{Arc, OnceLock};

use galatea_abi::{
    TRITONBACKEND_State, TRITONSERVER_BufferAttributes, TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MemoryType,
};
use galatea_c_objects::buffer_attributes::BufferAttributesObject;
use galatea_c_objects::{handle, pointer};
use galatea_infer::{PendingRequest, Status};
use galatea_stdx::Lock;
use galatea_tensor::{Buffer, DataType, Shape};

use super::input::MemoryView;
use crate::host_buffer::HostBuffer;
use crate::model::ServingModel;
use crate::owned::Owned;
use crate::state_memory::SharedStateMemory;

/// A new state as C sees it. The state belongs to its request.
pub(crate) struct StateObject {
    output_name: String,
    datatype: DataType,
    contents: Lock<StateContents>,
    attributes: OnceLock<Owned<BufferAttributesObject>>,
}
galatea_c_objects::object!(StateObject as TRITONBACKEND_State, kind 27);

struct StateContents {
    shape: Shape,
    buffer: StateBuffer,
    /// True if the sequence keeps the new value.
    is_update: bool,
}

/// The memory of a new state.
enum StateBuffer {
    /// No memory yet.
    None,
    /// Memory that the new state owns.
    Owned(HostBuffer),
    /// The memory that the state was read from.
    Shared(MemoryView),
    /// Memory that the state was read from and that grows if necessary.
    Growable(GrowableState),
}

/// A state that is updated in place, so that changes persist.
pub(crate) struct SharedState {
    pub(super) input_name: String,
    pub(super) output_name: String,
    memory: Arc<HostBuffer>,
    /// The number of bytes that the state occupies in the memory.
    byte_size: usize,
    /// Provides additional memory if the state may grow.
    growth: Option<Arc<SharedStateMemory>>,
}

impl SharedState {
    pub(super) fn view(&self) -> MemoryView {
        MemoryView::of_first(&self.memory, self.byte_size)
    }
}

/// The request's states that are configured with a single buffer for input and output.
pub(super) fn shared_states(pending: &PendingRequest, serving: &ServingModel) -> Vec<SharedState> {
    let states = serving
        .spec
        .sequence_states()
        .iter()
        .filter(|state| state.use_same_buffer_for_input_output);
    states
        .filter_map(|state| {
            let input = pending.request().input(&state.input_name)?;
            let bytes = input.data.host_bytes()?;
            let known = &serving.shared_memory;
            Some(SharedState {
                input_name: state.input_name.clone(),
                output_name: state.output_name.clone(),
                memory: match (pending.is_padding(), state.is_growable) {
                    // Padding may carry another row's states, which it must not change.
                    (true, _) => Arc::new(HostBuffer::copy_of(bytes)?),
                    (false, true) => known.growable(bytes)?,
                    (false, false) => known.memory_of(bytes)?,
                },
                byte_size: bytes.len(),
                growth: state.is_growable.then(|| known.clone()),
            })
        })
        .collect()
}

/// A state in memory with spare capacity.
struct GrowableState {
    memory: Arc<HostBuffer>,
    byte_size: usize,
    growth: Arc<SharedStateMemory>,
}

impl GrowableState {
    /// Resizes the state and keeps as much of its contents as fits. Returns false if there isn't
    /// enough memory.
    fn resize(&mut self, byte_size: usize) -> bool {
        if byte_size > self.memory.byte_size() {
            // The request may still read the old memory, which lives as long as the request.
            let larger = self.growth.grow(&self.memory, self.byte_size, byte_size);
            let Some(larger) = larger else { return false };
            self.memory = larger;
        }
        self.byte_size = byte_size;
        true
    }

    fn view(&self) -> MemoryView {
        MemoryView::of_first(&self.memory, self.byte_size)
    }
}

impl StateBuffer {
    /// Provides memory of this size and returns its address, or `None` if there isn't enough
    /// memory.
    fn provide(&mut self, byte_size: u64) -> Option<*mut c_void> {
        let reusable = match self {
            Self::None => None,
            Self::Owned(own) => Some((own.address(), own.byte_size())),
            Self::Shared(view) => Some(view.writable()),
            Self::Growable(state) => {
                let is_resized = state.resize(usize::try_from(byte_size).ok()?);
                return is_resized.then(|| state.memory.address());
            }
        };
        if let Some((address, own)) = reusable
            && u64::try_from(own) == Ok(byte_size)
        {
            return Some(address);
        }
        let own = HostBuffer::new(byte_size)?;
        let address = own.address();
        *self = Self::Owned(own);
        Some(address)
    }
}

impl StateObject {
    /// Creates a state without memory, or one that uses the memory that it is shared with.
    pub(super) fn new(
        output_name: String,
        datatype: DataType,
        shape: Shape,
        shared: Option<&SharedState>,
    ) -> Self {
        let buffer = match shared {
            Some(SharedState { memory, byte_size, growth: Some(growth), .. }) => {
                StateBuffer::Growable(GrowableState {
                    memory: memory.clone(),
                    byte_size: *byte_size,
                    growth: growth.clone(),
                })
            }
            Some(shared) => StateBuffer::Shared(shared.view()),
            None => StateBuffer::None,
        };
        Self {
            output_name,
            datatype,
            contents: Lock::new(StateContents { shape, buffer, is_update: false }),
            attributes: OnceLock::new(),
        }
    }

    pub(super) fn output_name(&self) -> &str {
        &self.output_name
    }

    pub(super) fn set_shape(&self, shape: Shape) {
        self.contents.lock("set the shape").shape = shape;
    }

    /// The update for the sequence, if the plug-in requested one.
    pub(super) fn into_update(
        self,
        shared: &mut Vec<SharedState>,
    ) -> Option<(String, Shape, Buffer)> {
        let contents = self.contents.into_inner();
        let buffer = match contents.buffer {
            StateBuffer::None => return None,
            StateBuffer::Owned(buffer) if contents.is_update => buffer.into_buffer(),
            StateBuffer::Owned(_) => return None,
            StateBuffer::Shared(_) => {
                let index = shared.iter().position(|one| one.output_name == self.output_name)?;
                let SharedState { memory, byte_size, .. } = shared.swap_remove(index);
                HostBuffer::shared(memory, byte_size)
            }
            StateBuffer::Growable(state) => {
                let expected = contents.shape.byte_size(self.datatype);
                let fits = expected.is_none_or(|all| usize::try_from(all) == Ok(state.byte_size));
                // A state whose size doesn't match its shape is invalid.
                return fits.then(|| {
                    let buffer = HostBuffer::shared(state.memory, state.byte_size);
                    (self.output_name, contents.shape, buffer)
                });
            }
        };
        Some((self.output_name, contents.shape, buffer))
    }
}

/// # Safety
///
/// Same requirements as for every exported function.
unsafe fn state<'a>(state: *mut TRITONBACKEND_State) -> Result<&'a StateObject, Status> {
    // SAFETY: guaranteed by the caller.
    unsafe { handle::borrow(state, "state") }
}

fn check_size(
    state: &StateObject,
    contents: &StateContents,
    byte_size: usize,
) -> Result<(), Status> {
    let expected = contents.shape.byte_size(state.datatype);
    if expected.is_none_or(|expected| usize::try_from(expected) == Ok(byte_size)) {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "state '{}' has {byte_size} bytes, which its shape {:?} doesn't fit",
        state.output_name,
        contents.shape.dims()
    )))
}

functions! {
    /// Returns the memory that the state is written to.
    fn TRITONBACKEND_StateBuffer(
        state_: *mut TRITONBACKEND_State,
        buffer: *mut *mut c_void,
        buffer_byte_size: u64,
        memory_type: *mut TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
    ) {
        let state = state(state_)?;
        let address = state.contents.lock("provide the buffer").buffer.provide(buffer_byte_size);
        let address = address.ok_or_else(|| {
            Status::unavailable(format!(
                "there are no {buffer_byte_size} bytes for state '{}'",
                state.output_name
            ))
        })?;
        pointer::write(memory_type, TRITONSERVER_MEMORY_CPU, "memory_type")?;
        pointer::write(memory_type_id, 0, "memory_type_id")?;
        pointer::write(buffer, address, "buffer")
    }

    /// Returns the attributes of the state's memory.
    fn TRITONBACKEND_StateBufferAttributes(
        state_: *mut TRITONBACKEND_State,
        buffer_attributes: *mut *mut TRITONSERVER_BufferAttributes,
    ) {
        let state = state(state_)?;
        let attributes = match &state.contents.lock("describe the buffer").buffer {
            StateBuffer::None => BufferAttributesObject::default(),
            StateBuffer::Owned(own) => MemoryView::of_host(own).attributes(),
            StateBuffer::Shared(view) => view.attributes(),
            StateBuffer::Growable(state) => state.view().attributes(),
        };
        let object = state.attributes.get_or_init(|| Owned::new(attributes));
        pointer::write(buffer_attributes, object.address(), "buffer_attributes")
    }

    /// Makes the new value visible to the sequence's next request.
    fn TRITONBACKEND_StateUpdate(state_: *mut TRITONBACKEND_State) {
        let state = state(state_)?;
        let mut contents = state.contents.lock("check the update");
        let byte_size = match &contents.buffer {
            StateBuffer::None => {
                return Err(Status::invalid_argument(format!(
                    "state '{}' was not written: it has no buffer yet",
                    state.output_name
                )));
            }
            StateBuffer::Owned(own) => own.byte_size(),
            StateBuffer::Shared(view) => view.writable().1,
            StateBuffer::Growable(state) => state.byte_size,
        };
        check_size(state, &contents, byte_size)?;
        contents.is_update = true;
        Ok(())
    }
}
