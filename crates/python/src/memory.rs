//! Tensor memory: inputs that Python arrays own and outputs that Python receives.

use bytes::Bytes;
use pyo3::prelude::*;

/// Memory that a Python object owns.
///
/// The value may be dropped anywhere, usually on a server thread. Without the interpreter lock,
/// PyO3 only queues the object's release, and performs it the next time that a thread holds the
/// lock.
struct BorrowedMemory {
    address: usize,
    byte_size: usize,
    _owner: Py<PyAny>,
}

impl AsRef<[u8]> for BorrowedMemory {
    fn as_ref(&self) -> &[u8] {
        let base = std::ptr::with_exposed_provenance(self.address);
        // SAFETY: `input` receives this address and size from a tensor, whose owner keeps the
        // memory valid for reads. As with input memory in C, the program guarantees that it doesn't
        // change the memory until the request is released.
        unsafe { std::slice::from_raw_parts(base, self.byte_size) }
    }
}

/// An input's elements, in place.
pub(crate) fn input(address: usize, byte_size: usize, owner: Py<PyAny>) -> Bytes {
    if address == 0 || byte_size == 0 {
        return Bytes::new();
    }
    Bytes::from_owner(BorrowedMemory { address, byte_size, _owner: owner })
}

/// The alignment of outputs, which array libraries prefer.
const ALIGNMENT: usize = 64;

/// A copy of an output's elements, which Python tensors access by address.
#[pyclass(frozen, module = "galatea._galatea")]
pub(crate) struct OutputMemory {
    /// The elements, beginning at `start`. The vector never grows, so they never move.
    bytes: Vec<u8>,
    start: usize,
}

impl OutputMemory {
    pub(crate) fn copy_of(elements: &[u8]) -> Self {
        let mut bytes: Vec<u8> = Vec::with_capacity(elements.len() + ALIGNMENT);
        let start = bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        bytes.resize(start, 0);
        bytes.extend_from_slice(elements);
        Self { bytes, start }
    }
}

#[pymethods]
impl OutputMemory {
    /// The address of the first element.
    #[getter]
    fn address(&self) -> usize {
        self.bytes.as_ptr().expose_provenance() + self.start
    }

    /// The number of bytes.
    #[getter]
    fn byte_size(&self) -> usize {
        self.bytes.len() - self.start
    }
}
