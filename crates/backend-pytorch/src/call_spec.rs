//! The structure of a model's arguments and results, which an AOTInductor library describes as
//! JSON: `[1, {"type": "builtins.tuple", "context": "null", "children_spec": [...]}]`. A node
//! without a type is a leaf.
//!
//! The leaves, in order, are the model's inputs or outputs. A leaf's name is the path to it, as in
//! Triton: `ARGS[0]`, `ARGS[2][key]`, `KWARGS[key]`, `RESULT`, `RESULT[0]`.

use serde_json::Value;

/// The names of a model's inputs, in the model's order.
///
/// # Errors
///
/// The reason why the text doesn't describe arguments.
pub(crate) fn input_names(spec: &str) -> Result<Vec<String>, String> {
    let root = parse(spec)?;
    let SpecNode { children: Some(parts) } = root else {
        return Err(String::from("the arguments are no tuple"));
    };
    let [(_, arguments), (_, keywords)] = parts.as_slice() else {
        return Err(format!(
            "the arguments have {} parts in place of positional and keyword arguments",
            parts.len()
        ));
    };
    let mut names = Vec::new();
    arguments.collect_names("ARGS", &mut names);
    keywords.collect_names("KWARGS", &mut names);
    Ok(names)
}

/// The names of a model's outputs, in the model's order.
///
/// # Errors
///
/// The reason why the text doesn't describe results.
pub(crate) fn output_names(spec: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    parse(spec)?.collect_names("RESULT", &mut names);
    Ok(names)
}

/// A leaf, or a container of nodes and their keys.
struct SpecNode {
    children: Option<Vec<(String, Self)>>,
}

impl SpecNode {
    fn collect_names(&self, prefix: &str, names: &mut Vec<String>) {
        let Some(children) = &self.children else {
            names.push(prefix.to_owned());
            return;
        };
        for (key, child) in children {
            child.collect_names(&format!("{prefix}[{key}]"), names);
        }
    }
}

fn parse(spec: &str) -> Result<SpecNode, String> {
    // The parser limits the depth, and therefore the recursion of `node`.
    let value: Value = serde_json::from_str(spec).map_err(|error| error.to_string())?;
    match value.as_array().map(Vec::as_slice) {
        Some([_version, root]) => node(root),
        Some(_) | None => Err(String::from("a version and a node are expected")),
    }
}

fn node(value: &Value) -> Result<SpecNode, String> {
    let Some(object) = value.as_object() else {
        return Err(String::from("a node is no object"));
    };
    let Some(kind) = object.get("type").and_then(Value::as_str) else {
        return Ok(SpecNode { children: None });
    };
    let children = object.get("children_spec").and_then(Value::as_array);
    let children = children.map(Vec::as_slice).unwrap_or_default();
    let keys = keys(kind, object.get("context"), children.len())?;
    let children = keys.into_iter().zip(children).map(|(key, child)| Ok((key, node(child)?)));
    Ok(SpecNode { children: Some(children.collect::<Result<_, String>>()?) })
}

/// The keys of a container's children: either the keys in the context, or numbers. The types of
/// results may be defined by the program that exported the model. The children of such a result
/// have names if the context lists them.
fn keys(kind: &str, context: Option<&Value>, count: usize) -> Result<Vec<String>, String> {
    let is_sequence = matches!(kind, "builtins.tuple" | "builtins.list");
    let listed = if is_sequence { None } else { context.and_then(listed_keys) };
    match listed {
        Some(keys) if keys.len() == count => Ok(keys),
        _ if kind == "builtins.dict" && count > 0 => {
            Err(format!("a dictionary with {count} values does not have as many keys"))
        }
        Some(_) | None => Ok((0..count).map(|index| index.to_string()).collect()),
    }
}

/// The keys in a context, which is a list or the text of a list.
fn listed_keys(context: &Value) -> Option<Vec<String>> {
    let parsed: Value;
    let list = match context {
        Value::String(text) => {
            parsed = serde_json::from_str(text).ok()?;
            parsed.as_array()?
        }
        other => other.as_array()?,
    };
    let key = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    list.iter().map(key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: &str = r#"{"type": null, "context": null, "children_spec": []}"#;

    fn container(kind: &str, context: &str, children: &[&str]) -> String {
        let children = children.join(", ");
        format!(r#"{{"type": "{kind}", "context": {context}, "children_spec": [{children}]}}"#)
    }

    fn tuple(children: &[&str]) -> String {
        container("builtins.tuple", "\"null\"", children)
    }

    #[test]
    fn inputs_are_named_by_their_paths() {
        let dictionary = container("builtins.dict", r#""[\"keyA\", \"key2\"]""#, &[LEAF, LEAF]);
        let list = container("builtins.list", "null", &[LEAF]);
        let keywords = container("builtins.dict", r#"["k"]"#, &[&list]);
        let spec = tuple(&[&tuple(&[LEAF, &dictionary]), &keywords]);
        let names = input_names(&format!("[1, {spec}]")).unwrap();
        assert_eq!(names, ["ARGS[0]", "ARGS[1][keyA]", "ARGS[1][key2]", "KWARGS[k][0]"]);
    }

    #[test]
    fn outputs_are_named_by_their_paths() {
        let names = |spec: &str| output_names(&format!("[1, {spec}]")).unwrap();
        assert_eq!(names(LEAF), ["RESULT"]);
        assert_eq!(names(&tuple(&[LEAF, &tuple(&[LEAF])])), ["RESULT[0]", "RESULT[1][0]"]);
        // A class of the exporting program.
        let named = container("transformers.Output", r#""[\"logits\"]""#, &[LEAF]);
        assert_eq!(names(&named), ["RESULT[logits]"]);
        let unnamed = container("my.Output", r#""[{}, null]""#, &[LEAF]);
        assert_eq!(names(&unnamed), ["RESULT[0]"]);
        // Containers without tensors have no names.
        assert_eq!(names(&tuple(&[&tuple(&[]), LEAF])), ["RESULT[1]"]);
    }

    #[test]
    fn other_texts_are_refused() {
        let leaf = format!("[1, {LEAF}]");
        let three = format!("[1, {}]", tuple(&[LEAF, LEAF, LEAF]));
        let keys = container("builtins.dict", r#""[\"a\"]""#, &[LEAF, LEAF]);
        let keys = format!("[1, {}]", tuple(&[&keys, LEAF]));
        for text in ["", "[1]", "[1, 2]", "{}", &leaf, &three, &keys] {
            assert!(input_names(text).is_err(), "{text}");
        }
        let deep = format!("[1, {}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(output_names(&deep).is_err());
    }
}
