//! Passive instances, which no scheduler uses: some backends create them for their own use.

use galatea_backend::Instance;
use galatea_stdx::Lock;

use super::InstanceKey;

/// An instance that only its backend uses.
pub(crate) struct PassiveInstance {
    pub(crate) key: InstanceKey,
    /// The instance, which is only ever dropped.
    pub(crate) _instance: Box<dyn Instance>,
}

/// The passive instances of a version.
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
        // Their destructors are a backend's.
        drop(all);
    }

    /// Adds instances, and destroys one for each of the `surplus` keys.
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
        // Their destructors belong to a backend.
        drop(removed);
    }
}
