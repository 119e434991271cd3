//! Hosts compiled plug-ins: backends (`libtriton_NAME.so`), response caches
//! (`libtritoncache_NAME.so`) and repository agents (`libtritonrepoagent_NAME.so`) that
//! were built for the C interface of Triton Inference Server.
//!
//! The crate finds and opens libraries and provides the functions that they call. The rest of the
//! server sees an ordinary [`galatea_backend::Backend`], [`galatea_backend::ResponseCache`] and
//! [`galatea_backend::ModelRepositoryAgents`].
//!
//! The crate is *not* a server: it knows no door and no engine. It spawns no threads, except one
//! for each finalisation that a plug-in triggers itself. Instances are created on the loader's
//! threads and execute on their lanes' threads. The functions of tritonserver.h are in `capi`, and
//! the objects that both interfaces share are in [`galatea_c_objects`].
//!
//! Start with `plugins.rs` ([`Plugins`]). Each module uses only the modules below it:
//!
//! | module | contents |
//! |---|---|
//! | `plugins` | finds, opens and initialises each library once |
//! | `plugin_model`, `plugin_instance` | a plug-in's model and instance, as the engine uses them |
//! | `backend_with_strategies`, `strategy_loader`, `strategy` | custom batching |
//! | `statistics` | reports on executions |
//! | `response` | responses, their outputs, and response factories, as C sees them |
//! | `request` | requests, inputs and states, as C sees them |
//! | `response_channel` | the shared end through which the responses of a request leave |
//! | `instance`, `model`, `backend` | the C objects of those names, their life cycles and functions |
//! | `settings`, `attributes`, `memory`, `memory_usage` | smaller parts of the interface |
//! | [`cache`] | response caches |
//! | [`agent`] | repository agents |
//! | `exports` | the list of all exported functions |
//! | `library` | where libraries are searched for, and their entry points |
//! | `exit` | ends a process while libraries still execute |
//!
//! # Ownership
//!
//! Each request in a batch is boxed into an object for `TRITONBACKEND_ModelInstanceExecute`. If the
//! call succeeds, the plug-in owns the object until it releases it. If the call fails, the requests
//! that were not released are taken back and refused.
//!
//! The right to reply moves into a response channel, which the request shares with its responses
//! and factories. Responses may therefore be sent from any thread, even after the request is
//! released. When the last owner is dropped, it sends the final reply if the plug-in hasn't sent
//! one.
//!
//! Everything that the plug-in may still use keeps the instance and its model from being finalised.
//! When the plug-in drops the last such object, finalisation runs on its own thread, because the
//! plug-in often drops that object on a thread that finalisation waits for.
//!
//! No lock of this crate is held during calls into a plug-in, with two exceptions: library
//! initialisation, and calls to a model's repository agents.
//!
//! # Trust
//!
//! A plug-in is trusted like the server's own code: it runs in the same process and can do
//! anything, and if it crashes, so does the server. Only common mistakes are checked: null
//! pointers, objects of the wrong kind and released objects result in an error and a log line.
//!
//! A library is opened only from a model in the server's own repository or from the backend
//! directory, never from files that a client sent ([`LibrarySearchScope`]).

#![allow(unsafe_code, reason = "a C API is made of it; each block says why it is sound")]
#![allow(non_snake_case, reason = "exported functions have the headers' names")]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

/// Defines exported functions. The compiler checks each one against its declaration, each runs
/// inside a guard, and each is listed so that a check can confirm that plug-ins find it. The
/// declarations come from tritonbackend.h unless another header is specified.
macro_rules! functions {
    (use $header:ident; $($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {
        $(
            const _: galatea_abi::$header::$name = $name;
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// Pointers to objects must be null or refer to objects of this process. Other pointers
            /// must be null or valid for their documented use in the header.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name(
                $($argument: $kind),*
            ) -> *mut galatea_abi::TRITONSERVER_Error {
                galatea_c_objects::catch_panic(stringify!($name), || {
                    // SAFETY: the caller guarantees what the body requires.
                    unsafe { $body }
                })
            }
        )*

        /// The functions that this module exports.
        pub(crate) fn exported() -> Vec<galatea_c_objects::exports::ExportedFunction> {
            vec![$(galatea_c_objects::exports::ExportedFunction::new(
                stringify!($name),
                $name as *const (),
            )),*]
        }
    };
    ($($functions:tt)*) => {
        functions! { use backend; $($functions)* }
    };
}

pub mod agent;
mod attributes;
mod backend;
mod backend_with_strategies;
pub mod cache;
mod device_tensor;
mod execution_recorder;
mod exit;
mod exports;
mod host_buffer;
mod instance;
mod library;
mod memory;
mod memory_usage;
mod model;
mod owned;
mod plugin_instance;
mod plugin_model;
mod plugins;
mod request;
mod response;
mod response_channel;
mod settings;
mod state_memory;
mod statistics;
mod strategy;
mod strategy_loader;
mod tensor_shape;
#[cfg(test)]
mod testing;

pub use agent::{AgentChain, ModelForAgents, RepositoryAgents};
pub use cache::PluginResponseCache;
pub use exit::exit_without_destructors;
pub use library::search::LibrarySearchScope;
pub use plugins::Plugins;
pub use settings::{BackendSettingsLookup, LateServerPointer, PluginSettings};
