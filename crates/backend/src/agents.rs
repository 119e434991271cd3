//! A model's repository agents as the engine sees them.

/// A model's repository agents, after all of them have accepted the model. The engine notifies them
/// of lifecycle events.
///
/// Dropping the value ends the model's lifetime for the agents, regardless of the last
/// notification. The calls and the drop may take a long time, and agents may ignore the
/// notifications. Callers therefore choose the thread and must not hold a lock.
pub trait ModelRepositoryAgents: Send + Sync {
    /// Reports that the model has been loaded and is about to serve. A repeated notification has no
    /// effect. Neither does one after `unloading`, because a load may finish while the server shuts
    /// down.
    fn loaded(&self);
    /// Reports that the load has failed. Has no effect if the model was already loaded.
    fn load_failed(&self);
    /// Reports that the model is about to leave service. A repeated notification has no effect.
    fn unloading(&self);
}
