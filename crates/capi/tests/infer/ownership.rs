//! Tests of which operations threads may perform on a request while the server has it.

use super::*;

/// Ends the oldest request that the server has.
fn release(caller: &Caller) {
    let (request, sender) = caller.held.recv().unwrap();
    drop(request);
    sender.finish_without_response();
}

#[track_caller]
fn internal(error: *mut TRITONSERVER_Error, words: &str) {
    let status = unsafe { take_c_error(error) }.unwrap_err();
    assert_eq!(status.code(), Code::Internal, "{status}");
    assert!(status.message().contains(words), "{status}");
}

fn is_cancelled(request: *mut TRITONSERVER_InferenceRequest) -> bool {
    let mut cancelled = false;
    ok(unsafe { server::TRITONSERVER_InferenceRequestIsCancelled(request, &raw mut cancelled) });
    cancelled
}

#[test]
fn a_request_cannot_be_handed_over_twice() {
    let caller = Caller::holding();
    let request = caller.request();
    caller.add_input(request, c"IN", &[4, 5]);
    ok(caller.infer(request));
    internal(caller.infer(request), "[request id: me] Invalid request state transition");
    assert_eq!(caller.fake.requests.load(Ordering::Relaxed), 1);
    assert!(!is_cancelled(request));
    release(&caller);
    assert_eq!(caller.events(), [Event::Released, Event::Response { null: true, final_: true }]);
    ok(caller.infer(request));
    release(&caller);
    assert_eq!(caller.events().len(), 2);
    ok(unsafe { server::TRITONSERVER_InferenceRequestDelete(request) });
}

#[test]
fn a_refused_request_may_be_handed_over_again() {
    let caller = Caller::new();
    let request = caller.request_for(c"refusing");
    caller.add_input(request, c"IN", &[4, 5]);
    unsafe {
        for _ in 0..2 {
            assert_eq!(refused(caller.infer(request)), "nicht jetzt – später");
        }
        ok(server::TRITONSERVER_InferenceRequestDelete(request));
    }
}

#[test]
fn the_release_callback_may_hand_the_request_over_again() {
    static ROUNDS: Mutex<Option<(usize, usize)>> = Mutex::new(None);
    unsafe extern "C" fn again(
        request: *mut TRITONSERVER_InferenceRequest,
        _: u32,
        _: *mut c_void,
    ) {
        let Some((server, rounds)) = ROUNDS.lock().unwrap().take() else { return };
        if rounds > 0 {
            *ROUNDS.lock().unwrap() = Some((server, rounds - 1));
        }
        let server = core::ptr::with_exposed_provenance_mut(server);
        ok(unsafe {
            server::TRITONSERVER_ServerInferAsync(server, request, core::ptr::null_mut())
        });
    }
    let caller = Caller::holding();
    let request = caller.request();
    caller.add_input(request, c"IN", &[4, 5]);
    *ROUNDS.lock().unwrap() = Some((caller.server.expose_provenance(), 1));
    unsafe {
        ok(server::TRITONSERVER_InferenceRequestSetReleaseCallback(
            request,
            Some(again),
            core::ptr::null_mut(),
        ));
    }
    ok(caller.infer(request));
    for _ in 0..3 {
        release(&caller);
    }
    assert_eq!(caller.events().len(), 3);
    ok(unsafe { server::TRITONSERVER_InferenceRequestDelete(request) });
}

#[test]
fn a_request_that_was_never_handed_over_cannot_be_cancelled() {
    let caller = Caller::holding();
    let request = caller.request();
    caller.add_input(request, c"IN", &[4, 5]);
    let mut cancelled = false;
    unsafe {
        internal(server::TRITONSERVER_InferenceRequestCancel(request), "can neither be");
        let asked = server::TRITONSERVER_InferenceRequestIsCancelled(request, &raw mut cancelled);
        internal(asked, "can neither be");
        ok(caller.infer(request));
        assert!(!is_cancelled(request));
        ok(server::TRITONSERVER_InferenceRequestCancel(request));
        let (held, sender) = caller.held.recv().unwrap();
        assert!(held.cancel.is_cancelled());
        assert!(is_cancelled(request));
        drop(held);
        sender.finish_without_response();
        // A reused request isn't cancelled.
        ok(caller.infer(request));
        assert!(!is_cancelled(request));
        release(&caller);
        ok(server::TRITONSERVER_InferenceRequestDelete(request));
    }
}

/// Miri checks for data races.
#[test]
// row: CAN-01
fn threads_cancel_and_query_at_the_same_time() {
    let caller = Caller::holding();
    let request = caller.request();
    caller.add_input(request, c"IN", &[4, 5]);
    ok(caller.infer(request));
    let addresses = (request.expose_provenance(), caller.server.expose_provenance());
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(move || {
                let request = core::ptr::with_exposed_provenance_mut(addresses.0);
                let server = core::ptr::with_exposed_provenance_mut(addresses.1);
                for _ in 0..8 {
                    let mut id = core::ptr::null();
                    unsafe {
                        ok(server::TRITONSERVER_InferenceRequestCancel(request));
                        ok(server::TRITONSERVER_InferenceRequestId(request, &raw mut id));
                        ok(galatea_capi::server::TRITONSERVER_ServerSetExitTimeout(server, 7));
                        internal(
                            server::TRITONSERVER_ServerInferAsync(
                                server,
                                request,
                                core::ptr::null_mut(),
                            ),
                            "Invalid request state transition",
                        );
                        assert_eq!(CStr::from_ptr(id), c"me");
                    }
                    assert!(is_cancelled(request));
                }
            });
        }
    });
    release(&caller);
    ok(unsafe { server::TRITONSERVER_InferenceRequestDelete(request) });
}

#[test]
fn a_server_stops_within_the_latest_exit_timeout() {
    let (told, heard) = channel();
    let told = Mutex::new(told);
    let stop = move |timeout| {
        told.lock().unwrap().send(timeout).unwrap();
        Ok(())
    };
    let server = server(Arc::new(FakeServer::plain()), || Ok(()), stop);
    unsafe {
        ok(galatea_capi::server::TRITONSERVER_ServerStop(server));
        ok(galatea_capi::server::TRITONSERVER_ServerSetExitTimeout(server, 7));
        ok(galatea_capi::server::TRITONSERVER_ServerDelete(server));
    }
    let all: Vec<_> = heard.try_iter().collect();
    assert_eq!(all, [None, Some(Duration::from_secs(7))]);
}

#[test]
fn a_stopped_server_refuses_calls() {
    use galatea_c_objects::message::TRITONSERVER_MessageDelete;
    use galatea_capi::control::*;
    use galatea_capi::server::{TRITONSERVER_ServerDelete, TRITONSERVER_ServerStop};

    let polled = Arc::new(AtomicBool::new(false));
    let was_polled = polled.clone();
    let poll = move || {
        was_polled.store(true, Ordering::Relaxed);
        Err(Status::unavailable("the control mode is another"))
    };
    let server = server(Arc::new(FakeServer::plain()), poll, |_| Ok(()));
    let (mut live, mut ready) = (false, false);
    let (mut document, mut none) = (core::ptr::null_mut(), core::ptr::null());
    let name = c"echo".as_ptr();
    unsafe {
        ok(TRITONSERVER_ServerIsLive(server, &raw mut live));
        ok(TRITONSERVER_ServerIsReady(server, &raw mut ready));
        assert!(live && ready);
        assert!(take_c_error(TRITONSERVER_ServerPollModelRepository(server)).is_err());
        assert!(polled.swap(false, Ordering::Relaxed));
        ok(TRITONSERVER_ServerStop(server));
        for (asked, why) in [
            (TRITONSERVER_ServerIsLive(server, &raw mut live), "exiting"),
            (TRITONSERVER_ServerIsReady(server, &raw mut ready), "exiting"),
            (TRITONSERVER_ServerModelIndex(server, 0, &raw mut document), "not ready"),
            (TRITONSERVER_ServerModelIsReady(server, name, -1, &raw mut ready), "not ready"),
            (TRITONSERVER_ServerModelStatistics(server, name, -1, &raw mut document), "not ready"),
            (TRITONSERVER_ServerLoadModel(server, name), "not ready"),
            (
                TRITONSERVER_ServerLoadModelWithParameters(server, name, &raw mut none, 0),
                "not ready",
            ),
            (TRITONSERVER_ServerUnloadModel(server, name), "not ready"),
            (TRITONSERVER_ServerUnloadModelAndDependents(server, name), "not ready"),
        ] {
            let status = take_c_error(asked).unwrap_err();
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            assert_eq!(status.message(), format!("Server {why}"));
        }
        ok(TRITONSERVER_ServerPollModelRepository(server));
        assert!(!polled.load(Ordering::Relaxed), "a stopped server loads nothing");
        ok(TRITONSERVER_ServerMetadata(server, &raw mut document));
        ok(TRITONSERVER_MessageDelete(document));
        ok(TRITONSERVER_ServerStop(server));
        ok(TRITONSERVER_ServerDelete(server));
    }
}

#[test]
fn error_codes_are_tritons() {
    use galatea_capi::control::TRITONSERVER_ServerModelConfig;

    let caller = Caller::new();
    let request = caller.request();
    let long = CString::new("a".repeat(129)).unwrap();
    let mut config = core::ptr::null_mut();
    unsafe {
        let set = server::TRITONSERVER_InferenceRequestSetCorrelationIdString;
        assert_eq!(
            take_c_error(set(request, long.as_ptr())).unwrap_err().code(),
            Code::Unsupported
        );
        ok(set(request, long.as_ptr().add(1)));
        let asked =
            TRITONSERVER_ServerModelConfig(caller.server, c"echo".as_ptr(), -1, 2, &raw mut config);
        assert_eq!(take_c_error(asked).unwrap_err().code(), Code::InvalidArgument);
        let asked =
            TRITONSERVER_ServerModelConfig(caller.server, c"echo".as_ptr(), 9, 1, &raw mut config);
        assert_eq!(take_c_error(asked).unwrap_err().code(), Code::Unavailable);
    }
}
