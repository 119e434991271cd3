//! Hosts compiled backends: shared libraries `libtriton_NAME.so` that were made
//! for the C interface of Triton Inference Server. Response caches in libraries are
//! found, opened and called here too ([`cache`]), and so are repository agents,
//! `libtritonrepoagent_NAME.so` ([`agent`]).
//!
//! It finds and opens them ([`Plugins`]), provides the functions that they call,
//! and is to the rest of the server a [`galatea_backend::Backend`] like others. It
//! knows no server and no door. There is no thread here but the ones that the
//! engine and the plug-ins bring: instances are made on the loader's threads and
//! executed on their lane's.
//!
//! The way through the files, from the server into the plug-in and back:
//!
//! | file | what it holds |
//! |---|---|
//! | [`plugins`] | finds, opens and initialises libraries, once each |
//! | `library` | where libraries are looked for, and what their entry points are |
//! | `backend`, `model`, `instance` | the objects of those names, their life cycles and functions |
//! | `request` | requests, inputs and states as C sees them; giving requests back |
//! | `response` | responses, outputs and factories; [`response::channel`] answers |
//! | `strategy`, `with_strategy` | custom batching |
//! | [`cache`] | response caches, which have nothing to do with backends but the way into libraries |
//! | [`agent`] | repository agents |
//! | `statistics`, `memory` | what remains of the interface |
//! | `end` | the end of a process whose libraries are still at work |
//! | [`exports`] | the list of all exported functions |
//!
//! # Who owns what
//!
//! A request that is given to `TRITONBACKEND_ModelInstanceExecute` is boxed into an
//! object, together with an *channel*, the one thing that answers it. If the call
//! succeeds, the object is the plug-in's until it releases it; if it fails, what
//! was not released comes back and is refused. Responses and factories hold the
//! channel, so that answers may come after the release and from any thread; the
//! last of them to go answers if nobody did. All of them keep the instance and its
//! model from being finalised.
//!
//! No lock of this crate is held while a plug-in is called, but for those that make
//! others wait while a library is initialised, and while a model's repository agents
//! are called.
//!
//! # Unsafe code
//!
//! A plug-in is trusted like the server's own code: it runs in the same process and
//! can do anything, and its crash is the server's. What is checked is what mistakes
//! look like: null, objects of another kind and released objects give an error and
//! a line in the log. See [`galatea_c_objects`] for how.

#![allow(unsafe_code, reason = "a C API is made of it; each block says why it is sound")]
#![allow(non_snake_case, reason = "exported functions have the headers' names")]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

/// Defines exported functions: each is held to its declared signature, runs in a
/// guard, and is listed for whoever checks that plug-ins find it. They are those of
/// tritonbackend.h, unless another header's declarations are named.
macro_rules! functions {
    (use $header:ident; $($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {
        $(
            const _: galatea_abi::$header::$name = $name;
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// Pointers to objects must be null or objects of this process, and other
            /// pointers null or valid for what the header says of them.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name(
                $($argument: $kind),*
            ) -> *mut galatea_abi::TRITONSERVER_Error {
                galatea_c_objects::guard(stringify!($name), || {
                    // SAFETY: what the body needs is what the caller promises.
                    unsafe { $body }
                })
            }
        )*

        /// The functions of this module.
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
mod execution_recorder;
mod exit;
mod exports;
mod host_buffer;
mod instance;
mod library;
mod lock;
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

pub use agent::{AgentChain, Agents, ModelCandidate};
pub use cache::CacheLibrary;
pub use exit::end_process;
pub use library::search::SearchScope;
pub use plugins::Plugins;
pub use settings::{PluginSettings, ServerAddress};
