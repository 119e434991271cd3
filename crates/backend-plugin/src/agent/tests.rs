use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use galatea_abi::{
    TRITONREPOAGENT_ARTIFACT_FILESYSTEM, TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM,
    TRITONREPOAGENT_ActionType, TRITONREPOAGENT_Agent, TRITONREPOAGENT_AgentModel,
    TRITONSERVER_Error,
};
use galatea_backend::ModelRepositoryAgents;
use galatea_c_objects::error::into_c;
use galatea_c_objects::handle;
use galatea_infer::Code;
use galatea_stdx::Lock;

use super::library::AgentEntryPoints;
use super::*;
use crate::testing::Folder;

/// The calls to agents, in order. All tests in a process share this journal, so each test filters
/// its lines by their first word.
static JOURNAL: Lock<Vec<String>> = Lock::new(Vec::new());

/// The journal lines of one test, without the test's name.
fn journal(test: &str) -> Vec<String> {
    let own = |line: &String| line.strip_prefix(&format!("{test} ")).map(str::to_owned);
    JOURNAL.lock("read the journal").iter().filter_map(own).collect()
}

/// The value of a model parameter. `test` and `name` occur in every line.
fn parameter(model: *mut TRITONREPOAGENT_AgentModel, name: &str) -> Option<String> {
    // SAFETY: the agents below pass the pointer that they receive.
    let model = unsafe { handle::borrow::<AgentModel>(model, "model") }.unwrap();
    let found = model.parameters.iter().find(|(key, _)| key.to_str() == Ok(name));
    found.map(|(_, value)| value.to_string_lossy().into_owned())
}

fn record(model: *mut TRITONREPOAGENT_AgentModel, what: &str) -> *mut TRITONSERVER_Error {
    let known = |name| parameter(model, name).unwrap_or_default();
    JOURNAL.lock("write the journal").push(format!("{} {} {what}", known("test"), known("name")));
    if known("fails") == what {
        return into_c(Status::unavailable(format!("no {what}")));
    }
    core::ptr::null_mut()
}

extern "C" fn begin(
    _: *mut TRITONREPOAGENT_Agent,
    model: *mut TRITONREPOAGENT_AgentModel,
) -> *mut TRITONSERVER_Error {
    record(model, "begin")
}

extern "C" fn end(
    _: *mut TRITONREPOAGENT_Agent,
    model: *mut TRITONREPOAGENT_AgentModel,
) -> *mut TRITONSERVER_Error {
    record(model, "end")
}

extern "C" fn act(
    _: *mut TRITONREPOAGENT_Agent,
    model: *mut TRITONREPOAGENT_AgentModel,
    action: TRITONREPOAGENT_ActionType,
) -> *mut TRITONSERVER_Error {
    let names = ["load", "complete", "fail", "unload", "gone"];
    record(model, names[usize::try_from(action.0).unwrap()])
}

const ENTRY_POINTS: AgentEntryPoints = AgentEntryPoints {
    initialize: None,
    finalize: None,
    model_initialize: Some(begin),
    model_finalize: Some(end),
    action: act,
};

fn directories(folder: &Folder) -> Arc<AgentDirectories> {
    Arc::new(AgentDirectories::new(folder.path()))
}

/// Creates a chain of agents with these names, one of which may fail.
fn chain(test: &str, names: &[&str], fails: Option<(&str, &str)>) -> Result<AgentChain, Status> {
    let folder = Folder::new();
    let slot = Arc::new(AgentSlot::new("a", Path::new("a")));
    let mut sessions = Vec::new();
    for name in names {
        let agent = AgentRef::acquire_with(slot.clone(), || Ok((ENTRY_POINTS, None)))?;
        let fails = fails.filter(|(failing, _)| failing == name).map_or("", |(_, call)| call);
        let parameters = [("test", test), ("name", name), ("fails", fails)];
        let parameters = parameters.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let model = AgentModel::new(
            Path::new("/m"),
            String::new(),
            &parameters.into(),
            directories(&folder),
        );
        let session = AgentSession::begin(agent, model)?;
        session.load()?;
        sessions.push(session);
    }
    Ok(AgentChain::new(sessions, PathBuf::from("/m")))
}

#[test]
fn agents_follow_a_model_that_loads() {
    let chain = chain("life", &["a", "b"], None).unwrap();
    chain.loaded();
    chain.loaded();
    chain.load_failed();
    chain.unloading();
    chain.unloading();
    chain.loaded();
    drop(chain);
    let expected = [
        "a begin",
        "a load",
        "b begin",
        "b load",
        "b complete",
        "a complete",
        "a unload",
        "b unload",
        "b gone",
        "a gone",
        "a end",
        "b end",
    ];
    assert_eq!(journal("life"), expected);
}

#[test]
fn agents_follow_a_model_that_fails() {
    let failed = chain("fails", &["a", "b"], None).unwrap();
    failed.load_failed();
    failed.unloading();
    failed.loaded();
    drop(failed);
    let begun = ["a begin", "a load", "b begin", "b load"];
    assert_eq!(journal("fails")[..4], begun);
    assert_eq!(journal("fails")[4..], ["b fail", "a fail", "a end", "b end"]);
    // The chain is dropped before the load is attempted, so each agent is notified in turn.
    drop(chain("given-up", &["a", "b"], None).unwrap());
    assert_eq!(journal("given-up")[4..], ["a fail", "a end", "b fail", "b end"]);
}

#[test]
fn an_agent_that_refuses_ends_the_load() {
    let refused = |test: &str, name, call| {
        let status = chain(test, &["a", "b", "c"], Some((name, call))).err().unwrap();
        assert_eq!((status.code(), status.message()), (Code::Unavailable, &*format!("no {call}")));
        journal(test)
    };
    let expected = ["a begin", "a load", "b begin", "b load", "b fail", "b end", "a fail", "a end"];
    assert_eq!(refused("load-b", "b", "load"), expected);
    let expected = ["a begin", "a load", "b begin", "b end", "a fail", "a end"];
    assert_eq!(refused("begin-b", "b", "begin"), expected);
    assert_eq!(refused("begin-a", "a", "begin"), ["a begin", "a end"]);
}

#[test]
fn a_later_error_does_not_stop_notifications() {
    for call in ["complete", "unload", "gone", "end"] {
        let test = format!("later-{call}");
        let chain = chain(&test, &["a", "b"], Some(("b", call))).unwrap();
        chain.loaded();
        drop(chain);
        assert_eq!(journal(&test).len(), 12, "{call}");
    }
}

#[test]
fn an_agent_lives_while_a_model_uses_it() {
    static ALIVE: AtomicU64 = AtomicU64::new(0);
    extern "C" fn initialize(_: *mut TRITONREPOAGENT_Agent) -> *mut TRITONSERVER_Error {
        ALIVE.fetch_add(1, Ordering::Relaxed);
        core::ptr::null_mut()
    }
    extern "C" fn finalize(_: *mut TRITONREPOAGENT_Agent) -> *mut TRITONSERVER_Error {
        ALIVE.fetch_add(100, Ordering::Relaxed);
        core::ptr::null_mut()
    }
    let entry_points =
        AgentEntryPoints { initialize: Some(initialize), finalize: Some(finalize), ..ENTRY_POINTS };
    let slot = Arc::new(AgentSlot::new("a", Path::new("a")));
    let agent = || AgentRef::acquire_with(slot.clone(), || Ok((entry_points, None))).unwrap();
    let (one, two) = (agent(), agent());
    assert_eq!(one.address.0, two.address.0);
    drop(one);
    assert!(slot.is_used());
    assert_eq!(ALIVE.load(Ordering::Relaxed), 1);
    drop(two);
    assert!(!slot.is_used());
    assert_eq!(ALIVE.load(Ordering::Relaxed), 101);
    drop(agent());
    assert_eq!(ALIVE.load(Ordering::Relaxed), 202);
}

#[test]
fn a_model_moves_only_while_it_is_loaded() {
    let folder = Folder::new();
    let model =
        AgentModel::new(Path::new("/m"), String::new(), &BTreeMap::new(), directories(&folder));
    let text = |location: *const core::ffi::c_char| {
        // SAFETY: the string belongs to `model`.
        unsafe { CStr::from_ptr(location) }.to_str().unwrap().to_owned()
    };
    let refused = |kind, location| model.move_to(kind, location).unwrap_err().code();
    let here = TRITONREPOAGENT_ARTIFACT_FILESYSTEM;
    assert_eq!(refused(here, c"/n"), Code::InvalidArgument, "not begun");
    model.set_last_action(session::AgentAction::Load);
    assert_eq!(refused(TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM, c"s3://x"), Code::Unsupported);
    assert_eq!(refused(here, c""), Code::InvalidArgument);
    let before = model.location().unwrap();
    model.move_to(here, c"/n").unwrap();
    assert_eq!(text(model.location().unwrap()), "/n");
    assert_eq!(text(before), "/m", "what C may still read");
    model.move_to(TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM, c"/mounted").unwrap();
    assert_eq!(text(model.location().unwrap()), "/mounted");
    model.set_last_action(session::AgentAction::LoadComplete);
    assert_eq!(refused(here, c"/o"), Code::InvalidArgument, "too late");
}

#[test]
fn a_directory_belongs_to_the_agent_until_its_release() {
    let folder = Folder::new();
    let model =
        || AgentModel::new(Path::new("/m"), String::new(), &BTreeMap::new(), directories(&folder));
    let here = TRITONREPOAGENT_ARTIFACT_FILESYSTEM;
    let first = model();
    assert_eq!(first.release().unwrap_err().code(), Code::Unavailable);
    let place = first.acquire(here).unwrap();
    assert_eq!(first.acquire(here).unwrap(), place, "there is one");
    let second = model();
    assert_ne!(second.acquire(here).unwrap(), place, "a name that is taken is left alone");
    // SAFETY: the string belongs to `first`.
    let path = session::path_of(unsafe { CStr::from_ptr(place) });
    fs::write(path.join("file"), "").unwrap();
    first.release().unwrap();
    assert!(!path.exists());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    // A directory that the agent doesn't release is removed together with the model.
    let slot = Arc::new(AgentSlot::new("a", Path::new("a")));
    let agent = AgentRef::acquire_with(slot, || Ok((ENTRY_POINTS, None))).unwrap();
    drop(AgentSession::begin(agent, second).unwrap());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn names_do_not_lead_out_of_the_directory() {
    let folder = Folder::new();
    folder.file("agents/a/libtritonrepoagent_a.so");
    folder.file("b/libtritonrepoagent_b.so");
    folder.file("agents/libtritonrepoagent_..so");
    let directory = folder.path().join("agents");
    assert_eq!(find(&directory, "a"), Ok(directory.join("a/libtritonrepoagent_a.so")));
    for name in ["../b", "..", ".", "", "/b", "a/../a", "a/", "a\0"] {
        let status = find(&directory, name).unwrap_err();
        assert!(status.message().contains("must not lead to another directory"), "{status}");
    }
    let status = find(&directory, "b").unwrap_err();
    assert!(status.message().starts_with("unable to find 'libtritonrepoagent_b.so'"), "{status}");
}
