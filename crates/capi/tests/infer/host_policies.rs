//! Tests of inputs that have separate data for instances with a host policy.

use super::*;

fn append(request: *mut TRITONSERVER_InferenceRequest, policy: &CStr, data: &'static [i32]) {
    ok(unsafe {
        server::TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
            request,
            c"IN".as_ptr(),
            data.as_ptr().cast(),
            size_of_val(data),
            TRITONSERVER_MEMORY_CPU,
            0,
            policy.as_ptr(),
        )
    });
}

static GENERAL: [i32; 2] = [1, 2];
static FAR: [i32; 2] = [3, 4];

#[test]
fn host_policy_data_is_added_to_the_general_data() {
    let caller = Caller::holding();
    let request = caller.request();
    caller.add_input(request, c"IN", &GENERAL);
    append(request, c"far", &FAR[..1]);
    append(request, c"far", &FAR[1..]);
    append(request, c"near", &FAR);
    ok(caller.infer(request));
    let (infer, sender) = caller.held.recv().unwrap();
    let data = &infer.inputs[0].data;
    for (policy, expected) in [("cpu", [1, 0, 0, 0, 2, 0, 0, 0]), ("far", [3, 0, 0, 0, 4, 0, 0, 0])]
    {
        assert_eq!(data.for_host_policy(policy).host_bytes().unwrap()[..], expected);
    }
    let near = data.for_host_policy("near").host_bytes().unwrap().as_ptr();
    assert_eq!(near, FAR.as_ptr().cast(), "read in place");
    drop(infer);
    sender.finish_without_response();
    unsafe {
        ok(server::TRITONSERVER_InferenceRequestRemoveAllInputData(request, c"IN".as_ptr()));
    }
    ok(caller.infer(request));
    let (infer, sender) = caller.held.recv().unwrap();
    assert_eq!(infer.inputs[0].data.for_host_policy("far").len(), 0);
    drop(infer);
    sender.finish_without_response();
}

#[test]
fn host_policy_data_alone_is_refused() {
    let caller = Caller::holding();
    let request = caller.request();
    caller.add_input(request, c"IN", &[]);
    append(request, c"far", &FAR);
    ok(caller.infer(request));
    let (infer, sender) = caller.held.recv().unwrap();
    // The missing data is reported at admission.
    assert_eq!(infer.inputs[0].data.for_host_policy("far").len(), 0);
    drop(infer);
    sender.finish_without_response();
}

#[test]
fn host_policy_data_may_have_another_size() {
    let caller = Caller::holding();
    let request = caller.request();
    caller.add_input(request, c"IN", &GENERAL);
    append(request, c"far", &FAR[..1]);
    ok(caller.infer(request));
    let (infer, sender) = caller.held.recv().unwrap();
    // The model checks the size against the shape.
    assert_eq!(infer.inputs[0].data.for_host_policy("far").len(), 4);
    drop(infer);
    sender.finish_without_response();
}

#[test]
fn raw_texts_cannot_have_host_policy_data() {
    let caller = Caller::with(raw::texts());
    let request = caller.request();
    unsafe {
        ok(server::TRITONSERVER_InferenceRequestAddRawInput(request, c"IN".as_ptr()));
        let data = b"abc".as_ptr().cast();
        let append = server::TRITONSERVER_InferenceRequestAppendInputData;
        ok(append(request, c"IN".as_ptr(), data, 3, TRITONSERVER_MEMORY_CPU, 0));
    }
    append(request, c"far", &FAR);
    let text = refused(caller.infer(request));
    let why = "Raw input with data associated with a host policy setting is not currently \
               supported";
    assert_eq!(text, format!("[request id: me] {why}"));
}
