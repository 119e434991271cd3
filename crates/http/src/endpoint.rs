//! The component that responds to a door's requests.

use galatea_gate::ledger::MemoryAccount;

use crate::http_response::HttpResponse;
use crate::request_body::RequestBody;
use crate::request_head::RequestHead;

/// Responds to requests.
pub(crate) trait Endpoint: Send + Sync + 'static {
    /// Responds to a request.
    fn respond<B: RequestBody>(
        &self,
        head: &RequestHead<'_>,
        body: &mut B,
    ) -> impl Future<Output = Result<HttpResponse, Disconnected>> + Send;

    /// Opens the account of a new connection.
    fn open_account(&self) -> MemoryAccount {
        MemoryAccount::unlimited()
    }

    /// Reads, within limits, the body of a request that was refused without reading its body.
    fn drain<B: RequestBody>(&self, body: &mut B) -> impl Future<Output = ()> + Send;

    /// Returns true if the endpoint reads headers that [`RequestHead`] doesn't name.
    fn wants_headers(&self) -> bool {
        false
    }

    /// Returns true if the endpoint reads headers that [`RequestHead`] doesn't name for `path`.
    fn wants_headers_of(&self, _path: &str) -> bool {
        self.wants_headers()
    }
}

/// The error for a connection that ended during a request and is closed without a response.
#[derive(Debug)]
pub(crate) struct Disconnected;

impl std::fmt::Display for Disconnected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the connection ended within a request")
    }
}

impl std::error::Error for Disconnected {}
