//! The proof that a caller was admitted.

use std::fmt;
use std::marker::PhantomData;

use super::category::{ApiCategory, ApiMarker};
use super::tenant::TenantNumber;

/// The proof that the gate lets a caller use a category's APIs.
///
/// It is zero-sized. All requests of a stream use the pass of the stream's call.
pub struct AccessPass<A> {
    category: PhantomData<fn() -> A>,
}

impl<A: ApiMarker> AccessPass<A> {
    /// The pass of a caller inside the process, which no rule restricts: a C program, an ensemble,
    /// or the server itself.
    ///
    /// Doors must not use it for a request from the network (`cargo xtask arrows` checks
    /// that).
    pub const fn in_process() -> Self {
        Self { category: PhantomData }
    }
}

impl<A> Clone for AccessPass<A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for AccessPass<A> {}

/// All passes for a category are equal.
impl<A> PartialEq for AccessPass<A> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<A> Eq for AccessPass<A> {}

impl<A: ApiMarker> fmt::Debug for AccessPass<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pass({})", A::CATEGORY)
    }
}

/// The admission of a caller to a category's APIs. It becomes an [`AccessPass`] once the door knows
/// which method it calls.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AccessGrant {
    category: ApiCategory,
    tenant: Option<TenantNumber>,
}

impl AccessGrant {
    pub(super) const fn new(category: ApiCategory, tenant: Option<TenantNumber>) -> Self {
        Self { category, tenant }
    }

    /// The caller's tenant; `None` if the caller needed no key.
    pub const fn tenant(self) -> Option<TenantNumber> {
        self.tenant
    }

    /// Turns the admission into a pass.
    ///
    /// # Errors
    ///
    /// Returns an error if the caller was admitted to another category, which is a bug in the door.
    pub fn pass<A: ApiMarker>(self) -> Result<AccessPass<A>, GrantMismatch> {
        if self.category == A::CATEGORY {
            return Ok(AccessPass { category: PhantomData });
        }
        Err(GrantMismatch { admitted: self.category, demanded: A::CATEGORY })
    }
}

/// The error for a door that admitted a caller to one category and called a method of another.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct GrantMismatch {
    admitted: ApiCategory,
    demanded: ApiCategory,
}

impl fmt::Display for GrantMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a request that was admitted to the API '{}' needs '{}'",
            self.admitted, self.demanded
        )
    }
}

impl std::error::Error for GrantMismatch {}

#[cfg(test)]
mod tests {
    use super::super::api;
    use super::*;

    #[test]
    fn an_admission_is_a_pass_for_its_own_category_alone() {
        for category in ApiCategory::ALL {
            let admission = AccessGrant::new(category, None);
            let passes = [
                admission.pass::<api::Health>().is_ok(),
                admission.pass::<api::Metadata>().is_ok(),
                admission.pass::<api::Inference>().is_ok(),
                admission.pass::<api::SharedMemory>().is_ok(),
                admission.pass::<api::ModelConfig>().is_ok(),
                admission.pass::<api::ModelRepository>().is_ok(),
                admission.pass::<api::Statistics>().is_ok(),
                admission.pass::<api::Trace>().is_ok(),
                admission.pass::<api::Logging>().is_ok(),
            ];
            assert_eq!(passes, ApiCategory::ALL.map(|other| other == category));
        }
        let wrong =
            AccessGrant::new(ApiCategory::Health, None).pass::<api::ModelRepository>().unwrap_err();
        let text = "a request that was admitted to the API 'health' needs 'model-repository'";
        assert_eq!(wrong.to_string(), text);
    }
}
