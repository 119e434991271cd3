//! The number of bytes that a model's requests hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::InputTensor;

/// The number of bytes that a model version's requests hold: the part of the ledger that is
/// reported per model. Only charged tensors are counted, so small requests add no overhead.
#[derive(Clone, Debug, Default)]
pub struct ModelRequestBytes(Arc<AtomicU64>);

/// One request's share of the bytes. It is released when the request and all of its copies are
/// dropped.
#[derive(Clone, Debug)]
pub struct RequestBytesGuard {
    _share: Arc<HeldShare>,
}

#[derive(Debug)]
struct HeldShare {
    model: ModelRequestBytes,
    bytes: u64,
}

impl ModelRequestBytes {
    /// The number of bytes currently held.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds a request's charged tensors to the count. Returns `None` if the request has none.
    #[must_use]
    pub fn add_request(&self, inputs: &[InputTensor]) -> Option<RequestBytesGuard> {
        let charged = inputs.iter().filter(|input| input.data.is_charged());
        let lengths = charged.map(|input| u64::try_from(input.data.len()).unwrap_or(u64::MAX));
        let bytes = lengths.fold(0, u64::saturating_add);
        if bytes == 0 {
            return None;
        }
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Some(RequestBytesGuard { _share: Arc::new(HeldShare { model: self.clone(), bytes }) })
    }
}

impl Drop for HeldShare {
    fn drop(&mut self) {
        self.model.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use galatea_tensor::{Buffer, DataType, Shape};

    use super::*;

    fn input(data: Buffer) -> InputTensor {
        let shape = Shape::new(&[1]).unwrap();
        InputTensor { name: "x".into(), datatype: DataType::Uint8, shape, data }
    }

    #[test]
    fn charged_tensors_count_until_the_last_copy_is_dropped() {
        let model = ModelRequestBytes::default();
        let small = input(Buffer::from_vec(vec![0; 10]));
        assert!(model.add_request(std::slice::from_ref(&small)).is_none());
        let large = input(Buffer::from_vec(vec![0; 100]).mark_charged());
        let first = model.add_request(&[small, large.clone()]);
        let (copy, second) = (first.clone(), model.add_request(&[large]));
        assert_eq!(model.held(), 200);
        drop((first, second));
        assert_eq!(model.held(), 100);
        drop(copy);
        assert_eq!(model.held(), 0);
    }
}
