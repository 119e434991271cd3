//! Tests of model directories.

use std::collections::BTreeMap;

use crate::{
    Activation, EmbeddingTask, PoolingMode, PoolingSettings, TextDescription, TextModel,
    TextModelFiles, TextSettings, TextTask,
};

/// A tokenizer of words, without special tokens.
const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": null, "decoder": null, "model": {"type": "WordLevel", "unk_token": "?",
        "vocab": {"?": 0, "a": 1, "b": 2, "c": 3, "d": 4, "query": 5, ":": 6}}}"#;

const MODULES: &str = r#"[
    {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]"#;

struct Files(BTreeMap<&'static str, String>);

impl TextModelFiles for Files {
    fn read(&self, path: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, String> {
        assert!(bytes_max > 0);
        Ok(self.0.get(path).map(|content| content.clone().into_bytes()))
    }
}

fn files(listed: &[(&'static str, &str)]) -> Files {
    Files(listed.iter().map(|(path, content)| (*path, (*content).to_owned())).collect())
}

fn settings(listed: &[(&str, &str)]) -> TextSettings {
    let pairs = listed.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    TextSettings::parse(&pairs.collect()).unwrap()
}

fn read(listed: &[(&'static str, &str)], parameters: &[(&str, &str)]) -> Result<TextModel, String> {
    let files = files(listed);
    let description = TextDescription::read(&files, &settings(parameters));
    let model = description.and_then(|description| TextModel::read(&files, description));
    model.map_err(|error| error.to_string())
}

fn check_task(listed: &[(&'static str, &str)], parameters: &[(&str, &str)], expected: TextTask) {
    let all: Vec<_> = [("tokenizer.json", TOKENIZER)].iter().chain(listed).copied().collect();
    assert_eq!(read(&all, parameters).unwrap().description.task, expected);
}

fn check_error(listed: &[(&'static str, &str)], parameters: &[(&str, &str)], expected: &str) {
    let base = [("tokenizer.json", TOKENIZER)];
    let all: Vec<_> = base.iter().chain(listed).copied().collect();
    assert_eq!(read(&all, parameters).unwrap_err(), expected);
}

fn embedding(modes: &[PoolingMode], include_prompt: bool, normalize: bool) -> TextTask {
    let pooling =
        (!modes.is_empty()).then(|| PoolingSettings { modes: modes.to_vec(), include_prompt });
    TextTask::Embedding(EmbeddingTask { pooling, normalize })
}

fn scores(is_pair: bool, activation: Activation, labels: &[&str]) -> TextTask {
    let labels = labels.iter().map(|label| (*label).to_owned()).collect();
    TextTask::Scores { is_pair, activation, labels }
}

#[test]
fn modules_describe_embeddings() {
    use PoolingMode::{Cls, Mean};
    let pooling = "{\"pooling_mode_cls_token\": true, \"include_prompt\": false}";
    let listed = [("modules.json", MODULES), ("1_Pooling/config.json", pooling)];
    check_task(&listed, &[], embedding(&[Cls], false, true));
    check_task(&listed, &[("text_pooling", "mean")], embedding(&[Mean], false, true));
    check_task(&listed, &[("text_pooling", "none")], embedding(&[], true, true));
    check_task(&listed, &[("text_normalize", "false")], embedding(&[Cls], false, false));
    // A network without modules gets the default pooling.
    check_task(&[], &[], embedding(&[Mean], true, false));
    let dense = MODULES.replace("models.Normalize", "models.Dense");
    check_error(
        &[("modules.json", &dense)],
        &[],
        "modules.json: module 2 of the type 'sentence_transformers.models.Dense' is not supported \
         there",
    );
    check_error(&[("modules.json", "{}")], &[], "modules.json: the file is not a list of modules");
    let no_pooling = "1_Pooling/config.json: the file is missing";
    check_error(&[("modules.json", MODULES)], &[], no_pooling);
    let pathless = MODULES.replace("\"1_Pooling\"", "1");
    let no_path = "modules.json: module 1 has no 'path' that is a string";
    check_error(&[("modules.json", &pathless)], &[], no_path);
    check_error(
        &[],
        &[("text_activation", "sigmoid")],
        "parameter 'text_activation': a model whose outputs are embeddings doesn't have this \
         setting",
    );
}

#[test]
fn configurations_describe_scores() {
    use Activation::{Identity, Sigmoid, Softmax};
    let classifier =
        |rest: &str| format!("{{\"architectures\": [\"BertForSequenceClassification\"], {rest}}}");
    let check = |rest: &str, parameters: &[(&str, &str)], expected| {
        check_task(&[("config.json", &classifier(rest))], parameters, expected);
    };
    let (one, two) =
        ("\"id2label\": {\"0\": \"LABEL_0\"}", "\"id2label\": {\"0\": \"no\", \"1\": \"yes\"}");
    check(one, &[], scores(true, Sigmoid, &["LABEL_0"]));
    check(two, &[], scores(false, Softmax, &["no", "yes"]));
    let nli = format!("{two}, \"sbert_ce_default_activation_function\": null");
    check(&nli, &[], scores(true, Identity, &["no", "yes"]));
    let regression = format!("{two}, \"problem_type\": \"regression\"");
    check(&regression, &[], scores(false, Identity, &["no", "yes"]));
    let multi = format!("{two}, \"problem_type\": \"multi_label_classification\"");
    check(&multi, &[], scores(false, Sigmoid, &["no", "yes"]));
    let stated = format!(
        "{one}, \"sentence_transformers\": {{\"activation_fn\": \
         \"torch.nn.modules.linear.Identity\"}}"
    );
    check(&stated, &[], scores(true, Identity, &["LABEL_0"]));
    check(&stated, &[("text_activation", "sigmoid")], scores(true, Sigmoid, &["LABEL_0"]));
    check(one, &[("text_task", "classification")], scores(false, Sigmoid, &["LABEL_0"]));
    check(two, &[("text_task", "embedding")], embedding(&[PoolingMode::Mean], true, false));
    // A file without labels is that of a model with the two default ones.
    let unlabelled = "\"id2label\": null";
    check(unlabelled, &[], scores(false, Softmax, &[]));
    check(unlabelled, &[("text_task", "cross-encoder")], scores(true, Identity, &[]));
    check("\"id2label\": {\"0\": 5}", &[], scores(true, Sigmoid, &["5"]));
    check("\"num_labels\": 1", &[], scores(true, Sigmoid, &["LABEL_0"]));
    let unknown = classifier(&stated.replace("linear.Identity", "x.Tanh"));
    check_error(
        &[("config.json", &unknown)],
        &[],
        "config.json: the activation 'torch.nn.modules.x.Tanh' is not supported; the parameter \
         'text_activation' replaces it",
    );
}

#[test]
fn files_with_members_of_the_wrong_type_are_refused() {
    let check = |file, content: &str, expected: &str| {
        check_error(&[(file, content)], &[], &format!("{file}: {expected}"));
    };
    let labels = |labels: &str| {
        format!("{{\"architectures\": [\"XForSequenceClassification\"], \"id2label\": {labels}}}")
    };
    let gap = labels("{\"0\": \"no\", \"2\": \"yes\"}");
    check("config.json", &gap, "'id2label' has no name for the class 1");
    let list = labels("{\"0\": []}");
    check("config.json", &list, "'id2label' has no name for the class 0");
    check("config.json", &labels("[\"no\"]"), "'id2label' is not an object");
    check("config.json", "[]", "the file is not an object");
    let positions = "{\"max_position_embeddings\": \"512\"}";
    check("config.json", positions, "'max_position_embeddings' is not a whole number");
    let sentences = "sentence_bert_config.json";
    let length = "'max_seq_length' is not a whole number";
    check(sentences, "{\"max_seq_length\": \"7\"}", length);
    check(sentences, "{\"do_lower_case\": 1}", "'do_lower_case' is not a boolean");
    let tokenizer = "tokenizer_config.json";
    let side = "{\"truncation_side\": \"both\"}";
    check(tokenizer, side, "'truncation_side' is not right or left");
    check(tokenizer, "{\"truncation_side\": 1}", "'truncation_side' is not a string");
}

#[test]
fn max_seq_length_precedes_the_smaller_of_the_other_limits() {
    let check = |listed: &[(&'static str, &str)], parameters: &[(&str, &str)], expected: usize| {
        let base = [("tokenizer.json", TOKENIZER)];
        let all: Vec<_> = base.iter().chain(listed).copied().collect();
        let row = read(&all, parameters).unwrap().encode(&"a ".repeat(9000), None, None).unwrap();
        assert_eq!(row.ids.len(), expected);
    };
    check(&[], &[], 8192);
    let sentences = ("sentence_bert_config.json", "{\"max_seq_length\": 7}");
    let tokenizer = ("tokenizer_config.json", "{\"model_max_length\": 5}");
    let unlimited =
        ("tokenizer_config.json", "{\"model_max_length\": 1000000000000000019884624838656}");
    let positions = ("config.json", "{\"max_position_embeddings\": 6}");
    check(&[sentences, tokenizer], &[], 7);
    check(&[tokenizer, positions], &[], 5);
    check(&[unlimited, positions], &[], 6);
    check(&[unlimited, positions], &[("text_max_tokens", "3")], 3);
}

#[test]
fn long_texts_are_refused_on_request() {
    let listed =
        [("tokenizer.json", TOKENIZER), ("config.json", "{\"max_position_embeddings\": 2}")];
    let check = |parameters: &[(&str, &str)], truncates, expected: Result<usize, &str>| {
        let row = read(&listed, parameters).unwrap().encode("a b c", None, truncates);
        assert_eq!(row.map(|row| row.ids.len()), expected.map_err(str::to_owned));
    };
    let refused = Err("the text has more than 2 tokens");
    check(&[], None, Ok(2));
    check(&[], Some(false), refused);
    check(&[("text_truncation", "none")], None, refused);
    check(&[("text_truncation", "none")], Some(true), Ok(2));
    let long = "a".repeat((1 << 20) + 1);
    let refused = read(&listed, &[]).unwrap().encode(&long, None, None).unwrap_err();
    assert_eq!(refused, "the text has 1048577 bytes, and the limit is 1048576");
    let (model, half) = (read(&listed, &[]).unwrap(), &long[..1 << 19]);
    assert!(model.encode(half, Some(half), None).is_ok());
    let refused = model.encode(half, Some(&long[..=1 << 19]), None).unwrap_err();
    let expected = "the text with its prompt has 1048577 bytes, and the limit is 1048576";
    assert_eq!(refused, expected);
}

#[test]
fn prompts_precede_texts() {
    let prompts = r#"{"prompts": {"query": "query: ", "document": ""}}"#;
    let pooling = "{\"include_prompt\": false}";
    let listed = [
        ("tokenizer.json", TOKENIZER),
        ("config_sentence_transformers.json", prompts),
        ("modules.json", MODULES),
        ("1_Pooling/config.json", pooling),
        ("sentence_bert_config.json", "{\"do_lower_case\": true}"),
    ];
    let model = read(&listed, &[("text_prompt", "query")]).unwrap();
    assert_eq!(model.encode("A", None, None).unwrap().ids, [5, 6, 1]);
    assert_eq!(model.encode("a", Some("b "), None).unwrap().ids, [2, 1]);
    assert_eq!(model.prompt_tokens(None).unwrap(), 2);
    assert_eq!(model.prompt_tokens(Some("")).unwrap(), 0);
    assert_eq!(
        read(&listed, &[("text_prompt", "x")]).unwrap_err(),
        "parameter 'text_prompt': the model has no prompt 'x': it has 'document', 'query'"
    );
    let pairs = [("config_sentence_transformers.json", prompts)];
    check_error(
        &pairs,
        &[("text_task", "cross-encoder"), ("text_prompt", "query")],
        "parameter 'text_prompt': a default prompt is not supported for pairs of texts",
    );
    let default = prompts.replacen('{', "{\"default_prompt_name\": \"query\",", 1);
    check_error(
        &[("config_sentence_transformers.json", &default)],
        &[("text_task", "cross-encoder")],
        "config_sentence_transformers.json: a default prompt is not supported for pairs of texts",
    );
}

#[test]
fn the_tokenizer_is_next_to_the_network() {
    let modules = MODULES.replace("\"path\": \"\"", "\"path\": \"0_Transformer\"");
    let pooling = ("1_Pooling/config.json", "{}");
    let listed = [("0_Transformer/tokenizer.json", TOKENIZER), ("modules.json", &modules), pooling];
    let folders = read(&listed, &[]).unwrap().description.network_folders;
    assert_eq!(folders, ["0_Transformer", ""]);
    let missing = read(&listed[1..], &[]).unwrap_err();
    assert_eq!(missing, "0_Transformer/tokenizer.json: the file is missing");
}

/// Changes each byte of a valid tokenizer in several ways, and removes its end.
#[test]
fn damaged_tokenizers_are_refused_or_read() {
    let content = TOKENIZER.as_bytes();
    let model = |content: Vec<u8>| {
        let content = String::from_utf8_lossy(&content).into_owned();
        let listed = [("tokenizer.json", content.as_str())];
        if let Ok(model) = read(&listed, &[]) {
            let _ = model.encode("a b \u{1f600} \0", None, None);
            let _ = model.encode_pair("a", "", None);
        }
    };
    for place in 0..content.len() {
        model(content[..place].to_vec());
        for byte in [b'0', b'9', b'"', b'{', b']', b'-', 0xff] {
            let mut damaged = content.to_vec();
            damaged[place] = byte;
            model(damaged);
        }
    }
}
