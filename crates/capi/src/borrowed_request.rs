//! A request that the server has borrowed from its caller.

use std::sync::Arc;

use galatea_abi::{TRITONSERVER_InferenceRequest, TRITONSERVER_REQUEST_RELEASE_ALL};
use galatea_stdx::run_foreign_code;

use crate::ownership::ServerOwnership;
use crate::request::{InputSegment, ReleaseCallback};

struct RequestAddress(*mut TRITONSERVER_InferenceRequest);

// SAFETY: the address is only passed to the release callback.
unsafe impl Send for RequestAddress {}
// SAFETY: as above.
unsafe impl Sync for RequestAddress {}

/// A request, including its memory, that the server has borrowed. Dropping the last reference calls
/// the release callback.
pub(crate) struct BorrowedRequest {
    request: RequestAddress,
    release: ReleaseCallback,
    /// `None` once the caller may hand the request over again.
    ownership: Option<ServerOwnership>,
}

impl BorrowedRequest {
    /// Wraps a request that has just been handed over.
    pub(crate) fn new(
        address: *mut TRITONSERVER_InferenceRequest,
        release: ReleaseCallback,
        ownership: ServerOwnership,
    ) -> Arc<Self> {
        Arc::new(Self { request: RequestAddress(address), release, ownership: Some(ownership) })
    }

    /// Returns the request without calling the release callback, because the returned error reports
    /// the failure. Returns false if another reference exists, whose drop will call the callback.
    pub(crate) fn return_without_callback(self: Arc<Self>) -> bool {
        let Some(mut last) = Arc::into_inner(self) else { return false };
        last.release.function = None;
        true
    }
}

impl Drop for BorrowedRequest {
    fn drop(&mut self) {
        // The callback may hand the request over again.
        drop(self.ownership.take());
        if let Some(release) = self.release.function {
            let flags = TRITONSERVER_REQUEST_RELEASE_ALL.0;
            // SAFETY: the caller set a function that accepts these arguments on any thread. The
            // request was handed over together with it, and is returned once.
            run_foreign_code(|| unsafe { release(self.request.0, flags, self.release.userp) });
        }
    }
}

/// A segment of the caller's memory, borrowed for as long as it is being read.
pub(crate) struct BorrowedBytes {
    segment: InputSegment,
    _request: Arc<BorrowedRequest>,
}

impl BorrowedBytes {
    pub(crate) fn new(segment: InputSegment, request: &Arc<BorrowedRequest>) -> Self {
        Self { segment, _request: request.clone() }
    }
}

impl AsRef<[u8]> for BorrowedBytes {
    fn as_ref(&self) -> &[u8] {
        if self.segment.byte_size == 0 {
            return &[];
        }
        // SAFETY: the caller guaranteed `byte_size` readable bytes that don't change until the
        // request is released, which happens after this value is dropped.
        unsafe { core::slice::from_raw_parts(self.segment.base.cast(), self.segment.byte_size) }
    }
}
