//! Validates a value.

use super::coerce;
use super::{ErrorList, Extra, Issue, ObjectForm, Problem, Schema, Step};
use crate::json::{JsonValue, Object};

/// Validates a value and returns it in the form that the schema specifies, with the defaults of
/// omitted fields. Adds an error for each mistake.
pub(crate) fn check(
    value: &JsonValue,
    schema: &Schema,
    errors: &mut ErrorList,
) -> Option<JsonValue> {
    SchemaWalk { path: Vec::new() }.value(value, schema, errors)
}

struct SchemaWalk<'a> {
    path: Vec<Step<'a>>,
}

impl<'a> SchemaWalk<'a> {
    fn value(
        &mut self,
        value: &'a JsonValue,
        schema: &'a Schema,
        errors: &mut ErrorList,
    ) -> Option<JsonValue> {
        let checked = match schema {
            Schema::Any => Ok(value.clone()),
            Schema::Text => match value {
                JsonValue::Text(_) => Ok(value.clone()),
                _ => Err(Problem::TextType),
            },
            Schema::Int { min, max } => coerce::int(value, *min, *max),
            Schema::Float { min, max } => coerce::float(value, *min, *max),
            Schema::Bool => coerce::boolean(value),
            Schema::Url => coerce::url(value),
            Schema::Choice(words) => one_of(value, words).ok_or(Problem::Choice(words)),
            Schema::Literal(words) => one_of(value, words).ok_or(Problem::Literal(words)),
            Schema::List { element, min, max } => {
                return self.list(value, element, (*min, *max), errors);
            }
            Schema::Map(member) => return self.map(value, member, errors),
            Schema::ObjectForm(model) => return self.model(value, model, errors),
            Schema::Nullable(_) if value.is_null() => Ok(JsonValue::Null),
            Schema::Nullable(schema) => return self.value(value, schema, errors),
            Schema::Union(members) => return self.union(value, members, errors),
            Schema::Beyond(own, known) => {
                let mut ignored = ErrorList::default();
                let checked = self.value(value, own, &mut ignored);
                match checked.filter(|_| ignored.is_empty()) {
                    Some(checked) => return Some(checked),
                    None => return self.value(value, known, errors),
                }
            }
            Schema::NotEmpty(schema) => {
                let checked = self.value(value, schema, errors)?;
                not_empty(checked)
            }
        };
        checked.map_err(|problem| errors.add(&self.path, &Issue { problem, input: value })).ok()
    }

    /// Validates a value one step further along the path.
    fn at(
        &mut self,
        step: Step<'a>,
        value: &'a JsonValue,
        schema: &'a Schema,
        errors: &mut ErrorList,
    ) -> Option<JsonValue> {
        self.path.push(step);
        let checked = self.value(value, schema, errors);
        self.path.pop();
        checked
    }

    fn add(&self, problem: Problem, input: &JsonValue, errors: &mut ErrorList) {
        errors.add(&self.path, &Issue { problem, input });
    }

    fn add_at(
        &mut self,
        step: Step<'a>,
        problem: Problem,
        input: &JsonValue,
        errors: &mut ErrorList,
    ) {
        self.path.push(step);
        self.add(problem, input, errors);
        self.path.pop();
    }

    fn list(
        &mut self,
        value: &'a JsonValue,
        element: &'a Schema,
        (min, max): (Option<usize>, Option<usize>),
        errors: &mut ErrorList,
    ) -> Option<JsonValue> {
        let JsonValue::List(elements) = value else {
            self.add(Problem::ListType, value, errors);
            return None;
        };
        let actual = elements.len();
        if let Some(max) = max.filter(|max| actual > *max) {
            self.add(Problem::TooLong { kind: "List", max, actual }, value, errors);
            return None;
        }
        let mut checked = Vec::with_capacity(actual);
        let mut is_valid = true;
        for (index, one) in elements.iter().enumerate() {
            match self.at(Step::Index(index), one, element, errors) {
                Some(one) => checked.push(one),
                None => is_valid = false,
            }
        }
        if let Some(min) = min.filter(|min| actual < *min) {
            self.add(Problem::TooShort { kind: "List", min, actual }, value, errors);
            return None;
        }
        is_valid.then_some(JsonValue::List(checked))
    }

    fn map(
        &mut self,
        value: &'a JsonValue,
        member: &'a Schema,
        errors: &mut ErrorList,
    ) -> Option<JsonValue> {
        let JsonValue::Object(object) = value else {
            self.add(Problem::MapType, value, errors);
            return None;
        };
        let mut checked = Object::default();
        let mut is_valid = true;
        for (name, one) in object.iter() {
            match self.at(Step::Name(name), one, member, errors) {
                Some(one) => checked.push(name, one),
                None => is_valid = false,
            }
        }
        is_valid.then_some(JsonValue::Object(checked))
    }

    fn model(
        &mut self,
        value: &'a JsonValue,
        model: &'a ObjectForm,
        errors: &mut ErrorList,
    ) -> Option<JsonValue> {
        let JsonValue::Object(object) = value else {
            self.add(Problem::ModelType, value, errors);
            return None;
        };
        let mut checked = Object::default();
        let mut is_valid = true;
        for field in model.fields {
            let found = match object.get(field.name) {
                Some(member) => self.at(Step::Name(field.name), member, &field.schema, errors),
                None => field.default.value().or_else(|| {
                    self.add_at(Step::Name(field.name), Problem::Missing, value, errors);
                    None
                }),
            };
            match found {
                Some(member) => checked.push(field.name, member),
                None => is_valid = false,
            }
        }
        is_valid &= self.extras(object, model, &mut checked, errors);
        is_valid.then_some(JsonValue::Object(checked))
    }

    fn extras(
        &mut self,
        object: &'a Object,
        model: &ObjectForm,
        checked: &mut Object,
        errors: &mut ErrorList,
    ) -> bool {
        let mut is_valid = true;
        if model.extra == Extra::Ignored {
            return is_valid;
        }
        let is_field = |name: &str| model.fields.iter().any(|field| field.name == name);
        for (name, member) in object.iter().filter(|(name, _)| !is_field(name)) {
            if model.extra == Extra::Kept {
                checked.push(name, member.clone());
            } else {
                self.add_at(Step::Name(name), Problem::Extra, member, errors);
                is_valid = false;
            }
        }
        is_valid
    }

    fn union(
        &mut self,
        value: &'a JsonValue,
        members: &'a [(&'static str, Schema)],
        errors: &mut ErrorList,
    ) -> Option<JsonValue> {
        let mut all = ErrorList::default();
        for (label, schema) in members {
            let mut own = ErrorList::default();
            let checked = self.at(Step::Name(label), value, schema, &mut own);
            if checked.is_some() && own.is_empty() {
                return checked;
            }
            all.append(&own);
        }
        errors.append(&all);
        None
    }
}

fn one_of(value: &JsonValue, words: &[&str]) -> Option<JsonValue> {
    value.as_str().filter(|text| words.contains(text)).map(JsonValue::text)
}

fn not_empty(value: JsonValue) -> Result<JsonValue, Problem> {
    let count = match &value {
        JsonValue::Text(text) => text.chars().count(),
        JsonValue::List(elements) => elements.len(),
        _ => 1,
    };
    if count > 0 {
        return Ok(value);
    }
    Err(Problem::TooShort { kind: "Value", min: 1, actual: 0 })
}
