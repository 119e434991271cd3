//! Lets one thread drive a machine while others only add work.
//!
//! Work for a machine comes from several threads. Instead of waiting for a lock around the machine,
//! a thread adds its work to a queue. If no other thread is driving the machine, the thread takes
//! the driver out of its slot and drives until the queue is empty. As a result, the work is done by
//! one thread at a time, in order, without holding a lock.
//!
//! One lock guards the slot and the queue. A driver checks for the next item and goes back into the
//! slot under that lock ([`DriverSlot::next_or_release`]), so a thread that adds an item later
//! finds the driver there.

/// A driver's slot. It must be protected by the lock that guards the queue.
///
/// `Idle` → `Driving` → `Idle` or `Closed`; `Closed` is final.
#[derive(Copy, Clone, Default, PartialEq, Eq, Debug)]
pub enum DriverSlot<D> {
    /// No thread is driving.
    Idle(D),
    /// A thread has the driver, and checks for items before it puts the driver back.
    Driving,
    /// The driver is gone.
    #[default]
    Closed,
}

impl<D> DriverSlot<D> {
    /// Takes the driver. `None` if another thread has it or the slot is closed.
    pub fn take(&mut self) -> Option<D> {
        match std::mem::replace(self, Self::Driving) {
            Self::Idle(driver) => Some(driver),
            Self::Driving => None,
            Self::Closed => {
                *self = Self::Closed;
                None
            }
        }
    }

    /// Continues with `next`, the next item of the queue; if there is none, the driver goes back
    /// into the slot.
    pub fn next_or_release<I>(&mut self, driver: D, next: Option<I>) -> Option<(D, I)> {
        match next {
            Some(item) => Some((driver, item)),
            None => {
                *self = Self::Idle(driver);
                None
            }
        }
    }

    /// Closes the slot. Returns the driver unless a thread has it.
    pub fn close(&mut self) -> Option<D> {
        match std::mem::replace(self, Self::Closed) {
            Self::Idle(driver) => Some(driver),
            Self::Driving | Self::Closed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_driver_at_a_time() {
        let mut slot = DriverSlot::Idle('d');
        let driver = slot.take().unwrap();
        assert_eq!((slot.take(), slot), (None, DriverSlot::Driving));
        assert_eq!(slot.next_or_release(driver, Some(1)), Some(('d', 1)));
        assert_eq!(slot.take(), None);
        assert_eq!(slot.next_or_release(driver, None::<u32>), None);
        assert_eq!(slot.take(), Some('d'));
    }

    #[test]
    fn a_closed_slot_stays_closed() {
        let mut slot = DriverSlot::Idle('d');
        assert_eq!(slot.close(), Some('d'));
        assert_eq!((slot.take(), slot.close()), (None, None));
        assert_eq!(slot, DriverSlot::Closed);
    }
}
