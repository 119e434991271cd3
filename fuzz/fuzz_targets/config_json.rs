//! A configuration in JSON, as clients send it with a load. The memory that it takes is bounded
//! by its length.

#![no_main]

use galatea_config::{ConfigDraft, SupportedFeatures};
use galatea_fuzz::bounded_by_length;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    bounded_by_length(text, |text| {
        let Ok(mut draft) = ConfigDraft::from_json("config", text) else { return };
        let _ = draft.resolve_name_and_backend("model", &[String::from("model.onnx")]);
        if let Ok(spec) = draft.into_validated_spec(&SupportedFeatures::default()) {
            let _ = spec.to_json();
        }
    });
    let Ok(mut draft) = ConfigDraft::from_json("config", text) else { return };
    if draft.resolve_name_and_backend("model", &[String::from("model.onnx")]).is_err() {
        return;
    }
    let Ok(spec) = draft.into_validated_spec(&SupportedFeatures::default()) else { return };
    // What the server shows of a model can be sent with a load.
    let shown = spec.to_json();
    let again = ConfigDraft::from_json("config", &shown).expect("a configuration that was shown");
    let again = again
        .into_validated_spec(&SupportedFeatures::default())
        .expect("a configuration that was accepted");
    assert_eq!(again.to_json(), shown);
});
