//! The objects behind the addresses that C stores.
//!
//! An object lives in a slot of its kind's pool. Slots are reused but never freed, so a released
//! slot's tag can still be read. The tag contains the object's kind, the number of times that the
//! slot has been reused, and a bit that marks the slot as in use. The address that C receives
//! stores the low bits of the reuse count in its own unused low bits. A released address, or one of
//! the wrong kind, is therefore detected, except after a multiple of [`GENERATIONS`] reuses.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};

use galatea_infer::Status;
use galatea_stdx::Lock;

/// The number of generations that an address can distinguish. Slots are aligned to this many bytes.
pub const GENERATIONS: u64 = 64;

/// A kind of object that C refers to by address.
pub trait CObject: Sized + 'static {
    /// The type in C.
    type Opaque;
    /// The name used in messages, such as `TRITONSERVER_Message`.
    const NAME: &'static str;
    /// A number that is unique among all kinds in all crates, as verified by a test.
    const KIND: u16;
    /// The pool of this kind's objects.
    fn pool() -> &'static CObjectPool<Self>;
}

/// The slots of one kind. There are as many as the maximum number of objects that have existed
/// simultaneously.
pub struct CObjectPool<T: 'static> {
    free: Lock<Vec<&'static Slot<T>>>,
}

/// Storage for one object. The tag comes first in the slots of every kind.
#[repr(C, align(64))]
struct Slot<T> {
    /// The kind in the upper 16 bits, followed by 47 generation bits and one bit that is set while
    /// the slot contains an object.
    tag: AtomicU64,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: a slot's value is accessible only through this module's functions, whose callers
// guarantee that no two threads use an object in ways that its type forbids. The tag is atomic.
unsafe impl<T> Sync for Slot<T> {}

impl<T> CObjectPool<T> {
    /// Creates a pool without slots.
    #[must_use]
    pub const fn new() -> Self {
        Self { free: Lock::new(Vec::new()) }
    }
}

impl<T> Default for CObjectPool<T> {
    fn default() -> Self {
        Self::new()
    }
}

const LIVE: u64 = 1;
const KIND_SHIFT: u32 = 48;
const GENERATION_MASK: u64 = (1 << 47) - 1;

const fn tag(kind: u16, generation: u64, live: u64) -> u64 {
    (kind as u64) << KIND_SHIFT | (generation & GENERATION_MASK) << 1 | live
}

const fn generation_of(tag: u64) -> u64 {
    tag >> 1 & GENERATION_MASK
}

/// Hands an object to C.
pub fn into_raw<T: CObject>(object: T) -> *mut T::Opaque {
    let recycled = T::pool().free.lock("take a free slot").pop();
    let slot: &'static Slot<T> = recycled.unwrap_or_else(|| {
        Box::leak(Box::new(Slot {
            tag: AtomicU64::new(tag(T::KIND, 0, 0)),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }))
    });
    // SAFETY: the slot is new or came from the free list, so no other thread uses it and it
    // contains no object.
    unsafe { (*slot.value.get()).write(object) };
    let generation = generation_of(slot.tag.load(Ordering::Relaxed)).wrapping_add(1);
    slot.tag.store(tag(T::KIND, generation, LIVE), Ordering::Release);
    let low = usize::try_from(generation % GENERATIONS).unwrap_or(0);
    let address = core::ptr::from_ref(slot).cast_mut().cast::<u8>();
    address.wrapping_add(low).cast()
}

/// Returns the object behind an address for reading.
///
/// # Errors
///
/// `InvalidArgument`, with the argument's name, if the pointer is null or refers to an object of
/// another kind or to a released object.
///
/// # Safety
///
/// A non-null pointer must come from [`into_raw`] for any kind of object, and the object must not
/// be released or changed while the reference lives.
pub unsafe fn borrow<'a, T: CObject>(
    pointer: *const T::Opaque,
    argument: &str,
) -> Result<&'a T, Status> {
    // SAFETY: guaranteed by the caller.
    let slot = unsafe { live_slot::<T>(pointer, argument)? };
    // SAFETY: according to its tag, the slot contains an object, and the caller guarantees that the
    // object stays there unchanged.
    Ok(unsafe { (*slot.value.get()).assume_init_ref() })
}

/// Returns the object behind an address for modification.
///
/// # Errors
///
/// Same as for [`borrow`].
///
/// # Safety
///
/// Same requirements as for [`borrow`]. In addition, nothing else may use the object while the
/// reference lives.
pub unsafe fn borrow_mut<'a, T: CObject>(
    pointer: *mut T::Opaque,
    argument: &str,
) -> Result<&'a mut T, Status> {
    // SAFETY: guaranteed by the caller.
    let slot = unsafe { live_slot::<T>(pointer, argument)? };
    // SAFETY: according to its tag, the slot contains an object, and the caller guarantees that
    // nothing else uses it.
    Ok(unsafe { (*slot.value.get()).assume_init_mut() })
}

/// Takes an object back from C. Its address becomes invalid.
///
/// # Errors
///
/// Same as for [`borrow`]. Releasing an object twice is such an error.
///
/// # Safety
///
/// Same requirements as for [`borrow_mut`].
pub unsafe fn take<T: CObject>(pointer: *mut T::Opaque, argument: &str) -> Result<T, Status> {
    // SAFETY: guaranteed by the caller.
    let slot = unsafe { live_slot::<T>(pointer, argument)? };
    let live = slot.tag.load(Ordering::Acquire);
    // If two threads release the same object, only one of them receives it.
    slot.tag
        .compare_exchange(live, live & !LIVE, Ordering::AcqRel, Ordering::Relaxed)
        .map_err(|_| released_error::<T>(argument))?;
    // SAFETY: the tag stated that the slot contains an object and now states that it doesn't, so
    // the object is moved out once.
    let object = unsafe { (*slot.value.get()).assume_init_read() };
    T::pool().free.lock("give a slot back").push(slot);
    Ok(object)
}

/// Takes an object back from C and drops it. Null is ignored, as in Triton, because programs rely
/// on that.
///
/// # Errors
///
/// Same as for [`take`], except that null isn't an error.
///
/// # Safety
///
/// Same requirements as for [`borrow_mut`].
pub unsafe fn delete<T: CObject>(pointer: *mut T::Opaque, argument: &str) -> Result<(), Status> {
    if pointer.is_null() {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    unsafe { take::<T>(pointer, argument) }.map(drop)
}

/// # Safety
///
/// Same requirements as for [`borrow`].
unsafe fn live_slot<T: CObject>(
    pointer: *const T::Opaque,
    argument: &str,
) -> Result<&'static Slot<T>, Status> {
    if pointer.is_null() {
        return Err(Status::invalid_argument(format!("{argument} must not be null")));
    }
    let mask = usize::try_from(GENERATIONS - 1).unwrap_or(0);
    let low = pointer.addr() & mask;
    let address = pointer.map_addr(|address| address & !mask);
    // SAFETY: the pointer comes from `into_raw`, so without its low bits it is the address of a
    // slot, which is never freed and begins with its tag.
    let found = unsafe { &*address.cast::<AtomicU64>() }.load(Ordering::Acquire);
    if found >> KIND_SHIFT != u64::from(T::KIND) {
        let text = format!("{argument} is not a {}", T::NAME);
        return Err(Status::invalid_argument(text));
    }
    let low_generation = usize::try_from(generation_of(found) % GENERATIONS).unwrap_or(0);
    if found & LIVE == 0 || low_generation != low {
        return Err(released_error::<T>(argument));
    }
    // SAFETY: according to its tag, this is a slot of the right kind, and slots are never freed.
    Ok(unsafe { &*address.cast::<Slot<T>>() })
}

fn released_error<T: CObject>(argument: &str) -> Status {
    let status = Status::invalid_argument(format!("{argument} is a {} that was released", T::NAME));
    crate::log::error(status.message());
    status
}

/// Makes a type an [`CObject`].
#[macro_export]
macro_rules! object {
    ($type:ty as $opaque:ident, kind $kind:literal) => {
        impl $crate::handle::CObject for $type {
            type Opaque = galatea_abi::$opaque;
            const NAME: &'static str = stringify!($opaque);
            const KIND: u16 = $kind;
            fn pool() -> &'static $crate::handle::CObjectPool<Self> {
                static POOL: $crate::handle::CObjectPool<$type> =
                    $crate::handle::CObjectPool::new();
                &POOL
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use galatea_abi::TRITONSERVER_Message;

    use super::*;

    struct One(Arc<str>);
    struct Other;
    crate::object!(One as TRITONSERVER_Message, kind 60_001);
    crate::object!(Other as TRITONSERVER_Metric, kind 60_002);

    fn message(pointer: *mut TRITONSERVER_Message) -> String {
        // SAFETY: tests pass null or a pointer from `into_raw`.
        let found = unsafe { borrow::<One>(pointer, "message") };
        match found {
            Ok(one) => one.0.to_string(),
            Err(status) => status.message().to_owned(),
        }
    }

    #[test]
    fn an_object_is_found_until_it_is_released() {
        let text: Arc<str> = Arc::from("hello");
        let pointer = into_raw(One(text.clone()));
        assert_eq!(message(pointer), "hello");
        // SAFETY: the pointer came from `into_raw`, and there is only one thread.
        let taken = unsafe { take::<One>(pointer, "message") };
        assert!(taken.is_ok());
        drop(taken);
        assert_eq!(Arc::strong_count(&text), 1);
        assert_eq!(message(pointer), "message is a TRITONSERVER_Message that was released");
        // SAFETY: as above.
        assert!(unsafe { take::<One>(pointer, "message") }.is_err());
        // SAFETY: as above.
        assert!(unsafe { delete::<One>(pointer, "message") }.is_err());
    }

    #[test]
    fn a_reused_slot_is_another_object() {
        let first = into_raw(One(Arc::from("first")));
        // SAFETY: the pointer came from `into_raw`, and there is only one thread.
        drop(unsafe { take::<One>(first, "message") });
        let others: Vec<_> = (0..20).map(|_| into_raw(One(Arc::from("second")))).collect();
        assert!(others.iter().all(|other| *other != first));
        assert_eq!(message(first), "message is a TRITONSERVER_Message that was released");
        for other in others {
            assert_eq!(message(other), "second");
            // SAFETY: as above.
            drop(unsafe { take::<One>(other, "message") });
        }
    }

    #[test]
    fn null_and_other_kinds_are_refused() {
        assert_eq!(message(core::ptr::null_mut()), "message must not be null");
        // SAFETY: null is always allowed.
        assert!(unsafe { delete::<One>(core::ptr::null_mut(), "message") }.is_ok());
        let other = into_raw(Other);
        assert_eq!(message(other.cast()), "message is not a TRITONSERVER_Message");
        // SAFETY: the pointer came from `into_raw`, and there is only one thread.
        drop(unsafe { take::<Other>(other, "metric") });
    }
}
