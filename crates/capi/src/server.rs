//! The server as a C object: its creation, shutdown and deletion.

use core::ffi::c_char;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use galatea_abi::server::*;
use galatea_abi::*;
use galatea_c_objects::{catch_panic, handle, pointer};
use galatea_control::ServerControl;
use galatea_devices::Devices;
use galatea_infer::{InferenceService, Status};
use galatea_stdx::Lock;

use crate::options::{OptionsObject, ServerCreateOptions};

/// A server that is running in this process.
pub struct RunningServer {
    /// The service that accepts requests.
    pub service: Arc<dyn InferenceService>,
    /// The control interface, which answers queries and executes commands.
    pub control: Arc<dyn ServerControl>,
    /// The GPUs whose memory inputs and outputs may be in.
    pub devices: Devices,
    /// A function that returns the metrics in the Prometheus text format.
    pub metrics: Box<dyn Fn() -> String + Send + Sync>,
    /// A function that polls the repositories and returns once all changed models have been loaded
    /// or unloaded.
    pub poll: Box<dyn Fn() -> Result<(), Status> + Send + Sync>,
    /// A function that stops the server: it accepts no new requests, finishes its current ones, and
    /// unloads all models. `None` uses the exit timeout from the server's own option. The function
    /// may be called any number of times.
    pub stop: Box<dyn Fn(Option<Duration>) -> Result<(), Status> + Send + Sync>,
}

/// Creates a server from options, without its network doors, and sets it at the reserved address.
/// The function may set it before models are loaded, so that backends can use the address during
/// loading.
pub type ServerFactory = fn(&ServerCreateOptions, &ReservedServerPointer) -> Result<(), Status>;

static FACTORY: OnceLock<ServerFactory> = OnceLock::new();

/// Sets the function that creates servers. Only the first call has an effect.
pub fn install_server_factory(factory: ServerFactory) {
    let _ = FACTORY.set(factory);
}

#[derive(Clone)]
pub(crate) struct ServerObject {
    running: Arc<OnceLock<Arc<RunningServer>>>,
    /// Set by `TRITONSERVER_ServerSetExitTimeout`, which any thread may call.
    exit_timeout: Arc<Lock<Option<Duration>>>,
    /// True once `TRITONSERVER_ServerStop` has been called.
    exiting: Arc<AtomicBool>,
}
galatea_c_objects::object!(ServerObject as TRITONSERVER_Server, kind 41);

impl ServerObject {
    fn server(&self) -> Result<ServerRef, Status> {
        let running = self.running.get().cloned();
        let running =
            running.ok_or_else(|| Status::unavailable("the server is still being made"))?;
        Ok(ServerRef { running, exiting: self.exiting.load(Ordering::Relaxed) })
    }

    fn stop(&self) -> Result<(), Status> {
        self.exiting.store(true, Ordering::Relaxed);
        let exit_timeout = *self.exit_timeout.lock("read the exit timeout");
        self.running.get().map_or(Ok(()), |running| (running.stop)(exit_timeout))
    }
}

/// An address that will identify a server to C code. It is reserved before the server exists,
/// because backends receive it before their models are loaded. Dropping the value releases the
/// address.
pub struct ReservedServerPointer {
    /// Null once the address has been handed over to C code.
    address: *mut TRITONSERVER_Server,
    object: ServerObject,
}

// SAFETY: the address is only passed on. Any thread may use the object behind it, and the object is
// released once, either here or by the code that the address was handed to.
unsafe impl Send for ReservedServerPointer {}
// SAFETY: as above.
unsafe impl Sync for ReservedServerPointer {}

impl ReservedServerPointer {
    /// Reserves an address without a server. Calls that use the address fail until the server
    /// exists.
    #[must_use]
    pub fn new() -> Self {
        let running = Arc::new(OnceLock::new());
        let (exit_timeout, exiting) = (Arc::default(), Arc::default());
        let object = ServerObject { running, exit_timeout, exiting };
        Self { address: handle::into_raw(object.clone()), object }
    }

    /// The address.
    #[must_use]
    pub const fn pointer(&self) -> *mut TRITONSERVER_Server {
        self.address
    }

    /// Sets the server at this address. Only the first call has an effect.
    pub fn set_server(&self, running: Arc<RunningServer>) {
        let _ = self.object.running.set(running);
    }

    /// The server at this address, if there is one.
    #[must_use]
    pub fn running_server(&self) -> Option<&Arc<RunningServer>> {
        self.object.running.get()
    }

    /// The server at this address, for calls from Rust code.
    ///
    /// # Errors
    ///
    /// `Unavailable` while the server is being created.
    pub fn server_ref(&self) -> Result<ServerRef, Status> {
        self.object.server()
    }

    /// Stops the server at this address, just like `TRITONSERVER_ServerStop`.
    ///
    /// # Errors
    ///
    /// `Internal` if requests are still being executed when the exit timeout elapses.
    pub fn stop(&self) -> Result<(), Status> {
        self.object.stop()
    }

    /// Hands the address to C code, which will delete the server.
    #[must_use]
    pub fn into_pointer(mut self) -> *mut TRITONSERVER_Server {
        std::mem::replace(&mut self.address, core::ptr::null_mut())
    }
}

impl Default for ReservedServerPointer {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for ReservedServerPointer {
    fn drop(&mut self) {
        if self.address.is_null() {
            return;
        }
        // SAFETY: the address came from `into_raw`, and code that received it doesn't use it after
        // this point.
        drop(unsafe { handle::take::<ServerObject>(self.address, "server") });
    }
}

/// Returns the address of a running server, which is valid until C code deletes the server.
#[must_use]
pub fn into_server_pointer(running: Arc<RunningServer>) -> *mut TRITONSERVER_Server {
    let reserved = ReservedServerPointer::new();
    reserved.set_server(running);
    reserved.into_pointer()
}

/// The server that a call uses.
pub struct ServerRef {
    running: Arc<RunningServer>,
    exiting: bool,
}

impl ServerRef {
    /// The server for liveness and readiness queries. As in Triton, a stopped server doesn't answer
    /// them.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the server has been stopped.
    pub(crate) fn check_live(&self) -> Result<&RunningServer, Status> {
        self.unless_exiting("Server exiting")
    }

    /// The server for all model operations except metadata queries. As in Triton, a stopped server
    /// doesn't answer such queries and loads no models.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the server has been stopped.
    pub(crate) fn check_ready(&self) -> Result<&RunningServer, Status> {
        self.unless_exiting("Server not ready")
    }

    fn unless_exiting(&self, why: &'static str) -> Result<&RunningServer, Status> {
        if self.exiting {
            return Err(Status::unavailable(why));
        }
        Ok(&self.running)
    }

    /// Polls the repositories. As in Triton, polling a stopped server succeeds without any effect
    /// in every control mode.
    ///
    /// # Errors
    ///
    /// `Unavailable` unless the server is in poll mode.
    pub fn poll_repositories(&self) -> Result<(), Status> {
        if self.exiting { Ok(()) } else { (self.running.poll)() }
    }
}

impl Deref for ServerRef {
    type Target = RunningServer;

    fn deref(&self) -> &RunningServer {
        &self.running
    }
}

/// Returns the server at an address.
///
/// # Safety
///
/// `server` must be null or an object of this library that outlives the call.
pub(crate) unsafe fn running(server: *const TRITONSERVER_Server) -> Result<ServerRef, Status> {
    // SAFETY: guaranteed by the caller.
    unsafe { handle::borrow::<ServerObject>(server, "server")? }.server()
}

const _: TRITONSERVER_ServerNew = TRITONSERVER_ServerNew;
/// Creates a server and waits until its models have been loaded.
///
/// # Safety
///
/// `server` must be null or valid for a write, and `options` must be null or refer to options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerNew(
    server: *mut *mut TRITONSERVER_Server,
    options: *mut TRITONSERVER_ServerOptions,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_ServerNew", || {
        // SAFETY: guaranteed by the caller.
        let options = unsafe { handle::borrow::<OptionsObject>(options, "options")? };
        pointer::check_not_null(server, "server")?;
        let factory = FACTORY
            .get()
            .ok_or_else(|| Status::unavailable("this program does not make servers"))?;
        let reserved = ReservedServerPointer::new();
        options.check()?;
        factory(&options.chosen(), &reserved)?;
        // SAFETY: guaranteed by the caller.
        unsafe { pointer::write(server, reserved.into_pointer(), "server") }
    })
}

const _: TRITONSERVER_ServerStop = TRITONSERVER_ServerStop;
/// Stops a server. The server still answers model metadata queries until it is deleted.
///
/// # Safety
///
/// `server` must be null or a server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerStop(
    server: *mut TRITONSERVER_Server,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_ServerStop", || {
        // SAFETY: guaranteed by the caller.
        let object = unsafe { handle::borrow::<ServerObject>(server, "server")? }.clone();
        object.stop()
    })
}

const _: TRITONSERVER_ServerSetExitTimeout = TRITONSERVER_ServerSetExitTimeout;
/// Sets the maximum time that stopping the server may take.
///
/// # Safety
///
/// `server` must be null or a server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerSetExitTimeout(
    server: *mut TRITONSERVER_Server,
    timeout: core::ffi::c_uint,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_ServerSetExitTimeout", || {
        // SAFETY: guaranteed by the caller.
        let object = unsafe { handle::borrow::<ServerObject>(server, "server")? };
        *object.exit_timeout.lock("set the exit timeout") =
            Some(Duration::from_secs(u64::from(timeout)));
        Ok(())
    })
}

const _: TRITONSERVER_ServerDelete = TRITONSERVER_ServerDelete;
/// Stops and deletes a server.
///
/// # Safety
///
/// `server` must be null or a server that is not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerDelete(
    server: *mut TRITONSERVER_Server,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_ServerDelete", || {
        if server.is_null() {
            return Ok(());
        }
        // SAFETY: guaranteed by the caller.
        let object = unsafe { handle::take::<ServerObject>(server, "server")? };
        object.stop()
    })
}

/// Converts a version number from C, where -1 means the newest version. No model has other negative
/// versions.
pub(crate) fn version(number: i64) -> Option<i64> {
    (number != -1).then_some(number)
}

/// Returns the model name that a call passes.
///
/// # Safety
///
/// `name` must be null or a string that outlives the result.
pub(crate) unsafe fn model_name<'a>(name: *const c_char) -> Result<&'a str, Status> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer::required_c_str(name, "model_name") }
}
