//! The APIs' opaque objects, which C knows only by address.

macro_rules! opaque {
    ($($name:ident),* $(,)?) => {
        $(
            /// An opaque object.
            #[repr(C)]
            pub struct $name {
                _private: [u8; 0],
                _not_send: core::marker::PhantomData<*mut u8>,
            }
        )*
        /// The names of all objects.
        pub const OBJECTS: &[&str] = &[$(stringify!($name)),*];
    };
}

opaque! {
    TRITONBACKEND_Backend,
    TRITONBACKEND_BackendAttribute,
    TRITONBACKEND_Batcher,
    TRITONBACKEND_Input,
    TRITONBACKEND_MemoryManager,
    TRITONBACKEND_Model,
    TRITONBACKEND_ModelInstance,
    TRITONBACKEND_ModelInstanceResponseStatistics,
    TRITONBACKEND_Output,
    TRITONBACKEND_Request,
    TRITONBACKEND_Response,
    TRITONBACKEND_ResponseFactory,
    TRITONBACKEND_State,
    TRITONCACHE_Allocator,
    TRITONCACHE_Cache,
    TRITONCACHE_CacheEntry,
    TRITONREPOAGENT_Agent,
    TRITONREPOAGENT_AgentModel,
    TRITONSERVER_BufferAttributes,
    TRITONSERVER_Error,
    TRITONSERVER_InferenceRequest,
    TRITONSERVER_InferenceResponse,
    TRITONSERVER_InferenceTrace,
    TRITONSERVER_Message,
    TRITONSERVER_Metric,
    TRITONSERVER_MetricArgs,
    TRITONSERVER_MetricFamily,
    TRITONSERVER_Metrics,
    TRITONSERVER_Parameter,
    TRITONSERVER_ResponseAllocator,
    TRITONSERVER_Server,
    TRITONSERVER_ServerOptions,
}
