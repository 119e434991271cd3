//! The nodes that run once after a graph is loaded (`TF_INIT_OPS_FILE`).

use galatea_backend::ModelFiles;
use galatea_infer::Status;
use serde_json::Value;

/// The names of the nodes in a file, in order. As in Triton, the file in the version's directory
/// takes precedence over the one in the model's directory.
pub(crate) fn read(files: &dyn ModelFiles, name: &str) -> Result<Vec<String>, Status> {
    if name.is_empty() {
        return Ok(Vec::new());
    }
    let path = files.resolve(name).or_else(|_| files.resolve_in_model_directory(name));
    let path = path.map_err(|status| {
        status.prefixed(format!("unable to find '{name}', which TF_INIT_OPS_FILE names: "))
    })?;
    let text = std::fs::read_to_string(&path).map_err(|error| {
        Status::internal(format!("failed to open/read file '{}': {error}", path.display()))
    })?;
    parse(&text).map_err(|reason| Status::internal(format!("'{}': {reason}", path.display())))
}

fn parse(text: &str) -> Result<Vec<String>, String> {
    const KEY: &str = "init_ops";
    let document: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let list = document.get(KEY).and_then(Value::as_array);
    let list = list.ok_or_else(|| format!("there is no list '{KEY}'"))?;
    let name = |entry: &Value| entry.as_str().map(str::to_owned);
    let names: Option<Vec<String>> = list.iter().map(name).collect();
    names.ok_or_else(|| format!("'{KEY}' is no list of names"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_lists_nodes() {
        let names = parse(r#"{ "init_ops": ["init", "tables"] }"#);
        assert_eq!(names, Ok(vec!["init".to_owned(), "tables".to_owned()]));
        for (text, expected) in [
            ("{}", "there is no list 'init_ops'"),
            (r#"{"init_ops": "init"}"#, "there is no list 'init_ops'"),
            (r#"{"init_ops": [1]}"#, "'init_ops' is no list of names"),
        ] {
            assert_eq!(parse(text), Err(expected.to_owned()));
        }
        assert!(parse("{").is_err());
    }
}
