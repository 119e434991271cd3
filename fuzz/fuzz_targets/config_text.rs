//! `config.pbtxt`: parsed, checked, and printed as JSON, which must mean the same. The memory
//! that it takes is bounded by its length.

#![no_main]

use galatea_config::{ConfigDraft, SupportedFeatures};
use galatea_fuzz::bounded_by_length;
use galatea_pbtxt::parse_config_draft;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    bounded_by_length(text, |text| {
        let Ok(mut draft) = parse_config_draft("config.pbtxt", text) else { return };
        let _ = draft.resolve_name_and_backend("model", &[String::from("model.onnx")]);
        if let Ok(spec) = draft.into_validated_spec(&SupportedFeatures::default()) {
            let _ = spec.to_protobuf();
            let _ = spec.to_json();
        }
    });
    let Ok(draft) = parse_config_draft("config.pbtxt", text) else { return };
    // Numbers that JSON has no text for, such as NaN, are not read back.
    if let Ok(read) = ConfigDraft::from_json("config.json", &draft.to_json()) {
        assert_eq!(read.to_json(), draft.to_json());
    }
});
