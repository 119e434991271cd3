//! Repository agents, as whoever loads models sees them.

/// The repository agents of one model, once all of them have agreed to its being
/// loaded: they are told what becomes of it.
///
/// Dropping it is the end of the model's life for them, whatever they were told
/// before. What an agent does then and in each of the calls may take long, and only
/// the agent can refuse to hear more: so whoever holds this chooses the thread, and
/// holds no lock.
pub trait ModelAgents: Send + Sync {
    /// The model is loaded and about to serve. Telling it again changes nothing, nor
    /// does it after the model was said to go: a load may end while the server does.
    fn loaded(&self);
    /// The model could not be loaded. This changes nothing if it was loaded before.
    fn load_failed(&self);
    /// The model is about to go out of service. Telling it again changes nothing.
    fn unloading(&self);
}
