//! The crates that each crate may use. These rules keep the floors apart.
//!
//! The task and a test of this crate check them against the workspace, as cargo resolves it, and
//! against the sources.

mod graph;
mod rules;
mod sources;

pub(crate) use graph::Graph;

/// The ground, and the vocabulary that all floors above it may use.
const GROUND: [&str; 4] = ["tensor", "config", "infer", "backend"];

/// The other crates that each crate may use, under the names of their folders. In addition, every
/// crate that isn't [`PURE`] may use `stdx`.
///
/// Adding an arrow is a decision of its own: ARCHITECTURE.md says which arrows must be absent, and
/// why.
const ALLOWED: &[(&str, &[&str])] = &[
    ("stdx", &[]),
    ("abi", &[]),
    ("allocator", &[]),
    ("numa", &[]),
    ("calendar", &[]),
    ("devices", &["tensor"]),
    ("forest", &[]),
    ("text", &[]),
    ("measure", &[]),
    ("tensor", &[]),
    ("protocol", &[]),
    ("config-message", &["protocol", "gate"]),
    ("config", &["tensor", "protocol", "config-message", "gate"]),
    ("pbtxt", &["protocol", "config-message", "config"]),
    ("infer", &["tensor", "gate"]),
    ("control", &["tensor", "infer", "gate"]),
    ("backend", &["infer", "config"]),
    ("policy", &[]),
    ("gate", &[]),
    ("explain", &["infer"]),
    ("verdict", &["explain"]),
    ("codec", &["tensor", "infer", "control", "protocol", "gate"]),
    ("codec-http", &["codec", "tensor", "infer", "control", "protocol", "gate"]),
    ("codec-grpc", &["codec", "tensor", "infer", "control", "protocol", "gate"]),
    ("openai", &["tensor", "infer", "protocol", "calendar"]),
    (
        "dispatch",
        &[
            "tensor", "config", "infer", "control", "backend", "policy", "numa", "measure", "gate",
            "explain", "traffic",
        ],
    ),
    ("shm", &["devices", "tensor", "infer", "control"]),
    (
        "engine",
        &[
            "tensor",
            "config",
            "infer",
            "control",
            "explain",
            "backend",
            "policy",
            "repository",
            "dispatch",
            "gate",
        ],
    ),
    ("repository", &["config", "infer", "backend", "policy", "gate"]),
    ("outbound", &[]),
    ("bucket", &["outbound", "repository"]),
    ("tenants", &["gate", "policy"]),
    ("telemetry", &["infer", "control", "gate", "devices", "calendar"]),
    ("trace", &["outbound", "tensor", "infer", "control", "gate"]),
    ("backend-ensemble", &["tensor", "config", "infer", "backend", "policy"]),
    ("backend-examples", &GROUND),
    ("runtime", &["devices", "tensor", "config", "infer", "backend", "gate"]),
    ("backend-text", &["tensor", "config", "infer", "backend", "text"]),
    ("backend-fil", &["tensor", "config", "infer", "backend", "forest", "runtime"]),
    (
        "backend-onnxruntime",
        &["devices", "tensor", "config", "infer", "backend", "runtime", "gate"],
    ),
    ("backend-openvino", &["devices", "tensor", "config", "infer", "backend", "runtime", "gate"]),
    ("backend-pytorch", &["devices", "tensor", "config", "infer", "backend", "runtime", "gate"]),
    ("backend-tensorflow", &["devices", "tensor", "config", "infer", "backend", "runtime", "gate"]),
    (
        "backend-python",
        &["devices", "tensor", "config", "infer", "control", "backend", "policy", "shm"],
    ),
    ("c-objects", &["abi", "tensor", "infer"]),
    ("backend-plugin", &["devices", "abi", "c-objects", "tensor", "config", "infer", "backend"]),
    ("capi", &["devices", "abi", "c-objects", "tensor", "infer", "control", "codec", "gate"]),
    ("door", &[]),
    ("dashboard", &["devices", "infer", "control", "gate"]),
    (
        "http",
        &[
            "tensor",
            "infer",
            "control",
            "explain",
            "codec",
            "codec-http",
            "dashboard",
            "door",
            "gate",
            "measure",
            "openai",
        ],
    ),
    (
        "grpc",
        &[
            "tensor",
            "infer",
            "control",
            "explain",
            "codec",
            "codec-grpc",
            "protocol",
            "door",
            "gate",
        ],
    ),
    (
        "galatea",
        &[
            "allocator",
            "config",
            "devices",
            "infer",
            "control",
            "verdict",
            "backend",
            "policy",
            "gate",
            "codec",
            "codec-http",
            "dispatch",
            "door",
            "engine",
            "forest",
            "load",
            "outbound",
            "pbtxt",
            "repository",
            "bucket",
            "shm",
            "telemetry",
            "tenants",
            "tools",
            "trace",
            "backend-ensemble",
            "backend-examples",
            "backend-fil",
            "backend-onnxruntime",
            "backend-openvino",
            "backend-plugin",
            "backend-python",
            "backend-pytorch",
            "backend-tensorflow",
            "backend-text",
            "runtime",
            "c-objects",
            "capi",
            "door",
            "http",
            "grpc",
        ],
    ),
    ("libtritonserver", &["infer", "capi", "galatea"]),
    ("python", &["c-objects", "tensor", "infer", "control", "capi", "galatea"]),
    // An example outside the floors, which has only what any agent's author has.
    ("checksum-agent", &["abi"]),
    // For tests, examples and fuzz targets only; no program uses it.
    ("fakes", &["tensor", "infer", "control", "protocol"]),
    // A replacement for a crate of a library; none of our crates uses it.
    ("crc-fast", &[]),
    ("load", &["tensor", "protocol", "measure"]),
    ("traffic", &[]),
    ("simulate", &["policy", "traffic"]),
    ("tools", &["config", "load", "pbtxt", "policy", "simulate", "traffic"]),
    ("sim", &["policy", "simulate"]),
    ("xtask", &[]),
];

/// The maximum number of our other crates that a change in a crate may recompile.
const COMPILED_AGAIN_MAX: usize = 4;

/// The crates that more crates than this use, directly or indirectly: the ground, the vocabulary,
/// and code that several doors or drivers share. Adding a name here is a decision of its own, like
/// adding an arrow.
const WIDELY_USED: &[&str] = &[
    "abi",
    "backend",
    "c-objects",
    "calendar",
    "codec",
    "config",
    "config-message",
    "control",
    "devices",
    "door",
    "explain",
    "gate",
    "infer",
    "measure",
    "numa",
    "outbound",
    "policy",
    "protocol",
    "repository",
    "runtime",
    "simulate",
    "stdx",
    "tensor",
    "traffic",
];

/// The crates that make decisions. They use no thread, socket, clock, file or randomness, either
/// directly or through a library.
const PURE: [&str; 7] =
    ["policy", "gate", "codec", "codec-http", "codec-grpc", "openai", "verdict"];

const IMPURE_LIBRARIES: [&str; 16] = [
    "async-std",
    "crossbeam",
    "getrandom",
    "h2",
    "hyper",
    "libloading",
    "mio",
    "parking_lot",
    "rand",
    "rayon",
    "rustix",
    "smol",
    "socket2",
    "time",
    "tokio",
    "tonic",
];

/// The only crates that may contain unsafe code; each block states its reason.
const UNSAFE_ALLOWED: &[&str] = &[
    "allocator",
    "backend-onnxruntime",
    "backend-openvino",
    "backend-plugin",
    "backend-pytorch",
    "backend-tensorflow",
    "c-objects",
    "capi",
    "checksum-agent",
    "devices",
    "libtritonserver",
    "numa",
    "python",
    "shm",
];

/// The only crates that may keep state in statics: C functions that take none of our objects, such
/// as the one that writes to the log, have no other place for it, and thread state belongs to the
/// thread, as does PyTorch's number of threads. Signal handlers and memory allocations don't take an
/// object either.
const STATICS_ALLOWED: [&str; 6] =
    ["allocator", "backend-pytorch", "c-objects", "capi", "shm", "stdx"];

/// The only crates that read the environment; all others receive what they need as arguments.
const ENVIRONMENT_ALLOWED: [&str; 2] = ["galatea", "xtask"];

/// The crates that serve callers from the network, whose passes come only from the gate.
const NETWORK_DOORS: [&str; 3] = ["door", "grpc", "http"];

/// The words that the deciding crates must not contain.
const IMPURE_WORDS: [&str; 10] = [
    "std::fs",
    "std::net",
    "std::thread",
    "std::env",
    "std::sync::Mutex",
    "Instant::now",
    "SystemTime",
    "HashMap",
    "HashSet",
    "RandomState",
];

/// Every broken rule, one per line.
pub(crate) fn violations() -> Result<Vec<String>, String> {
    let graph = Graph::of_workspace()?;
    let mut found = rules::check(&graph);
    found.extend(rules::check_users(&graph));
    for package in graph.members() {
        found.extend(sources::check(package)?);
    }
    Ok(found)
}

/// Runs the task.
pub(crate) fn run() -> Result<(), String> {
    let found = violations()?;
    if found.is_empty() {
        println!("every arrow points the right way");
        return Ok(());
    }
    Err(format!("{} arrows point the wrong way:\n  {}", found.len(), found.join("\n  ")))
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_workspace_keeps_the_rules() {
        assert_eq!(super::violations().unwrap(), Vec::<String>::new());
    }
}
