//! Puts inputs into GPU memory on the instance's stream.

use galatea_devices::{CudaStream, DeviceBuffer};
use galatea_infer::Status;
use galatea_tensor::{Buffer, DeviceRegion};
use smallvec::SmallVec;

use super::copier::{Copier, copy_failed_error};
use crate::region::DeviceBytes;

/// The alignment of a tensor in GPU memory, which is the width of a kernel's widest load. The
/// libraries' own tensors always have this alignment. A load from an unaligned address makes the
/// GPU unusable.
const ALIGNMENT: u64 = 16;

/// The minimum number of bytes that justifies a separate copy to the GPU. Such a copy takes the GPU
/// tens of microseconds, and the call takes a few.
const PIECE_BYTES: usize = 1 << 20;

/// GPU memory that is reused from batch to batch. It grows to the size of the largest batch so far,
/// which the model's maximum batch size bounds, and never shrinks.
#[derive(Default)]
pub(super) struct DeviceArena {
    memory: Option<DeviceBuffer>,
}

/// A part of an input, in its location within a request.
#[derive(Copy, Clone)]
pub(super) enum Part<'data> {
    Host(&'data [u8]),
    Device(DevicePart<'data>),
}

/// A part in GPU memory.
#[derive(Copy, Clone)]
pub(super) struct DevicePart<'data> {
    data: &'data Buffer,
    device: u32,
    address: u64,
    /// True if a client may change the data. The model then uses a copy.
    may_change: bool,
}

impl<'data> Part<'data> {
    /// The data's location; `None` if neither the CPU nor a GPU can read the data.
    pub(super) fn of(data: &'data Buffer) -> Option<Self> {
        if let Some(bytes) = data.host_bytes() {
            return Some(Self::Host(bytes));
        }
        let DeviceRegion { device, address, .. } = data.device_location()?;
        let may_change = data.foreign().is_some_and(|region| !region.memory.is_stable());
        Some(Self::Device(DevicePart { data, device, address, may_change }))
    }

    pub(super) fn byte_size(&self) -> usize {
        match self {
            Self::Host(bytes) => bytes.len(),
            Self::Device(part) => part.data.len(),
        }
    }
}

impl DevicePart<'_> {
    /// The memory as a region that can be copied.
    pub(super) fn region(&self) -> Result<DeviceRegion, Status> {
        self.data
            .device_location()
            .ok_or_else(|| Status::internal("a part is not on its GPU any more"))
    }
}

impl DeviceArena {
    /// The bytes of all parts, one after another. They are used in place if they are already
    /// adjacent in the memory of the stream's GPU and start at an aligned address. Otherwise copies
    /// are queued on the stream, so they complete before any later work of the session.
    pub(super) fn gather<'data>(
        &'data mut self,
        copier: Copier<'_>,
        stream: &CudaStream,
        parts: &[Part<'data>],
    ) -> Result<DeviceBytes<'data>, Status> {
        if let Some(bytes) = in_place(parts, stream.device().number()) {
            return Ok(bytes);
        }
        let byte_size = parts.iter().map(Part::byte_size).fold(0, usize::saturating_add);
        let target = self.at_least(stream, byte_size)?;
        queue(copier, stream, parts, &target)?;
        Ok(DeviceBytes::of(&*self, target.address(), byte_size))
    }

    /// Memory of at least this size, which may contain data from earlier batches. No queued work
    /// uses the memory that it replaces, because the last run waited for the stream.
    fn at_least(&mut self, stream: &CudaStream, byte_size: usize) -> Result<DeviceBuffer, Status> {
        if let Some(memory) = self.memory.as_ref().filter(|memory| memory.len() >= byte_size) {
            return Ok(memory.clone());
        }
        // The old memory is released first, because both might not fit.
        self.memory = None;
        let memory = stream.device().allocate(byte_size).map_err(|error| {
            let number = stream.device().number();
            let what = format!("unable to allocate {byte_size} bytes for inputs on GPU {number}");
            Status::internal(format!("{what}: {error}"))
        })?;
        Ok(self.memory.insert(memory).clone())
    }
}

/// The parts as one contiguous range of GPU memory, if they form one.
fn in_place<'data>(parts: &[Part<'data>], device: u32) -> Option<DeviceBytes<'data>> {
    let mut found: SmallVec<[DevicePart<'data>; 8]> = SmallVec::new();
    for part in parts {
        match part {
            Part::Device(part) if part.device == device && !part.may_change => found.push(*part),
            Part::Device(_) | Part::Host(_) => return None,
        }
    }
    let mut found = found.into_iter().filter(|part| !part.data.is_empty());
    let first = found.next()?;
    let mut end = first.address.checked_add(u64::try_from(first.data.len()).ok()?)?;
    for part in found {
        if part.address != end {
            return None;
        }
        end = end.checked_add(u64::try_from(part.data.len()).ok()?)?;
    }
    if !first.address.is_multiple_of(ALIGNMENT) {
        return None;
    }
    let byte_size = usize::try_from(end - first.address).ok()?;
    Some(DeviceBytes::of(first.data, first.address, byte_size))
}

/// Queues the copies of the parts. Adjacent parts in host memory are copied together.
fn queue(
    copier: Copier<'_>,
    stream: &CudaStream,
    parts: &[Part<'_>],
    target: &DeviceBuffer,
) -> Result<(), Status> {
    let failed = |error| copy_failed_error(&error);
    let mut offset = 0_usize;
    let mut rest = parts;
    while let Some((first, others)) = rest.split_first() {
        let byte_size = match first {
            Part::Device(part) => {
                rest = others;
                let region = part.region()?;
                let end = offset.saturating_add(region.byte_size);
                let source = copier.device(region.device)?.wrap_region(&region);
                let place = target.slice(offset..end).map_err(failed)?;
                stream.copy(&source, &place).map_err(failed)?;
                region.byte_size
            }
            Part::Host(_) => {
                let count = rest.iter().take_while(|part| matches!(part, Part::Host(_))).count();
                let (hosts, behind) = rest.split_at(count);
                rest = behind;
                upload(copier, stream, hosts, target, offset)?
            }
        };
        offset = offset.saturating_add(byte_size);
    }
    Ok(())
}

/// Queues copies of parts in host memory and returns their total size.
///
/// A long input is sent in pieces, each consisting of whole parts. The GPU copies one piece while
/// the next is gathered.
fn upload(
    copier: Copier<'_>,
    stream: &CudaStream,
    parts: &[Part<'_>],
    target: &DeviceBuffer,
    offset: usize,
) -> Result<usize, Status> {
    let mut end = offset;
    for piece in Pieces(parts) {
        let byte_size = piece.iter().map(Part::byte_size).fold(0, usize::saturating_add);
        let mut gathered = copier.host_memory(byte_size);
        let mut rest = &mut gathered[..];
        for part in piece {
            let Part::Host(bytes) = part else { continue };
            let Some((place, behind)) = rest.split_at_mut_checked(bytes.len()) else { break };
            place.copy_from_slice(bytes);
            rest = behind;
        }
        let begin = end;
        end = end.saturating_add(byte_size);
        let place = target.slice(begin..end);
        let queued = place.and_then(|place| stream.upload(gathered, &place));
        queued.map_err(|error| copy_failed_error(&error))?;
    }
    Ok(end - offset)
}

/// Groups of adjacent parts. Each group except the last has at least [`PIECE_BYTES`] bytes.
struct Pieces<'parts, 'data>(&'parts [Part<'data>]);

impl<'parts, 'data> Iterator for Pieces<'parts, 'data> {
    type Item = &'parts [Part<'data>];

    fn next(&mut self) -> Option<Self::Item> {
        let mut byte_size = 0_usize;
        let enough = self.0.iter().position(|part| {
            byte_size = byte_size.saturating_add(part.byte_size());
            byte_size >= PIECE_BYTES
        });
        let count = enough.map_or(self.0.len(), |last| last + 1);
        let (piece, rest) = self.0.split_at(count);
        self.0 = rest;
        (!piece.is_empty()).then_some(piece)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn region(device: u32, address: u64, byte_size: usize) -> Buffer {
        Buffer::from_device(DeviceRegion { device, address, byte_size, owner: Arc::new(()) })
    }

    fn part(region: &Buffer) -> Part<'_> {
        Part::of(region).unwrap()
    }

    fn found(parts: &[Part<'_>]) -> Option<(u64, usize)> {
        let bytes = in_place(parts, 1)?;
        Some((bytes.address(), bytes.byte_size()))
    }

    #[test]
    fn long_inputs_go_in_pieces() {
        let long = vec![0; PIECE_BYTES - 1];
        let [short, long] = [Part::Host(&[1, 2]), Part::Host(&long)];
        let counts = |parts: &[Part<'_>]| Pieces(parts).map(<[_]>::len).collect::<Vec<_>>();
        assert!(counts(&[]).is_empty());
        assert_eq!(counts(&[short]), [1]);
        assert_eq!(counts(&[short, long, long, long, short]), [2, 2, 1]);
        assert_eq!(counts(&[short, short, short]), [3]);
    }

    #[test]
    fn neighbors_in_the_gpus_memory_are_used_in_place() {
        let regions = [region(1, 64, 8), region(1, 72, 0), region(1, 72, 4)];
        let parts: Vec<Part<'_>> = regions.iter().map(part).collect();
        assert_eq!(found(&parts), Some((64, 12)));
        assert_eq!(found(&parts[1..]), None, "not aligned for every kernel");
        assert_eq!(found(&[parts[2], parts[0]]), None, "another order");
        assert_eq!(found(&[parts[0], parts[0]]), None, "twice the same");
        assert_eq!(found(&[parts[0], Part::Host(&[1])]), None, "on the host");
        assert_eq!(found(&[]), None);
        let elsewhere = region(0, 64, 8);
        assert_eq!(found(&[part(&elsewhere)]), None, "on another GPU");
    }
}
