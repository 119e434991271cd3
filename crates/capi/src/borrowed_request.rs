//! A request that the server has borrowed from its caller.

use std::sync::Arc;

use galatea_abi::{TRITONSERVER_InferenceRequest, TRITONSERVER_REQUEST_RELEASE_ALL};
use galatea_stdx::run_foreign;

use crate::ownership::ServerOwnership;
use crate::request::{InputSegment, ReleaseCallback};

struct RequestAddress(*mut TRITONSERVER_InferenceRequest);

// SAFETY: the address is only passed to the release callback.
unsafe impl Send for RequestAddress {}
// SAFETY: as above.
unsafe impl Sync for RequestAddress {}

/// A request that the server has borrowed, with its memory. Dropping the last share calls the
/// release callback.
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
    /// the failure. Returns false if there is another share, which will then call it.
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
            // SAFETY: the caller set a function that takes these from any thread; the
            // request was handed over with it and is given back once.
            run_foreign(|| unsafe { release(self.request.0, flags, self.release.userp) });
        }
    }
}

/// A segment of the caller's memory, borrowed for as long as it is read.
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
        // SAFETY: the caller promised `byte_size` readable bytes that don't change until
        // the request is released, which happens after this value is dropped.
        unsafe { core::slice::from_raw_parts(self.segment.base.cast(), self.segment.byte_size) }
    }
}
