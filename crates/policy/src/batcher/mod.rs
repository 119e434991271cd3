//! Stage three: decides where a batch ends and whether it waits to grow.

mod decision;
mod direct;
mod dynamic;

pub(crate) use self::decision::{BatchDecision, Intake};
pub(crate) use self::direct::{DirectBatcher, ReadyRequest};
pub(crate) use self::dynamic::DynamicBatcher;
