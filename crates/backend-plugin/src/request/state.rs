//! States of sequences, as a plug-in writes them.

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

/// A new state as C sees it. It lives in its request.
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
    /// Whether the sequence keeps the new value.
    is_update: bool,
}

/// The memory of a new state.
enum StateBuffer {
    /// No memory yet.
    None,
    /// Memory of its own.
    Owned(HostBuffer),
    /// The memory that the state was read from.
    Shared(MemoryView),
}

/// A state that is written where it is read, so that writes last.
pub(crate) struct SharedState {
    pub(super) input_name: String,
    pub(super) output_name: String,
    pub(super) memory: Arc<HostBuffer>,
}

/// The states of a request that are configured with one buffer for input and output.
pub(super) fn shared_states(pending: &PendingRequest, serving: &ServingModel) -> Vec<SharedState> {
    let states =
        serving.spec.states().iter().filter(|state| state.use_same_buffer_for_input_output);
    states
        .filter_map(|state| {
            let input = pending.request().input(&state.input_name)?;
            Some(SharedState {
                input_name: state.input_name.clone(),
                output_name: state.output_name.clone(),
                memory: serving.shared_memory.of(input.data.host()?)?,
            })
        })
        .collect()
}

impl StateObject {
    /// A state without memory, or in the memory that it is shared with.
    pub(super) fn new(
        output_name: String,
        datatype: DataType,
        shape: Shape,
        shared: Option<&SharedState>,
    ) -> Self {
        let buffer = match shared {
            Some(shared) => StateBuffer::Shared(MemoryView::of_host(&shared.memory)),
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

    /// The update for the sequence, if there is one.
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
                HostBuffer::shared(shared.swap_remove(index).memory)
            }
        };
        Some((self.output_name, contents.shape, buffer))
    }
}

/// # Safety
///
/// As with every exported function.
unsafe fn state<'a>(state: *mut TRITONBACKEND_State) -> Result<&'a StateObject, Status> {
    // SAFETY: the caller's promise is passed on.
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
    /// The memory to write the state to.
    fn TRITONBACKEND_StateBuffer(
        state_: *mut TRITONBACKEND_State,
        buffer: *mut *mut c_void,
        buffer_byte_size: u64,
        memory_type: *mut TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
    ) {
        let state = state(state_)?;
        let mut contents = state.contents.lock("provide the buffer");
        let reusable = match &contents.buffer {
            StateBuffer::None => None,
            StateBuffer::Owned(own) => Some((own.address(), own.byte_size())),
            StateBuffer::Shared(view) => Some(view.writable()),
        };
        let reusable =
            reusable.filter(|(_, byte_size)| u64::try_from(*byte_size) == Ok(buffer_byte_size));
        let address = match reusable {
            Some((address, _)) => address,
            None => {
                let own = HostBuffer::new(buffer_byte_size).ok_or_else(|| {
                    Status::unavailable(format!(
                        "there are no {buffer_byte_size} bytes for state '{}'",
                        state.output_name
                    ))
                })?;
                let address = own.address();
                contents.buffer = StateBuffer::Owned(own);
                address
            }
        };
        drop(contents);
        pointer::write(memory_type, TRITONSERVER_MEMORY_CPU, "memory_type")?;
        pointer::write(memory_type_id, 0, "memory_type_id")?;
        pointer::write(buffer, address, "buffer")
    }

    /// The attributes of the state's memory.
    fn TRITONBACKEND_StateBufferAttributes(
        state_: *mut TRITONBACKEND_State,
        buffer_attributes: *mut *mut TRITONSERVER_BufferAttributes,
    ) {
        let state = state(state_)?;
        let attributes = match &state.contents.lock("describe the buffer").buffer {
            StateBuffer::None => BufferAttributesObject::default(),
            StateBuffer::Owned(own) => MemoryView::of_host(own).attributes(),
            StateBuffer::Shared(view) => view.attributes(),
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
        };
        check_size(state, &contents, byte_size)?;
        contents.is_update = true;
        Ok(())
    }
}
