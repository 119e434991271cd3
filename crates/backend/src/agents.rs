//! The repository agents of a model, as the engine sees them.

/// The repository agents of one model, after all of them have agreed to load it. The
/// engine notifies them of the model's lifecycle.
///
/// Dropping the value ends the model's life for the agents, whatever the last notification was. The
/// calls and the drop may take long, and an agent may ignore them. Callers therefore choose the
/// thread and hold no lock.
pub trait ModelAgents: Send + Sync {
    /// Reports that the model is loaded and about to serve. A repeated notification changes
    /// nothing, nor does one after `unloading`: a load may finish while the server shuts down.
    fn loaded(&self);
    /// Reports that the load has failed. Has no effect if the model was already loaded.
    fn load_failed(&self);
    /// Reports that the model is about to leave service. A repeated notification changes nothing.
    fn unloading(&self);
}
