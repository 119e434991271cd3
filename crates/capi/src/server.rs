//! Servers: making, stopping, deleting them.

use core::ffi::c_char;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use galatea_abi::server::*;
use galatea_abi::*;
use galatea_c_objects::{guard, handle as handles, pointer};
use galatea_infer::{InferenceService, ServerControl, Status};

use crate::options::OptionsObject;

/// A server that runs in this process.
pub struct RunningServer {
    /// Takes requests.
    pub service: Arc<dyn InferenceService>,
    /// Answers questions and takes orders.
    pub control: Arc<dyn ServerControl>,
    /// The metrics as Prometheus reads them; none if they are off.
    pub metrics: Box<dyn Fn() -> Option<String> + Send + Sync>,
    /// Makes what serves what the repositories hold now, when that is done.
    pub poll: Box<dyn Fn() -> Result<(), Status> + Send + Sync>,
    /// Stops the server: no new requests, those that it has run, models unload.
    /// `None` waits as long as the server's own option says. Called any number
    /// of times.
    pub stop: Box<dyn Fn(Option<Duration>) -> Result<(), Status> + Send + Sync>,
}

/// Makes a server out of the command line's flags, without its network doors, and
/// settles it at the reserved address. It may do so before models are loaded: then
/// backends can use the address while they load.
pub type ServerMaker = fn(&[String], &Reserved) -> Result<(), Status>;

static MAKER: OnceLock<ServerMaker> = OnceLock::new();

/// Says how servers are made; the first one stays.
pub fn install(maker: ServerMaker) {
    let _ = MAKER.set(maker);
}

#[derive(Clone)]
pub(crate) struct ServerObject {
    running: Arc<OnceLock<Arc<RunningServer>>>,
    /// Set by `TRITONSERVER_ServerSetExitTimeout`, which any thread may call.
    exit_timeout: Arc<Mutex<Option<Duration>>>,
    /// Whether `TRITONSERVER_ServerStop` was called.
    exiting: Arc<AtomicBool>,
}
galatea_c_objects::object!(ServerObject as TRITONSERVER_Server, kind 41);

impl ServerObject {
    fn stop(&self) -> Result<(), Status> {
        self.exiting.store(true, Ordering::Relaxed);
        let exit_timeout = *self.exit_timeout();
        self.running.get().map_or(Ok(()), |running| (running.stop)(exit_timeout))
    }

    fn exit_timeout(&self) -> MutexGuard<'_, Option<Duration>> {
        self.exit_timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An address under which C code will know a server, fixed before there is one:
/// backends are told of it before their models are loaded. It is void once this is
/// dropped.
pub struct Reserved {
    /// Null once it was left to C code.
    address: *mut TRITONSERVER_Server,
    running: Arc<OnceLock<Arc<RunningServer>>>,
}

// SAFETY: the address is only passed on; what is behind it may be used by every
// thread, and it is taken back once, here or by whoever it was given to.
unsafe impl Send for Reserved {}
// SAFETY: as above.
unsafe impl Sync for Reserved {}

impl Reserved {
    /// An address without a server: calls with it answer that there is none yet.
    #[must_use]
    pub fn new() -> Self {
        let running = Arc::new(OnceLock::new());
        let (exit_timeout, exiting) = (Arc::default(), Arc::default());
        let object = ServerObject { running: running.clone(), exit_timeout, exiting };
        Self { address: handles::into_raw(object), running }
    }

    /// The address.
    #[must_use]
    pub const fn address(&self) -> *mut TRITONSERVER_Server {
        self.address
    }

    /// Puts the server there; the first one stays.
    pub fn settle(&self, running: Arc<RunningServer>) {
        let _ = self.running.set(running);
    }

    /// The server there, if one is.
    #[must_use]
    pub fn running(&self) -> Option<&Arc<RunningServer>> {
        self.running.get()
    }

    /// Leaves the address to C code, which deletes the server.
    #[must_use]
    pub fn into_address(mut self) -> *mut TRITONSERVER_Server {
        std::mem::replace(&mut self.address, core::ptr::null_mut())
    }
}

impl Default for Reserved {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.address.is_null() {
            return;
        }
        // SAFETY: the address is from `into_raw`, and whoever knows it was told that
        // it ends here.
        drop(unsafe { handles::take::<ServerObject>(self.address, "server") });
    }
}

/// An address for a server that runs already, valid until C code deletes it.
#[must_use]
pub fn handle(running: Arc<RunningServer>) -> *mut TRITONSERVER_Server {
    let reserved = Reserved::new();
    reserved.settle(running);
    reserved.into_address()
}

/// A server that a call names.
pub(crate) struct Named {
    running: Arc<RunningServer>,
    exiting: bool,
}

impl Named {
    /// Whether it is live or ready is no question to ask of one that was stopped, as in
    /// the original.
    ///
    /// # Errors
    ///
    /// `Unavailable` if it was.
    pub(crate) fn not_exiting(&self) -> Result<&RunningServer, Status> {
        self.unless_exiting("Server exiting")
    }

    /// One that was stopped tells nothing of its models, but of their metadata, and loads
    /// nothing, as in the original.
    ///
    /// # Errors
    ///
    /// `Unavailable` if it was.
    pub(crate) fn serving(&self) -> Result<&RunningServer, Status> {
        self.unless_exiting("Server not ready")
    }

    fn unless_exiting(&self, why: &'static str) -> Result<&RunningServer, Status> {
        if self.exiting {
            return Err(Status::unavailable(why));
        }
        Ok(&self.running)
    }

    /// Looks at the repositories, if there is still something to load. As in the original
    /// one that was stopped has done so then, whatever its control mode.
    pub(crate) fn poll(&self) -> Result<(), Status> {
        if self.exiting { Ok(()) } else { (self.running.poll)() }
    }
}

impl Deref for Named {
    type Target = RunningServer;

    fn deref(&self) -> &RunningServer {
        &self.running
    }
}

/// The server behind an address.
///
/// # Safety
///
/// `server` must be null or an object of this library that stays.
pub(crate) unsafe fn running(server: *const TRITONSERVER_Server) -> Result<Named, Status> {
    // SAFETY: the caller's promise is passed on.
    let server = unsafe { handles::borrow::<ServerObject>(server, "server")? };
    let running = server.running.get().cloned();
    let running = running.ok_or_else(|| Status::unavailable("the server is still being made"))?;
    Ok(Named { running, exiting: server.exiting.load(Ordering::Relaxed) })
}

const _: TRITONSERVER_ServerNew = TRITONSERVER_ServerNew;
/// Makes a server and waits until its models are loaded.
///
/// # Safety
///
/// `server` must be null or valid for a write, `options` null or options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerNew(
    server: *mut *mut TRITONSERVER_Server,
    options: *mut TRITONSERVER_ServerOptions,
) -> *mut TRITONSERVER_Error {
    guard("TRITONSERVER_ServerNew", || {
        // SAFETY: the caller's promise is passed on.
        let options = unsafe { handles::borrow::<OptionsObject>(options, "options")? };
        pointer::check_not_null(server, "server")?;
        let maker =
            MAKER.get().ok_or_else(|| Status::unavailable("this program does not make servers"))?;
        let reserved = Reserved::new();
        maker(&options.flags(), &reserved)?;
        // SAFETY: the caller's promise is passed on.
        unsafe { pointer::write(server, reserved.into_address(), "server") }
    })
}

const _: TRITONSERVER_ServerStop = TRITONSERVER_ServerStop;
/// Stops a server; it answers questions about models until it is deleted.
///
/// # Safety
///
/// `server` must be null or a server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerStop(
    server: *mut TRITONSERVER_Server,
) -> *mut TRITONSERVER_Error {
    guard("TRITONSERVER_ServerStop", || {
        // SAFETY: the caller's promise is passed on.
        let object = unsafe { handles::borrow::<ServerObject>(server, "server")? }.clone();
        object.stop()
    })
}

const _: TRITONSERVER_ServerSetExitTimeout = TRITONSERVER_ServerSetExitTimeout;
/// Changes how long stopping may take.
///
/// # Safety
///
/// `server` must be null or a server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerSetExitTimeout(
    server: *mut TRITONSERVER_Server,
    timeout: core::ffi::c_uint,
) -> *mut TRITONSERVER_Error {
    guard("TRITONSERVER_ServerSetExitTimeout", || {
        // SAFETY: the caller's promise is passed on.
        let object = unsafe { handles::borrow::<ServerObject>(server, "server")? };
        *object.exit_timeout() = Some(Duration::from_secs(u64::from(timeout)));
        Ok(())
    })
}

const _: TRITONSERVER_ServerDelete = TRITONSERVER_ServerDelete;
/// Stops a server and forgets it.
///
/// # Safety
///
/// `server` must be null or a server that nobody uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerDelete(
    server: *mut TRITONSERVER_Server,
) -> *mut TRITONSERVER_Error {
    guard("TRITONSERVER_ServerDelete", || {
        if server.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise is passed on.
        let object = unsafe { handles::take::<ServerObject>(server, "server")? };
        object.stop()
    })
}

/// The version that a number of C stands for: -1 is the newest; no model has other
/// negative ones.
pub(crate) fn version(number: i64) -> Option<i64> {
    (number != -1).then_some(number)
}

/// A model that a call names.
///
/// # Safety
///
/// `name` must be null or a text that stays.
pub(crate) unsafe fn model_name<'a>(name: *const c_char) -> Result<&'a str, Status> {
    // SAFETY: the caller's promise is passed on.
    unsafe { pointer::required_text(name, "model_name") }
}
