//! The inputs that a compiled model writes to, taken from its library's source.

use std::collections::HashMap;

/// The names that the source uses for inputs and their views.
pub(super) struct InputAliases(HashMap<String, usize>);

impl InputAliases {
    pub(super) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        Self(names.enumerate().map(|(index, name)| (name.to_owned(), index)).collect())
    }

    /// Parses a statement, and returns the input that it passes to code that may write to it.
    pub(super) fn written_by(&mut self, line: &str) -> Option<usize> {
        self.add_view(line);
        self.pointer(line).or_else(|| self.operation(line))
    }

    /// Parses a view's name, as in `auto view = reinterpret_tensor_wrapper(arg0_1, 2, …);`,
    /// `aoti_torch__reinterpret_tensor(arg0_1, …, &view);` and `RAIIAtenTensorHandle other(view);`.
    fn add_view(&mut self, line: &str) {
        let is_view = ["reinterpret_tensor", "std::move(", "wrap_with_raii_handle"];
        let (name, source) = if let Some((left, right)) = line.split_once(" = ") {
            if !is_view.iter().any(|function| right.contains(function)) {
                return;
            }
            (words(left).last(), right)
        } else if let Some(rest) = line.strip_prefix("RAIIAtenTensorHandle ") {
            let Some((name, source)) = rest.split_once('(') else { return };
            (words(name).last(), source)
        } else if line.contains("reinterpret_tensor") {
            let Some((source, name)) = line.rsplit_once('&') else { return };
            (words(name).next(), source)
        } else {
            return;
        };
        if let (Some(name), Some(index)) = (name, self.find(source)) {
            self.0.insert(name.to_owned(), index);
        }
    }

    /// The input whose address is passed without `const`: `(float*)(arg0_1.data_ptr())`.
    fn pointer(&self, line: &str) -> Option<usize> {
        line.match_indices(".data_ptr())").find_map(|(end, _)| {
            let (before, tensor) = line.get(..end)?.rsplit_once("*)(")?;
            let kind = before.rsplit('(').next()?;
            if kind.starts_with("const ") { None } else { self.find(tensor) }
        })
    }

    /// The input that is the first argument of an operation that writes to this argument:
    /// `aoti_torch_copy_(arg0_1, buf0, 0)`.
    fn operation(&self, line: &str) -> Option<usize> {
        const PREFIX: &str = "aoti_torch_";
        line.match_indices(PREFIX).find_map(|(start, _)| {
            let (name, arguments) = line.get(start + PREFIX.len()..)?.split_once('(')?;
            let first = arguments.split(',').next()?;
            if is_writer(name) { self.find(first) } else { None }
        })
    }

    fn find(&self, text: &str) -> Option<usize> {
        words(text).find_map(|word| self.0.get(word).copied())
    }
}

/// Returns true if an operation writes to its first argument: `fill_`, `bernoulli__float`,
/// `mm_out`, `index_put`.
fn is_writer(name: &str) -> bool {
    let name = name.strip_prefix("cpu_").unwrap_or(name).trim_start_matches('_');
    name.ends_with('_')
        || name.ends_with("_out")
        || ["__", "index_put", "scatter"].iter().any(|part| name.contains(part))
}

fn words(text: &str) -> impl DoubleEndedIterator<Item = &str> {
    text.split(|one: char| !one.is_ascii_alphanumeric() && one != '_')
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(source: &str) -> Vec<usize> {
        let mut aliases = InputAliases::new(["a", "b"].into_iter());
        source.lines().filter_map(|line| aliases.written_by(line)).collect()
    }

    #[test]
    fn statements_that_write_to_an_input_are_found() {
        for statement in [
            "f((const float*)(a.data_ptr()), (float*)(b.data_ptr()));",
            "f((float*)(reinterpret_tensor_wrapper(b, 1, x, y, 0L).data_ptr()));",
            "CHECK(aoti_torch_copy_(b, a, 0));",
            "CHECK(aoti_torch_cpu_fill__Scalar(b, 0));",
            "CHECK(aoti_torch_cpu_index_put_out(b, list, 1, a, false));",
            "CHECK(aoti_torch_cpu_scatter_add(b, 0, a));",
            "CHECK(aoti_torch_cpu_mm_out(b, a, a));",
            "CHECK(aoti_torch_copy_(convert(reinterpret_tensor_wrapper(b, 1, x, y, 0L)), a, 0));",
        ] {
            assert_eq!(written(statement), [1], "{statement}");
        }
    }

    #[test]
    fn views_of_an_input_are_followed() {
        let write = "CHECK(aoti_torch_copy_(view, buf, 0));";
        for views in [
            "auto view = reinterpret_tensor_wrapper(b, 2, x, y, 0L);",
            "CHECK(aoti_torch__reinterpret_tensor(b, 2, x, y, 0L, &view));",
            "CHECK(aoti_torch__reinterpret_tensor(b, 2, x, y, 0L, &h));\nRAIIAtenTensorHandle view(h);",
            "auto view = std::move(b);  // reuse",
        ] {
            assert_eq!(written(&format!("{views}\n{write}")), [1], "{views}");
        }
    }

    #[test]
    fn reading_is_allowed() {
        for statement in [
            "f((const float*)(a.data_ptr()), (float*)(buf0.data_ptr()));",
            "CHECK(aoti_torch_cpu_mm_out(buf0, a, b));",
            "CHECK(aoti_torch_cpu__scaled_dot_product(a, b));",
            "CHECK(aoti_torch_get_dtype(a, &a_dtype));",
            "auto buf1 = buf0;\naoti_torch_copy_(buf1, a, 0);",
        ] {
            assert_eq!(written(statement), [0; 0], "{statement}");
        }
    }
}
