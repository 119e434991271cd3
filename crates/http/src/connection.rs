//! Serves a connection from its first byte to its end.
//!
//! Plain requests are served by [`plain`], even inside TLS. From the first request that isn't
//! plain, hyper serves the connection.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use galatea_door::{Connection, ConnectionActivity, ConnectionStream, PhaseWatch};
use galatea_gate::ledger::MemoryAccount;
use hyper::body::Incoming;
use hyper::header::TRANSFER_ENCODING;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;

use crate::endpoint::{Disconnected, Endpoint};
use crate::http_response::{self, HttpResponse, ResponseBody};
use crate::hyper_stream::{Exchange, HyperStream};
use crate::plain::{self, SessionEnd};
use crate::request_body::HyperBody;
use crate::request_head::RequestHead;

/// Serves a connection, unless it was opened while the door was draining.
pub(crate) async fn serve<E: Endpoint>(
    connection: Connection,
    endpoint: &Arc<E>,
    hyper: &http1::Builder,
) {
    let account = Arc::new(endpoint.open_account());
    // The stream is dropped first, so that a connection that is no longer counted is already
    // closed.
    let Connection { place, open: Some(_open), phase, stream, .. } = connection else { return };
    let activity = place.activity();
    poll_fn(|context| {
        activity.set_waker(context.waker());
        Poll::Ready(())
    })
    .await;
    let end = plain::serve(stream, &**endpoint, &account, phase.clone(), activity).await;
    let SessionEnd::NotPlain(stream, read) = end else { return };
    let exchange = Arc::new(Exchange::new(endpoint.wants_headers()));
    // Inside TLS, a client announces that it will send no more; a client that simply stops has
    // disconnected.
    let may_send_no_more = matches!(stream, ConnectionStream::Tcp(_));
    let mut hyper = hyper.clone();
    hyper.half_close(may_send_no_more);
    let stream = HyperStream::new(read, stream, activity.clone(), exchange.clone());
    // Few connections need this, and hyper's state is large.
    let (endpoint, activity) = (endpoint.clone(), activity.clone());
    let service = Service { endpoint, activity, account, exchange };
    Box::pin(serve_with_hyper(stream, Arc::new(service), phase, &hyper)).await;
}

/// Responds to requests on a connection that hyper serves.
struct Service<E> {
    endpoint: Arc<E>,
    activity: Arc<ConnectionActivity>,
    account: Arc<MemoryAccount>,
    exchange: Arc<Exchange>,
}

async fn serve_with_hyper<E: Endpoint>(
    stream: HyperStream,
    service: Arc<Service<E>>,
    mut phase: PhaseWatch,
    hyper: &http1::Builder,
) {
    let respond = service_fn(|request| respond(service.clone(), request));
    let connection = hyper.serve_connection(TokioIo::new(stream), respond);
    tokio::select! {
        biased;
        // An error ends the connection just as a regular end does.
        _ = connection => {}
        () = phase.closed() => {}
    }
}

async fn respond<E: Endpoint>(
    service: Arc<Service<E>>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Disconnected> {
    let sent = service.exchange.begin();
    let (parts, body) = request.into_parts();
    let mut body = HyperBody::new(body, &service.activity, &service.account);
    let response = if has_known_encoding(&parts.headers) {
        let wants_headers = service.endpoint.wants_headers_of(parts.uri.path());
        let head = RequestHead::of(&parts, wants_headers, &sent);
        service.endpoint.respond(&head, &mut body).await?
    } else {
        service.endpoint.drain(&mut body).await;
        http_response::closing(http_response::error(
            StatusCode::BAD_REQUEST,
            "a Transfer-Encoding other than 'chunked' is not supported",
        ))
    };
    Ok(into_hyper(response, &service))
}

/// Returns true if a body with a transfer encoding is chunked and nothing else. hyper ignores other
/// encodings.
fn has_known_encoding(headers: &HeaderMap) -> bool {
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_known = |encoding: &[u8]| encoding.eq_ignore_ascii_case(b"chunked");
    encodings.next().is_none_or(|first| is_known(first.as_bytes())) && encodings.next().is_none()
}

fn into_hyper<E>(response: HttpResponse, service: &Service<E>) -> Response<ResponseBody> {
    let exchange = service.exchange.clone();
    response.into_hyper(move || exchange.end())
}
