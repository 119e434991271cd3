//! The command line of `galatea new`.

use super::parse::UsageError;
use super::*;
use crate::environment::{SpanBatchVariables, VertexAiVariables};
use crate::new_model::NewModel;

fn parse_here(arguments: impl IntoIterator<Item = String>) -> Result<Request, UsageError> {
    parse(arguments, &VertexAiVariables::default(), &SpanBatchVariables::default())
}

#[test]
fn a_new_model_has_a_name_and_a_place() {
    let new = |arguments: &[&str]| {
        parse_here(arguments.iter().map(|argument| String::from(*argument)))
            .map_err(|error| error.to_string())
    };
    let is_new = |arguments: &[&str], place: &str| match new(arguments) {
        Ok(Request::New(model)) => assert_eq!(Ok(model), NewModel::new("m", place)),
        other => panic!("{other:?}"),
    };
    is_new(&["new", "python", "m"], "models");
    is_new(&["new", "python", "--directory", "d", "m"], "d");
    is_new(&["new", "python", "m", "--directory=d"], "d");
    assert!(matches!(new(&["new", "--help"]), Ok(Request::Help(HelpForm::Text))));
    for (arguments, text) in [
        (&["new"][..], "'new' needs 'python' and the name of one model"),
        (&["new", "python"], "'new' needs 'python' and the name of one model"),
        (&["new", "python", "a", "b"], "'new' needs 'python' and the name of one model"),
        (&["new", "onnx", "a"], "'new' writes models for 'python', not for 'onnx'"),
        (&["new", "python", "a", "--directory"], "'--directory' needs a directory"),
        (&["new", "python", "a", "--dir=x"], "'new' has no option '--dir=x', only '--directory'"),
    ] {
        assert_eq!(new(arguments).unwrap_err(), text);
    }
    assert!(new(&["new", "python", "a/b"]).unwrap_err().starts_with("'a/b' is no name"));
}
