//! States that grow in place in GPU memory.
//!
//! A run writes all of a batch's new states to separate memory. A growable state is copied from
//! there to its sequence's memory, whose address stays the same: more memory is mapped after it as
//! the state grows. A request finds its sequence's memory through the owner of its input.
//!
//! The old state is overwritten last, once all of the request's outputs are available and all of
//! its states have the memory that they need.

use std::sync::Arc;

use galatea_devices::{CudaStream, Device, DeviceBuffer, Error, GrowableBuffer};
use galatea_infer::{PendingRequest, Status};
use galatea_tensor::{Buffer, DeviceRegion};
use smallvec::SmallVec;

use super::RequestResult;
use super::copier::copy_failed_error;
use super::outputs::NewState;

/// The memory for a sequence's state, and the part of it that the new state occupies.
struct Room {
    memory: GrowableBuffer,
    place: DeviceBuffer,
}

/// Copies the new growable states to their sequences' memory and waits for the copies. A request
/// whose state doesn't fit fails and leaves its states unchanged.
pub(super) fn settle(
    stream: &CudaStream,
    requests: &[PendingRequest],
    results: &mut [RequestResult],
) {
    let mut moved: SmallVec<[usize; 8]> = SmallVec::new();
    for (index, (pending, result)) in requests.iter().zip(&mut *results).enumerate() {
        match move_states(stream, pending, result) {
            Ok(true) => moved.push(index),
            Ok(false) => {}
            Err(status) => result.fail(status.prefixed(pending.request().log_prefix())),
        }
    }
    if moved.is_empty() {
        return;
    }
    if let Err(error) = stream.synchronize() {
        for index in moved {
            if let Some(result) = results.get_mut(index) {
                result.fail(copy_failed_error(&error));
            }
        }
    }
}

/// Queues the copies of a request's states. Returns true if there are any.
fn move_states(
    stream: &CudaStream,
    pending: &PendingRequest,
    result: &mut RequestResult,
) -> Result<bool, Status> {
    let mut rooms: SmallVec<[(&mut NewState, DeviceRegion, Room); 2]> = SmallVec::new();
    for (output, state) in &mut result.states {
        let (Some(input), Some(source)) = (&state.grows_in, state.data.device_region()) else {
            continue;
        };
        let room = room(stream.device(), pending, input, source.byte_size)
            .map_err(|status| status.prefixed(format!("state '{output}': ")))?;
        let source = source.clone();
        rooms.push((state, source, room));
    }
    let is_any = !rooms.is_empty();
    for (state, source, Room { memory, place }) in rooms {
        // A graph may return the state unchanged.
        if source.address != place.address() {
            let from = stream.device().wrap_region(&source);
            stream.copy(&from, &place).map_err(|error| copy_failed_error(&error))?;
        }
        let (device, byte_size) = (source.device, source.byte_size);
        let (address, owner) = (place.address(), Arc::new(memory));
        state.data = Buffer::from_device(DeviceRegion { device, address, byte_size, owner });
    }
    Ok(is_any)
}

/// The place for a state of this size. It is in the memory that the sequence already has for the
/// state, if that memory is on this device.
fn room(
    device: &Device,
    pending: &PendingRequest,
    input: &str,
    byte_size: usize,
) -> Result<Room, Status> {
    let before = pending.request().input(input).and_then(|input| input.data.device_region());
    let kept = before
        .filter(|region| region.device == device.number())
        .and_then(|region| region.owner.clone().downcast::<GrowableBuffer>().ok());
    let memory = match kept {
        Some(kept) => GrowableBuffer::clone(&kept),
        None => device.create_growable().map_err(|error| no_memory(&error))?,
    };
    if byte_size > memory.max_len() {
        // Triton's wording.
        return Err(Status::invalid_argument(format!(
            "Failed to resize the GrowableMemory. The requested size is larger than the virtual \
             page size. requested size: {byte_size}, virtual_address_size:{}",
            memory.max_len()
        )));
    }
    let place = memory.grow(byte_size).map_err(|error| no_memory(&error))?;
    Ok(Room { memory, place })
}

fn no_memory(error: &Error) -> Status {
    Status::internal(format!("unable to make it larger: {error}"))
}
