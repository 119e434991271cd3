//! The documents that describe models.

use crate::json::push_string;

/// A model in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelEntry {
    /// The name.
    pub id: String,
    /// The time at which the server got the model, in seconds since 1970.
    pub created_secs: u64,
}

fn push_model(text: &mut Vec<u8>, model: &ModelEntry) {
    text.extend_from_slice(b"{\"id\":");
    push_string(text, &model.id);
    text.extend_from_slice(b",\"created\":");
    text.extend_from_slice(itoa::Buffer::new().format(model.created_secs).as_bytes());
    text.extend_from_slice(b",\"object\":\"model\",\"owned_by\":\"Triton Inference Server\"}");
}

/// Formats a model.
#[must_use]
pub fn model_document(model: &ModelEntry) -> Vec<u8> {
    let mut text = Vec::new();
    push_model(&mut text, model);
    text
}

/// Formats a list of models.
#[must_use]
pub fn model_list_document(models: &[ModelEntry]) -> Vec<u8> {
    let mut text = b"{\"object\":\"list\",\"data\":[".to_vec();
    for (index, model) in models.iter().enumerate() {
        if index > 0 {
            text.push(b',');
        }
        push_model(&mut text, model);
    }
    text.extend_from_slice(b"]}");
    text
}

/// Formats the response to an unload.
#[must_use]
pub fn unloaded_document(model: &str) -> Vec<u8> {
    let mut text = b"{\"status\":\"success\",\"model\":".to_vec();
    push_string(&mut text, model);
    text.push(b'}');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_listed() {
        let model = |id: &str| ModelEntry { id: id.to_owned(), created_secs: 7 };
        let one =
            r#"{"id":"a\"","created":7,"object":"model","owned_by":"Triton Inference Server"}"#;
        assert_eq!(model_document(&model("a\"")), one.as_bytes());
        let list = model_list_document(&[model("a\""), model("a\"")]);
        assert_eq!(list, format!("{{\"object\":\"list\",\"data\":[{one},{one}]}}").into_bytes());
        assert_eq!(unloaded_document("m"), br#"{"status":"success","model":"m"}"#);
    }
}
