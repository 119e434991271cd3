//! Gives outputs the shapes that the configuration promises to clients.

use galatea_config::{ModelSpec, OutputSpec};
use galatea_infer::{InferenceResponse, Reply, ResponseSender, ResponseSink};
use galatea_tensor::Shape;
use std::sync::Arc;

use crate::admission::fill_variable_dims;

/// The outputs of a model whose backend shapes differ from the client's.
#[derive(Debug)]
pub(crate) struct OutputReshape {
    batch_dims: usize,
    outputs: Vec<OutputSpec>,
}

impl OutputReshape {
    /// `None` if no output of the model is reshaped.
    pub(crate) fn new(spec: &ModelSpec) -> Option<Arc<Self>> {
        let reshaped = spec.outputs.iter().filter(|output| output.reshape.is_some());
        let outputs: Vec<OutputSpec> = reshaped.cloned().collect();
        let batch_dims = usize::from(spec.max_batch_size > 0);
        (!outputs.is_empty()).then(|| Arc::new(Self { batch_dims, outputs }))
    }

    /// A sender that reshapes what passes through it.
    pub(crate) fn wrap(self: &Arc<Self>, sender: ResponseSender) -> ResponseSender {
        let this = self.clone();
        sender.wrap(move |inner| Box::new(Reshaping { reshape: this, inner }))
    }

    fn apply(&self, response: &mut InferenceResponse) {
        for output in &mut response.outputs {
            let spec = self.outputs.iter().find(|spec| *spec.name == *output.name);
            let Some((spec, pattern)) = spec.and_then(|s| Some((s, s.reshape.as_ref()?))) else {
                continue;
            };
            let dims = output.shape.dims();
            let (batch, dims) = dims.split_at(self.batch_dims.min(dims.len()));
            let mut client_dims = batch.to_vec();
            client_dims.extend(fill_variable_dims(&spec.dims, pattern, dims));
            if let Ok(shape) = Shape::new(&client_dims)
                && shape.element_count() == output.shape.element_count()
            {
                output.shape = shape;
            }
        }
    }
}

struct Reshaping {
    reshape: Arc<OutputReshape>,
    inner: Box<dyn ResponseSink>,
}

impl ResponseSink for Reshaping {
    fn deliver(&mut self, mut reply: Reply) {
        if let Reply::Response { result: Ok(response), .. } = &mut reply {
            self.reshape.apply(response);
        }
        self.inner.deliver(reply);
    }
}
