//! `reshape` of inputs and outputs, for models whose backend uses different shapes than clients.

use std::sync::Arc;

use galatea_config::{ModelSpec, OutputSpec};
use galatea_infer::{InferenceResponse, Reply, ResponseSender, ResponseSink, Status};
use galatea_tensor::Shape;

/// Converts reshaped outputs to the shapes that clients expect.
#[derive(Debug)]
pub(crate) struct OutputReshape {
    batch_dims: usize,
    outputs: Vec<OutputSpec>,
}

impl OutputReshape {
    /// Creates the reshaping; `None` if no output of the model is reshaped.
    pub(crate) fn new(spec: &ModelSpec) -> Option<Arc<Self>> {
        let reshaped = spec.outputs.iter().filter(|output| output.reshape.is_some());
        let outputs: Vec<OutputSpec> = reshaped.cloned().collect();
        let batch_dims = usize::from(spec.max_batch_size > 0);
        (!outputs.is_empty()).then(|| Arc::new(Self { batch_dims, outputs }))
    }

    /// Wraps a sender so that the responses passing through it are reshaped.
    pub(crate) fn wrap(self: &Arc<Self>, sender: ResponseSender) -> ResponseSender {
        let this = self.clone();
        sender.wrap(move |inner| Box::new(ReshapingSink { reshape: this, inner }))
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

/// Translates the variable dimensions of a shape. `dims` must match `pattern`. Its sizes at the
/// variable positions are moved, in order, to the variable positions of `target`.
pub(crate) fn fill_variable_dims(target: &[i64], pattern: &[i64], dims: &[i64]) -> Vec<i64> {
    let mut sizes = pattern.iter().zip(dims).filter(|(want, _)| **want == -1).map(|(_, got)| *got);
    target.iter().map(|&dim| if dim == -1 { sizes.next().unwrap_or(1) } else { dim }).collect()
}

struct ReshapingSink {
    reshape: Arc<OutputReshape>,
    inner: Box<dyn ResponseSink>,
}

impl ResponseSink for ReshapingSink {
    fn deliver(&mut self, mut reply: Reply) {
        if let Reply::Response { result: Ok(response), .. } = &mut reply {
            self.reshape.apply(response);
        }
        self.inner.deliver(reply);
    }

    fn refuse(&mut self, status: Status) {
        self.inner.refuse(status);
    }
}
