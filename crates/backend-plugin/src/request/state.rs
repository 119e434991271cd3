//! States of sequences, as a plug-in writes them.

use core::ffi::{c_char, c_void};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use galatea_abi::{
    TRITONBACKEND_Request, TRITONBACKEND_State, TRITONSERVER_BufferAttributes,
    TRITONSERVER_DataType, TRITONSERVER_MEMORY_CPU, TRITONSERVER_MemoryType,
};
use galatea_c_objects::buffer_attributes::BufferAttributesObject;
use galatea_c_objects::names::data_type_from_c;
use galatea_c_objects::{handle, text};
use galatea_config::{ModelSpec, StateSpec};
use galatea_infer::{PendingRequest, Status};
use galatea_tensor::{Buffer, DataType, Shape};

use super::functions::{live, object};
use super::input::View;
use crate::host_buffer::HostBuffer;
use crate::model::Live;
use crate::owned::Owned;
use crate::plugins::lock;
use crate::response::shape_from_c;

/// A new state as C sees it. It lives in its request.
pub(crate) struct StateObject {
    output_name: String,
    datatype: DataType,
    contents: Mutex<Contents>,
    attributes: OnceLock<Owned<BufferAttributesObject>>,
}
galatea_c_objects::object!(StateObject as TRITONBACKEND_State, kind 27);

struct Contents {
    shape: Shape,
    place: Place,
    /// Whether the sequence keeps the new value.
    is_update: bool,
}

/// The memory of a new state.
enum Place {
    /// No memory yet.
    None,
    /// Memory of its own.
    Own(HostBuffer),
    /// The memory that the state was read from.
    Shared(View),
}

/// A state that is written where it is read, so that writes last.
pub(crate) struct SharedState {
    pub(super) input_name: String,
    output_name: String,
    pub(super) memory: Arc<HostBuffer>,
}

/// The memory of such states by address, to recognize it in a sequence's next request.
/// Entries of freed memory are removed when a new one is added.
#[derive(Default)]
pub(crate) struct SharedMemory(Mutex<BTreeMap<usize, Weak<HostBuffer>>>);

impl SharedMemory {
    /// The memory that contains these bytes. If they are not in such memory, a copy:
    /// other readers may share the original bytes.
    fn of(&self, bytes: &[u8]) -> Option<Arc<HostBuffer>> {
        let mut known = lock(&self.0);
        let found = known.get(&bytes.as_ptr().addr()).and_then(Weak::upgrade);
        if let Some(found) = found.filter(|found| found.byte_size() == bytes.len()) {
            return Some(found);
        }
        known.retain(|_, memory| memory.strong_count() > 0);
        let copy = Arc::new(HostBuffer::copy_of(bytes)?);
        known.insert(copy.address().addr(), Arc::downgrade(&copy));
        Some(copy)
    }
}

/// The states of a request that are configured with one buffer for input and output.
pub(super) fn shared_states(pending: &PendingRequest, live: &Live) -> Vec<SharedState> {
    let states = live.spec.states().iter().filter(|state| state.use_same_buffer_for_input_output);
    states
        .filter_map(|state| {
            let input = pending.request().input(&state.input_name)?;
            Some(SharedState {
                input_name: state.input_name.clone(),
                output_name: state.output_name.clone(),
                memory: live.shared_memory.of(input.data.host()?)?,
            })
        })
        .collect()
}

impl StateObject {
    /// The update for the sequence, if there is one.
    pub(super) fn into_update(
        self,
        shared: &mut Vec<SharedState>,
    ) -> Option<(String, Shape, Buffer)> {
        let contents = self.contents.into_inner().ok()?;
        let buffer = match contents.place {
            Place::None => return None,
            Place::Own(buffer) if contents.is_update => buffer.into_buffer(),
            Place::Own(_) => return None,
            Place::Shared(_) => {
                let index = shared.iter().position(|one| one.output_name == self.output_name)?;
                HostBuffer::shared(shared.swap_remove(index).memory)
            }
        };
        Some((self.output_name, contents.shape, buffer))
    }
}

/// The state's configuration, checked against C's arguments.
fn configured<'a>(
    spec: &'a ModelSpec,
    name: &str,
    datatype: DataType,
) -> Result<&'a StateSpec, Status> {
    if spec.states().is_empty() {
        return Err(Status::invalid_argument(format!(
            "unable to add state '{name}'. State configuration is missing for model '{}'.",
            spec.name
        )));
    }
    let state = spec.state_for_output(name).ok_or_else(|| {
        Status::invalid_argument(format!("state '{name}' is not a valid state name."))
    })?;
    if state.datatype != datatype {
        return Err(Status::invalid_argument(format!(
            "state '{name}' is {datatype}, but its configuration says {}",
            state.datatype
        )));
    }
    Ok(state)
}

/// # Safety
///
/// As with every exported function.
unsafe fn state<'a>(state: *mut TRITONBACKEND_State) -> Result<&'a StateObject, Status> {
    // SAFETY: the caller's promise is passed on.
    unsafe { handle::borrow(state, "state") }
}

fn check_size(state: &StateObject, contents: &Contents, byte_size: usize) -> Result<(), Status> {
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
    /// Begins a new value of a state. A second call returns the same object.
    fn TRITONBACKEND_StateNew(
        state: *mut *mut TRITONBACKEND_State,
        request: *mut TRITONBACKEND_Request,
        name: *const c_char,
        datatype: TRITONSERVER_DataType,
        shape: *const i64,
        dims_count: u32,
    ) {
        let request = object(request)?;
        request.check_executed()?;
        let name = text::required(name, "name")?;
        let datatype = data_type_from_c(datatype)
            .ok_or_else(|| Status::invalid_argument(format!("state '{name}' has no datatype")))?;
        let shape = shape_from_c(shape, dims_count, name)?;
        configured(&live(request)?.spec, name, datatype)?;
        let mut states = lock(&request.states);
        let known = states.iter().filter_map(Owned::get).position(|one| one.output_name == name);
        let found = match known.and_then(|index| states.get(index)) {
            Some(known) => {
                if let Some(object) = known.get() {
                    lock(&object.contents).shape = shape;
                }
                known.address()
            }
            None => {
                let made = Owned::new(StateObject {
                    output_name: name.to_owned(),
                    datatype,
                    contents: Mutex::new(Contents { shape, place: Place::None, is_update: false }),
                    attributes: OnceLock::new(),
                });
                let address = made.address();
                // With a shared buffer the new value overwrites the one that was read.
                let shared = request.shared_states.iter().find(|one| one.output_name == name);
                if let (Some(object), Some(shared)) = (made.get(), shared) {
                    lock(&object.contents).place = Place::Shared(View::of_host(&shared.memory));
                }
                states.push(made);
                address
            }
        };
        drop(states);
        text::write(state, found, "state")
    }

    /// The memory to write the state to.
    fn TRITONBACKEND_StateBuffer(
        state_: *mut TRITONBACKEND_State,
        buffer: *mut *mut c_void,
        buffer_byte_size: u64,
        memory_type: *mut TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
    ) {
        let state = state(state_)?;
        let mut contents = lock(&state.contents);
        let reusable = match &contents.place {
            Place::None => None,
            Place::Own(own) => Some((own.address(), own.byte_size())),
            Place::Shared(view) => Some(view.writable()),
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
                contents.place = Place::Own(own);
                address
            }
        };
        drop(contents);
        text::write(memory_type, TRITONSERVER_MEMORY_CPU, "memory_type")?;
        text::write(memory_type_id, 0, "memory_type_id")?;
        text::write(buffer, address, "buffer")
    }

    /// The attributes of the state's memory.
    fn TRITONBACKEND_StateBufferAttributes(
        state_: *mut TRITONBACKEND_State,
        buffer_attributes: *mut *mut TRITONSERVER_BufferAttributes,
    ) {
        let state = state(state_)?;
        let attributes = match &lock(&state.contents).place {
            Place::None => BufferAttributesObject::default(),
            Place::Own(own) => View::of_host(own).attributes(),
            Place::Shared(view) => view.attributes(),
        };
        let object = state.attributes.get_or_init(|| Owned::new(attributes));
        text::write(buffer_attributes, object.address(), "buffer_attributes")
    }

    /// Makes the new value visible to the sequence's next request.
    fn TRITONBACKEND_StateUpdate(state_: *mut TRITONBACKEND_State) {
        let state = state(state_)?;
        let mut contents = lock(&state.contents);
        let byte_size = match &contents.place {
            Place::None => {
                return Err(Status::invalid_argument(format!(
                    "state '{}' was not written: it has no buffer yet",
                    state.output_name
                )));
            }
            Place::Own(own) => own.byte_size(),
            Place::Shared(view) => view.writable().1,
        };
        check_size(state, &contents, byte_size)?;
        contents.is_update = true;
        Ok(())
    }
}
