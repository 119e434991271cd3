//! The environment that all sessions share.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use galatea_backend::LogLevel;
use galatea_infer::Status;
use galatea_runtime::OnOff;
use galatea_stdx::{Guard, Lock};
use ort_sys::{OrtEnv, OrtLoggingFunction, OrtLoggingLevel, OrtMemoryInfo, OrtThreadingOptions};

use super::error::{OrtError, text};
use super::handle::OrtHandle;
use super::library::OrtLibrary;
use super::table::ApiTable;

/// Receives the library's log messages for the server's log.
pub type LogFunction = Arc<dyn Fn(LogLevel, &str) + Send + Sync>;

/// The sizes of the thread pools that all sessions share. 0 leaves the size to the library.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct GlobalThreads {
    /// Threads that execute a single operator together.
    pub(crate) intra_op: c_int,
    /// Threads that execute different operators concurrently.
    pub(crate) inter_op: c_int,
    /// Makes idle threads spin.
    pub(crate) spinning: OnOff,
}

/// The library's environment. A process has only one: the log function and the threads from the
/// first call remain in effect.
///
/// The environment is never released. The library counts its users and destroys it with the last
/// release, but can't create another one concurrently. In tests, this failed when two threads did
/// it.
pub(crate) struct OrtEnvironment {
    memory: OrtHandle<OrtMemoryInfo>,
    raw: NonNull<OrtEnv>,
    library: Arc<OrtLibrary>,
    creation: Lock<()>,
}

// SAFETY: the library documents that any thread may use its environment and its memory
// descriptions; nothing here changes after construction.
unsafe impl Send for OrtEnvironment {}
// SAFETY: as above.
unsafe impl Sync for OrtEnvironment {}

impl OrtEnvironment {
    /// Creates an environment that logs warnings and errors to `log`.
    pub(crate) fn new(
        library: Arc<OrtLibrary>,
        log: LogFunction,
        threads: Option<GlobalThreads>,
    ) -> Result<Arc<Self>, Status> {
        let api = library.api();
        let raw = create(api, log, threads)?;
        // SAFETY: the constructor stores a memory description, which the given function releases.
        let memory = unsafe {
            OrtHandle::create(api, api.table().ReleaseMemoryInfo, "memory description", |out| {
                (api.table().CreateCpuMemoryInfo)(
                    ort_sys::OrtAllocatorType::OrtDeviceAllocator,
                    ort_sys::OrtMemType::OrtMemTypeDefault,
                    out,
                )
            })?
        };
        Ok(Arc::new(Self { memory, raw, library, creation: Lock::new(()) }))
    }

    /// The environment's library.
    pub(crate) fn library(&self) -> &OrtLibrary {
        &self.library
    }

    /// Locks session creation for sessions whose options require it. Some execution providers
    /// change process-wide state without a lock.
    pub(super) fn lock_creation(&self) -> Guard<'_, ()> {
        self.creation.lock("create a session")
    }

    pub(super) fn api(&self) -> ApiTable {
        self.library.api()
    }

    pub(super) const fn as_ptr(&self) -> *mut OrtEnv {
        self.raw.as_ptr()
    }

    /// The description of CPU memory.
    pub(super) const fn memory(&self) -> *const OrtMemoryInfo {
        self.memory.as_ptr()
    }
}

fn create(
    api: ApiTable,
    log: LogFunction,
    threads: Option<GlobalThreads>,
) -> Result<NonNull<OrtEnv>, OrtError> {
    // It is never freed, just like the environment that refers to it.
    let param = Box::into_raw(Box::new(log)).cast::<c_void>();
    // SAFETY: the enumeration is represented as an i32, so the signatures are compatible, and every
    // number that the library passes is a valid i32.
    let function =
        unsafe { std::mem::transmute::<WriteLog, OrtLoggingFunction>(write_log as WriteLog) };
    let level = OrtLoggingLevel::ORT_LOGGING_LEVEL_WARNING;
    let name = c"galatea".as_ptr();
    let mut raw = ptr::null_mut();
    // SAFETY: the function and its parameter live forever, and the name lives during the call; the
    // threading options are alive and copied.
    unsafe {
        match threads {
            None => {
                let create = api.table().CreateEnvWithCustomLogger;
                api.check(create(function, param, level, name, &raw mut raw))?;
            }
            Some(threads) => {
                let options = threading_options(api, threads)?;
                let create = api.table().CreateEnvWithCustomLoggerAndGlobalThreadPools;
                let options = options.as_ptr();
                api.check(create(function, param, level, name, options, &raw mut raw))?;
            }
        }
    }
    let raw = NonNull::new(raw).ok_or_else(|| OrtError::missing("environment"))?;
    // For builds that don't support the environment variable.
    // SAFETY: the environment is alive.
    unsafe { api.check((api.table().DisableTelemetryEvents)(raw.as_ptr()))? };
    Ok(raw)
}

fn threading_options(
    api: ApiTable,
    threads: GlobalThreads,
) -> Result<OrtHandle<OrtThreadingOptions>, OrtError> {
    let table = api.table();
    // SAFETY: the constructor stores options, which the given function releases; they are alive
    // while they are modified.
    unsafe {
        let options =
            OrtHandle::create(api, table.ReleaseThreadingOptions, "threading options", |out| {
                (table.CreateThreadingOptions)(out)
            })?;
        let raw = options.as_ptr();
        if threads.intra_op > 0 {
            api.check((table.SetGlobalIntraOpNumThreads)(raw, threads.intra_op))?;
        }
        if threads.inter_op > 0 {
            api.check((table.SetGlobalInterOpNumThreads)(raw, threads.inter_op))?;
        }
        if threads.spinning == OnOff::Off {
            api.check((table.SetGlobalSpinControl)(raw, 0))?;
        }
        Ok(options)
    }
}

/// The type of [`write_log`]. It is the library's type, except that the severity is a number.
type WriteLog = unsafe extern "system" fn(
    *mut c_void,
    i32,
    *const c_char,
    *const c_char,
    *const c_char,
    *const c_char,
);

/// Receives the library's log messages.
unsafe extern "system" fn write_log(
    param: *mut c_void,
    severity: i32,
    category: *const c_char,
    _log_id: *const c_char,
    location: *const c_char,
    message: *const c_char,
) {
    const INFO: i32 = OrtLoggingLevel::ORT_LOGGING_LEVEL_INFO as i32;
    const WARNING: i32 = OrtLoggingLevel::ORT_LOGGING_LEVEL_WARNING as i32;
    let level = match severity {
        ..=INFO => LogLevel::Verbose(1),
        WARNING => LogLevel::Warning,
        _ => LogLevel::Error,
    };
    // SAFETY: the parameter is the box that `create` leaked; the strings are NUL-terminated
    // and live during this call.
    let (log, line) = unsafe {
        let line = format!("{}: {} ({})", text(category), text(message), text(location));
        (&*param.cast_const().cast::<LogFunction>(), line)
    };
    // A panic must not unwind into the library, and there is no place to report it.
    let _ = catch_unwind(AssertUnwindSafe(|| log(level, &line)));
}
