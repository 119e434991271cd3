//! Time as an argument: a point on the driver's monotonic clock.

/// Nanoseconds since an arbitrary start.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(pub u64);

impl Time {
    /// The end of time, which is never reached. A deadline that saturates at this value is no
    /// deadline.
    pub const MAX: Time = Time(u64::MAX);

    /// Returns this time plus `nanoseconds`, at most [`Time::MAX`].
    #[must_use]
    pub fn saturating_add(self, nanoseconds: u64) -> Time {
        Time(self.0.saturating_add(nanoseconds))
    }

    /// Returns the nanoseconds from `earlier` to this time, or 0 if `earlier` is later.
    #[must_use]
    pub fn saturating_since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns this time plus `nanoseconds`, or `None` if that time is never reached.
    pub(crate) fn deadline_after(self, nanoseconds: u64) -> Option<Time> {
        let deadline = self.saturating_add(nanoseconds);
        (deadline != Time::MAX).then_some(deadline)
    }
}
