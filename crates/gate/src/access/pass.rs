//! The proof that a caller was admitted.

use std::fmt;
use std::marker::PhantomData;

use super::category::{Api, ApiCategory};

/// The proof that the gate lets a caller use a category's APIs.
///
/// It is zero-sized. A stream keeps its call's pass for all of its requests.
pub struct Pass<A> {
    category: PhantomData<fn() -> A>,
}

impl<A: Api> Pass<A> {
    /// The pass of a caller inside the process, which no rule restricts: a C program, an ensemble,
    /// or the server itself.
    ///
    /// Doors must not use it for a request from the network (`cargo xtask arrows` checks
    /// that).
    pub const fn in_process() -> Self {
        Self { category: PhantomData }
    }
}

impl<A> Clone for Pass<A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Pass<A> {}

/// All passes for a category are equal.
impl<A> PartialEq for Pass<A> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<A> Eq for Pass<A> {}

impl<A: Api> fmt::Debug for Pass<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pass({})", A::CATEGORY)
    }
}

/// The admission of a caller to a category's APIs. It becomes a [`Pass`] once the door knows which
/// method it calls.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    category: ApiCategory,
}

impl Admission {
    pub(super) const fn new(category: ApiCategory) -> Self {
        Self { category }
    }

    /// Turns the admission into a pass.
    ///
    /// # Errors
    ///
    /// If the caller was admitted to another category, which is a bug in the door.
    pub fn pass<A: Api>(self) -> Result<Pass<A>, WrongCategory> {
        if self.category == A::CATEGORY {
            return Ok(Pass { category: PhantomData });
        }
        Err(WrongCategory { admitted: self.category, demanded: A::CATEGORY })
    }
}

/// The error for a door that admitted a caller to one category and called a method of another.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct WrongCategory {
    admitted: ApiCategory,
    demanded: ApiCategory,
}

impl fmt::Display for WrongCategory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a request that was admitted to the API '{}' needs '{}'",
            self.admitted, self.demanded
        )
    }
}

impl std::error::Error for WrongCategory {}

#[cfg(test)]
mod tests {
    use super::super::api;
    use super::*;

    #[test]
    fn an_admission_is_a_pass_for_its_own_category_alone() {
        for category in ApiCategory::ALL {
            let admission = Admission::new(category);
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
        let wrong = Admission::new(ApiCategory::Health).pass::<api::ModelRepository>().unwrap_err();
        let text = "a request that was admitted to the API 'health' needs 'model-repository'";
        assert_eq!(wrong.to_string(), text);
    }
}
