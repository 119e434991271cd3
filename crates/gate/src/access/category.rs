//! API categories, as values and as types.

use std::fmt;

/// A category of APIs that can be restricted. The names are Triton's.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ApiCategory {
    /// Liveness and readiness of the server and its models.
    Health,
    /// Descriptions of the server and its models.
    Metadata,
    /// Inference and generation.
    Inference,
    /// Registering shared memory.
    SharedMemory,
    /// Model configurations.
    ModelConfig,
    /// Listing, loading and unloading models.
    ModelRepository,
    /// Model counters, and the reasons why schedulers wait.
    Statistics,
    /// The trace settings.
    Trace,
    /// The log settings.
    Logging,
}

impl ApiCategory {
    /// Every category, in the order in which Triton lists them.
    pub const ALL: [Self; 9] = [
        Self::Health,
        Self::Metadata,
        Self::Inference,
        Self::SharedMemory,
        Self::ModelConfig,
        Self::ModelRepository,
        Self::Statistics,
        Self::Trace,
        Self::Logging,
    ];

    /// The category's name in a rule.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Health => "health",
            Self::Metadata => "metadata",
            Self::Inference => "inference",
            Self::SharedMemory => "shared-memory",
            Self::ModelConfig => "model-config",
            Self::ModelRepository => "model-repository",
            Self::Statistics => "statistics",
            Self::Trace => "trace",
            Self::Logging => "logging",
        }
    }

    /// The category with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|category| category.name() == name)
    }
}

impl fmt::Display for ApiCategory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A category as a type, for [`AccessPass`](super::AccessPass). The types are in [`api`].
pub trait ApiMarker: sealed::Sealed {
    /// The category.
    const CATEGORY: ApiCategory;
}

mod sealed {
    pub trait Sealed {}
}

/// The categories as types. They have no values.
pub mod api {
    use super::{ApiCategory, ApiMarker, sealed::Sealed};

    macro_rules! categories {
        ($($name:ident)*) => {
            $(
                #[doc = concat!("[`ApiCategory::", stringify!($name), "`].")]
                #[derive(Copy, Clone, Debug, PartialEq, Eq)]
                pub enum $name {}

                impl Sealed for $name {}

                impl ApiMarker for $name {
                    const CATEGORY: ApiCategory = ApiCategory::$name;
                }
            )*
        };
    }

    categories! {
        Health Metadata Inference SharedMemory ModelConfig ModelRepository Statistics Trace Logging
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_categories_belong_together() {
        for category in ApiCategory::ALL {
            assert_eq!(ApiCategory::named(category.name()), Some(category));
        }
        for unknown in ["", "Health", "health ", "model_config", "metrics"] {
            assert_eq!(ApiCategory::named(unknown), None, "{unknown}");
        }
    }
}
