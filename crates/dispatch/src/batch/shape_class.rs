//! Classes of requests that may share a batch.

use std::collections::HashMap;

use galatea_policy::ShapeClassId;
use galatea_tensor::DeviceRegion;
use slab::Slab;
use smallvec::SmallVec;

/// The facts that must be equal for two of a model's requests to share a batch: the inputs present,
/// the shapes of inputs with variable dimensions, and the contents of shape tensors. They are
/// encoded as a single list of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ShapeClass {
    words: SmallVec<[i64; WORDS_INLINE]>,
}

/// The number of words stored without an allocation: enough for a few dimensions of one or two
/// inputs.
const WORDS_INLINE: usize = 6;

impl ShapeClass {
    /// Records that the next input is absent.
    pub(crate) fn push_absent(&mut self) {
        self.words.push(-1);
    }

    /// Adds the dimensions of the next input.
    pub(crate) fn push_dims(&mut self, dims: &[i64]) {
        self.words.push(i64::try_from(dims.len()).unwrap_or(i64::MAX));
        self.words.extend_from_slice(dims);
    }

    /// Adds the contents of the next input.
    pub(crate) fn push_contents(&mut self, contents: &[u8]) {
        self.words.push(i64::try_from(contents.len()).unwrap_or(i64::MAX));
        self.words.extend(contents.iter().map(|&byte| i64::from(byte)));
    }

    /// Adds the device memory that contains the next input.
    pub(crate) fn push_device(&mut self, region: Option<&DeviceRegion>) {
        let (device, address) =
            region.map_or((0, 0), |region| (region.device, region.address.cast_signed()));
        self.words.extend_from_slice(&[-2, i64::from(device), address]);
    }
}

/// The shape classes of queued requests. Equal classes have equal IDs. A class is kept only while a
/// queued request uses it, so clients that keep sending new shapes can't make the table grow. A
/// short class stays until the next class is added, because the next request usually has the same
/// class.
#[derive(Debug, Default)]
pub(crate) struct ShapeClasses {
    by_class: HashMap<ShapeClass, usize>,
    used: Slab<ShapeClassUse>,
    /// The most recently acquired class, unless it has been removed.
    last: Option<usize>,
}

#[derive(Debug)]
struct ShapeClassUse {
    class: ShapeClass,
    use_count: usize,
}

#[expect(clippy::indexing_slicing, reason = "a class that is in use is in the slab")]
impl ShapeClasses {
    /// Returns the ID of `class` and counts one more use of it. Requests without a class have ID 0.
    pub(crate) fn acquire(&mut self, class: Option<ShapeClass>) -> ShapeClassId {
        let Some(class) = class else { return ShapeClassId(0) };
        let index = match self.last {
            Some(last) if self.used[last].class == class => last,
            _ => self.find_or_add(class),
        };
        self.used[index].use_count += 1;
        ShapeClassId(u32::try_from(index + 1).unwrap_or(u32::MAX))
    }

    /// Returns the index of a class other than the last one, adding it if necessary.
    fn find_or_add(&mut self, class: ShapeClass) -> usize {
        if let Some(last) = self.last.take()
            && self.used[last].use_count == 0
        {
            self.remove(last);
        }
        let index = match self.by_class.get(&class) {
            Some(&index) => index,
            None => {
                let index = self.used.insert(ShapeClassUse { class: class.clone(), use_count: 0 });
                self.by_class.insert(class, index);
                index
            }
        };
        self.last = Some(index);
        index
    }

    /// Ends one use of `id`.
    pub(crate) fn release(&mut self, id: ShapeClassId) {
        let Some(index) = usize::try_from(id.0).ok().and_then(|id| id.checked_sub(1)) else {
            return;
        };
        let used = &mut self.used[index];
        used.use_count -= 1;
        let stays = self.last == Some(index) && !used.class.words.spilled();
        if used.use_count == 0 && !stays {
            self.remove(index);
        }
    }

    fn remove(&mut self, index: usize) {
        let used = self.used.remove(index);
        self.by_class.remove(&used.class);
        self.last = self.last.filter(|last| *last != index);
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
        // The last class stays.
        assert_eq!((classes.by_class.len(), classes.used.len()), (2, 2));
        assert_eq!(classes.acquire(class(&[3])), first);
        classes.release(first);
        let third = classes.acquire(class(&[5]));
        assert_eq!((classes.by_class.len(), classes.used.len()), (2, 2));
        classes.release(third);
    }

    #[test]
    fn unused_classes_do_not_pile_up() {
        let mut classes = ShapeClasses::default();
        for size in 0..100 {
            let short = classes.acquire(class(&[size]));
            let long = classes.acquire(class(&[size; 9]));
            classes.release(long);
            classes.release(short);
            assert!(classes.used.len() <= 1, "{classes:?}");
        }
        assert_eq!(classes.by_class.len(), classes.used.len());
    }

    #[test]
    // row: CFG-12 DYN-16
    fn an_absent_input_differs_from_a_scalar() {
        let mut absent = ShapeClass::default();
        absent.push_absent();
        assert_ne!(Some(absent), class(&[]));
    }
}
