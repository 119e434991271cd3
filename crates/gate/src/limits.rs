//! Limits on the sizes and counts of what callers send, the same at every door.
//!
//! They are checked before memory is collected. Where Triton has a limit, it is the default
//! here; the others are far above what clients and models use, and keep the memory for a
//! request within a small multiple of its bytes.

use std::time::Duration;

/// The limits that flags change.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest body, and the longest tensor decoded from a body, in bytes. It is also
    /// the longest call over gRPC that loads a model.
    pub input_bytes_max: u64,
}

impl Limits {
    /// The default of [`Limits::input_bytes_max`]: 64 MiB, as in Triton.
    pub const DEFAULT_INPUT_BYTES_MAX: u64 = 1 << 26;
    /// The maximum nesting depth of arrays and objects in a JSON text, as in Triton.
    pub const JSON_DEPTH_MAX: usize = 100;
    /// The maximum number of connections to the metrics endpoint, which no other limit
    /// includes: a few scrapers hold one each.
    pub const METRICS_CONNECTIONS_MAX: usize = 128;
    /// The maximum number of chunks of a chunked body, as in Triton.
    pub const CHUNKS_MAX: u32 = 65_536;
    /// The maximum number of inputs, and of requested outputs, of a request.
    ///
    /// Triton has no such limit. This one is far above any model's interface and
    /// keeps a small body from naming millions of tensors.
    pub const TENSORS_MAX: usize = 4096;
    /// The time that a client may take for the handshake of TLS.
    ///
    /// It is two round trips, so this is long even for a client at the other end of a
    /// satellite link. Triton's gRPC door waits 120 s.
    pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(20);
    /// The time that a client may take for the handshake of HTTP/2, which is gRPC's, as in Triton.
    pub const HTTP2_HANDSHAKE_TIME_MAX: Duration = Duration::from_mins(2);
    /// The time that a gRPC client may take until it begins its first call.
    ///
    /// Clients connect long before they call, so this is generous. Without it a connection
    /// that is never used would keep its place for ever.
    pub const FIRST_CALL_TIME_MAX: Duration = Duration::from_mins(10);
    /// The time that a gRPC client that is told to begin no more calls may take to acknowledge
    /// that. The acknowledgement takes one round trip.
    pub const GOAWAY_TIME_MAX: Duration = Duration::from_secs(5);
    /// The time for which an HTTP client may stop sending the body of a refused request before the
    /// response is sent.
    ///
    /// A client that is still sending would find the connection closed, and not see the
    /// response. One that waits for an answer sends nothing more.
    pub const REFUSED_BODY_SILENCE_MAX: Duration = Duration::from_secs(1);
    /// The time for which the body of a refused request is read in all, while its client sends.
    pub const REFUSED_BODY_TIME_MAX: Duration = Duration::from_secs(30);
    /// The maximum number of handshakes of TLS in progress at one door; beyond it the oldest
    /// is given up. Each holds some 30 KiB, so all of them hold 30 MiB.
    pub const HANDSHAKES_MAX: usize = 1024;
    /// The maximum number of dimensions of a tensor.
    ///
    /// A dimension takes one byte of a gRPC message and eight in memory. No framework has
    /// more than 64 dimensions.
    pub const DIMS_MAX: usize = 256;
    /// The maximum number of parameters of a request, those of its tensors included.
    ///
    /// Three for each tensor of the largest request fit.
    pub const PARAMETERS_MAX: usize = 65_536;
    /// The maximum length of the name of a tensor or parameter, in bytes.
    ///
    /// Names are compared, and repeated in messages. Exporters make names of hundreds of
    /// characters.
    pub const NAME_BYTES_MAX: usize = 4096;
    /// The maximum number of regions of shared memory that clients register.
    ///
    /// Each is a mapping, of which Linux allows a process 65,530. Clients use one for each
    /// tensor, or for each of their own requests in progress.
    pub const REGIONS_MAX: usize = 16_384;
    /// The maximum length of a model's name, in bytes: the longest name of a directory on
    /// Linux.
    pub const MODEL_NAME_BYTES_MAX: usize = 255;
    /// The maximum number of models that failed to load and are remembered beside those of
    /// the repositories. Clients unload them.
    pub const FAILED_MODELS_MAX: usize = 1000;
    /// The maximum number of bytes of a call that changes settings: some thousand times what
    /// all settings take. Lists in it are kept as a whole.
    pub const SETTINGS_BYTES_MAX: u64 = 1 << 20;
    /// The maximum number of models with trace settings of their own: far more than one
    /// server loads. They stay when their models are unloaded.
    pub const TRACED_MODELS_MAX: usize = 4096;
    /// The maximum number of bytes of traces that are being recorded or wait for the thread
    /// that writes them. Tensors of a traced request are copied, so this is a few large ones;
    /// further traces are dropped.
    pub const TRACE_BYTES_MAX: usize = 64 << 20;
    /// The maximum number of traces that wait for the thread that writes them.
    pub const TRACES_QUEUED_MAX: usize = 16_384;
    /// The maximum number of bytes of traces that wait in memory for the file of all of them,
    /// in which they are written earlier beyond it. Triton keeps them all until the end.
    pub const TRACE_TEXT_BYTES_MAX: usize = 16 << 20;
    /// The maximum number of elements of an output, or of one batch element of it, that is
    /// turned into classes, as in Triton.
    pub const CLASSIFIED_ELEMENTS_MAX: usize = 1_000_000;
    /// The maximum size of the classes of one output, in bytes. A value can have three
    /// hundred digits, and a label any length.
    pub const CLASS_BYTES_MAX: usize = 256 << 20;
    /// The maximum length of a correlation ID that is a string, as in Triton, in bytes.
    pub const CORRELATION_ID_BYTES_MAX: usize = 128;
    /// The maximum length of an error's text, in bytes. A longer text is cut.
    ///
    /// Texts repeat what a client sent. A gRPC status is cut further, see
    /// [`Limits::GRPC_STATUS_BYTES_MAX`].
    pub const ERROR_BYTES_MAX: usize = 64 << 10;
    /// The maximum length of the text of a gRPC status as it is sent, in bytes.
    ///
    /// It is sent as a header. Clients accept eight kilobytes of headers, and report a protocol
    /// error in place of the status if there are more.
    pub const GRPC_STATUS_BYTES_MAX: usize = 4 << 10;
    /// The maximum length of the message of a log line before it is escaped, in bytes. A
    /// longer message is cut.
    pub const LOG_MESSAGE_BYTES_MAX: usize = 64 << 10;
    /// The maximum number of errors that are reported of one configuration.
    pub const DIAGNOSTICS_MAX: usize = 100;
    /// The maximum length of each text of such an error, in bytes.
    pub const DIAGNOSTIC_BYTES_MAX: usize = 2 << 10;
    /// The maximum length of a configuration file, in bytes.
    pub const CONFIG_TEXT_BYTES_MAX: usize = 16 << 20;
    /// The maximum length of a configuration in JSON, in bytes: those come from clients.
    pub const CONFIG_JSON_BYTES_MAX: usize = 4 << 20;
    /// The maximum number of objects in a configuration in JSON: inputs, instance groups,
    /// steps of an ensemble. An empty one takes three bytes of JSON and hundreds in memory.
    pub const CONFIG_MESSAGES_MAX: usize = 1 << 16;
    /// The maximum number of executions of the samples in `model_warmup`, for each instance.
    ///
    /// Samples warm up a backend within tens of executions.
    pub const WARMUP_EXECUTIONS_MAX: u32 = 1 << 16;
    /// The maximum size of a tensor that a configuration describes, for a warmup sample or
    /// an initial state, and of all tensors of the samples together, in bytes. No request
    /// over gRPC can be longer.
    pub const CONFIG_TENSOR_BYTES_MAX: u64 = 1 << 31;
    /// The maximum size of a file of strings for such a tensor, in bytes.
    pub const STRING_FILE_BYTES_MAX: u64 = 1 << 26;
    /// The maximum number of calls to load models that a door executes at a time, and the
    /// same for unloads. Further calls wait.
    ///
    /// Each takes a thread that waits. This is far above the number of threads that load.
    pub const REPOSITORY_CALLS_MAX: usize = 64;
    /// The maximum number of repository indexes that a door makes at a time.
    pub const REPOSITORY_INDEXES_MAX: usize = 8;
    /// The number of bytes of a generate request's events that may wait until its client reads
    /// before its model pauses.
    ///
    /// Beside them the system has some in the socket's buffer. Tokens take a hundred bytes.
    pub const EVENT_STREAM_BYTES_MAX: usize = 4 << 20;
    /// The same as a number of events.
    pub const EVENT_STREAM_EVENTS_MAX: usize = 4096;
    /// The number of bytes of such events that may wait at all, for models that don't pause. The
    /// connection is closed by the event that comes then.
    pub const EVENT_STREAM_BYTES_LOST: usize = 256 << 20;
    /// The maximum number of files that come with a request to load a model.
    pub const LOAD_FILES_MAX: usize = 4096;
    /// The maximum number of directories on the path of such a file. Each is created.
    pub const LOAD_FILE_DEPTH_MAX: usize = 16;
    /// The maximum number of objects in a model repository in a bucket.
    ///
    /// Each takes some 300 bytes while the repository is listed, so all of them take 60 MB. More
    /// is a bucket with other things in it: the repository's path needs a folder.
    pub const BUCKET_OBJECTS_MAX: usize = 200_000;
    /// The maximum number of bytes of a repository in a bucket that are copied before a thread
    /// waits for them.
    ///
    /// They are on the disk for nothing if the models are not loaded after all. With more bytes
    /// the network is the limit, not the number of answers that are waited for.
    pub const BUCKET_AHEAD_BYTES_MAX: u64 = 256 << 20;
    /// The maximum length of an object's path in the directory of a model, in bytes, as in S3.
    pub const BUCKET_PATH_BYTES_MAX: usize = 1024;
    /// The maximum number of directories on that path. Each is created.
    pub const BUCKET_PATH_DEPTH_MAX: usize = 32;
    /// The maximum number of bytes of a model in a bucket: a tebibyte, which no machine's memory
    /// holds. That the disk has room is checked beside it.
    pub const BUCKET_MODEL_BYTES_MAX: u64 = 1 << 40;
    /// The maximum number of clients that watch the server at a time: pages of the dashboard that
    /// are open. People look at it, so that tens are many.
    pub const WATCHERS_MAX: usize = 16;
    /// The maximum number of events that wait for a watcher that reads slowly; further ones are
    /// lost to it. There are two in a second.
    pub const WATCHER_EVENTS_MAX: usize = 4;
    /// The maximum number of model versions that watchers are shown: more than a page shows well.
    pub const WATCHED_VERSIONS_MAX: usize = 256;
    /// The maximum number of instances whose executions are recorded for watchers. Each takes
    /// 64 KiB while there are watchers.
    pub const WATCHED_INSTANCES_MAX: usize = 256;
    /// The maximum number of executions of an instance that are kept until watchers are told of
    /// them: those of a second.
    pub const WATCHED_EXECUTIONS_MAX: usize = 1024;
    /// The maximum number of model versions whose traffic is recorded at a time, each for one
    /// client. Each takes up to 8 MiB beside what waits in its queue.
    pub const TRAFFIC_RECORDINGS_MAX: usize = 8;
    /// The maximum number of requests, and the same of executions, that are kept for the client
    /// that records them, and of requests that wait and are to be recorded. They are sent ten
    /// times a second, so this is 300,000 requests a second; further ones are counted as lost.
    pub const TRAFFIC_REQUESTS_MAX: usize = 32_768;
    /// The maximum number of variable dimensions of a request that are recorded.
    pub const TRAFFIC_DIMS_MAX: usize = 16;
    /// The maximum number of explained requests of a model's sequences whose waits are told
    /// apart at a time. Each of them waits for something of its own, so that each step of the
    /// scheduler looks at all of them; of further ones only the sum is known.
    pub const EXPLAINED_IN_SEQUENCES_MAX: usize = 64;
}

impl Default for Limits {
    fn default() -> Self {
        Self { input_bytes_max: Self::DEFAULT_INPUT_BYTES_MAX }
    }
}
