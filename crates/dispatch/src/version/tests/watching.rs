//! Tests of the records for watchers, and of their times.

use std::time::Instant;

use galatea_backend::ExecutionPolicy::{Blocking, Inline};

use crate::testing::{ECHO, FakeBackend, LONG, echo_request, send, serve};

#[test]
fn nothing_is_recorded_unless_it_is_read() {
    for policy in [Inline, Blocking] {
        let server = serve(ECHO, FakeBackend::new(policy), 0);
        let model = server.model("echo");
        let execute =
            || drop(send(&server, echo_request(&[1, 1])).recv_timeout(LONG).unwrap().unwrap());
        execute();
        assert!(!model.dispatcher.is_recording());
        let start = Instant::now();
        let (version, recorded) = model.take_recorded_executions(start, 9);
        assert!(version.instances.iter().all(|instance| instance.ended.is_empty()));
        assert_eq!(recorded, version.instances.len());
        execute();
        assert!(model.dispatcher.is_recording());
        model.stop_recording_executions();
        assert!(!model.dispatcher.is_recording());
        execute();
        let (version, recorded) = model.take_recorded_executions(start, 0);
        assert!(version.instances.iter().all(|instance| instance.ended.is_empty()));
        assert_eq!(recorded, 0);
    }
}
