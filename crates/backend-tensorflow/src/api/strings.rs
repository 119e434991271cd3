//! The strings of an output.

use galatea_infer::Status;
use galatea_runtime::PackedStrings;

use super::functions::RawString;
use super::string_array::OBJECT_BYTES;
use super::tensor::TfTensor;

/// The strings in a tensor of the string type.
pub(super) fn read(tensor: &TfTensor, count: usize) -> Result<PackedStrings, Status> {
    let elements = TensorStrings::of(tensor, count)?;
    let mut content = Vec::with_capacity(elements.content_bytes());
    let mut ends = Vec::with_capacity(count);
    for index in 0..count {
        content.extend_from_slice(elements.get(index));
        ends.push(content.len());
    }
    Ok(PackedStrings::new(content, ends))
}

/// The memory for a string tensor and the resulting [`PackedStrings`].
pub(super) fn memory_of(tensor: &TfTensor, count: usize) -> Result<usize, Status> {
    let length = TensorStrings::of(tensor, count)?.content_bytes();
    let objects = count.saturating_mul(OBJECT_BYTES + size_of::<usize>());
    Ok(length.saturating_mul(2).saturating_add(objects))
}

/// The elements of a string tensor.
struct TensorStrings<'a> {
    tensor: &'a TfTensor,
    start: *const RawString,
    count: usize,
}

impl<'a> TensorStrings<'a> {
    fn of(tensor: &'a TfTensor, count: usize) -> Result<Self, Status> {
        let fits = tensor.byte_size() / OBJECT_BYTES >= count;
        let start = tensor.data().map_or(std::ptr::null(), |data| data.as_ptr().cast_const());
        if count > 0 && (!fits || start.is_null()) {
            return Err(Status::internal("a tensor has fewer strings than its shape says"));
        }
        Ok(Self { tensor, start: start.cast(), count })
    }

    fn content_bytes(&self) -> usize {
        (0..self.count).map(|index| self.get(index).len()).fold(0, usize::saturating_add)
    }

    fn get(&self, index: usize) -> &'a [u8] {
        let functions = self.tensor.library.functions();
        debug_assert!(index < self.count, "callers stay within the tensor");
        // SAFETY: the tensor has more than `index` strings, which live and don't change as long as
        // the tensor; each owns as many bytes as its size says.
        unsafe {
            let string = self.start.add(index);
            let data = (functions.TF_StringGetDataPointer)(string);
            match (functions.TF_StringGetSize)(string) {
                0 => &[],
                length => std::slice::from_raw_parts(data.cast::<u8>(), length),
            }
        }
    }
}
