//! Stage three: where does a batch end, and does it wait to grow?

mod decision;
mod direct;
mod dynamic;

pub(crate) use self::decision::{BatchDecision, Intake};
pub(crate) use self::direct::{DirectBatcher, ReadyRequest};
pub(crate) use self::dynamic::DynamicBatcher;
