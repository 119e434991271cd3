//! The adapters of models, and the models that have their tensors.
//!
//! A model of TensorRT-LLM keeps the tensors of an adapter under the identifier of a task. As in
//! Triton, a request with an adapter contains the tensors only if the model may lack them.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use galatea_openai::{Adapter, AdapterChoice, AdapterList, AdapterTask, Failure, tensor_of_npy};
use galatea_stdx::Lock;

use super::options::{AdapterFiles, AdapterSource, ReadAdapter};

/// The inputs for the tensors of an adapter.
const INPUTS: [&str; 2] = ["lora_weights", "lora_config"];

/// The adapters of a model that gets tensors. They are forgotten when the model is unloaded.
#[derive(Default)]
pub(super) struct KnownAdapters {
    /// The adapters, read when a client first selects one. The identifiers stay the same as long as
    /// the model keeps the tensors.
    list: OnceLock<AdapterList>,
    /// The identifiers of the adapters whose tensors the model has.
    registered: Lock<BTreeSet<u64>>,
}

/// An adapter whose tensors are sent to a model.
pub(super) struct AdapterRegistration {
    adapters: Arc<KnownAdapters>,
    id: u64,
}

impl AdapterRegistration {
    /// Notes that the model has the tensors.
    pub(super) fn confirm(self) {
        self.adapters.registered.lock("note an adapter").insert(self.id);
    }
}

/// An adapter whose files are open.
pub(super) enum OpenedAdapter {
    /// The adapter of a model that reads the files itself, or that has the tensors.
    Known(AdapterChoice),
    /// The adapter with this name and identifier.
    Files(String, u64, AdapterFiles),
}

impl OpenedAdapter {
    /// The length of the files.
    pub(super) fn length(&self) -> usize {
        match self {
            Self::Known(_) => 0,
            Self::Files(_, _, files) => files.length,
        }
    }

    /// Reads the files.
    pub(super) fn read(self) -> Result<AdapterChoice, Failure> {
        let (name, id, read) = match self {
            Self::Known(choice) => return Ok(choice),
            Self::Files(name, id, AdapterFiles { read, .. }) => (name, id, read),
        };
        let tensors = tensors(read).map_err(|reason| {
            Failure::Server(format!("the LoRA '{name}' can't be read: {reason}"))
        })?;
        Ok(AdapterChoice::Task { id, tensors })
    }
}

fn tensors(read: ReadAdapter) -> Result<Vec<galatea_infer::InputTensor>, String> {
    let files = INPUTS.into_iter().zip(read()?);
    let tensor = |(input, file): (&str, Vec<u8>)| {
        tensor_of_npy(input, &Bytes::from(file)).map_err(|reason| format!("{input}: {reason}"))
    };
    files.map(tensor).collect()
}

impl KnownAdapters {
    /// Returns the adapter with this name. The model may take names in place of tensors.
    pub(super) fn find(
        &self,
        takes_names: bool,
        source: &AdapterSource,
        model: &str,
        adapter: &str,
        requested: &str,
    ) -> Result<Option<Adapter>, Failure> {
        if takes_names {
            return (source.read)(model).find(adapter, requested);
        }
        let list = self.list.get_or_init(|| (source.read)(model));
        list.find(adapter, requested)
    }

    /// Opens the files of an adapter whose tensors the model may lack.
    pub(super) fn open(
        &self,
        takes_names: bool,
        source: &AdapterSource,
        adapter: Adapter,
    ) -> Result<OpenedAdapter, Failure> {
        let Adapter { name, task } = adapter;
        if takes_names {
            return Ok(OpenedAdapter::Known(AdapterChoice::Name(name)));
        }
        let Some(AdapterTask { id, folder }) = task else {
            let text = format!("the model takes tensors of the LoRA '{name}', which has no files");
            return Err(Failure::Server(text));
        };
        if self.registered.lock("look for an adapter").contains(&id) {
            return Ok(OpenedAdapter::Known(AdapterChoice::Task { id, tensors: Vec::new() }));
        }
        let files = folder.and_then(|folder| (source.open)(&name, &folder));
        Ok(OpenedAdapter::Files(name, id, files.map_err(Failure::Server)?))
    }

    /// Returns the registration of an adapter whose tensors are sent.
    pub(super) fn registration(
        self: &Arc<Self>,
        choice: &AdapterChoice,
    ) -> Option<AdapterRegistration> {
        match choice {
            AdapterChoice::Task { id, tensors } if !tensors.is_empty() => {
                Some(AdapterRegistration { adapters: self.clone(), id: *id })
            }
            AdapterChoice::Task { .. } | AdapterChoice::Name(_) => None,
        }
    }
}
