//! Response factories: they make responses after their request is released.

use std::sync::Arc;

use galatea_abi::{TRITONBACKEND_Request, TRITONBACKEND_ResponseFactory};
use galatea_c_objects::{handle, text};

use super::exchange::Exchange;
use super::functions::{factory_of, is_final};
use crate::instance::InUse;
use crate::request::RequestObject;

/// A factory as C sees it.
pub(crate) struct FactoryObject {
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) in_use: InUse,
}
galatea_c_objects::object!(FactoryObject as TRITONBACKEND_ResponseFactory, kind 29);

functions! {
    /// Makes a factory for a request.
    fn TRITONBACKEND_ResponseFactoryNew(
        factory: *mut *mut TRITONBACKEND_ResponseFactory,
        request: *mut TRITONBACKEND_Request,
    ) {
        text::write(factory, core::ptr::null_mut(), "factory")?;
        let request: &RequestObject = handle::borrow(request, "request")?;
        request.check_executed()?;
        text::write(factory, handle::into_raw(factory_of(request)), "factory")
    }

    /// Deletes a factory.
    fn TRITONBACKEND_ResponseFactoryDelete(factory: *mut TRITONBACKEND_ResponseFactory) {
        handle::delete::<FactoryObject>(factory, "factory")
    }

    /// Sends the end of the responses, without a response.
    fn TRITONBACKEND_ResponseFactorySendFlags(
        factory: *mut TRITONBACKEND_ResponseFactory,
        send_flags: u32,
    ) {
        let factory: &FactoryObject = handle::borrow(factory, "factory")?;
        if is_final(send_flags) { factory.exchange.end() } else { Ok(()) }
    }

    /// Whether the client cancelled the request.
    fn TRITONBACKEND_ResponseFactoryIsCancelled(
        factory: *mut TRITONBACKEND_ResponseFactory,
        is_cancelled: *mut bool,
    ) {
        let factory: &FactoryObject = handle::borrow(factory, "factory")?;
        text::write(is_cancelled, factory.exchange.is_cancelled(), "is_cancelled")
    }
}
