//! Response factories, which create responses after their request has been released.

use std::sync::Arc;

use galatea_abi::{TRITONBACKEND_Request, TRITONBACKEND_ResponseFactory};
use galatea_c_objects::{handle, pointer};

use super::is_final;
use crate::instance::InstanceGuard;
use crate::request::RequestObject;
use crate::response_channel::ResponseChannel;

/// A factory as C sees it.
pub(crate) struct FactoryObject {
    pub(crate) channel: Arc<ResponseChannel>,
    pub(crate) instance_guard: InstanceGuard,
}
galatea_c_objects::object!(FactoryObject as TRITONBACKEND_ResponseFactory, kind 29);

impl FactoryObject {
    /// Creates a factory for a request. The factory shares the request's channel and instance.
    fn of(request: &RequestObject) -> Self {
        Self {
            channel: Arc::clone(&request.channel),
            instance_guard: request.instance_guard.clone(),
        }
    }
}

functions! {
    /// Creates a factory for a request.
    fn TRITONBACKEND_ResponseFactoryNew(
        factory: *mut *mut TRITONBACKEND_ResponseFactory,
        request: *mut TRITONBACKEND_Request,
    ) {
        pointer::write(factory, core::ptr::null_mut(), "factory")?;
        let request: &RequestObject = handle::borrow(request, "request")?;
        request.check_executed()?;
        pointer::write(factory, handle::into_raw(FactoryObject::of(request)), "factory")
    }

    /// Deletes a factory.
    fn TRITONBACKEND_ResponseFactoryDelete(factory: *mut TRITONBACKEND_ResponseFactory) {
        handle::delete::<FactoryObject>(factory, "factory")
    }

    /// Sends the final flag without a response.
    fn TRITONBACKEND_ResponseFactorySendFlags(
        factory: *mut TRITONBACKEND_ResponseFactory,
        send_flags: u32,
    ) {
        let factory: &FactoryObject = handle::borrow(factory, "factory")?;
        if is_final(send_flags) { factory.channel.end() } else { Ok(()) }
    }

    /// Returns true if the client has cancelled the request.
    fn TRITONBACKEND_ResponseFactoryIsCancelled(
        factory: *mut TRITONBACKEND_ResponseFactory,
        is_cancelled: *mut bool,
    ) {
        let factory: &FactoryObject = handle::borrow(factory, "factory")?;
        pointer::write(is_cancelled, factory.channel.is_cancelled(), "is_cancelled")
    }
}
