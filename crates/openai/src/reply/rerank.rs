//! Scores of documents.

use std::sync::Arc;

use galatea_infer::InferenceResponse;
use galatea_tensor::DataType;

use super::outputs::{Usage, output};
use crate::json::{JsonValue, push_compact, push_string};
use crate::model::{ModelDescription, Names};
use crate::request::RerankForm;
use crate::{Failure, RerankRequest};

/// The output of a text model that contains the scores.
const SCORES: &str = "scores";

/// Scores whose response is still arriving.
pub struct Rerank {
    id: String,
    model: String,
    names: Arc<Names>,
    form: RerankForm,
    results_max: usize,
    count: usize,
    /// The documents, if the client wants them back.
    documents: Option<Vec<String>>,
}

impl Rerank {
    /// Begins the scores of documents by a model. `id` identifies the response.
    #[must_use]
    pub fn new(description: &ModelDescription, request: &RerankRequest, id: String) -> Self {
        let documents = request.documents();
        Self {
            id,
            model: request.model().to_owned(),
            names: description.names().clone(),
            form: request.form(),
            results_max: request.results_max(),
            count: documents.len(),
            documents: request
                .returns_documents()
                .then(|| documents.into_iter().map(str::to_owned).collect()),
        }
    }

    /// Returns the document for a model's response, with the highest score first.
    ///
    /// # Errors
    ///
    /// Code 500 if the output does not have one score for each document.
    pub fn document(&self, response: &InferenceResponse) -> Result<Vec<u8>, Failure> {
        let mut ranked: Vec<(usize, f32)> =
            self.scores(response)?.into_iter().enumerate().collect();
        ranked.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        ranked.truncate(self.results_max);
        let mut json = Vec::new();
        if self.form == RerankForm::Results {
            json.extend_from_slice(b"{\"id\":");
            push_string(&mut json, &self.id);
            json.extend_from_slice(b",\"model\":");
            push_string(&mut json, &self.model);
            json.extend_from_slice(b",\"results\":");
        }
        json.push(b'[');
        for (place, (index, score)) in ranked.into_iter().enumerate() {
            if place > 0 {
                json.push(b',');
            }
            self.push_result(index, score, &mut json);
        }
        json.push(b']');
        if self.form == RerankForm::Results {
            let tokens = Usage::prompt_tokens_of(response, &self.names).unwrap_or(0);
            let usage =
                format!(",\"usage\":{{\"prompt_tokens\":{tokens},\"total_tokens\":{tokens}}}}}");
            json.extend_from_slice(usage.as_bytes());
        }
        Ok(json)
    }

    /// Returns the number of prompt tokens, if the response states it.
    #[must_use]
    pub fn prompt_tokens(&self, response: &InferenceResponse) -> Option<u64> {
        u64::try_from(Usage::prompt_tokens_of(response, &self.names)?).ok()
    }

    fn push_result(&self, index: usize, score: f32, json: &mut Vec<u8>) {
        let text = self.documents.as_ref().and_then(|documents| documents.get(index));
        let name = if self.form == RerankForm::Results { "relevance_score" } else { "score" };
        json.extend_from_slice(format!("{{\"index\":{index},\"{name}\":").as_bytes());
        push_compact(json, &JsonValue::Float(f64::from(score)));
        match (text, self.form) {
            (Some(text), RerankForm::Results) => {
                json.extend_from_slice(b",\"document\":{\"text\":");
                push_string(json, text);
                json.push(b'}');
            }
            (Some(text), RerankForm::List) => {
                json.extend_from_slice(b",\"text\":");
                push_string(json, text);
            }
            (None, _) => {}
        }
        json.push(b'}');
    }

    fn scores(&self, response: &InferenceResponse) -> Result<Vec<f32>, Failure> {
        let output = output(response, SCORES).filter(|output| output.datatype == DataType::Fp32);
        let data = output.and_then(|output| output.data.host_bytes());
        let scores: Vec<f32> = data
            .map(|data| data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
            .unwrap_or_default();
        if scores.len() != self.count {
            let (found, count) = (scores.len(), self.count);
            let text = format!("the model has {found} scores for {count} documents");
            return Err(Failure::server(text));
        }
        Ok(scores)
    }
}
