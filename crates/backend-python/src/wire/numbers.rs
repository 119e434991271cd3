//! Numbers in the wire format, in one table for both ends.
//!
//! `workers/python/galatea_worker/numbers.py` is generated from this table. One test compares the
//! two, and another one rewrites the file.

/// Declares modules of constants, and the lines of a Python module with the same constants.
macro_rules! numbers {
    ($(
        $(#[doc = $about:literal])*
        mod $group:ident: $kind:ty, $prefix:literal {
            $($name:ident = $number:literal,)*
        }
    )*) => {
        $(
            $(#[doc = $about])*
            pub(crate) mod $group {
                $(pub(crate) const $name: $kind = $number;)*
            }
        )*

        /// The groups as Python source.
        #[cfg(test)]
        fn python() -> String {
            let mut text = String::new();
            $(
                text.push('\n');
                $(text.push_str(&format!("#{}\n", $about));)*
                $(text.push_str(&format!(
                    "{}{} = {}\n", $prefix, stringify!($name), $group::$name
                ));)*
            )*
            text
        }
    };
}

numbers! {
    /// Frames from the server on the socket for executions.
    mod to_a: u8, "" {
        EXECUTE = 1,
        CALL_REPLY = 2,
        FINALIZE = 3,
        AUTO_COMPLETE = 4,
        INITIALIZE = 5,
    }

    /// Frames from the worker on the socket for executions.
    mod from_a: u8, "" {
        RESULT = 1,
        CALL = 2,
        OK_JSON = 10,
        FAILED = 11,
        DONE = 12,
        HELLO = 20,
    }

    /// Frames from the server on the other socket.
    mod to_b: u8, "B_" {
        CALL_REPLY = 1,
        CANCELLED = 2,
        FREE = 3,
        REPLY = 4,
        PAUSE = 5,
        RESUME = 6,
        IS_READY = 7,
    }

    /// Frames from the worker on the other socket.
    mod from_b: u8, "B_" {
        LOG = 1,
        RESPONSE = 2,
        CALL = 3,
        CANCEL_CALL = 4,
        RELEASE = 5,
        CONTROL = 6,
        METRIC = 7,
        READY = 8,
    }

    /// Locations of a tensor's contents.
    mod place: u8, "" {
        INLINE = 0,
        IN_INPUTS = 1,
        IN_OUTPUTS = 2,
        ON_DEVICE = 3,
    }

    /// Kinds of responses.
    mod response: u8, "" {
        NO_RESPONSE = 0,
        TENSORS = 1,
        ERROR = 2,
    }

    /// Bounds.
    mod bounds: usize, "" {
        INLINE_BYTES_MAX = 16_384,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../workers/python/galatea_worker/numbers.py");
    const HEAD: &str =
        "\"\"\"Numbers on the wire, made from crates/backend-python/src/wire/numbers.rs.\"\"\"\n";

    fn made() -> String {
        format!("{HEAD}{}", python())
    }

    #[test]
    fn both_ends_have_the_same_numbers() {
        let why = "write it anew: cargo test -p galatea-backend-python write_numbers -- --ignored";
        assert_eq!(std::fs::read_to_string(PATH).unwrap_or_default(), made(), "{why}");
    }

    #[test]
    #[ignore = "writes the worker's file"]
    fn write_numbers() {
        std::fs::write(PATH, made()).unwrap();
    }
}
