//! The arguments of a command, once they are read.

/// Arguments that were given to a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// The server's flags, as they were given.
    pub flags: Vec<String>,
    /// The command's own options, in their order.
    pub options: Vec<(&'static str, String)>,
    /// The arguments that are no options.
    pub operands: Vec<String>,
}

impl Arguments {
    /// Returns true if an option was given.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.option(name).is_some()
    }

    /// The value of an option; the last one counts.
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
