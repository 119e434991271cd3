//! Tests of the records for a client that reads traffic.

use galatea_backend::ExecutionPolicy::Blocking;
use galatea_infer::{InferenceRequest, Status};
use galatea_stdx::testing::eventually;
use galatea_traffic::TrafficLine;

use crate::testing::{ECHO, FakeBackend, LONG, echo_request, send, serve};
use crate::version::LoadedModel;

/// The lines, once they include this number of executions, because an instance is freed only after
/// its replies.
fn lines(model: &LoadedModel, executions: usize) -> Vec<TrafficLine> {
    let mut lines = Vec::new();
    let is_execution = |line: &&TrafficLine| matches!(line, TrafficLine::Execution(_));
    let are_complete = eventually(|| {
        let text = model.read_traffic_recording().unwrap();
        lines.extend(text.lines().map(|line| TrafficLine::parse(line).unwrap()));
        lines.iter().filter(is_execution).count() >= executions
    });
    assert!(are_complete, "{lines:?}");
    lines
}

#[test]
fn requests_are_recorded_with_how_they_ended() {
    let backend = FakeBackend::with_action(Blocking, |batch| match &*batch[0].request().id {
        "bad" => Err(Status::internal("as the test wants")),
        _ => Ok(()),
    });
    let server = serve(ECHO, backend, 0);
    let model = server.model("echo");
    let execute = |id: &str| {
        let sent = InferenceRequest { id: id.to_owned(), ..echo_request(&[1, 1]) };
        drop(send(&server, sent).recv_timeout(LONG).unwrap());
    };
    execute("before");
    assert_eq!(model.read_traffic_recording(), None);
    let header = model.begin_traffic_recording(7, 2).unwrap();
    let Ok(TrafficLine::Header(header)) = TrafficLine::parse(header.trim_end()) else {
        panic!("{header}")
    };
    assert_eq!((&*header.model, header.version, header.began_ms), ("echo", 1, 7));
    assert_eq!(header.processors, 2);
    assert_eq!(model.begin_traffic_recording(8, 2), None, "one client records at a time");
    execute("good");
    execute("bad");
    let lines = lines(&model, 2);
    let requests = lines.iter().filter_map(|line| match line {
        TrafficLine::Request(request) => {
            Some((&*request.status, request.executed.as_ref().map(|one| one.execution)))
        }
        _ => None,
    });
    assert_eq!(requests.collect::<Vec<_>>(), [("ok", Some(1)), ("error", Some(2))]);
    model.end_traffic_recording();
    assert_eq!(model.read_traffic_recording(), None);
}
