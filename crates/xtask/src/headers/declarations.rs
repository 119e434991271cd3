//! The declarations in the sources of the `abi` crate.

/// The declarations that all headers share.
pub(super) struct Declarations {
    pub(super) objects: Vec<String>,
    pub(super) enumerations: Vec<Enumeration>,
    pub(super) callbacks: Vec<Function>,
    /// The versions by prefix.
    pub(super) versions: Vec<(String, u32, u32)>,
}

/// An enumeration with its values.
pub(super) struct Enumeration {
    pub(super) about: String,
    pub(super) name: String,
    pub(super) values: Vec<(String, u32)>,
}

/// A function or a function type.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) name: String,
    /// Names and types in Rust syntax.
    pub(super) arguments: Vec<(String, String)>,
    pub(super) result: Option<String>,
    /// True if a loaded library provides the function, rather than the server.
    pub(super) of_plug_in: bool,
}

/// The objects: the lines of `opaque! { … }`.
pub(super) fn objects(source: &str) -> Vec<String> {
    let body = source.rsplit_once("opaque! {").map_or("", |(_, body)| body);
    let names = body.split([',', '}']).map(str::trim);
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The enumerations of `enumerations! { … }`.
pub(super) fn enumerations(source: &str) -> Result<Vec<Enumeration>, String> {
    let mut found: Vec<Enumeration> = Vec::new();
    let mut about = String::new();
    let body = source.rsplit_once("enumerations! {").map_or("", |(_, body)| body);
    for line in body.lines().map(str::trim) {
        if let Some(doc) = line.strip_prefix("///") {
            about = doc.trim().to_owned();
        } else if let Some(name) = line.strip_suffix(" {") {
            let (name, about) = (name.to_owned(), std::mem::take(&mut about));
            found.push(Enumeration { about, name, values: Vec::new() });
        } else if let Some((name, number)) = line.split_once(" = ") {
            let number = number.trim_end_matches(',').parse();
            let number = number.map_err(|_| format!("not a number in '{line}'"))?;
            let last = found.last_mut().ok_or_else(|| format!("'{line}' is in no enumeration"))?;
            last.values.push((name.to_owned(), number));
        }
    }
    Ok(found)
}

/// The callback types that users pass in.
pub(super) fn callbacks(source: &str) -> Result<Vec<Function>, String> {
    let mut found = Vec::new();
    for declaration in source.split("pub type ").skip(1) {
        let (name, rest) = split(declaration, "=")?;
        let (_, rest) = split(rest, "fn(")?;
        found.push(function(name.trim(), rest, false)?);
    }
    Ok(found)
}

/// The functions of `functions! { … }`, in order.
pub(super) fn functions(source: &str) -> Result<Vec<Function>, String> {
    let mut found = Vec::new();
    let mut of_plug_in = false;
    for line in source.lines().map(str::trim) {
        match line {
            "PROVIDED:" => of_plug_in = false,
            "PLUGIN:" => of_plug_in = true,
            _ if line.starts_with("TRITON") => {
                let (name, rest) = split(line, "(")?;
                found.push(function(name, rest, of_plug_in)?);
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Parses a function from the text after its opening parenthesis.
fn function(name: &str, rest: &str, of_plug_in: bool) -> Result<Function, String> {
    let (arguments, after) = split(rest, ")")?;
    let result = after.trim_start().strip_prefix("-> ");
    let result = result.map(|result| result.trim_matches([';', ',', '>', '\n', ' ']).to_owned());
    let pairs = arguments.split(',').map(str::trim).filter(|argument| !argument.is_empty());
    let pairs = pairs.map(|argument| {
        let (name, kind) = split(argument, ":")?;
        // A name that is a Rust keyword ends with an underscore.
        Ok((name.trim_end_matches('_').to_owned(), kind.trim().to_owned()))
    });
    let arguments = pairs.collect::<Result<_, String>>()?;
    Ok(Function { name: name.to_owned(), arguments, result, of_plug_in })
}

/// The versions: `X_API_VERSION: (u32, u32) = (1, 34)`.
pub(super) fn versions(source: &str) -> Result<Vec<(String, u32, u32)>, String> {
    let mut found = Vec::new();
    for line in source.lines().filter(|line| line.contains("_API_VERSION:")) {
        let (before, numbers) = split(line, "= (")?;
        let (prefix, _) = split(before.trim_start_matches("pub const "), "_API_VERSION")?;
        let (major, minor) = split(numbers.trim_end_matches(");"), ", ")?;
        let number =
            |text: &str| text.parse::<u32>().map_err(|_| format!("not a version in '{line}'"));
        found.push((format!("TRITON{prefix}"), number(major)?, number(minor)?));
    }
    Ok(found)
}

fn split<'a>(text: &'a str, at: &str) -> Result<(&'a str, &'a str), String> {
    text.split_once(at).ok_or_else(|| format!("no '{at}' in '{text}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_read_with_its_arguments_and_result() {
        let source = "PLUGIN:\n    TRITONX_Y(type_: X_Kind, p: *mut *const c_char) -> *mut E;\n";
        let pair = |name: &str, kind: &str| (name.to_owned(), kind.to_owned());
        let expected = Function {
            name: String::from("TRITONX_Y"),
            arguments: vec![pair("type", "X_Kind"), pair("p", "*mut *const c_char")],
            result: Some(String::from("*mut E")),
            of_plug_in: true,
        };
        assert_eq!(functions(source).unwrap(), [expected]);
    }

    #[test]
    fn a_callback_is_read_over_several_lines() {
        let source = "pub type A_t =\n    Option<unsafe extern \"C\" fn(a: *mut A, flags: u32)>;";
        let found = callbacks(source).unwrap();
        assert_eq!(found[0].name, "A_t");
        assert_eq!(found[0].arguments.len(), 2);
        assert_eq!(found[0].result, None);
    }

    #[test]
    fn versions_are_read() {
        let source = "pub const CACHE_API_VERSION: (u32, u32) = (0, 1);";
        assert_eq!(versions(source).unwrap(), [(String::from("TRITONCACHE"), 0, 1)]);
    }
}
