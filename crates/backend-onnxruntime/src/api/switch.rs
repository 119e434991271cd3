//! Settings that are on or off.

/// A setting that is on or off.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

impl Switch {
    /// The value as the library's options take it.
    pub(crate) const fn digit(self) -> &'static str {
        match self {
            Self::On => "1",
            Self::Off => "0",
        }
    }
}
