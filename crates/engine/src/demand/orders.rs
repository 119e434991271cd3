//! Explicit loads and unloads by clients. They keep Triton's meaning and take precedence: a model
//! that a client has loaded stays until it is unloaded, and a model that a client has unloaded is
//! refused until it is loaded explicitly.

use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};

use galatea_control::LoadParameters;
use galatea_infer::Status;
use galatea_policy::{MemoryByPool, MemoryPoolId, ModelId, RequestOrigin, ResidencyEvent};
use galatea_stdx::len64;

use super::Demand;
use super::waiter::{self, Waiter};
use crate::catalog::ModelOutline;

impl Demand {
    /// Loads a model on a client's order. Returns when it is resident or has failed.
    ///
    /// An order by a model that is being executed is refused if it would have to wait for a model
    /// in use, because that could be the model that gave the order.
    pub(crate) fn load_model(
        self: &Arc<Self>,
        origin: RequestOrigin,
        name: &str,
        parameters: LoadParameters,
    ) -> Result<(), Status> {
        if parameters.files.is_empty() {
            if !self.look_up(name) {
                return self.manager.load_evictable(name, parameters);
            }
        } else {
            self.expect_files(name, &parameters);
        }
        let model: ModelId = name.into();
        let mut state = self.state.lock("order a load");
        if state.is_closed {
            return Err(waiter::stopping());
        }
        state.parameters.insert(model.clone(), parameters);
        drop(state);
        let (sender, receiver) = mpsc::channel();
        let found = Box::new(move |result: Result<_, Status>| {
            drop(sender.send(result.map(drop)));
        });
        self.submit(Waiter::client_load(name, origin, found));
        let result = receiver.recv().unwrap_or_else(|_| Err(waiter::stopping()));
        let unused = self.state.lock("end an ordered load").parameters.remove(&model);
        result?;
        match unused {
            // The model was resident already. Like Triton, the server loads it again if it has
            // changed.
            Some(parameters) => self.load_again(&model, parameters),
            None => Ok(()),
        }
    }

    /// Loads a resident model again, and counts the files that it has now.
    fn load_again(
        self: &Arc<Self>,
        model: &ModelId,
        parameters: LoadParameters,
    ) -> Result<(), Status> {
        let brought = brought_bytes(&parameters);
        self.manager.load_evictable(model, parameters)?;
        let files = brought.unwrap_or_else(|| self.estimate(model));
        let mut state = self.state.lock("count a model that was loaded again");
        state.note_change();
        let bytes = state.sizes.loaded(model, files, None);
        let measured = ResidencyEvent::Measured(model.clone(), bytes);
        let effects = self.step_locked(&mut state, measured);
        drop(state);
        self.perform(effects);
        Ok(())
    }

    /// The memory of a model, estimated from its files in its repository.
    pub(super) fn estimate(&self, model: &str) -> MemoryByPool {
        self.catalog.outline(model).unwrap_or_default().memory()
    }

    /// Makes a model known whose files come with a load.
    fn expect_files(self: &Arc<Self>, name: &str, parameters: &LoadParameters) {
        let bytes = brought_bytes(parameters).unwrap_or_default().of(MemoryPoolId::HOST);
        self.know(name.into(), &ModelOutline { bytes, ..ModelOutline::default() });
    }

    /// Takes a model out of service on a client's order. Requests are refused until it is loaded
    /// explicitly.
    pub(crate) fn unload_model(
        self: &Arc<Self>,
        name: &str,
        unload_dependents: bool,
    ) -> Result<(), Status> {
        let mut names = vec![name.to_owned()];
        if unload_dependents {
            names.extend(self.needed_only_by(name));
        }
        for one in &names {
            let model: ModelId = one.as_str().into();
            let mut state = self.state.lock("order an unload");
            state.unloaded_by_client.insert(model.clone());
            let effects = self.step_locked(&mut state, ResidencyEvent::ClientUnload(model));
            drop(state);
            self.perform(effects);
        }
        for one in &names {
            self.manager.unload_evicted(one)?;
        }
        self.settle_unloads();
        Ok(())
    }

    /// The models that only this model needs, directly or indirectly.
    fn needed_only_by(&self, name: &str) -> BTreeSet<String> {
        let mut needed = BTreeSet::new();
        let mut pending = vec![name.to_owned()];
        while let Some(next) = pending.pop() {
            let outline = self.catalog.outline(&next).unwrap_or_default();
            pending.extend(
                outline.dependencies.iter().filter(|one| needed.insert((*one).clone())).cloned(),
            );
        }
        let of_group = |other: &str| other == name || needed.contains(other);
        let names = self.catalog.names().into_iter().map(|listed| listed.name);
        let others: Vec<String> = names.filter(|other| !of_group(other)).collect();
        for other in others {
            for dependency in self.catalog.outline(&other).unwrap_or_default().dependencies {
                needed.remove(&dependency);
            }
        }
        needed
    }
}

/// The sizes of the files that come with a load; `None` if there are none.
pub(super) fn brought_bytes(parameters: &LoadParameters) -> Option<MemoryByPool> {
    let sizes = parameters.files.iter().map(|(_, bytes)| len64(bytes.len()));
    sizes.reduce(u64::saturating_add).map(MemoryByPool::host)
}
