//! Tests of a server's state as watchers see it.

use galatea_backend::ExecutionPolicy::Inline;
use galatea_control::{ActivityMonitor, BatchCloseReasons};
use galatea_infer::AccessPass;

use super::*;

#[test]
fn an_execution_is_shown_while_it_goes_on_and_when_it_has_ended() {
    let (backend, entries, release) = FakeBackend::gated();
    let (server, _) = serve(&with(ONE_INSTANCE), backend, &[1], 0);
    let mut recording = server.begin(AccessPass::in_process()).unwrap();
    assert!(recording.read().versions[0].instances[0].ended.is_empty());
    let first = send(&server, echo_request(&[2, 1]));
    entries.recv_timeout(LONG).unwrap();
    let second = send(&server, echo_request(&[1, 1]));
    let reading = recording.read();
    let version = &reading.versions[0];
    assert_eq!((&*version.statistics.name, version.statistics.version), ("echo", 1));
    assert_eq!((version.queue.waiting, version.queue.waits_for), (1, Some("instance")));
    let [instance] = &version.instances[..] else { panic!("{version:?}") };
    let current = instance.current.unwrap();
    assert_eq!((current.batch_size, current.count), (2, 1));
    assert!(current.begin <= current.end && current.end <= reading.at);
    release.send(()).unwrap();
    first.recv_timeout(LONG).unwrap().unwrap();
    release.send(()).unwrap();
    second.recv_timeout(LONG).unwrap().unwrap();
    let mut ended = Vec::new();
    while ended.iter().map(|one: &galatea_control::ExecutionInterval| one.count).sum::<u32>() < 2 {
        ended.extend(recording.read().versions[0].instances[0].ended.clone());
    }
    assert_eq!(ended.iter().map(|one| one.batch_size).sum::<u32>(), 3);
    assert!(ended.iter().all(|one| one.reasons != BatchCloseReasons::default()));
    assert!(ended.iter().any(|one| one.waited > Duration::ZERO));
}

#[test]
fn executions_without_threads_are_recorded() {
    let (server, _) = serve(ECHO, FakeBackend::new(Inline), &[1, 2], 0);
    let mut recording = server.begin(AccessPass::in_process()).unwrap();
    recording.read();
    send(&server, echo_request(&[1, 1])).recv_timeout(LONG).unwrap().unwrap();
    let versions = recording.read().versions;
    let counts: Vec<usize> = versions
        .iter()
        .map(|version| version.instances.iter().map(|instance| instance.ended.len()).sum())
        .collect();
    assert_eq!(counts, [0, 1]);
}

#[test]
fn there_is_one_recording_at_a_time() {
    let (server, _) = serve(ECHO, FakeBackend::new(Inline), &[1], 0);
    let first = server.begin(AccessPass::in_process()).unwrap();
    assert!(server.begin(AccessPass::in_process()).is_none());
    drop(first);
    let mut second = server.begin(AccessPass::in_process()).unwrap();
    second.read();
    send(&server, echo_request(&[1, 1])).recv_timeout(LONG).unwrap().unwrap();
    assert_eq!(second.read().versions[0].instances[0].ended.len(), 1);
}

#[test]
fn model_control_is_allowed_by_its_mode() {
    let (server, _) = serve(ECHO, FakeBackend::new(Inline), &[1], 0);
    assert!(!server.allows_model_control());
}
