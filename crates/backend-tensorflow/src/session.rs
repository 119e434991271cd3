//! An instance's session.

use std::sync::Arc;

use galatea_infer::Status;
use galatea_runtime::{ByteRegion, OutputPlace, Session};
use galatea_stdx::Lock;
use galatea_tensor::{DataType, Shape};
use smallvec::SmallVec;

use crate::api::{GraphSession, Library, TensorName, TfOutputs, TfTensor};
use crate::graph::GraphFacts;

/// The number of input and output combinations that a session is prepared for, in addition to those
/// with all outputs. The library keeps a compiled form of the graph for each combination, and never
/// frees it. As in Triton, combinations of optional inputs are not limited: a request that omits an
/// input can't be executed in any other way.
const COMBINATIONS_MAX: usize = 64;

/// A loaded graph and its tensors.
pub(crate) struct LoadedGraph {
    pub(crate) session: GraphSession,
    /// The graph tensors for the interface's inputs.
    pub(crate) inputs: Vec<TensorName>,
    /// The graph tensors for the interface's outputs.
    pub(crate) outputs: Vec<TensorName>,
    pub(crate) facts: GraphFacts,
    pub(crate) combinations: Combinations,
}

/// The combinations of inputs and outputs that a session has executed.
#[derive(Default)]
pub(crate) struct Combinations(Lock<Vec<Combination>>);

/// The indices of the inputs, a separator, and the indices of the outputs.
type Combination = SmallVec<[usize; 8]>;

/// The outputs that a run computes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum ComputedOutputs {
    Wanted,
    /// All outputs, because there are too many combinations.
    All,
}

impl Combinations {
    /// The outputs to compute for a combination. Once there are too many combinations, any new
    /// combination computes all outputs.
    fn choose(&self, combination: &Combination) -> ComputedOutputs {
        let known = self.0.lock("find a combination of tensors");
        if known.len() < COMBINATIONS_MAX || known.contains(combination) {
            ComputedOutputs::Wanted
        } else {
            ComputedOutputs::All
        }
    }

    /// Adds a combination that was executed without an error.
    fn remember(&self, combination: Combination) {
        let mut known = self.0.lock("add a combination of tensors");
        if known.len() < COMBINATIONS_MAX && !known.contains(&combination) {
            known.push(combination);
        }
    }
}

fn combination(inputs: &[usize], wanted: &[usize]) -> Combination {
    inputs.iter().copied().chain([usize::MAX]).chain(wanted.iter().copied()).collect()
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
        let combination = combination(&given, &wanted);
        let computed = graph.combinations.choose(&combination);
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
        let run = graph.session.run(fed.into_iter(), fetched.into_iter(), graph.facts)?;
        match computed {
            ComputedOutputs::Wanted => {
                graph.combinations.remember(combination);
                Ok(run)
            }
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
            let one = combination(&[0], &[output]);
            // A session that failed, or is executed at the same time, doesn't occupy a place.
            assert_eq!(combinations.choose(&one), ComputedOutputs::Wanted);
            combinations.remember(one.clone());
            combinations.remember(one);
        }
        let one_more = combination(&[0], &[COMBINATIONS_MAX]);
        assert_eq!(combinations.choose(&one_more), ComputedOutputs::All);
        combinations.remember(one_more.clone());
        assert_eq!(combinations.choose(&one_more), ComputedOutputs::All);
        assert_eq!(combinations.choose(&combination(&[0], &[3])), ComputedOutputs::Wanted);
        assert_eq!(combinations.choose(&combination(&[1], &[3])), ComputedOutputs::All);
    }

    #[test]
    fn failed_runs_are_no_combinations() {
        let combinations = Combinations::default();
        for output in 0..2 * COMBINATIONS_MAX {
            let one = combination(&[0], &[output]);
            assert_eq!(combinations.choose(&one), ComputedOutputs::Wanted);
        }
    }
}
