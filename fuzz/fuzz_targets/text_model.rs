//! The directory of a text model: the first byte selects the file that the rest is the content of.
//! All other files are valid. A model that can be read converts a few texts.

#![no_main]

use galatea_text::{TextDescription, TextModel, TextModelFiles, TextSettings};
use libfuzzer_sys::fuzz_target;

const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": null, "decoder": null, "model": {"type": "WordLevel", "unk_token": "?",
        "vocab": {"?": 0, "a": 1, "b": 2}}}"#;
const MODULES: &str = r#"[{"path": "", "type": "m.Transformer"}, {"path": "p", "type": "m.Pooling"},
    {"path": "d", "type": "m.Dense"}]"#;
/// A layer with one input, one output and no bias: the header has 72 bytes, which is `H`.
const WEIGHTS: &str = "H\0\0\0\0\0\0\0\
    {\"linear.weight\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[0,4]}}    abc=";

/// The files, with their valid contents.
const FILES: [(&str, &str); 9] = [
    ("tokenizer.json", TOKENIZER),
    ("modules.json", MODULES),
    ("p/config.json", "{}"),
    ("config.json", "{}"),
    ("config_sentence_transformers.json", "{\"prompts\": {\"q\": \"a \"}}"),
    ("sentence_bert_config.json", "{\"max_seq_length\": 16}"),
    ("tokenizer_config.json", "{}"),
    ("d/config.json", "{\"in_features\": 1, \"out_features\": 1, \"bias\": false}"),
    ("d/model.safetensors", WEIGHTS),
];

struct Directory<'a> {
    changed: &'a str,
    content: &'a [u8],
}

impl TextModelFiles for Directory<'_> {
    fn read(&self, path: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, String> {
        if path == self.changed {
            let is_short = (self.content.len() as u64) < bytes_max;
            return is_short.then(|| Some(self.content.to_vec())).ok_or_else(String::new);
        }
        let known = FILES.iter().find(|(name, _)| *name == path);
        Ok(known.map(|(_, content)| content.as_bytes().to_vec()))
    }
}

fn read(data: &[u8]) -> Option<()> {
    let (select, content) = data.split_first()?;
    let (changed, _) = FILES[usize::from(*select) % FILES.len()];
    let directory = Directory { changed, content };
    let description = TextDescription::read(&directory, &TextSettings::default()).ok()?;
    let model = TextModel::read(&directory, description).ok()?;
    for text in ["", "a b", "\u{1f600} \u{0} e\u{301}", &"a ".repeat(64)] {
        let _ = model.encode(text, None, Some(false));
        let _ = model.encode_pair((text, "b"), None, None);
    }
    let _ = model.apply_dense(vec![0.5; 3]);
    Some(())
}

fuzz_target!(
    // The tokenizer's library panics on some files, which the crate converts to an error. The
    // fuzzer's hook would end the process before.
    init: std::panic::set_hook(Box::new(|_| ())),
    |data: &[u8]| {
        read(data);
    }
);
