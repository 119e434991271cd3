//! The command-line options.

/// The command-line options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// True if the scheduler's own tests are skipped.
    pub(crate) quick: bool,
    /// The number of mutants to draw; `None` means all.
    pub(crate) sample: Option<usize>,
    /// The seed for drawing a sample.
    pub(crate) seed: u64,
    /// The folder of the copy, which is kept; without it, a temporary one is used.
    pub(crate) folder: Option<String>,
    /// The text that a mutant's name must contain.
    pub(crate) words: String,
}

impl Options {
    /// Parses the arguments that follow the program name.
    pub(crate) fn read(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self::default();
        let mut words = Vec::new();
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            let number = |text: String| {
                text.parse::<u64>().map_err(|_| format!("'{text}' is no number: {argument}"))
            };
            match argument.as_str() {
                "--quick" => options.quick = true,
                "--sample" => {
                    let sample = number(value()?)?;
                    options.sample = Some(usize::try_from(sample).unwrap_or(usize::MAX));
                }
                "--seed" => options.seed = number(value()?)?,
                "--folder" => options.folder = Some(value()?),
                unknown if unknown.starts_with("--") => {
                    return Err(format!("unknown option {unknown}"));
                }
                _ => words.push(argument),
            }
        }
        options.words = words.join(" ");
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Options, String> {
        Options::read(line.split_whitespace().map(String::from))
    }

    #[test]
    fn options_and_words_are_read_in_any_order() {
        let expected = Options {
            quick: true,
            sample: Some(3),
            seed: 7,
            folder: Some(String::from("f")),
            words: String::from("a delay"),
        };
        assert_eq!(read("a --sample 3 --quick delay --seed 7 --folder f"), Ok(expected));
        assert_eq!(read(""), Ok(Options::default()));
    }

    #[test]
    fn wrong_options_are_refused() {
        for line in ["--sample", "--sample many", "--slow"] {
            assert!(read(line).is_err(), "{line}");
        }
    }
}
