//! A header's text.

use super::Header;
use super::declarations::{Declarations, Enumeration, Function};

/// The maximum line length, where possible.
const WIDTH: usize = 90;

/// The whole text of a header.
pub(super) fn header(
    header: &Header,
    declarations: &Declarations,
    functions: &[Function],
) -> Result<String, String> {
    let prefix = header.prefix();
    let mut text = format!(
        "/* SPDX-License-Identifier: Apache-2.0\n *\n * {}\n *\n * Written by `cargo xtask headers` \
         from the crate `abi`; not to be edited.\n */\n\n#pragma once\n\n",
        header.about
    );
    if header.source == "server" {
        text.push_str("#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n\n");
    } else {
        text.push_str("#include \"triton/core/tritonserver.h\"\n\n");
    }
    text.push_str("#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n");
    text.push_str(&macros(&prefix, header.source != "server"));
    let version = declarations.versions.iter().find(|(name, ..)| *name == prefix);
    let (_, major, minor) = version.ok_or_else(|| format!("{prefix} has no version"))?;
    text.push_str(&format!(
        "/* The version of this header. */\n#define {prefix}_API_VERSION_MAJOR {major}\n\
         #define {prefix}_API_VERSION_MINOR {minor}\n\n"
    ));
    let own = format!("{prefix}_");
    text.push_str("/* Objects, known by their addresses alone. */\n");
    for name in declarations.objects.iter().filter(|name| name.starts_with(&own)) {
        // Some backends refer to objects with `struct`, some without.
        text.push_str(&format!("struct {name};\ntypedef struct {name} {name};\n"));
    }
    text.push('\n');
    for one in declarations.enumerations.iter().filter(|one| one.name.starts_with(&own)) {
        text.push_str(&enumeration(one));
    }
    for callback in declarations.callbacks.iter().filter(|one| one.name.starts_with(&own)) {
        text.push_str(&prototype("typedef ", &format!("(*{})", callback.name), callback)?);
        text.push('\n');
    }
    for (of_plug_in, about, specifier) in [
        (false, "What the server provides.", format!("{prefix}_DECLSPEC ")),
        (true, "What the library that is loaded provides.", format!("{prefix}_ISPEC ")),
    ] {
        let mut some = functions.iter().filter(|one| one.of_plug_in == of_plug_in).peekable();
        if some.peek().is_some() {
            text.push_str(&format!("/* {about} */\n\n"));
        }
        for function in some {
            text.push_str(&prototype(&specifier, &function.name, function)?);
            text.push('\n');
        }
    }
    text.push_str("#ifdef __cplusplus\n}\n#endif\n");
    Ok(text)
}

/// The macros in function declarations: `DECLSPEC` for the server's functions, `ISPEC` for those of
/// a library that the server loads.
fn macros(prefix: &str, is_plug_in: bool) -> String {
    let visible = "__attribute__((visibility(\"default\")))";
    let mut text =
        format!("#ifndef {prefix}_DECLSPEC\n#define {prefix}_DECLSPEC {visible}\n#endif\n");
    if is_plug_in {
        text.push_str(&format!(
            "#ifndef {prefix}_ISPEC\n#define {prefix}_ISPEC {visible}\n#endif\n"
        ));
    }
    text.push('\n');
    text
}

fn enumeration(one: &Enumeration) -> String {
    let values: String =
        one.values.iter().map(|(name, number)| format!("  {name} = {number},\n")).collect();
    // C++ before C++11 and C89 don't allow a trailing comma.
    let values = values.trim_end_matches(",\n");
    format!("/* {} */\ntypedef enum {} {{\n{values}\n}} {};\n\n", one.about, one.name, one.name)
}

fn prototype(before: &str, name: &str, function: &Function) -> Result<String, String> {
    let result = function.result.as_deref().map_or(Ok(String::from("void ")), c_type)?;
    let arguments = function.arguments.iter().map(|(name, kind)| {
        let kind = c_type(kind)?;
        Ok(format!("{kind}{name}"))
    });
    let arguments = arguments.collect::<Result<Vec<_>, String>>()?;
    let arguments = if arguments.is_empty() { vec![String::from("void")] } else { arguments };
    let line = format!("{before}{result}{name}({});\n", arguments.join(", "));
    if line.len() <= WIDTH {
        return Ok(line);
    }
    Ok(format!("{before}{result}{name}(\n    {});\n", arguments.join(",\n    ")))
}

/// A C type, including the text between it and a name: `*const c_char` is `const char* `.
fn c_type(kind: &str) -> Result<String, String> {
    if let Some(target) = kind.strip_prefix("*mut ") {
        return Ok(format!("{}* ", c_type(target)?.trim_end()));
    }
    if let Some(target) = kind.strip_prefix("*const ") {
        let target = c_type(target)?;
        let target = target.trim_end();
        let is_pointer = target.ends_with('*');
        return Ok(if is_pointer {
            format!("{target} const* ")
        } else {
            format!("const {target}* ")
        });
    }
    let plain = match kind {
        "bool" => "bool",
        "c_char" => "char",
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "c_void" => "void",
        "f64" => "double",
        "i32" => "int32_t",
        "i64" => "int64_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "usize" => "size_t",
        name if name.starts_with("TRITON") => name,
        other => return Err(format!("'{other}' has no type in C")),
    };
    Ok(format!("{plain} "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_read_from_their_end() {
        for (rust, c) in [
            ("u32", "uint32_t "),
            ("*const c_char", "const char* "),
            ("*mut *const c_char", "const char** "),
            ("*mut *mut c_void", "void** "),
            ("*const *mut TRITONSERVER_Error", "TRITONSERVER_Error* const* "),
            ("*mut *const TRITONSERVER_Parameter", "const TRITONSERVER_Parameter** "),
        ] {
            assert_eq!(c_type(rust).unwrap(), c);
        }
        assert!(c_type("String").is_err());
    }
}
