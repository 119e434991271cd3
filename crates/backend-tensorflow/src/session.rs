//! The session of an instance.

use std::sync::Arc;

use galatea_infer::Status;
use galatea_runtime::{ByteRegion, OutputPlace, Session};
use galatea_stdx::Lock;
use galatea_tensor::{DataType, Shape};
use smallvec::SmallVec;

use crate::api::{GraphSession, Library, TensorName, TfOutputs, TfTensor};
use crate::graph::GraphFacts;

/// The number of combinations of inputs and outputs that a session is prepared for, besides those
/// with all outputs. The library keeps a compiled form of the graph for each combination, and never
/// frees it.
const COMBINATIONS_MAX: usize = 64;

/// A loaded graph with its tensors.
pub(crate) struct LoadedGraph {
    pub(crate) session: GraphSession,
    /// The graph's tensors for the interface's inputs.
    pub(crate) inputs: Vec<TensorName>,
    /// The graph's tensors for the interface's outputs.
    pub(crate) outputs: Vec<TensorName>,
    pub(crate) facts: GraphFacts,
    pub(crate) combinations: Combinations,
}

/// The combinations of inputs and outputs that a session has executed.
#[derive(Default)]
pub(crate) struct Combinations(Lock<KnownCombinations>);

#[derive(Default)]
struct KnownCombinations {
    /// Combinations of inputs with some of the outputs.
    of_some: Vec<Combination>,
    /// Combinations of inputs with all outputs, which serve other requests too.
    of_all: Vec<Combination>,
}

/// The indices of inputs, a separator, and the indices of outputs.
type Combination = SmallVec<[usize; 8]>;

/// The outputs that a run computes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum ComputedOutputs {
    Wanted,
    /// All of them, because there are too many combinations.
    All,
}

impl Combinations {
    /// The outputs to compute for a combination. Once there are too many combinations, all outputs
    /// are computed. Only optional inputs can then make one too many.
    fn choose(&self, inputs: &[usize], wanted: &[usize]) -> Result<ComputedOutputs, Status> {
        let mut known = self.0.lock("find a combination of tensors");
        let combination =
            inputs.iter().copied().chain([usize::MAX]).chain(wanted.iter().copied()).collect();
        if remember(&mut known.of_some, combination) {
            return Ok(ComputedOutputs::Wanted);
        }
        if remember(&mut known.of_all, Combination::from_slice(inputs)) {
            return Ok(ComputedOutputs::All);
        }
        Err(Status::unavailable(format!(
            "a session of TensorFlow executes at most {COMBINATIONS_MAX} combinations of optional \
             inputs"
        )))
    }
}

/// Adds a combination unless it is known. Returns false if it would be one too many.
fn remember(known: &mut Vec<Combination>, combination: Combination) -> bool {
    if known.contains(&combination) {
        return true;
    }
    let fits = known.len() < COMBINATIONS_MAX;
    if fits {
        known.push(combination);
    }
    fits
}

/// A session, which several instances may share.
pub(crate) struct TensorFlowSession {
    pub(crate) library: Arc<Library>,
    pub(crate) graph: Arc<LoadedGraph>,
}

impl Session for TensorFlowSession {
    type Tensor<'data> = TfTensor;
    type Outputs<'data> = TfOutputs;

    fn tensor<'data>(
        &self,
        datatype: DataType,
        shape: &Shape,
        data: ByteRegion<'data>,
    ) -> Result<Self::Tensor<'data>, Status> {
        let sharing = self.graph.facts.input_sharing;
        TfTensor::of_elements(&self.library, datatype, shape, data, sharing)
    }

    fn strings<'data>(
        &self,
        shape: &Shape,
        parts: &[&[u8]],
    ) -> Result<Self::Tensor<'data>, Status> {
        TfTensor::of_strings(&self.library, shape, parts)
    }

    fn run<'data>(
        &mut self,
        inputs: &[(usize, Self::Tensor<'data>)],
        outputs: &[(usize, OutputPlace)],
    ) -> Result<Self::Outputs<'data>, Status> {
        let graph = &*self.graph;
        let given: SmallVec<[usize; 8]> = inputs.iter().map(|(index, _)| *index).collect();
        let wanted: SmallVec<[usize; 8]> = outputs.iter().map(|(index, _)| *index).collect();
        let computed = graph.combinations.choose(&given, &wanted)?;
        let fed: Option<SmallVec<[(TensorName, &TfTensor); 8]>> = inputs
            .iter()
            .map(|(index, tensor)| Some((*graph.inputs.get(*index)?, tensor)))
            .collect();
        let fetched: Option<SmallVec<[TensorName; 4]>> = match computed {
            ComputedOutputs::Wanted => {
                wanted.iter().map(|&index| graph.outputs.get(index).copied()).collect()
            }
            ComputedOutputs::All => Some(graph.outputs.iter().copied().collect()),
        };
        let (Some(fed), Some(fetched)) = (fed, fetched) else {
            return Err(Status::internal("a run has a tensor that the model doesn't have"));
        };
        let run =
            graph.session.run(fed.into_iter(), fetched.into_iter(), graph.facts.output_memory)?;
        match computed {
            ComputedOutputs::Wanted => Ok(run),
            ComputedOutputs::All => run.select(&wanted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_are_bounded() {
        let combinations = Combinations::default();
        for output in 0..COMBINATIONS_MAX {
            assert_eq!(combinations.choose(&[0], &[output]), Ok(ComputedOutputs::Wanted));
        }
        let one_more = COMBINATIONS_MAX;
        assert_eq!(combinations.choose(&[0], &[one_more]), Ok(ComputedOutputs::All));
        assert_eq!(combinations.choose(&[0], &[3]), Ok(ComputedOutputs::Wanted));
        for input in 1..COMBINATIONS_MAX {
            assert_eq!(combinations.choose(&[input], &[0]), Ok(ComputedOutputs::All));
        }
        assert!(combinations.choose(&[one_more], &[0]).is_err());
        assert_eq!(combinations.choose(&[0], &[one_more]), Ok(ComputedOutputs::All));
    }
}
