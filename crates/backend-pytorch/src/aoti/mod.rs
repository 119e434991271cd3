//! Compiled models (`torch_aoti`), which are AOTInductor packages.

mod interface;
mod session;
mod shared;
mod source;

pub(crate) use source::AotiSource;
