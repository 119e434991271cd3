//! Compiled models (`torch_aoti`), which are AOTInductor packages.

mod checked;
mod interface;
mod session;
mod shapes;
mod shared;
mod source;

pub(crate) use checked::CheckedModel;
pub(crate) use source::AotiSource;
