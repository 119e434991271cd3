//! The parsed arguments of a command.

/// Arguments passed to a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// The server's flags, as passed.
    pub flags: Vec<String>,
    /// The command's own options, in order.
    pub options: Vec<(&'static str, String)>,
    /// The positional arguments.
    pub operands: Vec<String>,
}

impl Arguments {
    /// Returns true if an option was passed.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.option(name).is_some()
    }

    /// The value of an option; the last occurrence wins.
    #[must_use]
    pub fn option(&self, name: &str) -> Option<&str> {
        self.all(name).last()
    }

    /// All values of an option.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        let of_it = self.options.iter().filter(move |(given, _)| *given == name);
        of_it.map(|(_, value)| value.as_str())
    }
}
