//! Device failures.

/// The reason why an operation on a device failed.
///
/// The messages contain only the driver's text, as Triton appends it to its own messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no usable device with this number.
    #[error("invalid device ordinal")]
    NoSuchDevice {
        /// The requested device number.
        number: i32,
    },
    /// The device has no memory left.
    #[error("out of memory")]
    OutOfMemory {
        /// The device number.
        device: u32,
        /// The number of requested bytes.
        bytes: usize,
    },
    /// The pool has no suitable memory left.
    #[error("the pool of GPU {device} has no {bytes} bytes left")]
    PoolExhausted {
        /// The device number.
        device: u32,
        /// The number of requested bytes.
        bytes: usize,
    },
    /// A persistent error: the device can't be used any more.
    #[error("GPU {device} is lost: {text}")]
    Lost {
        /// The device number.
        device: u32,
        /// The driver's message.
        text: String,
    },
    /// A copy between memory regions of different sizes, or a range that extends beyond the end.
    #[error("{0}")]
    Range(String),
    /// Any other driver error.
    #[error("{text}")]
    Driver {
        /// The function that failed.
        call: &'static str,
        /// The function's result code.
        code: i32,
        /// The driver's message for the result code.
        text: String,
    },
}

impl Error {
    /// Returns true if the device can't be used any more.
    #[must_use]
    pub const fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }
}

/// Returns true if a result code means that the context, and thus all work on the device, is lost.
pub(crate) const fn is_sticky(code: i32) -> bool {
    matches!(
        code,
        46 // the device is unavailable
        | 214 | 220 // uncorrectable errors of memory and links
        | 700 | 702 | 709 | 710 // an illegal address, a timeout, a destroyed context, an assertion
        | 714
            ..=719 | 721 // failed launches
        | 999 // unknown: the driver has no better word for a device that fell off the bus
    )
}
