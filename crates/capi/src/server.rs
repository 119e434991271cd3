//! The server as a C object: creating, stopping and deleting it.

use core::ffi::c_char;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use galatea_abi::server::*;
use galatea_abi::*;
use galatea_c_objects::{guard, handle, pointer};
use galatea_control::ServerControl;
use galatea_devices::Devices;
use galatea_infer::{InferenceService, Status};
use galatea_stdx::Lock;

use crate::options::{ChosenOptions, OptionsObject};

/// A server that runs in this process.
pub struct RunningServer {
    /// The service that accepts requests.
    pub service: Arc<dyn InferenceService>,
    /// The control that answers queries and executes commands.
    pub control: Arc<dyn ServerControl>,
    /// The GPUs whose memory inputs and outputs may be in.
    pub devices: Devices,
    /// A function that returns the metrics in Prometheus' text format.
    pub metrics: Box<dyn Fn() -> String + Send + Sync>,
    /// A function that polls the repositories, and returns once all changed models have been loaded
    /// or unloaded.
    pub poll: Box<dyn Fn() -> Result<(), Status> + Send + Sync>,
    /// A function that stops the server: it accepts no new requests, finishes the ones that it has,
    /// and unloads all models. `None` waits for the time that the server's own option sets. The
    /// function may be called any number of times.
    pub stop: Box<dyn Fn(Option<Duration>) -> Result<(), Status> + Send + Sync>,
}

/// Creates a server from options, without its network doors, and puts it at the reserved address.
/// The function may do so before models are loaded, so that backends can use the address while they
/// load.
pub type ServerFactory = fn(&ChosenOptions, &ReservedAddress) -> Result<(), Status>;

static FACTORY: OnceLock<ServerFactory> = OnceLock::new();

/// Sets the function that creates servers. Only the first call counts.
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

/// An address by which C code will know a server, reserved before the server exists because
/// backends learn it before their models are loaded. Dropping the value releases the address.
pub struct ReservedAddress {
    /// Null once the address has been handed over to C code.
    address: *mut TRITONSERVER_Server,
    object: ServerObject,
}

// SAFETY: the address is only passed on; the object behind it may be used by every
// thread, and it is taken back once, here or by the code that it was handed over to.
unsafe impl Send for ReservedAddress {}
// SAFETY: as above.
unsafe impl Sync for ReservedAddress {}

impl ReservedAddress {
    /// Reserves an address without a server. Calls with it fail because there is no server yet.
    #[must_use]
    pub fn new() -> Self {
        let running = Arc::new(OnceLock::new());
        let (exit_timeout, exiting) = (Arc::default(), Arc::default());
        let object = ServerObject { running, exit_timeout, exiting };
        Self { address: handle::into_raw(object.clone()), object }
    }

    /// The address.
    #[must_use]
    pub const fn address(&self) -> *mut TRITONSERVER_Server {
        self.address
    }

    /// Puts the server at the address. Only the first call counts.
    pub fn set_server(&self, running: Arc<RunningServer>) {
        let _ = self.object.running.set(running);
    }

    /// The server at the address, if there is one.
    #[must_use]
    pub fn running(&self) -> Option<&Arc<RunningServer>> {
        self.object.running.get()
    }

    /// The server at the address, for calls from Rust code.
    ///
    /// # Errors
    ///
    /// `Unavailable` while the server is being created.
    pub fn server(&self) -> Result<ServerRef, Status> {
        self.object.server()
    }

    /// Stops the server at the address, just like `TRITONSERVER_ServerStop`.
    ///
    /// # Errors
    ///
    /// `Internal` if requests are still being executed at the exit timeout.
    pub fn stop(&self) -> Result<(), Status> {
        self.object.stop()
    }

    /// Hands the address over to C code, which will delete the server.
    #[must_use]
    pub fn into_address(mut self) -> *mut TRITONSERVER_Server {
        std::mem::replace(&mut self.address, core::ptr::null_mut())
    }
}

impl Default for ReservedAddress {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for ReservedAddress {
    fn drop(&mut self) {
        if self.address.is_null() {
            return;
        }
        // SAFETY: the address is from `into_raw`, and code that knows it has learned that
        // it ends here.
        drop(unsafe { handle::take::<ServerObject>(self.address, "server") });
    }
}

/// The address of a running server, valid until C code deletes it.
#[must_use]
pub fn into_address(running: Arc<RunningServer>) -> *mut TRITONSERVER_Server {
    let reserved = ReservedAddress::new();
    reserved.set_server(running);
    reserved.into_address()
}

/// The server that a call uses.
pub struct ServerRef {
    running: Arc<RunningServer>,
    exiting: bool,
}

impl ServerRef {
    /// The server, for queries about its liveness and readiness. As in Triton, a stopped server
    /// does not answer them.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the server has been stopped.
    pub(crate) fn check_live(&self) -> Result<&RunningServer, Status> {
        self.unless_exiting("Server exiting")
    }

    /// The server, for everything about models except their metadata. As in Triton, a stopped
    /// server does not answer such queries, and loads nothing.
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

    /// Polls the repositories. As in Triton, polling a stopped server succeeds without any effect,
    /// in every control mode.
    ///
    /// # Errors
    ///
    /// `Unavailable` unless the control mode is poll.
    pub fn poll(&self) -> Result<(), Status> {
        if self.exiting { Ok(()) } else { (self.running.poll)() }
    }
}

impl Deref for ServerRef {
    type Target = RunningServer;

    fn deref(&self) -> &RunningServer {
        &self.running
    }
}

/// The server behind an address.
///
/// # Safety
///
/// `server` must be null or an object of this library that lives during the call.
pub(crate) unsafe fn running(server: *const TRITONSERVER_Server) -> Result<ServerRef, Status> {
    // SAFETY: guaranteed by the caller.
    unsafe { handle::borrow::<ServerObject>(server, "server")? }.server()
}

const _: TRITONSERVER_ServerNew = TRITONSERVER_ServerNew;
/// Creates a server and waits until its models are loaded.
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
        // SAFETY: guaranteed by the caller.
        let options = unsafe { handle::borrow::<OptionsObject>(options, "options")? };
        pointer::check_not_null(server, "server")?;
        let factory = FACTORY
            .get()
            .ok_or_else(|| Status::unavailable("this program does not make servers"))?;
        let reserved = ReservedAddress::new();
        options.check()?;
        factory(&options.chosen(), &reserved)?;
        // SAFETY: guaranteed by the caller.
        unsafe { pointer::write(server, reserved.into_address(), "server") }
    })
}

const _: TRITONSERVER_ServerStop = TRITONSERVER_ServerStop;
/// Stops a server. It still answers queries about models' metadata until it is deleted.
///
/// # Safety
///
/// `server` must be null or a server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerStop(
    server: *mut TRITONSERVER_Server,
) -> *mut TRITONSERVER_Error {
    guard("TRITONSERVER_ServerStop", || {
        // SAFETY: guaranteed by the caller.
        let object = unsafe { handle::borrow::<ServerObject>(server, "server")? }.clone();
        object.stop()
    })
}

const _: TRITONSERVER_ServerSetExitTimeout = TRITONSERVER_ServerSetExitTimeout;
/// Changes the time that stopping may take.
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
    guard("TRITONSERVER_ServerDelete", || {
        if server.is_null() {
            return Ok(());
        }
        // SAFETY: guaranteed by the caller.
        let object = unsafe { handle::take::<ServerObject>(server, "server")? };
        object.stop()
    })
}

/// The version that a number from C means: -1 is the newest. No model has other negative versions.
pub(crate) fn version(number: i64) -> Option<i64> {
    (number != -1).then_some(number)
}

/// The model name that a call passes.
///
/// # Safety
///
/// `name` must be null or a text that outlives the result.
pub(crate) unsafe fn model_name<'a>(name: *const c_char) -> Result<&'a str, Status> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer::required_text(name, "model_name") }
}
