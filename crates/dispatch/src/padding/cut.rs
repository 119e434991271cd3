//! Cuts a padded request's outputs back to the request's own length.

use std::any::Any;
use std::sync::Arc;

use galatea_config::UnpaddedOutput;
use galatea_infer::{InferenceResponse, OutputTensor, Reply, ResponseSink, Status};
use galatea_tensor::{Buffer, Shape};

use super::cut_statistics::CutStatistics;

/// A sink that cuts the responses passing through it.
pub(super) struct CutSink {
    cut: ResponseCut,
    statistics: Option<Arc<CutStatistics>>,
    inner: Box<dyn ResponseSink>,
}

/// The parameters for cutting the responses to a request.
pub(super) struct ResponseCut {
    pub(super) outputs: Vec<UnpaddedOutput>,
    /// The request's own length.
    pub(super) length: u32,
    /// The length to which the request was padded.
    pub(super) padded_length: u32,
}

impl CutSink {
    pub(super) fn boxed(
        cut: ResponseCut,
        statistics: Option<Arc<CutStatistics>>,
        inner: Box<dyn ResponseSink>,
    ) -> Box<dyn ResponseSink> {
        Box::new(Self { cut, statistics, inner })
    }

    fn note(&self, is_cut: bool) {
        if let Some(statistics) = &self.statistics {
            statistics.cut(is_cut);
        }
    }
}

impl ResponseCut {
    fn apply(&self, response: &mut InferenceResponse) -> Result<(), Status> {
        for output in &mut response.outputs {
            let Some(cut) = self.outputs.iter().find(|cut| *cut.name == *output.name) else {
                continue;
            };
            for &axis in &cut.axes {
                self.cut(output, axis)?;
            }
        }
        Ok(())
    }

    fn cut(&self, output: &mut OutputTensor, axis: usize) -> Result<(), Status> {
        let mut dims = output.shape.dims().to_vec();
        let wrong_size = |reason: &str| {
            Status::internal(format!(
                "output '{}' of shape {} can't be cut from {} to {} in dimension {axis}: {reason}",
                output.name, output.shape, self.padded_length, self.length
            ))
        };
        let Some(size) = dims.get_mut(axis) else {
            return Err(wrong_size("it has no such dimension"));
        };
        // Any other size is unrelated to the size of the inputs, so the part to cut is unknown.
        if *size != i64::from(self.padded_length) {
            return Err(wrong_size("it is not as long as the padded inputs"));
        }
        *size = i64::from(self.length);
        let shape = Shape::new(&dims).map_err(|error| wrong_size(&error.to_string()))?;
        let Some(bytes) = output.data.host_bytes() else {
            return Err(wrong_size("it is not in CPU memory"));
        };
        let cut = || {
            let element = output.datatype.byte_size()?;
            let inner = element_count(dims.get(axis + 1..)?)?.checked_mul(element)?;
            let kept = usize::try_from(self.length).ok()?.checked_mul(inner)?;
            let whole = usize::try_from(self.padded_length).ok()?.checked_mul(inner)?;
            let outer = element_count(dims.get(..axis)?)?;
            if outer == 1 {
                // With one row the kept elements come first, so nothing is copied.
                let part = bytes.get(..kept).map(|_| bytes.slice(..kept))?;
                return Some(Buffer::from_bytes(part).with_retained_bytes(bytes.len()));
            }
            let mut rows = Vec::with_capacity(outer.checked_mul(kept)?);
            for number in 0..outer {
                let from = number.checked_mul(whole)?;
                rows.extend_from_slice(bytes.get(from..from.checked_add(kept)?)?);
            }
            Some(Buffer::from_vec(rows))
        };
        let data = cut().ok_or_else(|| wrong_size("it has fewer elements than its shape"))?;
        output.shape = shape;
        output.data = data;
        Ok(())
    }
}

fn element_count(dims: &[i64]) -> Option<usize> {
    dims.iter().try_fold(1_usize, |product, dim| product.checked_mul(usize::try_from(*dim).ok()?))
}

impl ResponseSink for CutSink {
    fn deliver(&mut self, mut reply: Reply) {
        let mut is_cut = true;
        if let Reply::Response { result, .. } = &mut reply
            && let Ok(response) = result
            && let Err(status) = self.cut.apply(response)
        {
            *result = Err(status);
            is_cut = false;
        }
        // This precedes the reply, so that a client that has the reply sees it in the statistics.
        self.note(is_cut);
        self.inner.deliver(reply);
    }

    fn refuse(&mut self, status: Status) {
        self.note(true);
        self.inner.refuse(status);
    }

    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.inner.underlying()
    }
}

/// Reports on drop that no response was cut, for a sender that was discarded.
impl Drop for CutSink {
    fn drop(&mut self) {
        self.note(true);
    }
}
