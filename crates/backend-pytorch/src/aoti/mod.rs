//! Compiled models (`torch_aoti`): packages of AOTInductor.

mod interface;
mod session;
mod shared;
mod source;

pub(crate) use source::AotiSource;
