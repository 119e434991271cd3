//! Passive instances, which no scheduler uses. Some backends need them for their own purposes.

use galatea_backend::Instance;
use galatea_stdx::Lock;

use super::InstanceKey;

/// An instance that only its backend uses.
pub(crate) struct PassiveInstance {
    pub(crate) key: InstanceKey,
    /// The instance, kept only to be dropped.
    pub(crate) _instance: Box<dyn Instance>,
}

/// A version's passive instances.
#[derive(Default)]
pub(crate) struct PassiveInstances(Lock<Vec<PassiveInstance>>);

impl PassiveInstances {
    pub(crate) fn new(instances: Vec<PassiveInstance>) -> Self {
        Self(Lock::new(instances))
    }

    /// The keys of all instances.
    pub(crate) fn keys(&self) -> Vec<InstanceKey> {
        let instances = self.0.lock("list the passive instances");
        instances.iter().map(|instance| instance.key.clone()).collect()
    }

    /// Destroys all instances.
    pub(crate) fn destroy(&self) {
        let all = std::mem::take(&mut *self.0.lock("take the passive instances"));
        // The destructors belong to a backend.
        drop(all);
    }

    /// Adds instances, and destroys one instance for each of the `surplus` keys.
    pub(crate) fn change(&self, added: Vec<PassiveInstance>, surplus: &[InstanceKey]) {
        let mut removed = Vec::new();
        let mut instances = self.0.lock("change the passive instances");
        for key in surplus {
            if let Some(index) = instances.iter().position(|instance| instance.key == *key) {
                removed.push(instances.remove(index));
            }
        }
        instances.extend(added);
        drop(instances);
        // The destructors belong to a backend.
        drop(removed);
    }
}
