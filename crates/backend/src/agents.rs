//! The repository agents of a model, as the engine sees them.

/// The repository agents of one model, after all of them have agreed to load it. The
/// engine notifies them of the model's lifecycle.
///
/// Dropping it ends the model's life for the agents, after whatever notification. The
/// calls and the drop may take long, and an agent may ignore them. Callers therefore
/// choose the thread and hold no lock.
pub trait ModelAgents: Send + Sync {
    /// The model is loaded and about to serve. A repeated notification changes nothing,
    /// nor does one after `unloading`: a load may end while the server shuts down.
    fn loaded(&self);
    /// The load has failed. Changes nothing if the model was loaded before.
    fn load_failed(&self);
    /// The model is about to leave service. A repeated notification changes nothing.
    fn unloading(&self);
}
