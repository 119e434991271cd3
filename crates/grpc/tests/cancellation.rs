//! Tests for calls and connections that end early, and for doors that close.

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use common::{Fixture, finish, framed, infer_head, infer_request, request};
use galatea_fakes::{HeldRequest, echo};
use galatea_infer::Code;
use galatea_protocol::health::{HealthCheckRequest, HealthCheckResponse};
use galatea_protocol::inference::ModelInferResponse;
use galatea_stdx::testing::wait_in_task;
use h2::Reason;
use tokio::sync::oneshot;

/// Resolves when the request is cancelled.
fn cancelled(held: &HeldRequest) -> oneshot::Receiver<()> {
    let (sender, receiver) = oneshot::channel();
    held.0.cancel.on_cancel(move || {
        let _ = sender.send(());
    });
    receiver
}

fn held_body() -> Vec<Bytes> {
    vec![framed(&infer_request("held", Bytes::from_static(b"x")))]
}

/// Begins a call and waits until the service has its request.
macro_rules! begin_held {
    ($fixture:ident, $client:ident, $head:expr) => {{
        let call = $client.begin($head, held_body()).await;
        (call, $fixture.held.recv().await.unwrap())
    }};
}

#[tokio::test]
async fn a_reset_cancels_its_call_and_no_other() {
    let mut fixture = Fixture::new();
    let client = fixture.client().await;
    let (other, other_held) = begin_held!(fixture, client, infer_head());
    let mut send = client.send.clone().ready().await.unwrap();
    let (response, mut stream) = send.send_request(infer_head().body(()).unwrap(), false).unwrap();
    stream.send_data(held_body().remove(0), true).unwrap();
    let held = fixture.held.recv().await.unwrap();
    let cancellation = cancelled(&held);
    stream.send_reset(Reason::CANCEL);
    drop(response);
    cancellation.await.unwrap();
    // The late response finds no call, and the other call gets its own response.
    held.1.send_final(Ok(echo(held.0)));
    assert!(!other_held.0.cancel.is_cancelled());
    other_held.1.send_final(Ok(echo(other_held.0)));
    let _: ModelInferResponse = finish(other).await.unwrap().message();
}

/// Calls are opened and reset a thousand times, in every state, and nothing remains
/// (CVE-2025-23322).
#[tokio::test]
async fn calls_that_are_reset_early_leave_nothing_behind() {
    let mut fixture = Fixture::new();
    let client = fixture.client().await;
    for round in 0..1000 {
        let mut send = client.send.clone().ready().await.unwrap();
        let (_response, mut stream) =
            send.send_request(infer_head().body(()).unwrap(), false).unwrap();
        let body = held_body().remove(0);
        match round % 4 {
            0 => {}
            1 => stream.send_data(body.slice(..7), false).unwrap(),
            2 => stream.send_data(body, false).unwrap(),
            _ => {
                stream.send_data(body, true).unwrap();
                let held = fixture.held.recv().await.unwrap();
                let cancellation = cancelled(&held);
                stream.send_reset(Reason::CANCEL);
                cancellation.await.unwrap();
            }
        }
        stream.send_reset(Reason::CANCEL);
        // A response from the server shows that it has read the resets, so they don't count as an
        // attack.
        client.check_echo("inline", Bytes::from_static(b"x")).await;
    }
}

#[tokio::test]
async fn a_lost_connection_cancels_its_calls() {
    let mut fixture = Fixture::new();
    let client = fixture.client().await;
    let (call, held) = begin_held!(fixture, client, infer_head());
    let cancellation = cancelled(&held);
    drop(call);
    client.task.abort();
    drop(client);
    cancellation.await.unwrap();
    held.1.send_final(Ok(echo(held.0)));
    fixture.client().await.check_echo("inline", Bytes::from_static(b"x")).await;
}

#[tokio::test]
async fn a_deadline_ends_and_cancels_its_call() {
    let mut fixture = Fixture::new();
    let client = fixture.client().await;
    let (patient, patient_held) =
        begin_held!(fixture, client, infer_head().header("grpc-timeout", "1H"));
    for timeout in ["30m", "1m", "0n", "2000u"] {
        let head = infer_head().header("grpc-timeout", timeout);
        let result = finish(client.begin(head, held_body()).await).await.unwrap();
        assert_eq!(result.status(), (4, String::from("Deadline Exceeded")));
        // The timeout may have passed before the service has the request.
        if let Ok(held) = fixture.held.try_recv() {
            assert!(held.0.cancel.is_cancelled());
            held.1.send_final(Ok(echo(held.0)));
        }
    }
    // The indices of those calls were reused, and no response reached the wrong call.
    client.check_echo("inline", Bytes::from_static(b"y")).await;
    patient_held.1.send_final(Ok(echo(patient_held.0)));
    let response: ModelInferResponse = finish(patient).await.unwrap().message();
    assert_eq!(response.raw_output_contents, [Bytes::from_static(b"x")]);
}

/// The timer expires for the first deadline and must be set again for the second.
#[tokio::test]
async fn every_deadline_is_kept() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    let mut calls = Vec::new();
    for timeout in ["60m", "10m", "30m"] {
        let head = infer_head().header("grpc-timeout", timeout);
        calls.push(client.begin(head, held_body()).await);
    }
    for call in calls {
        assert_eq!(finish(call).await.unwrap().status().0, 4);
    }
}

#[tokio::test]
async fn a_deadline_ends_a_call_whose_message_never_arrives() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    let mut send = client.send.clone().ready().await.unwrap();
    let head = infer_head().header("grpc-timeout", "5m");
    let (response, _stream) = send.send_request(head.body(()).unwrap(), false).unwrap();
    assert_eq!(finish(response).await.unwrap().status().0, 4);
}

async fn health(fixture: &Fixture) -> i32 {
    let client = fixture.client().await;
    let head = request("/grpc.health.v1.Health/Check");
    let result = client.call(head, framed(&HealthCheckRequest { service: "any".into() })).await;
    result.message::<HealthCheckResponse>().status
}

const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;

#[tokio::test]
async fn a_stopping_door_finishes_its_calls() {
    let mut fixture = Fixture::new();
    assert_eq!(health(&fixture).await, SERVING);
    let idle = fixture.client().await;
    // A connection that hasn't been accepted yet would count as a late one.
    idle.check_echo("inline", Bytes::new()).await;
    let client = fixture.client().await;
    let (call, held) = begin_held!(fixture, client, infer_head());
    fixture.door.begin_drain();
    // Connections without calls are closed immediately.
    idle.task.await.unwrap();
    // A later client receives the reason why it is not served.
    assert_eq!(health(&fixture).await, NOT_SERVING);
    let late = fixture.client().await.infer("inline", Bytes::new()).await;
    late.assert_failed(
        Code::Unavailable,
        "GRPC server is shutting down and has stopped accepting new requests.",
    );
    // The door has ended the idle connection, but it may still be registered.
    let count = || fixture.door.draining_connection_count();
    wait_in_task("one connection is left", || count() <= 1).await;
    assert_eq!(count(), 1);
    held.1.send_final(Ok(echo(held.0)));
    let _: ModelInferResponse = finish(call).await.unwrap().message();
    fixture.door.drained().await;
    client.task.await.unwrap();
}

/// Until the door stops, the connection's task has no other reason to run.
#[tokio::test]
async fn a_busy_connection_announces_at_once_that_the_door_stops() {
    let mut fixture = Fixture::new();
    let client = fixture.client().await;
    client.check_echo("inline", Bytes::new()).await;
    client.settle().await;
    let (started, starting) = oneshot::channel();
    let (stopped, stopping) = std::sync::mpsc::channel::<()>();
    *fixture.fake.before_inference.lock().unwrap() = Some(Box::new(move || {
        started.send(()).unwrap();
        stopping.recv().unwrap();
    }));
    let call = client.begin(infer_head(), held_body()).await;
    starting.await.unwrap();
    fixture.door.begin_drain();
    stopped.send(()).unwrap();
    let held = fixture.held.recv().await.unwrap();
    let announced = async {
        while client.send.clone().ready().await.is_ok() {
            // sleep: the timeout below ends the loop
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), announced).await.unwrap();
    drop(held);
    assert!(finish(call).await.is_ok());
    fixture.door.drained().await;
}

/// The door stops between accepting a connection and its handshake.
#[tokio::test]
async fn a_connection_in_its_handshake_ends_when_the_door_stops() {
    let fixture = Fixture::new();
    let silent = tokio::net::TcpStream::connect(fixture.door.address()).await.unwrap();
    wait_in_task("it is accepted", || fixture.door.draining_connection_count() == 1).await;
    fixture.door.begin_drain();
    let (_send, connection) = h2::client::handshake(silent).await.unwrap();
    let _ = connection.await;
    fixture.door.drained().await;
}

/// This client resembles a port probe that sends nothing.
#[tokio::test]
async fn a_drain_does_not_wait_for_a_silent_client() {
    let fixture = Fixture::new();
    let silent = tokio::net::TcpStream::connect(fixture.door.address()).await.unwrap();
    wait_in_task("it is accepted", || fixture.door.draining_connection_count() == 1).await;
    fixture.door.begin_drain();
    fixture.door.drained().await;
    drop(silent);
}

#[tokio::test]
async fn health_checks_report_a_server_that_is_not_ready() {
    let fixture = Fixture::new();
    fixture.fake.is_stopping.store(true, Ordering::Relaxed);
    assert_eq!(health(&fixture).await, NOT_SERVING);
}

#[tokio::test]
async fn a_closed_door_cancels_all_calls() {
    let mut fixture = Fixture::new();
    let client = fixture.client().await;
    let (call, held) = begin_held!(fixture, client, infer_head());
    let cancellation = cancelled(&held);
    fixture.door.close();
    cancellation.await.unwrap();
    assert_eq!(finish(call).await.unwrap().status(), (1, String::from("CANCELLED")));
    fixture.door.drained().await;
    assert_eq!(fixture.door.draining_connection_count(), 0);
}
