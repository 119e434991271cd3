//! The report of a check, for people and for programs.

use std::path::PathBuf;

use galatea_config::{BoundedText, Diagnostic, ModelSpec};
use galatea_repository::ScannedModel;
use galatea_tools::console::ReportFormat;
use serde_json::{Value, json};

use super::super::sources::LinkOrigins;
use super::differences::Differences;
use crate::backends::BackendInUse;

/// The report of a check.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Errors that don't concern a single model.
    pub(super) errors: Vec<String>,
    pub(super) models: Vec<ModelReport>,
    /// The backends that the models would use, and their libraries.
    pub(super) backends: Vec<BackendInUse>,
    /// Flags that are accepted but have no effect.
    pub(super) flags: Vec<String>,
    /// The differences that a Triton user would want to know about.
    pub(super) differences: Differences,
}

/// The part of the report about one model.
#[derive(Debug)]
pub(super) struct ModelReport {
    /// The model's name, or its id if namespaces are on.
    pub(super) name: String,
    versions: Vec<i64>,
    errors: Vec<Diagnostic>,
    /// The ignored parts of the model's directory, and settings without effect.
    warnings: Vec<String>,
    config_path: String,
    /// The backend, if the configuration could be completed.
    backend: Option<String>,
}

impl ModelReport {
    pub(super) fn new(id: &str, source: &ScannedModel) -> Self {
        let config = source.config.as_ref();
        let path = config.map_or(source.directory.display_path(), |config| config.path.as_path());
        Self {
            name: id.to_owned(),
            versions: source.versions.iter().map(|version| version.number).collect(),
            errors: Vec::new(),
            warnings: source.notes.clone(),
            config_path: path.display().to_string(),
            backend: None,
        }
    }

    /// Creates the report on a model that can't be read.
    pub(super) fn refused(name: String, reason: String) -> Self {
        Self {
            name,
            versions: Vec::new(),
            errors: vec![Diagnostic::about("", BoundedText::truncated(&reason))],
            warnings: Vec::new(),
            config_path: String::new(),
            backend: None,
        }
    }

    /// Adds an error, unless another version has already reported the same error.
    pub(super) fn add(&mut self, mut error: Diagnostic) {
        if error.file.is_empty() {
            error.file.clone_from(&self.config_path);
        }
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    /// Adds warnings, except those that another version has already reported.
    pub(super) fn add_warnings(&mut self, warnings: Vec<String>) {
        // The report puts the model's name before each of them.
        let named = format!("model '{}': ", self.name);
        for warning in warnings {
            let warning = warning.strip_prefix(&named).map(String::from).unwrap_or(warning);
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
    }

    /// Records the backend that executes the model.
    pub(super) fn set_backend(&mut self, spec: &ModelSpec) {
        let name = if spec.backend.is_empty() { &spec.platform } else { &spec.backend };
        self.backend = Some(name.clone());
    }

    fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "versions": self.versions.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "backend": self.backend,
            "errors": self.errors.iter().map(error_to_json).collect::<Vec<_>>(),
            "warnings": self.warnings,
        })
    }
}

/// Converts an error to JSON. Unknown fields are absent.
fn error_to_json(error: &Diagnostic) -> Value {
    let mut fields = serde_json::Map::new();
    let mut add = |name: &str, text: &str| {
        if !text.is_empty() {
            fields.insert(String::from(name), Value::from(text));
        }
    };
    add("message", &error.message);
    add("file", &error.file);
    add("field", &error.path);
    add("expected", error.expected.as_deref().unwrap_or(""));
    add("suggestion", error.suggestion.as_deref().unwrap_or(""));
    if let Some(position) = error.position {
        fields.insert(String::from("line"), Value::from(position.line));
        fields.insert(String::from("column"), Value::from(position.column));
    }
    Value::Object(fields)
}

impl Report {
    pub(super) fn error_count(&self) -> usize {
        let errors = self.models.iter().map(|model| model.errors.len());
        self.errors.len() + errors.sum::<usize>()
    }

    /// Replaces links with the names of the files that the user passed.
    pub(super) fn name_places(&mut self, places: &LinkOrigins) {
        let name = |text: &mut String| *text = places.named_in(text);
        self.errors.iter_mut().for_each(name);
        for model in &mut self.models {
            model.warnings.iter_mut().for_each(name);
            for error in &mut model.errors {
                name(&mut error.file);
                error.message = BoundedText::truncated(&places.named_in(&error.message));
            }
        }
        for library in self.backends.iter_mut().filter_map(|one| one.library.as_mut()) {
            *library = PathBuf::from(places.named_in(&library.display().to_string()));
        }
    }

    pub(super) fn render(&self, format: ReportFormat) -> String {
        match format {
            ReportFormat::Text => self.to_text(),
            ReportFormat::Json => self.to_json().to_string(),
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "ok": self.error_count() == 0,
            "errors": self.errors,
            "models": self.models.iter().map(ModelReport::to_json).collect::<Vec<_>>(),
            "backends": self.backends.iter().map(backend_to_json).collect::<Vec<_>>(),
            "flags_without_effect": self.flags,
            "differences": self
                .differences
                .iter()
                .map(|(text, models)| json!({ "text": text, "models": models }))
                .collect::<Vec<_>>(),
        })
    }

    /// Renders the backends, flags without effect, and differences from Triton.
    fn surroundings(&self) -> String {
        let mut text = String::new();
        let mut add = |title: &str, lines: Vec<String>| {
            if !lines.is_empty() {
                text.push_str(&format!("{title}:\n  {}\n\n", lines.join("\n  ")));
            }
        };
        let backend = |one: &BackendInUse| match &one.library {
            Some(library) => format!("{}: {}", one.name, library.display()),
            None => format!("{}: built in", one.name),
        };
        add("backends", self.backends.iter().map(backend).collect());
        add("flags without effect", self.flags.clone());
        let difference = |(text, models): (&str, &[String])| match models {
            [] => text.to_owned(),
            models => format!("{text} ({})", shortened(models)),
        };
        let title = "different from Triton (docs/differences.md has everything)";
        add(title, self.differences.iter().map(difference).collect());
        text
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        for error in &self.errors {
            text.push_str(&format!("error: {error}\n\n"));
        }
        for model in &self.models {
            for warning in &model.warnings {
                text.push_str(&format!("warning: model '{}': {warning}\n\n", model.name));
            }
            for error in &model.errors {
                text.push_str(&format!("model '{}': {error:#}\n\n", model.name));
            }
        }
        text.push_str(&self.surroundings());
        let bad = self.models.iter().filter(|model| !model.errors.is_empty()).count();
        let models = count_noun(self.models.len(), "model");
        match self.error_count() {
            0 => text.push_str(&format!("{models}, nothing wrong")),
            errors => {
                let errors = count_noun(errors, "error");
                text.push_str(&format!("{models}, {bad} would not load: {errors}"));
            }
        }
        text
    }
}

fn backend_to_json(backend: &BackendInUse) -> Value {
    json!({
        "name": backend.name,
        "library": backend.library.as_ref().map(|path| path.display().to_string()),
    })
}

/// Lists the first names and the number of remaining ones.
fn shortened(models: &[String]) -> String {
    /// The maximum number of models listed on a line.
    const SHOWN_MAX: usize = 3;
    let shown = models.iter().take(SHOWN_MAX).cloned().collect::<Vec<_>>().join(", ");
    match models.len().saturating_sub(SHOWN_MAX) {
        0 => shown,
        others => format!("{shown} and {others} more"),
    }
}

fn count_noun(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

#[cfg(test)]
mod tests {
    use galatea_config::Position;

    use super::*;

    fn model(name: &str, errors: Vec<Diagnostic>) -> ModelReport {
        ModelReport {
            name: String::from(name),
            versions: vec![1, 3],
            errors: Vec::new(),
            warnings: Vec::new(),
            config_path: String::from("r/config.pbtxt"),
            backend: Some(String::from("identity")),
        }
        .with(errors)
    }

    impl ModelReport {
        fn with(mut self, errors: Vec<Diagnostic>) -> Self {
            errors.into_iter().for_each(|error| self.add(error));
            self
        }
    }

    fn example() -> Diagnostic {
        Diagnostic {
            position: Some(Position { line: 3, column: 5 }),
            suggestion: Some("dims".into()),
            ..Diagnostic::about("input[0].dimz", "unknown field")
        }
    }

    #[test]
    fn the_json_report_has_the_known_fields_of_each_error() {
        let errors = vec![example(), example(), Diagnostic::about("", "no file")];
        let mut report = Report { models: vec![model("a", errors)], ..Report::default() };
        assert_eq!(
            report.render(ReportFormat::Json),
            "{\"ok\":false,\"errors\":[],\"models\":[{\"name\":\"a\",\"versions\":[\"1\",\"3\"],\
             \"backend\":\"identity\",\"errors\":[{\"message\":\"unknown field\",\"file\":\"r/config.pbtxt\",\
             \"field\":\"input[0].dimz\",\"suggestion\":\"dims\",\"line\":3,\"column\":5},\
             {\"message\":\"no file\",\"file\":\"r/config.pbtxt\"}],\"warnings\":[]}],\
             \"backends\":[],\"flags_without_effect\":[],\"differences\":[]}"
        );
        report.models = vec![model("a", Vec::new())];
        assert!(report.render(ReportFormat::Json).starts_with("{\"ok\":true,"));
    }

    #[test]
    fn a_model_is_named_once_before_its_warnings() {
        let mut one = model("a", Vec::new());
        one.add_warnings(vec![String::from("model 'a': 'x' changes nothing")]);
        let report = Report { models: vec![one], ..Report::default() };
        let text = report.render(ReportFormat::Text);
        assert!(text.starts_with("warning: model 'a': 'x' changes nothing\n"), "{text}");
    }

    #[test]
    fn long_lists_of_models_are_shortened() {
        let models: Vec<String> = (1..=5).map(|number| format!("m{number}")).collect();
        assert_eq!(shortened(&models[..3]), "m1, m2, m3");
        assert_eq!(shortened(&models), "m1, m2, m3 and 2 more");
    }

    #[test]
    fn the_text_report_ends_with_a_summary() {
        let last = |report: &Report| {
            let text = report.render(ReportFormat::Text);
            String::from(text.lines().last().unwrap())
        };
        let mut report = Report { models: vec![model("a", Vec::new())], ..Report::default() };
        assert_eq!(last(&report), "1 model, nothing wrong");
        report.models.push(model("b", vec![example(), Diagnostic::about("", "no file")]));
        assert_eq!(last(&report), "2 models, 1 would not load: 2 errors");
        report.errors.push(String::from("not unique"));
        assert_eq!(last(&report), "2 models, 1 would not load: 3 errors");
        let text = report.render(ReportFormat::Text);
        assert!(
            text.contains("model 'b': error: unknown field\n --> r/config.pbtxt:3:5"),
            "{text}"
        );
        assert!(text.starts_with("error: not unique"), "{text}");
    }
}
