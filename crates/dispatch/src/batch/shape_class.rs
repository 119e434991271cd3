//! What decides which requests may share a batch.

use std::collections::HashMap;

use galatea_policy::ShapeClassId;
use galatea_tensor::DeviceRegion;
use slab::Slab;

/// What must be equal for two requests of a model to share a batch: which inputs are
/// present, the shapes of inputs with variable dimensions, and the contents of shape
/// tensors. They are encoded as one list of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ShapeClass {
    words: Vec<i64>,
}

impl ShapeClass {
    /// The next input is absent.
    pub(crate) fn push_absent(&mut self) {
        self.words.push(-1);
    }

    /// The next input has these dimensions.
    pub(crate) fn push_dims(&mut self, dims: &[i64]) {
        self.words.push(i64::try_from(dims.len()).unwrap_or(i64::MAX));
        self.words.extend_from_slice(dims);
    }

    /// The next input has these contents.
    pub(crate) fn push_contents(&mut self, contents: &[u8]) {
        self.words.push(i64::try_from(contents.len()).unwrap_or(i64::MAX));
        self.words.extend(contents.iter().map(|&byte| i64::from(byte)));
    }

    /// The next input has the contents of this memory of a device.
    pub(crate) fn push_device(&mut self, region: Option<&DeviceRegion>) {
        let (device, address) =
            region.map_or((0, 0), |region| (region.device, region.address.cast_signed()));
        self.words.extend([-2, i64::from(device), address]);
    }
}

/// The shape classes of queued requests. Equal classes have equal IDs. A class is kept only
/// while a queued request has it, so that clients with ever new shapes can't make it grow.
#[derive(Debug, Default)]
pub(crate) struct ShapeClasses {
    by_class: HashMap<ShapeClass, usize>,
    used: Slab<UsedClass>,
}

#[derive(Debug)]
struct UsedClass {
    class: ShapeClass,
    use_count: usize,
}

#[expect(clippy::indexing_slicing, reason = "a class that is in use is in the slab")]
impl ShapeClasses {
    /// The ID of `class`, with one more use. Requests without a class have ID 0.
    pub(crate) fn acquire(&mut self, class: Option<ShapeClass>) -> ShapeClassId {
        let Some(class) = class else { return ShapeClassId(0) };
        let index = match self.by_class.get(&class) {
            Some(&index) => {
                self.used[index].use_count += 1;
                index
            }
            None => {
                let index = self.used.insert(UsedClass { class: class.clone(), use_count: 1 });
                self.by_class.insert(class, index);
                index
            }
        };
        ShapeClassId(u32::try_from(index + 1).unwrap_or(u32::MAX))
    }

    /// Ends one use of `id`.
    pub(crate) fn release(&mut self, id: ShapeClassId) {
        let Some(index) = usize::try_from(id.0).ok().and_then(|id| id.checked_sub(1)) else {
            return;
        };
        let used = &mut self.used[index];
        used.use_count -= 1;
        if used.use_count == 0 {
            let used = self.used.remove(index);
            self.by_class.remove(&used.class);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(dims: &[i64]) -> Option<ShapeClass> {
        let mut class = ShapeClass::default();
        class.push_dims(dims);
        Some(class)
    }

    #[test]
    fn equal_classes_share_an_id_and_unused_ones_are_forgotten() {
        let mut classes = ShapeClasses::default();
        let first = classes.acquire(class(&[3]));
        assert_eq!(classes.acquire(class(&[3])), first);
        assert_ne!(classes.acquire(class(&[4])), first);
        assert_eq!(classes.acquire(None), ShapeClassId(0));
        classes.release(ShapeClassId(0));
        classes.release(first);
        assert_eq!(classes.acquire(class(&[3])), first);
        classes.release(first);
        classes.release(first);
        assert_eq!((classes.by_class.len(), classes.used.len()), (1, 1));
    }

    #[test]
    // row: CFG-12 DYN-16
    fn an_absent_input_differs_from_a_scalar() {
        let mut absent = ShapeClass::default();
        absent.push_absent();
        assert_ne!(Some(absent), class(&[]));
    }
}
