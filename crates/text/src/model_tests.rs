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
    TextTask::Embedding(EmbeddingTask { pooling, dense: Vec::new(), normalize })
}

const fn scores(is_pair: bool, activation: Activation, count: Option<usize>) -> TextTask {
    TextTask::Scores { is_pair, activation, count }
}

/// The file of weights, whose bytes are UTF-8 if all values are sums of few powers of 2.
fn weights(name: &str, shape: [usize; 2], values: &[f32]) -> String {
    let header = format!(
        "{{\"linear.{name}\": {{\"dtype\": \"F32\", \"shape\": {shape:?}, \
         \"data_offsets\": [0, {}]}}}}",
        values.len() * 4
    );
    let values: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let length = (header.len() as u64).to_le_bytes();
    String::from_utf8([&length[..], header.as_bytes(), &values].concat()).unwrap()
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
    check(one, &[], scores(true, Sigmoid, Some(1)));
    check(two, &[], scores(false, Softmax, Some(2)));
    let nli = format!("{two}, \"sbert_ce_default_activation_function\": null");
    check(&nli, &[], scores(true, Identity, Some(2)));
    let regression = format!("{two}, \"problem_type\": \"regression\"");
    check(&regression, &[], scores(false, Identity, Some(2)));
    let multi = format!("{two}, \"problem_type\": \"multi_label_classification\"");
    check(&multi, &[], scores(false, Sigmoid, Some(2)));
    let stated = format!(
        "{one}, \"sentence_transformers\": {{\"activation_fn\": \
         \"torch.nn.modules.linear.Identity\"}}"
    );
    check(&stated, &[], scores(true, Identity, Some(1)));
    check(&stated, &[("text_activation", "sigmoid")], scores(true, Sigmoid, Some(1)));
    check(one, &[("text_task", "classification")], scores(false, Sigmoid, Some(1)));
    check(two, &[("text_task", "embedding")], embedding(&[PoolingMode::Mean], true, false));
    // A file without labels is that of a model with the two default ones.
    let unlabelled = "\"id2label\": null";
    check(unlabelled, &[], scores(false, Softmax, None));
    check(unlabelled, &[("text_task", "cross-encoder")], scores(true, Identity, None));
    check("\"id2label\": {\"0\": 5}", &[], scores(true, Sigmoid, Some(1)));
    check("\"num_labels\": 1", &[], scores(true, Sigmoid, Some(1)));
    check("\"num_labels\": 5000", &[], scores(false, Softmax, Some(5000)));
    let bounded = stated.replace("linear.Identity", "activation.Tanh");
    check(&bounded, &[], scores(true, Activation::Tanh, Some(1)));
    let unknown = classifier(&stated.replace("linear.Identity", "x.Mish"));
    check_error(
        &[("config.json", &unknown)],
        &[],
        "config.json: the activation 'torch.nn.modules.x.Mish' is not supported; the parameter \
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
}

#[test]
fn prompts_precede_the_first_text_of_a_pair() {
    let prompts = r#"{"prompts": {"query": "query: ", "document": ""},
        "default_prompt_name": "query", "model_type": "CrossEncoder"}"#;
    let modules = "[{\"path\": \"\", \"type\": \"x.Transformer\"}]";
    let listed = |prompts: &str, parameters: &[(&str, &str)]| {
        let files = [
            ("tokenizer.json", TOKENIZER),
            ("modules.json", modules),
            ("config_sentence_transformers.json", prompts),
        ];
        read(&files, parameters).unwrap()
    };
    let check = |model: &TextModel, prompt, expected: &[u32]| {
        assert_eq!(model.encode_pair(("a", "b"), prompt, None).unwrap().ids, expected);
    };
    let model = listed(prompts, &[]);
    check(&model, None, &[5, 6, 1, 2]);
    check(&model, Some(""), &[1, 2]);
    check(&model, Some("c "), &[3, 1, 2]);
    // Of a model that is not saved as a cross-encoder, sentence-transformers ignores the default.
    let embedding = prompts.replace("CrossEncoder", "SentenceTransformer");
    let pairs = ("text_task", "cross-encoder");
    check(&listed(&embedding, &[pairs]), None, &[1, 2]);
    check(&listed(&embedding, &[pairs, ("text_prompt", "query")]), None, &[5, 6, 1, 2]);
    let long = "a".repeat(1 << 20);
    let refused = model.encode_pair((&long, "b"), None, None).unwrap_err();
    assert_eq!(refused, "the text with its prompt has 1048583 bytes, and the limit is 1048576");
}

#[test]
fn dense_layers_follow_the_pooling() {
    let modules = MODULES.replace("2_Normalize", "2_Dense").replace("Normalize", "Dense");
    let folder = "2_Dense/model.safetensors";
    let matrix = weights("weight", [1, 2], &[0.5, 8.0]);
    let check = |config: &str, files: &[(&'static str, &str)], expected: Result<[f32; 2], &str>| {
        let all: Vec<_> = [
            ("tokenizer.json", TOKENIZER),
            ("modules.json", &modules),
            ("1_Pooling/config.json", "{}"),
            ("2_Dense/config.json", config),
        ]
        .into_iter()
        .chain(files.iter().copied())
        .collect();
        let found = read(&all, &[]).map(|model| model.apply_dense(vec![2.0, 0.0, 0.0, 0.5]));
        assert_eq!(found, expected.map(|row| row.to_vec()).map_err(str::to_owned), "{config}");
    };
    let config = |rest: &str| format!("{{\"in_features\": 2, \"out_features\": 1{rest}}}");
    let linear = ", \"bias\": false, \"activation_function\": \"torch.nn.Identity\"";
    check(&config(linear), &[(folder, &matrix)], Ok([1.0, 4.0]));
    let tanh = [1.0_f32.tanh(), 4.0_f32.tanh()];
    check(&config(", \"bias\": false"), &[(folder, &matrix)], Ok(tanh));
    let missing = "2_Dense/model.safetensors: tensor 'linear.bias': the tensor is missing";
    check(&config(""), &[(folder, &matrix)], Err(missing));
    let turned = weights("weight", [2, 1], &[0.5, 8.0]);
    let shape = "2_Dense/model.safetensors: tensor 'linear.weight': the shape is [2,1] instead of \
                 [1, 2]";
    check(&config(""), &[(folder, &turned)], Err(shape));
    check(&config(""), &[], Err("2_Dense/model.safetensors: the file is missing"));
    let pickled = "2_Dense/pytorch_model.bin: weights in this format are not supported; \
                   sentence-transformers converts them to 'model.safetensors' with \
                   SentenceTransformer(DIRECTORY).save(NEW_DIRECTORY)";
    check(&config(""), &[("2_Dense/pytorch_model.bin", "x")], Err(pickled));
    for (rest, problem) in [
        (", \"out_features\": 65537", "'out_features' is not a number from 1 to 65536"),
        (", \"bias\": 1", "'bias' is not a boolean"),
        (
            ", \"activation_function\": \"my.Swish\"",
            "'activation_function' 'my.Swish' is not supported",
        ),
        (
            ", \"module_input_name\": \"token_embeddings\"",
            "'module_input_name' 'token_embeddings' is not 'sentence_embedding'",
        ),
    ] {
        let problem = format!("2_Dense/config.json: {problem}");
        check(&config(rest), &[(folder, &matrix)], Err(&problem));
    }
}

#[test]
fn the_layers_of_a_model_fit_together() {
    let modules = r#"[{"path": "", "type": "Transformer"}, {"path": "p", "type": "Pooling"},
        {"path": "a", "type": "Dense"}, {"path": "b", "type": "Dense"}]"#;
    let read = |second: &str| {
        let files = files(&[
            ("modules.json", modules),
            ("p/config.json", "{}"),
            ("a/config.json", "{\"in_features\": 2, \"out_features\": 3}"),
            ("b/config.json", second),
        ]);
        let description = TextDescription::read(&files, &settings(&[]));
        description.map_err(|error| error.to_string())
    };
    let refused = read("{\"in_features\": 2, \"out_features\": 5}").unwrap_err();
    let problem = "'in_features' is 2, but the embeddings before the layer have 3 values";
    assert_eq!(refused, format!("b/config.json: {problem}"));
    let task = read("{\"in_features\": 3, \"out_features\": 5}").unwrap().task;
    let TextTask::Embedding(task) = task else { panic!("embeddings") };
    assert_eq!(task.width(2).unwrap(), 5);
    let refused = task.width(4).unwrap_err().to_string();
    let problem = "'in_features' is 2, but the embeddings before the layer have 4 values";
    assert_eq!(refused, format!("a/config.json: {problem}"));
    assert_eq!(task.check_embedding("e", 5).unwrap(), 5);
    assert_eq!(
        task.check_embedding("e", 2).unwrap_err().to_string(),
        "the network's output 'e': an embedding has 2 values, but the last dense layer returns 5"
    );
}

#[test]
fn modules_that_cannot_be_served_are_refused() {
    let check = |kinds: &[&str], expected: &str| {
        let listed = kinds.iter().map(|kind| format!("{{\"path\": \"\", \"type\": \"x.{kind}\"}}"));
        let listed = format!("[{}]", listed.collect::<Vec<_>>().join(","));
        check_error(&[("modules.json", &listed)], &[], &format!("modules.json: module {expected}"));
    };
    let place = "is not supported there: the order is Transformer, Pooling, Dense, Normalize";
    check(&["Transformer", "Dense"], &format!("1 of the type 'x.Dense' {place}"));
    let late = format!("3 of the type 'x.Dense' {place}");
    check(&["Transformer", "Pooling", "Normalize", "Dense"], &late);
    let late = format!("2 of the type 'x.Pooling' {place}");
    check(&["Transformer", "Normalize", "Pooling"], &late);
    for kind in ["SpladePooling", "SparseAutoEncoder", "CSRSparsity"] {
        let sparse =
            format!("1 of the type 'x.{kind}' is not supported: its embeddings are sparse");
        check(&["Transformer", kind], &sparse);
    }
    check(
        &["MLMTransformer"],
        "0 of the type 'x.MLMTransformer' is not supported: its embeddings are sparse",
    );
    check(
        &["Transformer", "LSTM"],
        "1 of the type 'x.LSTM' is not supported: the supported types are Transformer, Pooling, \
         Dense, Normalize",
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
            let _ = model.encode_pair(("a", ""), None, None);
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
