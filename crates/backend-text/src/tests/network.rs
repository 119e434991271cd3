//! Networks that are Rust functions.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use galatea_backend::{
    Backend, ExecutionPolicy, Instance, Model, ModelFiles, ModelHost, Placement, RefusedBatch,
};
use galatea_config::{ConfigDraft, ModelSpec};
use galatea_infer::{
    ExecutionReadings, ExecutionTimes, InferenceResponse, InputTensor, OutputTensor,
    PendingRequest, Status,
};
use galatea_tensor::{Buffer, DataType, Shape};

/// The output of a network.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum NetworkShape {
    /// A vector for each token: its number, and the length of the padded row.
    PerToken,
    /// The sum of the tokens' numbers, and zeros.
    Embedding,
    /// Same, with this width, plus the sum of the texts' numbers.
    Logits(usize),
    /// Same as [`NetworkShape::PerToken`], with an input that no text has.
    UnknownInput,
}

/// A backend for such networks.
pub(super) struct FakeNetworks {
    pub(super) shape: NetworkShape,
    /// The padded shape of each run.
    pub(super) runs: Arc<Mutex<Vec<Vec<i64>>>>,
}

impl Backend for FakeNetworks {
    fn execution_policy(&self, _: &ModelSpec) -> ExecutionPolicy {
        ExecutionPolicy::Blocking
    }

    fn auto_complete_config(
        &self,
        draft: &mut ConfigDraft,
        files: &dyn ModelFiles,
    ) -> Result<(), Status> {
        files.resolve(draft.default_model_filename())?;
        draft.add_input("attention_mask", DataType::Int64, &[-1]);
        draft.add_input("input_ids", DataType::Int64, &[-1]);
        draft.add_input("token_type_ids", DataType::Int32, &[-1]);
        if self.shape == NetworkShape::UnknownInput {
            draft.add_input("pixel_values", DataType::Fp32, &[-1]);
        }
        match self.shape {
            NetworkShape::PerToken | NetworkShape::UnknownInput => {
                draft.add_output("last_hidden_state", DataType::Fp32, &[-1, 2]);
            }
            NetworkShape::Embedding => {
                draft.add_output("sentence_embedding", DataType::Fp32, &[2]);
            }
            NetworkShape::Logits(width) => {
                draft.add_output("logits", DataType::Fp32, &[i64::try_from(width).unwrap()]);
            }
        }
        Ok(())
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        _: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        assert_eq!(spec.backend, "fake");
        assert!(spec.parameters.keys().all(|name| !name.starts_with("text_")));
        let _ = host;
        Ok(Box::new(FakeNetwork { shape: self.shape, runs: self.runs.clone() }))
    }
}

#[derive(Clone)]
struct FakeNetwork {
    shape: NetworkShape,
    runs: Arc<Mutex<Vec<Vec<i64>>>>,
}

impl Model for FakeNetwork {
    fn create_instance(&self, _: &Placement) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(self.clone()))
    }
}

impl Instance for FakeNetwork {
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        for pending in requests {
            let request = pending.request();
            let names: Vec<&str> = request.inputs.iter().map(|input| &*input.name).collect();
            assert_eq!(names, ["attention_mask", "input_ids", "token_type_ids"]);
            let output = self.run(&request.inputs);
            let response = output.map(|output| InferenceResponse {
                model_name: Arc::from("m"),
                model_version: 1,
                id: String::new(),
                parameters: Default::default(),
                outputs: vec![output],
            });
            let now = Instant::now();
            let readings =
                ExecutionReadings { start: now, compute_start: now, compute_end: now, end: now };
            pending.complete(response, &ExecutionTimes::from(readings));
        }
        Ok(())
    }
}

impl FakeNetwork {
    fn run(&self, inputs: &[InputTensor]) -> Result<OutputTensor, Status> {
        let [mask, ids, types] = inputs else { panic!("three inputs") };
        let shape = ids.shape.dims().to_vec();
        assert_eq!((mask.shape.dims(), types.shape.dims()), (&shape[..], &shape[..]));
        self.runs.lock().unwrap().push(shape.clone());
        let long = |input: &InputTensor| -> Vec<i64> {
            let bytes = input.data.host_bytes().unwrap();
            bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
        };
        let (mask, ids) = (long(mask), long(ids));
        let bytes = types.data.host_bytes().unwrap().as_chunks().0;
        let types: Vec<i64> = bytes.iter().map(|it| i64::from(i32::from_le_bytes(*it))).collect();
        let length = usize::try_from(shape[1]).unwrap();
        if length == 13 {
            return Err(Status::internal("13 is unlucky"));
        }
        let float = |number: i64| f32::from(i16::try_from(number).unwrap());
        let (name, dims, values): (_, _, Vec<f32>) = match self.shape {
            NetworkShape::PerToken | NetworkShape::UnknownInput => {
                // Padding has a vector that no result may contain.
                let vectors = ids.iter().zip(&mask).flat_map(|(id, is_token)| match is_token {
                    0 => [f32::NAN, f32::NAN],
                    _ => [float(*id), float(shape[1])],
                });
                ("last_hidden_state", vec![shape[0], shape[1], 2], vectors.collect())
            }
            NetworkShape::Embedding | NetworkShape::Logits(_) => {
                let (name, width) = match self.shape {
                    NetworkShape::Logits(width) => ("logits", width),
                    _ => ("sentence_embedding", 2),
                };
                let rows = ids.chunks(length).zip(types.chunks(length));
                let values = rows.flat_map(|(ids, types)| {
                    let sum = float(ids.iter().sum::<i64>() + types.iter().sum::<i64>());
                    std::iter::once(sum).chain(std::iter::repeat_n(0.0, width - 1))
                });
                (name, vec![shape[0], i64::try_from(width).unwrap()], values.collect())
            }
        };
        Ok(OutputTensor {
            name: Arc::from(name),
            datatype: DataType::Fp32,
            shape: Shape::new(&dims).unwrap(),
            data: Buffer::from_vec(values.iter().flat_map(|value| value.to_le_bytes()).collect()),
        })
    }
}
