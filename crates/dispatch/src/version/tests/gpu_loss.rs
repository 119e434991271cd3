//! Instances on GPUs that are lost while requests wait and execute.

use std::sync::mpsc::Receiver;

use galatea_infer::{Code, InferenceResponse, Status};

use crate::testing::{
    CapturedLog, ECHO, FakeBackend, LONG, ServerSetup, TestServer, echo_request, send,
};

fn serve(groups: &str, backend: FakeBackend) -> (std::sync::Arc<TestServer>, CapturedLog) {
    let (log, lines) = CapturedLog::record();
    let text = format!("{ECHO} {groups}");
    (ServerSetup::new(text, backend).gpus(&[0, 1]).log(log).serve(), lines)
}

fn reply(inbox: &Receiver<Result<InferenceResponse, Status>>) -> Result<(), Status> {
    inbox.recv_timeout(LONG).unwrap().map(drop)
}

fn lost(gpu: u32, reason: &str) -> Status {
    Status::unavailable(format!(
        "GPU {gpu}, which executed requests to model 'echo', is lost: {reason}"
    ))
}

#[test]
// row: INST-13
fn requests_of_a_lost_gpu_go_to_the_others() {
    let (backend, entered, release) = FakeBackend::gated();
    let (server, log) = serve("instance_group { kind: KIND_GPU count: 2 }", backend);
    let model = server.model("echo");
    let first: Vec<_> = (0..4).map(|_| send(&server, echo_request(&[1, 1]))).collect();
    (0..4).for_each(|_| entered.recv_timeout(LONG).unwrap());
    let waiting: Vec<_> = (0..6).map(|_| send(&server, echo_request(&[1, 1]))).collect();
    // All four are executing, so none has left yet.
    server.lose_gpu(1, "it fell off the bus");
    server.lose_gpu(1, "again");
    assert_eq!(model.check_ready(), Ok(()));
    (0..10).for_each(|_| release.send(()).unwrap());
    assert!(first.iter().chain(&waiting).all(|inbox| reply(inbox).is_ok()));
    let errors = log.of_level(galatea_backend::LogLevel::Error);
    let expected = "'echo' version 1: GPU 1 is lost (it fell off the bus): 2 instances are on lost \
                    GPUs, 2 of them are removed";
    assert_eq!(errors, [expected]);
    let instances = model.instances();
    assert_eq!(instances.iter().map(|(_, key)| key.gpu()).collect::<Vec<_>>(), [Some(0); 2]);
    assert_eq!(server.unload_all(LONG), 0);
}

#[test]
// row: INST-13
fn without_an_instance_every_request_is_refused_and_none_waits() {
    let (backend, entered, release) = FakeBackend::gated();
    let (server, _log) = serve("instance_group { kind: KIND_GPU gpus: [ 0, 1 ] }", backend);
    let model = server.model("echo");
    let first: Vec<_> = (0..2).map(|_| send(&server, echo_request(&[1, 1]))).collect();
    (0..2).for_each(|_| entered.recv_timeout(LONG).unwrap());
    let waiting: Vec<_> = (0..3).map(|_| send(&server, echo_request(&[1, 1]))).collect();
    server.lose_gpu(0, "first");
    server.lose_gpu(1, "second");
    assert_eq!(model.check_ready(), Err(lost(1, "second")));
    (0..2).for_each(|_| release.send(()).unwrap());
    assert!(first.iter().all(|inbox| reply(inbox).is_ok()));
    for inbox in waiting.iter().chain([&send(&server, echo_request(&[1, 1]))]) {
        assert_eq!(reply(inbox), Err(lost(1, "second")));
    }
    assert_eq!(lost(1, "second").code(), Code::Unavailable);
    assert_eq!(server.unload_all(LONG), 0);
}

/// Checks that a lane looks for losses itself, because the thread that notifies the models may be
/// late.
#[test]
// row: INST-13
fn a_lane_takes_no_batch_behind_the_loss_of_its_gpu() {
    let (backend, entered, release) = FakeBackend::gated();
    let (server, log) = serve("instance_group { kind: KIND_GPU }", backend);
    let model = server.model("echo");
    let all: Vec<_> = (0..8).map(|_| send(&server, echo_request(&[1, 1]))).collect();
    (0..2).for_each(|_| entered.recv_timeout(LONG).unwrap());
    server.report_lost_gpu(1, "an illegal address");
    assert_eq!(model.instances().len(), 2, "it has not been told");
    (0..8).for_each(|_| release.send(()).unwrap());
    assert!(all.iter().all(|inbox| reply(inbox).is_ok()));
    let instances = model.instances();
    assert_eq!(instances.iter().map(|(_, key)| key.gpu()).collect::<Vec<_>>(), [Some(0)]);
    server.lose_gpu(1, "again");
    assert_eq!(log.of_level(galatea_backend::LogLevel::Error).len(), 1);
    assert_eq!(server.unload_all(LONG), 0);
}

/// Loses GPUs between the two steps of an instance change. The lost GPUs and the remaining
/// instances are identified by number.
fn check_change(before: &str, after: &str, lost_gpus: &[u32], left: &[u32], is_ready: bool) {
    let one = |gpu: &str| format!("{{ kind: KIND_GPU gpus: {gpu} }}");
    let group = |gpus: &str| {
        let groups: Vec<String> = gpus.split(' ').map(one).collect();
        format!("instance_group [ {} ]", groups.join(", "))
    };
    let backend = || FakeBackend::new(galatea_backend::ExecutionPolicy::Blocking);
    let (server, log) = serve(&group(before), backend());
    let model = server.model("echo");
    let text = format!("{ECHO} {}", group(after));
    let change = server.begin_change(&model, &text, backend(), &[0, 1]);
    lost_gpus.iter().for_each(|gpu| server.lose_gpu(*gpu, "meanwhile"));
    server.apply_change(&model, change);
    let gpus: Vec<u32> = model.instances().iter().filter_map(|(_, key)| key.gpu()).collect();
    let case = format!("{before} -> {after}, lost: {lost_gpus:?}");
    assert_eq!((&gpus[..], model.check_ready().is_ok()), (left, is_ready), "{case}");
    // The configuration does not request this GPU.
    let stays = left.iter().any(|gpu| !after.contains(&gpu.to_string()));
    let warnings = log.of_level(galatea_backend::LogLevel::Warning);
    assert_eq!(warnings.len(), usize::from(stays), "{case}: {warnings:?}");
    for _ in 0..3 {
        let expected = if is_ready { Ok(()) } else { Err(lost(left[0], "meanwhile")) };
        assert_eq!(reply(&send(&server, echo_request(&[1, 1]))), expected, "{case}");
    }
    assert_eq!(server.unload_all(LONG), 0, "{case}");
}

#[test]
// row: INST-13
fn a_loss_during_a_change_of_instances_leaves_one_that_answers() {
    // All instances that the change keeps have left.
    check_change("0 1", "1", &[1], &[0], true);
    check_change("0 1", "1", &[1, 0], &[0], false);
    check_change("0 0 1", "1", &[1], &[0], true);
    // The added instance is lost, and has not been notified yet.
    check_change("0", "1", &[1], &[0], true);
    check_change("0 1", "1 1", &[1], &[0], true);
    check_change("0", "1", &[0, 1], &[1], false);
    // Other instances are left.
    check_change("0 1", "1", &[0], &[1], true);
    check_change("0 1", "1", &[0, 1], &[1], false);
    check_change("0", "1", &[0], &[1], true);
    check_change("0 1", "0 1 1", &[1], &[0], true);
    check_change("0 1", "0 0", &[1], &[0, 0], true);
}

#[test]
fn models_elsewhere_go_on() {
    let backend = || FakeBackend::new(galatea_backend::ExecutionPolicy::Blocking);
    for groups in ["instance_group { kind: KIND_CPU }", "instance_group { gpus: 1 }"] {
        let (server, log) = serve(groups, backend());
        let model = server.model("echo");
        server.lose_gpu(0, "elsewhere");
        assert_eq!(model.check_ready(), Ok(()));
        assert_eq!(reply(&send(&server, echo_request(&[1, 1]))), Ok(()));
        assert!(log.of_level(galatea_backend::LogLevel::Error).is_empty());
    }
    let groups = "instance_group [ { kind: KIND_GPU }, { kind: KIND_CPU } ]";
    let (server, _log) = serve(groups, backend());
    let model = server.model("echo");
    server.lose_gpu(0, "both");
    server.lose_gpu(1, "both");
    assert_eq!((model.check_ready(), model.instances().len()), (Ok(()), 1));
    assert_eq!(reply(&send(&server, echo_request(&[1, 1]))), Ok(()));
}
