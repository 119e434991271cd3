//! Settings that are either on or off.

/// A setting that is either on or off.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum OnOff {
    /// On.
    On,
    /// Off.
    Off,
}

impl OnOff {
    /// The value in the form that library options expect.
    #[must_use]
    pub const fn digit(self) -> &'static str {
        match self {
            Self::On => "1",
            Self::Off => "0",
        }
    }
}
